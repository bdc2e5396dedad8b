"""What a backup of a ledger says: JSON lines, the last of which holds the SHA-256 of all lines before it.

The first says its format; then for each lineage come a line with accounts, acts and services, and a line for each
receipt. What was paid for, the terms and the clients' indices are in the receipts. A backup whose books are not right
is neither written nor read.
"""

import hashlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec
from msgspec import Struct

from accounting.ledger.books import Books, accounts_of
from accounting.ledger.errors import LedgerError
from accounting.ledger.journal import describe_receipt, receipt_from
from accounting.ledger.values import Act, Receipt

_FORMAT = "dpserve ledger backup 4"


class CannotBackUp(LedgerError):
    """The ledger cannot be backed up as it is; one line says why."""


class CannotRestore(LedgerError):
    """The ledger cannot be restored from this; one line says why. Nothing was changed."""


class Section(Struct, frozen=True):
    """What a backup says of one lineage, but for its receipts.

    `account`, `clients` and `services` are the fields of the accounts, and of the services that ever wrote to the
    lineage, as they lie in the store.
    """

    lineage: str
    account: dict[bytes, bytes]
    clients: dict[str, dict[bytes, bytes]]
    services: dict[bytes, bytes]
    acts: list[Act]


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
        line = _line({"section": value} if isinstance(value, Section) else {"receipt": describe_receipt(value)})
        digest.update(line.encode())
        yield line
    yield _line({"end": digest.hexdigest()})


def sections_of(lines: Iterable[str]) -> list[tuple[Section, list[Receipt]]]:
    """Return what the lines of a backup say of each lineage. Raises CannotRestore for one that is not whole."""
    digest, sections, ended = hashlib.sha256(), list[tuple[Section, list[Receipt]]](), False
    try:
        for number, line in enumerate(lines):
            value = msgspec.json.decode(line)
            if ended or (number == 0 and value.get("format") != _FORMAT):
                raise CannotRestore(f"this is not a backup of a ledger in the format {_FORMAT!r}")
            if "end" in value:
                ended = value["end"] == digest.hexdigest()
                if not ended:
                    break
            elif "section" in value:
                sections.append((msgspec.convert(value["section"], Section), []))
            elif "receipt" in value:
                sections[-1][1].append(receipt_from(value["receipt"]))
            digest.update(line.encode())
        if not ended:
            raise CannotRestore("the backup is cut short or was altered")
        for section, receipts in sections:
            _check(section, receipts)
    except (msgspec.MsgspecError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise CannotRestore(f"the backup cannot be read: {error}") from error
    return sections


def _check(section: Section, receipts: Iterable[Receipt]) -> None:
    books = Books(section.lineage, section.acts)
    for receipt in receipts:
        books.enter(receipt)
    flaws = flaws_of(section, books)
    if flaws:
        raise CannotRestore(f"the backup of lineage {section.lineage} is not whole: {flaws[0]}")


def _line(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode() + "\n"
