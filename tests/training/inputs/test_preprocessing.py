"""Traces of scalers and imputers, and data that has none."""

import numpy as np
import pytest
from sklearn import datasets
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, PowerTransformer, RobustScaler, StandardScaler

from training.inputs.columns import LevelsColumn, NumberColumn, encode_rows
from training.inputs.preprocessing import Numbers, numbers_of, signs
from training.inputs.records import Declaration, Records

GENERATOR = np.random.default_rng(7)
RAW = np.column_stack(
    [
        GENERATOR.normal(50, 12, 2000).round(1),
        GENERATOR.gamma(2, 3, 2000),
        GENERATOR.integers(18, 90, 2000),
        GENERATOR.random(2000) < 0.3,
    ]
)
MONTHS = np.arange(120) * 2 * np.pi / 12
HOLES = np.where(GENERATOR.random(RAW.shape) < 0.05, np.nan, RAW)


def traces(X):
    return signs(Numbers([f"c{place}" for place in range(X.shape[1])], X, range(X.shape[1]), {}))


class ByOneLess(StandardScaler):
    """As pandas and R compute a standard deviation."""

    def transform(self, X):
        return (X - X.mean(axis=0)) / X.std(axis=0, ddof=1)


@pytest.mark.parametrize(
    ("step", "X", "said", "columns"),
    [
        (StandardScaler(), RAW, "StandardScaler", 4),
        (StandardScaler(), RAW.astype(np.float32), "StandardScaler", 4),
        (StandardScaler(), HOLES, "StandardScaler", 4),
        (ByOneLess(), RAW, "StandardScaler", 4),
        (PowerTransformer(), RAW, "StandardScaler", 4),
        (make_pipeline(SimpleImputer(), StandardScaler()), HOLES, "StandardScaler", 4),
        (SimpleImputer(), HOLES, "SimpleImputer", 4),
        (make_pipeline(SimpleImputer(), MinMaxScaler()), HOLES, "SimpleImputer", 4),
        (StandardScaler(with_std=False), RAW[:, :2], "mean 0 exactly", 2),
        (PCA(3), RAW, "mean 0 exactly", 3),
        (RobustScaler(), RAW[:, :3], "RobustScaler", 3),
        (MinMaxScaler(), RAW, "MinMaxScaler", 3),
        (MinMaxScaler((-1, 1)), RAW, "MinMaxScaler", 3),
    ],
)
def test_a_step_that_was_fitted_on_the_records_is_noticed(step, X, said, columns):
    (found,) = traces(np.asarray(step.fit_transform(X), dtype=np.float64))
    assert said in found
    assert "no proof" in found
    assert found.count("'c") == columns


@pytest.mark.parametrize(
    "X",
    [
        RAW,
        HOLES,
        (RAW - [50, 6, 54, 0]) / [12, 4, 20, 1],  # scaled by public numbers
        StandardScaler().fit_transform(RAW)[:1500],  # a part of what the scaler was fitted on leaves no trace
        SimpleImputer(strategy="median").fit_transform(HOLES),
        np.repeat([[-1.0, 1.0], [1.0, -1.0]], 50, axis=0),
        np.repeat([[0.0, 1.0], [1.0, 0.0], [2.0, 0.5]], 40, axis=0),
        np.repeat([[1.0, 0.3], [2.0, 0.6], [3.0, 0.9]], 30, axis=0),  # whose mean is one of its values
        np.stack([np.sin(MONTHS), 2 * np.cos(MONTHS)], axis=1),
        np.concatenate([RAW[:500, :2], -RAW[:500, :2]]),
        np.repeat(np.array([[1.0], [2], [2], [3], [4], [6]]) / 7, 20, axis=0),  # whose mean 3 / 7 is one of its values
        np.zeros((5, 2)),
        RAW[:2],
        datasets.load_iris().data,
        datasets.load_wine().data,
        datasets.load_breast_cancer().data,
        datasets.load_digits().data,
        datasets.load_digits().data / 16,
    ],
)
def test_other_columns_have_no_trace(X):
    assert traces(np.asarray(X, dtype=np.float64)) == []


def test_data_scaled_by_figures_of_other_rows_has_no_trace():
    """Mean and deviation of as many other rows. The chance of an alarm is at most 1000 x 0.9 x 500 x 1e-12 = 4.5e-7."""
    generator = np.random.default_rng(3)
    for _ in range(1000):
        own, other = generator.normal(size=(2, 500, 1))
        assert traces((own - other.mean()) / other.std()) == []


def test_numbers_are_found_among_the_coordinates_of_a_schema():
    scaled = StandardScaler().fit_transform(HOLES[:, :2])
    columns = (
        LevelsColumn(name="town", levels=("Ayr", "Bern")),
        NumberColumn(name="with holes", minimum=-10, maximum=10),
        NumberColumn(name="as it is", minimum=0, maximum=100, required=True),
        NumberColumn(name="with others", minimum=-10, maximum=10),
    )
    values = zip(scaled[:, 0].tolist(), RAW[:, 0].tolist(), scaled[:, 1].tolist(), strict=True)
    X = encode_rows(columns, [dict(zip([c.name for c in columns], ("Ayr", *row), strict=True)) for row in values])
    names = tuple(name for column in columns for name, _, _ in column.coordinates)
    bounds = zip(*(bound[1:] for column in columns for bound in column.coordinates), strict=True)
    records = Records(X, np.zeros(len(X), dtype=np.int64), Declaration(names, *bounds, ("a", "b"), columns), ())
    (found,) = signs(numbers_of(records))
    assert found.startswith("the columns 'with holes', 'with others' have mean 0 and standard deviation 1")


def test_records_without_numbers_have_no_trace():
    columns = (LevelsColumn(name="town", levels=("Ayr", "Bern"), required=True),)
    declared = Declaration(("town=Ayr", "town=Bern"), (0.0, 0.0), (1.0, 1.0), ("a", "b"), columns)
    assert signs(numbers_of(Records(np.eye(2), np.array([0, 1]), declared, ()))) == []
