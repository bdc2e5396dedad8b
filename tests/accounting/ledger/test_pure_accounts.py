"""Accounts that count pure epsilon: the filter is the sum, in whole numbers of 1e-12."""

import asyncio
import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.accounting.budgets import Budget
from dpserve.accounting.currency import EPSILON, RHO
from dpserve.accounting.explanation import explain_account
from dpserve.accounting.ledger import ActRefused, BudgetExhausted, Ledger, MechanismNotAccepted
from dpserve.accounting.ledger.export import export
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.losses import BoundedRangeLoss, ClaimedLaplaceLoss, Cost, GaussianLoss, LaplaceLoss

from .conftest import asking, dump, new_lineage, open_accounts

pytestmark = pytest.mark.anyio

ONE = Cost((LaplaceLoss(1.0),))
HALF = Cost((BoundedRangeLoss(0.25), LaplaceLoss(0.25)))
CLAIMED = Cost((ClaimedLaplaceLoss(0.5),))


async def test_epsilon_one_pays_for_one_answer_at_epsilon_one(ledger: Ledger, lineage: str, store_url: str) -> None:
    await open_accounts(ledger, lineage, Budget.pure(3), ann=Budget.pure(1))
    charge = await ledger.charge(asking(lineage, "ann", "1", cost=ONE))
    assert (charge.charged, charge.balance.remaining) == (10**12, 0)
    before = dump(store_url, lineage)
    with pytest.raises(BudgetExhausted) as caught:
        await ledger.charge(asking(lineage, "ann", "2", cost=ONE))
    assert (caught.value.scope, caught.value.currency) == ("client", EPSILON)
    assert (caught.value.cost, caught.value.remaining, caught.value.limit) == (10**12, 0, 10**12)
    assert dump(store_url, lineage) == before
    assert (await ledger.charge(asking(lineage, "ann", "1", cost=ONE))).charged == 0


EPSILONS = st.floats(min_value=1e-4, max_value=2, allow_nan=False)
COSTS = st.one_of(
    EPSILONS.map(lambda epsilon: Cost((LaplaceLoss(epsilon),))),
    EPSILONS.map(lambda epsilon: Cost((BoundedRangeLoss(epsilon),))),
    st.tuples(EPSILONS, EPSILONS).map(lambda both: Cost((BoundedRangeLoss(both[0]), LaplaceLoss(both[1])))),
)


