"""Coins are counted: an account pays for as many as its delta holds, whatever their prices and whoever chose them."""

import hashlib

import pytest

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import ActRefused, CoinsExhausted, Ledger
from dpserve.accounting.ledger.purchases import ReleaseRequest
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.losses import ApproximateGaussianLoss, Cost

from .conftest import open_accounts

pytestmark = pytest.mark.anyio

DRAWN = hashlib.sha256(b"drawn").digest()
COIN = Cost((ApproximateGaussianLoss(0.1, 2.0**-40),))
HOLDS_TWO = 2.5 / 2**29
"""A delta whose share holds two coins, and half of a third."""


def wish(lineage: str, client: str, model: str, cost: Cost = COIN) -> ReleaseRequest:
    return ReleaseRequest(lineage, client, model, DRAWN, "dpsgd", cost, 1.0)


async def test_an_account_pays_for_the_coins_that_its_delta_holds_and_no_more(ledger: Ledger, lineage: str) -> None:
    few = Budget.from_rho(4, HOLDS_TWO, "gaussian")
    await open_accounts(ledger, lineage, Budget.from_rho(4, 1e-6, "gaussian"), ann=few, bob=few)
    for model in ("first", "second"):
        await ledger.charge(wish(lineage, "ann", model))
    await ledger.charge(wish(lineage, "bob", "first"))

    quoted = await ledger.quote(wish(lineage, "ann", "third"))
    assert isinstance(quoted.refusal, CoinsExhausted)
    with pytest.raises(CoinsExhausted):
        await ledger.charge(wish(lineage, "ann", "third"))
    assert (await ledger.charge(wish(lineage, "ann", "first"))).charged == 0
    account = await ledger.client(lineage, "ann")
    assert account.spent == 2 * COIN.picorho
    await ledger.charge(wish(lineage, "bob", "third"))
    assert (await verify(ledger, lineage)).findings == ()


async def test_a_lineage_counts_a_coin_once_whoever_else_holds_it(ledger: Ledger, lineage: str) -> None:
    many = Budget.from_rho(4, 1e-6, "gaussian")
    await open_accounts(ledger, lineage, Budget.from_rho(4, HOLDS_TWO, "gaussian"), ann=many, bob=many)
    for client in ("ann", "bob"):
        for model in ("first", "second"):
            await ledger.charge(wish(lineage, client, model))
    with pytest.raises(CoinsExhausted) as refused:
        await ledger.charge(wish(lineage, "bob", "third"))
    assert refused.value.scope == "lineage"


async def test_all_coins_of_a_model_count(ledger: Ledger, lineage: str) -> None:
    few = Budget.from_rho(4, HOLDS_TWO, "gaussian")
    await open_accounts(ledger, lineage, few, ann=few)
    both = Cost(2 * COIN.losses)
    with pytest.raises(CoinsExhausted):
        await ledger.charge(wish(lineage, "ann", "m", Cost(3 * COIN.losses)))
    assert (await ledger.client(lineage, "ann")).spent == 0
    await ledger.charge(wish(lineage, "ann", "m", both))
    assert (await ledger.lineage(lineage)).coins_spent == 2


async def test_a_budget_whose_delta_holds_fewer_coins_than_were_paid_for_is_refused(
    ledger: Ledger, lineage: str
) -> None:
    await open_accounts(ledger, lineage, Budget.from_rho(4, 1e-6, "gaussian"))
    for model in ("first", "second", "third"):
        await ledger.charge(wish(lineage, "", model))
    with pytest.raises(ActRefused, check=lambda error: error.reason == "coins"):
        await ledger.acting("owner").set_budget(lineage, Budget.from_rho(4, HOLDS_TWO, "gaussian"))
    await ledger.acting("owner").set_budget(lineage, Budget.from_rho(4, 4 / 2**29, "gaussian"))
