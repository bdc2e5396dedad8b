"""Files as offices and Europe write them: encodings, decimal commas, dates by pattern, spreadsheets, missing labels."""

import codecs
import gzip
import re
from datetime import date, datetime, time
from itertools import product

import numpy as np
import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpserve.training.errors import DataError
from dpserve.training.inputs.column import ValueRefused
from dpserve.training.inputs.columns import NumberColumn, TimeColumn
from dpserve.training.inputs.schema import parse_schema
from dpserve.training.inputs.table_records import read_numbers, read_with_schema
from dpserve.training.inputs.tables import encoding_of, open_table
from tests.training.conftest import options_in

CITIES = ("Köln", "Zürich", "Ålesund")
ROWS = [
    (18 + n % 70, round(1234.5 * (n + 1) / 7, 2), date(2022, 1 + n % 12, 1 + n % 28), CITIES[n % 3], "yn"[n % 2])
    for n in range(50)
]


def schema(**more):
    number = {"minimum": 0, "maximum": 100_000}
    fields = [
        {"name": "age", "type": "integer", "constraints": number},
        {"name": "income", "type": "number", "constraints": number} | more.pop("number", {}),
        {"name": "day", "type": "date", "constraints": {"minimum": "2022-01-01", "maximum": "2023-01-01"}}
        | more.pop("date", {}),
        {"name": "city", "type": "string", "constraints": {"enum": list(CITIES)}},
        {"name": "label", "type": "string", "constraints": {"enum": ["y", "n"]}},
    ]
    return parse_schema({"fields": fields} | more)


OFFICE = {"number": {"decimalChar": ",", "groupChar": "."}, "date": {"format": "%d.%m.%Y"}}


def iso_text(rows=ROWS):
    return "age,income,day,city,label\n" + "".join(f"{a},{x!r},{d},{c},{k}\n" for a, x, d, c, k in rows)


def office_text(rows=ROWS):
    lines = ["age;income;day;city;label"]
    for age, income, day, city, label in rows:
        whole, _, rest = repr(income).partition(".")
        lines.append(f"{age};{int(whole):,}".replace(",", ".") + f",{rest};{day:%d.%m.%Y};{city};{label}")
    return "\r\n".join(lines) + "\r\n"


@pytest.fixture
def iso(tmp_path):
    path = tmp_path / "iso.csv"
    path.write_text(iso_text(), "utf-8")
    return read_with_schema(path, schema(), "label")


def same(records, others):
    np.testing.assert_array_equal(records.X, others.X)
    np.testing.assert_array_equal(records.y, others.y)
    assert list(records.source) == list(others.source)


@pytest.mark.parametrize("encoding", ["latin-1", "windows-1252", "utf-16", "utf-8"])
@pytest.mark.parametrize("compress", [False, True])
def test_an_offices_file_has_the_records_of_a_plain_one(tmp_path, iso, encoding, compress):
    content = office_text().encode(encoding)
    path = tmp_path / ("office.csv.gz" if compress else "office.csv")
    path.write_bytes(gzip.compress(content) if compress else content)
    same(read_with_schema(path, schema(**OFFICE), "label", encoding=encoding), iso)


def test_missing_values_have_the_digests_of_a_plain_file(tmp_path):
    rows = [*ROWS, (20, None, None, "Köln", "y")]
    (tmp_path / "iso.csv").write_text(iso_text(ROWS) + "20,,,Köln,y\n", "utf-8")
    (tmp_path / "office.csv").write_text(office_text(ROWS) + "20;;;Köln;y\n", "latin-1")
    plain = read_with_schema(tmp_path / "iso.csv", schema(), "label")
    same(read_with_schema(tmp_path / "office.csv", schema(**OFFICE), "label", encoding="latin-1"), plain)
    assert len(plain) == len(rows)


def test_a_file_in_another_encoding_is_refused_with_what_to_do(tmp_path):
    path = tmp_path / "office.csv"
    path.write_text(office_text(), "latin-1")
    with pytest.raises(DataError, match="encoding"):
        read_with_schema(path, schema(**OFFICE), "label")
    with pytest.raises(DataError):
        parse_schema({"fields": [{"name": "a", "type": "boolean"}], "encoding": "klingon"})


def test_what_an_office_writes_otherwise_is_refused_with_what_reads_it(tmp_path):
    path = tmp_path / "office.csv"
    path.write_text(office_text([*ROWS, (20, 1.5, date(2022, 3, 4), "Köln", "")]), "utf-8")
    with pytest.raises(DataError) as refused:
        read_with_schema(path, schema(), "label")
    for remedy in ("`decimal_char`", "`group_char`", "`pattern`", "`unlabelled`"):
        assert remedy in str(refused.value)
    with pytest.raises(DataError) as refused:
        read_with_schema(path, schema(**OFFICE), "label")
    assert {name for name, _ in options_in(refused.value)} == {"unlabelled"}
    declared = {"label": "label", "classes": ["y", "n"], "bounds": ["0:1e9"], "ignore": ["day", "city", "age"]}
    with pytest.raises(DataError) as refused:
        read_numbers(path, **declared)
    assert {name for name, _ in options_in(refused.value)} == {"decimal", "schema", "unlabelled"}


