"""Tables wherever they are: files, folders and object stores that Arrow reads, and data frames in memory.

A table comes in batches, so that what it takes does not grow with its rows, and every row has a place that an error can
name. Nothing here interprets a value: CSV is read as text. A spreadsheet alone is read whole.
"""

import codecs
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pa_parquet

from dpserve.accounting.messages import Message
from dpserve.training.errors import DataError, extra
from dpserve.training.inputs.csv_files import LONGEST_HEADER, CsvFile
from dpserve.training.inputs.sheet_bounds import check_sheets
from dpserve.training.inputs.table_parts import Batch, Table, TablePart, check_distinct, one_line, reading

__all__ = ["Batch", "Table"]

_BATCH = 2**14
"""Records of a batch, where the source leaves it to us."""
_BUFFER = 2**18
"""Bytes of each column of a Parquet file that are read at once."""
_TEXT_FILES = {".csv", ".tsv"}
_SPREADSHEETS = {".xlsx", ".xlsm", ".xls", ".ods"}
_FORMATS = {".parquet": "parquet", ".pq": "parquet", ".feather": "feather", ".arrow": "feather", ".ipc": "feather"}
_COMPRESSED = {".gz", ".bz2", ".zst", ".lz4", ".br"}


def open_table(source: Any, encoding: str | None = None, sheet: str | None = None) -> Table:
    """Open a table.

    source: the path or the URL (file://, s3://, gs://, hdfs://) of a CSV, Parquet, Feather or spreadsheet file or of a
    folder of such files, compressed or not, by the ends of their names; or an object with `__arrow_c_stream__`, as
    Arrow tables and the data frames of pandas and Polars are. A CSV file's delimiter is the one of `,;|^`, tab and
    \\x01 that its header has most of. encoding: of CSV files, by Python's name; None for UTF-8; other files say their
    own. sheet: a spreadsheet's; None for the only one. Raises DataError for what cannot be read.
    """
    if hasattr(source, "__arrow_c_stream__"):
        return _stream(source)
    if not isinstance(source, str | Path):
        raise DataError(f"a table is a path, a URL or a data frame, not {type(source).__name__}")
    with reading(str(source)):
        files, paths = _files_of(str(source))
    kinds = {_kind(path) for path in paths}
    if len(kinds) != 1:
        raise DataError(f"{source} holds files of several kinds: {', '.join(sorted(map(str, kinds)))}")
    (kind,) = kinds
    if sheet is not None and kind not in (None, "sheets"):
        raise DataError(f"{source} has no sheet to choose: spreadsheets have sheets")
    if kind is None:
        formats = ", ".join(sorted(_TEXT_FILES | _SPREADSHEETS | _FORMATS.keys()))
        raise DataError(f"{source} is no table that can be read: a file ends in {formats}, or in one of these and .gz")
    name = Path(str(source)).name
    if kind == "csv":
        return _csv_table(name, files, paths, encoding)
    if kind == "sheets":
        with reading(name):
            return _same_columns(name, [_Sheet(Path(path).name, files, path, sheet) for path in paths])
    return _column_files(name, str(source), files, paths, kind)


def encoding_of(source: str) -> str | None:
    """Return an encoding that fits the first bytes of a CSV file; None for UTF-8 and other files. Raises DataError."""
    with reading(source):
        files, paths = _files_of(source)
        if _kind(paths[0]) != "csv" or Path(paths[0]).suffix.lower() in _COMPRESSED:
            return None
        with files.open_input_stream(paths[0]) as opened:
            start = opened.read(LONGEST_HEADER)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return next((encoding for encoding in (None, "windows-1252") if _decodes(start, encoding or "utf-8")), "latin-1")


def _decodes(start: bytes, encoding: str) -> bool:
    """Tell whether the first bytes of a text are valid in an encoding."""
    try:
        codecs.getincrementaldecoder(encoding)().decode(start)
    except UnicodeDecodeError:
        return False
    return True


def files_of(source: str) -> list[str]:
    """Return the files of a table, in order, each as `open_table` takes it. Raises DataError."""
    with reading(source):
        _, paths = _files_of(source)
    scheme, separator, _ = source.rpartition("://")
    return [f"{scheme}{separator}{path}" for path in paths]


def _files_of(source: str) -> tuple[pa_fs.FileSystem, list[str]]:
    """Return the file system and the paths of a table's files, in order."""
    files, path = pa_fs.FileSystem.from_uri(source if "://" in source else str(Path(source).absolute()))
    info = files.get_file_info(path)
    if info.type == pa_fs.FileType.NotFound and _kind(path) is not None:
        raise DataError(f"cannot read {source}: No such file or directory")
    if info.type != pa_fs.FileType.Directory:
        return files, [path]
    inside = files.get_file_info(pa_fs.FileSelector(path, recursive=True))
    paths = [file.path for file in inside if file.is_file and not file.base_name.startswith((".", "_"))]
    if not paths:
        raise DataError(f"the folder {source} holds no files")
    return files, sorted(paths)


