"""Parsing of Arrow arrays: the values that columns encode, and the digests that tell records apart.

A text is parsed by its column, as the service parses it (`dpserve.training.inputs.columns`), once for each text that
occurs in a batch. Numbers go through Arrow's own parser first: of a text that it accepts both make the same double, for
both round correctly.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats, Mask, Words
from dpserve.training.inputs.column import BOOLEANS, GROUPED, NUL, NUMBER, ValueRefused, bound_broken
from dpserve.training.inputs.columns import AnyColumn, Column, NumberColumn, TextColumn, TimeColumn, placeholder
from dpserve.training.inputs.time_columns import DATETIME

_TRUTHS = BOOLEANS | {"yes": "1", "y": "1", "t": "1", "no": "0", "n": "0", "f": "0"}
"""Words that a table may have where another has true and false."""
# fmt: off
NAMELESS = frozenset({
    "-", "--", "---", ".", "?", "#n/a", "#n/a n/a", "#na", "#null!", "(null)", "<na>", "<null>", "\\n", "-1.#ind",
    "-1.#qnan", "-nan", "1.#ind", "1.#qnan", "missing", "n.a.", "n/a", "na", "nan", "nat", "nil", "none", "null",
    "undefined",
})
# fmt: on
"""Words that tables have where a value is missing, in lower case: none of them names a privacy unit."""
_NAMELESS_PLAIN = frozenset({"na", "nan", "inf", "infinity"})
"""The same whatever signs are around and between their letters."""
_UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp", "Zs"})
_FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u2800\u3164\uffa0"
_DECIMAL = re.compile(r"[+-]?(0|[1-9][0-9]*)(\.[0-9]*)?")
"""A number in a name: no two ways to read a text, so that a long one takes no longer than its length."""
RefusedValue = tuple[int, str]
"""A row, and what is wrong with its value in words."""


@dataclass(frozen=True, eq=False)
class Parsed:
    """A column's values in a batch of n rows. values: as `Column.encode` takes them. absent: (n,), where there is none.

    refused: the first row that does not fit; None of none. plain: (n,), for `digests_of`: the column's numbers, if all
    are there and finite, or the numbers or times that its texts mean, where it has signs or a pattern of its own.
    """

    values: Any
    absent: Mask
    refused: RefusedValue | None = None
    plain: Floats | pa.Array | None = None


def parse(column: AnyColumn, array: pa.Array, *, clip: bool = False) -> Parsed:
    """Return the values of an Arrow array. clip: clip values to their bounds instead of refusing them.

    A struct holds values of several types, one for each row: those of each type are parsed by themselves.
    """
    if pa.types.is_struct(array.type) and not isinstance(column, TextColumn):
        return _parse_several(column, array, clip=clip)
    try:
        column_values = _parsed(column, array)
    except pa.ArrowNotImplementedError:
        return Parsed(None, np.zeros(len(array), np.bool_), (0, f"holds {array.type}, which is no {column.kind}"))
    if column_values.refused and column_values.values is None:
        return column_values
    values, refusals = column_values.values, [column_values.refused] if column_values.refused else []
    if clip:
        values = column.clipped(values)
    if column.required and column_values.absent.any():
        refusals.append((int(np.argmax(column_values.absent)), "a value is required, and there is none"))
    beyond = column.outside(values)
    if beyond is not None and (outer := (beyond[0] | beyond[1]) & ~column_values.absent).any():
        row = int(np.argmax(outer))
        refusals.append((row, f"{array[row].as_py()!s} {bound_broken(column, beyond, row)}"))
    first = min(refusals, key=lambda refusal: refusal[0], default=None)
    return Parsed(
        values,
        column_values.absent,
        first,
        column_values.plain if column_values.plain is not None else _plain_of(column, array, column_values),
    )


def _parse_several(column: AnyColumn, array: pa.Array, *, clip: bool) -> Parsed:
    """Return what each value of a struct is by itself: no value may move with another record's."""
    empty = placeholder(column)
    values: list[Any] = [empty] * len(array)
    absent, refusals = np.ones(len(array), np.bool_), list[RefusedValue]()
    nowhere = np.ones(len(array), np.bool_)
    for field in array.flatten():
        rows = np.flatnonzero(np.asarray(field.is_valid()))
        nowhere[rows] = False
        parsed = parse(column, field.take(pa.array(rows)), clip=clip)
        if parsed.refused:
            refusals.append((int(rows[parsed.refused[0]]), parsed.refused[1]))
        if parsed.values is not None:
            absent[rows] = parsed.absent
            for row, value in zip(rows.tolist(), parsed.values, strict=True):
                values[row] = value
    if column.required and nowhere.any():
        refusals.append((int(np.argmax(nowhere)), "a value is required, and there is none"))
    made, plain = np.array(values), None
    if isinstance(column, NumberColumn):
        plain = pa.array(made, pa.float64(), mask=absent)
    elif isinstance(column, TimeColumn):
        plain = pa.array(made, pa.int64(), mask=absent).cast(pa.timestamp("us"))
    return Parsed(made, absent, min(refusals, key=lambda refusal: refusal[0], default=None), plain)


