"""What a backup of a ledger says: its lines, and whether what it says of a lineage is whole.

A backup is JSON lines: its format, then for each lineage a line with accounts, acts and what was reconciled, and a
line for each receipt; the last one holds the SHA-256 of all lines before it.

Promise: `Balances` finds no flaw only if both chains are whole and end where the account says, and every account has
spent what the receipts say.
"""

import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accounting.ledger import chain
from accounting.ledger.errors import LedgerError
from accounting.ledger.journal import describe_receipt, receipt_from
from accounting.ledger.values import Act, Receipt

_FORMAT = "dpserve ledger backup 2"


class CannotBackUp(LedgerError):
    """The ledger cannot be backed up as it is; one line says why."""


class CannotRestore(LedgerError):
    """The ledger cannot be restored from this; one line says why. Nothing was changed."""


@dataclass(frozen=True)
class Section:
    """What a backup says of one lineage, but for its receipts.

    `account` and `clients` are the fields of the accounts as they lie in the store; `applied` the hashes of the
    receipts that were put back under new numbers, or declared; `services` those that ever wrote to the lineage.
    """

    lineage: str
    account: Mapping[bytes, bytes]
    clients: Mapping[str, Mapping[bytes, bytes]]
    acts: Sequence[Act]
    applied: frozenset[bytes]
    services: frozenset[str]


class Balances:
    """The chains and balances of a section, computed again from receipts that are entered one after the other."""

    def __init__(self, section: Section) -> None:
        """Begin before the first receipt."""
        self._section = section
        self._number, self._head = 0, chain.GENESIS
        self._lineage_spent = 0
        self._spent = Counter[str]()
        self._flaws: list[str] = []

    def enter(self, receipt: Receipt) -> None:
        """Enter the next receipt."""
        follows = receipt.sequence == self._number + 1 and receipt.previous == self._head
        whole = receipt.hash == receipt.hash_from_contents() and receipt.lineage == self._section.lineage
        priced = receipt.price == receipt.cost.picorho and receipt.total == receipt.price * receipt.rows
        if not (follows and whole and priced):
            self._flaws.append(f"receipt {receipt.sequence} was altered, or the one before it is missing")
        self._number, self._head = receipt.sequence, receipt.hash
        self._lineage_spent += receipt.price * receipt.lineage_rows
        if receipt.client:
            self._spent[receipt.client] += receipt.total

    def flaws(self) -> list[str]:
        """Return a line for whatever is wrong; call it after the last receipt."""
        account, clients = self._section.account, self._section.clients
        if (self._number, self._head) != (int(account[b"seq"]), account.get(b"head", chain.GENESIS)):
            self._flaws.append("the newest receipt is not the one that the account holds")
        if int(account[b"spent"]) != self._lineage_spent:
            self._flaws.append("what the lineage has spent is not what its receipts say")
        for name in sorted(clients.keys() | self._spent.keys()):
            if name not in clients or int(clients[name].get(b"spent", b"-1")) != self._spent[name]:
                self._flaws.append(f"what client {name} has spent is not what its receipts say")
        return [*self._flaws, *self._flaws_of_acts()]

    def _flaws_of_acts(self) -> list[str]:
        account, previous, number = self._section.account, chain.GENESIS, 0
        flaws = []
        for number, act in enumerate(self._section.acts, 1):
            if act.sequence != number or act.previous != previous or act.hash != act.hash_from_contents():
                flaws.append(f"act {number} was altered or is missing")
            if act.kind == "add" and act.subject not in self._section.clients:
                flaws.append(f"the account of {act.subject} is lost")
            previous = act.hash
        if (number, previous) != (int(account[b"acts"]), account.get(b"acts_head", chain.GENESIS)):
            flaws.append("the newest act is not the one that the account holds")
        return flaws


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
            elif "lineage" in value:
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
    balances = Balances(section)
    for receipt in receipts:
        balances.enter(receipt)
    flaws = balances.flaws()
    if flaws:
        raise CannotRestore(f"the backup of lineage {section.lineage} is not whole: {flaws[0]}")


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


def _described(section: Section) -> dict[str, Any]:
    return {
        "lineage": section.lineage,
        "account": _as_text(section.account),
        "clients": {name: _as_text(fields) for name, fields in section.clients.items()},
        "acts": [_described_act(act) for act in section.acts],
        "applied": sorted(known.hex() for known in section.applied),
        "services": sorted(section.services),
    }


def _section_from(value: Mapping[str, Any]) -> Section:
    return Section(
        value["lineage"],
        _as_bytes(value["account"]),
        {name: _as_bytes(fields) for name, fields in value["clients"].items()},
        [_act_from(act) for act in value["acts"]],
        frozenset(bytes.fromhex(known) for known in value["applied"]),
        frozenset(value["services"]),
    )


def _as_text(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.hex() for name, value in fields.items()}


def _as_bytes(fields: Mapping[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): bytes.fromhex(value) for name, value in fields.items()}


def _described_act(act: Act) -> dict[str, Any]:
    words = {name: getattr(act, name) for name in ("sequence", "kind", "subject", "detail", "time")}
    return words | {"previous": act.previous.hex(), "hash": act.hash.hex()}


def _act_from(described: Mapping[str, Any]) -> Act:
    hashes = {name: bytes.fromhex(described[name]) for name in ("previous", "hash")}
    return Act(**(dict(described) | hashes))
