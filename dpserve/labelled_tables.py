"""Records as `fit` takes them, X with y: as one table with a column of classes, and how that column is declared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import assert_all_finite, check_array, check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from dpserve.accounting.arrays import Floats
from dpserve.accounting.messages import spelled
from dpserve.frames import are_mappings, names_of
from dpserve.labels import label_beside
from dpserve.training.errors import TrainingError, WrongOption
from dpserve.training.inputs.described import Schema
from dpserve.training.inputs.undeclared import undeclared
from dpserve.wording import as_parameter

_IMPUTED = (
    "Schema(missing=...) declares what a missing value counts as. An imputer that is fitted on the records holds exact "
    "figures of them, which no budget covers"
)


@dataclass(frozen=True)
class LabelledTable:
    """Records in one table. table: Arrow's, or a path. label: its column of classes.

    names: of all other columns; None where X has none. is_joined: whether X and y came apart.
    """

    table: Any
    label: str
    names: tuple[str, ...] | None
    is_joined: bool = False

    @property
    def label_type(self) -> Any:
        """Arrow's type of the labels, be they categories or not; None for a file's text."""
        if isinstance(self.table, str):
            return None
        type_ = self.table.schema.field(self.label).type
        return getattr(type_, "value_type", type_)  # of categories


def labelled_table(described: Schema, X: Any, y: Any) -> LabelledTable:
    """Return X and y as one table. y: its column's name, None for the schema's label, or the classes.

    Raises ValueError, as scikit-learn words it where it has words, and TrainingError.
    """
    if y is None:
        y = described.label
        if names_of(X) is None and not isinstance(X, str | Path):
            raise ValueError(
                "PrivateClassifier requires y to be passed, but the target y is None: the column's name, or the classes"
            )
    if (isinstance(X, Mapping) and not hasattr(X, "shape")) or are_mappings(X):
        raise ValueError(
            "records come as a data frame of pandas or Polars, as an Arrow table, as numbers or as a file: of "
            "mappings make one, as pandas.DataFrame(X)"
        )
    return _with_column(described, X, y) if isinstance(y, str) else _beside(described, X, y)


def columns_undeclared(described: Schema, X: Any, y: Any, block: str | None) -> list[TrainingError]:
    """Return what is to be declared of records before they are read: of an array, of a table and of a file.

    block: the column that names blocks. Raises DataError for a file that cannot be read.
    """
    columns = _storage_types(described, X)
    label = described.label if y is None else y if isinstance(y, str) else None
    fields = described.columns
    if columns is None:
        lacks_bounds = described.bounds is None and fields is None
        return (
            undeclared({}, label=None, has_classes=_has_classes(described, label, y), declared=())
            + [
                WrongOption(
                    "bounds", "is needed", remedy="the lowest and the highest value of every column, (LOW, HIGH)"
                )
            ]
            * lacks_bounds
        )
    has_classes = _has_classes(described, label, y) or columns.get(label or "") == "boolean"
    if fields is None and not isinstance(described.bounds, Mapping | None):
        declared = {*columns}  # bounds of every column
    elif isinstance(fields, str | Path) or (fields is not None and "fields" in fields):
        declared = {*columns}  # what a file lacks is said where it is read
    else:
        declared = {*map(str, fields or described.bounds or ())}
    left_out = [*described.ignore, *(name for name in (described.unit, described.id, block) if name is not None)]
    return undeclared(columns, label=label, has_classes=has_classes, declared=declared, left_out=left_out)


def _has_classes(described: Schema, label: str | None, y: Any) -> bool:
    """Tell whether anything declares the classes: the schema, its column of them, or the type of y."""
    fields = described.columns
    in_fields = isinstance(fields, str | Path) or "fields" in (fields or ()) or label in (fields or ())
    is_boolean = label is None and str(getattr(y, "dtype", "")).startswith("bool")
    return described.classes is not None or in_fields or is_boolean


def _storage_types(described: Schema, X: Any) -> dict[str, str | None] | None:
    """Return the storage types of the columns by name; None for an array."""
    if isinstance(X, str | Path):
        source = str(X)
    elif (names := names_of(X)) is not None and hasattr(X, "__arrow_c_stream__"):
        source = _arrow(X[:0], names)
    else:
        return None
    # Only who trains should wait for Arrow.
    from dpserve.training.inputs.tables import open_table

    table = open_table(source, described.encoding, described.sheet)
    return dict(zip(table.names, table.types, strict=True))


def number_array(X: ArrayLike, estimator: object, *, may_be_missing: bool) -> Floats:
    """Return an array of numbers (n, d), NaN where a value is missing, if one may be. estimator: named in errors."""
    try:
        finite = "allow-nan" if may_be_missing else True
        checked: Floats = check_array(X, dtype=np.float64, estimator=estimator, ensure_all_finite=finite)
    except ValueError as error:
        if "contains NaN" not in str(error):
            raise
        raise ValueError(f"{error} {_IMPUTED}") from None
    return checked


def _with_column(described: Schema, X: Any, y: str) -> LabelledTable:
    """Return a table whose column of classes has the name y."""
    if isinstance(X, str | Path):
        # Only who reads a file should wait for Arrow.
        from dpserve.training.inputs.table_records import column_names

        return LabelledTable(str(X), y, _others(column_names(str(X), described.encoding, described.sheet), y))
    names = names_of(X)
    if names is None:
        raise ValueError(f"{y!r} names a column, and X is no table whose columns have names")
    if y not in names:
        raise ValueError(f"X has no column {y!r}; pass the name of the column of classes, or the classes")
    return LabelledTable(_arrow(X, names), y, _others(names, y))


def _beside(described: Schema, X: Any, y: Any) -> LabelledTable:
    """Return a table with the classes y as one more column, which is called as it would be in a table.

    Records are recognised by their columns' names: the same ones in another form should have the same.
    """
    # Only who trains should wait for Arrow.
    import pyarrow as pa

    names = names_of(X)
    if names is None:
        X = number_array(X, "PrivateClassifier", may_be_missing=described.missing is not None)
        columns = _declared_names(described)
        if len(columns) != X.shape[1]:
            columns = [f"x{index}" for index in range(X.shape[1])]
        table = pa.table(dict(zip(columns, map(np.ascontiguousarray, X.T), strict=True)))
    else:
        table = _arrow(X, names)
    check_consistent_length(X, column_or_1d(y, warn=True))
    labels = _labels(y, leave_out=described.unlabelled == "leave-out")
    label = label_beside(table.column_names, described, y)
    return LabelledTable(
        table.append_column(label, labels), label, None if names is None else tuple(names), is_joined=True
    )


def _declared_names(described: Schema) -> list[str]:
    """Return the names of the columns that are declared beside the label; none where bounds are for every column."""
    schema = described.table
    if schema is not None:
        return [column.name for column in schema.columns if column.name != described.label]
    return list(map(str, described.bounds)) if isinstance(described.bounds, Mapping) else []


def _others(names: Sequence[str], label: str) -> tuple[str, ...]:
    return tuple(name for name in names if name != label)


def _arrow(X: Any, names: Sequence[str]) -> Any:
    """Return a data frame as an Arrow table, without an index."""
    import pyarrow as pa

    if len(set(names)) < len(names):
        raise ValueError("every column needs a name of its own")
    return pa.RecordBatchReader.from_stream(X).read_all().select(list(names))


def _labels(y: Any, *, leave_out: bool) -> Any:
    """Return y (n,) as an Arrow array. leave_out: whether labels may be missing. Raises ValueError, as scikit-learn."""
    # Only who trains should wait for Arrow.
    import pyarrow as pa

    from dpserve.training.inputs.table_records import UNLABELLED_ADVICE

    # A Series says its type, which NumPy may not have: booleans and integers that may be missing, categories.
    is_series = hasattr(y, "name") and hasattr(y, "__arrow_c_stream__")
    values = column_or_1d(y)
    try:
        labels = pa.chunked_array(y) if is_series else pa.array(values.tolist(), from_pandas=True)
    except pa.ArrowInvalid:
        check_classification_targets(values)
        raise
    if labels.null_count:
        if not leave_out:
            advice = spelled(UNLABELLED_ADVICE, as_parameter)
            raise ValueError(f"Input y contains NaN: a label is missing. {advice}")
        values = np.asarray(labels.drop_null().to_pylist())
    assert_all_finite(values, input_name="y")
    check_classification_targets(values)
    return labels
