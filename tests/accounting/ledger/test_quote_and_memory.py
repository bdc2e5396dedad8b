"""Asking for a price spends nothing; what is remembered is bounded and what is spent is not."""

import pytest
import redis

from accounting.ledger import (
    Answered,
    BudgetExhausted,
    Charge,
    ClientRevoked,
    KeyInUse,
    Ledger,
    MechanismNotAccepted,
    RowNotCharged,
    TermsChanged,
    Unanswered,
    UnknownClient,
    UnknownKey,
    UnknownLineage,
    key_digest,
)
from accounting.ledger.verification import verify
from accounting.losses import Cost, LaplaceLoss

from .conftest import COST, asking, budget, dump, open_accounts, releases

pytestmark = pytest.mark.anyio

PRICE = COST.picorho


async def test_a_quote_says_what_the_charge_would(ledger: Ledger, lineage: str, store_url: str) -> None:
    await open_accounts(ledger, lineage, releases(9), ann=releases(4), bob=releases(9))
    await ledger.charge(asking(lineage, "ann", "1", "2"))
    before = dump(store_url, lineage)
    quote = await ledger.quote(asking(lineage, "ann", "1", "3", "3", "4"))
    assert (quote.total, quote.free, quote.refusal) == (2 * PRICE, (True, False, True, False), None)
    quote = await ledger.quote(asking(lineage, "ann", "3", "4", "5"))
    assert isinstance(quote.refusal, BudgetExhausted)
    assert (quote.refusal.scope, quote.refusal.cost, quote.refusal.remaining) == ("client", 3 * PRICE, 2 * PRICE)
    quote = await ledger.quote(asking(lineage, "bob", *"12345678"))
    assert isinstance(quote.refusal, BudgetExhausted)
    assert quote.refusal.scope == "lineage"
    assert (await ledger.quote(asking(lineage, "ann", "2", "1"))).total == 0
    assert dump(store_url, lineage) == before


async def test_what_has_no_price_is_refused_a_quote(ledger: Ledger, lineage: str) -> None:
    with pytest.raises(UnknownLineage):
        await ledger.quote(asking(lineage, "ann", "1"))
    await open_accounts(ledger, lineage, releases(9), ann=releases(4))
    with pytest.raises(UnknownClient):
        await ledger.quote(asking(lineage, "bob", "1"))
    await ledger.revoke(lineage, "ann")
    with pytest.raises(ClientRevoked):
        await ledger.quote(asking(lineage, "ann", "1"))


async def test_a_quote_names_what_an_account_does_not_accept(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(9), ann=budget(10**12, "gaussian"))
    quote = await ledger.quote(asking(lineage, "ann", "1", cost=Cost((LaplaceLoss(0.1),))))
    assert isinstance(quote.refusal, MechanismNotAccepted)


async def test_old_answers_are_forgotten_and_cost_again_and_the_spend_never(store_url: str, lineage: str) -> None:
    async with await Ledger.connect(store_url, remembered_rows=20) as ledger:
        await open_accounts(ledger, lineage, releases(1000), ann=releases(1000))
        for number in range(100):
            (row,) = (await ledger.charge(asking(lineage, "ann", str(number)))).rows
            await ledger.settle(lineage, [(row.row_id, str(number).encode())])
            held = dump(store_url, lineage)
            assert sum(len(held.get(f"dpserve:{{{lineage}}}:{rows}", ())) for rows in ("rows", "rows:old")) <= 20
        young = await ledger.charge(asking(lineage, "ann", *map(str, range(90, 100))))
        assert young.receipt is None
        assert [row.answer for row in young.rows if isinstance(row, Answered)] == [
            str(number).encode() for number in range(90, 100)
        ]
        again = await ledger.charge(asking(lineage, "ann", "0"))
        assert isinstance(again.rows[0], Unanswered)
        assert again.receipt is not None
        account = await ledger.lineage(lineage)
        assert account.spent == 101 * PRICE
        assert (await verify(ledger, lineage)).findings == ()


async def test_one_call_leaves_what_call_after_call_leaves(embedded_url: str, lineage: str) -> None:
    """Rows that come again and generations that change within a call, whose writes the call puts together."""
    asked = [
        ("ann", "0"),
        ("bob", "0"),
        ("ann", "1"),
        ("ann", "0"),
        ("bob", "1", "2"),
        ("ann", "2", "2", "3"),
        ("eve", "9"),
    ]
    asked += [
        ("ann", "4"),
        ("bob", "3"),
        ("ann", "0"),
        ("ann", *"56789"),
        ("bob", "0"),
        ("ann", "1"),
        ("ann", *"0123456789"),
    ]
    left = []
    async with await Ledger.connect(embedded_url, remembered_rows=8) as ledger:
        for name, together in ((lineage, True), (f"{lineage}-2", False)):
            await open_accounts(ledger, name, releases(99), ann=releases(12), bob=releases(80))
            requests = [asking(name, client, *rows) for client, *rows in asked]
            if together:
                decided = await ledger.charge_batch(requests)
            else:
                decided = [(await ledger.charge_batch([request]))[0] for request in requests]
            settlements = [
                [(row.row_id, f"{place} {client}".encode()) for row in charge.rows]
                for place, ((client, *_), charge) in enumerate(zip(asked, decided, strict=True))
                if isinstance(charge, Charge)
            ]
            if together:
                settled = await ledger.settle_batch(name, settlements)
            else:
                settled = [(await ledger.settle_batch(name, [one]))[0] for one in settlements]
            held = dump(embedded_url, name)
            kept = {key.removeprefix(f"dpserve:{{{name}}}:"): what for key, what in held.items()}
            accounts = [await ledger.client(name, client) for client in ("ann", "bob")]
            left.append(
                (
                    [kept.get(key) for key in ("rows", "rows:old", "tally", "client:ann:tally", "client:bob:tally")],
                    [(account.spent, account.releases) for account in (await ledger.lineage(name), *accounts)],
                    [type(one) if not isinstance(one, Charge) else one.rows for one in decided],
                    [repr(one) for one in settled],
                )
            )
            assert (await verify(ledger, name)).findings == ()
    assert left[0] == left[1]
    assert BudgetExhausted in left[0][2]
    assert UnknownClient in left[0][2]


