"""Pages of what is new in a ledger since a position: the audit trail and the receipts, to be shipped as they come.

Promises: from one position on, every act and every receipt comes once, in the order of its lineage's chain, or a line
of the kind `archived` says which receipts were archived before they came; and in memory that grows with the accounts
of a lineage and not with its receipts. A store that lost what was shipped before (a restored backup) begins another
history, whose lines come from the first one on: nothing that was put back under another number is left out, and no
two lines have the same lineage, history, chain and number.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import msgspec
from msgspec import Struct, structs

from accounting.budgets import Budget
from accounting.ledger.accounts import Accounts, reading
from accounting.ledger.errors import LedgerDamaged, LedgerUnavailable, UnknownLineage
from accounting.ledger.export import described_acts, described_receipt
from accounting.ledger.receipts import GENESIS, Act, Receipt, account_subject
from accounting.ledger.values import LineageAccount

Chain = Literal["acts", "receipts"]

_PAGE = 200


class Place(Struct, frozen=True, omit_defaults=True):
    """The newest act and receipt that came of a lineage: their numbers and their SHA-256 in hexadecimal.

    `history` counts the times that the store held something else than what came before, from 1 on.
    """

    history: int = 1
    act: int = 0
    act_hash: str = GENESIS.hex()
    receipt: int = 0
    receipt_hash: str = ""


class Position(Struct, frozen=True):
    """The places in all lineages, by name."""

    lineages: dict[str, Place] = {}

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """Read what `encoding` wrote. Raises ValueError."""
        return msgspec.json.decode(text, type=cls, strict=True)

    @property
    def encoding(self) -> bytes:
        """The position as a line of JSON."""
        return msgspec.json.encode(self) + b"\n"


@dataclass(frozen=True)
class Page:
    """Some lines, each an object under the names of `export.COLUMNS` and its place, and the position after them."""

    lines: Sequence[dict[str, Any]]
    position: Position


class Follower:
    """Reads what is new in a ledger, page by page."""

    def __init__(self, ledger: Accounts, position: Position, lineages: Sequence[str] = ()) -> None:
        """Go on from `position`, in these lineages, or in all that the ledger has at the time."""
        self._ledger = ledger
        self._places = dict(position.lineages)
        self._chosen = list(lineages)
        self._budgets: dict[str, dict[str, Budget]] = {}

    async def pages(self) -> AsyncIterator[Page]:
        """Yield all that is new now, in pages of a bounded size.

        Raises LedgerDamaged where a chain is not whole, LedgerUnavailable, and that, too, once all others came,
        for a lineage that came before and that the store does not have.
        """
        listed = self._chosen or await self._ledger.lineage_names()
        missing = [name for name in self._places if name not in listed and not self._chosen]
        for lineage in listed:
            try:
                account = await self._ledger.lineage_or_closed(lineage)
            except UnknownLineage:
                missing += [lineage] if lineage in self._places or self._chosen else []
                continue  # listed, and never opened
            async for lines in self._new_in(lineage, account):
                yield Page(lines, Position(dict(self._places)))
        if missing:
            raise LedgerUnavailable(f"the store has no lineage {', '.join(sorted(missing))}")

    async def _new_in(self, lineage: str, account: LineageAccount) -> AsyncIterator[list[dict[str, Any]]]:
        place = self._places.get(lineage, Place())
        if not await self._is_there(lineage, account, place):
            place = Place(history=place.history + 1)
            self._budgets.pop(lineage, None)
        budgets = self._budgets.get(lineage)
        if budgets is None:
            budgets = {}
            async for acts in self._acts(lineage, 0, GENESIS, place.act):
                with reading(lineage):
                    list(described_acts(acts, budgets))
            self._budgets[lineage] = budgets
        async for acts in self._acts(lineage, place.act, bytes.fromhex(place.act_hash), account.newest_act):
            with reading(lineage):
                lines = [_line(lineage, place, "acts", each) for each in described_acts(acts, budgets)]
            place = structs.replace(place, act=acts[-1].sequence, act_hash=acts[-1].hash.hex())
            self._places[lineage] = place
            yield lines
        if place.receipt < account.archived:
            yield [_gap(lineage, place, account.archived)]
            place = structs.replace(place, receipt=account.archived, receipt_hash="")
            self._places[lineage] = place
        async for receipts in self._receipts(lineage, place.receipt, account.newest_receipt):
            with reading(lineage):
                described = [(each, described_receipt(each, budgets.get(_payer(each)))) for each in receipts]
            lines = [_line(lineage, place, "receipts", each) for _, each in described]
            place = structs.replace(place, receipt=receipts[-1].sequence, receipt_hash=receipts[-1].hash.hex())
            self._places[lineage] = place
            yield lines

    async def _is_there(self, lineage: str, account: LineageAccount, place: Place) -> bool:
        """Return whether the store still has the newest act and the newest receipt that came."""
        if account.newest_act < place.act or account.newest_receipt < place.receipt:
            return False
        if place.act:
            acts = await self._ledger.acts(lineage, after=place.act - 1, count=1)
            if not acts or (acts[0].sequence, acts[0].hash.hex()) != (place.act, place.act_hash):
                return False
        if place.receipt > account.archived:  # of what was archived the acts say so
            receipts = await self._ledger.receipts(lineage, after=place.receipt - 1, count=1)
            newest = (receipts[0].sequence, receipts[0].hash.hex()) if receipts else None
            return newest == (place.receipt, place.receipt_hash)
        return True

    async def _acts(self, lineage: str, after: int, before: bytes, upto: int) -> AsyncIterator[list[Act]]:
        while after < upto:
            acts = await self._ledger.acts(lineage, after=after, count=min(_PAGE, upto - after))
            for act in acts:
                after += 1
                if act.sequence != after or not act.follows(before):
                    raise LedgerDamaged(lineage, f"act {after} does not follow from the one before it")
                before = act.hash
            if not acts:
                raise LedgerDamaged(lineage, f"act {after + 1} is missing")
            yield acts

    async def _receipts(self, lineage: str, after: int, upto: int) -> AsyncIterator[list[Receipt]]:
        while after < upto:
            receipts = await self._ledger.receipts(lineage, after=after, count=min(_PAGE, upto - after))
            if after < (await self._ledger.lineage_or_closed(lineage)).archived:
                return  # while they were read: the next look says so
            for receipt in receipts:
                after += 1
                if receipt.sequence != after:
                    raise LedgerDamaged(lineage, f"receipt {after} is missing")
            if not receipts:
                raise LedgerDamaged(lineage, f"receipt {after + 1} is missing")
            yield receipts


def _gap(lineage: str, place: Place, archived: int) -> dict[str, Any]:
    """Return the line for receipts that were archived before they came."""
    where = {"lineage": lineage, "history": place.history, "chain": "receipts"}
    return where | {"kind": "archived", "number": archived, "detail": {"after": place.receipt, "receipts": archived}}


def _payer(receipt: Receipt) -> str:
    return account_subject("client", receipt.client) if receipt.client else "lineage"


def _line(lineage: str, place: Place, chain: Chain, described: dict[str, Any]) -> dict[str, Any]:
    where = {"lineage": lineage, "history": place.history, "chain": chain}
    return where | {name: value for name, value in described.items() if value not in (None, "", {})}
