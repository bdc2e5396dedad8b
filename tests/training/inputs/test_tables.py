import gc
import gzip
import io
import json
from datetime import date, datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.feather as feather
import pyarrow.parquet as parquet
import pytest

from dpserve.training.errors import DataError
from dpserve.training.inputs import csv_files
from dpserve.training.inputs.columns import encode_rows
from dpserve.training.inputs.schema import parse_schema
from dpserve.training.inputs.table_records import read_numbers, read_with_schema
from dpserve.training.inputs.tables import open_table
from tests.training.conftest import options_in

SCHEMA = parse_schema(
    {
        "fields": [
            {"name": "age", "type": "integer", "constraints": {"minimum": 0, "maximum": 120}},
            {"name": "pay", "type": "number", "constraints": {"minimum": -10, "maximum": 10, "required": True}},
            {"name": "smokes", "type": "boolean"},
            {"name": "work", "type": "string", "constraints": {"enum": ["private", "state"]}},
            {"name": "born", "type": "date", "constraints": {"minimum": "1900-01-01", "maximum": "2030-01-01"}},
            {
                "name": "seen",
                "type": "datetime",
                "constraints": {"minimum": "1900-01-01", "maximum": "2030-01-01T00:00:00"},
            },
            {"name": "note", "type": "string", "text": {"buckets": 8}},
            {
                "name": "ok",
                "type": "integer",
                "categories": [{"value": 0, "label": "no"}, {"value": 1, "label": "yes"}],
            },
        ],
        "missingValues": ["", "NA"],
    }
)
ROWS = [
    {"age": 39, "pay": 1.5, "smokes": True, "work": "state", "born": "1987-02-28", "seen": "2024-02-29T23:30:00"}
    | {"note": "good, good news", "ok": 1},
    {"age": None, "pay": -0.25, "smokes": None, "work": None, "born": None, "seen": None, "note": None, "ok": 0},
    {"age": 120, "pay": 10, "smokes": False, "work": "private", "born": "2030-01-01", "seen": "1999-12-31T00:00:00"}
    | {"note": 'a "quoted"\nline', "ok": 1},
]
TYPED = pa.schema(
    [
        ("age", pa.int16()),
        ("pay", pa.float64()),
        ("smokes", pa.bool_()),
        ("work", pa.dictionary(pa.int8(), pa.string())),
        ("born", pa.date32()),
        ("seen", pa.timestamp("ms")),
        ("note", pa.large_string()),
        ("ok", pa.int64()),
    ]
)


def typed():
    rows = [
        row
        | {
            "born": row["born"] and date.fromisoformat(row["born"]),
            "seen": row["seen"] and datetime.fromisoformat(row["seen"]),
        }
        for row in ROWS
    ]
    return pa.Table.from_pylist(rows, TYPED)


def as_csv(delimiter=",", rows=ROWS):
    frame = pd.DataFrame(rows, dtype=object)
    return frame.to_csv(index=False, sep=delimiter, na_rep="").encode()


def read(source, schema=SCHEMA, **options):
    return read_with_schema(source, schema, "ok", **options)


def picked():
    """The rows as pandas has them that were picked among others: with an index that is no count."""
    return typed().to_pandas().set_index(pd.Index([5, 2, 9]))


def folder(path, table=None):
    table = typed() if table is None else table
    pa_dataset.write_dataset(table, path, format="parquet", partitioning=["ok"], partitioning_flavor="hive")


def folder_of_csv(path):
    path.mkdir()
    (path / "a.csv").write_bytes(as_csv(rows=ROWS[:1]))
    (path / "b.csv.gz").write_bytes(gzip.compress(as_csv(rows=ROWS[1:])))


def zstd(path):
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        file.write(as_csv("|"))


