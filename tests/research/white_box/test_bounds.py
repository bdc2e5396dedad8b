import numpy as np
import pytest

from research.white_box.bounds import (
    ClaimedRun,
    claimed_run,
    composed_epsilon,
    pooled_bound,
    run_epsilon,
)

LEVELS = np.linspace(0.001, 0.999, 97)


def test_a_claim_uses_its_epsilon_up_and_no_more():
    claim = claimed_run(4.0, 0.02, 50, 1e-5)
    assert 3.99 < claim.epsilon <= 4.0
    with pytest.raises(ValueError, match="no noise multiplier"):
        claimed_run(1e-9, 1.0, 10**6, 1e-9)


@pytest.mark.parametrize("noise", [0.6, 1.0, 2.0])
def test_a_run_composed_from_below_is_below_and_close(noise):
    above = ClaimedRun(noise, 0.05, 40, 1e-5).epsilon
    below = composed_epsilon(noise, 0.05, 40, 1e-5)
    assert above * 0.96 < below <= above


def test_nothing_refuted_is_an_epsilon_of_nothing():
    claim = ClaimedRun(0.7, 0.05, 40, 1e-5)
    scores = np.linspace(0, 1, 400)
    assert run_epsilon(pooled_bound(scores, scores, 0.95), claim) == 0