def test_the_first_bytes_tell_an_encoding_that_fits(tmp_path):
    for content, encoding in (
        (b"a,b\n1,2\n", None),
        ("a,\u00e9\n".encode(), None),
        ("a,\u00e9\n".encode("windows-1252"), "windows-1252"),
        (b"a,\x81\n", "latin-1"),
        ("a,b\n".encode("utf-16"), "utf-16"),
    ):
        (tmp_path / "t.csv").write_bytes(content)
        assert encoding_of(str(tmp_path / "t.csv")) == encoding


def test_a_large_file_is_transcoded_piece_by_piece(tmp_path):
    """Its text takes more bytes in UTF-8 than Arrow asks for at once."""
    path = tmp_path / "large.csv"
    path.write_text("x,label\n" + "1,é\n" * 1_200_000, "latin-1")
    rows = sum(batch.data.num_rows for batch, _ in open_table(path, "latin-1").batches())
    assert rows == 1_200_000


NUMBERS = NumberColumn(name="x", minimum=-1e9, maximum=1e9, decimal=",", group=".")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.234,5", 1234.5),
        ("1234,5", 1234.5),
        ("-1.234.567", -1234567.0),
        ("12", 12.0),
        (" 0,5 ", 0.5),
        ("1e3", 1000.0),
    ],
)
def test_numbers_in_groups_with_a_decimal_comma(text, number):
    assert NUMBERS.parse(text) == number
    assert NUMBERS.parse(number) == number


@pytest.mark.parametrize(
    "text", ["1.5", "1.23", "12.34,5", "1,2,3", "1.234.56", ".5", "1.2345", "1.1250", ",", "", "--1"]
)
def test_no_text_has_two_readings(text):
    with pytest.raises(ValueRefused):
        NUMBERS.parse(text)


@given(st.floats(-1e9, 1e9), st.sampled_from([",", ".", "\u066b"]), st.sampled_from(["", "'", " ", "\u202f"]))
def test_a_number_is_read_as_it_was_written(number, decimal, group):
    column = NumberColumn(name="x", minimum=-1e9, maximum=1e9, decimal=decimal, group=group)
    text = f"{number:,.12f}".replace(",", "G").replace(".", decimal).replace("G", group)
    assert column.parse(text) == float(f"{number:.12f}")


@pytest.mark.parametrize(
    "signs",
    [
        {"decimalChar": "."},
        {"groupChar": ""},
        {"decimalChar": ",", "groupChar": ","},
        {"decimalChar": "5"},
        {"groupChar": "--"},
    ],
)
def test_signs_that_make_numbers_ambiguous_are_refused(signs):
    field = {"name": "x", "type": "number", "constraints": {"minimum": 0, "maximum": 1}} | signs
    if signs in ({"decimalChar": "."}, {"groupChar": ""}):
        assert not parse_schema({"fields": [field]}).columns[0].has_own_signs
    else:
        with pytest.raises(DataError):
            parse_schema({"fields": [field]})


def times(pattern, kind="date"):
    return TimeColumn(name="t", kind=kind, minimum="2000-01-01", maximum="2030-01-01", parts=("time",), pattern=pattern)


@pytest.mark.parametrize(
    ("pattern", "kind", "text", "time"),
    [
        ("%d.%m.%Y", "date", "06.10.2022", "2022-10-06"),
        ("%d.%m.%y", "date", "6.10.22", "2022-10-06"),
        ("%m/%d/%Y", "date", "10/06/2022", "2022-10-06"),
        ("%Y%m%d", "date", "20221006", "2022-10-06"),
        ("%d.%m.%Y %H:%M", "datetime", "06.10.2022 14:30", "2022-10-06T14:30"),
    ],
)
def test_dates_by_pattern(pattern, kind, text, time):
    plain = times(None, kind)
    assert times(pattern, kind).parse(text) == plain.parse(time) == times(pattern, kind).parse(time)
    assert times(pattern, kind).parse(datetime.fromisoformat(time)) == plain.parse(time)
    assert times(pattern, kind).parse(times(pattern, kind)._example) > 0
    with pytest.raises(ValueRefused):
        times(pattern, kind).parse("2022-13-01")


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [
        ("%Y-%d-%m", "date"),
        ("%y%m-%d", "date"),
        ("%d %b %Y", "date"),
        ("%d.%m", "date"),
        ("%d.%m.%Y %H", "date"),
        ("any", "date"),
    ],
)
def test_patterns_that_can_be_mistaken_are_refused(pattern, kind):
    with pytest.raises(ValueError, match=re.escape(pattern)):
        times(pattern, kind)


