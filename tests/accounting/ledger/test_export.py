"""The audit trail: who did what, when and why, and every receipt, with units and times that anybody can read."""

import json
from typing import Any

import pytest

from dpserve.accounting.ledger import Acts, ApiKey, Ledger, ReleaseRequest, key_digest
from dpserve.accounting.ledger.export import export
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.picorho import to_rho

from .conftest import COST, asking, open_accounts, releases

pytestmark = pytest.mark.anyio

RHO = to_rho(COST.picorho)


async def _rows(owner: Acts, lineage: str) -> list[dict[str, Any]]:
    return [json.loads(line) async for line in export(owner, lineage)]


async def test_an_export_says_who_did_what_when_and_why(store_url: str, lineage: str) -> None:
    async with await Ledger.connect(store_url) as ledger:
        owner, deputy = ledger.acting("Ann Owner", "quarter 3"), ledger.acting("deputy@example.org")
        await owner.open_lineage(lineage, releases(9), time=0.0)
        await owner.add_group(lineage, "team", releases(8), time=0.0, display="The team")
        await owner.add_client(lineage, "auth0|5f", releases(5), ApiKey(key_digest(lineage)), time=0.0, group="team")
        await deputy.set_budget(lineage, releases(7), client="auth0|5f")
        await owner.set_budget(lineage, releases(6), client="auth0|5f")
        await deputy.rename(lineage, "auth0|5f", "=Zoë")
        await deputy.rotate_key(lineage, "auth0|5f", key_digest("next"))
        await owner.set_group(lineage, "auth0|5f", "")
        await ledger.acting("Ann Owner", "left us").revoke(lineage, "auth0|5f")
        first = await _rows(owner, lineage)
        second = await _rows(deputy, lineage)
        assert (await verify(ledger, lineage)).findings == ()
    done = [(row["kind"], row["by"], row["why"], row["scope"], row["name"]) for row in second]
    owner_said, deputy_said = ("Ann Owner", "quarter 3"), ("deputy@example.org", "")
    client = ("client", "auth0|5f")
    assert done == [
        ("open", *owner_said, "lineage", ""),
        ("add-group", *owner_said, "group", "team"),
        ("add-client", *owner_said, *client),
        ("raise", *deputy_said, *client),
        ("lower", *owner_said, *client),
        ("rename", *deputy_said, *client),
        ("rotate-key", *deputy_said, *client),
        ("group", *owner_said, *client),
        ("revoke", "Ann Owner", "left us", *client),
        ("export", *owner_said, "lineage", ""),
        ("export", *deputy_said, "lineage", ""),
    ]
    assert [row["kind"] for row in first] == [kind for kind, *_ in done[:-1]]
    raised = first[3]
    assert (raised["limit_before_rho"], raised["limit_rho"]) == (5 * RHO, 7 * RHO)
    assert raised["limit_before_epsilon"] == releases(5).epsilon_at(releases(5).limit)
    assert first[2]["group"] == "team"
    assert first[5]["detail"] == {"display": "=Zoë"}
    assert first[9]["detail"] == {"what": "audit trail", "receipts": 0}
    assert all(str(row["time_utc"]).endswith("+00:00") for row in second)


async def test_an_export_says_who_paid_what(store_url: str, lineage: str) -> None:
    async with await Ledger.connect(store_url) as ledger:
        await open_accounts(ledger, lineage, releases(9), ann=releases(5), bob=releases(5))
        await ledger.charge(asking(lineage, "ann", "1", "2"))
        await ledger.charge(asking(lineage, "bob", "2"))
        await ledger.charge(ReleaseRequest(lineage, "ann", "m", bytes(32), "weights", COST, 1e12))
        rows = await _rows(ledger.acting("owner"), lineage)
    first, second, held = rows[4:]
    assert (first["time_utc"], first["price_rho"]) == ("1970-01-01T00:00:01.500000+00:00", RHO)
    assert (first["releases"], first["lineage_releases"], first["total_rho"]) == (2, 2, 2 * RHO)
    assert first["total_epsilon"] == releases(5).epsilon_at(2 * COST.picorho)
    assert (second["name"], second["client_receipt"], second["total_rho"]) == ("bob", 1, RHO)
    assert (second["lineage_releases"], second["lineage_total_rho"]) == (0, 0.0)
    assert held["time_utc"] == "1000000000000.0 s since 1970"


@pytest.mark.parametrize(
    ("by", "why"), [("", ""), ("x" * 256, ""), ("ann\n", ""), ("ann", "x" * 1001), ("ann", "\x1b")]
)
async def test_who_acts_and_why_can_be_printed_and_is_short(store_url: str, by: str, why: str) -> None:
    async with await Ledger.connect(store_url) as ledger:
        with pytest.raises(ValueError, match="who acts"):
            ledger.acting(by, why)
