"""Findings and their reports, from exact quantiles of what a step shows: no luck in any of them."""

import numpy as np
import scipy.stats

from dpserve.audit import reports
from research.white_box.bounds import POOLED, ClaimedRun, Measured, judge
from research.white_box.presentation import steps_report

CLAIM = ClaimedRun(0.8, 0.05, 30, 1e-5)


def measured(noise, count=2000):
    mixed = (np.random.default_rng(seed).permutation(count) for seed in (0, 1))
    outside, inside = (scipy.stats.norm.ppf((np.arange(count) + 0.5) / count)[order] * noise for order in mixed)
    return Measured(CLAIM, outside, inside + 1, 0.5)


def test_what_holds_its_claim_is_acquitted_and_what_does_not_is_convicted():
    sound, broken = (judge(measured(noise), 0.95, 1 - 1e-9) for noise in (0.8, 0.4))
    assert (sound.convicted, broken.convicted) == (False, True)
    assert sound[POOLED].step_epsilon < CLAIM.step_epsilon < broken[POOLED].step_epsilon
    shown = steps_report(broken, measured(0.4), "A step", {"seed": 1})
    assert shown.exit_status == reports.CONVICTED
    assert shown.verdict.startswith("Convicted")
    assert steps_report(sound, measured(0.8), "A step", {}).exit_status == reports.ACQUITTED
