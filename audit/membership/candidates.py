"""Whom the attack decides about: records that were trained on, and others of the same distribution that were not.

Of a model that protects privacy units candidates are units, each with all of its rows
(`dpserve.audit.membership.claims`).

Reads the owner's files by what the model's public certificate says of its features and classes, and checks that members
and others cannot be distinguished by the records alone (Erlingsson et al. 2019, Section 5.4): where they can, an
attack's success says nothing about the model.

Rows ask the same question where the model's public feature map makes the same numbers of them. Such rows get one answer
for one charge. An attack counts them as one row, so that no decision is counted twice and no service is
accused of charging too little.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from dpserve.accounting.arrays import Floats, Labels, Mask
from dpserve.accounting.messages import Message
from dpserve.audit.endpoint import digest_of
from dpserve.training.errors import DataError
from dpserve.training.exact.network import rounded
from dpserve.training.features.maps import AnyFeatureMap
from dpserve.training.inputs.columns import columns_from
from dpserve.training.inputs.declared import values_of
from dpserve.training.inputs.digits import load_digits
from dpserve.training.inputs.npz_file import read_npz
from dpserve.training.inputs.records import Records
from dpserve.training.inputs.schema import schema_of
from dpserve.training.inputs.table_records import column_names, read_numbers, read_with_schema
from dpserve.training.inputs.tables import open_table

SUSPICIOUS = 0.001
"""The warning is a false alarm with at most this probability."""
LARGEST_OVERLAP = 0.1
"""The share of others that equal a member beyond which an attack that finds nothing has shown nothing."""

_FEATURE_MAPS: TypeAdapter[AnyFeatureMap] = TypeAdapter(AnyFeatureMap)
_AT_ONCE = 1000
_FEWEST_TO_COMPARE = 20
_MOST_TO_COMPARE = 4000


def as_asked(model: Mapping[str, Any], rows: Floats) -> Floats:
    """Return the rows (n, d), each replaced by the first of them that asks the same question.

    model: as `GET /models/NAME` returns it. Of a model on a deep network nobody outside knows which rows these are.
    """
    questions = [
        question.tobytes()
        for start in range(0, len(rows), _AT_ONCE)
        for question in _questions(model["feature_map"], rows[start : start + _AT_ONCE])
    ]
    first: dict[bytes, int] = {}
    places = [first.setdefault(question, place) for place, question in enumerate(questions)]
    chosen_rows: Floats = rows[places]
    return chosen_rows


def _questions(feature_map: Mapping[str, Any], rows: Floats) -> Floats:
    if feature_map["kind"] == "scaled":
        lower, upper = (np.asarray(feature_map[end]) for end in ("lower", "upper"))
        return rounded((np.clip(rows, lower, upper) - lower) / (upper - lower)) + 0.0
    try:
        public_map = _FEATURE_MAPS.validate_python(feature_map)
    except ValidationError:
        return rows + 0.0
    return public_map(rows, public_map.public_tensors()) + 0.0


@dataclass(frozen=True, eq=False)
class Labelled:
    """Records with their labels. X: (n, d) float64, in the model's own scales and order; y: (n,).

    units: (n,), of each record the name of its privacy unit; None where every record is one by itself.
    """

    X: Floats
    y: Labels
    units: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        """Refuse parts that do not fit."""
        if self.X.ndim != 2 or self.y.shape != (len(self.X),):
            raise ValueError(f"records {self.X.shape} do not fit labels {self.y.shape}")
        if self.units is not None and len(self.units) != len(self.X):
            raise ValueError(f"{len(self.X)} records do not fit {len(self.units)} names of units")

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.y)

    def __getitem__(self, rows: Any) -> "Labelled":
        """Return some of them."""
        return Labelled(self.X[rows], self.y[rows], None if self.units is None else self.units[rows])

    def __add__(self, other: "Labelled") -> "Labelled":
        """Return both, these first."""
        units = None if self.units is None or other.units is None else np.concatenate([self.units, other.units])
        return Labelled(np.concatenate([self.X, other.X]), np.concatenate([self.y, other.y]), units)

    @cached_property
    def of(self) -> Labels:
        """The number of each record's unit, from 0: (n,)."""
        if self.units is None:
            return np.arange(len(self))
        return np.unique(self.units, return_inverse=True)[1]

    @property
    def count(self) -> int:
        """Number of units, and so of decisions."""
        return int(self.of.max(initial=-1)) + 1


