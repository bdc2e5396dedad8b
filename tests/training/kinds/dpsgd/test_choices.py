"""The rule that makes the choices of a run of DP-SGD: a larger budget is not worse."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpserve.accounting.budgets import Budget
from dpserve.training.kinds.cases import Case, Heads, numbers_declared
from dpserve.training.kinds.dpsgd.planned import PLANNED
from dpserve.training.kinds.planned import UNLIMITED, Trial

EPSILONS = (0.5, 2.0, 8.0)
SEEDS = 3


def digits(seed):
    """The digits of scikit-learn, a third of them held out."""
    data = load_digits()
    X = data.data / 16
    order = np.random.default_rng(0).permutation(len(X))
    train, asked = np.split(order, [2 * len(X) // 3])
    classes = len(data.target_names)
    declared = numbers_declared(X.shape[1], classes)
    return Case("digits", seed, X[train], data.target[train], X[asked], data.target[asked], classes, "a", declared)


@pytest.mark.slow
def test_log_loss_does_not_rise_with_epsilon_beyond_two_standard_errors():
    (option,) = (one for one in PLANNED if one.name == "dpsgd")
    losses = np.zeros((len(EPSILONS), SEEDS))
    for seed in range(SEEDS):
        heads = Heads(digits(seed))
        for place, epsilon in enumerate(EPSILONS):
            whole = Budget.from_epsilon_delta(epsilon, 1e-5, "gaussian").limit
            found = option.qualities(Trial(heads, whole, str(epsilon)))[UNLIMITED]
            losses[place, seed] = found.log_loss
    rises = np.diff(losses, axis=0)
    errors = rises.std(axis=1, ddof=1) / np.sqrt(SEEDS)
    assert (rises.mean(axis=1) <= 2 * errors).all()
