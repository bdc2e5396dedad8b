"""Public word vectors: a text as the direction of the weighted sum of its words' vectors.

The vectors come from a public file, as word2vec, GloVe and fastText are distributed. Each is scaled to length 1, and
the r-th word's weighs r / (r + 80): the smooth inverse frequency a / (a + p) of Arora, Liang and Ma (2017), with a =
0.001 and, by Zipf's law, p = 1 / (12.5 r). Such files begin with the commonest word; of one in another order only the
first few hundred weigh less than they should.

What comes of it is a table of whole numbers, sorted by a public hash of the word: 64 bits of BLAKE2b, so that another
word has one's hash with a probability of 2^-28 in a whole file. The SHA-256 of the table's own file is in the
certificate, and everything that is computed from it has the same bits everywhere: sums of whole numbers, one square
root, and single divisions.
"""

import gzip
import hashlib
import io
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from training.errors import BundleError, DataError
from training.regular_files import open_regular

FILE = "word-vectors.npy"
"""In a bundle."""
MOST_WORDS = 2**18
"""Largest number of words used of a file, the first ones: 160 MB of vectors with 300 numbers."""
LARGEST_WIDTH = 1024
"""Numbers of a vector."""
_LONGEST_LINE = 2**16
_HALF_WEIGHT = 80
"""The rank of a word that weighs half as much as a rare one."""
_LENGTH = 2**15 - 1
"""A vector of weight 1."""
LARGEST_ARRAYS = 2**32
"""Bytes of the arrays of an .npz file, which are read whole."""
_AT_ONCE = 2**12

