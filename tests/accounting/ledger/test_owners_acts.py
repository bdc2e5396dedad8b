"""The owner's acts where the store's replicas lack what its primary has done."""

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
