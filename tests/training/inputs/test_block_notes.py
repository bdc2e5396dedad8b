"""A record stays in one block: what is noted of blocks, whatever becomes of a training, and who is refused by it."""

from datetime import datetime

import numpy as np
import pyarrow as pa
import pytest

from dpserve.training.block_choice import Blocks
from dpserve.training.errors import TrainingError
from dpserve.training.inputs.blocks import BlockDeclaration, noted_in_blocks, period_named, period_of
from dpserve.training.inputs.table_records import read_numbers

BUDGET = "epsilon:3@1e-6"


def read(folder, blocks, **more):
    """The records of the table that a test has written, in declared blocks."""
    declared = {"label": "ok", "classes": ["no", "yes"], "bounds": ["age=0:120"]}
    records = read_numbers(str(folder / "rows.csv"), blocks=blocks, **declared, **more)
    return records if blocks is None else blocks.taken_from(records)


@pytest.mark.parametrize("distinct", [2, 20, 100])
@pytest.mark.parametrize("again", [("x", None, None), ("2026-W37", "day", "week")])
def test_the_same_rows_under_another_block_are_refused_however_few_columns_tell_them_apart(tmp_path, distinct, again):
    """The features are alike in most rows; the rows as they stand, with a stamp, in none."""
    generator = np.random.default_rng(0)
    ages, stamps = generator.integers(0, distinct, 500), generator.integers(0, 10**12, 500)
    lines = [
        f"{age},{stamp},{('no', 'yes')[row % 2]},2026-09-{1 + row % 28:02}"
        for row, (age, stamp) in enumerate(zip(ages, stamps, strict=True))
    ]
    (tmp_path / "rows.csv").write_text("\n".join(["age,stamp,ok,day", *lines]) + "\n")

    def note(block, column, by, *, others=False):
        blocks = BlockDeclaration((block,), BUDGET, column, by, leaves_out=column is not None)
        ignored = ["stamp"] if column else ["stamp", "day"]
        records = read(tmp_path, blocks, ignore=ignored)
        with noted_in_blocks(records, "sales", tmp_path / "state", equal_rows_are_others=others):
            pass

    note("2026-09", "day", "month")
    note("2026-09", "day", "month")  # trained again
    with pytest.raises(TrainingError):
        note(*again)
    note(*again, others=True)


@pytest.mark.parametrize("by", ["day", "week", "month", "year"])
def test_one_instant_is_in_one_block_however_its_file_writes_it(by):
    """A text keeps its offset, and Arrow's instants come as UTC without one: both name the period in UTC."""
    texts = ["2027-01-01T00:30:00+02:00", "2026-12-31T22:30:00Z", "2026-12-31 17:30:00-05:00"]
    instants = pa.array([datetime.fromisoformat(text) for text in texts], pa.timestamp("us", "Europe/Berlin"))
    name = {"day": "2026-12-31", "week": "2026-W53", "month": "2026-12", "year": "2026"}[by]
    declared = BlockDeclaration((name,), BUDGET, "when", by)
    for values in (pa.array(texts), instants):
        places, refused = declared.places(values)
        assert refused is None
        assert places.tolist() == [0, 0, 0]


def test_a_date_without_an_offset_is_in_the_period_that_it_names():
    assert period_of("2027-01-01", "month") == period_of("2027-01-01T00:30:00", "month") == "2027-01"
    assert period_of("0001-01-01T00:30:00+02:00", "day") == "0001-01-01"  # its instant in UTC has no date


@pytest.mark.parametrize("seed", range(4))
def test_the_first_block_of_a_unit_pays_for_every_model_that_has_it(tmp_path, seed):
    """Random trainings of units that move among blocks, of which one has no name."""
    generator = np.random.default_rng(seed)
    names = ["", "a", "b", "c"]
    first, charged_for, accepted = {}, {}, {True: 0, False: 0}
    for _ in range(60):
        own = generator.choice(names, size=generator.integers(1, 3), replace=False).tolist()
        own = [""] if "" in own else own
        named = {"block_name": own[0]} if len(own) == 1 else {"block": "in", "blocks": ",".join(own)}
        declared = Blocks(**named).declared(BUDGET) if own[0] else None
        its_names = declared.names if declared else ("",)
        people = generator.choice(12, size=3, replace=False)
        rows = [(f"u{who}", own[generator.integers(len(own))]) for who in people]
        lines = [f"{generator.uniform(0, 120)},{who},{block},no" for who, block in rows]
        (tmp_path / "rows.csv").write_text("\n".join(["age,who,in,ok", *lines]) + "\n")
        records = read(tmp_path, declared, unit="who", ignore=["in"] if len(own) == 1 else [])
        assert its_names == tuple(sorted(own))
        places = [0] * 3 if records.block_places is None else records.block_places
        assert [its_names[place] for place in places] == [block for _, block in rows]
        try:
            with noted_in_blocks(records, "sales", tmp_path / "state", equal_rows_are_others=False):
                pass
        except TrainingError:
            accepted[False] += 1
            continue
        accepted[True] += 1
        for who, block in rows:
            charged_for.setdefault(who, []).append(set(its_names))
            first.setdefault(who, block)
    assert min(accepted.values()) > 3
    assert all(first[who] in charged for who, models in charged_for.items() for charged in models)


@pytest.mark.parametrize(
    ("day", "week"), [("2024-12-30", "2025-W01"), ("2025-01-01", "2025-W01"), ("2027-01-03", "2026-W53")]
)
def test_a_week_has_the_year_that_most_of_its_days_lie_in(day, week):
    """The week of ISO 8601, whose year is not always the day's."""
    assert period_of(day, "week") == week
    assert period_named(week, "week") == week