def _plain_of(column: Column, array: pa.Array, values: Parsed) -> pa.Array | None:
    """Return numbers and times as such, where the column's texts have signs or a pattern of their own."""
    if values.refused or not _is_text(array.type):
        return None
    if isinstance(column, NumberColumn) and column.has_own_signs:
        return pa.array(values.values, pa.float64(), mask=values.absent)
    if isinstance(column, TimeColumn) and column.pattern is not None:
        return pa.array(values.values, pa.int64(), mask=values.absent).cast(pa.timestamp("us"))
    return None


def _parsed(column: Column, array: pa.Array) -> Parsed:
    array = _plain(array)
    if isinstance(column, NumberColumn):
        return _numbers(column, array)
    if isinstance(column, TimeColumn) and (pa.types.is_timestamp(array.type) or pa.types.is_date(array.type)):
        zone = getattr(array.type, "tz", None)
        micros = pc.cast(array, pa.timestamp("us", tz=zone), safe=False).cast(pa.int64())
        return Parsed(*_filled(micros, 0, np.int64))
    if isinstance(column, TextColumn) and _is_text(array.type):
        return _texts(column, array)
    return _by_value(column, array)


def _numbers(column: NumberColumn, array: pa.Array) -> Parsed:
    """Parse at once what is numbers, or text that Arrow takes for numbers."""
    given = array
    if _is_text(array.type):
        if any(NUMBER.fullmatch(text) for text in column.missing):
            return _by_value(column, array)
        if column.has_own_signs:
            array = _with_usual_signs(column, array)
            if not pc.all(pc.match_substring_regex(array, rf"\A\s*(?:{GROUPED.pattern})\s*\z")).as_py():
                return _by_value(column, given)
            array = pc.replace_substring(array, ",", "")
        try:
            numbers = pc.cast(array, pa.float64())
        except pa.ArrowInvalid:
            return _by_value(column, given)
        nan_is_missing = False
    elif pa.types.is_dictionary(array.type) or not _is_number(array.type):
        return _by_value(column, array)
    else:
        numbers = _doubles(array)
        nan_is_missing = True
    values, absent = _filled(numbers, 0.0, np.float64)
    if nan_is_missing:
        absent = absent | np.isnan(values)
        values = np.where(absent, 0.0, values)
    wrong = ~np.isfinite(values)
    if column.kind == "integer" and not wrong.any():
        wrong = values != np.floor(values)
    if wrong.any():
        row = int(np.argmax(wrong))
        what = "is not an integer" if np.isfinite(values[row]) else "is not a finite number"
        return Parsed(values, absent, (row, f"{values[row]:g} {what}"))
    return Parsed(values, absent, plain=None if absent.any() else values)


def _doubles(array: pa.Array) -> pa.Array:
    """Return numbers as float64, each the nearest: of a decimal, too, whatever scale the array has for the others."""
    if pa.types.is_decimal(array.type):
        array = pc.cast(array, pa.string())
    return pc.cast(array, pa.float64(), safe=False)


def _with_usual_signs(column: NumberColumn, array: pa.Array) -> pa.Array:
    """Return texts with a decimal point and a comma between groups. What was either before becomes a question mark."""
    kept = {column.decimal: "\x01", column.group: "\x02"}
    kept.pop("", None)
    for sign, mark in (kept | {other: "?" for other in ",." if other not in kept} | {"\x01": ".", "\x02": ","}).items():
        array = pc.replace_substring(array, sign, mark)
    return array


def _texts(column: TextColumn, array: pa.Array) -> Parsed:
    lengths = np.asarray(pc.fill_null(pc.utf8_length(array), 0))
    if (lengths > column.longest).any():
        row = int(np.argmax(lengths > column.longest))
        return Parsed(
            None, lengths < 0, (row, f"a text of {lengths[row]:,} characters is longer than {column.longest:,}")
        )
    nul = np.asarray(pc.fill_null(pc.match_substring(array, "\0"), False))
    if nul.any():
        return Parsed(None, nul & False, (int(np.argmax(nul)), NUL))
    texts = array.to_pylist()
    absent = np.array([column.is_missing(text) for text in texts], dtype=np.bool_)
    return Parsed(texts, absent)