def _kind(path: str) -> str | None:
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
        return "csv" if suffixes and suffixes[-1] in _TEXT_FILES else None
    if not suffixes:
        return None
    if suffixes[-1] in _SPREADSHEETS:
        return "sheets"
    return "csv" if suffixes[-1] in _TEXT_FILES else _FORMATS.get(suffixes[-1])


class _Sheet(TablePart):
    """A sheet of a spreadsheet, which is read whole."""

    def __init__(self, name: str, files: pa_fs.FileSystem, path: str, sheet: str | None) -> None:
        """sheet: its name; None for the only one."""
        super().__init__(name, path)
        with extra("excel", "reading spreadsheets"):
            from python_calamine import CalamineError, CalamineWorkbook
        with files.open_input_file(path) as opened:
            content = opened.read()
        try:
            check_sheets(content)
        except ValueError as error:
            raise DataError(f"{name}: {error}") from None
        try:
            book = CalamineWorkbook.from_filelike(io.BytesIO(content))
            names = book.sheet_names
            if (sheet is None and len(names) != 1) or sheet not in (None, *names):
                raise DataError(
                    Message(
                        "{} has the sheets {}: name the one to read, with {sheet}", name, ", ".join(map(repr, names))
                    )
                )
            rows = book.get_sheet_by_name(names[0] if sheet is None else sheet).to_python(skip_empty_area=False)
        except CalamineError as error:
            raise DataError(f"{name} is damaged or of another kind: {one_line(error)}") from error
        self.names, self._rows = self._header(rows[0] if rows else []), rows[1:]

    def _header(self, row: Sequence[Any]) -> list[str]:
        while row and row[-1] == "":
            row = row[:-1]
        names = [str(cell).strip() for cell in row]
        if not names or not all(isinstance(cell, str) for cell in row):
            raise DataError(f"{self.name}: the first row of the sheet must name the columns")
        check_distinct(names, f"{self.name}, row 1")
        return names

    def place(self, row: int) -> str:
        """Return the row's number in the sheet, from 1, as spreadsheets count."""
        return f"row {[at for at, cells in enumerate(self._rows, 2) if any(cell != '' for cell in cells)][row]}"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; those that are empty are left out."""
        rows = [row for row in self._rows if any(cell != "" for cell in row)]
        width = len(self.names)
        for start in range(0, len(rows), _BATCH):
            some = rows[start : start + _BATCH]
            for offset, each in enumerate(some):
                if any(cell != "" for cell in each[width:]):
                    raise DataError(f"{self.name}, {self.place(start + offset)}: a value in a column without a name")
            yield pa.record_batch([_cells([row[at] for row in some]) for at in range(width)], names=self.names)


def _cells(values: list[Any]) -> pa.Array:
    """Return a column of a sheet: in the type of its cells, or where they have several types a struct of one of each.

    What a cell is read as then follows from itself alone, whatever cells are beside it: records of others must not move
    with one record. An empty cell is an empty text, or null among values of another type.
    """
    values = [value if type(value) in _KIND_OF_CELL else str(value) for value in values]  # a time of day, too
    kinds = [_KIND_OF_CELL.get(type(value), "text") for value in values]
    fields = {kind: None for kind, value in zip(kinds, values, strict=True) if value != ""}
    if len(fields) < 2:
        kind = next(iter(fields), "text")
        return pa.array([(None if value == "" and kind != "text" else value) for value in values], _CELLS[kind])
    arrays = [
        pa.array(
            [value if own == kind and value != "" else None for own, value in zip(kinds, values, strict=True)], type_
        )
        for kind, type_ in _CELLS.items()
        if kind in fields
    ]
    return pa.StructArray.from_arrays(arrays, [kind for kind in _CELLS if kind in fields])


_KIND_OF_CELL = {int: "number", float: "number", bool: "boolean", datetime: "datetime", date: "date"}
_CELLS = {
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "datetime": pa.timestamp("us"),
    "date": pa.date32(),
    "text": pa.string(),
}
"""The type of each kind of cell."""


def _csv_table(name: str, files: pa_fs.FileSystem, paths: list[str], encoding: str | None) -> Table:
    with reading(name):
        return _same_columns(name, [CsvFile(Path(path).name, files, path, encoding) for path in paths])


def _same_columns(name: str, parts: "Sequence[CsvFile | _Sheet]") -> Table:
    """Return the table of several files. Raises DataError where one has other columns than the first."""
    for part in parts[1:]:
        if part.names != parts[0].names:
            raise DataError(f"{part.name} has other columns than {parts[0].name}: {', '.join(part.names)}")
    return Table(name, tuple(parts[0].names), (None,) * len(parts[0].names), tuple(parts))


class _ColumnFile(TablePart):
    """A Parquet or Feather file, by itself or one of a table."""

    def __init__(self, files: pa_fs.FileSystem, path: str, kind: str) -> None:
        """Read the columns' types. kind: parquet or feather."""
        super().__init__(Path(path).name, path)
        self._files, self._kind = files, kind
        self._share = 0.0
        with reading(self.name), self._opened() as opened:
            self.schema = _without_index(opened.schema_arrow if kind == "parquet" else opened.schema)
        self.whole = self.schema
        """The columns of the table."""
        self.folders: Mapping[str, Any] = {}
        """Values of columns that its folders' names give."""

    @property
    def share(self) -> float:
        """Share of its rows that has been read."""
        return self._share

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        with reading(self.name), self._opened() as opened:
            for data, share in (self._parquet if self._kind == "parquet" else self._feather)(opened):
                self._share = share
                held = dict(zip(data.schema.names, data.columns, strict=True))
                columns = [
                    held[field.name].cast(field.type)
                    if field.name in held
                    else pa.repeat(pa.scalar(self.folders.get(field.name), field.type), data.num_rows)
                    for field in self.whole
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=self.whole)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with self._files.open_input_file(self.path) as source:
            if self._kind == "parquet":
                with pa_parquet.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER) as opened:
                    yield opened
            else:
                with pa.ipc.open_file(source) as opened:
                    yield opened

    def _parquet(self, opened: pa_parquet.ParquetFile) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Yield the rows as they are decoded: Arrow's scanner decodes a group of rows, perhaps the table, at once."""
        done = 0
        for data in opened.iter_batches(_BATCH):
            done += data.num_rows
            yield data, done / opened.metadata.num_rows

    def _feather(self, opened: pa.RecordBatchFileReader) -> Iterator[tuple[pa.RecordBatch, float]]:
        for index in range(opened.num_record_batches):
            data = opened.get_batch(index)
            for start in range(0, data.num_rows, _BATCH):
                yield data.slice(start, _BATCH), (index + 1) / opened.num_record_batches


