"""Which feature map the rules take for a table."""

import pytest

from dpserve.training.features import rules
from dpserve.training.inputs.columns import BooleanColumn, LevelsColumn, NumberColumn, TextColumn, coordinates_of
from dpserve.training.inputs.records import Declaration

LEVELS = LevelsColumn(name="town", levels=tuple(f"t{index}" for index in range(100)))


def numbers(count):
    return tuple(NumberColumn(name=f"x{index}", minimum=0, maximum=1) for index in range(count))


def declared(columns):
    return Declaration(*coordinates_of(columns), ("n", "y"), columns)


PRESENT = {"kind": "integer", "minimum": 0, "maximum": 1}


@pytest.mark.parametrize(
    ("more", "modality"),
    [
        (NumberColumn(name="b", **PRESENT), "presence"),
        (NumberColumn(name="b", **PRESENT, required=True), "presence"),
        (BooleanColumn(name="b"), "presence"),
        (LevelsColumn(name="b", levels=("no", "yes")), "presence"),
        (LevelsColumn(name="b", levels=("no", "yes", "often")), "table"),
        (NumberColumn(name="b", **PRESENT | {"kind": "number"}), "table"),
        (NumberColumn(name="b", **PRESENT | {"maximum": 2}), "table"),
        (TextColumn(name="b"), "text"),
    ],
)
def test_rows_are_of_presence_where_every_column_says_yes_or_no(more, modality):
    words = [NumberColumn(name=f"word{place}", **PRESENT) for place in range(rules.MOST_CUT)]
    assert rules.modality_of(declared((*words, more))) == modality
    assert rules.modality_of(declared((*words[1:], more))) == ("text" if modality == "text" else "table")


@pytest.mark.parametrize("features", ["modality", "fourier"])
def test_a_narrow_table_of_numbers_has_bins(features):
    plain = Declaration(("a", "b"), (0.0, 0.0), (1.0, 1.0), ("n", "y"))
    assert rules.feature_map(features, plain).kind == "bins"


def test_a_table_of_few_numbers_has_bins_however_many_levels_there_are():
    feature_map = rules.feature_map("modality", declared((LEVELS, *numbers(rules.MOST_BINNED))))
    assert (feature_map.kind, len(feature_map.binned)) == ("bins", rules.MOST_BINNED)


@pytest.mark.parametrize("columns", [(LEVELS,), numbers(rules.MOST_BINNED + 1)], ids=["no number", "many numbers"])
def test_a_table_without_numbers_or_with_many_has_rows_of_length_one(columns):
    feature_map = rules.feature_map("modality", declared(columns))
    assert (feature_map.kind, feature_map.clip_norm) == ("identity", rules.UNIT_ROWS)


def test_pairs_are_hashed_of_levels_alone_but_not_of_one_column():
    work = LevelsColumn(name="work", levels=("no", "yes"))
    assert rules.feature_map("crosses", declared((LEVELS, work))).cross_buckets
    assert rules.feature_map("crosses", declared((LEVELS,))).kind == "identity"


def test_fourier_features_of_a_wide_table_stay_what_was_asked_for():
    assert rules.feature_map("fourier", declared((LEVELS, *numbers(2)))).kind == "fourier"


def test_only_the_images_of_a_head_are_centred():
    pixels = Declaration(tuple(f"p{place}" for place in range(144)), (0.0,) * 144, (1.0,) * 144, ("n", "y"))
    for features in ("modality", "fourier"):
        assert rules.feature_map(features, pixels, (12, 12, 1), head=True).centred
        assert not rules.feature_map(features, pixels, (12, 12, 1)).centred
    for rows in (pixels, declared(numbers(2)), declared((LEVELS,))):
        for features in ("modality", "fourier"):
            assert rules.feature_map(features, rows, head=True) == rules.feature_map(features, rows)


@pytest.mark.parametrize("count", [rules.MOST_BINNED, rules.MOST_BINNED + 1, rules.MOST_CUT, rules.MOST_CUT + 1])
def test_bounds_that_differ_say_what_a_schema_says(count):
    by_schema = declared(
        tuple(NumberColumn(name=f"x{each}", minimum=0, maximum=1 + each, required=True) for each in range(count))
    )
    by_bounds = Declaration(by_schema.feature_names, by_schema.lower, by_schema.upper, by_schema.classes)
    assert rules.modality_of(by_bounds) == rules.modality_of(by_schema) == "table"
    for rule in ("modality", "quantiles", "even"):
        one, other = (rules.feature_map(rule, each) for each in (by_schema, by_bounds))
        assert (one.kind, one.dimension, one.clip_norm) == (other.kind, other.dimension, other.clip_norm)


def test_many_numbers_within_the_same_bounds_stay_as_they_are():
    count = rules.MOST_BINNED + 1
    alike = Declaration(tuple(f"p{place}" for place in range(count)), (0.0,) * count, (16.0,) * count, ("n", "y"))
    assert rules.modality_of(alike) is None
    assert rules.feature_map("quantiles", alike).kind == "identity"


def test_rows_with_a_text_are_texts_whatever_is_beside_it():
    note = TextColumn(name="note", buckets=16)
    assert rules.modality_of(declared((note,))) == rules.modality_of(declared((note, *numbers(2)))) == "text"
    assert rules.modality_of(declared(numbers(2))) == "table"
