"""Lists of releases: what they cost together, and the lists that no proof covers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dpserve.accounting.losses import ApproximateGaussianLoss, Cost, GaussianLoss, LaplaceLoss
from dpserve.training.pay_once.releases import Release, composed

MUS = st.floats(1e-3, 2.0)


def release(*losses, part="training", name="some"):
    return Release(name=name, cost=str(Cost(losses)), part=part)


@given(st.lists(MUS, min_size=1, max_size=5), st.lists(MUS, max_size=3))
def test_releases_of_the_same_records_add_up_and_others_cost_nothing_beside_them_or_are_refused(training, beside):
    releases = [release(GaussianLoss(mu)) for mu in training]
    others = [release(GaussianLoss(mu), part="held back") for mu in beside]
    own = Cost(tuple(map(GaussianLoss, training)))
    if Cost(tuple(map(GaussianLoss, beside))).rho <= own.rho:
        assert composed([*releases, *others]) == composed([*others, *releases]) == own
    else:
        with pytest.raises(ValueError, match="held back"):
            composed([*releases, *others])


def test_each_part_beside_the_training_is_compared_with_it_alone():
    training = release(GaussianLoss(1.0))
    parts = [release(GaussianLoss(1.0), part=part) for part in ("held back", "validating")]
    assert composed([training, *parts]) == training.price


@pytest.mark.parametrize("loss", [LaplaceLoss(0.01), ApproximateGaussianLoss(0.01, 2.0**-40)])
def test_what_no_proof_covers_beside_the_training_is_refused(loss):
    """A coin may show everything, whatever the training costs; and curves of other shapes may cross."""
    with pytest.raises(ValueError, match="held back"):
        composed([release(GaussianLoss(1.0)), release(loss, part="held back")])
    with pytest.raises(ValueError, match="held back"):
        composed([release(LaplaceLoss(5.0)), release(GaussianLoss(0.01), part="held back")])


@pytest.mark.parametrize("cost", ["", "gaussian:1", "gaussian:nan", "gaussian:-1.0", "magic:1.0"])
def test_what_is_no_cost_is_no_release(cost):
    with pytest.raises(ValidationError):
        Release(name="some", cost=cost)


def test_the_mu_is_that_of_one_loss():
    assert release(GaussianLoss(0.25)).mu == 0.25
    for losses in ((GaussianLoss(1.0), GaussianLoss(1.0)), (LaplaceLoss(1.0),)):
        with pytest.raises(ValueError, match="has no mu"):
            _ = release(*losses).mu
    assert math.isclose(composed([release(GaussianLoss(3.0)), release(GaussianLoss(4.0))]).rho, 12.5)
