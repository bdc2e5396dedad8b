"""Costs beside earlier models: no record loses more than the accounts are charged, whichever models it was in."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.losses import ApproximateGaussianLoss, Cost, GaussianLoss, PureLoss
from training.pay_once.earlier import EarlierModel, at_least_both, cost_beside, losses_by_part

LINEAGES = ("a", "b", "c")


def earlier(lineage, cost, number, *, apart):
    return EarlierModel(
        role="before",
        model_id=f"{number:032x}",
        release="dpsgd",
        weights_sha256="0" * 64,
        drawn=f"{number:064x}",
        lineage=lineage,
        cost=str(cost),
        apart=apart,
    )


def square(cost):
    return sum((Fraction(loss.mu) ** 2 for loss in cost.losses), Fraction(0))


@settings(max_examples=200, derandomize=True, deadline=None)
@given(chain=st.lists(st.tuples(st.sampled_from(LINEAGES), st.integers(1, 8)), min_size=1, max_size=7))
def test_no_record_loses_more_than_its_lineage_and_a_client_were_charged(chain):
    """Each model is begun at the one before it. Whoever holds the last one pays for those of its lineage, too.

    The oracle composes, for a record of each lineage, what every model's own release tells of it: in exact fractions.
    """
    models, charged = [], {}
    for number, (lineage, eighths) in enumerate(chain):
        own = Cost((GaussianLoss(eighths / 8),))
        before = [each.model_copy(update={"apart": each.lineage != lineage}) for each in reversed(models)]
        cost = cost_beside(own, before, lineage)
        models.append(earlier(lineage, cost, number, apart=False))
        charged[lineage] = charged.get(lineage, 0) + square(cost)
        of_client = sum((square(Cost.parse(each.cost)) for each in models if each.lineage == lineage), Fraction(0))
        for one in {each.lineage for each in models}:
            lost = sum((Fraction(eighths, 8) ** 2 for (of, eighths) in chain[: number + 1] if of == one), Fraction(0))
            assert lost <= charged[one]
            assert lost <= of_client


def test_records_of_one_size_cost_their_lineages_no_more_than_their_own_models():
    own = Cost((GaussianLoss(0.5),))
    first = earlier("a", own, 1, apart=True)
    assert cost_beside(own, [first], "b") == own
    assert cost_beside(own, [first.model_copy(update={"apart": False})], "a") == own


def test_a_record_that_may_be_in_another_lineage_has_no_cost():
    with pytest.raises(ValueError, match="another lineage"):
        cost_beside(Cost((GaussianLoss(0.5),)), [earlier("a", "gaussian:0.5", 1, apart=False)], "b")


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    parts=st.lists(
        st.lists(st.tuples(st.sampled_from([0.0, 2.0**-41, 2.0**-40]), st.integers(1, 12)), min_size=1, max_size=3),
        min_size=2,
        max_size=2,
    )
)
def test_a_cost_for_either_part_is_at_least_both_and_no_more_than_it_must(parts):
    """Both the coin and the Gaussian part are at least those of each, in exact fractions."""
    one, other = (
        Cost(
            tuple(
                ApproximateGaussianLoss(eighths / 8, delta) if delta else GaussianLoss(eighths / 8)
                for delta, eighths in each
            )
        )
        for each in parts
    )
    found = at_least_both(one, other)
    for each in (one, other):
        assert found.rho >= each.rho
        assert coin(found) >= coin(each)
    assert float(found.rho) <= max(float(one.rho), float(other.rho)) * (1 + 1e-9)
    assert coin(found) == max(coin(one), coin(other))


def coin(cost):
    none = Fraction(1)
    for loss in cost.losses:
        none *= 1 - Fraction(getattr(loss, "delta", 0))
    return 1 - none


def test_of_other_costs_the_composition_stands_for_both():
    gaussian, pure = Cost((GaussianLoss(0.5),)), Cost((PureLoss(0.5),))
    assert at_least_both(gaussian, pure) == Cost((*gaussian.losses, *pure.losses))


def test_each_part_loses_its_own_and_new_records_more_only_where_they_may_be_old_ones():
    own = Cost((GaussianLoss(0.5),))
    apart, mixed = earlier("a", "gaussian:0.25", 1, apart=True), earlier("b", "gaussian:0.75", 2, apart=False)
    assert losses_by_part(own, [apart]) == {"new": own, apart.model_id: Cost.parse("gaussian:0.25")}
    assert losses_by_part(own, [mixed, apart])["new"] == Cost((GaussianLoss(0.75), GaussianLoss(0.5)))