def workbook(path, rows, names=("age", "income", "day", "city", "label"), **sheets):
    book = openpyxl.Workbook()
    book.active.append(list(names))
    for row in rows:
        book.active.append(list(row))
    for title, content in sheets.items():
        other = book.create_sheet(title)
        for row in content:
            other.append(row)
    book.save(path)
    return path


def test_a_spreadsheet_has_the_records_of_a_plain_file(tmp_path, iso):
    path = workbook(tmp_path / "t.xlsx", ROWS)
    same(read_with_schema(path, schema(), "label"), iso)
    same(read_with_schema(path, schema(**OFFICE), "label"), iso)


def test_a_spreadsheets_texts_are_read_by_the_schema(tmp_path, iso):
    texts = [row.split(";") for row in office_text().splitlines()[1:]]
    same(read_with_schema(workbook(tmp_path / "t.xlsx", texts), schema(**OFFICE), "label"), iso)


BESIDE = (7.5, True, date(2022, 1, 2), "1,25")
CELLS = (*BESIDE, 1.25, 1.125, 1e-05, 7, "1.125,5", datetime(2022, 1, 2), "2022-01-02", "Zürich", time(3, 4))


def cell_of(tmp_path, name, *cells):
    """The features of the first of some rows with these cells in one column, or None where training refuses."""
    row = {"age": 20, "income": 5.0, "day": date(2022, 1, 2), "city": "Köln", "label": "y"}
    path = workbook(tmp_path / "t.xlsx", [(row | {name: cell}).values() for cell in cells])
    described = schema(**OFFICE) if name == "income" else schema()
    try:
        records = read_with_schema(path, described, "label", clip=True)
    except DataError:
        return None
    return records.X[0].tolist()


@pytest.mark.parametrize("name", ["age", "income", "day", "city"])
def test_what_a_cell_is_read_as_does_not_move_with_another_records(tmp_path, name):
    """The other's type decided it once, and with it how all other records are read."""
    alone = {repr(cell): cell_of(tmp_path, name, cell) for cell in CELLS}
    together = [(cell, cell_of(tmp_path, name, cell, beside)) for cell, beside in product(CELLS, BESIDE)]
    read = [(cell, found) for cell, found in together if found is not None]
    assert [cell for cell, found in read if found != alone[repr(cell)]] == []
    assert read or name == "city"


def test_sheets_are_named_where_there_are_several(tmp_path, iso):
    path = workbook(tmp_path / "t.xlsx", ROWS, notes=[["nothing"]])
    with pytest.raises(DataError, match="'Sheet', 'notes'"):
        read_with_schema(path, schema(), "label")
    same(read_with_schema(path, schema(), "label", sheet="Sheet"), iso)
    for names in (("age", "age", "day", "city", "label"), ("age", 5, "day", "city", "label")):
        with pytest.raises(DataError):
            open_table(workbook(tmp_path / "twice.xlsx", ROWS, names))
    (tmp_path / "bad.xlsx").write_bytes(b"PK\3\4 nothing")
    with pytest.raises(DataError):
        open_table(tmp_path / "bad.xlsx")


def test_a_bad_cell_is_named_by_its_row(tmp_path):
    rows = [*ROWS[:3], (None,) * 5, (20, 5.0, date(2022, 1, 2), "Bonn", "y")]
    with pytest.raises(DataError, match=r"row 6, column 'city'"):
        read_with_schema(workbook(tmp_path / "t.xlsx", rows), schema(), "label")


def test_records_without_a_label_are_refused_or_left_out(tmp_path, iso):
    lines = iso_text().splitlines()
    lines[7:7] = ["30,5.0,2022-05-05,Köln,"]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n", "utf-8")
    with pytest.raises(DataError, match=r"line 8, column 'label'"):
        read_with_schema(tmp_path / "t.csv", schema(), "label")
    same(read_with_schema(tmp_path / "t.csv", schema(), "label", unlabelled="leave-out"), iso)
    lines[10] = lines[10].replace("2022", "1022")
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n", "utf-8")
    with pytest.raises(DataError, match=r"line 11, column 'day'"):
        read_with_schema(tmp_path / "t.csv", schema(), "label", unlabelled="leave-out")


def test_a_table_without_a_schema_has_a_decimal_sign_for_all_numbers(tmp_path):
    (tmp_path / "t.csv").write_text("x;label\n0,5;y\n1;n\n", "utf-8")
    given = {"label": "label", "classes": ("y", "n"), "bounds": ("0:1",)}
    records = read_numbers(tmp_path / "t.csv", **given, decimal=",")
    assert records.X[:, 0].tolist() == [0.5, 1.0]
    with pytest.raises(DataError):
        read_numbers(tmp_path / "t.csv", **given)


def test_every_byte_order_mark_is_no_part_of_a_name(tmp_path):
    (tmp_path / "t.csv").write_bytes(codecs.BOM_UTF8 + b"x,label\n1,y\n")
    assert open_table(tmp_path / "t.csv").names == open_table(tmp_path / "t.csv", "utf-8").names == ("x", "label")
