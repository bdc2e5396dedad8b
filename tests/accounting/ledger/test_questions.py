"""Who paid for which question, against a plain reckoning in memory."""

import errno
import tempfile
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.accounting.ledger.questions import PaidQuestions
from dpserve.accounting.ledger.receipts import Receipt, charge_terms

from .conftest import COST

TERMS = charge_terms("model", "gaussian", COST)
GROUPS = {"": "", "ann": "", "bob": "team", "cy": "team", "di": "others"}
CLIENTS = {b"%d" % number: name for number, name in enumerate(GROUPS)}
TEAMS = {b"": "", b"1": "team", b"2": "others"}
NUMBERS = {"client": CLIENTS, "group": TEAMS}


def _question(number: int) -> bytes:
    """Few first halves, so that questions meet which differ in the second half alone."""
    return bytes([number % 3 * 100]) * 8 + number.to_bytes(8, "big")


class _Reckoning:
    """The questions that were paid for, in sets."""

    def __init__(self) -> None:
        self.first: dict[bytes, tuple[str, str]] = {}
        self.later: dict[str, set[bytes]] = {}
        self.wrong: list[int] = []

    def enter(self, receipt: Receipt) -> None:
        client, group, asked = receipt.client, receipt.group, receipt.questions
        new = {"lineage": 0, "group": 0, "client": 0}
        for one in asked:
            before = self.first.setdefault(one, (client, group)) if one in self.first else None
            if before is None:
                self.first[one] = (client, group)
                new = {scope: count + 1 for scope, count in new.items()}
                continue
            for scope, name, place in (("group", group, 1), ("client", client, 0)):
                own = self.later.setdefault(f"{scope}:{name}", set()) if name else set()
                if name and before[place] != name and one not in own:
                    own.add(one)
                    new[scope] += 1
        right = new["lineage"] == receipt.lineage_questions
        right &= new["client"] == len(asked)
        right &= (new["group"] if group else 0) == receipt.group_questions
        if not right:
            self.wrong.append(receipt.sequence)


def _receipts(asked: Sequence[tuple[str, list[int]]], lies: dict[int, tuple[int, int]]) -> list[Receipt]:
    """Receipts that charge what is new to each account, except where they lie by so much."""
    truth, receipts = _Reckoning(), list[Receipt]()
    for sequence, (client, numbers) in enumerate(asked, 1):
        group = GROUPS[client]
        own = tuple(map(_question, numbers))
        known = {one for one in own if one in truth.first}
        its = {one for one in known if truth.first[one][1] == group or one in truth.later.get(f"group:{group}", ())}
        lie = lies.get(sequence, (0, 0))
        receipt = Receipt(
            lineage="lineage",
            client=client,
            sequence=sequence,
            number=0,
            terms=TERMS,
            microseconds=0,
            questions=own,
            lineage_questions=len(set(own) - known) + lie[0],
            group=group,
            group_questions=(len(set(own) - its) if group else 0) + lie[1],
        )
        truth.enter(receipt)
        receipts.append(receipt)
    return receipts


ASKED = st.lists(
    st.tuples(st.sampled_from(sorted(GROUPS)), st.lists(st.integers(0, 12), min_size=1, max_size=4)), max_size=25
)
LIES = st.dictionaries(st.integers(1, 25), st.tuples(st.integers(-1, 1), st.integers(-1, 1)), max_size=2)


@pytest.fixture(params=["as many as ever", "few at once"], autouse=True)
def _at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "few at once":
        monkeypatch.setattr("dpserve.accounting.ledger.questions._AT_ONCE", 3)


@settings(deadline=None, max_examples=60)
@given(ASKED, LIES)
def test_payments_are_settled_as_sets_say(asked: list[tuple[str, list[int]]], lies: dict[int, tuple[int, int]]) -> None:
    receipts, truth, paid = _receipts(asked, lies), _Reckoning(), PaidQuestions()
    for receipt in receipts:
        truth.enter(receipt)
        paid.enter(receipt)
    paid.settle()
    assert (paid.wrong.count, paid.wrong.first) == (len(truth.wrong), truth.wrong[:5])
    assert paid.count == len(truth.first)
    assert dict(pair for some in paid.paid_first() for pair in some) == truth.first
    later: dict[str, set[bytes]] = {}
    for some in paid.paid_later():
        for subject, those in some.items():
            later.setdefault(subject, set()).update(those)
    assert later == {subject: those for subject, those in truth.later.items() if those}
    assert {subject: paid.count_later(subject) for subject in later} == {key: len(own) for key, own in later.items()}
    everybody = paid.payers(_question(number) for number in range(14))
    assert everybody == {
        one: {receipt.client for receipt in receipts if one in receipt.questions} for one in truth.first
    }


