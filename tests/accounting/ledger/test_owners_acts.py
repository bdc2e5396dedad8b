"""The owner's acts where the store's replicas lack what its primary has done, and where another lineage fails."""

from typing import get_args

import pytest

from dpserve.accounting.acts import (
    ACTS,
    AddClient,
    AddGroup,
    AddKey,
    OwnerAct,
    RemoveKey,
    Rename,
    Revoke,
    RotateKey,
    SetBudget,
    SetGroup,
)
from dpserve.accounting.ledger import KeyScope, Ledger, TooFewDisks, UnknownKey, key_digest
from dpserve.accounting.ledger.store import Store

from .conftest import new_lineage, open_accounts, releases

pytestmark = pytest.mark.anyio
BUDGET = {"rho": 0.001, "delta": 1e-6}


async def test_each_act_is_done_at_the_primary_and_says_what_replicas_lack(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica that each write waits for is not there."""
    lineage = new_lineage()
    async with await Ledger.connect(store_url) as ledger:
        await open_accounts(ledger, lineage, releases(100), ann=releases(2))
        key = (await ledger.client(lineage, "ann")).api_keys[0].id
    acts: list[OwnerAct] = [
        AddClient(client="bob", **BUDGET),
        AddGroup(group="team", **BUDGET),
        SetBudget(client="bob", rho=0.0005, delta=1e-6),
        Rename(client="bob", display="Bob"),
        SetGroup(client="bob", group="team"),
        AddKey(client="ann"),
        RemoveKey(client="ann", key=key),
        RotateKey(client="ann"),
        Revoke(client="bob"),
    ]
    assert set(map(type, acts)) == set(ACTS)
    monkeypatch.setattr(Store, "_waits_for", lambda _: [20])
    async with await Ledger.connect(store_url, replicas=1) as ledger:
        owner = ledger.acting("owner")
        for act in acts:
            plan = await act.plan(owner, lineage)
            assert "0 of 1 replicas" in await plan.carry_out(owner), act.name
            if plan.secret is not None:
                found = await ledger.api_keys.authenticate(lineage, key_digest(plan.secret), get_args(KeyScope)[0])
                assert found.client == act.client
        assert (await ledger.client(lineage, "bob")).revoked
        assert (await ledger.client(lineage, "bob")).group == "team"
        with pytest.raises(UnknownKey):
            await ledger.api_keys.authenticate(lineage, key_digest(f"{lineage}/ann"))
        with pytest.raises(TooFewDisks):  # outside of an owner's act nothing goes on
            await owner.rename(lineage, "ann", "Ann")


async def test_what_is_not_done_in_another_lineage_is_said_and_done_everywhere_else(store_url: str) -> None:
    """The key was removed there since the act was planned."""
    here, gone, also = new_lineage(), new_lineage(), new_lineage()
    async with await Ledger.connect(store_url) as ledger:
        owner = ledger.acting("owner")
        await open_accounts(ledger, here, releases(2), ann=releases(1))
        (key,) = (await ledger.client(here, "ann")).api_keys
        for other in (gone, also):
            await open_accounts(ledger, other, releases(2))
            await (await AddClient(client="ann", keys_of=here, **BUDGET).plan(owner, other)).carry_out(owner)
        plan = await RemoveKey(client="ann", key=key.id).plan(owner, here)
        await owner.remove_key(gone, client="ann", digest=key.digest)
        said = await plan.carry_out(owner)
        assert (here in said, gone in said, also in said) == (False, True, False)
        for lineage in (here, gone, also):
            with pytest.raises(UnknownKey):
                await ledger.api_keys.authenticate(lineage, key.digest)
