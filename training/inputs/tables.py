"""Tables wherever they are: files, folders and object stores that Arrow reads, and data frames in memory.

A table comes in batches, so that what it takes does not grow with its rows, and every row has a place that an error can
name. Nothing here interprets a value: CSV is read as text. A spreadsheet alone is read whole.
"""

import codecs
import csv
import io
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.fs as pa_fs
import pyarrow.parquet as pa_parquet
from numpy.typing import NDArray

from dpserve.accounting.messages import Message
from dpserve.training.errors import DataError, extra
from dpserve.training.inputs.column import NUMBER
from dpserve.training.inputs.columns import DELIMITERS

LONGEST_LINE = 2**22
"""Bytes of a record in a CSV file, about: also what is read at once, which a processor's cache should hold."""

_BLOCK = LONGEST_LINE
_BATCH = 2**14
"""Records of a batch, where the source leaves it to us."""
_BUFFER = 2**18
"""Bytes of each column of a Parquet file that are read at once."""
_LONGEST_HEADER = 2**20
_LONGEST_WAIT = 60.0
"""Seconds for one block to come, where nobody needs it any more."""
_TEXT_FILES = {".csv", ".tsv"}
_SPREADSHEETS = {".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"}
_FORMATS = {".parquet": "parquet", ".pq": "parquet", ".feather": "feather", ".arrow": "feather", ".ipc": "feather"}
csv.field_size_limit(2 * LONGEST_LINE)  # Python's csv only counts lines here, for messages, of what Arrow has read
ENCODING_ADVICE = Message(
    ': declare its encoding, as {encoding:windows-1252} or latin-1, or in its schema, as "encoding": "windows-1252"'
)
_COMPRESSED = {".gz", ".bz2", ".zst", ".lz4", ".br"}


@dataclass(frozen=True, eq=False)
class Batch:
    """Some records that follow each other. first: how many of the same file came before.

    kept: (n,), the places of these rows among those that follow each other, where some were left out.
    """

    data: pa.RecordBatch
    part: "_Part"
    first: int
    kept: NDArray[np.int64] | None = None

    def place(self, row: int) -> str:
        """Return where a row of the batch is, for people: "line 7" of a CSV file, and else "row 5", from 0."""
        return self.part.place(self.first + (row if self.kept is None else int(self.kept[row])))

    def only(self, rows: NDArray[np.bool_]) -> "Batch":
        """Return these rows (n,) alone."""
        kept = np.flatnonzero(rows)
        return replace(self, data=self.data.filter(pa.array(rows)), kept=kept if self.kept is None else self.kept[kept])


class _Part:
    """A file of a table, or a stream. delimiter: between a CSV file's columns."""

    delimiter: str | None = None

    def __init__(self, name: str, path: str = "") -> None:
        """name: for people. path: which file of the table it is."""
        self.name, self.path = name, path

    def place(self, row: int) -> str:
        """Return where a row is, by its index in the file."""
        return f"row {row}"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        raise NotImplementedError

    @property
    def share(self) -> float:
        """Share of it that has been read, from 0 to 1, as far as is known."""
        return 0.0


@dataclass(frozen=True, eq=False)
class Table:
    """A table that is open. names: its columns; types: for each its storage type in words, None where it is text.

    name: where it comes from, for people.
    """

    name: str
    names: tuple[str, ...]
    types: tuple[str | None, ...]
    _parts: tuple[_Part, ...]

    @property
    def delimiter(self) -> str | None:
        """The sign between the columns of a CSV file, the first of several; None of other files."""
        return next((part.delimiter for part in self._parts), None)

    def batches(self) -> Iterator[tuple[Batch, float]]:
        """Yield the records with the share of all that has been read. Raises DataError that names the place."""
        for index, part in enumerate(self._parts):
            first = 0
            for data in part.batches():
                if data.num_rows:
                    yield Batch(data, part, first), (index + part.share) / len(self._parts)
                    first += data.num_rows


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
    with _errors(str(source)):
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
        with _errors(name):
            return _same_columns(name, [_Sheet(Path(path).name, files, path, sheet) for path in paths])
    return _column_files(name, str(source), files, paths, kind)


