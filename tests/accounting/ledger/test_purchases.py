"""Models that are paid for once, by each client and by the lineage: both pay or neither."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from dpserve.accounting.ledger import (
    BudgetExhausted,
    ClientRevoked,
    Idempotency,
    IdempotencyConflict,
    Ledger,
    MechanismNotAccepted,
    Purchase,
    ReleaseRequest,
    UnknownClient,
    UnknownLineage,
    key_digest,
)
from dpserve.accounting.ledger.backups import backup
from dpserve.accounting.ledger.errors import CannotRecover
from dpserve.accounting.ledger.receipts import Receipt, charge_terms
from dpserve.accounting.ledger.recovery import put_back, reconcile
from dpserve.accounting.ledger.values import LedgerRequest, Line
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.losses import Cost, GaussianLoss, LaplaceLoss

from .conftest import asking, budget, dump, open_accounts, read_journals

pytestmark = pytest.mark.anyio

COSTS = {name: Cost((GaussianLoss(mu),)) for name, mu in (("one", 0.1), ("two", 0.15), ("three", 0.3))}
PRICES = {name: cost.picorho for name, cost in COSTS.items()}
COST, PRICE = COSTS["one"], PRICES["one"]
WHOLE = budget(sum(PRICES.values()) * 10)
DRAWN = b"what was drawn, or a hash of it."


def buying(
    lineage: str, client: str, release: str = "one", *, key: str = "", body: str = "", time: float = 2.5
) -> ReleaseRequest:
    return ReleaseRequest(
        lineage=lineage,
        client=client,
        model=release,
        drawn=DRAWN,
        mechanism="weights",
        cost=COSTS[release],
        time=time,
        idempotency=Idempotency(key, key_digest(body)) if key else None,
    )


def together(*releases: ReleaseRequest) -> Purchase:
    """A purchase of the lineage of the first."""
    return Purchase(title="both", lineage=releases[0].lineage, unit=None, payers={"": None}, releases=releases)


async def spent(ledger: Ledger, lineage: str) -> dict[str, int]:
    account, clients, *_ = await ledger.snapshot(lineage)
    return {"": account.spent} | {client.client: client.spent for client in clients}


async def test_each_client_pays_once_and_the_lineage_once_for_all(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE, bob=WHOLE)

    assert (await ledger.quote(buying(lineage, "ann"))).total == PRICE
    assert (await ledger.charge(buying(lineage, "ann"))).charged == PRICE
    assert (await ledger.charge(buying(lineage, "bob"))).charged == PRICE
    assert (await ledger.quote(buying(lineage, "ann"))).total == 0
    assert (await ledger.charge(buying(lineage, "ann"))).charged == 0
    assert await spent(ledger, lineage) == {"": PRICE, "ann": PRICE, "bob": PRICE}

    account = await ledger.lineage(lineage)
    assert dict(account.tally) == {COST: 1}
    assert (await verify(ledger, lineage)).findings == ()


async def test_the_owner_holds_on_the_lineages_account_and_a_restart_charges_nothing(
    ledger: Ledger, lineage: str
) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)

    first = await ledger.charge(buying(lineage, ""))
    assert first.receipt is not None
    assert first.receipt.client == ""
    assert (await ledger.charge(buying(lineage, "", time=9.0))).receipt is None
    shared = await ledger.charge(buying(lineage, "ann"))

    assert shared.receipt is not None
    assert shared.receipt.lineage_releases == 0
    assert await spent(ledger, lineage) == {"": PRICE, "ann": PRICE}
    assert [receipt.lineage_releases for receipt in await ledger.receipts(lineage)] == [1, 0]
    assert [receipt.lineage_releases for receipt in await ledger.client_receipts(lineage, "ann")] == [0]
    assert (await verify(ledger, lineage)).findings == ()


@pytest.mark.parametrize(("scope", "short"), [("client", {"ann": 1}), ("lineage", {"": 1})])
async def test_one_picorho_short_changes_nothing(
    ledger: Ledger, lineage: str, store_url: str, scope: str, short: dict[str, int]
) -> None:
    total = PRICES["three"]
    await open_accounts(ledger, lineage, budget(total - short.get("", 0)), ann=budget(total - short.get("ann", 0)))
    before = dump(store_url, lineage)

    with pytest.raises(BudgetExhausted) as refused:
        await ledger.charge(buying(lineage, "ann", "three", key="k", body="b"))

    assert (refused.value.scope, refused.value.cost, refused.value.remaining) == (scope, total, total - 1)
    assert dump(store_url, lineage) == before
    assert (await ledger.charge(buying(lineage, "ann", "two"))).charged == PRICES["two"]


async def test_refusals_of_a_row_are_refusals_of_a_hold(ledger: Ledger, lineage: str) -> None:
    with pytest.raises(UnknownLineage):
        await ledger.charge(buying(lineage, ""))
    await open_accounts(ledger, lineage, budget(sum(PRICES.values()), "gaussian"), ann=WHOLE, eve=WHOLE)
    await ledger.acting("owner").revoke(lineage, "eve")
    await ledger.charge(buying(lineage, "ann", key="k", body="one"))
    laplace = ReleaseRequest(lineage, "ann", "m", DRAWN, "x", Cost((LaplaceLoss(0.1),)), 1.0)

    for request, refusal in (
        (buying(lineage, "nobody"), UnknownClient),
        (buying(lineage, "eve"), ClientRevoked),
        (buying(lineage, "ann", key="k", body="other"), IdempotencyConflict),
        (laplace, MechanismNotAccepted),
    ):
        with pytest.raises(refusal):
            await ledger.charge(request)
        if refusal is not MechanismNotAccepted:
            with pytest.raises(refusal):
                await ledger.quote(request)
    assert isinstance((await ledger.quote(laplace)).refusal, MechanismNotAccepted)
    assert (await ledger.charge(buying(lineage, "ann", key="k", body="one"))).receipt is None


async def test_a_key_stands_for_the_release(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
    await ledger.charge(buying(lineage, "ann", key="k", body="b"))

    again = await ledger.charge(buying(lineage, "ann", key="k", body="b"))

    assert (again.receipts, again.earlier) == ((), 1)
    with pytest.raises(IdempotencyConflict):
        await ledger.charge(buying(lineage, "ann", "two", key="k", body="b"))


async def test_a_key_of_a_hold_and_a_key_of_rows_are_the_same_key(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
    await ledger.charge(asking(lineage, "ann", "row", cost=COST, key="k", body="rows"))

    with pytest.raises(IdempotencyConflict):
        await ledger.charge(buying(lineage, "ann", key="k", body="hold"))
    await ledger.charge(buying(lineage, "ann", key="other", body="hold"))
    with pytest.raises(IdempotencyConflict):
        await ledger.charge(asking(lineage, "ann", "row", cost=COST, key="other", body="rows"))


def test_what_no_budget_provides_for_is_no_request() -> None:
    with pytest.raises(ValueError, match="pay-once model must lie between"):
        ReleaseRequest("l", "ann", "m", DRAWN, "x", Cost((GaussianLoss(1e-3),)), 1.0)
    with pytest.raises(ValueError, match="32 bytes"):
        ReleaseRequest("l", "ann", "m", b"", "x", COST, 1.0)


# Tampering, export, recovery


def _forged(request: ReleaseRequest, cheap: Cost) -> Receipt:
    """A receipt of the model that a request is for, at another cost."""
    return Receipt(
        lineage=request.lineage,
        client=request.client,
        sequence=1,
        number=1,
        terms=charge_terms(request.model, request.mechanism, cheap, 1, request.line.terms.release),
        microseconds=1,
        questions=request.line.questions,
        lineage_questions=1,
        service="somebody",
    )


async def test_no_receipt_marks_a_model_as_paid_for_less_than_it_costs(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
    request = buying(lineage, "ann")
    forged, right = _forged(request, Cost((GaussianLoss(1e-6),))), _forged(request, COST)
    others = [
        forged,
        structs.replace(right, terms=charge_terms("two", "x", right.cost, 1, right.terms.release)),
        structs.replace(right, terms=structs.replace(right.terms, price=1)),
    ]
    for receipt in others:
        with pytest.raises(
            CannotRecover, match=r"receipt 1 of lineage .* (names a model|charges .*,) (that|which) .*: it was altered"
        ):
            await put_back(ledger, lineage, [receipt])
    assert await spent(ledger, lineage) == {"": 0, "ann": 0}
    # Whoever writes to the store by other ways than these is found out by `verify`.
    await ledger.apply([LedgerRequest(request.lineage, "ann", 10**6, (Line(forged.terms, forged.questions),))])
    said = "names a model that it does not pay for"
    assert f"receipt 1 was altered: it {said}" in (await verify(ledger, lineage)).findings
    with pytest.raises(CannotRecover, match=said):
        [line async for line in backup(ledger, [lineage])]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([0.1, 0.15, 0.3]), st.data())
def test_models_share_a_question_only_if_id_drawing_and_cost_are_equal(mu: float, data: st.DataObject) -> None:
    def request(mu: float, model: str, drawn: bytes) -> ReleaseRequest:
        return ReleaseRequest("l", "ann", model, drawn, "x", Cost((GaussianLoss(mu),)), 1.0)

    other = data.draw(st.sampled_from([0.1, 0.15, 0.3]))
    model, drawn = data.draw(st.sampled_from(["one", "two"])), data.draw(st.sampled_from([DRAWN, bytes(32)]))
    first, second = request(mu, "one", DRAWN), request(other, model, drawn)
    same = (model, drawn, other) == ("one", DRAWN, mu)
    assert (first.line.questions == second.line.questions) == same


async def test_a_lineage_pays_for_several_releases_at_once_or_for_none(ledger: Ledger, lineage: str) -> None:
    both_cost = PRICES["one"] + PRICES["two"]
    both = together(*(buying(lineage, "", release) for release in ("one", "two")))
    await open_accounts(ledger, lineage, budget(both_cost - 1), ann=budget(1))
    assert isinstance((await ledger.quote(both)).refusal, BudgetExhausted)
    with pytest.raises(BudgetExhausted):
        await ledger.charge(both)
    assert (await spent(ledger, lineage))[""] == 0
    assert await ledger.receipts(lineage) == []

    await ledger.acting("owner").set_budget(lineage, budget(both_cost))
    assert (await ledger.charge(both)).charged == both_cost
    assert (await ledger.charge(both)).charged == 0
    assert (await ledger.charge(buying(lineage, "", "two"))).receipt is None
    assert [receipt.terms.model for receipt in await ledger.receipts(lineage)] == ["one", "two"]
    assert (await verify(ledger, lineage)).findings == ()


@pytest.mark.parametrize("others", [("elsewhere", ""), ("lineage", "ann")])
def test_only_an_owners_releases_in_one_lineage_are_paid_for_at_once(others: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="owner's, in one lineage"):
        together(buying("lineage", ""), buying(*others))


async def test_reconciling_puts_a_lost_holding_back_once(tmp_path: Path) -> None:
    store, copy, journals = tmp_path / "store", tmp_path / "copy", tmp_path / "journals"
    async with Ledger.open(store, journals=journals) as ledger:
        await ledger.join("lineage")
        await open_accounts(ledger, "lineage", WHOLE, ann=WHOLE, bob=WHOLE)
        await ledger.charge(buying("lineage", "ann"))
    shutil.copytree(store, copy)
    async with Ledger.open(store, journals=journals) as ledger:
        await ledger.join("lineage")
        await ledger.charge(buying("lineage", "ann", "two"))
        await ledger.charge(buying("lineage", "ann", "three"))
        right = await spent(ledger, "lineage")
    async with Ledger.open(copy) as ledger:
        # Somebody else went on with the older store: the lineage pays for a model there, and must not pay again.
        await ledger.charge(buying("lineage", "bob", "two"))
        for _ in range(2):
            await reconcile(ledger.acting("owner"), "lineage", read_journals(journals))

            assert await spent(ledger, "lineage") == right | {"bob": PRICES["two"]}
            assert (await verify(ledger, "lineage", read_journals(journals))).findings == ()