def _by_value(column: Column, array: pa.Array) -> Parsed:
    """Parse each value that occurs once."""
    kinds, codes = _encoded(array)
    empty = placeholder(column)
    made, absent, why = [empty], [True], [""]  # a null's code is -1, the last
    for value in kinds:
        missing, text, parsed = column.is_missing(value), "", empty
        if not missing:
            try:
                parsed = column.parse(value)
            except ValueRefused as error:
                text = str(error)
        made.append(parsed)
        absent.append(missing)
        why.append(text)
    codes = codes + 1
    refused = None
    if any(why):
        wrong = np.array([bool(text) for text in why])[codes]
        if wrong.any():
            row = int(np.argmax(wrong))
            refused = row, why[codes[row]]
    if isinstance(column, TextColumn):
        return Parsed([made[code] for code in codes], np.array(absent)[codes], refused)
    return Parsed(np.array(made)[codes], np.array(absent)[codes], refused)


def _encoded(array: pa.Array) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the values that occur, and each row's index among them, -1 for null."""
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    codes, _ = _filled(pc.cast(array.indices, pa.int64()), -1, np.int64)
    return array.dictionary.to_pylist(), codes


def _plain(array: pa.Array) -> pa.Array:
    """Return an array of a type that Arrow's functions take: of values of several types, texts that mean the same."""
    if pa.types.is_struct(array.type):
        several = [field.to_pylist() for field in array.flatten()]
        texts = (next((value for value in row if value is not None), None) for row in zip(*several, strict=True))
        return pa.array([_text_of(value) for value in texts], pa.large_string())
    if pa.types.is_string_view(array.type):
        return array.cast(pa.large_string())
    if pa.types.is_boolean(array.type):
        return array.cast(pa.int8())
    return array


def _text_of(value: Any) -> str | None:
    """Return a number without an exponent, a whole one without a point, true and false as 1 and 0, others as such."""
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, float):
        return None if value is None else _canonical(value)
    return f"{Decimal(repr(value)):f}".removesuffix(".0")


def _filled(array: pa.Array, empty: float, dtype: Any) -> tuple[NDArray[Any], Mask]:
    """Return numbers, `empty` for a null, and which are null."""
    if not array.null_count:
        return _numpy(array).astype(dtype, copy=False), np.zeros(len(array), dtype=np.bool_)
    return np.asarray(pc.fill_null(array, empty), dtype=dtype), np.asarray(array.is_null())


def _numpy(array: pa.Array) -> NDArray[Any]:
    """Return numbers of which none is null. Arrow's own conversions import pandas, for which nobody should wait."""
    return np.from_dlpack(array)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def numbered(
    array: pa.Array, numbering: dict[str, int], missing: Iterable[str] = (), *, what: str = "unit"
) -> tuple[NDArray[np.int64], RefusedValue | None]:
    """Return a number for each unit's name (n,), equal for equal names, and the first that is invalid.

    1, "1.0" and "+1" are one name, "01" is another. what: the column names, for messages.
    numbering: the numbers given so far, by the names' texts; new ones are added. missing: texts that stand for no name,
    beside NAMELESS: all whose name is not known would else be one unit, and a person among them no unit at all.
    """
    array = _plain(array)
    missing = {*missing, *map(_plain_number, missing)}
    numbers = np.full(len(array), -1, dtype=np.int64)
    floating = pa.types.is_floating(array.type)
    if pa.types.is_nested(array.type) or (floating and array.type != pa.float64()):
        return numbers, (0, f"holds {array.type}, which names no {what}: use texts or integers")
    kinds, codes = _encoded(array)
    texts = [_plain_number(_canonical(value).strip()) for value in kinds]
    if floating:  # as pandas holds integers beside missing values
        odd = {kind for kind in kinds if kind == kind and not (float(kind).is_integer() and abs(kind) < 2**53)}
        if odd:
            row = next(row for row, code in enumerate(codes) if code >= 0 and kinds[code] in odd)
            return numbers, (row, f"{kinds[codes[row]]:g} names no {what}: use texts or integers below 2^53")
        texts = [text if kind != kind else str(int(kind)) for kind, text in zip(kinds, texts, strict=True)]
    absent = {"", *missing}
    names = (-1 if _is_nameless(text, absent) else numbering.setdefault(text, len(numbering)) for text in texts)
    numbers = np.array([-1, *names])[codes + 1]
    nameless = numbers < 0
    if not nameless.any():
        return numbers, None
    row = int(np.argmax(nameless))
    name = texts[codes[row]] if codes[row] >= 0 else ""
    stands = f": {name!r} stands for a missing value. A {what} that is called so needs another name" if name else ""
    nothing = "unit's name" if what == "unit" else what
    return numbers, (row, f"the record has no {nothing}{stands}; leave out the records whose {what} is not known")