WRITERS = {
    "csv": lambda path: path.write_bytes(as_csv()),
    "tsv": lambda path: path.write_bytes(as_csv("\t")),
    "csv.gz": lambda path: path.write_bytes(gzip.compress(as_csv(";"))),
    "csv.zst": zstd,
    "parquet": lambda path: parquet.write_table(typed(), path),
    "feather": lambda path: feather.write_feather(typed(), str(path)),
    "folder": folder,
    "folder of csv": folder_of_csv,
    "picked.parquet": lambda path: picked().to_parquet(path),
    "picked.feather": lambda path: feather.write_feather(picked(), str(path)),
    "picked folder": lambda path: folder(path, pa.Table.from_pandas(picked())),
}
FRAMES = {
    "arrow": typed,
    "reader": lambda: typed().to_reader(),
    "pandas": lambda: typed().to_pandas(),
    "polars": lambda: pl.from_arrow(typed()),
    "picked pandas": picked,
    "picked arrow": lambda: pa.Table.from_pandas(picked()),
}


def written(tmp_path, kind):
    if kind in FRAMES:
        return FRAMES[kind]()
    path = tmp_path / f"t.{'parquet' if kind == 'url' else kind}"
    WRITERS["parquet" if kind == "url" else kind](path)
    return path.as_uri() if kind == "url" else path


@pytest.mark.parametrize(
    "kind",
    [*WRITERS, "url", *FRAMES],
)
def test_a_table_is_the_same_records_however_it_is_kept(tmp_path, kind):
    records = read(written(tmp_path, kind))
    features = [{name: value for name, value in row.items() if name != "ok"} for row in ROWS]
    expected = encode_rows(SCHEMA.split("ok")[0], features)
    order = np.lexsort(records.X.T) if kind.endswith("folder") else np.arange(3)
    among = np.lexsort(expected.T) if kind.endswith("folder") else np.arange(3)
    assert records.X[order].tobytes() == expected[among].tobytes()
    assert records.y[order].tolist() == np.array([1, 0, 1])[among].tolist()
    assert records.declaration.classes == ("no", "yes")
    from_csv = read(written(tmp_path, "csv"))
    assert sorted(records.source) == sorted(from_csv.source)


def test_records_have_digests_of_their_own():
    changed = [row | {"pay": 1.5000001} if row["ok"] else row for row in ROWS]
    (one, *_), (other, *_) = (read(pa.Table.from_pylist(rows)).source for rows in (ROWS, changed))
    assert one != other
    assert len(one) == 16


