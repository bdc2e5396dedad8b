"""The ledger's contract, held by every kind of store."""

import pytest
from msgspec.structs import replace

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import (
    ActRefused,
    BudgetExhausted,
    Charge,
    ChargeRequest,
    ClientRevoked,
    Ledger,
    UnknownClient,
    UnknownKey,
    UnknownLineage,
    key_digest,
)
from dpserve.accounting.ledger.receipts import Numbers
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.ledger.wire import LineageKeys
from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.accounting.picorho import LARGEST

from .conftest import COST, asking, budget, dump, open_accounts, question, releases

pytestmark = pytest.mark.anyio

PRICE = COST.picorho


async def _spent(ledger: Ledger, lineage: str, client: str = "ann") -> tuple[int, int]:
    return (await ledger.client(lineage, client)).spent, (await ledger.lineage(lineage)).spent


async def test_a_charge_is_paid_by_both_accounts_and_has_a_receipt(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(10), ann=releases(5), bob=releases(5))
    charge = await ledger.charge(asking(lineage, "ann", "1", "2"))
    assert charge.receipt is not None
    assert (charge.free, charge.free.count(False), charge.receipt.lineage_questions) == ((False, False), 2, 2)
    assert (charge.receipt.sequence, charge.receipt.releases, charge.charged) == (1, 2, 2 * PRICE)
    assert charge.receipt.questions == (question("1"), question("2"))
    assert await _spent(ledger, lineage) == (2 * PRICE, 2 * PRICE)
    assert await _spent(ledger, lineage, "bob") == (0, 2 * PRICE)
    assert await ledger.receipts(lineage) == [charge.receipt]
    account = await ledger.lineage(lineage)
    assert (account.tally, account.releases, account.newest_receipt) == ({COST: 2}, 2, 1)
    assert account.remaining == 8 * PRICE


@pytest.mark.parametrize(
    ("lineage_releases", "client_releases", "scope"), [(9, 2, "client"), (2, 9, "lineage"), (2, 2, "client")]
)
async def test_a_refusal_names_the_account_and_the_amounts_and_changes_nothing(
    ledger: Ledger, lineage: str, store_url: str, lineage_releases: int, client_releases: int, scope: str
) -> None:
    await open_accounts(ledger, lineage, releases(lineage_releases), ann=releases(client_releases))
    await ledger.charge(asking(lineage, "ann", "1"))
    before = dump(store_url, lineage)
    with pytest.raises(BudgetExhausted) as caught:
        await ledger.charge(asking(lineage, "ann", "1", "2", "3", key="key", body="body"))
    refusal = caught.value
    assert (refusal.scope, refusal.cost, refusal.spent) == (scope, 2 * PRICE, PRICE)
    assert (refusal.remaining, refusal.limit) == (PRICE, 2 * PRICE)
    assert dump(store_url, lineage) == before


async def test_amounts_are_exact_up_to_the_largest(ledger: Ledger, lineage: str) -> None:
    largest = Cost((GaussianLoss(134.2177279),))
    whole = budget(LARGEST)
    await open_accounts(ledger, lineage, whole, ann=whole)
    fine = Cost((GaussianLoss(1e-7),))
    assert fine.picorho == 1
    assert LARGEST - largest.picorho < LARGEST // 1000
    await ledger.charge(asking(lineage, "ann", "big", cost=largest))
    left = LARGEST - largest.picorho
    with pytest.raises(BudgetExhausted) as caught:
        await ledger.charge(asking(lineage, "ann", *map(str, range(10_000)), cost=largest))
    assert caught.value.spent == largest.picorho
    assert caught.value.remaining == left
    await ledger.acting("owner").set_budget(lineage, budget(largest.picorho + 3), client="ann")
    await ledger.charge(asking(lineage, "ann", "1", "2", cost=fine))
    await ledger.charge(asking(lineage, "ann", "3", cost=fine))
    with pytest.raises(BudgetExhausted):
        await ledger.charge(asking(lineage, "ann", "4", cost=fine))
    assert await _spent(ledger, lineage) == (largest.picorho + 3, largest.picorho + 3)


