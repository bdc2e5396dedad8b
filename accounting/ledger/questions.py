"""Who paid for each question of a lineage, in temporary files: there may be more of them than memory holds.

Payments are written down as they come, in parts by the first bits of their questions, and compared part by part: within
one, all payments for a question lie beside each other once they are sorted. That reads and writes each of them a few
times, however many there are, where a table on disk would be searched for each.

Promises: one part, of a bounded size, is in memory at a time, beside a tenth of a byte for each payment; the files have
no names, lie in the folder for temporary files (`TMPDIR`), and are gone with the process.
"""

import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from accounting.ledger.receipts import QUESTION, Numbers, Receipt, account_subject

_ROWS_IN_A_BLOCK = 65_536
_ROWS_IN_A_PART = 400_000
_PART_BITS = 8
_RECEIPTS_IN_A_PART = 2**20
_SHOWN = 5

_QUESTION = [("high", "<u8"), ("low", "<u8")]
_PAYMENT = np.dtype([*_QUESTION, ("payment", "<u4"), ("receipt", "<u8")])
_STORED = np.dtype([*_QUESTION, ("payer", "<u4")])
_COUNT = np.dtype([("receipt", "<u8"), ("what", "u1"), ("amount", "<i4")])

_FREE_TO_LINEAGE, _FREE_TO_GROUP, _FREE_TO_CLIENT = range(3)
"""The kinds of rows of `_COUNT`: questions of a receipt that its lineage, group or client is not charged for."""

_Rows = NDArray[Any]

Payment = tuple[str, str]
"""The client who first paid for a question, and its group: empty texts for the lineage alone, and for no group."""


class _Spool:
    """Rows in a temporary file without a name, each in a numbered part."""

    def __init__(self, kind: np.dtype[Any]) -> None:
        self._kind = kind
        self._file = -1
        self._size = 0
        self._blocks: dict[int, array[int]] = {}
        self._counts: dict[int, int] = {}

    @property
    def parts(self) -> list[int]:
        """The numbers of the parts that have rows, in order."""
        return sorted(self._counts)

    def count(self, part: int) -> int:
        """Return how many rows a part has."""
        return self._counts.get(part, 0)

    def append(self, rows: _Rows, parts: _Rows) -> None:
        """Add rows. parts: the number of the part of each."""
        if self._file < 0:
            self._file = _nameless_file()
            finalize(self, os.close, self._file)
        order = np.argsort(parts, kind="stable")
        data, place = rows[order].tobytes(), self._size
        while data:
            written = os.pwrite(self._file, data, place)
            data, place = data[written:], place + written
        numbers, counts = np.unique(parts, return_counts=True)
        for part, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self._blocks.setdefault(part, array("Q")).extend((self._size, count))
            self._counts[part] = self._counts.get(part, 0) + count
            self._size += count * self._kind.itemsize

    def blocks(self, part: int) -> Iterator[_Rows]:
        """Yield the rows of a part in blocks of bounded size, in the order in which they came."""
        places = self._blocks.get(part, array("Q"))
        for start, count in zip(places[::2], places[1::2], strict=True):
            yield np.frombuffer(os.pread(self._file, count * self._kind.itemsize, start), self._kind)


def _nameless_file() -> int:
    file, path = tempfile.mkstemp(prefix="dpserve-")
    Path(path).unlink()
    return file


class _Questions(_Spool):
    """Rows that begin with a question, in parts by its first bits, each in as many slices as it needs."""

    def __init__(self, kind: np.dtype[Any]) -> None:
        super().__init__(kind)
        self._waiting: list[_Rows] = []
        self._waiting_rows = 0

    def append_rows(self, rows: _Rows) -> None:
        """Add rows."""
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        if self._waiting_rows >= _ROWS_IN_A_BLOCK:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if self._waiting_rows:
            rows = np.concatenate(self._waiting)
            self.append(rows, rows["high"] >> np.uint64(64 - _PART_BITS))
        self._waiting, self._waiting_rows = [], 0

    def rows(self, part: int, bits: int, number: int) -> _Rows:
        """Return the rows of a part whose questions go on with this number of so many bits, in order."""
        found = []
        for block in self.blocks(part):
            following = (block["high"] << np.uint64(_PART_BITS)) >> np.uint64(max(64 - bits, 1))
            found.append(block[following == number] if bits else block)
        return np.concatenate(found) if found else np.zeros(0, self._kind)