def test_missing_values_and_times_have_one_digest_however_they_are_written(tmp_path):
    (tmp_path / "t.csv").write_text(
        "seen,age,ok\n2012-01-02 10:00:00,NA,no\n2012-01-02T12:00+02:00,,no\n2012-01-02,3,no\n"
    )
    seen = pd.to_datetime(["2012-01-02 10:00:00", "2012-01-02 10:00:00", "2012-01-02 00:00:00"])
    frame = pd.DataFrame({"seen": seen, "age": [None, None, 3.0], "ok": "no"})
    times = {"minimum": "2000-01-01", "maximum": "2030-01-01"}
    schema = parse_schema(
        {
            "missingValues": ["", "NA"],
            "fields": [
                {"name": "seen", "type": "datetime", "constraints": times},
                {"name": "age", "type": "integer", "constraints": {"minimum": 0, "maximum": 9}},
                {"name": "ok", "type": "boolean", "trueValues": ["yes"], "falseValues": ["no"]},
            ],
        }
    )
    zoned = frame.assign(seen=frame.seen.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"))
    one, other, third = (list(read(each, schema).source) for each in (tmp_path / "t.csv", frame, zoned))
    assert one == other == third
    assert one[0] == one[1] != one[2]


def test_a_table_of_many_batches_is_read_whole(tmp_path):
    generator = np.random.default_rng(0)
    X, y = generator.uniform(size=(70_000, 3)), generator.integers(0, 2, 70_000)
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(label=y)
    told = []
    for path in (tmp_path / "t.csv", tmp_path / "t.parquet"):
        (frame.to_csv if path.suffix == ".csv" else frame.to_parquet)(path, index=False)
        records = read_numbers(
            path,
            label="label",
            classes=["no", "yes"],
            values=["0", "1"],
            bounds=["0:1"],
            progress=lambda done, share: told.append((done, share)),
        )
        assert records.X.tobytes() == X.tobytes()
        assert records.y.tobytes() == y.tobytes()
        assert told[-1] == (70_000, 1.0)


def test_columns_that_the_schema_does_not_describe_are_refused_or_left_out(tmp_path):
    table = pa.Table.from_pylist([row | {"id": 7, "x": 1} for row in ROWS])
    with pytest.raises(DataError, match=r"columns that the schema does not describe: 'id', 'x'\. Describe them"):
        read(table)
    assert len(read(table, ignore=["id", "x"])) == 3
    loose = type(SCHEMA)(SCHEMA.columns, SCHEMA.class_names, subset=True)
    assert len(read(table, loose)) == 3


def test_columns_that_the_table_lacks_are_named():
    with pytest.raises(DataError, match="has no column 'age' or 'pay'; its columns are smokes"):
        read(pa.Table.from_pylist(ROWS).drop_columns(["age", "pay"]))


def test_all_columns_that_do_not_fit_are_named_at_once_with_their_lines_and_what_to_do(tmp_path):
    bad = {"age": "old", "pay": None, "smokes": "perhaps", "work": "abroad", "born": "1.1.2000", "note": "x" * 100_001}
    (tmp_path / "t.csv").write_bytes(as_csv(rows=[*ROWS, ROWS[0] | bad, ROWS[0] | {"age": 121, "ok": None}]))
    with pytest.raises(DataError) as refusal:
        read(tmp_path / "t.csv")
    named = [line.partition(": ")[0] for line in str(refusal.value).splitlines() if line.startswith("t.csv")]
    of_line_6 = [f"t.csv, line 6, column '{name}'" for name in bad]
    assert named == [*of_line_6, "t.csv, line 7, column 'ok'"]
    assert {name for name, _ in options_in(refusal.value)} == {"missing", "unknown_levels", "pattern", "unlabelled"}


@pytest.mark.parametrize(
    ("column", "array", "said"),
    [
        ("age", pa.array([1.5]), "row 0, column 'age': 1.5 is not an integer"),
        ("age", pa.array([date(2020, 1, 1)]), "column 'age': .* is not a number"),
        ("age", pa.array([[1]]), "column 'age': holds list"),
        ("pay", pa.array([float("nan")]), "column 'pay': a value is required"),
        ("born", pa.array([3]), "column 'born': 3 is no date"),
        ("note", pa.array([3.5]), "column 'note': 3.5 is not a text"),
        ("ok", pa.array([2]), "column 'ok': 2 is not one of 0, 1"),
    ],
)
def test_a_typed_value_that_does_not_fit_is_named(column, array, said):
    table = typed().slice(0, 1)
    table = table.set_column(table.schema.get_field_index(column), column, array)
    with pytest.raises(DataError, match=said):
        read(table)


def test_values_are_clipped_where_the_owner_says_so():
    table = pa.Table.from_pylist([ROWS[0] | {"age": 500, "pay": -99.0, "born": "2999-01-01"}])
    row = dict(zip(*(lambda r: (r.declaration.feature_names, r.X[0].tolist()))(read(table, clip=True)), strict=True))
    assert (row["age"], row["pay"]) == (120, -10)
    assert row["born"] == (date(2030, 1, 1) - date(1970, 1, 1)).days


def test_a_truncated_parquet_file_is_refused(tmp_path):
    parquet.write_table(typed(), tmp_path / "t.parquet")
    content = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"t\.parquet is damaged or of another kind: .*Parquet"):
        read(tmp_path / "t.parquet")


