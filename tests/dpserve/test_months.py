"""A model a month from one table, each begun at the last: the second month's refusals, and the way to the sixth."""

import re

import numpy as np
import pytest

MONTHS = 6
COLUMNS = ["--label", "left", "--classes", "no,yes", "--bounds", "age=18:90", "--bounds", "visits=0:20"]
PRICE = ["--release", "dpsgd", "--price", "rho:0.5", "--records-declared", "300", "--steps", "20"]


@pytest.fixture
def months(run):
    """A file for each month, of people of whom some share all values with somebody of another month."""
    for month in range(1, MONTHS + 1):
        generator = np.random.default_rng(month)
        age, visits = generator.integers(18, 90, 300), generator.integers(0, 20, 300)
        left = np.where(age / 72 - visits / 20 + generator.normal(0, 0.3, 300) > 0.3, "yes", "no")
        rows = [f"{month}-{n},{a},{v},{y}" for n, (a, v, y) in enumerate(zip(age, visits, left, strict=True))]
        (run.folder / f"m{month}.csv").write_text("\n".join(["key,age,visits,left", *rows]) + "\n")
    return run


def words(month, *more):
    return [
        "train",
        "--data",
        f"m{month}.csv",
        *COLUMNS,
        *PRICE,
        "--lineage",
        f"month-{month}",
        "--out",
        f"m{month}",
        *more,
    ]


def test_without_a_key_people_of_equal_values_stop_the_second_month_and_the_remedy_is_named(months):
    months(*words(1, "--ignore", "key"))
    said = " ".join(months(*words(2, "--ignore", "key", "--start", "m1"), status=2).stderr.split())
    assert "Chance can explain that many." in said
    assert re.search(r"\. These records could be among those of the model that it names", said)
    assert "leave them out, train both models with --id, or begin in that lineage with --start" in said


def test_a_start_on_other_features_names_the_option(months):
    months(*words(1, "--id", "key", "--features", "quantiles"))
    said = " ".join(months(*words(2, "--id", "key", "--start", "m1"), status=2).stderr.split())
    assert "is a model on quantiles, and not on bins: choose that model's, with --features quantiles" in said


def test_with_a_key_each_month_begins_at_the_last_and_each_lineage_pays_its_own(months):
    months(*words(1, "--id", "key"))
    months("lineage", "set-budget", "m1", "--rho", "0.5", "--delta", "1e-6")
    for month in range(2, MONTHS + 1):
        said = months(*words(month, "--id", "key", "--start", f"m{month - 1}")).stdout
        months("lineage", "set-budget", f"m{month}", "--rho", "0.5", "--delta", "1e-6")
    assert "in addition to those of 'month-1', 'month-2', 'month-3' and 2 more." in said
    inspected = months("inspect", f"m{MONTHS}").stdout
    assert "verified" in inspected
