import json
import math

import pytest

from dpserve.accounting import explanation, sampling_error
from dpserve.accounting.budgets import Budget
from dpserve.accounting.explanation import explain, explain_account, parse_release
from dpserve.accounting.losses import (
    ApproximateGaussianLoss,
    BoundedRangeLoss,
    Cost,
    GaussianLoss,
    LaplaceLoss,
    PureLoss,
    SubsampledGaussianLoss,
)
from dpserve.accounting.report import AccountState, account_report


def test_releases_are_read_as_people_write_them() -> None:
    assert parse_release("gaussian:20") == Cost((GaussianLoss(0.05),))
    assert parse_release("pure:0.5") == Cost((PureLoss(0.5),))
    assert parse_release("laplace:4, exponential:0.5") == Cost((LaplaceLoss(0.25), BoundedRangeLoss(0.5)))
    assert parse_release("sgm:1.1:0.02") == Cost((SubsampledGaussianLoss(1.1, 0.02),))


def test_the_inverse_of_a_noise_multiplier_is_never_below() -> None:
    (loss,) = parse_release("gaussian:3").losses

    assert loss.rho * 2 * 9 >= 1


@pytest.mark.parametrize(
    "text", ["", "gaussian", "gaussian:1:2", "gaussian:0", "laplace:x", "sgm:1", "noise:1", "gaussian:nan"]
)
def test_other_releases_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"a release is written gaussian:|must be|is none"):
        parse_release(text)


def test_two_hundred_gaussian_releases() -> None:
    """Noise multiplier 20, 200 times: mu = sqrt(200)/20."""
    found = explain({parse_release("gaussian:20"): 200}, 1e-6)

    assert found.tightest == "exact"
    assert found.epsilon == pytest.approx(3.3076, abs=1e-4)
    assert found.identifiability.membership_advantage_bound == pytest.approx(
        math.erf(math.sqrt(0.5) / math.sqrt(8)), rel=1e-9
    )
    assert "200 noisy results" in found.in_plain_words
    assert "One noisy result" in explain({parse_release("gaussian:20"): 1}, 1e-6).in_plain_words
    assert "Nothing computed from the records" in explain({}, 1e-6).in_plain_words
    json.loads(found.model_dump_json())


def test_an_account_is_explained_by_the_report_that_it_serves() -> None:
    budget = Budget.from_epsilon_delta(4, 1e-6, "gaussian")
    cost = parse_release("gaussian:20")

    found = explain_account(AccountState.after_releases({cost: 20}, budget), price=cost)

    report = account_report(AccountState.after_releases({cost: 20}, budget), price=cost)
    assert found.model_dump(exclude={"explanation"}) == report.model_dump()
    assert found.explanation.epsilon == pytest.approx(found.spent.epsilon, rel=1e-6)
    assert f"{found.queries_left:,} more answers" in found.explanation.in_plain_words


def test_an_account_keeps_the_samplers_share_of_delta() -> None:
    budget = Budget.from_epsilon_delta(4, 1e-6, "any")
    cost = parse_release("laplace:20")

    ideal = explain({cost: 5}, sampling_error.ideal_delta(1e-6))
    drawn = explain_account(AccountState.after_releases({cost: 5}, budget), price=cost).explanation

    assert [(one.name, one.epsilon) for one in drawn.analyses] == [(one.name, one.epsilon) for one in ideal.analyses]
    assert drawn.identifiability.membership_advantage_bound >= ideal.identifiability.membership_advantage_bound


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("laplace:0.01", 10),
        ("gaussian:0.001", 10**6),
        ("exponential:1e-6", 10**12),
        ("sgm:1.1:0.01", 10**6),
        # A numerical PLD has all its mass at infinity, or cannot be made: the other analyses hold.
        ("laplace:0.001", 1),
        ("laplace:0.001", 100),
    ],
)
def test_every_number_of_an_explanation_is_finite(text: str, times: int) -> None:
    found = json.loads(explain({parse_release(text): times}, 1e-6).model_dump_json())

    assert found["epsilon"] > 0
    bounds = found["identifiability"]
    assert all(value is None or 0 <= value <= 1 for value in bounds.values())
    assert all(reading["epsilon"] is None or math.isfinite(reading["epsilon"]) for reading in found["analyses"])


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.5, "50.0 %"), (0.5001, "50.1 %"), (0.9995, "99.99 %"), (0.99999, "almost 100 %"), (1.0, "100.0 %")],
)
def test_percentages_round_up_and_never_claim_certainty(share: float, text: str) -> None:
    assert explanation.percent(share) == text