@pytest.mark.parametrize("asked_by_another", [True, False])
async def test_a_lineage_near_its_end_refuses_a_row_whether_or_not_another_client_asked_it(
    ledger: Ledger, lineage: str, asked_by_another: bool
) -> None:
    await open_accounts(ledger, lineage, releases(3), ann=releases(3), bob=releases(9))
    await ledger.charge(asking(lineage, "ann", "1", "2" if asked_by_another else "of ann alone"))
    request = asking(lineage, "bob", "2", "3")  # the lineage could pay for one more
    said = (await ledger.quote(request)).refusal
    with pytest.raises(BudgetExhausted) as refused:
        await ledger.charge(request)
    for refusal in (said, refused.value):
        assert isinstance(refusal, BudgetExhausted)
        assert (refusal.scope, refusal.cost) == ("lineage", 2 * PRICE)
        assert str(refusal) == "the lineage's budget does not pay for the request"
    assert (await ledger.charge(asking(lineage, "bob", "2"))).free.count(False) == 1


async def test_the_bound_of_an_account_is_the_highest_limit_since_its_first_charge(
    ledger: Ledger, lineage: str
) -> None:
    await open_accounts(ledger, lineage, releases(9), ann=releases(9))
    await ledger.acting("owner").set_budget(lineage, releases(8))  # which admitted nothing
    assert (await ledger.lineage(lineage)).highest_limit == 8 * PRICE
    await ledger.charge(asking(lineage, "ann", "1"))
    for limit, highest in ((5, 8), (1, 8), (0, 8), (20, 20), (3, 20)):
        await ledger.acting("owner").set_budget(lineage, releases(limit))
        assert (await ledger.lineage(lineage)).highest_limit == highest * PRICE
    await ledger.acting("owner").set_budget(lineage, releases(2), client="ann")
    replay = await ledger.charge(asking(lineage, "ann", "1"))
    assert (replay.balance.highest_limit, replay.balance.budget.limit) == (9 * PRICE, 2 * PRICE)
    assert (await verify(ledger, lineage)).findings == ()


