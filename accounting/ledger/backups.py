"""What a backup of a ledger says: JSON lines, the last of which holds the SHA-256 of all lines before it.

The first says its format; then for each lineage come a line with accounts, acts and services, and a line for each
receipt. What was paid for, the terms and the clients' indices are in the receipts. A backup whose books are not right
is neither written nor read.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accounting.ledger.books import Books, accounts_of
from accounting.ledger.errors import LedgerError
from accounting.ledger.journal import describe_receipt, receipt_from
from accounting.ledger.values import Act, Receipt

_FORMAT = "dpserve ledger backup 3"


class CannotBackUp(LedgerError):
    """The ledger cannot be backed up as it is; one line says why."""


class CannotRestore(LedgerError):
    """The ledger cannot be restored from this; one line says why. Nothing was changed."""


@dataclass(frozen=True)
class Section:
    """What a backup says of one lineage, but for its receipts.

    `account`, `clients` and `services` are the fields of the accounts, and of the services that ever wrote to the
    lineage, as they lie in the store.
    """

    lineage: str
    account: Mapping[bytes, bytes]
    clients: Mapping[str, Mapping[bytes, bytes]]
    services: Mapping[bytes, bytes]
    acts: Sequence[Act]


def flaws_of(section: Section, books: Books) -> list[str]:
    """Return a line for whatever is wrong, once the receipts were entered. Raises KeyError or ValueError."""
    books.compare(*accounts_of(section.lineage, section.account, section.clients))
    return books.findings


async def lines_of(values: AsyncIterator[Section | Receipt]) -> AsyncIterator[str]:
    """Yield the lines of a backup of these sections, each before its receipts."""
    digest = hashlib.sha256()
    line = _line({"format": _FORMAT})
    digest.update(line.encode())
    yield line
    async for value in values:
        line = _line(_described(value) if isinstance(value, Section) else {"receipt": describe_receipt(value)})
        digest.update(line.encode())
        yield line
    yield _line({"end": digest.hexdigest()})


def sections_of(lines: Iterable[str]) -> list[tuple[Section, list[Receipt]]]:
    """Return what the lines of a backup say of each lineage. Raises CannotRestore for one that is not whole."""
    digest, sections, ended = hashlib.sha256(), list[tuple[Section, list[Receipt]]](), False
    try:
        for number, line in enumerate(lines):
            value = json.loads(line)
            if ended or (number == 0 and value.get("format") != _FORMAT):
                raise CannotRestore(f"this is not a backup of a ledger in the format {_FORMAT!r}")
            if "end" in value:
                ended = value["end"] == digest.hexdigest()
                if not ended:
                    break
            elif "acts" in value:
                sections.append((_section_from(value), []))
            elif "receipt" in value:
                sections[-1][1].append(receipt_from(value["receipt"]))
            digest.update(line.encode())
        if not ended:
            raise CannotRestore("the backup is cut short or was altered")
        for section, receipts in sections:
            _check(section, receipts)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise CannotRestore(f"the backup cannot be read: {error}") from error
    return sections


def _check(section: Section, receipts: Iterable[Receipt]) -> None:
    books = Books(section.lineage, section.acts)
    for receipt in receipts:
        books.enter(receipt)
    flaws = flaws_of(section, books)
    if flaws:
        raise CannotRestore(f"the backup of lineage {section.lineage} is not whole: {flaws[0]}")


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


def _described(section: Section) -> dict[str, Any]:
    return {
        "lineage": section.lineage,
        "account": _as_text(section.account),
        "clients": {name: _as_text(fields) for name, fields in section.clients.items()},
        "services": _as_text(section.services),
        "acts": [_described_act(act) for act in section.acts],
    }


def _section_from(value: Mapping[str, Any]) -> Section:
    return Section(
        value["lineage"],
        _as_bytes(value["account"]),
        {name: _as_bytes(fields) for name, fields in value["clients"].items()},
        _as_bytes(value["services"]),
        [_act_from(act) for act in value["acts"]],
    )


def _as_text(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.hex() for name, value in fields.items()}


def _as_bytes(fields: Mapping[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): bytes.fromhex(value) for name, value in fields.items()}


def _described_act(act: Act) -> dict[str, Any]:
    words = {name: getattr(act, name) for name in ("sequence", "kind", "subject", "detail", "time")}
    return words | {"hash": act.hash.hex()}


def _act_from(described: Mapping[str, Any]) -> Act:
    return Act(**(dict(described) | {"hash": bytes.fromhex(described["hash"])}))
