"""A lineage's receipts as CSV or JSON lines, for the owner's own tools."""

import csv
import io
import json
from collections.abc import AsyncIterator
from typing import Literal

from accounting.ledger.accounts import Accounts
from accounting.ledger.journal import describe_receipt
from accounting.ledger.verification import all_receipts

Format = Literal["csv", "jsonl"]


async def export(ledger: Accounts, lineage: str, form: Format) -> AsyncIterator[str]:
    """Yield the lines of an export of all receipts that there are now. Raises UnknownLineage.

    Amounts are picorho, times seconds since the epoch, hashes hexadecimal. CSV begins with the names of columns.
    """
    newest = (await ledger.lineage(lineage)).newest_receipt
    first = True
    async for receipt in all_receipts(ledger, lineage, newest):
        described = describe_receipt(receipt)
        if form == "jsonl":
            yield json.dumps(described) + "\n"
            continue
        if first:
            yield _row(described.keys())
            first = False
        yield _row(described.values())


def _row(cells: object) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)  # type: ignore[arg-type]
    return line.getvalue()