def _is_nameless(text: str, absent: Set[str]) -> bool:
    """Tell whether a text names nothing: a declared or usual marker, or nothing but signs and what shows nothing."""
    shown = "".join(letter for letter in text if not _shows_nothing(letter)).casefold()
    plain = "".join(filter(str.isalnum, shown))
    signs = all(unicodedata.category(sign)[0] == "P" or sign in "\u2212+" for sign in shown)
    return (
        bool(absent & {text, shown}) or bool(NAMELESS & {text.casefold(), shown}) or signs or plain in _NAMELESS_PLAIN
    )


def _shows_nothing(character: str) -> bool:
    """Tell whether a character leaves no mark: spaces, controls, what formats, fillers and variation selectors."""
    return unicodedata.category(character) in _UNSEEN or character in _FILLERS or "\ufe00" <= character <= "\ufe0f"


def _plain_number(text: str) -> str:
    """Return a number without the sign, the point and the last zeros that it does not need; another text as it is.

    A text that begins with a zero is a code, as 007 is: it stays another name than 7.
    """
    if not _DECIMAL.fullmatch(text):
        return text
    whole, _, rest = text.lstrip("+-").partition(".")
    plain = ".".join(filter(None, (whole, rest.rstrip("0"))))
    return f"-{plain}" if text[0] == "-" and plain != "0" else plain


def name_digests(names: Iterable[str]) -> NDArray[np.uint8]:
    """Return 16 bytes of each unit's name (u, 16), the same whatever its column is called."""
    digests = (
        hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16, person=b"dpserve unit").digest()
        for name in names
    )
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 16)


def digests_of(
    names: Sequence[str], arrays: Sequence[pa.Array | Floats], absent: Mapping[str, Mask] | None = None
) -> NDArray[np.uint8]:
    """Return 16 bytes for each row (n, 16): a function of the row's values by column, whatever the columns' order.

    A value is a number or a time, however it is written, or a text without the spaces around it; true and false, yes
    and no are 1 and 0, and a missing value is an empty text. An array of NumPy's holds finite numbers. absent: by
    column, where a value (n,) is declared to be missing.

    So a row has the same digest in a CSV file, a Parquet file and a data frame. Each
    value is mixed with its column's name (the finaliser of SplitMix64, in two lanes), and a row is their sum. It tells
    records apart, and hides nothing: whoever keeps it takes its keyed digest.
    """
    rows = len(arrays[0]) if arrays else 0
    total = np.zeros((rows, 2), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for name, array in zip(names, arrays, strict=True):
            word = (array + 0.0).view(np.uint64) if isinstance(array, np.ndarray) else _words(_plain(array))
            if absent and name in absent and absent[name].any():
                word = np.where(absent[name], np.uint64(_word("")), word)
            for lane in range(2):
                total[:, lane] += _mixed(word ^ _name_word(name, lane))
    return total.view(np.uint8)


def _words(array: pa.Array) -> Words:
    """Return 64 bits for each value."""
    numbers = None
    if _is_number(array.type):
        numbers = _doubles(array)
    elif _is_text(array.type):
        try:
            numbers = pc.cast(array, pa.float64())
        except pa.ArrowInvalid:
            numbers = None
    if numbers is not None and not numbers.null_count:
        values: Floats = _numpy(numbers) + 0.0
        if not np.isnan(values).any():
            return values.view(np.uint64)
    if pa.types.is_nested(array.type):
        array = pa.array([None if value is None else repr(value) for value in array.to_pylist()], pa.large_string())
    kinds, codes = _encoded(array)
    kind_words = np.array([_word(""), *(_word(_canonical(value)) for value in kinds)], dtype=np.uint64)
    words: Words = kind_words[codes + 1]
    return words


def _canonical(value: object) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, datetime):
        value = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return value.isoformat().removesuffix("T00:00:00")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


@lru_cache(maxsize=2**12)
def _word(text: str) -> int:
    text = _TRUTHS.get(text.strip().lower(), text.strip())
    if NUMBER.fullmatch(text) and text.lower().lstrip("+-") != "nan":
        return int(np.float64(float(text) + 0.0).view(np.uint64))
    if DATETIME.fullmatch(text):
        with suppress(ValueError, OverflowError):
            text = _canonical(datetime.fromisoformat(text))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


@lru_cache(maxsize=2**12)
def _name_word(name: str, lane: int) -> np.uint64:
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return np.uint64(int.from_bytes(digest[8 * lane : 8 * lane + 8], "little"))


def _mixed(words: Words) -> Words:
    """Mix the bits of each word: the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