async def test_a_row_forgotten_before_it_was_answered_takes_no_answer(embedded_url: str, lineage: str) -> None:
    async with await Ledger.connect(embedded_url, remembered_rows=2) as ledger:
        await open_accounts(ledger, lineage, releases(10), ann=releases(10))
        (row,) = (await ledger.charge(asking(lineage, "ann", "0"))).rows
        await ledger.charge(asking(lineage, "ann", "1"))
        await ledger.charge(asking(lineage, "ann", "2"))
        with pytest.raises(RowNotCharged):
            await ledger.settle(lineage, [(row.row_id, b"too late")])
        assert (await ledger.charge(asking(lineage, "ann", "0"))).receipt is not None


async def test_a_request_larger_than_the_memory_is_answered_whole(embedded_url: str, lineage: str) -> None:
    async with await Ledger.connect(embedded_url, remembered_rows=2) as ledger:
        await open_accounts(ledger, lineage, releases(100), ann=releases(100))
        request = asking(lineage, "ann", *map(str, range(50)))
        rows = (await ledger.charge(request)).rows
        answers = [(row.row_id, b"answer") for row in rows]
        assert await ledger.settle(lineage, answers) == [b"answer"] * 50
        assert await ledger.charge(request) == Charge(None, tuple(Answered(row.row_id, b"answer") for row in rows))


async def test_idempotency_keys_are_bounded_too(
    embedded_url: str, lineage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accounting.ledger.wire.IDEMPOTENCY_KEYS", 10)
    async with await Ledger.connect(embedded_url) as ledger:
        await open_accounts(ledger, lineage, releases(9), ann=releases(9))
        for number in range(40):
            await ledger.charge(asking(lineage, "ann", "1", key=f"key {number}", body="body"))
        with redis.Redis.from_url(embedded_url, protocol=2) as store:
            name = f"dpserve:{{{lineage}}}:client:ann:requests"
            assert store.hlen(name) + store.hlen(f"{name}:old") <= 10
        assert (await ledger.lineage(lineage)).releases == 1


async def test_a_rotated_key_is_the_only_one(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(9), ann=releases(9), bob=releases(9))
    await ledger.rotate_key(lineage, "ann", key_digest("new"))
    assert (await ledger.authenticate(lineage, key_digest("new"))).client == "ann"
    with pytest.raises(UnknownKey):
        await ledger.authenticate(lineage, key_digest(f"{lineage}/ann"))
    with pytest.raises(KeyInUse):
        await ledger.rotate_key(lineage, "bob", key_digest("new"))
    with pytest.raises(UnknownClient):
        await ledger.rotate_key(lineage, "eve", key_digest("other"))
    await ledger.revoke(lineage, "ann")
    with pytest.raises(ClientRevoked):
        await ledger.rotate_key(lineage, "ann", key_digest("newer"))
    kinds = [act.kind for act in await ledger.acts(lineage)]
    assert kinds == ["open", "add", "add", "rotate-key", "revoke"]
    assert (await verify(ledger, lineage)).findings == ()


async def test_a_request_that_is_sent_again_is_not_charged_again_when_its_rows_were_forgotten(
    store_url: str, lineage: str
) -> None:
    async with await Ledger.connect(store_url, remembered_rows=2) as ledger:
        await open_accounts(ledger, lineage, releases(99), ann=releases(50), bob=releases(49))
        asked = asking(lineage, "ann", "1", key="key", body="body")
        (row,) = (await ledger.charge(asked)).rows
        await ledger.settle(lineage, [(row.row_id, b"answer")])
        assert isinstance((await ledger.charge(asked)).rows[0], Answered)
        for number in range(4):
            await ledger.charge(asking(lineage, "bob", f"other {number}"))
        before = dump(store_url, lineage)
        with pytest.raises(TermsChanged):
            await ledger.charge(asked)
        with pytest.raises(TermsChanged):
            await ledger.quote(asked)
        assert dump(store_url, lineage) == before
        assert (await ledger.charge(asking(lineage, "ann", "1", key="new", body="body"))).receipt is not None
