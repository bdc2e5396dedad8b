"""Canaries of random labels: every row in its place once, fair coins and labels, wrong input refused."""

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats

from dpserve.audit.membership.odd_records import with_canaries
from dpserve.training.errors import DataError
from dpserve.training.inputs.tables import open_table

ROWS = 4000
ALARM = 1e-6


def table(**columns):
    return open_table(
        pa.table({"row": np.arange(ROWS), "ok": np.array(["no", "yes", "maybe", "no"] * 1000), **columns})
    )


def made(count=2000, seed=0, source=None, **options):
    return with_canaries(source or table(), count, np.random.default_rng(seed), label="ok", **options)


def rows(part):
    return part["row"].to_pylist()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_every_row_has_its_place(share):
    tables = made(share=share)
    members, others, population = (set(rows(part)) for part in (tables.members, tables.others, tables.population))
    assert members | others | population == set(range(ROWS))
    assert len(members) + len(others) + len(population) == ROWS
    trained = rows(tables.training)
    assert len(trained) == len(set(trained)) == len(members) + round(share * len(population))
    assert members <= set(trained)
    assert not set(trained) & others
    assert tables.shadow_records == min(len(trained), ROWS // 2)


def test_rows_that_are_no_canaries_stay_as_they_are():
    tables, labels = made(), ["no", "yes", "maybe", "no"]
    assert all(row["ok"] == labels[row["row"] % 4] for row in tables.population.to_pylist())


def test_a_canary_is_trained_on_with_the_label_that_it_is_attacked_with():
    tables = made()
    trained = {row["row"]: row["ok"] for row in tables.training.to_pylist()}
    assert all(trained[row["row"]] == row["ok"] for row in tables.members.to_pylist())


def test_coins_and_labels_are_fair():
    """False alarm: 1e-6 for each of four. The labels in the table are not even, so kept ones would be found."""
    tables = made()
    assert scipy.stats.binomtest(len(tables.members), 2000).pvalue > ALARM
    both = pa.concat_tables([tables.members, tables.others])
    labels = both["ok"].to_pylist()
    counts = [labels.count(name) for name in ("no", "yes", "maybe")]
    assert scipy.stats.chisquare(counts).pvalue > ALARM
    by_own = np.array([[0] * 3] * 4)
    for row in both.to_pylist():
        by_own[row["row"] % 4, ("no", "yes", "maybe").index(row["ok"])] += 1
    assert scipy.stats.chi2_contingency(by_own).pvalue > ALARM
    trained = np.isin(np.arange(ROWS), rows(tables.members))
    drawn = np.flatnonzero(np.isin(np.arange(ROWS), rows(both)))
    assert scipy.stats.mannwhitneyu(drawn[trained[drawn]], drawn[~trained[drawn]]).pvalue > ALARM


def test_the_seed_decides_all():
    one, same, other = made(), made(), made(seed=1)
    assert rows(one.training) == rows(same.training)
    assert one.members.equals(same.members)
    assert rows(one.members) != rows(other.members)


@pytest.mark.parametrize("units", [np.arange(ROWS) // 2, np.array([f"canary-{index // 2}" for index in range(ROWS)])])
def test_each_canary_is_a_unit_that_nobody_else_has(units):
    tables = made(count=100, source=table(person=units), unit="person")
    own = pa.concat_tables([tables.members, tables.others])["person"].to_pylist()
    assert len(set(own)) == 100
    assert not set(own) & set(units.tolist())


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int64(), pa.bool_(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
)
def test_labels_keep_the_columns_type(kind):
    values = pa.array([index % 2 for index in range(ROWS)])
    column = (
        values.cast(pa.string()).dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else values.cast(kind)
    )
    source = open_table(pa.table({"row": range(ROWS), "ok": column}))
    for part in (made(source=source).training, made(source=source).members):
        assert part["ok"].type == kind
        assert len(part["ok"].unique()) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": ROWS},
        {"count": 1},
        {"unit": "person"},
        {"classes": ["no"]},
        {"classes": ["no", "yes", "no"]},
        {"count": 2, "seed": 4},
        {"source": open_table(pa.table({"row": range(9)}))},
    ],
)
def test_wrong_input_is_refused(wrong):
    with pytest.raises(DataError):
        made(**wrong)


def test_declared_classes_that_the_table_lacks_are_drawn():
    assert "never" in made(classes=["no", "never"]).members["ok"].to_pylist()


def test_files_are_read_as_the_table_was(tmp_path):
    """A text file keeps its encoding and the sign between its columns; what its encoding lacks is refused."""
    text = "row;ok\n" + "".join(f'"{index};é";{"oui" if index % 2 else "non"}\n' for index in range(40))
    (tmp_path / "a.csv").write_bytes(text.encode("latin-1"))
    source = open_table(tmp_path / "a.csv", "latin-1")
    tables = with_canaries(source, 20, np.random.default_rng(0), label="ok")
    for name, content in tables.files("latin-1").items():
        (tmp_path / name).write_bytes(content)
    again = pa.Table.from_batches([one.data for one, _ in open_table(tmp_path / "training.csv", "latin-1").batches()])
    assert again.equals(tables.training)
    with pytest.raises(DataError):
        tables.files("ascii")