def _column_files(name: str, source: str, files: pa_fs.FileSystem, paths: list[str], kind: str) -> Table:
    """Return the table of Parquet or Feather files, which has the first one's columns and those of folders' names."""
    parts = tuple(_ColumnFile(files, path, kind) for path in paths)
    schema = parts[0].schema
    if any("=" in folder for path in paths[1:] for folder in Path(path).parts[:-1]):
        # It imports pandas, for which nobody else should wait.
        import pyarrow.dataset as pa_dataset

        base = pa_fs.FileSystem.from_uri(source if "://" in source else str(Path(source).absolute()))[1]
        with reading(name):
            dataset = pa_dataset.dataset(paths, None, kind, files, "hive", base)
            schema = _without_index(dataset.schema)
            folders = {fragment.path: fragment.partition_expression for fragment in dataset.get_fragments()}
        for part in parts:
            part.folders = pa_dataset.get_partition_keys(folders[part.path])
    for part in parts:
        part.whole = schema
    return _typed(name, schema, parts)


class _Stream(TablePart):
    """An object that gives Arrow data, perhaps once only."""

    def __init__(self, source: Any) -> None:
        """source: with `__arrow_c_stream__`."""
        super().__init__("the table")
        self._source = source
        with reading(self.name):
            self._reader: pa.RecordBatchReader | None = pa.RecordBatchReader.from_stream(source)
        self.schema = _without_index(self._reader.schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        reader, self._reader = self._reader, None
        with reading(self.name):
            for batch in reader or pa.RecordBatchReader.from_stream(self._source):
                data = batch.select(self.schema.names)
                for start in range(0, data.num_rows, _BATCH):
                    yield data.slice(start, _BATCH)


def _stream(source: Any) -> Table:
    part = _Stream(source)
    return _typed(part.name, part.schema, (part,))


def _without_index(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a frame of pandas without its index, which Arrow names where it has no name.

    Rows that were picked have one, and their frame has no such column. An index with a name is a column like others.
    """
    index = [column for column in (schema.pandas_metadata or {}).get("index_columns", ()) if isinstance(column, str)]
    unnamed = {column for column in index if re.fullmatch(r"__index_level_\d+__", column)}
    return pa.schema([field for field in schema if field.name not in unnamed])


def _typed(name: str, schema: pa.Schema, parts: tuple[TablePart, ...]) -> Table:
    if len(set(schema.names)) < len(schema.names):
        raise DataError(f"{name}: every column needs a name of its own")
    return Table(name, tuple(schema.names), tuple(_in_words(field.type) for field in schema), parts)


def _in_words(type_: pa.DataType) -> str:
    """Return the type of a schema's field that a storage type is; the storage type itself where there is none."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_boolean(type_):
        return "boolean"
    if pa.types.is_integer(type_):
        return "integer"
    if pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return "number"
    if pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return "string"
    if pa.types.is_date(type_):
        return "date"
    return "datetime" if pa.types.is_timestamp(type_) else str(type_)
