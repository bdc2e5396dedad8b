"""Tables that are open, in batches, and the parts that they are read from."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpserve.training.errors import DataError


@dataclass(frozen=True, eq=False)
class Batch:
    """Some records that follow each other. first: how many of the same file came before.

    kept: (n,), the places of these rows among those that follow each other, where some were left out.
    """

    data: pa.RecordBatch
    part: "TablePart"
    first: int
    kept: NDArray[np.int64] | None = None

    def place(self, row: int) -> str:
        """Return where a row of the batch is, for people: "line 7" of a CSV file, and else "row 5", from 0."""
        return self.part.place(self.first + (row if self.kept is None else int(self.kept[row])))

    def only(self, rows: NDArray[np.bool_]) -> "Batch":
        """Return these rows (n,) alone."""
        kept = np.flatnonzero(rows)
        return replace(self, data=self.data.filter(pa.array(rows)), kept=kept if self.kept is None else self.kept[kept])


class TablePart:
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
    _parts: tuple[TablePart, ...]

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


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Say what Arrow refuses in one line."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot read {name}: {error.strerror or one_line(error)}") from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{name} is damaged or of another kind: {one_line(error)}") from error


def one_line(error: Exception) -> str:
    """Return what an error says in one line, of at most 300 characters."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."


def check_distinct(names: Sequence[str], where: str) -> None:
    """Raise DataError unless every column has a name, and one of its own. where: for people."""
    twice = {name for name, count in Counter(names).items() if count > 1}
    if twice or "" in names:
        raise DataError(f"{where}: every column needs a name of its own; look at {sorted(twice) or ''!r}")
