"""Buying releases: everything is checked before anything is opened, settled or charged, and a lineage pays at once."""

from dataclasses import replace
from itertools import permutations

import pytest

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import (
    ActRefused,
    BudgetExhausted,
    CoinsExhausted,
    Ledger,
    LedgerError,
    MechanismNotAccepted,
    NoBudget,
    NotPaidFor,
    OtherBudget,
    OtherUnit,
    Purchase,
    ReleaseRequest,
)
from dpserve.accounting.ledger.purchases import buy, check_purchases, picorho_charged
from dpserve.accounting.losses import ApproximateGaussianLoss, Cost, GaussianLoss, LaplaceLoss

from .conftest import dump, new_lineage

pytestmark = pytest.mark.anyio

COST = Cost((GaussianLoss(0.1),))
LAPLACE = Cost((LaplaceLoss(0.1),))
PRICE = COST.picorho
BUDGET = Budget(3 * PRICE, "gaussian", 1e-6)


def purchase(lineage: str, *models: str, cost: Cost = COST, **changed: object) -> Purchase:
    blocks = tuple(sorted(filter(None, changed.get("payers", {}))))  # type: ignore[attr-defined]
    releases = tuple(
        ReleaseRequest(lineage, "", model, model.encode().ljust(32), "weights", cost, 1.0, blocks=blocks)
        for model in models
    )
    bought = Purchase(title="m", lineage=lineage, unit=None, payers={"": BUDGET}, releases=releases)
    return replace(bought, **changed)  # type: ignore[arg-type]


async def spent(ledger: Ledger, lineage: str) -> dict[str, int]:
    return {account.name: account.spent for account in await ledger.all_blocks(lineage)}


async def test_a_purchase_opens_settles_and_charges_once(ledger: Ledger, lineage: str) -> None:
    bought = replace(purchase(lineage, "a", "b"), unit="person")
    assert picorho_charged(await buy(ledger, [bought], by="ann")) == 2 * PRICE
    assert await buy(ledger, [bought], by="ann") == []
    account = await ledger.lineage(lineage)
    assert (account.budget, account.unit, account.spent) == (BUDGET, "person", 2 * PRICE)
    acts = await ledger.acts(lineage)
    assert [(act.kind, act.by) for act in acts] == [("open", "ann"), ("unit", "ann")]
    with pytest.raises(NotPaidFor, match=r"not pay for m, which costs .*, and .* is left in its budget") as refused:
        await buy(ledger, [purchase(lineage, "c", "d", unit="person")], by="ann")
    assert isinstance(refused.value.refused, BudgetExhausted)
    assert await spent(ledger, lineage) == {"": 2 * PRICE}