def encoding_of(source: str) -> str | None:
    """Return an encoding that fits the first bytes of a CSV file; None for UTF-8 and other files. Raises DataError."""
    with _errors(source):
        files, paths = _files_of(source)
        if _kind(paths[0]) != "csv" or Path(paths[0]).suffix.lower() in _COMPRESSED:
            return None
        with files.open_input_stream(paths[0]) as opened:
            start = opened.read(_LONGEST_HEADER)
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
    with _errors(source):
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
    paths = [each.path for each in inside if each.is_file and not each.base_name.startswith((".", "_"))]
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


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """Say what Arrow refuses in one line."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot read {name}: {error.strerror or _one_line(error)}") from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{name} is damaged or of another kind: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."


def _check_distinct(names: Sequence[str], where: str) -> None:
    twice = {name for name, count in Counter(names).items() if count > 1}
    if twice or "" in names:
        raise DataError(f"{where}: every column needs a name of its own; look at {sorted(twice) or ''!r}")


class _CsvFile(_Part):
    """A CSV file."""

    def __init__(self, name: str, files: pa_fs.FileSystem, path: str, encoding: str | None = None) -> None:
        """Read the header. encoding: of the file; None for UTF-8."""
        super().__init__(name, path)
        self._files, self._path, self._encoding = files, path, encoding
        self._share = 0.0
        self._size = max(files.get_file_info(path).size or 1, 1)
        self.names, self._delimiter = self._header()
        self.delimiter = self._delimiter

    @property
    def share(self) -> float:
        """Share of the file's bytes that has been read."""
        return self._share

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, every value as text."""
        with self._opened() as (raw, text):
            try:
                for data in self._reader(text, [], threads=True):
                    self._share = min(raw.bytes / self._size, 1.0)
                    if text.holds_nul:
                        break
                    yield data
            except (pa.ArrowException, OSError) as error:
                self._refuse(error)
            if text.holds_nul:
                raise DataError(f"{self.name}, line {self._line_of_nul()}: holds a NUL character, which is no text")
            if text.quotes % 2:
                raise DataError(f"{self.name}: {self._unclosed()}")

    def _reader(self, text: "_Counted", invalid: list[pa_csv.InvalidRow], *, threads: bool) -> Iterator[pa.RecordBatch]:
        """Yield the rows. invalid: is given the first row with too many or too few values, if there is one."""

        def refuse(row: pa_csv.InvalidRow) -> str:
            invalid.append(row)
            return "error"

        returned = threading.Event()
        try:
            yield from pa_csv.open_csv(
                pa.PythonFile(_Lent(text, returned), "r"),
                pa_csv.ReadOptions(
                    use_threads=threads, block_size=_BLOCK, column_names=self.names, skip_rows_after_names=1
                ),
                pa_csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=refuse),
                pa_csv.ConvertOptions(
                    column_types=dict.fromkeys(self.names, pa.string()), strings_can_be_null=False, null_values=[]
                ),
            )
        finally:
            text.ended = True
            returned.wait(_LONGEST_WAIT)

    def place(self, row: int) -> str:
        """Return the line on which a row ends; where lines cannot be counted, its number."""
        before = -1
        try:
            with self._lines() as lines:
                reader = csv.reader(lines, delimiter=self._delimiter)
                for each in reader:
                    before += bool(each)
                    if before == row + 1:
                        return f"line {reader.line_num}"
        except (csv.Error, OSError, pa.ArrowException, UnicodeDecodeError):
            pass
        return f"record {row + 1}"

    def _line_of_nul(self) -> int:
        line = 1
        with self._opened() as (_, stream):
            while content := stream.read(_BLOCK):
                before, nul, _ = content.partition(b"\0")
                line += before.count(b"\n")
                if nul:
                    break
        return line

    def _unclosed(self) -> str:
        """Say where a quote is not closed."""
        number = 0
        try:
            with self._lines() as lines:
                reader = csv.reader(lines, delimiter=self._delimiter, strict=True)
                for _ in reader:
                    number = reader.line_num
        except (csv.Error, OSError, pa.ArrowException, UnicodeDecodeError):
            return f"a quote is opened and not closed after line {number}"
        return 'a value holds a single ": write it as "" in quotes'

    def _refuse(self, first: Exception) -> None:
        """Say what Arrow refuses, and where. Reads the file again by one thread, which alone counts rows."""
        error, done = first, 0
        invalid: list[pa_csv.InvalidRow] = []
        try:
            with self._opened() as (_, again):
                for data in self._reader(again, invalid, threads=False):
                    done += data.num_rows
        except (pa.ArrowException, OSError) as second:
            error = second
        text = str(error)
        if invalid:
            row = invalid[0]
            opened = "; a quote is opened and not closed" if row.text.count('"') % 2 else ""
            raise DataError(
                f"{self.name}, {self.place(row.number - 2)}: {row.actual_columns} values, and the header has "
                f"{row.expected_columns} columns{opened}"
            ) from None
        if "straddling" in text:
            raise DataError(
                f"{self.name}, {self._after(done)}: a record is longer than {LONGEST_LINE // 2**20} MiB, or a quote is "
                "opened and not closed"
            ) from None
        if "UTF8" in text:
            raise DataError(
                Message("{}, {}: is not UTF-8 text{}", self.name, self._after(done), ENCODING_ADVICE)
            ) from None
        with _errors(self.name):
            raise error

    def _after(self, done: int) -> str:
        return f"after {self.place(done - 1)}" if done else "after line 1"

    def _header(self) -> tuple[list[str], str]:
        with _errors(self.name), self._opened() as (_, stream):
            start = stream.read(_LONGEST_HEADER)
        try:
            text = start.decode("utf-8-sig", errors="strict" if len(start) < _LONGEST_HEADER else "ignore")
        except UnicodeDecodeError as error:
            if error.start < max(start.find(b"\n"), 1):
                raise DataError(
                    Message("{} is not UTF-8 text (byte {}){}", self.name, error.start, ENCODING_ADVICE)
                ) from error
            text = start.decode("utf-8-sig", errors="replace")
        line = text.lstrip("\r\n").partition("\n")[0]
        if len(line) >= _LONGEST_HEADER - 8:
            raise DataError(f"{self.name}, line 1 is longer than 1 MiB; it must name the columns")
        delimiter = max(DELIMITERS, key=line.count)
        names = [name.strip() for name in next(csv.reader(io.StringIO(text.lstrip("\r\n")), delimiter=delimiter), [])]
        if not names or not line.strip():
            raise DataError(f"{self.name} is empty; its first line must name the columns")
        _check_distinct(names, f"{self.name}, line 1")
        if all(NUMBER.fullmatch(name) for name in names):
            raise DataError(f"{self.name}, line 1 holds numbers; the first line must name the columns")
        return names, delimiter

    @contextmanager
    def _opened(self) -> Iterator[tuple["_Counted", "_Counted"]]:
        """Open the file; yield its bytes, and its text, which is another stream where it is compressed."""
        suffix = Path(self._path).suffix.lower()
        codec = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}.get(suffix)
        with self._files.open_input_stream(self._path, compression=None) as opened:
            raw = _Counted(opened)
            content: Any = pa.CompressedInputStream(pa.PythonFile(raw, "r"), codec) if codec else raw
            if self._encoding is not None:
                content = _Transcoded(content, self._encoding)
            yield raw, raw if content is raw else _Counted(content)

    @contextmanager
    def _lines(self) -> Iterator[io.TextIOWrapper]:
        with self._opened() as (_, stream):
            yield io.TextIOWrapper(io.BufferedReader(stream), encoding="utf-8-sig", newline="")


class _Transcoded:
    """A stream of text in another encoding, as UTF-8."""

    def __init__(self, stream: Any, encoding: str) -> None:
        """stream: has `read`."""
        self._stream, self._encoding = stream, encoding
        self._decoder, self._rest = codecs.getincrementaldecoder(encoding)(), b""

    def read(self, size: int | None = None) -> bytes:
        """Return the next bytes, at most `size` of them; none at the end. Raises UnicodeDecodeError."""
        while not self._rest:
            content = self._stream.read(-1 if size is None else size)
            self._rest = self._decoder.decode(bytes(content), final=not content).encode()
            if not content:
                break
        chunk, self._rest = self._rest[:size], b"" if size is None else self._rest[size:]
        return chunk


class _Lent:
    """A stream that Arrow reads, by a thread of its own that is ahead of us, and longer there than we need it.

    A thread that still asks for bytes when Python ends never comes back, and Arrow waits for it for ever: so whoever
    lends a stream waits until it is returned.
    """

    closed = False

    def __init__(self, stream: "_Counted", returned: threading.Event) -> None:
        """returned: set when nobody can read any more."""
        self._stream = stream
        weakref.finalize(self, returned.set)

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        stream = self._stream
        del self  # an error's traceback would hold it
        return stream.read(size)


class _Counted(io.RawIOBase):
    """A stream of bytes that counts them and its quotes, and notices NUL. ended: give no more."""

    ended = False

    def __init__(self, stream: pa.NativeFile) -> None:
        """stream: what is read."""
        super().__init__()
        self._stream = stream
        self.quotes = self.bytes = 0
        self.holds_nul = False

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes."""
        content: bytes = b"" if self.ended else self._stream.read(size if size >= 0 else None)
        self.quotes += content.count(b'"')
        self.holds_nul |= b"\0" in content
        self.bytes += len(content)
        return content

    def readinto(self, buffer: Any, /) -> int:
        """Read the next bytes into a buffer."""
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


