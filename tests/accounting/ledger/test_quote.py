"""Asking for a price spends nothing; idempotency keys that are remembered are bounded."""

import pytest
import redis

from dpserve.accounting.ledger import (
    ActRefused,
    BudgetExhausted,
    ClientRevoked,
    Ledger,
    UnknownClient,
    UnknownKey,
    key_digest,
)
from dpserve.accounting.ledger.verification import verify

from .conftest import COST, asking, dump, open_accounts, releases

pytestmark = pytest.mark.anyio

PRICE = COST.picorho


async def test_a_quote_says_what_the_charge_would(ledger: Ledger, lineage: str, store_url: str) -> None:
    await open_accounts(ledger, lineage, releases(9), ann=releases(4), bob=releases(11))
    await ledger.charge(asking(lineage, "ann", "1", "2"))
    before = dump(store_url, lineage)
    quote = await ledger.quote(asking(lineage, "ann", "1", "3", "3", "4"))
    assert (quote.total, quote.free, quote.refusal) == (2 * PRICE, (True, False, True, False), None)
    quote = await ledger.quote(asking(lineage, "ann", "3", "4", "5"))
    assert isinstance(quote.refusal, BudgetExhausted)
    assert (quote.refusal.scope, quote.refusal.cost, quote.refusal.remaining) == ("client", 3 * PRICE, 2 * PRICE)
    assert (await ledger.quote(asking(lineage, "bob", "1", "2"))).total == 2 * PRICE
    quote = await ledger.quote(asking(lineage, "bob", *"3456789ab"))
    assert isinstance(quote.refusal, BudgetExhausted)
    assert quote.refusal.scope == "lineage"
    assert (await ledger.quote(asking(lineage, "ann", "2", "1"))).total == 0
    assert dump(store_url, lineage) == before


async def test_idempotency_keys_are_bounded_too(store_url: str, lineage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpserve.accounting.ledger.wire.IDEMPOTENCY_KEYS", 10)
    async with await Ledger.connect(store_url) as ledger:
        await open_accounts(ledger, lineage, releases(9), ann=releases(9))
        for number in range(40):
            await ledger.charge(asking(lineage, "ann", "1", key=f"key {number}", body="body"))
        with redis.Redis.from_url(store_url, protocol=2) as store:
            name = f"dpserve:{{{lineage}}}:client:ann:requests"
            assert store.hlen(name) + store.hlen(f"{name}:old") <= 10
        assert (await ledger.lineage(lineage)).releases == 1


async def test_a_rotated_key_is_the_only_one(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(9), ann=releases(9), bob=releases(9))
    await ledger.acting("owner").rotate_key(lineage, "ann", key_digest("new"))
    assert (await ledger.api_keys.authenticate(lineage, key_digest("new"))).client == "ann"
    with pytest.raises(UnknownKey):
        await ledger.api_keys.authenticate(lineage, key_digest(f"{lineage}/ann"))
    with pytest.raises(ActRefused, check=lambda error: error.reason == "key-in-use"):
        await ledger.acting("owner").rotate_key(lineage, "bob", key_digest("new"))
    with pytest.raises(UnknownClient):
        await ledger.acting("owner").rotate_key(lineage, "eve", key_digest("other"))
    await ledger.acting("owner").revoke(lineage, "ann")
    with pytest.raises(ClientRevoked):
        await ledger.acting("owner").rotate_key(lineage, "ann", key_digest("newer"))
    kinds = [act.kind for act in await ledger.acts(lineage)]
    assert kinds == ["open", "add-client", "add-client", "rotate-key", "revoke"]
    assert (await verify(ledger, lineage)).findings == ()