async def test_named_blocks_pay_and_the_one_without_a_name_has_nothing(ledger: Ledger, lineage: str) -> None:
    await buy(ledger, [purchase(lineage, "a", payers={"may": BUDGET, "june": BUDGET})], by="ann")
    assert await spent(ledger, lineage) == {"": 0, "june": PRICE, "may": PRICE}
    assert (await ledger.lineage(lineage)).budget.limit == 0
    await buy(ledger, [purchase(lineage, "b", payers={"june": None, "july": BUDGET})], by="ann")
    assert await spent(ledger, lineage) == {"": 0, "july": PRICE, "june": 2 * PRICE, "may": PRICE}


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"payers": {"": None}}, NoBudget),
        ({"payers": {"may": BUDGET, "june": None}}, NoBudget),
        ({"payers": {"": replace(BUDGET, limit=PRICE - 1)}}, NotPaidFor),
        ({"payers": {"may": BUDGET, "june": replace(BUDGET, limit=PRICE - 1)}}, NotPaidFor),
        ({"payers": {"": BUDGET, "may": Budget.pure(1, "pure")}}, ActRefused),
        ({"per_answer": LAPLACE}, NotPaidFor),
        ({"per_answer": Cost((GaussianLoss(1.0),))}, NotPaidFor),
    ],
)
async def test_what_cannot_be_bought_changes_nothing(ledger: Ledger, wrong: dict[str, object], error: type) -> None:
    """Not even in the first of two lineages, which could pay."""
    first, second = new_lineage(), new_lineage()
    purchases = [purchase(first, "a"), purchase(second, "b", **wrong)]
    for attempt in (check_purchases(ledger, purchases), buy(ledger, purchases, by="ann")):
        with pytest.raises(error):
            await attempt
        names = await ledger.lineage_names()
        assert not {first, second} & set(names)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"payers": {"": replace(BUDGET, limit=PRICE)}}, OtherBudget),
        ({"unit": "person"}, OtherUnit),
        ({"payers": {"": None, "may": replace(BUDGET, limit=PRICE - 1)}}, NotPaidFor),
        ({"payers": {"": None, "may": None}}, NoBudget),
    ],
)
async def test_an_open_lineage_stays_as_it_is(
    store_url: str, wrong: dict[str, object], error: type[LedgerError]
) -> None:
    async with await Ledger.connect(store_url) as embedded:
        lineage = new_lineage()
        await buy(embedded, [purchase(lineage, "a")], by="ann")
        before = dump(store_url, lineage)
        with pytest.raises(error):
            await buy(embedded, [purchase(lineage, "b", **wrong)], by="ann")
        assert dump(store_url, lineage) == before


MONTHS = {"june": BUDGET, "may": BUDGET}


async def planted_start(ledger: Ledger) -> tuple[list[str], list[Purchase], dict[str, dict[str, int]]]:
    """Return lineages, what is to be served of them, and what each of their blocks has paid once all of it is bought.

    The first is not open, and has two models; the second has blocks, of which one paid before; the third paid before.
    """
    fresh, blocks, known = names = [new_lineage() for _ in range(3)]
    await buy(ledger, [purchase(blocks, "old", payers={"may": BUDGET}), purchase(known, "old")], by="ann")
    served = [purchase(fresh, "a"), purchase(fresh, "b"), purchase(blocks, "c", payers=MONTHS), purchase(known, "d")]
    paid = {
        fresh: {"": 2 * PRICE},
        blocks: {"": 0, "june": PRICE, "may": 2 * PRICE},
        known: {"": 2 * PRICE},
    }
    return names, served, paid


async def test_a_start_charges_each_model_once_in_every_order(ledger: Ledger) -> None:
    for order in permutations(range(4)):
        names, served, paid = await planted_start(ledger)
        await buy(ledger, [served[place] for place in order], by="ann")
        assert {name: await spent(ledger, name) for name in names} == paid


REFUSED: dict[str, tuple[str, dict[str, object], type[LedgerError]]] = {
    "another budget": ("known", {"payers": {"": replace(BUDGET, limit=2 * PRICE)}}, OtherBudget),
    "another budget than what is served with it": ("fresh", {"payers": {"": replace(BUDGET, limit=1)}}, OtherBudget),
    "another unit": ("known", {"unit": "person"}, OtherUnit),
    "another unit than what is served with it": ("fresh", {"unit": "person"}, OtherUnit),
    "another currency": ("blocks", {"payers": {"late": Budget.pure(1, "pure")}}, ActRefused),
    "a block without a budget": ("blocks", {"payers": {"late": None}}, NoBudget),
    "too dear": ("fresh", {"cost": Cost((GaussianLoss(1.0),))}, NotPaidFor),
    "too dear for one of its blocks": ("blocks", {"models": "ef", "payers": MONTHS}, NotPaidFor),
    "too dear with what is served with it": ("fresh", {"models": "efg"}, NotPaidFor),
    "too dear with what was charged before": ("known", {"models": "ef"}, NotPaidFor),
    "not accepted": ("known", {"cost": LAPLACE}, NotPaidFor),
    "answers that are too dear": ("fresh", {"models": "", "per_answer": Cost((GaussianLoss(1.0),))}, NotPaidFor),
}
"""Purchases that a lineage of `planted_start` refuses: which lineage, how the purchase differs, and the error."""