@dataclass
class _Part:
    """The payments for some of the questions, in the order of the questions, and of one question as they came."""

    rows: _Rows
    clients: _Rows
    groups: _Rows
    is_first: _Rows
    """Whether a payment is the first for its question; so `is_first_of_client` and `is_first_of_group`."""
    is_first_of_client: _Rows
    is_first_of_group: _Rows
    first: _Rows
    """The place of the first payment for the same question."""

    def later(self, numbers: _Rows, is_first_of_its: _Rows) -> tuple[_Rows, _Rows]:
        """Return the rows by which a client or group paid after another, and its number in each.

        numbers: of the client or the group of each row.
        """
        later = np.flatnonzero(is_first_of_its & (numbers > 0) & (numbers[self.first] != numbers))
        return self.rows[later], numbers[later]


@dataclass(frozen=True)
class Agreement:
    """Whether a store takes those questions for paid for that the receipts paid for."""

    is_first_right: bool
    """Whether that holds of who paid for a question first."""
    wrong: frozenset[str]
    """The clients and groups (`account_subject`) whose later payments differ."""


@dataclass
class WrongReceipts:
    """The number of receipts that charge a question to the wrong accounts, and the numbers of the first of them."""

    count: int = 0
    first: list[int] = field(default_factory=list)


class PaidQuestions:
    """The questions that a lineage's receipts paid for: enter the receipts, and `settle`.

    Then `count` is how many questions there are, and `wrong` the receipts that charge a question to other accounts than
    those that had not paid for it.
    """

    def __init__(self) -> None:
        """Make empty files."""
        self.count = 0
        self.wrong = WrongReceipts()
        self._payments = _Questions(_PAYMENT)
        self._late = _Questions(_PAYMENT)
        self._stored_first = _Questions(_STORED)
        self._stored_later = _Questions(_STORED)
        self._counts = _Spool(_COUNT)
        self._has_odd_first = False
        self._odd: set[str] = set()
        self._clients: dict[str, int] = {"": 0}
        self._groups: dict[str, int] = {"": 0}
        self._pairs: dict[Payment, int] = {}
        self._of_pairs: list[tuple[int, int]] = []
        self._owners: dict[bytes, int] = {}
        self._subjects: dict[str, int] = {}
        self._later: dict[str, int] = {}
        self._waiting: list[tuple[bytes, int, int, int]] = []
        self._waiting_rows = 0
        self._free: list[tuple[int, int, int]] = []

    # Entering

    def enter(self, receipt: Receipt) -> None:
        """Enter what a receipt paid for; the oldest first. Raises ValueError for a question of another length."""
        questions, pair = receipt.questions, self._pair(receipt.client, receipt.group)
        length, sequence = len(questions), receipt.sequence
        self._waiting.append((b"".join(questions), length, sequence, pair))
        if receipt.lineage_questions != length:
            self._free.append((sequence, _FREE_TO_LINEAGE, _small(length - receipt.lineage_questions)))
        if receipt.group_questions != length and receipt.group and receipt.client:
            self._free.append((sequence, _FREE_TO_GROUP, _small(length - receipt.group_questions)))
        if receipt.group_questions and not receipt.group:
            self._free.append((sequence, _FREE_TO_GROUP, 1))  # of no group, so that nothing evens it out
        self._waiting_rows += length
        if self._waiting_rows >= _ROWS_IN_A_BLOCK:
            self._write_waiting(self._payments)

    def enter_late(self, receipts: Iterable[Receipt]) -> None:
        """Enter receipts that came meanwhile: they explain what a store has more."""
        self._write_waiting(self._payments)
        for receipt in receipts:
            row = b"".join(receipt.questions), len(receipt.questions), receipt.sequence
            self._waiting.append((*row, self._pair(receipt.client, receipt.group)))
        self._write_waiting(self._late)

    def _pair(self, client: str, group: str) -> int:
        payment = client, group
        number = self._pairs.get(payment)
        if number is None:
            number = self._pairs[payment] = len(self._of_pairs)
            own = self._clients.setdefault(client, len(self._clients))
            # The lineage alone pays for what has no client, whatever group it names.
            self._of_pairs.append((own, self._groups.setdefault(group, len(self._groups)) if client else 0))
        return number

    def _write_waiting(self, spool: _Questions) -> None:
        if not self._waiting:
            return
        packed, lengths, sequences, pairs = zip(*self._waiting, strict=True)
        self._waiting, self._waiting_rows = [], 0
        if not 0 <= min(sequences) <= max(sequences) < 2**63:
            raise ValueError("a receipt has a number that none can have")
        if self._free:
            self._count(np.array(self._free, _COUNT))
            self._free = []
        rows = _question_rows(b"".join(packed), sum(lengths), _PAYMENT)
        rows["payment"] = np.repeat(np.array(pairs, np.uint32), lengths)
        rows["receipt"] = np.repeat(np.array(sequences, np.uint64), lengths)
        spool.append_rows(rows)

    def _count(self, rows: _Rows) -> None:
        self._counts.append(rows, rows["receipt"] // np.uint64(_RECEIPTS_IN_A_PART))

    # What a store holds

    def note_first(self, questions: Mapping[bytes, bytes]) -> None:
        """Note questions of the store's hash, each with the numbers of who it says paid for it first."""
        right = {question: owners for question, owners in questions.items() if len(question) == QUESTION}
        self._has_odd_first |= len(right) != len(questions)
        payers = [self._owners.setdefault(owners, len(self._owners)) for owners in right.values()]
        rows = _question_rows(b"".join(right), len(right), _STORED)
        rows["payer"] = payers
        self._stored_first.append_rows(rows)

    def note_later(self, subject: str, questions: Iterable[bytes]) -> None:
        """Note questions of the store's set of a client or group (`account_subject`)."""
        given = list(questions)
        right = [question for question in given if len(question) == QUESTION]
        if len(right) != len(given):
            self._odd.add(subject)
        rows = _question_rows(b"".join(right), len(right), _STORED)
        rows["payer"] = self._subjects.setdefault(subject, len(self._subjects))
        self._stored_later.append_rows(rows)

    # Settling

    def settle(self) -> None:
        """Compute `count`, `count_later` and `wrong` of the receipts that were entered."""
        self._write_waiting(self._payments)
        self.count, later = 0, {"client": np.zeros(0, np.int64), "group": np.zeros(0, np.int64)}
        for part in self._parts():
            self.count += int(np.count_nonzero(part.is_first))
            later = {scope: _added(later[scope], numbers) for scope, (_, numbers) in _later_of(part).items()}
            self._count_free(part)
        self._later = {}
        for scope, names in (("client", self._clients), ("group", self._groups)):
            self._later |= {
                account_subject(scope, name): int(later[scope][number])
                for name, number in names.items()
                if number < len(later[scope])
            }
        self.wrong = self._wrong_receipts()

    def _count_free(self, part: _Part) -> None:
        """Count the questions that receipts pay for though their accounts have."""
        free = {
            _FREE_TO_LINEAGE: ~part.is_first,
            _FREE_TO_GROUP: ~part.is_first_of_group & (part.groups > 0),
            _FREE_TO_CLIENT: np.where(part.clients > 0, ~part.is_first_of_client, ~part.is_first),
        }
        for what, those in free.items():
            if those.any():
                rows = np.zeros(int(np.count_nonzero(those)), _COUNT)
                rows["receipt"], rows["what"], rows["amount"] = part.rows["receipt"][those], what, -1
                self._count(rows)

    def _wrong_receipts(self) -> WrongReceipts:
        wrong = WrongReceipts()
        for number in self._counts.parts:
            sums = np.zeros((3, _RECEIPTS_IN_A_PART), np.int64)
            for rows in self._counts.blocks(number):
                np.add.at(sums, (rows["what"], rows["receipt"] % np.uint64(_RECEIPTS_IN_A_PART)), rows["amount"])
            found = np.flatnonzero(sums.any(axis=0))
            wrong.count += len(found)
            shown = found[: max(0, _SHOWN - len(wrong.first))] + number * _RECEIPTS_IN_A_PART
            wrong.first += shown.tolist()
        return wrong

    def count_later(self, subject: str) -> int:
        """Return how many questions a client or group paid for after somebody else."""
        return self._later.get(subject, 0)

    def paid_first(self) -> Iterator[list[tuple[bytes, Payment]]]:
        """Yield the questions with who first paid for them, some at a time."""
        pairs = list(self._pairs)
        for part in self._parts():
            rows = part.rows[part.is_first]
            yield [
                (question, pairs[pair]) for question, pair in zip(_packed(rows), rows["payment"].tolist(), strict=True)
            ]

    def paid_later(self) -> Iterator[dict[str, list[bytes]]]:
        """Yield the questions that clients and groups paid for after somebody else, some at a time, by subject."""
        for part in self._parts():
            found: dict[str, list[bytes]] = {}
            for scope, (rows, numbers) in _later_of(part).items():
                names = list(self._clients if scope == "client" else self._groups)
                for question, number in zip(_packed(rows), numbers.tolist(), strict=True):
                    found.setdefault(account_subject(scope, names[number]), []).append(question)
            yield found

    def payers(self, questions: Iterable[bytes]) -> dict[bytes, set[str]]:
        """Return of each of these questions, if it was paid for, the clients who did; an empty name: the lineage."""
        wanted = set(questions)
        highs = np.frombuffer(b"".join(question[:8] for question in wanted), ">u8").astype(np.uint64)
        names, found = list(self._clients), dict[bytes, set[str]]()
        for part in self._parts() if wanted else ():
            some = np.flatnonzero(np.isin(part.rows["high"], highs))
            for question, client in zip(_packed(part.rows[some]), part.clients[some].tolist(), strict=True):
                if question in wanted:
                    found.setdefault(question, set()).add(names[client])
        return found

    def compare(self, numbers: Numbers) -> Agreement:
        """Compare what was noted of the store with what was paid for, in receipts that came late or before.

        numbers: those by which the store names clients and groups.
        """
        self._write_waiting(self._payments)
        of_owners = np.array([self._owner(text, numbers) for text in self._owners], np.int64)
        first_right, wrong = not self._has_odd_first, set(self._odd)
        subjects = {scope: self._numbers_of_subjects(scope) for scope in ("client", "group")}
        for part, stored_first, stored_later, late in self._slices():
            expected = part.rows[part.is_first]
            explained = _columns(late["high"], late["low"], self._numbers(late, 0))
            odd, lacking = _differences(
                _columns(stored_first["high"], stored_first["low"], of_owners[stored_first["payer"]]),
                _columns(expected["high"], expected["low"], expected["payment"]),
            )
            clients = [self._of_pairs[pair][0] if pair >= 0 else -1 for pair in odd[:, 2].astype(np.int64).tolist()]
            odd = _columns(odd[:, 0], odd[:, 1], np.array(clients, np.int64))
            first_right = first_right and not len(lacking) and not len(_without(odd, explained))
            for place, (scope, (rows, own)) in enumerate(_later_of(part).items()):
                whose = subjects[scope][stored_later["payer"]]
                its = stored_later[whose > 0]
                odd, lacking = _differences(
                    _columns(its["high"], its["low"], whose[whose > 0]), _columns(rows["high"], rows["low"], own)
                )
                odd = _without(odd, _columns(late["high"], late["low"], self._numbers(late, place)))
                names = list(self._clients if scope == "client" else self._groups)
                for one in (odd, lacking):
                    wrong |= {account_subject(scope, names[number]) for number in np.unique(one[:, 2]).tolist()}
        return Agreement(first_right, frozenset(wrong))

    def _owner(self, text: bytes, numbers: Numbers) -> int:
        """Return the number of the payment that the store's text for who first paid stands for; -1 for none."""
        client, _, group = text.partition(b" ")
        clients, groups = numbers["client"], numbers["group"]
        known = client in clients and (not group or group in groups)
        return self._pair(clients[client], groups[group] if group else "") if known else -1

    def _numbers_of_subjects(self, scope: str) -> _Rows:
        """Return the numbers of the subjects of this scope, by their own; 0 for others."""
        names = self._clients if scope == "client" else self._groups
        found = np.zeros(len(self._subjects), np.int64)
        for subject, place in self._subjects.items():
            kind, _, name = subject.partition(":")
            if kind == scope:
                found[place] = names.setdefault(name, len(names))
        return found

    def _numbers(self, rows: _Rows, place: int) -> _Rows:
        """Return the client (place 0) or group (1) of payments."""
        numbers: _Rows = np.array([pair[place] for pair in self._of_pairs] or [0], np.int64)
        return np.take(numbers, rows["payment"])

    def _parts(self) -> Iterator[_Part]:
        self._payments.flush()
        for number in self._payments.parts:
            for slice_ in _slices_of(self._payments.count(number)):
                yield self._part(self._payments.rows(number, *slice_))

    def _slices(self) -> Iterator[tuple[_Part, _Rows, _Rows, _Rows]]:
        spools = self._payments, self._stored_first, self._stored_later, self._late
        for spool in spools:
            spool.flush()
        for number in sorted(set().union(*(spool.parts for spool in spools))):
            for slice_ in _slices_of(max(spool.count(number) for spool in spools)):
                payments, first, later, late = (spool.rows(number, *slice_) for spool in spools)
                yield self._part(payments), first, later, late

    def _part(self, rows: _Rows) -> _Part:
        order = np.argsort(rows["high"], kind="stable")
        rows = rows[order]
        is_first = _begins(rows["high"])
        repeated = np.flatnonzero(~is_first)
        if len(repeated):  # equal halves, and so nearly always equal questions
            those = np.unique(np.concatenate([repeated - 1, repeated]))
            some = rows[those]
            rows[those] = some[np.lexsort((some["low"], some["high"]))]
            is_first = _begins(rows["high"], rows["low"])
        clients, groups = self._numbers(rows, 0), self._numbers(rows, 1)
        run = np.cumsum(is_first) - 1
        first = np.flatnonzero(is_first)[run] if len(rows) else run
        is_first_of = partial(_first_of, run, np.flatnonzero(~is_first))
        return _Part(rows, clients, groups, is_first, is_first_of(clients), is_first_of(groups), first)


def _question_rows(packed: bytes, count: int, kind: np.dtype[Any]) -> _Rows:
    if len(packed) != count * QUESTION:
        raise ValueError(f"a question does not have {QUESTION} bytes")
    rows = np.zeros(count, kind)
    both = np.frombuffer(packed, ">u8").reshape(count, 2)
    rows["high"], rows["low"] = both[:, 0], both[:, 1]
    return rows


def _small(count: int) -> int:
    """Return a count, or the nearest one that a row can hold."""
    return max(-(2**31), min(count, 2**31 - 1))


def _packed(rows: _Rows) -> list[bytes]:
    """Return the questions of rows."""
    data = np.stack([rows["high"], rows["low"]], axis=1).astype(">u8").tobytes()
    return [data[at : at + QUESTION] for at in range(0, len(data), QUESTION)]


def _slices_of(count: int) -> Iterator[tuple[int, int]]:
    """Yield how a part of so many rows is cut, so that no slice is too large: a number of bits, and each number."""
    bits = (max(0, count - 1) // _ROWS_IN_A_PART).bit_length()
    yield from ((bits, number) for number in range(2**bits))


def _begins(*columns: _Rows) -> _Rows:
    """Return which rows differ from the one before."""
    found = np.ones(len(columns[0]), np.bool_)
    if len(found):
        found[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return found


def _first_of(run: _Rows, repeated: _Rows, numbers: _Rows) -> _Rows:
    """Return which rows are the first of their number in their run. repeated: those that are not first in a run."""
    found = np.ones(len(run), np.bool_)
    if len(repeated):
        those = np.flatnonzero(np.isin(run, run[repeated]))
        order = those[np.lexsort((numbers[those], run[those]))]  # which leaves equal rows in order
        found[order] = _begins(run[order], numbers[order])
    return found


def _later_of(part: _Part) -> dict[str, tuple[_Rows, _Rows]]:
    return {
        "client": part.later(part.clients, part.is_first_of_client),
        "group": part.later(part.groups, part.is_first_of_group),
    }


def _added(counts: _Rows, numbers: _Rows) -> _Rows:
    """Return counts by number with these numbers counted, too."""
    more = np.bincount(numbers, minlength=len(counts))
    more[: len(counts)] += counts
    return more


def _columns(*columns: _Rows) -> _Rows:
    """Return rows of three whole numbers; a number below 0 is none that another column has."""
    return np.stack([column.astype(np.uint64) for column in columns], axis=1)


def _differences(ones: _Rows, others: _Rows) -> tuple[_Rows, _Rows]:
    """Return the rows that only `ones` has, and those that only `others` has; a row may be there more than once."""
    ones, others = _sorted(ones), _sorted(others)
    if np.array_equal(ones, others):
        return ones[:0], ones[:0]
    return _without(ones, others), _without(others, ones)


def _without(rows: _Rows, others: _Rows) -> _Rows:
    """Return the rows that are not among others, each once."""
    both = np.concatenate([others, rows])
    is_own = np.arange(len(both)) >= len(others)
    order = np.lexsort((is_own, both[:, 2], both[:, 1], both[:, 0]))
    both, is_own = both[order], is_own[order]
    return both[is_own & _begins(*both.T)]


def _sorted(rows: _Rows) -> _Rows:
    """Return different rows in order."""
    rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
    return rows[_begins(*rows.T)]
