"""Answers on disk: what was paid for is never lost, and never mistaken for another model's."""

import json
import os
import stat

import numpy as np
import pytest

from dpserve.audit.endpoint import row_name
from dpserve.audit.membership.asking import AnswerJournal, OtherJournal

MODEL = {"model_id": "a" * 32, "mechanism": "gaussian", "price_per_row": {"rho": 0.1, "losses": "gaussian:0.4"}}
ROWS = np.array([[0.0, 1.0], [0.1, 1 / 3]])
ANSWERS = np.array([[0.25, 0.75], [1 / 3, 2 / 3]])


def test_what_was_added_is_there_when_it_is_opened_again(tmp_path):
    path = tmp_path / "journal"
    AnswerJournal(path, MODEL).add(1, ROWS, ANSWERS)
    again = AnswerJournal(path, MODEL)
    assert again.count(1) == 2
    np.testing.assert_array_equal(again.get(1, ROWS[1]), ANSWERS[1])
    np.testing.assert_array_equal(again.get(1, np.array([-0.0, 1.0])), ANSWERS[0])
    assert again.get(0, ROWS[1]) is None
    assert again.get(1, ROWS[1] + 1e-12) is None


def test_what_was_planned_is_there_too_and_is_settled_once(tmp_path):
    path = tmp_path / "journal"
    journal = AnswerJournal(path, MODEL, ["a key"], {"seed": 1})
    assert journal.planned is None
    journal.settle(12)
    journal.add(0, ROWS, ANSWERS)
    again = AnswerJournal(path, MODEL, ["a key"], {"seed": 1})
    again.settle(again.planned)
    assert (again.planned, again.count(0)) == (12, 2)
    assert path.read_text().count("planned") == 1
    with pytest.raises(OtherJournal, check=lambda error: error.differing == ("seed",)):
        AnswerJournal(path, MODEL, ["a key"], {"seed": 2})
    with pytest.raises(OtherJournal):
        AnswerJournal(path, MODEL, ["a key"])
    with pytest.raises(OtherJournal, check=lambda error: error.differing == ("keys",)):
        AnswerJournal(path, MODEL, ["another key"], {"seed": 1})


def test_the_file_is_its_owners_alone_from_its_creation(tmp_path):
    """Whatever the umask, and a file that was open to others is closed to them before anything is written."""
    path, open_to_all = tmp_path / "journal", tmp_path / "open"
    open_to_all.touch()
    open_to_all.chmod(0o644)
    former = os.umask(0)
    try:
        for place in (path, open_to_all):
            AnswerJournal(place, MODEL).add(0, ROWS, ANSWERS)
            assert stat.S_IMODE(place.stat().st_mode) == 0o600
    finally:
        os.umask(former)


def test_nothing_in_the_file_can_be_looked_up_in_a_dictionary(tmp_path, monkeypatch):
    """Two journals of one attack share neither salt nor names; plain digests of rows, keys and records are in neither.

    Who has the file and knows a row, but neither the keys nor the other candidates, cannot test for it.
    """
    purpose = {"records": "d" * 64, "seed": 7}
    texts = []
    for name in ("one", "two"):
        AnswerJournal(tmp_path / name, MODEL, ["a key"], purpose).add(0, ROWS, ANSWERS)
        texts.append((tmp_path / name).read_text())
    lines = [[json.loads(line) for line in text.splitlines()] for text in texts]
    assert all(one["row"] != two["row"] for one, two in zip(lines[0][1:], lines[1][1:], strict=True))
    assert all(lines[0][0][name] != lines[1][0][name] for name in ("salt", "keys", "records"))
    for text in texts:
        assert not any(known in text for known in ("a key", "d" * 64, *(row_name(row) for row in ROWS)))
    monkeypatch.setattr("secrets.token_hex", lambda _: lines[0][0]["salt"])
    guesses = {"right": (["a key"], purpose), "key": (["another key"], purpose)}
    guesses["records"] = (["a key"], purpose | {"records": "e" * 64})
    asked = {line["row"] for line in lines[0][1:]}
    for wrong, (keys, what) in guesses.items():
        AnswerJournal(tmp_path / wrong, MODEL, keys, what).add(0, ROWS, ANSWERS)
        names = {json.loads(line)["row"] for line in (tmp_path / wrong).read_text().splitlines()[1:]}
        assert names == asked if wrong == "right" else names.isdisjoint(asked)


def test_a_line_that_was_cut_off_is_dropped_and_asked_for_again(tmp_path):
    path = tmp_path / "journal"
    AnswerJournal(path, MODEL).add(0, ROWS, ANSWERS)
    whole = path.read_bytes()
    for cut in range(len(whole) - 60, len(whole)):
        path.write_bytes(whole[:cut])
        again = AnswerJournal(path, MODEL)
        assert again.count(0) == 1
        again.add(0, ROWS[1:], ANSWERS[1:])
        assert path.read_bytes() == whole


def test_another_models_journal_is_refused(tmp_path):
    path = tmp_path / "journal"
    AnswerJournal(path, MODEL)
    with pytest.raises(OtherJournal, check=lambda error: error.differing == ("model_id",)):
        AnswerJournal(path, MODEL | {"model_id": "b" * 32})
    (tmp_path / "text").write_text("hello\n")
    with pytest.raises(ValueError, match="not the journal of an attack"):
        AnswerJournal(tmp_path / "text", MODEL)


@pytest.mark.parametrize("line", ["{}", "[1]", "x", '{"key": 0, "row": "r", "answer": ["x"]}'])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "journal"
    AnswerJournal(path, MODEL).add(0, ROWS, ANSWERS)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match="line 4, is damaged"):
        AnswerJournal(path, MODEL)


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    journal = AnswerJournal(None, MODEL)
    journal.add(0, ROWS, ANSWERS)
    assert journal.count(0) == 2
    assert not list(tmp_path.iterdir())
