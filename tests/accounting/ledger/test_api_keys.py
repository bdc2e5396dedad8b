"""API keys: they end by the store's clock, are good for what they say, and are looked at with the charge."""

import time

import pytest
from msgspec.structs import replace

from dpserve.accounting.ledger import (
    SCOPES,
    ActRefused,
    ApiKey,
    Charge,
    KeyExpired,
    Ledger,
    LedgerDamaged,
    ReleaseRequest,
    ScopeMissing,
    UnknownClient,
    UnknownKey,
    checked_scopes,
    expiry,
    key_digest,
)
from dpserve.accounting.ledger.api_keys import KEY
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.ledger.wire import LineageKeys

from .conftest import COST, asking, open_accounts, releases

pytestmark = pytest.mark.anyio

LONG_AGO = 1_000_000_000


def digest_of(lineage: str, name: str) -> bytes:
    return key_digest(f"{lineage}/{name}")


def hold(lineage: str, digest: bytes) -> ReleaseRequest:
    return ReleaseRequest(lineage, "ann", "model", bytes(32), "weights", COST, 5.0, key_digest=digest)


async def test_an_expired_key_opens_nothing(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(9))
    await ledger.acting("owner").add_client(
        lineage, "ann", releases(9), ApiKey(digest_of(lineage, "old"), LONG_AGO), time=1.0
    )
    for scope in SCOPES:
        with pytest.raises(KeyExpired):
            await ledger.api_keys.authenticate(lineage, digest_of(lineage, "old"), scope)
    later = ApiKey(digest_of(lineage, "later"), int(time.time()) + 10_000)
    await ledger.acting("owner").add_key(lineage, "ann", later)
    assert (await ledger.api_keys.authenticate(lineage, later.digest)).client == "ann"
    assert {*(await ledger.client(lineage, "ann")).api_keys} == {ApiKey(digest_of(lineage, "old"), LONG_AGO), later}
    assert (await verify(ledger, lineage)).findings == ()


async def test_a_key_is_good_for_its_scopes_alone(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(9), ann=releases(9))
    reader = ApiKey(digest_of(lineage, "reader"), scopes=("budget-read",))
    await ledger.acting("owner").add_key(lineage, "ann", reader)
    assert (await ledger.api_keys.authenticate(lineage, reader.digest, "budget-read")).client == "ann"
    with pytest.raises(ScopeMissing, check=lambda error: error.needed == "predict"):
        await ledger.api_keys.authenticate(lineage, reader.digest, "predict")


async def test_what_is_held_is_charged_only_with_a_key_that_is_good_for_it(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(9), ann=releases(9), bob=releases(9))
    old, reader = ApiKey(digest_of(lineage, "old"), LONG_AGO), ApiKey(digest_of(lineage, "r"), scopes=("budget-read",))
    for key in (old, reader):
        await ledger.acting("owner").add_key(lineage, "ann", key)
    for digest, refusal in (
        (old.digest, KeyExpired),
        (reader.digest, ScopeMissing),
        (digest_of(lineage, "bob"), UnknownKey),
        (digest_of(lineage, "nobody"), UnknownKey),
    ):
        with pytest.raises(refusal):
            await ledger.charge(hold(lineage, digest))
        with pytest.raises(refusal):
            await ledger.quote(hold(lineage, digest))
    assert (await ledger.lineage(lineage)).spent == 0
    assert (await ledger.charge(hold(lineage, digest_of(lineage, "ann")))).charged == COST.picorho


async def test_a_rotation_may_let_the_former_keys_live_a_little_longer(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(9), ann=releases(9))
    await ledger.acting("owner").add_key(lineage, "ann", ApiKey(digest_of(lineage, "ended"), LONG_AGO))
    soon = ApiKey(digest_of(lineage, "soon"), int(time.time()) + 3000)
    await ledger.acting("owner").add_key(lineage, "ann", soon)
    before = int(time.time())
    await ledger.acting("owner").rotate_key(lineage, "ann", ApiKey(digest_of(lineage, "new")), overlap=3600)
    owned = {key.digest: key for key in (await ledger.client(lineage, "ann")).api_keys}
    first, second, third = (owned[digest_of(lineage, name)] for name in ("ann", "soon", "new"))
    assert first.expires is not None
    assert before + 3600 - 1 <= first.expires <= int(time.time()) + 3600 + 1
    assert second == soon, "an overlap must not lengthen a life"
    assert third == ApiKey(digest_of(lineage, "new"))
    with pytest.raises(UnknownKey):
        await ledger.api_keys.authenticate(lineage, digest_of(lineage, "ended"))
    assert (await ledger.api_keys.authenticate(lineage, first.digest)).client == "ann"
    assert (await verify(ledger, lineage)).findings == ()