def test_a_parquet_file_with_damaged_pages_is_refused(tmp_path):
    parquet.write_table(pa.table({"a": np.arange(9.0), "ok": [0] * 9}), tmp_path / "t.parquet", compression="zstd")
    content = bytearray((tmp_path / "t.parquet").read_bytes())
    content[30:60] = b"\xff" * 30
    (tmp_path / "t.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"t\.parquet"):
        read_numbers(tmp_path / "t.parquet", label="ok", classes=["0", "1"], bounds=["0:9"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'note,ok\n"fine",1\n"never closed,0\n', "line 3: 1 values, .*; a quote is opened and not closed"),
        (b'ok,note\n1,"fine"\n0,"never closed\n', "a quote is opened and not closed after line 2"),
        (b'note,ok\nfive " long,1\n', 'a value holds a single ": write it as "" in quotes'),
        (b"note,ok\n" + b"x" * 2**25 + b",1\n", "after line 1: a record is longer than 4 MiB, or a quote is opened"),
        (b"note,ok\nx,1\n" + b'"' + b"x\n" * 2**24, "a record is longer than 4 MiB, or a quote is opened"),
        (b"note,ok\n" + b"x" * 10**6 + b",1\n", "line 2, column 'note': a text of 1,000,000 characters is longer"),
        (b"note,ok\n" + b"x" * 10**7 + b",1\n", "after line 1: a record is longer than 4 MiB"),
        (b"note,ok\n\xff,1\n", "is not UTF-8 text"),
        (b'note,ok\nx,1\n"a\nb\x00y",1\n', "line 4: holds a NUL character"),
        (b"note,ok\n" + b"x," * 1000 + b"\n", "line 2: 1001 values"),
        (b"\x00\x01\x02", "has no column"),
        (b"x" * 2**21, "line 1 is longer than 1 MiB"),
        (b"\n\n", "is empty"),
    ],
    ids=[
        "quote",
        "last quote",
        "single quote",
        "line",
        "quoted line",
        "text",
        "longer text",
        "latin",
        "nul",
        "many",
        "binary",
        "header",
        "blank",
    ],
)
def test_a_hostile_csv_file_is_refused_with_the_place(tmp_path, content, said):
    (tmp_path / "t.csv").write_bytes(content)
    schema = type(SCHEMA)(SCHEMA.columns[-2:], SCHEMA.class_names)
    with pytest.raises(DataError, match=said):
        read(tmp_path / "t.csv", schema)


def test_a_fault_far_down_a_csv_file_is_found_where_it_is(tmp_path):
    """The third block that is read holds it: a wrong row has its line, and what ends a block the line before."""
    rows, row = 1_600_000, b"1,fine\n"
    read_before = (2 * csv_files.LONGEST_LINE - len(b"ok,note\n")) // len(row)
    for fault, said in (
        (b"1,2,3\n", f"line {rows + 2}: 3 values"),
        (b"1\n", f"line {rows + 2}: 1 values"),
        (b"1,\xff\n", f"after line {read_before + 1}: is not UTF-8"),
    ):
        (tmp_path / "t.csv").write_bytes(b"ok,note\n" + row * rows + fault)
        with pytest.raises(DataError, match=f"t.csv, {said}"):
            list(open_table(tmp_path / "t.csv").batches())


def test_no_thread_reads_a_csv_file_that_was_refused(tmp_path):
    # When Python ends, such a thread never comes back, and Arrow waits for it: the process would hang.
    (tmp_path / "t.csv").write_text("a\n" + "x" * 2**25 + "\n" * 2**23)
    for _ in range(20):
        with pytest.raises(DataError, match="longer than 4 MiB"):
            next(open_table(tmp_path / "t.csv").batches())
        assert not [each for each in gc.get_objects() if type(each) is csv_files._Lent]


@pytest.mark.parametrize("column", ["note", "ok", "work"])
def test_a_nul_in_a_data_frame_is_refused(column):
    rows = [row | {"ok": str(row["ok"])} for row in (*ROWS, ROWS[0])]
    rows[-1][column] = "x\0y"
    with pytest.raises(DataError, match=f"row {len(ROWS)}, column '{column}'"):
        read(pa.Table.from_pylist(rows))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.csv", "cannot read .*nowhere.csv: No such file"),
        ("t.docx", "is no table that can be read: a file ends in"),
        ("t.parquet.gz", "is no table that can be read"),
        ("empty", "the folder .* holds no files"),
        ("mixed", "holds files of several kinds"),
        ("other", "b.csv has other columns than a.csv"),
        ("ftp://x/t.csv", "ftp"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, name, said):
    (tmp_path / "t.docx").touch()
    (tmp_path / "t.parquet.gz").touch()
    for folder in ("empty", "mixed", "other"):
        (tmp_path / folder).mkdir()
    (tmp_path / "mixed" / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "mixed" / "b.parquet").touch()
    (tmp_path / "other" / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "other" / "b.csv").write_text("a,c\n1,2\n")
    with pytest.raises(DataError, match=said):
        open_table(name if "://" in name else tmp_path / name)


def test_an_object_that_is_no_table_is_refused():
    with pytest.raises(DataError, match="a table is a path, a URL or a data frame, not BytesIO"):
        open_table(io.BytesIO(json.dumps({}).encode()))
