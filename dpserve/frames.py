"""Rows as people have them in Python, for a model's public certificate: by position, or by the names of the columns."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SentRows = NDArray[np.float64] | list[dict[str, object]]
"""Rows (n, d), or by name."""
_MOST_NAMED = 5


def rows_for(model: Mapping[str, Any], X: Any, *, clip: bool | None = None) -> NDArray[np.float64]:
    """Return rows X as the features of a model, (n, d), within its declared bounds.

    clip: whether to clip finite values to their bounds instead of refusing them; None: as in the model's training.

    model: the public part of its certificate. X: an array (n, d) in the order of the model's features; a data frame of
    pandas, Polars or Arrow, whose columns are matched by name, in any order; or a list of mappings by name. Where the
    model was trained by a schema, or with declared missing values, rows by name are encoded as that says, and so is an
    array with one number for each column, NaN where it is missing, if all columns are numbers. Raises ValueError, in
    scikit-learn's words where it has some, naming the columns or the first row that do not fit.
    """
    check_rows(X)
    described, names = model["feature_map"].get("columns"), model["feature_names"]
    clip = bool(model.get("clips")) if clip is None else clip
    if described and (named := _rows_by_name(X) or _rows_by_place(X, described)) is not None:
        # Few models have columns, and only their callers should wait for what reads them.
        from dpserve.training.errors import DataError
        from dpserve.training.inputs.columns import columns_from, encode_rows

        check_names(named[0], [column["name"] for column in described])
        try:
            return encode_rows(columns_from(described), named[1], clip=clip)
        except DataError as error:
            raise ValueError(str(error)) from None
    rows, columns = _numbers(X, names)
    if rows.ndim != 2 or len(rows) == 0:
        raise ValueError(f"X must have two dimensions, rows and features, and at least one row, not {rows.shape}")
    if columns is not None:
        rows = np.ascontiguousarray(rows[:, columns])
    if rows.shape[1] != len(names):
        raise ValueError(f"row 0 has {rows.shape[1]} values; the model takes {len(names)}")
    return _within_bounds(rows, model, clip)


def rows_to_send(model: Mapping[str, Any], X: Any, *, clip: bool | None = None) -> SentRows:
    """Return rows as `rows_for` does; or by name, for the service to encode by an encoder of texts.

    Such a model's bundle holds its files, which its clients lack. Columns that the model does not take are left
    out, with a UserWarning that names them. Raises ValueError as `rows_for` does, but leaves it to the service to look
    at the values.
    """
    check_rows(X)
    described = model["feature_map"].get("columns") or ()
    X = _without_others([column["name"] for column in described] or model["feature_names"], X)
    if not any("encoder" in column for column in described) or (named := _rows_by_name(X)) is None:
        return rows_for(model, X, clip=clip)
    check_names(named[0], [column["name"] for column in described])
    return [{name: _in_json(value) for name, value in row.items()} for row in named[1]]


def _without_others(names: Sequence[str], X: Any) -> Any:
    """Return rows without the columns that are not among `names`, and warn of these: they are never sent.

    Rows that lack a column keep the others, which may be misspelt: they are refused, with all that is wrong.
    """
    by_mapping = are_mappings(X)
    columns = list(dict.fromkeys(name for row in X for name in row)) if by_mapping else names_of(X)
    known = set(names)
    if columns is None or len(columns) <= len(known) or not known <= set(columns) or len(set(columns)) < len(columns):
        return X
    if not by_mapping and not hasattr(X, "__arrow_c_stream__"):
        return X
    others = [name for name in columns if name not in known]
    shown = ", ".join(others[:_MOST_NAMED]) + ", ..." * (len(others) > _MOST_NAMED)
    warnings.warn(f"left out, as the model does not take them: columns {shown}", UserWarning, stacklevel=2)
    return without(X, set(others))


def without(X: Any, names: Collection[str]) -> Any:
    """Return rows, by mappings or as a data frame, without the columns of these names, as far as there are such."""
    if are_mappings(X):
        return [{name: value for name, value in row.items() if name not in names} for row in X]
    columns = list(getattr(X, "column_names", getattr(X, "columns", ())))
    kept = [name for name in columns if str(name) not in names]
    if len(kept) == len(columns):
        return X
    return X.select(kept) if hasattr(X, "select") else X[kept]


def _in_json(value: Any) -> object:
    """Return a value as JSON has it: dates as texts, and what is missing as null."""
    if value != value:
        return None
    return value.isoformat() if hasattr(value, "isoformat") else value.item() if hasattr(value, "item") else value


def check_names(columns: Sequence[str], names: Sequence[str]) -> None:
    """Raise ValueError, as scikit-learn words it, unless the columns are these names, each once, in any order."""
    seen, given = set(names), set(columns)
    wrong = {
        "Feature names unseen at fit time": [name for name in dict.fromkeys(columns) if name not in seen],
        "Feature names seen at fit time, yet now missing": [name for name in names if name not in given],
        "Feature names that are there more than once": sorted(name for name in given if columns.count(name) > 1),
    }
    if any(wrong.values()):
        faults = "".join(
            f"{what}:\n{_listed(names_of_fault)}" for what, names_of_fault in wrong.items() if names_of_fault
        )
        raise ValueError(f"The feature names should match those that were passed during fit.\n{faults}")


def names_of(X: Any) -> list[str] | None:
    """Return the names of a data frame's columns; None for what has none.

    Columns that are only numbered, as pandas numbers them, count as without names. Raises ValueError for a query that
    has not run.
    """
    if hasattr(X, "collect") and not hasattr(X, "__arrow_c_stream__"):
        raise ValueError("X is a query that has not run: give what X.collect() returns")
    columns = list(getattr(X, "column_names", getattr(X, "columns", ())))
    if all(isinstance(column, int | np.integer) for column in columns):
        return None
    return list(map(str, columns))


def check_rows(X: Any) -> None:
    """Raise ValueError for a mapping, in words that say how one row is asked about."""
    if isinstance(X, Mapping) and not hasattr(X, "shape"):  # as a sparse matrix is
        raise ValueError(
            "X is a mapping, which may be one row or some columns: ask with a list of rows, [X], or a data frame"
        )


def _numbers(X: Any, names: Sequence[str]) -> tuple[NDArray[np.float64], list[int] | None]:
    """Return rows of numbers, and where among their columns each feature stands, if they have names."""
    if are_mappings(X):
        for row in X:
            check_names(list(row), names)
        return np.array([[row[name] for name in names] for row in X], dtype=np.float64), None
    columns = names_of(X)
    if columns is None:
        return np.asarray(X, dtype=np.float64), None
    check_names(columns, names)
    return np.asarray(X, dtype=np.float64), [columns.index(name) for name in names]


def _rows_by_name(X: Any) -> tuple[list[str], list[dict[str, object]]] | None:
    """Return the names and the rows of a data frame or of mappings; None for what has no names of columns."""
    if are_mappings(X):
        return list(X[0]), [dict(row) for row in X]
    columns = names_of(X)
    if columns is None or not hasattr(X, "__arrow_c_stream__"):
        return None
    import pyarrow as pa

    if len(set(columns)) < len(columns):
        return columns, []  # for the names to be refused
    # A data frame of pandas sends its index, too, where that is not just a count: rows that were picked have one.
    return columns, pa.RecordBatchReader.from_stream(X).read_all().select(columns).to_pylist()


def _rows_by_place(X: Any, described: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[dict[str, object]]] | None:
    """Return the names and the rows of an array with one value for each column; None for another, or other columns."""
    if names_of(X) is not None or any(column["kind"] not in ("number", "integer", "boolean") for column in described):
        return None
    rows = np.asarray(X, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != len(described):
        return None
    names = [column["name"] for column in described]
    return names, [dict(zip(names, row, strict=True)) for row in rows.tolist()]


def are_mappings(X: Any) -> bool:
    """Tell whether rows are mappings by name."""
    return isinstance(X, Sequence) and len(X) > 0 and all(isinstance(row, Mapping) for row in X)


def _within_bounds(rows: NDArray[np.float64], model: Mapping[str, Any], clip: bool) -> NDArray[np.float64]:
    bounds = model["feature_map"]
    lower, upper = np.asarray(bounds["lower"]), np.asarray(bounds["upper"])
    if clip:
        rows = np.where(np.isfinite(rows), np.clip(rows, lower, upper), rows)
    inside = (rows >= lower) & (rows <= upper)
    if not inside.all():
        row, column = (int(place) for place in np.argwhere(~inside)[0])
        raise ValueError(
            f"row {row}, column {column} ({model['feature_names'][column]!r}) is {rows[row, column]:g}; it must be a "
            f"number from {bounds['lower'][column]:g} to {bounds['upper'][column]:g}; clip=True clips values to "
            "their bounds"
        )
    return rows


def _listed(names: Sequence[str]) -> str:
    shown = [*names[:_MOST_NAMED], *(["..."] if len(names) > _MOST_NAMED else [])]
    return "".join(f"- {name}\n" for name in shown)
