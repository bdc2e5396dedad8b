import math
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpserve.accounting import conversions, picorho, sampling_error
from dpserve.accounting.budgets import Accepts, Budget
from dpserve.accounting.losses import ApproximateGaussianLoss, Cost, GaussianLoss
from tests.accounting.curves import gaussian_delta

accounts: st.SearchStrategy[Accepts] = st.sampled_from(["gaussian", "any"])
epsilons = st.floats(math.log(1e-3), math.log(50)).map(math.exp)
deltas = st.floats(math.log(1e-7), math.log(1e-2)).map(math.exp)


@given(epsilon=epsilons, delta=deltas, accepts=accounts)
def test_a_budget_in_epsilon_never_exceeds_it_and_wastes_next_to_nothing(
    epsilon: float, delta: float, accepts: Accepts
) -> None:
    budget = Budget.from_epsilon_delta(epsilon, delta, accepts)
    reported = budget.epsilon_at(budget.limit)

    assert reported <= epsilon
    assert reported >= epsilon - 1e-4 * max(epsilon, 1e-3)


@given(epsilon=epsilons, delta=deltas)
def test_epsilon_holds_for_the_noise_as_drawn(epsilon: float, delta: float) -> None:
    """The ideal curve at the reported epsilon, plus the sampler's error, stays within delta."""
    budget = Budget.from_epsilon_delta(epsilon, delta, "gaussian")
    rho = picorho.to_rho(budget.limit)
    ideal = gaussian_delta(conversions.mu_of_rho(rho), budget.epsilon_at(budget.limit))

    assert ideal + sampling_error.transcript_error(rho) <= delta * (1 + 1e-12)


@given(belief=st.floats(0.51, 0.999), delta=deltas, accepts=accounts)
def test_a_budget_in_posterior_belief_never_exceeds_it(belief: float, delta: float, accepts: Accepts) -> None:
    budget = Budget.from_posterior_belief(belief, delta, accepts)
    reached = budget.posterior_belief_at(budget.limit)

    assert belief - 1e-4 <= reached <= belief * (1 + 1e-12)
    assert budget.epsilon_at(budget.limit) < math.log(belief / (1 - belief))


@given(advantage=st.floats(1e-3, 0.99), delta=deltas, accepts=accounts)
def test_a_budget_in_membership_advantage_never_exceeds_it(advantage: float, delta: float, accepts: Accepts) -> None:
    budget = Budget.from_advantage(advantage, delta, accepts)

    assert budget.advantage_at(budget.limit) <= advantage * (1 + 1e-12)
    if accepts == "gaussian":
        assert budget.advantage_at(budget.limit) >= advantage * (1 - 1e-3)


@given(rho=st.floats(1e-9, 100), delta=deltas, accepts=accounts)
def test_rho_and_mu_round_down(rho: float, delta: float, accepts: Accepts) -> None:
    assert Budget.from_rho(rho, 1e-4, accepts).limit <= rho * 1e12
    assert Budget.from_mu(math.sqrt(2 * rho), 1e-4).limit <= rho * 1e12 * (1 + 1e-15)


@given(amounts=st.lists(st.integers(0, 10**13), min_size=2, max_size=2), delta=deltas, accepts=accounts)
def test_every_report_grows_with_what_was_spent(amounts: list[int], delta: float, accepts: Accepts) -> None:
    less, more = sorted(amounts)
    budget = Budget(10**13, accepts, delta)

    assert budget.epsilon_at(less) <= budget.epsilon_at(more) * (1 + 1e-12)
    assert budget.posterior_belief_at(less) <= budget.posterior_belief_at(more) * (1 + 1e-12)
    assert budget.advantage_at(less) <= budget.advantage_at(more) * (1 + 1e-9)


@given(delta=deltas, accepts=accounts)
def test_a_gaussian_account_buys_more_than_one_for_any_charges(delta: float, accepts: Accepts) -> None:
    assert Budget.from_epsilon_delta(1, delta, "gaussian").limit > Budget.from_epsilon_delta(1, delta, "any").limit