def repeated(records: Labelled) -> Mask:
    """Return which rows, whatever their label, another unit has, too, or the same unit earlier: (n,).

    They are not asked about. One answer serves all units that have the row, so that their decisions would be one
    decision; and it says whether any of them was trained on, where a claim is about one.
    """
    names = [(row + 0.0).tobytes() for row in records.X]  # 0.0 and -0.0 are the same row
    first: dict[bytes, int] = {}
    whose = np.array([records.of[first.setdefault(name, place)] for place, name in enumerate(names)], dtype=np.int64)
    shared = {name for name, first_unit, unit in zip(names, whose, records.of, strict=True) if first_unit != unit}
    return np.array([name in shared or first[name] != place for place, name in enumerate(names)], dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class Candidates:
    """Members, others, and more data of the same distribution of which the attacker knows nothing, if any."""

    members: Labelled
    others: Labelled
    population: Labelled | None = None

    def digest(self) -> str:
        """Return a digest of the members and the others, in their order: of whom an attack asks about."""
        columns = [
            column for records in (self.members, self.others) for column in (records.X, records.y, records.units)
        ]
        return digest_of(*(np.ascontiguousarray(column).tobytes() for column in columns if column is not None))

    @property
    def everyone(self) -> Labelled:
        """Members, others and the population, in this order."""
        both = self.members + self.others
        return both if self.population is None else both + self.population

    def as_asked(self, model: Mapping[str, Any]) -> "Candidates":
        """Return the same with rows that ask the model one question made one row."""
        both, count = self.members + self.others, len(self.members)
        both = Labelled(as_asked(model, both.X), both.y, both.units)
        return Candidates(both[:count], both[count:], self.population)

    def check(self, model: Mapping[str, Any]) -> None:
        """Raise ValueError where the records are not what the model takes, or not of the units that it protects."""
        unit = model.get("unit")
        for what, records in (("members", self.members), ("non-members", self.others), ("population", self.population)):
            if records is not None:
                if (records.units is None) != (unit is None):
                    raise ValueError(
                        f"the model protects single records, and the {what} are units"
                        if unit is None
                        else f"the model protects all records of one {unit!r} together, and the {what} do not say "
                        "whose each record is: an attack on single records would be no verdict on that"
                    )
                _check_fit(what, records, model)
        if unit is not None:
            both = len(np.intersect1d(self.members.units, self.others.units))  # type: ignore[arg-type]
            if both:
                raise ValueError(
                    f"{both} values of {unit!r} are among the members and the non-members: whoever has a record that "
                    "was trained on is a member, so split by units before training"
                )


def read_labelled(
    path: Path, model: Mapping[str, Any], *, label: str, ignore: Sequence[str] = (), class_names: str | None = None
) -> Labelled:
    """Read records from a table, or an NPZ file written FILE.npz or FILE.npz:ARRAY, by the model's declaration.

    ARRAY names booleans that pick rows. label, ignore: the table's columns. class_names: VALUE=NAME of each class,
    between commas, where the file has other values than the model's names. A model that protects units names their
    column, which a table then has. Values beyond the bounds are clipped to them where the model was trained so.
    Raises DataError, and ValueError where the columns are not the model's.
    """
    unit: str | None = model.get("unit")
    names, classes = list(model["feature_names"]), list(model["classes"])
    values = values_of(classes, class_names)
    feature_map = model["feature_map"]
    limits = list(zip(feature_map["lower"], feature_map["upper"], strict=True))
    clip = bool(model.get("clips"))
    file, _, where = str(path).partition(".npz:")
    if where or path.suffix == ".npz":
        target = Path(f"{file}.npz") if where else path
        if unit is not None:
            raise ValueError(f"the model protects units, and {target.name} has no column {unit!r}: give a table")
        with np.load(target, allow_pickle=False) as archive:
            width = int(np.prod(archive["X"].shape[1:])) if "X" in archive.files else len(names)
        if width != len(names):
            raise ValueError(f"{target.name} has rows of {width} values, and the model takes {len(names)}")
        bounds = [f"x{index}={low!r}:{high!r}" for index, (low, high) in enumerate(limits)]
        labelled = read_npz(target, classes=classes, values=values, bounds=bounds, clip=clip, where=where or None)
        return Labelled(labelled.X, labelled.y)
    columns = columns_from(feature_map.get("columns", ()))
    schema = schema_of(columns, label, classes, values)
    no_features = ignore if unit is None else [*ignore, unit]
    _check_columns(path, [column.name for column in columns] if schema else names, label, no_features)
    if schema:
        labelled = read_with_schema(path, schema, label, ignore=ignore, unit=unit, clip=clip)
        return Labelled(labelled.X, labelled.y, _unit_names(labelled))
    bounds = [f"{name}={low!r}:{high!r}" for name, (low, high) in zip(names, limits, strict=True)]
    declared: dict[str, Any] = {"classes": classes, "values": values, "bounds": bounds, "clip": clip}
    labelled = read_numbers(path, label=label, ignore=ignore, unit=unit, **declared)
    return Labelled(labelled.in_order(names), labelled.y, _unit_names(labelled))


def read_column(path: Path, name: str) -> NDArray[np.str_]:
    """Return a column of a table as text: (n,). Raises DataError where there is none."""
    table = open_table(path)
    if name not in table.names:
        raise DataError(f"{table.name} has no column {name!r}: it has {_sentence(table.names)}")
    values = [str(value) for batch, _ in table.batches() for value in batch.data[name].to_pylist()]
    return np.array(values, dtype=np.str_)


def _unit_names(records: Records) -> NDArray[Any] | None:
    """Return 16 bytes for each record (n,), the same for the same unit in whatever file."""
    if records.units is None or records.units.names is None:
        return None
    return np.ascontiguousarray(records.units.names).view("V16")[:, 0][records.units.of]


def _check_columns(path: Path, names: Sequence[str], label: str, ignore: Sequence[str]) -> None:
    header = column_names(path)
    missing = [name for name in names if name not in header]
    unknown = [name for name in header if name not in (*names, label, *ignore)]
    if label not in header:
        raise ValueError(
            Message("{} has no column {!r} of class names: say which it is with {label}", path.name, label)
        )
    if missing:
        raise ValueError(f"{path.name} lacks the column {_sentence(missing)}; the model takes {_sentence(names)}")
    if unknown:
        raise ValueError(
            Message(
                "the model does not take the column {} of {}: {ignore} leaves it out", _sentence(unknown), path.name
            )
        )


def digits() -> Candidates:
    """The records of `dpserve train --data digits`, and those that it holds out."""
    split = load_digits()
    return Candidates(Labelled(split.train.X, split.train.y), Labelled(split.held_out_rows, split.held_out_labels))


@dataclass(frozen=True)
class Difference:
    """The difference between members and others in the records alone, without the model.

    p_value: of "not at all", corrected for the tests made. accuracy: of a classifier on records it was not fitted to;
    1/2 is guessing. duplicates: others that equal a member; overlap: which share of the others they are. repeated:
    members, and others, whose rows others of their own kind have, too: they are left out.
    """

    p_value: float
    accuracy: float
    duplicates: int
    overlap: float = 0.0
    repeated: tuple[int, int] = (0, 0)

    @property
    def distinguishable(self) -> bool:
        """Whether records alone tell members from others: the premise of every conviction by scores is gone."""
        return self.p_value < SUSPICIOUS

    @property
    def uninformative(self) -> bool:
        """Whether scores show nothing: the two can be distinguished, or so much is in both that a leak would not show.

        An other that equals a member is accused with it, which takes from TPR - FPR and adds nothing. Candidates
        stay exchangeable: a conviction is as sound as without it.
        """
        return self.distinguishable or self.overlap > LARGEST_OVERLAP

    def warnings(self) -> tuple[str, ...]:
        """Warnings for the reader of a result."""
        warnings = []
        if self.distinguishable:
            warnings.append(
                f"members and non-members differ by themselves (a classifier that sees no answers tells them apart: "
                f"accuracy {self.accuracy:.3f}, p = {self.p_value:.2g}): draw both from one distribution at random, or "
                "the attack measures that difference"
            )
        if self.duplicates:
            warnings.append(
                f"{self.duplicates} non-members ({self.overlap:.1%}) are equal to a member: for them there is no right "
                "answer, and TPR - FPR is smaller by as much"
            )
        if any(self.repeated):
            warnings.append(
                f"{self.repeated[0]} members and {self.repeated[1]} non-members share every row with others of their "
                "kind, and are not asked about: their answers would be one answer, about all of them"
            )
        return tuple(warnings)


def difference(members: Labelled, others: Labelled, seed: int = 0) -> Difference:
    """Compare the two by their labels and by a classifier (a two-sample test, Lopez-Paz and Oquab 2017).

    What is compared is units: by the means of their rows, how many these are, and their commonest label. A unit's rows
    resemble each other, so that a test which took them for so many independent ones would find differences by chance.

    Equal numbers of both are split in halves; what tells them apart is fitted to one and counted on the other, so that
    under no difference the count is binomial and the p-value valid. With fewer than 20 of each p is 1. What is
    `repeated` is left out of everything but its count.
    """
    again = repeated(members), repeated(others)
    all_of = members.count, others.count
    members, others = members[~again[0]], others[~again[1]]
    counts = all_of[0] - members.count, all_of[1] - others.count
    if again[0].all() or again[1].all():
        return Difference(1.0, 0.5, 0, 0.0, counts)
    member_rows = {(row.tobytes(), int(y)) for row, y in zip(members.X, members.y, strict=True)}
    unlike = [(row.tobytes(), int(y)) not in member_rows for row, y in zip(others.X, others.y, strict=True)]
    duplicates = others.count - len(np.unique(others.of[unlike]))
    overlap = duplicates / others.count
    size = min(members.count, others.count, _MOST_TO_COMPARE) // 2 * 2
    if size < _FEWEST_TO_COMPARE:
        return Difference(1.0, 0.5, duplicates, overlap, counts)
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classifiers = (
        make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=500)),
        RandomForestClassifier(n_estimators=50, min_samples_leaf=5, random_state=seed),
    )
    generator = np.random.default_rng(seed)
    classes, half = int(max(members.y.max(), others.y.max())) + 1, size // 2
    labels, means = zip(*(_unit_features(records, classes) for records in (members, others)), strict=True)
    features = [rows_of_class[generator.permutation(len(rows_of_class))[:size]] for rows_of_class in means]
    fit, count = (
        np.concatenate([rows_of_class[rows] for rows_of_class in features]) for rows in (slice(half), slice(half, None))
    )
    truth = np.repeat([True, False], half)
    rights = [int((classifier.fit(fit, truth).predict(count) == truth).sum()) for classifier in classifiers]
    p_values = [scipy.stats.binomtest(right, size, 0.5, alternative="greater").pvalue for right in rights]
    smallest = float(min(*p_values, _labels_differ(*labels)))
    return Difference(min(1.0, smallest * (len(p_values) + 1)), max(rights) / size, duplicates, overlap, counts)


