"""An export holds the owner's acts and every receipt, with units and times that anybody can read."""

import csv
import json

import pytest

from accounting.ledger import HoldRequest, Ledger
from accounting.ledger.export import COLUMNS, export

from .conftest import COST, asking, open_accounts, releases

pytestmark = pytest.mark.anyio


async def test_an_export_says_who_did_and_who_paid_what_and_when(embedded_url: str, lineage: str) -> None:
    async with await Ledger.connect(embedded_url) as ledger:
        await open_accounts(ledger, lineage, releases(9), ann=releases(5), bob=releases(5))
        await ledger.charge(asking(lineage, "ann", "1", "2"))
        await ledger.charge(asking(lineage, "bob", "2"))
        await ledger.charge(HoldRequest(lineage, "ann", "m", bytes(32), "weights/1", (COST,), 1e12))
        await ledger.revoke(lineage, "bob")
        lines = [line async for line in export(ledger, lineage, "csv")]
        described = [json.loads(line) async for line in export(ledger, lineage, "jsonl")]
    rows = list(csv.DictReader(lines))
    assert tuple(rows[0]) == COLUMNS
    assert [row["kind"] for row in rows] == ["open", "add", "add", "revoke", *["receipt"] * 3]
    assert rows[1]["detail"].startswith(f"{5 * COST.picorho} any ")
    assert all(row["time_utc"].endswith("+00:00") for row in rows[:-1])
    first, second, held = rows[4:]
    assert (first["time_utc"], first["price_picorho"]) == ("1970-01-01T00:00:01.500000+00:00", str(COST.picorho))
    assert (first["releases"], first["lineage_releases"]) == ("2", "2")
    assert (second["client"], second["client_receipt"], second["total_picorho"]) == ("bob", "1", str(COST.picorho))
    assert (second["lineage_releases"], second["lineage_total_picorho"]) == ("0", "0")
    assert held["time_utc"] == "1000000000000.0 s since 1970"
    assert [one["kind"] for one in described] == [row["kind"] for row in rows]
    assert described[4]["total_picorho"] == 2 * COST.picorho