_WORD = re.compile(r"[^\x00-\x20!-/:-@\[-`{-\x7f]+")
_ASCII_LOWER = {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
"""Other letters stay as they are: what is their lower case depends on the version of Unicode."""

Table = NDArray[np.void]
"""Rows (n,) of `word`, its hash, in ascending order, and `vector` (k,), 16-bit whole numbers."""


def words_of(text: str) -> list[str]:
    """Return the words of a text: what stands between spaces and ASCII's punctuation, with ASCII's letters small."""
    return _WORD.findall(text.translate(_ASCII_LOWER))


class WordVectors:
    """A table of vectors. sha256: of its file, as `content` is. width: numbers of a vector."""

    def __init__(self, table: Table) -> None:
        """Take a table. Raises DataError for what is none."""
        kind = table.dtype
        if table.ndim != 1 or not len(table) or kind.names != ("word", "vector") or kind["word"] != np.dtype("<u8"):
            raise DataError("the array holds no word vectors")
        if kind["vector"].base != np.dtype("<i2") or len(kind["vector"].shape) != 1:
            raise DataError("the array holds no vectors of 16-bit whole numbers")
        self._table = table
        self._hashes = np.ascontiguousarray(table["word"])
        if not (self._hashes[1:] > self._hashes[:-1]).all():
            raise DataError("the words' hashes are not in order")
        self.width = int(kind["vector"].shape[0])
        digest = hashlib.sha256(self._header)
        for start in range(0, len(table), _AT_ONCE):
            digest.update(table[start : start + _AT_ONCE].tobytes())
        self.sha256 = digest.hexdigest()

    @property
    def _header(self) -> bytes:
        written = io.BytesIO()
        np.lib.format.write_array_header_1_0(written, np.lib.format.header_data_from_array_1_0(self._table))
        return written.getvalue()

    def content(self) -> bytes:
        """Return its file, in NumPy's format."""
        return self._header + self._table.tobytes()

    def direction(self, words: list[str]) -> NDArray[np.float64] | None:
        """Return the direction of the sum of the words' vectors, (k,), of length 1 but for rounding; None for none.

        A word that the table lacks adds nothing. Each number s_i / sqrt(S), S being the exact sum of the squares of
        the whole numbers s, is at most 1 in absolute value: s_i^2 <= S, and both roundings are monotone. |s| stays
        below 2^53 for fewer than 2^38 words.
        """
        counted = Counter(map(_hash, words))
        hashes = np.fromiter(counted.keys(), dtype=np.uint64, count=len(counted))
        counts = np.fromiter(counted.values(), dtype=np.int64, count=len(counted))
        places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        is_known = self._hashes[places] == hashes
        places, counts = places[is_known], counts[is_known]
        total = np.zeros(self.width, dtype=np.int64)
        for start in range(0, len(places), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            total += counts[some] @ self._table["vector"][places[some]].astype(np.int64)
        squared = sum(each * each for each in total.tolist())
        return total / math.sqrt(squared) if squared else None


_open: dict[str, WordVectors] = {}
"""Those that were read, by their digests: a table is the same wherever it lies."""


def opened(sha256: str) -> WordVectors | None:
    """Return the table with this digest, if it was read here."""
    return _open.get(sha256)


def read_word_vectors(path: Path) -> WordVectors:
    """Read a public file of word vectors; columns with its digest can encode from then on.

    path: text, as word2vec, GloVe and fastText write it, gzipped or not: a word and its numbers in each line, with or
    without a first line that counts them; .npz with `words` (n,) and `vectors` (n, k); or a bundle's own table. Words
    count with ASCII's letters small, and of those that are the same then the first. Raises DataError that says what is
    wrong and in which line.
    """
    try:
        with path.open("rb") as file:
            start = file.read(6)
        if start == b"\x93NUMPY":
            return _share(_mapped(path))
        with _readable(path):
            return _share(WordVectors(_table(_of_arrays(path) if start[:2] == b"PK" else _of_lines(path, start))))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def open_bundled(folder: Path, sha256: str) -> None:
    """Open a bundle's table, which stays in its file. Raises BundleError for one that is not there or is another."""
    try:
        vectors = _mapped(folder / FILE)
    except (OSError, DataError) as error:
        raise BundleError(f"{folder} lacks its word vectors: cannot read {folder / FILE}: {error}") from error
    if vectors.sha256 != sha256:
        raise BundleError(f"the word vectors have the SHA-256 {vectors.sha256}, and the certificate says {sha256}")
    _share(vectors)


def _share(vectors: WordVectors) -> WordVectors:
    return _open.setdefault(vectors.sha256, vectors)


def _mapped(path: Path) -> WordVectors:
    open_regular(path).close()  # NumPy would wait for a pipe
    try:
        return WordVectors(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise DataError(f"{path.name} is no table of word vectors: {error}") from error


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, BadZipFile) as error:
        raise DataError(f"{path.name} is damaged: {error}") from error
    except ValueError as error:
        raise DataError(f"{path.name} holds no word vectors: {error}") from error


def _table(lines: Iterator[tuple[str, list[float]]]) -> Table:
    """Return the table of words and their numbers, the commonest first. Raises ValueError."""
    vectors: dict[int, NDArray[np.int16]] = {}
    for rank, (word, numbers) in enumerate(lines, 1):
        keys, length = words_of(word), math.hypot(*numbers)
        if length and keys and len(keys[0]) == len(word):
            weight = _LENGTH * rank / (rank + _HALF_WEIGHT)
            vectors.setdefault(_hash(keys[0]), np.rint(np.array(numbers) / length * weight).astype("<i2"))
    if not vectors:
        raise ValueError("no line has a word that a text could have, and numbers that are not all zero")
    table = np.empty(len(vectors), dtype=[("word", "<u8"), ("vector", "<i2", next(iter(vectors.values())).shape)])
    for place, word_hash in enumerate(sorted(vectors)):
        table[place] = word_hash, vectors[word_hash]
    return table


def _of_lines(path: Path, start: bytes) -> Iterator[tuple[str, list[float]]]:
    """Yield the words of a text file and their numbers. Raises ValueError."""
    with gzip.open(path) if start[:2] == b"\x1f\x8b" else path.open("rb") as file:
        width = words = number = 0
        while words < MOST_WORDS and (line := file.readline(_LONGEST_LINE)):
            number += 1
            if len(line) == _LONGEST_LINE:
                raise ValueError(f"line {number} has {_LONGEST_LINE:,} bytes or more")
            fields = line.split()
            if number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
                width = int(fields[1])
                _check_width(width)
                continue
            if not width:
                width = len(fields) - 1
                _check_width(width)
            # Few words hold spaces, and none ends in a number behind one.
            if len(fields) <= width or (len(fields) > width + 1 and _is_number(fields[-width - 1])):
                raise ValueError(f"line {number} has {max(len(fields) - 1, 0)} numbers, and others have {width}")
            words += 1
            try:
                word = b" ".join(fields[:-width]).decode()
                numbers = [float(field) for field in fields[-width:]]
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
            _check_finite(numbers, f"line {number}")
            yield word, numbers


def _of_arrays(path: Path) -> Iterator[tuple[str, list[float]]]:
    """Yield the words of an .npz file and their numbers. Raises ValueError."""
    with ZipFile(path) as archive:
        size = sum(each.file_size for each in archive.infolist())
    if size > LARGEST_ARRAYS:
        raise ValueError(f"its arrays have {size:,} bytes, and may have {LARGEST_ARRAYS:,}: leave rare words out")
    with np.load(path, allow_pickle=False) as arrays:
        if not {"words", "vectors"} <= set(arrays):
            raise ValueError(f"there must be the arrays words and vectors, not {', '.join(arrays) or 'none'}")
        words, vectors = arrays["words"], arrays["vectors"]
    if words.ndim != 1 or words.dtype.kind != "U" or vectors.ndim != 2 or len(words) != len(vectors):
        raise ValueError("words must be texts (n,), and vectors numbers (n, k)")
    _check_width(vectors.shape[1])
    for place in range(min(len(words), MOST_WORDS)):
        numbers = vectors[place].astype(np.float64).tolist()
        _check_finite(numbers, f"row {place}")
        yield str(words[place]), numbers


def _check_width(width: int) -> None:
    if not 1 <= width <= LARGEST_WIDTH:
        raise ValueError(f"a word must have 1 to {LARGEST_WIDTH:,} numbers, not {max(width, 0):,}")


def _check_finite(numbers: list[float], where: str) -> None:
    if not math.isfinite(math.hypot(*numbers)):
        raise ValueError(f"{where} has numbers that are not finite")


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=2**16)
def _hash(word: str) -> int:
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8, person=b"dpserve words").digest()
    return int.from_bytes(digest, "little")