async def test_an_account_knows_that_its_limit_rose_after_an_answer(ledger: Ledger, lineage: str) -> None:
    """A limit that answered nothing counts for nothing, nor does one that was lower in between."""
    await open_accounts(ledger, lineage, releases(99), ann=releases(2))

    async def raised() -> tuple[int, int]:
        account = await ledger.client(lineage, "ann")
        return account.raises, account.settled_limit // PRICE

    await ledger.acting("owner").set_budget(lineage, releases(4), client="ann")
    assert await raised() == (0, 0)
    await ledger.charge(asking(lineage, "ann", "1"))
    for limit, expected in ((1, (0, 0)), (4, (0, 0)), (6, (1, 4)), (3, (1, 4)), (6, (1, 4)), (7, (2, 4))):
        account = await ledger.client(lineage, "ann")
        await ledger.acting("owner").set_budget(lineage, releases(limit), client="ann")
        assert await raised() == expected
        foreseen = account.with_budget(releases(limit))
        assert (foreseen.raises, foreseen.settled_limit // PRICE) == expected
    assert (await ledger.lineage(lineage)).raises == 0
    assert (await verify(ledger, lineage)).findings == ()


async def test_a_clients_receipts_are_numbered_for_the_client(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(99), ann=releases(50), bob=releases(49))
    for number in range(7):
        await ledger.charge(asking(lineage, "ann" if number % 2 else "bob", str(number)))
    everything = await ledger.receipts(lineage)
    assert [receipt.sequence for receipt in everything] == [1, 2, 3, 4, 5, 6, 7]
    assert [receipt.number for receipt in everything] == [1, 1, 2, 2, 3, 3, 4]
    assert await ledger.receipts(lineage, after=2, count=3) == everything[2:5]
    assert await ledger.receipts(lineage, after=7) == []
    assert await ledger.client_receipts(lineage, "ann") == everything[1::2]
    assert await ledger.client_receipts(lineage, "bob", after=1, count=2) == [everything[2], everything[4]]
    assert await ledger.client_receipts(lineage, "bob", count=2, newest_first=True) == [everything[6], everything[4]]


async def test_what_a_client_sees_of_a_receipt_does_not_depend_on_others(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(99), ann=releases(50), bob=releases(49))
    await open_accounts(ledger, f"{lineage}-x", releases(99), ann=releases(50))
    await ledger.charge(asking(lineage, "bob", "1"))
    shared = (await ledger.charge(asking(lineage, "ann", "1"))).receipt
    alone = replace(asking(f"{lineage}-x", "ann", "1"))
    other = (await ledger.charge(alone)).receipt
    assert shared is not None
    assert other is not None
    assert (shared.sequence, shared.lineage_releases) != (other.sequence, other.lineage_releases)
    assert replace(shared, lineage=other.lineage).hash == other.hash


async def test_a_delta_too_small_for_what_was_charged_is_refused(ledger: Ledger, lineage: str) -> None:
    """Or nothing could be said of the account any more: the noise sampler's error takes a share of delta."""
    roomy, tight = Budget.from_rho(30, 1e-6, "gaussian"), Budget.from_rho(0.001, 1e-12, "gaussian")
    await open_accounts(ledger, lineage, roomy, ann=roomy)
    await ledger.acting("owner").set_budget(lineage, tight, client="ann")
    await ledger.acting("owner").set_budget(lineage, roomy, client="ann")
    await ledger.charge(asking(lineage, "ann", "1"))
    before = await ledger.snapshot(lineage)
    with pytest.raises(ActRefused, check=lambda error: error.reason == "delta"):
        await ledger.acting("owner").set_budget(lineage, tight, client="ann")
    with pytest.raises(ActRefused, check=lambda error: error.reason == "delta"):
        await ledger.acting("owner").set_budget(lineage, tight)
    assert await ledger.snapshot(lineage) == before


async def test_ten_thousand_rows_in_one_request(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(10_001), ann=releases(10_000))
    request = asking(lineage, "ann", *map(str, range(10_000)))
    charge = await ledger.charge(request)
    assert charge.receipt is not None
    assert charge.receipt.releases == 10_000
    assert await ledger.receipts(lineage) == [charge.receipt]
    assert (await ledger.charge(request)).free == (True,) * 10_000
    with pytest.raises(BudgetExhausted):
        await ledger.charge(asking(lineage, "ann", "one more"))


async def test_accounts_are_opened_once_and_listed(ledger: Ledger, lineage: str) -> None:
    opened = await ledger.acting("owner").open_lineage(lineage, releases(5), time=12.25)
    assert (opened.lineage, opened.budget, opened.created) == (lineage, releases(5), 12.25)
    assert await ledger.acting("owner").open_lineage(lineage, releases(6), time=13.0) == opened
    assert opened in await ledger.lineages()
    bob = await ledger.acting("owner").add_client(lineage, "bob", releases(2), key_digest("bob's"), time=1.0)
    ann = await ledger.acting("owner").add_client(lineage, "ann", releases(1), key_digest("ann's"), time=2.0)
    assert await ledger.clients(lineage) == [ann, bob]
    with pytest.raises(ActRefused, check=lambda error: error.reason == "exists"):
        await ledger.acting("owner").add_client(lineage, "ann", releases(1), key_digest("other"), time=2.0)
    with pytest.raises(ActRefused, check=lambda error: error.reason == "key-in-use"):
        await ledger.acting("owner").add_client(lineage, "eve", releases(1), key_digest("ann's"), time=2.0)
    with pytest.raises(UnknownLineage):
        await ledger.acting("owner").add_client(f"{lineage}-x", "ann", releases(1), key_digest("ann's"), time=2.0)
    assert await ledger.clients(lineage) == [ann, bob]


async def test_an_api_key_finds_its_client_until_it_is_revoked(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(5), ann=releases(1), bob=releases(1))
    digest = key_digest(f"{lineage}/ann")
    assert await ledger.api_keys.authenticate(lineage, digest) == await ledger.client(lineage, "ann")
    assert await ledger.api_keys.authenticate(lineage, digest) == await ledger.client(lineage, "ann")
    await ledger.charge(asking(lineage, "ann", "1"))
    assert (await ledger.api_keys.authenticate(lineage, digest)).spent == PRICE
    with pytest.raises(UnknownKey):
        await ledger.api_keys.authenticate(lineage, key_digest("some other"))
    await ledger.acting("owner").rotate_key(lineage, "bob", key_digest("bob's next"))
    with pytest.raises(UnknownKey):
        await ledger.api_keys.authenticate(lineage, key_digest(f"{lineage}/bob"))
    assert (await ledger.api_keys.authenticate(lineage, key_digest("bob's next"))).client == "bob"
    await ledger.acting("owner").revoke(lineage, "ann")
    with pytest.raises(ClientRevoked):
        await ledger.api_keys.authenticate(lineage, digest)
    assert [client.revoked for client in await ledger.clients(lineage)] == [True, False]


async def test_a_key_is_checked_at_the_instant_of_the_charge(ledger: Ledger, store_url: str, lineage: str) -> None:
    """Whoever remembers whose a key was charges nobody with it once it is another's, nobody's, or revoked."""
    await open_accounts(ledger, lineage, releases(9), ann=releases(5), bob=releases(5))
    digest = key_digest(f"{lineage}/ann")

    def with_key(client: str, row: str) -> ChargeRequest:
        return replace(asking(lineage, client, row), key_digest=digest)

    assert (await ledger.charge(with_key("ann", "1"))).receipt is not None
    before = dump(store_url, lineage)
    decisions = await ledger.charge_batch([with_key("bob", "2"), with_key("ann", "1"), with_key("bob", "3")])
    assert [type(decision) for decision in decisions] == [UnknownKey, Charge, UnknownKey]
    with pytest.raises(UnknownKey):
        await ledger.quote(with_key("bob", "2"))
    await ledger.acting("owner").rotate_key(lineage, "ann", key_digest("ann's next"))
    assert dump(store_url, lineage) != before
    before = dump(store_url, lineage)
    for row in ("1", "2"):  # neither a replay nor a new row
        with pytest.raises(UnknownKey):
            await ledger.charge(with_key("ann", row))
    assert dump(store_url, lineage) == before
    digest = key_digest("ann's next")
    assert (await ledger.charge(with_key("ann", "2"))).receipt is not None
    await ledger.acting("owner").revoke(lineage, "ann")
    with pytest.raises(ClientRevoked):
        await ledger.charge(with_key("ann", "1"))


async def test_what_does_not_exist_is_said_not_to(ledger: Ledger, lineage: str) -> None:
    with pytest.raises(UnknownLineage):
        await ledger.lineage(lineage)
    with pytest.raises(UnknownLineage):
        await ledger.acting("owner").set_budget(lineage, releases(1))
    await ledger.acting("owner").open_lineage(lineage, releases(1), time=0.0)
    with pytest.raises(UnknownClient):
        await ledger.client(lineage, "ann")
    with pytest.raises(UnknownClient):
        await ledger.acting("owner").revoke(lineage, "ann")
    with pytest.raises(UnknownClient):
        await ledger.acting("owner").set_budget(lineage, releases(1), client="ann")


async def test_an_idempotency_key_takes_the_same_room_however_long_it_is(
    ledger: Ledger, lineage: str, store_url: str
) -> None:
    await open_accounts(ledger, lineage, releases(9), ann=releases(9))
    for number, key in enumerate(("k", "k" * 255, "é" * 127)):
        await ledger.charge(asking(lineage, "ann", str(number), key=key, body=key))
    kept = dump(store_url, lineage)[LineageKeys(lineage).client("ann").requests]
    assert isinstance(kept, dict)
    assert [(len(name), len(entry)) for name, entry in kept.items()] == [(16, 17)] * 3


async def test_pages_of_receipts_read_only_what_is_new_of_their_numbers(
    ledger: Ledger, lineage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await open_accounts(ledger, lineage, releases(9), ann=releases(9), bob=releases(9))
    for client, row in (("ann", "1"), ("ann", "2"), ("ann", "3")):
        await ledger.charge(asking(lineage, client, row))
    real, numbers = ledger.numbers, list[str]()

    async def counted(asked: str) -> Numbers:
        numbers.append(asked)
        return await real(asked)

    monkeypatch.setattr(ledger, "numbers", counted)
    pages = [await ledger.client_receipts(lineage, "ann", after=after, count=1) for after in range(3)]
    assert [receipt.number for (receipt,) in pages] == [1, 2, 3]
    assert len(numbers) == 1
    await ledger.acting("owner").add_client(lineage, "cy", releases(9), key_digest(f"{lineage}/cy"), time=0.0)
    await ledger.charge(asking(lineage, "cy", "4"))  # whose number is new
    assert [receipt.client for receipt in await ledger.receipts(lineage, after=3)] == ["cy"]
    assert len(numbers) == 2