@given(delta=deltas, accepts=accounts)
def test_nothing_spent_says_nothing(delta: float, accepts: Accepts) -> None:
    budget = Budget(10**10, accepts, delta)

    assert budget.epsilon_at(0) == 0
    assert budget.posterior_belief_at(0) == 0.5
    assert budget.advantage_at(0) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Budget.from_epsilon_delta(-1, 1e-6, "any"), "epsilon must be a finite number above 0"),
        (lambda: Budget.from_epsilon_delta(math.nan, 1e-6, "any"), "epsilon must be a finite number above 0"),
        (lambda: Budget.from_epsilon_delta(1, 1.0, "any"), "delta must lie strictly between 0 and 1"),
        (lambda: Budget.from_epsilon_delta(1, 0.0, "gaussian"), "delta must lie strictly between 0 and 1"),
        (lambda: Budget.from_epsilon_delta(1e5, 1e-3, "any"), "rho must lie above 0 and within 9007.2"),
        (lambda: Budget.from_rho(0, 1e-6, "any"), "rho must lie above 0"),
        (lambda: Budget.from_rho(1e-13, 1e-6, "any"), "at least 1e-12 rho"),
        (lambda: Budget.from_mu(0, 1e-6), "mu must be a finite number above 0"),
        (lambda: Budget.from_posterior_belief(1, 1e-6, "any"), r"strictly between 0\.5 and 1"),
        (lambda: Budget.from_posterior_belief(0.5, 1e-6, "any"), r"strictly between 0\.5 and 1"),
        (lambda: Budget.from_posterior_belief(0.5001, 1e-6, "any"), r"must be above 0\.500244"),
        (lambda: Budget.from_advantage(1, 1e-6, "any"), "the membership advantage must lie strictly between"),
        (lambda: Budget.from_rho(1, 1e-18, "any"), "delta must be at least 1.01e-14 for a budget of 1 rho"),
        (
            lambda: Budget(1, "both", 1e-6),
            "an account accepts 'gaussian', 'any', 'pure'",
        ),  # type: ignore[arg-type]
        (lambda: Budget(-1, "any", 1e-6), "a budget must lie between 0 and"),
        (lambda: Budget(2**53, "any", 1e-6), "a budget must lie between 0 and"),
    ],
)
def test_nonsense_is_refused_with_the_valid_range(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(("epsilon", "delta", "allowed"), [(4, 1e-6, 536), (8, 1e-6, 536), (1, 1e-7, 53), (3, 1e-9, 0)])
def test_the_coins_that_an_account_may_pay_for_are_counted_by_its_delta(epsilon, delta, allowed):
    """The first three refused every release with a coin, by the number that their rho could buy at the least price."""
    for accepts in ("gaussian", "any"):
        budget = Budget.from_epsilon_delta(epsilon, delta, accepts)
        assert budget.coins_allowed == allowed


@given(rho=st.floats(1e-6, 9007), delta=st.floats(math.log(1e-13), math.log(0.1)).map(math.exp))
def test_counted_coins_and_the_sampler_fit_into_the_reserve_together(rho: float, delta: float) -> None:
    if not sampling_error.fits(rho, delta):
        return
    allowed = Budget.from_rho(rho, delta, "any").coins_allowed

    assert Fraction(allowed, 2**40) <= Fraction(delta) / 2048
    if allowed:
        taken = allowed * 2.0**-40 + sampling_error.transcript_error(rho)
        assert taken <= sampling_error.RESERVED_SHARE * delta


def test_an_account_pays_for_a_cost_only_if_its_delta_holds_the_coins() -> None:
    coin = ApproximateGaussianLoss(0.1, 2.0**-40)
    budget = Budget.from_rho(1.0, 2.5 / 2**29, "gaussian")

    assert budget.coins_allowed == 2
    assert budget.pays_for(Cost((coin, coin)))
    assert not budget.pays_for(Cost((coin, coin, coin)))
    assert Budget.from_epsilon_delta(1.0, 1e-9, "gaussian").pays_for(Cost((GaussianLoss(0.1),)))


def added_in(price: str) -> float:
    """Return what a cost in words adds to what was spent."""
    added = re.search(r" adds (\S+) to the ", price) or re.fullmatch(r"costs epsilon = (\S+) by itself", price)
    assert added is not None
    return float(added[1])


@given(
    epsilon=st.floats(0.1, 20),
    delta=deltas,
    accepts=accounts,
    spent=st.floats(0, 1),
    cost=st.floats(0, 1),
)
def test_a_person_reads_parts_that_add_up_in_one_currency(
    epsilon: float, delta: float, accepts: Accepts, spent: float, cost: float
) -> None:
    budget = Budget.from_epsilon_delta(epsilon, delta, accepts)
    used = int(spent * budget.limit)
    added = int(cost * (budget.limit - used))
    price, left = budget.words_of_cost(used, added)

    assert budget.shown_in == "epsilon"
    assert "rho" not in price + left + budget.words(used)
    assert f"at delta = {delta:g}" in left
    shown_left = float(left.split(" ")[0])
    assert budget.shown(used) + shown_left == pytest.approx(epsilon, rel=2e-3, abs=1e-6)
    assert added_in(price) <= shown_left * 1.001


@pytest.mark.parametrize("rho", [0.5, 0.6, 1, 0.0125, 0.1234, 30])
def test_an_account_that_was_given_in_rho_is_read_in_rho(rho: float) -> None:
    budget = Budget.from_rho(rho, 1e-6, "gaussian")

    assert budget.words(budget.limit) == f"rho = {rho:g}"
    assert budget.words_of_cost(budget.limit // 2, budget.limit)[1] == f"{rho / 2:g} of {rho:g}"


def test_a_refused_cost_is_more_than_what_is_left_however_near_both_are() -> None:
    budget = Budget.from_epsilon_delta(3.0, 1e-6, "gaussian")
    price, left = budget.words_of_cost(budget.limit // 2, budget.limit - budget.limit // 2 + 1000)

    assert added_in(price) > float(left.split(" ")[0])


def test_a_cost_beyond_what_any_noise_was_proved_for_is_said_to_be_more_than_the_whole_budget() -> None:
    budget = Budget.from_epsilon_delta(3.0, 1e-6, "gaussian")

    assert budget.words_of_cost(0, picorho.LARGEST)[0] == "costs more than epsilon = 3 at delta = 1e-06"


@pytest.mark.parametrize("delta", [1e-5, 1e-6, 1e-7, 1e-9])
@pytest.mark.parametrize("accepts", ["gaussian", "any"])
def test_an_account_that_was_given_in_epsilon_is_read_in_epsilon(accepts: Accepts, delta: float) -> None:
    for epsilon in (1e-6, 1e-4, 0.001, 0.05, 0.1, 0.5, 1, 2, 3, 8, 20):
        try:
            budget = Budget.from_epsilon_delta(epsilon, delta, accepts)
        except ValueError:  # less than the sampler's reserve allows
            continue
        assert budget.shown_in == "epsilon"
