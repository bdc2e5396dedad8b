"""Answers on disk: what was paid for is never lost, and never mistaken for another model's."""

import numpy as np
import pytest

from audit.membership.journal import Journal

MODEL = {"model_id": "a" * 32, "mechanism": "gaussian", "price_per_row": {"rho": 0.1, "losses": "gaussian:0.4"}}
ROWS = np.array([[0.0, 1.0], [0.1, 1 / 3]])
ANSWERS = np.array([[0.25, 0.75], [1 / 3, 2 / 3]])


def test_what_was_added_is_there_when_it_is_opened_again(tmp_path):
    path = tmp_path / "journal"
    Journal(path, MODEL).add(1, ROWS, ANSWERS)
    again = Journal(path, MODEL)
    assert len(again) == 2
    np.testing.assert_array_equal(again.get(1, ROWS[1]), ANSWERS[1])
    np.testing.assert_array_equal(again.get(1, np.array([-0.0, 1.0])), ANSWERS[0])
    assert again.get(0, ROWS[1]) is None
    assert again.get(1, ROWS[1] + 1e-12) is None


def test_what_was_planned_is_there_too_and_is_settled_once(tmp_path):
    path = tmp_path / "journal"
    journal = Journal(path, MODEL, {"seed": 1})
    assert journal.planned is None
    journal.settle(12)
    journal.add(0, ROWS, ANSWERS)
    again = Journal(path, MODEL, {"seed": 1})
    again.settle(again.planned)
    assert (again.planned, len(again)) == (12, 2)
    assert path.read_text().count("planned") == 1
    with pytest.raises(ValueError, match="recorded for another seed"):
        Journal(path, MODEL, {"seed": 2})
    with pytest.raises(ValueError, match="recorded for another attack"):
        Journal(path, MODEL)


def test_a_line_that_was_cut_off_is_dropped_and_asked_for_again(tmp_path):
    path = tmp_path / "journal"
    Journal(path, MODEL).add(0, ROWS, ANSWERS)
    whole = path.read_bytes()
    for cut in range(len(whole) - 60, len(whole)):
        path.write_bytes(whole[:cut])
        again = Journal(path, MODEL)
        assert len(again) == 1
        again.add(0, ROWS[1:], ANSWERS[1:])
        assert path.read_bytes() == whole


def test_another_models_journal_is_refused(tmp_path):
    path = tmp_path / "journal"
    Journal(path, MODEL)
    with pytest.raises(ValueError, match="recorded for another model; name another file"):
        Journal(path, MODEL | {"model_id": "b" * 32})
    (tmp_path / "text").write_text("hello\n")
    with pytest.raises(ValueError, match="not the journal of an attack"):
        Journal(tmp_path / "text", MODEL)


@pytest.mark.parametrize("line", ["{}", "[1]", "x", '{"key": 0, "row": "r", "answer": ["x"]}'])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "journal"
    Journal(path, MODEL).add(0, ROWS, ANSWERS)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match="line 4, is damaged"):
        Journal(path, MODEL)


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    journal = Journal(None, MODEL)
    journal.add(0, ROWS, ANSWERS)
    assert len(journal) == 2
    assert not list(tmp_path.iterdir())
