"""CSV files, whose values are read as text."""

import codecs
import csv
import io
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.fs as pa_fs

from dpserve.accounting.messages import Message
from dpserve.training.errors import DataError
from dpserve.training.inputs.column import NUMBER
from dpserve.training.inputs.columns import DELIMITERS
from dpserve.training.inputs.table_parts import TablePart, check_distinct, reading

LONGEST_LINE = 2**22
"""Bytes of a record in a CSV file, about: also what is read at once, which a processor's cache should hold."""

_BLOCK = LONGEST_LINE
LONGEST_HEADER = 2**20
_LONGEST_WAIT = 60.0
"""Seconds for one block to come, where nobody needs it any more."""
csv.field_size_limit(2 * LONGEST_LINE)  # Python's csv only counts lines here, for messages, of what Arrow has read
ENCODING_ADVICE = Message(
    ': declare its encoding, as {encoding:windows-1252} or latin-1, or in its schema, as "encoding": "windows-1252"'
)


class CsvFile(TablePart):
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
        done = 0
        invalid: list[pa_csv.InvalidRow] = []
        with self._opened() as (raw, text):
            try:
                for data in self._reader(text, invalid):
                    self._share = min(raw.bytes / self._size, 1.0)
                    if text.holds_nul:
                        break
                    yield data
                    done += data.num_rows
            except (pa.ArrowException, OSError) as error:
                self._refuse(error, invalid, done)
            if text.holds_nul:
                raise DataError(f"{self.name}, line {self._line_of_nul()}: holds a NUL character, which is no text")
            if text.quotes % 2:
                raise DataError(f"{self.name}: {self._unclosed()}")

    def _reader(self, text: "_Counted", invalid: list[pa_csv.InvalidRow]) -> Iterator[pa.RecordBatch]:
        """Yield the rows. invalid: is given the first row with too many or too few values, if there is one.

        One thread parses, which alone counts rows. Others would save less time than is then spent on the values.
        """

        def refuse(row: pa_csv.InvalidRow) -> str:
            invalid.append(row)
            return "error"

        returned = threading.Event()
        try:
            yield from pa_csv.open_csv(
                pa.PythonFile(_Lent(text, returned), "r"),
                pa_csv.ReadOptions(
                    use_threads=False, block_size=_BLOCK, column_names=self.names, skip_rows_after_names=1
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
                for line in reader:
                    before += bool(line)
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

    def _refuse(self, error: Exception, invalid: list[pa_csv.InvalidRow], done: int) -> None:
        """Say what Arrow refuses, and where: behind so many rows."""
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
        with reading(self.name):
            raise error

    def _after(self, done: int) -> str:
        return f"after {self.place(done - 1)}" if done else "after line 1"

    def _header(self) -> tuple[list[str], str]:
        with reading(self.name), self._opened() as (_, stream):
            start = stream.read(LONGEST_HEADER)
        try:
            text = start.decode("utf-8-sig", errors="strict" if len(start) < LONGEST_HEADER else "ignore")
        except UnicodeDecodeError as error:
            if error.start < max(start.find(b"\n"), 1):
                raise DataError(
                    Message("{} is not UTF-8 text (byte {}){}", self.name, error.start, ENCODING_ADVICE)
                ) from error
            text = start.decode("utf-8-sig", errors="replace")
        line = text.lstrip("\r\n").partition("\n")[0]
        if len(line) >= LONGEST_HEADER - 8:
            raise DataError(f"{self.name}, line 1 is longer than 1 MiB; it must name the columns")
        delimiter = max(DELIMITERS, key=line.count)
        names = [name.strip() for name in next(csv.reader(io.StringIO(text.lstrip("\r\n")), delimiter=delimiter), [])]
        if not names or not line.strip():
            raise DataError(f"{self.name} is empty; its first line must name the columns")
        check_distinct(names, f"{self.name}, line 1")
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