def _owners(truth: _Reckoning) -> dict[bytes, bytes]:
    """The store's hash of questions."""
    clients = {name: number for number, name in CLIENTS.items()}
    teams = {name: number for number, name in TEAMS.items()}
    return {one: clients[c] + (b" " + teams[g] if g else b"") for one, (c, g) in truth.first.items()}


def _change(stored: dict[bytes, bytes], what: str, number: int) -> dict[bytes, bytes]:
    """Alter what is stored; return what a scan tells twice."""
    place = sorted(stored)[number % len(stored)] if stored else b""
    if what == "add":
        stored[bytes([255]) * 8 + number.to_bytes(8, "big")] = b"1"
    elif what == "drop" and stored:
        del stored[place]
    elif what == "move" and stored:
        stored[place] = b"99"
    return {place: stored[place]} if what == "twice" and stored else {}


@settings(deadline=None, max_examples=60)
@given(ASKED, ASKED, st.lists(st.tuples(st.sampled_from(["drop", "add", "move", "twice", "late"]), st.integers(0, 99))))
def test_a_store_agrees_if_and_only_if_it_holds_what_was_paid_for(
    asked: list[tuple[str, list[int]]], came: list[tuple[str, list[int]]], changes: list[tuple[str, int]]
) -> None:
    receipts = _receipts(asked + came, {})
    truth, paid = _Reckoning(), PaidQuestions()
    for receipt in receipts[: len(asked)]:
        truth.enter(receipt)
        paid.enter(receipt)
    paid.settle()
    expected = _owners(truth)
    late, stored, twice = receipts[len(asked) :], dict(expected), dict[bytes, bytes]()
    if "late" not in {what for what, _ in changes}:
        late = []
    whole = _Reckoning()
    for receipt in receipts[: len(asked)] + late:
        whole.enter(receipt)
    stored |= _owners(whole)  # a service went on while the store was read
    paid.enter_late(late)
    for what, number in changes:
        twice |= _change(stored, what, number)
    explained = {(one, receipt.client) for receipt in late for one in receipt.questions}
    is_wrong = any(stored.get(one) != owner for one, owner in expected.items()) or any(
        expected.get(one) != owner and (one, CLIENTS.get(owner.partition(b" ")[0])) not in explained
        for one, owner in stored.items()
    )
    paid.note_first(stored)
    paid.note_first({one: owner for one, owner in twice.items() if stored.get(one) == owner})
    for subject, those in truth.later.items():
        paid.note_later(subject, those)
    agreement = paid.compare(NUMBERS)
    assert agreement.is_first_right is not is_wrong
    assert agreement.wrong == frozenset()


def test_later_payments_that_differ_are_named() -> None:
    paid = PaidQuestions()
    receipts = _receipts([("ann", [1, 2]), ("bob", [1, 2]), ("cy", [2])], {})
    for receipt in receipts:
        paid.enter(receipt)
    paid.settle()
    paid.note_first({_question(1): b"1", _question(2): b"1"})
    paid.note_later("client:bob", [_question(1), _question(2)])
    paid.note_later("client:cy", [])
    paid.note_later("client:di", [_question(2)])
    paid.note_later("client:ann", [b"short"])
    paid.note_later("group:team", [_question(1), _question(2)])
    agreement = paid.compare(NUMBERS)
    assert agreement.is_first_right
    assert agreement.wrong == {"client:cy", "client:di", "client:ann"}


def test_a_question_of_another_length_is_refused() -> None:
    paid = PaidQuestions()
    with pytest.raises(ValueError, match="16 bytes"):
        paid.enter(
            Receipt(
                lineage="lineage",
                client="ann",
                sequence=1,
                number=1,
                terms=TERMS,
                microseconds=0,
                questions=(b"short",),
                lineage_questions=1,
            )
        )
    other = PaidQuestions()
    other.note_first({b"short": b"1"})
    other.settle()
    assert not other.compare(NUMBERS).is_first_right


def test_a_full_disk_is_an_error_that_names_the_folder_for_temporary_files() -> None:
    paid = PaidQuestions()
    paid._file.execute("PRAGMA max_page_count = 20")
    receipts = _receipts([("ann", list(range(100 * number, 100 * number + 100))) for number in range(100)], {})
    with pytest.raises(OSError, match="full") as full:
        any(map(paid.enter, receipts))
    assert (full.value.errno, full.value.filename) == (errno.ENOSPC, tempfile.gettempdir())
