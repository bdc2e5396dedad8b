"""Whole runs as single observations: what a run tells whom (Nasr et al. 2023, Algorithm 1 and Section 5.5).

The observer of every step scores a run by its log-likelihood ratio; the observer of the final model alone by the
log-odds of the canary's label. Each run is one observation, so many runs are needed, and each bound is of a whole run.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit import estimators
from audit.estimators import LowerBound
from audit.white_box.bounds import Claim, composed_epsilon, sampled_run
from audit.white_box.canaries import FixedCanary
from audit.white_box.observations import (
    Descent,
    Records,
    Run,
    log_likelihood_ratios,
    log_odds_of_label,
    watch_run,
)
from audit.white_box.steps import AuditedStep

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RunScores:
    """Scores of one run: by who sees every step, and by who sees only the model at its end."""

    every_step: float
    final_model: float


def score_run(
    audited: AuditedStep, records: Records, descent: Descent, canary: FixedCanary, *, member: bool
) -> RunScores:
    """Train once with the canary among the records, if it is a `member`, or without, and score the run."""
    run = watch_run(audited, records, descent, canary, member=member)
    return RunScores(_log_ratio(run, audited), log_odds_of_label(audited, run.parameters, canary.example))


def _log_ratio(run: Run, audited: AuditedStep) -> float:
    claim = audited.claim
    ratios = log_likelihood_ratios(run.observed, claim.noise_multiplier, claim.sampling_rate, run.shifts)
    return float(ratios.sum())


def run_bound(
    inside: Floats, outside: Floats, claim: Claim, confidence: float, threshold: float | None = None
) -> tuple[LowerBound, float]:
    """Return the bound of mu from scores of runs with and without the canary, and the epsilon of a run with it.

    f-DP by Clopper and Pearson through the trade-off function of the composed run. Without a threshold fixed in
    advance, as 0 for log-likelihood ratios, a share of the scores chooses one and is left out. Raises ValueError where
    the composition cannot be had numerically.
    """
    family = sampled_run(claim)
    bound = estimators.tradeoff(inside, outside, confidence, family, threshold=threshold)
    if bound.value <= 1e-3:
        return bound, 0.0
    return bound, composed_epsilon(1 / bound.value, claim.sampling_rate, claim.steps, claim.delta)
