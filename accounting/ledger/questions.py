"""Who paid for each question of a lineage, in a table on disk: there may be more of them than memory holds.

Promises: the table takes a bounded part of memory, whatever it holds; its file has no name, lies in the folder for
temporary files (`SQLITE_TMPDIR` or `TMPDIR`), and is gone with the process.
"""

import sqlite3
from collections.abc import Iterator

_CACHE_KIBIBYTES = 65_536
_ROWS_AT_ONCE = 1000

Payment = tuple[str, str]
"""The client who first paid for a question, and its group: empty texts for the lineage alone, and for no group."""


class PaidQuestions:
    """The questions that a lineage's receipts paid for. `count` is how many there are."""

    def __init__(self) -> None:
        """Make an empty table."""
        self.count = 0
        self._payments: list[Payment] = []
        self._numbers: dict[Payment, int] = {}
        self._later: dict[str, int] = {}
        self._subjects: dict[str, int] = {}
        self._table = sqlite3.connect("", isolation_level=None)
        for statement in (
            f"PRAGMA cache_size = -{_CACHE_KIBIBYTES}",
            "PRAGMA journal_mode = OFF",
            "PRAGMA synchronous = OFF",
            "CREATE TABLE first (question BLOB PRIMARY KEY, payment INTEGER, stored INTEGER) WITHOUT ROWID",
            "CREATE TABLE later (subject INTEGER, question BLOB, stored INTEGER, PRIMARY KEY (subject, question)) "
            "WITHOUT ROWID",
            "CREATE TABLE odd (subject INTEGER, question BLOB, PRIMARY KEY (subject, question)) WITHOUT ROWID",
            "BEGIN",
        ):
            self._table.execute(statement)

    def enter(self, question: bytes, payment: Payment) -> Payment | None:
        """Enter who pays for a question; return who paid for it first, or None if nobody did before."""
        number = self._numbers.get(payment)
        if number is None:
            number = self._numbers[payment] = len(self._payments)
            self._payments.append(payment)
        entered = self._table.execute("INSERT OR IGNORE INTO first VALUES (?, ?, 0)", (question, number))
        if entered.rowcount == 1:
            self.count += 1
            return None
        return self.first_payment(question)

    def first_payment(self, question: bytes) -> Payment | None:
        """Return who first paid for a question, or None if nobody did."""
        row = self._table.execute("SELECT payment FROM first WHERE question = ?", (question,)).fetchone()
        return None if row is None else self._payments[row[0]]

    def enter_later(self, subject: str, question: bytes) -> bool:
        """Enter that a client or group paid for a question of another payer; return whether it had not before."""
        row = self._number(subject), question
        entered = self._table.execute("INSERT OR IGNORE INTO later VALUES (?, ?, 0)", row).rowcount == 1
        self._later[subject] = self._later.get(subject, 0) + entered
        return entered

    def count_later(self, subject: str) -> int:
        """Return how many questions a client or group paid for after somebody else."""
        return self._later.get(subject, 0)

    def has_paid_later(self, subject: str, question: bytes) -> bool:
        """Return whether a client or group paid for this question after somebody else."""
        row = self._number(subject), question
        return self._table.execute("SELECT 1 FROM later WHERE subject = ? AND question = ?", row).fetchone() is not None

    def _number(self, subject: str) -> int:
        return self._subjects.setdefault(subject, len(self._subjects))

    def first_payments(self) -> Iterator[tuple[bytes, Payment]]:
        """Yield each question with who first paid for it, in the order of the questions."""
        last = b""
        query = "SELECT question, payment FROM first WHERE question > ? ORDER BY question LIMIT ?"
        while rows := self._table.execute(query, (last, _ROWS_AT_ONCE)).fetchall():
            yield from ((question, self._payments[number]) for question, number in rows)
            last = rows[-1][0]

    def paid_later(self, subject: str) -> Iterator[bytes]:
        """Yield the questions that a client or group paid for after somebody else: what its own set holds."""
        last, number = b"", self._number(subject)
        query = "SELECT question FROM later WHERE subject = ? AND question > ? ORDER BY question LIMIT ?"
        while rows := self._table.execute(query, (number, last, _ROWS_AT_ONCE)).fetchall():
            yield from (question for (question,) in rows)
            last = rows[-1][0]

    # Comparison with what a store holds

    def note_odd(self, subject: str, question: bytes) -> None:
        """Note that the store has a question of this payer which no receipt that was entered paid for."""
        self._table.execute("INSERT OR IGNORE INTO odd VALUES (?, ?)", (self._number(subject), question))

    def explain(self, subject: str, question: bytes) -> None:
        """Forget what `note_odd` noted: a later receipt paid for it."""
        row = self._number(subject), question
        self._table.execute("DELETE FROM odd WHERE subject = ? AND question = ?", row)

    def odd_subjects(self) -> set[str]:
        """Return of whom questions were noted that nothing explains."""
        numbers = {number for (number,) in self._table.execute("SELECT DISTINCT subject FROM odd")}
        return {subject for subject, number in self._subjects.items() if number in numbers}

    def match_first(self, question: bytes, payment: Payment) -> bool:
        """Mark a question as stored; return whether it was first paid for by these."""
        row = question, self._numbers.get(payment, -1)
        query = "UPDATE first SET stored = 1 WHERE question = ? AND payment = ?"
        return self._table.execute(query, row).rowcount == 1

    def match_later(self, subject: str, question: bytes) -> bool:
        """Mark a later payment as stored; return whether there was one."""
        row = self._number(subject), question
        query = "UPDATE later SET stored = 1 WHERE subject = ? AND question = ?"
        return self._table.execute(query, row).rowcount == 1

    def lacks_first(self) -> bool:
        """Return whether a question was not marked as stored."""
        return self._table.execute("SELECT 1 FROM first WHERE stored = 0 LIMIT 1").fetchone() is not None

    def lacks_later(self, subject: str) -> bool:
        """Return whether a later payment of a client or group was not marked as stored."""
        query = "SELECT 1 FROM later WHERE subject = ? AND stored = 0 LIMIT 1"
        return self._table.execute(query, (self._number(subject),)).fetchone() is not None