async def test_one_key_of_several_is_rotated_or_taken_away(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(9), ann=releases(9), bob=releases(9))
    reader = ApiKey(digest_of(lineage, "reader"), scopes=("budget-read",))
    await ledger.acting("owner").add_key(lineage, "ann", reader)
    new = ApiKey(digest_of(lineage, "new"))
    await ledger.acting("owner").rotate_key(lineage, "ann", new, replaced=digest_of(lineage, "ann"))
    assert set((await ledger.client(lineage, "ann")).api_keys) == {reader, new}
    await ledger.acting("owner").remove_key(lineage, "ann", new.digest)
    assert (await ledger.client(lineage, "ann")).api_keys == (reader,)
    for digest in (new.digest, digest_of(lineage, "bob")):
        with pytest.raises(UnknownKey):
            await ledger.acting("owner").remove_key(lineage, "ann", digest)
    with pytest.raises(ActRefused, check=lambda error: error.reason == "key-in-use"):
        await ledger.acting("owner").add_key(lineage, "ann", ApiKey(digest_of(lineage, "bob")))
    with pytest.raises(UnknownClient):
        await ledger.acting("owner").add_key(lineage, "eve", ApiKey(digest_of(lineage, "eve")))
    assert (await ledger.api_keys.authenticate(lineage, digest_of(lineage, "bob"))).client == "bob"
    acts = await ledger.acts(lineage)
    assert [act.kind for act in acts][-3:] == ["add-key", "rotate-key", "remove-key"]
    ended = digest_of(lineage, "ann")[:6].hex()
    terms = {"key": new.id, "expires": "-", "scopes": "predict,budget-read"}
    assert acts[-2].details == {"ends": ended, "after_seconds": 0} | terms
    assert (await verify(ledger, lineage)).findings == ()


async def test_a_client_has_only_so_many_keys(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(9), ann=releases(9))
    for number in range(15):
        await ledger.acting("owner").add_key(lineage, "ann", ApiKey(digest_of(lineage, str(number))))
    with pytest.raises(ActRefused, check=lambda error: error.reason == "too-many-keys"):
        await ledger.acting("owner").add_key(lineage, "ann", ApiKey(digest_of(lineage, "one too many")))
    assert len((await ledger.client(lineage, "ann")).api_keys) == 16


async def test_a_key_that_cannot_be_read_is_damage_and_not_good_for_ever(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(9), ann=releases(9))
    digest = digest_of(lineage, "ann")
    keys = LineageKeys(lineage)
    for key, field, entries in (
        (keys.client("ann").account, KEY + digest, ("soon predict", " predict", "-")),
        (keys.api_keys, digest, ("ann", "- predict")),
    ):
        for entry in entries:
            await ledger.store.command("HSET", key, field, entry)
            with pytest.raises(LedgerDamaged):
                await ledger.api_keys.authenticate(lineage, digest)


async def test_a_key_that_is_only_among_the_lineages_opens_nothing(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(9), ann=releases(9))
    keys = LineageKeys(lineage).api_keys
    await ledger.store.command("HSET", keys, digest_of(lineage, "slipped in"), "- predict,budget-read ann")
    with pytest.raises(UnknownKey):
        await ledger.api_keys.authenticate(lineage, digest_of(lineage, "slipped in"))


def test_invalid_arguments_are_refused() -> None:
    assert checked_scopes(["budget-read", "predict"]) == SCOPES
    for names in ([], ["write"], ["predict", "Predict"]):
        with pytest.raises(ValueError, match="one or more of predict, budget-read"):
            checked_scopes(names)
    assert expiry(None, now=5.0) is None
    assert expiry(10.0, now=5.9) == 15
    for life in (0.0, 0.5, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="lasts from a second"):
            expiry(life, now=5.0)


async def test_a_charge_looks_at_the_key_at_its_own_instant(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(9), ann=releases(9))
    old, reader = ApiKey(digest_of(lineage, "old"), LONG_AGO), ApiKey(digest_of(lineage, "r"), scopes=("budget-read",))
    for key in (old, reader):
        await ledger.acting("owner").add_key(lineage, "ann", key)
    asked = replace(asking(lineage, "ann", "1"), key_digest=digest_of(lineage, "ann"))
    await ledger.charge(asked)
    for digest, refusal in ((old.digest, KeyExpired), (reader.digest, ScopeMissing)):
        for row in ("1", "2"):  # a replay is refused as well
            with pytest.raises(refusal):
                await ledger.charge(replace(asking(lineage, "ann", row), key_digest=digest))
            with pytest.raises(refusal):
                await ledger.quote(replace(asking(lineage, "ann", row), key_digest=digest))
    decisions = await ledger.charge_batch(
        [replace(asking(lineage, "ann", "3"), key_digest=digest) for digest in (old.digest, asked.key_digest)]
    )
    assert isinstance(decisions[0], KeyExpired)
    assert isinstance(decisions[1], Charge)
    assert (await ledger.client(lineage, "ann")).releases == 2
