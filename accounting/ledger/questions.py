"""Who paid for each question of a lineage, in a temporary file: there may be more of them than memory holds.

Whatever is said of a question is noted as it comes, and looked at question by question, in the order that SQLite sorts
the notes into. Promises: memory is bounded, however many there are; the files have no names, lie in the folder for
temporary files (`TMPDIR`), and are gone with the process.
"""

import errno
import itertools
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any
from weakref import finalize

from dpserve.accounting.ledger.receipts import QUESTION, Numbers, Receipt, account_subject

_PAID, _LATE, _FIRST, _LATER = range(4)
"""The kinds of notes on a question: a payment; one that came meanwhile; and in the store, who paid first, and later."""

_TO_LINEAGE, _TO_GROUP, _TO_CLIENT = range(3)
"""The accounts that a receipt may not charge for a question."""

_SCRIPT = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA temp_store = FILE;
PRAGMA cache_size = -16000;
CREATE TABLE paid (question BLOB, payment INTEGER, receipt INTEGER);
CREATE TABLE noted (question BLOB, kind INTEGER, who INTEGER);
CREATE TABLE owner (number INTEGER PRIMARY KEY, payment INTEGER);
CREATE TABLE free (receipt INTEGER, account INTEGER, questions INTEGER);
"""
_SORT = """
CREATE TABLE sorted AS SELECT question, payment, receipt FROM paid ORDER BY question, rowid;
DROP TABLE paid;
ALTER TABLE sorted RENAME TO paid;
"""
_SORTED = "SELECT question, payment, receipt FROM paid ORDER BY rowid"
_WRONG = "SELECT receipt FROM free GROUP BY receipt, account HAVING sum(questions) != 0 ORDER BY receipt"
_ODD = """
SELECT question, kind, who FROM (
    SELECT question, 0 AS kind, payment AS who, rowid AS place FROM paid
    UNION ALL SELECT question, kind, who, rowid FROM noted
) WHERE question IN (
    SELECT question FROM (
        SELECT question, 0 AS kind, payment FROM paid
        UNION ALL SELECT question, kind, payment FROM noted LEFT JOIN owner ON kind = 2 AND number = who
    ) GROUP BY question HAVING NOT (
        count(*) = 2 AND sum(kind) = 2 AND count(payment) = 2 AND min(payment) = max(payment)
    )
) ORDER BY question, kind, place
"""
"""The notes on all questions but those that were paid for once, and of which the store says so."""
_AT_ONCE = 1000
_SHOWN = 5
_LARGEST = 2**31

Payment = tuple[str, str]
"""The client who first paid for a question, and its group: empty texts for the lineage alone, and for no group."""

_Row = tuple[bytes, int, int]


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


class _File(sqlite3.Connection):
    """A database whose errors, as of a full disk, are OSErrors that name the folder for temporary files."""

    def execute(self, *statement: Any) -> sqlite3.Cursor:
        return _on_disk(super().execute, *statement)

    def executemany(self, *statement: Any) -> sqlite3.Cursor:
        return _on_disk(super().executemany, *statement)

    def executescript(self, *statement: Any) -> sqlite3.Cursor:
        return _on_disk(super().executescript, *statement)


def _on_disk(run: Callable[..., sqlite3.Cursor], *statement: Any) -> sqlite3.Cursor:
    try:
        return run(*statement)
    except sqlite3.OperationalError as error:
        number = errno.ENOSPC if error.sqlite_errorcode == sqlite3.SQLITE_FULL else errno.EIO
        raise OSError(number, str(error), tempfile.gettempdir()) from error


class PaidQuestions:
    """The questions that a lineage's receipts paid for: enter the receipts, and `settle`. All raise OSError.

    Then `count` is how many questions there are, and `wrong` the receipts that charge a question to other accounts than
    those that had not paid for it.
    """

    def __init__(self) -> None:
        """Open an empty file."""
        self.count = 0
        self.wrong = WrongReceipts()
        self._file = sqlite3.connect("", check_same_thread=False, factory=_File)
        finalize(self, self._file.close)
        self._file.executescript(_SCRIPT)
        self._paid: list[_Row] = []
        self._noted: list[_Row] = []
        self._free: list[tuple[int, int, int]] = []
        self._payments: dict[Payment, int] = {}
        self._owners: dict[bytes, int] = {}
        self._subjects: dict[str, int] = {}
        self._later: Counter[str] = Counter()
        self._has_odd_first = False
        self._odd: set[str] = set()

    # Entering

    def enter(self, receipt: Receipt) -> None:
        """Enter what a receipt paid for; the oldest first. Raises ValueError for what none can hold."""
        sequence, questions, payment = receipt.sequence, receipt.questions, self._payment(receipt.client, receipt.group)
        if not 0 <= sequence < 2**63:
            raise ValueError("a receipt has a number that none can have")
        for question in questions:
            if len(question) != QUESTION:
                raise ValueError(f"a question does not have {QUESTION} bytes")
            self._paid.append((question, payment, sequence))
        length = len(questions)
        if receipt.lineage_questions != length:
            self._free.append((sequence, _TO_LINEAGE, _small(length - receipt.lineage_questions)))
        if receipt.group_questions != length and receipt.group and receipt.client:
            self._free.append((sequence, _TO_GROUP, _small(length - receipt.group_questions)))
        if receipt.group_questions and not receipt.group:
            self._free.append((sequence, _TO_GROUP, 1))  # of no group, so that nothing evens it out
        if len(self._paid) >= _AT_ONCE:
            self._write()

    def enter_late(self, receipts: Iterable[Receipt]) -> None:
        """Enter receipts that came meanwhile: they explain what a store has more."""
        for receipt in receipts:
            payment = self._payment(receipt.client, receipt.group)
            self._note([(question, _LATE, payment) for question in receipt.questions])

    def _payment(self, client: str, group: str) -> int:
        return self._payments.setdefault((client, group), len(self._payments))

    def _note(self, rows: Iterable[_Row]) -> None:
        self._noted += rows
        if len(self._noted) >= _AT_ONCE:
            self._write()

    def _write(self) -> None:
        for table, rows in (("paid", self._paid), ("noted", self._noted), ("free", self._free)):
            self._file.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)  # noqa: S608 - one of three names
            rows.clear()

    # What a store holds

    def note_first(self, questions: Mapping[bytes, bytes]) -> None:
        """Note questions of the store's hash, each with the numbers of who it says paid for it first."""
        right = {question: owners for question, owners in questions.items() if len(question) == QUESTION}
        self._has_odd_first |= len(right) != len(questions)
        number = self._owners.setdefault
        self._note((question, _FIRST, number(owners, len(self._owners))) for question, owners in right.items())

    def note_later(self, subject: str, questions: Iterable[bytes]) -> None:
        """Note questions of the store's set of what a client or group paid for later."""
        given = list(questions)
        right = [question for question in given if len(question) == QUESTION]
        if len(right) != len(given):
            self._odd.add(subject)
        number = self._subjects.setdefault(subject, len(self._subjects))
        self._note((question, _LATER, number) for question in right)

    # Settling

    def settle(self) -> None:
        """Compute `count`, `count_later` and `wrong` of the receipts that were entered."""
        self._write()
        self._file.executescript(_SORT)
        self.count, payments = 0, list(self._payments)
        for rows in self._by_question():
            self.count += 1
            if len(rows) > 1:
                paid = [payments[payment] for _, payment, _ in rows]
                self._later.update(_later_payers(paid))
                for place, (_, _, receipt) in enumerate(rows):
                    self._free += [(receipt, account, -1) for account in _free_accounts(paid, place)]
            if len(self._free) >= _AT_ONCE:
                self._write()
        self._write()
        wrong = [receipt for (receipt,), _ in itertools.groupby(self._file.execute(_WRONG))]
        self.wrong = WrongReceipts(len(wrong), wrong[:_SHOWN])

    def _by_question(self) -> Iterator[list[_Row]]:
        """Yield the payments for each question, as they came, once they are sorted."""
        rows = list[_Row]()
        for row in self._file.execute(_SORTED):
            if rows and row[0] != rows[0][0]:
                yield rows
                rows = []
            rows.append(row)
        if rows:
            yield rows

    def count_later(self, subject: str) -> int:
        """Return how many questions a client or group paid for after somebody else."""
        return self._later[subject]

    def paid_first(self) -> Iterator[list[tuple[bytes, Payment]]]:
        """Yield the questions with who first paid for them, some at a time."""
        payments = list(self._payments)
        firsts = ((rows[0][0], payments[rows[0][1]]) for rows in self._by_question())
        while some := list(itertools.islice(firsts, _AT_ONCE)):
            yield some

    def paid_later(self) -> Iterator[dict[str, list[bytes]]]:
        """Yield the questions that clients and groups paid for after somebody else, some at a time, by subject."""
        payments = list(self._payments)
        repeated = (rows for rows in self._by_question() if len(rows) > 1)
        while some := list(itertools.islice(repeated, _AT_ONCE)):
            found: dict[str, list[bytes]] = {}
            for rows in some:
                for subject in _later_payers([payments[payment] for _, payment, _ in rows]):
                    found.setdefault(subject, []).append(rows[0][0])
            yield found

    def payers(self, questions: Iterable[bytes]) -> dict[bytes, set[str]]:
        """Return of each of these questions, if it was paid for, the clients who did; an empty name: the lineage."""
        wanted, payments, found = set(questions), list(self._payments), dict[bytes, set[str]]()
        for question, payment, _ in self._file.execute(_SORTED) if wanted else ():
            if question in wanted:
                found.setdefault(question, set()).add(payments[payment][0])
        return found

    def compare(self, numbers: Numbers) -> Agreement:
        """Compare what was noted of the store with what was paid for, in receipts that came late or before.

        numbers: those by which the store names clients and groups.
        """
        self._write()
        owners = [self._owner(text, numbers) for text in self._owners]
        self._file.execute("DELETE FROM owner")
        self._file.executemany("INSERT INTO owner VALUES (?, ?)", enumerate(owners))
        payments, subjects = list(self._payments), list(self._subjects)
        is_first_right, wrong = not self._has_odd_first, set(self._odd)
        for _, rows in itertools.groupby(self._file.execute(_ODD), key=itemgetter(0)):
            noted: tuple[list[int], ...] = [], [], [], []
            for _, kind, who in rows:
                noted[kind].append(who)
            paid, late, first, later = noted
            expected, stored = set(paid[:1]), {owners[number] for number in first}
            odd = {None if payment is None else payments[payment][0] for payment in stored - expected}
            is_first_right &= expected <= stored and odd <= {payments[payment][0] for payment in late}
            right, its = _later_payers([payments[payment] for payment in paid]), {subjects[one] for one in later}
            came = {subject for payment in late for subject in _subjects_of(payments[payment])}
            wrong |= (right - its) | (its - right - came)
        return Agreement(is_first_right, frozenset(wrong))

    def _owner(self, text: bytes, numbers: Numbers) -> int | None:
        """Return the number of the payment that the store's text for who first paid stands for; None for none."""
        client, _, group = text.partition(b" ")
        clients, groups = numbers["client"], numbers["group"]
        known = client in clients and (not group or group in groups)
        return self._payment(clients[client], groups[group] if group else "") if known else None


def _subjects_of(payment: Payment) -> set[str]:
    """Return the accounts of a payment within the lineage's, which alone pays for what has no client."""
    client, group = payment
    subjects = {account_subject("client", client)} if client else set[str]()
    return subjects | {account_subject("group", group)} if client and group else subjects


def _later_payers(paid: Sequence[Payment]) -> set[str]:
    """Return the clients and groups among the payments for a question that are not those of the first."""
    subjects = [_subjects_of(payment) for payment in paid]
    return set[str]().union(*subjects[1:]) - subjects[0] if subjects else set()


def _free_accounts(paid: Sequence[Payment], place: int) -> list[int]:
    """Return the accounts that had paid for a question before a payment."""
    if not place:
        return []
    (client, group), before = paid[place], paid[:place]
    free = [_TO_LINEAGE]
    if not client or any(earlier == client for earlier, _ in before):
        free.append(_TO_CLIENT)
    if client and group and any(earlier and own == group for earlier, own in before):
        free.append(_TO_GROUP)
    return free


def _small(count: int) -> int:
    """Return a count, or the nearest one that a sum of many cannot overflow."""
    return max(-_LARGEST, min(count, _LARGEST))