class _Sheet(_Part):
    """A sheet of a spreadsheet, which is read whole."""

    def __init__(self, name: str, files: pa_fs.FileSystem, path: str, sheet: str | None) -> None:
        """sheet: its name; None for the only one."""
        super().__init__(name, path)
        with extra("excel", "reading spreadsheets"):
            from python_calamine import CalamineError, CalamineWorkbook
        with files.open_input_file(path) as opened:
            content = opened.read()
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
            raise DataError(f"{name} is damaged or of another kind: {_one_line(error)}") from error
        self.names, self._rows = self._header(rows[0] if rows else []), rows[1:]

    def _header(self, row: Sequence[Any]) -> list[str]:
        while row and row[-1] == "":
            row = row[:-1]
        names = [str(each).strip() for each in row]
        if not names or not all(isinstance(each, str) for each in row):
            raise DataError(f"{self.name}: the first row of the sheet must name the columns")
        _check_distinct(names, f"{self.name}, row 1")
        return names

    def place(self, row: int) -> str:
        """Return the row's number in the sheet, from 1, as spreadsheets count."""
        return f"row {[at for at, each in enumerate(self._rows, 2) if any(cell != '' for cell in each)][row]}"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; those that are empty are left out."""
        rows = [each for each in self._rows if any(cell != "" for cell in each)]
        width = len(self.names)
        for start in range(0, len(rows), _BATCH):
            some = rows[start : start + _BATCH]
            for offset, each in enumerate(some):
                if any(cell != "" for cell in each[width:]):
                    raise DataError(f"{self.name}, {self.place(start + offset)}: a value in a column without a name")
            yield pa.record_batch([_cells([each[at] for each in some]) for at in range(width)], names=self.names)


def _cells(values: list[Any]) -> pa.Array:
    """Return a column of a sheet: in the type of its cells, or as texts where they have several types.

    An empty cell is an empty text, or null among values of another type. A number among texts gets a last 0 after its
    point, so that none has three digits there, as groups of digits have.
    """
    present = [each for each in values if each != ""]
    kinds = {type(each) for each in present}
    if present and kinds <= {int, float}:
        return pa.array([None if each == "" else float(each) for each in values], pa.float64())
    if present and (kinds == {bool} or kinds <= {date, datetime}):
        given = [None if each == "" else each for each in values]
        if datetime in kinds:
            given = [datetime.combine(each, time()) if type(each) is date else each for each in given]
        return pa.array(given)
    return pa.array([_cell_text(each) for each in values], pa.string())


def _cell_text(value: Any) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else f"{value!r}0"
    return str(value)


def _csv_table(name: str, files: pa_fs.FileSystem, paths: list[str], encoding: str | None) -> Table:
    with _errors(name):
        return _same_columns(name, [_CsvFile(Path(path).name, files, path, encoding) for path in paths])


def _same_columns(name: str, parts: "Sequence[_CsvFile | _Sheet]") -> Table:
    """Return the table of several files. Raises DataError where one has other columns than the first."""
    for part in parts[1:]:
        if part.names != parts[0].names:
            raise DataError(f"{part.name} has other columns than {parts[0].name}: {', '.join(part.names)}")
    return Table(name, tuple(parts[0].names), (None,) * len(parts[0].names), tuple(parts))


class _ColumnFile(_Part):
    """A Parquet or Feather file, by itself or one of a table."""

    def __init__(self, files: pa_fs.FileSystem, path: str, kind: str) -> None:
        """Read the columns' types. kind: parquet or feather."""
        super().__init__(Path(path).name, path)
        self._files, self._kind = files, kind
        self._share = 0.0
        with _errors(self.name), self._opened() as opened:
            self.schema: pa.Schema = opened.schema_arrow if kind == "parquet" else opened.schema
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
        with _errors(self.name), self._opened() as opened:
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
        with _errors(name):
            dataset = pa_dataset.dataset(paths, None, kind, files, "hive", base)
            schema = dataset.schema
            folders = {each.path: each.partition_expression for each in dataset.get_fragments()}
        for part in parts:
            part.folders = pa_dataset.get_partition_keys(folders[part.path])
    for part in parts:
        part.whole = schema
    return _typed(name, schema, parts)


class _Stream(_Part):
    """An object that gives Arrow data, perhaps once only."""

    def __init__(self, source: Any) -> None:
        """source: with `__arrow_c_stream__`."""
        super().__init__("the table")
        self._source = source
        with _errors(self.name):
            self._reader: pa.RecordBatchReader | None = pa.RecordBatchReader.from_stream(source)
        self.schema = self._reader.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        reader, self._reader = self._reader, None
        with _errors(self.name):
            for data in reader or pa.RecordBatchReader.from_stream(self._source):
                for start in range(0, data.num_rows, _BATCH):
                    yield data.slice(start, _BATCH)


def _stream(source: Any) -> Table:
    part = _Stream(source)
    return _typed(part.name, part.schema, (part,))


def _typed(name: str, schema: pa.Schema, parts: tuple[_Part, ...]) -> Table:
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