@pytest.mark.parametrize("why", REFUSED)
async def test_a_start_that_one_lineage_refuses_changes_none_in_every_order(
    ledger: Ledger, store_url: str, why: str
) -> None:
    names, served, _ = await planted_start(ledger)
    of, changed, error = REFUSED[why]
    changed = {"models": "e", "payers": {"": BUDGET}, **changed}
    lineage = names[("fresh", "blocks", "known").index(of)]
    served[0] = purchase(lineage, *changed.pop("models"), **changed)  # type: ignore[misc, arg-type]
    before = [dump(store_url, name) for name in names]
    for order in permutations(served):
        with pytest.raises(error):
            await buy(ledger, order, by="ann")
        assert [dump(store_url, name) for name in names] == before


async def test_a_budget_for_other_charges_is_refused_with_both_kinds(ledger: Ledger, lineage: str) -> None:
    """To leave the budget out would not help: the lineage does not pay for such charges."""
    await buy(ledger, [purchase(lineage, "a")], by="ann")
    with pytest.raises(OtherBudget) as refused:
        await buy(ledger, [purchase(lineage, "b", payers={"": replace(BUDGET, accepts="any")})], by="ann")
    assert "'gaussian'" in str(refused.value)
    assert "'any'" in str(refused.value)
    assert "lineage_budget" not in str(refused.value)


async def test_purchases_of_one_lineage_are_one_act_and_must_agree(ledger: Ledger, lineage: str) -> None:
    """The budget that opens a block may be any one's; the lineage's own, and its unit, are the same for all."""
    alone = [purchase(lineage, "a", payers={"": None}), purchase(lineage, "b")]
    await buy(ledger, alone, by="ann")
    assert await spent(ledger, lineage) == {"": 2 * PRICE}
    other = purchase(lineage, "c", payers={"": replace(BUDGET, limit=PRICE)})
    with pytest.raises(OtherBudget):
        await buy(ledger, [purchase(lineage, "a"), other], by="ann")
    with pytest.raises(OtherUnit):
        await buy(ledger, [purchase(lineage, "a"), purchase(lineage, "b", unit="person")], by="ann")
    with pytest.raises(NotPaidFor, match="for m and m, which costs"):
        await buy(ledger, [purchase(lineage, "c"), purchase(lineage, "d")], by="ann")
    assert await spent(ledger, lineage) == {"": 2 * PRICE}


async def test_what_was_paid_for_costs_nothing_even_beyond_a_lowered_budget(ledger: Ledger, lineage: str) -> None:
    await buy(ledger, [purchase(lineage, "a")], by="ann")
    await ledger.acting("owner").set_budget(lineage, replace(BUDGET, limit=1))
    assert await buy(ledger, [purchase(lineage, "a", payers={"": None})], by="ann") == []


async def test_a_refusal_says_what_the_owner_can_do(ledger: Ledger, lineage: str) -> None:
    coin, no_coins = Cost((ApproximateGaussianLoss(0.1, 2.0**-40),)), replace(BUDGET, delta=1e-10)
    for cost, budget, refusal, words in (
        (LAPLACE, BUDGET, MechanismNotAccepted, r"accepts 'gaussian' charges only: .* give it a budget with `accepts`"),
        (coin, no_coins, CoinsExhausted, "its delta is too small"),
        (Cost((GaussianLoss(1.0),)), BUDGET, BudgetExhausted, r"more than its whole budget, .*set-budget"),
    ):
        with pytest.raises(NotPaidFor, match=words) as refused:
            await buy(ledger, [purchase(lineage, "a", cost=cost, payers={"": budget})], by="ann")
        assert isinstance(refused.value.refused, refusal)