def test_what_else_is_asked_of_releases_is_answered() -> None:
    """At the epsilon of each analysis its delta is the one asked for, by search to 1e-6."""
    asked = explain({parse_release("gaussian:20"): 200}, 1e-6)
    epsilon = next(reading.epsilon for reading in asked.analyses if reading.name == "exact")

    found = explain({parse_release("gaussian:20"): 200}, 1e-6, epsilon=epsilon, attack=(0.17, 0.05))

    deltas = {reading.name: reading.delta for reading in found.deltas}
    assert deltas["exact"] == pytest.approx(1e-6, rel=1e-5)
    assert all(delta >= deltas["exact"] * (1 - 1e-9) for delta in deltas.values())
    assert found.attack is not None
    assert found.attack.least_epsilon == pytest.approx(math.log((1 - 1e-6) / 0.88))
    assert found.attack.possible


def test_a_clients_queries_are_limited_by_its_lineage() -> None:
    cost = parse_release("gaussian:20")

    found = explain_account(AccountState.after_releases({}, Budget.from_mu(1, 1e-6)), price=cost, shared_answers=3)

    assert found.queries_left == 3
    assert "3 more answers" in found.explanation.in_plain_words


def test_delta_is_zero_only_where_pure_epsilons_add_up_to_it():
    releases = {parse_release("laplace:2"): 4}
    deltas = {
        epsilon: min(reading.delta for reading in explain(releases, 1e-6, epsilon=epsilon).deltas)
        for epsilon in (1.9, 2.1)
    }
    assert deltas[1.9] > 0
    assert deltas[2.1] == 0


def test_an_account_is_told_only_what_holds_for_prices_chosen_on_the_way():
    spent = {Cost((LaplaceLoss(0.3),)): 300}
    explanation = explain_account(AccountState.after_releases(spent, Budget.from_rho(20, 1e-6, "any")), price=None)
    inner = explanation.explanation
    by_name = {analysis.name: analysis for analysis in inner.analyses}
    assert by_name[inner.tightest].holds_for_adaptive_prices
    assert min(analysis.epsilon for analysis in inner.analyses) < inner.epsilon
    assert inner.identifiability.membership_advantage_bound == explanation.membership_advantage_bound.when_spent


def test_an_accounts_coins_are_in_its_reserve_and_are_not_counted_twice():
    cost = Cost((ApproximateGaussianLoss(0.2, 2.0**-40),))
    budget = Budget.from_epsilon_delta(4.0, 1e-5, "gaussian")
    found = explain_account(AccountState.after_releases({cost: 3}, budget), price=cost)
    without = explain_account(AccountState.after_releases({Cost((GaussianLoss(0.2),)): 3}, budget), price=None)

    assert found.spent == without.spent
    assert found.explanation.epsilon == pytest.approx(without.explanation.epsilon, rel=1e-12)
    assert found.explanation.epsilon >= without.explanation.epsilon
    assert found.posterior_belief_bound == without.posterior_belief_bound
    for power, other in zip(found.explanation.attack_power, without.explanation.attack_power, strict=True):
        assert power.true_positive_rate_bound >= other.true_positive_rate_bound


def test_an_account_that_holds_a_model_is_told_of_unlimited_answers_and_of_no_refusal():
    cost = Cost((GaussianLoss(1.0),))
    budget = Budget.from_rho(0.5, 1e-6, "gaussian")
    found = explain_account(AccountState.after_releases({cost: 1}, budget), price=Cost(), unlimited=True)
    assert found.unlimited
    assert found.queries_left is None
    words = found.explanation.in_plain_words
    assert "answers of that model are unlimited" in words
    assert "refuses" not in words
    assert "more answers" not in words


@pytest.mark.parametrize(("scope", "others"), [("client", True), ("group", True), ("lineage", False)])
def test_an_account_without_charges_speaks_of_itself_and_names_what_everybody_is_shown(scope, others):
    """The lineage may have paid for what a certificate shows to all: no account of a client may say that is nothing."""
    state = AccountState.after_releases(
        {}, Budget.from_mu(1, 1e-6), scope=scope, group="a team" if scope == "group" else ""
    )
    words = explain_account(state, price=None).explanation.in_plain_words

    assert "Nothing computed from the records" not in words
    assert "nothing can be inferred" not in words
    assert words.startswith("This account")
    assert ("What everybody is shown is not counted here" in words) == others


@pytest.mark.parametrize(("blocks", "group"), [(("autumn",), ""), (("autumn", "winter"), "team")])
def test_whoever_shares_answers_of_a_model_with_blocks_is_bounded_by_these_and_not_by_the_lineage(blocks, group):
    state = AccountState.after_releases({}, Budget.from_mu(1, 1e-6), group=group)
    words = explain_account(state, price=None, blocks=blocks).explanation.in_plain_words

    assert all(block in words for block in blocks)
    assert "lineage's" not in words
    assert ("'team'" in words) == bool(group)
    assert "lineage's" in explain_account(state, price=None).explanation.in_plain_words
