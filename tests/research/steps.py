"""A step of DP-SGD that claims epsilon 1.27 at delta = 1e-5, and how the tests look at it."""

from dpserve.accounting.conversions import gaussian_mu
from dpserve.training.kinds.dpsgd.noisy_step import StepRelease
from research.nasr2023.faults import FAULT_EPSILON
from research.white_box.observations import Descent, dirac, observe_steps

DELTA = 1e-5
CLAIMED_MU = gaussian_mu(FAULT_EPSILON, DELTA)
CLAIM = StepRelease(1 / CLAIMED_MU, 0.2)
SURE = 1 - 1e-6


def observed(audited, records, steps):
    canary = dirac(audited.network.size, 7, 100.0)
    found = observe_steps(audited, records, Descent(steps, 0.01), canary)
    return found.with_canary, found.without