@settings(max_examples=15, deadline=None)
@given(
    budgets=st.tuples(*[st.fractions(min_value="1/100", max_value=6, max_denominator=10**6)] * 2),
    prices=st.lists(COSTS, min_size=1, max_size=12),
    choices=st.randoms(use_true_random=False),
)
def test_adaptive_prices_never_pass_the_budget_in_exact_fractions(
    store_url: str, budgets: tuple[Fraction, Fraction], prices: list[Cost], choices: Any
) -> None:
    """A client picks each price by what it was told before; the sum of exact epsilons stays within every budget."""

    async def play() -> None:
        lineage = new_lineage()
        async with await Ledger.connect(store_url) as ledger:
            await open_accounts(ledger, lineage, Budget.pure(budgets[0]), ann=Budget.pure(budgets[1]))
            spent, counted, least = Fraction(0), 0, min(int(budget * 10**12) for budget in budgets)
            pool = list(prices)
            for answer in range(2 * len(prices)):
                cost = pool[choices.randrange(len(pool))]
                price = sum(Fraction(loss.pure_epsilon) for loss in cost.losses)
                try:
                    await ledger.charge(asking(lineage, "ann", str(answer), cost=cost))
                except BudgetExhausted:
                    assert counted + -(-price * 10**12 // 1) > least
                    pool = sorted(pool, key=lambda each: each.pure_epsilon)[: max(1, len(pool) // 2)]
                else:
                    spent, counted = spent + price, counted + int(-(-price * 10**12 // 1))
                    pool += [cost] * choices.randrange(2)
                assert spent <= min(budgets)
            assert (await ledger.client(lineage, "ann")).spent == (await ledger.lineage(lineage)).spent == counted

    asyncio.run(play())


async def test_each_account_of_a_chain_counts_in_its_own_currency(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, Budget.from_rho(1, 1e-6, "any"), ann=Budget.pure(1), bob=Budget.pure(3))
    await ledger.charge(asking(lineage, "ann", "1", cost=ONE))
    charge = await ledger.charge(asking(lineage, "bob", "2", cost=ONE))
    whole = await ledger.lineage(lineage)
    assert (whole.spent, whole.budget.currency) == (2 * ONE.picorho, RHO)
    assert charge.balance.shared_left == ((RHO, 0),)
    assert charge.balance.questions_left(ONE) == 0
    with pytest.raises(BudgetExhausted) as caught:
        await ledger.charge(asking(lineage, "bob", "3", cost=ONE))
    assert (caught.value.scope, caught.value.currency) == ("lineage", RHO)
    assert (await verify(ledger, lineage)).findings == ()


@pytest.mark.parametrize(("lineage_is_pure", "scope"), [(True, "lineage"), (False, "client")])
async def test_what_has_no_pure_epsilon_is_not_accepted(
    ledger: Ledger, lineage: str, store_url: str, lineage_is_pure: bool, scope: str
) -> None:
    pure, other = Budget.pure(5), Budget.from_rho(100, 1e-6, "any")
    await open_accounts(ledger, lineage, pure if lineage_is_pure else other, ann=other if lineage_is_pure else pure)
    before = dump(store_url, lineage)
    for cost in (Cost((GaussianLoss(0.1),)), Cost((LaplaceLoss(0.1), GaussianLoss(0.1))), Cost((LaplaceLoss(10.5),))):
        request = asking(lineage, "ann", "1", cost=cost)
        with pytest.raises(MechanismNotAccepted) as caught:
            await ledger.charge(request)
        assert caught.value.scope == scope
        assert isinstance((await ledger.quote(request)).refusal, MechanismNotAccepted)
    with pytest.raises(MechanismNotAccepted):
        await ledger.charge(asking(lineage, "ann", "1", cost=CLAIMED))
    assert dump(store_url, lineage) == before


async def test_an_account_keeps_its_currency_once_it_has_paid(ledger: Ledger, lineage: str) -> None:
    other = Budget.from_rho(5, 1e-6, "any")
    await open_accounts(ledger, lineage, other, ann=other, bob=Budget.pure(1))
    await ledger.acting("owner").set_budget(lineage, Budget.pure(2), client="ann")
    await ledger.charge(asking(lineage, "ann", "1", cost=HALF))
    for changed in (other, Budget.pure(1, "unproven-pure")):
        changes = ledger.acting("owner").set_budget(lineage, changed, client="ann")
        if changed.currency is EPSILON:
            await changes
        else:
            with pytest.raises(ActRefused):
                await changes
    with pytest.raises(ActRefused):
        await ledger.acting("owner").set_budget(lineage, Budget.pure(2))  # the lineage has paid in rho
    assert (await verify(ledger, lineage)).findings == ()


async def test_an_account_of_epsilon_is_explained_in_epsilon(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, Budget.pure(3), ann=Budget.pure(1))
    await ledger.charge(asking(lineage, "ann", "1", cost=HALF))
    report = explain_account((await ledger.client(lineage, "ann")).state, price=HALF, shared_answers=1)
    assert (report.currency, report.limit.rho, report.remaining.rho) == ("epsilon", None, None)
    assert report.limit.epsilon == pytest.approx(1, rel=1e-15)
    assert report.spent.epsilon == report.remaining.epsilon == pytest.approx(0.5, rel=1e-15)
    assert report.queries_left == 1
    adaptive = [one.name for one in report.explanation.analyses if one.holds_for_adaptive_prices]
    assert adaptive == [report.explanation.tightest] == ["basic"]


async def test_a_raised_limit_of_epsilon_bounds_what_was_said_before(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, Budget.pure(3), ann=Budget.pure(Fraction(1, 2)))
    await ledger.charge(asking(lineage, "ann", "1", cost=HALF))
    await ledger.acting("owner").set_budget(lineage, Budget.pure(1), client="ann")
    account = await ledger.client(lineage, "ann")
    assert explain_account(account.state, price=HALF).raised is None
    assert account.budget.posterior_belief_raised(account.settled_limit) == account.budget.posterior_belief_at(10**12)


async def test_the_trail_says_both_currencies(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, Budget.pure(3), ann=Budget.pure(1))
    await ledger.charge(asking(lineage, "ann", "1", cost=HALF))
    *_, row = [json.loads(line) async for line in export(ledger.acting("owner"), lineage)]
    assert row["price_epsilon"] == row["total_epsilon"] == 0.5
    assert row["total_rho"] == HALF.picorho / 1e12