def _unit_features(records: Labelled, classes: int) -> tuple[Labels, Floats]:
    """Return of each unit its commonest label (u,), and features: the mean of its rows and labels, and how many."""
    features = np.column_stack([records.X, np.eye(classes)[records.y]])
    if records.units is None:
        return records.y, features
    rows = np.bincount(records.of)
    sums = np.zeros((records.count, features.shape[1]))
    np.add.at(sums, records.of, features)
    labels: Labels = sums[:, -classes:].argmax(axis=1)
    return labels, np.column_stack([sums / rows[:, None], rows])


def _labels_differ(members: Labels, others: Labels) -> float:
    classes = int(max(members.max(), others.max())) + 1
    table = np.stack([np.bincount(members, minlength=classes), np.bincount(others, minlength=classes)])
    table = table[:, table.sum(axis=0) >= 10]
    if table.shape[1] < 2:
        return 1.0
    return float(scipy.stats.chi2_contingency(table).pvalue)


def _check_fit(what: str, records: Labelled, model: Mapping[str, Any]) -> None:
    features, classes = len(model["feature_names"]), len(model["classes"])
    if records.X.shape[1] != features:
        raise ValueError(f"the {what} have rows of {records.X.shape[1]} values, and the model takes {features}")
    if int(records.y.min()) < 0 or int(records.y.max()) >= classes:
        raise ValueError(f"the {what} have a label outside the model's {classes} classes")
    lower, upper = (np.asarray(model["feature_map"][end]) for end in ("lower", "upper"))
    outside = ~((lower <= records.X) & (upper >= records.X))
    if outside.any():
        row, column = (int(place) for place in np.argwhere(outside)[0])
        raise ValueError(
            f"the {what}, row {row}, column {column}: {records.X[row, column]:g} is not within the model's bounds "
            f"{lower[column]:g} to {upper[column]:g}"
        )


def _sentence(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f", ... ({len(names)} in all)" if len(names) > 8 else "")
