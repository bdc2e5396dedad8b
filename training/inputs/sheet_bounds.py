"""The rectangle that the cells of a spreadsheet lie in, looked at before it is laid out.

A reader lays a sheet out as a rectangle: a file of a kilobyte that names the last cell of a thousand rows would take
gigabytes, and end the process. So its XML is read once before, by the parser of the standard library, in memory that
does not grow with the sheet.
"""

import io
import zipfile
from collections.abc import Callable, Iterator
from typing import IO
from xml.parsers import expat

_FREE = 1_000_000
"""Cells that are laid out whatever is in them."""
_EMPTY_FOR_EACH = 64
"""Empty cells that are laid out beside each that has something in it."""
_PIECE = 2**16


class _Laid:
    """Counts the cells that have something in them, and the rectangle that they lie in."""

    def __init__(self) -> None:
        self.cells = self.row = self.column = 0
        self._rows = self._columns = 0

    def see(self, row: int, column: int) -> None:
        """Count a cell, by its place from 1."""
        self.cells += 1
        self._rows, self._columns = max(self._rows, row), max(self._columns, column)

    @property
    def rectangle(self) -> int:
        """The number of cells that are laid out."""
        return self._rows * self._columns


def check_sheets(content: bytes) -> None:
    """Raise ValueError for an .xlsx or .ods file with a sheet that would take far more memory than it has cells.

    Other files, and those that are damaged, are left to their reader.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in archive.namelist():
                if name.startswith("xl/worksheets/") and name.endswith(".xml"):
                    with archive.open(name) as sheet:
                        _check(_excel(sheet))
                elif name == "content.xml":
                    with archive.open(name) as sheet:
                        _check(_open_document(sheet))
    except (zipfile.BadZipFile, expat.ExpatError, OSError, EOFError, NotImplementedError):
        return


def _check(sheets: Iterator[_Laid]) -> None:
    for laid in sheets:
        if laid.rectangle > _FREE + _EMPTY_FOR_EACH * laid.cells:
            raise ValueError(
                f"a sheet's {laid.cells:,} cells lie so far apart that {laid.rectangle:,} would be laid out: copy the "
                "table into a sheet of its own"
            )


def _excel(sheet: IO[bytes]) -> Iterator[_Laid]:
    """Yield what is laid out of a worksheet: each cell says its place, or follows the one before."""
    laid = _Laid()

    def start(name: str, attributes: dict[str, str]) -> None:
        kind = name.rpartition(":")[2]
        if kind == "row":
            laid.row, laid.column = _number(attributes.get("r", ""), laid.row + 1), 0
        elif kind == "c":
            letters = attributes.get("r", "").rstrip("0123456789")
            laid.column = _column(letters) if letters else laid.column + 1
            laid.row = _number(attributes.get("r", "")[len(letters) :], laid.row)
            laid.see(laid.row, laid.column)

    _parse(sheet, start)
    yield laid


def _open_document(sheet: IO[bytes]) -> Iterator[_Laid]:
    """Yield what is laid out of each table: a row or a cell may stand for many that are equal."""
    tables: list[_Laid] = []
    times = 1

    def start(name: str, prefixed: dict[str, str]) -> None:
        nonlocal times
        kind = name.rpartition(":")[2]
        attributes = {each.rpartition(":")[2]: value for each, value in prefixed.items()}
        if kind == "table":
            tables.append(_Laid())
        elif kind == "table-row" and tables:
            times = _number(attributes.get("number-rows-repeated", ""), 1)
            tables[-1].row, tables[-1].column = tables[-1].row + times, 0
        elif kind in ("table-cell", "covered-table-cell") and tables:
            laid = tables[-1]
            laid.column += _number(attributes.get("number-columns-repeated", ""), 1)
            if "value-type" in attributes:
                laid.see(laid.row, laid.column)

    _parse(sheet, start)
    yield from tables


def _parse(sheet: IO[bytes], start: Callable[[str, dict[str, str]], None]) -> None:
    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    while piece := sheet.read(_PIECE):
        parser.Parse(piece, False)
    parser.Parse(b"", True)


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else otherwise


def _column(letters: str) -> int:
    """Return the number of a column by its letters, as AA: 27."""
    number = 0
    for letter in letters[:7]:
        number = 26 * number + ord(letter.upper()) - ord("A") + 1
    return number
