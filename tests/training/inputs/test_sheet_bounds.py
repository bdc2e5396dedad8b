"""Spreadsheets whose cells lie far apart are refused before a reader lays them out."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import openpyxl
import pytest

from dpserve.training.errors import DataError
from dpserve.training.inputs.sheet_bounds import check_sheets
from dpserve.training.inputs.tables import open_table


def book(cells: dict[str, object]) -> bytes:
    made = openpyxl.Workbook()
    for place, value in cells.items():
        made.active[place] = value  # type: ignore[index]
    written = io.BytesIO()
    made.save(written)
    return written.getvalue()


def rewritten(content: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Return a workbook whose sheet has other XML."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as after:
        for name in before.namelist():
            part = before.read(name)
            after.writestr(name, change(part) if "worksheets/" in name else part)
    return written.getvalue()


NAMED = {"A1": "age", "B1": "ok"}
FAR = [
    NAMED | {f"XFD{row}": 1 for row in range(2, 1000)},
    NAMED | {"AAA200000": 1},
    NAMED | {"C1048576": 1, "D2": 1},
]


@pytest.mark.parametrize("cells", FAR, ids=["last column", "one cell", "last row"])
def test_cells_far_apart_are_refused_and_never_laid_out(tmp_path: Path, cells: dict[str, object]) -> None:
    (tmp_path / "far.xlsx").write_bytes(book(cells))
    with pytest.raises(DataError, match="lie so far apart"):
        open_table(tmp_path / "far.xlsx")


def test_no_way_of_writing_the_xml_hides_a_cell() -> None:
    content = book(FAR[1])
    for before, after in ((b'r="AAA200000"', b"r  =  'AAA200000'"), (b"<c ", b"<x:c "), (b"<c r", b"<c\n s='0' r")):
        changed = rewritten(content, lambda part, old=before, new=after: part.replace(old, new))  # type: ignore[misc]
        if b"x:c" in after:
            names = b'<worksheet xmlns:x="http://schemas.openxmlformats.org/spreadsheetml/2006/main" '
            changed = rewritten(
                changed, lambda part, names=names: part.replace(b"<worksheet ", names).replace(b"</c>", b"</x:c>")
            )
        with pytest.raises(ValueError, match="far apart"):
            check_sheets(changed)


def test_open_documents_rows_and_cells_that_stand_for_many_are_counted() -> None:
    written = io.BytesIO()
    table = (
        '<a xmlns:table="t" xmlns:office="o"><table:table><table:table-row table:number-rows-repeated="{}">'
        '<table:table-cell table:number-columns-repeated="{}" office:value-type="float"/></table:table-row>'
        "</table:table></a>"
    )
    for rows, columns, is_refused in ((1_000_000, 16_000, True), (3, 4, False)):
        with zipfile.ZipFile(written := io.BytesIO(), "w") as archive:
            archive.writestr("content.xml", table.format(rows, columns))
        if is_refused:
            with pytest.raises(ValueError, match="far apart"):
                check_sheets(written.getvalue())
        else:
            check_sheets(written.getvalue())


@pytest.mark.parametrize("content", [b"", b"PK\3\4 nothing", b"no zip"])
def test_what_is_no_archive_is_left_to_its_reader(content: bytes) -> None:
    check_sheets(content)


def test_a_sheet_with_few_empty_cells_is_read(tmp_path: Path) -> None:
    (tmp_path / "near.xlsx").write_bytes(book(NAMED | {"A2": 1, "B5000": "yes"}))
    assert open_table(tmp_path / "near.xlsx").names == ("age", "ok")
