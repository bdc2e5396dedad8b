"""A value is read as it is by itself, whatever stands beside it: one record must not move the others."""

from datetime import date, datetime
from decimal import Decimal
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from dpserve.training.inputs.columns import BooleanColumn, LevelsColumn, NumberColumn, TextColumn, TimeColumn
from dpserve.training.inputs.parsing import digests_of, parse

COLUMNS = {
    "number": NumberColumn(name="a", minimum=-1e9, maximum=1e9),
    "number, comma": NumberColumn(name="a", minimum=-1e9, maximum=1e9, decimal=","),
    "number, comma and points": NumberColumn(name="a", minimum=-1e9, maximum=1e9, decimal=",", group="."),
    "integer": NumberColumn(name="a", kind="integer", minimum=-1e9, maximum=1e9),
    "boolean": BooleanColumn(name="a"),
    "levels": LevelsColumn(name="a", levels=("1", "true", "0.25", "x"), unknown="coordinate"),
    "date": TimeColumn(name="a", kind="date", minimum="2000-01-01", maximum="2030-01-01", parts=("time",)),
    "text": TextColumn(name="a"),
}
VALUES = {
    "texts": [
        "0.25",
        "1.250",
        "12,345",
        "1.250,5",
        "1",
        " 2",
        " 2,500",
        "1e-05",
        "true",
        "False",
        "2022-01-02",
        "x",
        "",
    ],
    "doubles": [0.25, 1.0, 1e-05, 1e300, float("nan"), None],
    "decimals": [Decimal("0.25"), Decimal("0.1"), Decimal("0.123456789012345678901"), Decimal(7), None],
    "integers": [0, 1, 7, None],
    "booleans": [True, False, None],
    "times": [datetime(2022, 1, 2), datetime(2022, 1, 2, 3), None],
    "dates": [date(2022, 1, 2), date(2023, 1, 2), None],
}


def read(column, array):
    """The first value of an array: its bytes, and whether it is missing; or that it is refused."""
    parsed = parse(column, array)
    if parsed.refused is not None and parsed.refused[0] == 0:
        return "refused"
    return None if parsed.values is None else (np.array(parsed.values[0]).tobytes(), bool(parsed.absent[0]))


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("kind", VALUES)
def test_a_value_is_read_as_by_itself(name, kind):
    column, moved = COLUMNS[name], []
    for value, beside in product(VALUES[kind], VALUES[kind]):
        both, alone = pa.array([value, beside]), pa.array([value, value])
        together = read(column, both)
        if together is not None and together != read(column, alone):
            moved.append((value, beside))
    assert moved == []


@pytest.mark.parametrize("kind", VALUES)
def test_the_digest_of_a_row_is_its_own(kind):
    for value, beside in product(VALUES[kind], VALUES[kind]):
        first, _ = digests_of(["a"], [pa.array([value, beside])])
        assert (first == digests_of(["a"], [pa.array([value, value])])[0]).all(), (value, beside)
