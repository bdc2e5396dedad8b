"""A lineage's acts and receipts as CSV or JSON lines, for the owner's own tools."""

import csv
import io
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from accounting.ledger.accounts import Accounts
from accounting.ledger.receipts import Act, Receipt
from accounting.ledger.verification import all_acts, all_receipts

Format = Literal["csv", "jsonl"]

COLUMNS = (
    "kind",
    "number",
    "time_utc",
    "client",
    "client_receipt",
    "model",
    "mechanism",
    "cost",
    "price_picorho",
    "releases",
    "total_picorho",
    "lineage_releases",
    "lineage_total_picorho",
    "detail",
    "service",
    "hash_sha256",
)
"""The names of columns; what has an amount says its unit. `kind` is `receipt`, or of an act what the owner did."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def export(ledger: Accounts, lineage: str, form: Format) -> AsyncIterator[str]:
    """Yield the lines of an export of all acts and then all receipts that there are now. Raises UnknownLineage.

    Times are in UTC, as ISO 8601 has them, hashes hexadecimal. CSV begins with the names of columns.
    """
    account = await ledger.lineage(lineage)
    if form == "csv":
        yield _row(COLUMNS)
    for act in await all_acts(ledger, lineage, account.newest_act):
        yield _line(_act(act), form)
    async for receipt in all_receipts(ledger, lineage, account.newest_receipt):
        yield _line(_receipt(receipt), form)


def _act(act: Act) -> dict[str, Any]:
    return {
        "kind": act.kind,
        "number": act.sequence,
        "time_utc": _iso(float(act.time)),
        "client": act.subject,
        "detail": act.detail,
        "hash_sha256": act.hash.hex(),
    }


def _receipt(receipt: Receipt) -> dict[str, Any]:
    return {
        "kind": "receipt",
        "number": receipt.sequence,
        "time_utc": _iso(receipt.time),
        "client": receipt.client,
        "client_receipt": receipt.number,
        "model": receipt.model,
        "mechanism": receipt.mechanism,
        "cost": str(receipt.cost),
        "price_picorho": receipt.price,
        "releases": receipt.rows,
        "total_picorho": receipt.total,
        "lineage_releases": receipt.lineage_rows,
        "lineage_total_picorho": receipt.lineage_total,
        "service": receipt.service,
        "hash_sha256": receipt.hash.hex(),
    }


def _iso(time: float) -> str:
    try:
        return (_EPOCH + timedelta(seconds=time)).isoformat(timespec="microseconds")
    except OverflowError:  # a clock that was never set right
        return f"{time} s since 1970"


def _line(value: dict[str, Any], form: Format) -> str:
    return json.dumps(value) + "\n" if form == "jsonl" else _row([value.get(name, "") for name in COLUMNS])


def _row(cells: object) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)  # type: ignore[arg-type]
    return line.getvalue()
