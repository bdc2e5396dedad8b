"""Whom the attack decides about: records that were trained on, and others of the same distribution that were not.

Reads the owner's files by what the model's public certificate says of its features and classes, and checks that members
and others cannot be distinguished by the records alone (Erlingsson et al. 2019, Section 5.4): where they can, an
attack's success says nothing about the model.

Rows ask the same question where the model's public feature map makes the same numbers of them. Such rows get one answer
for one charge. An attack counts them as one row, so that no decision is counted twice and no service is
accused of charging too little.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from audit.endpoint import digest_of
from training.columns import columns_from
from training.data.classes import values_of
from training.data.digits import load_digits
from training.data.npz_file import read_npz
from training.data.table_records import column_names, read_numbers, read_with_schema
from training.exact_network import rounded
from training.feature_maps import AnyFeatureMap
from training.schema import schema_of

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Mask = NDArray[np.bool_]

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
    found: Floats = rows[places]
    return found


def _questions(feature_map: Mapping[str, Any], rows: Floats) -> Floats:
    if feature_map["kind"] == "scaled":
        lower, upper = (np.asarray(feature_map[end]) for end in ("lower", "upper"))
        return rounded((np.clip(rows, lower, upper) - lower) / (upper - lower)) + 0.0
    try:
        known = _FEATURE_MAPS.validate_python(feature_map)
    except ValidationError:
        return rows + 0.0
    return known(rows, known.public_tensors()) + 0.0


@dataclass(frozen=True, eq=False)
class Labelled:
    """Records with their labels. X: (n, d) float64, in the model's own units and order; y: (n,)."""

    X: Floats
    y: Labels

    def __post_init__(self) -> None:
        """Refuse parts that do not fit."""
        if self.X.ndim != 2 or self.y.shape != (len(self.X),):
            raise ValueError(f"records {self.X.shape} do not fit labels {self.y.shape}")

    def __len__(self) -> int:
        """How many there are."""
        return len(self.y)

    def __getitem__(self, rows: Any) -> "Labelled":
        """Return some of them."""
        return Labelled(self.X[rows], self.y[rows])

    def __add__(self, other: "Labelled") -> "Labelled":
        """Return both, these first."""
        return Labelled(np.concatenate([self.X, other.X]), np.concatenate([self.y, other.y]))


def repeated(records: Labelled) -> Mask:
    """Return which records have a row, whatever its label, that another of them has, too: (n,).

    No decision is counted about these. One answer serves all of them, so that their decisions are one decision; and it
    says whether any of them was trained on, where a claim is about one record.
    """
    names = [(row + 0.0).tobytes() for row in records.X]  # 0.0 and -0.0 are the same row
    times = Counter(names)
    return np.array([times[name] > 1 for name in names])


@dataclass(frozen=True, eq=False)
class Candidates:
    """Members, others, and more data of the same distribution of which the attacker knows nothing, if any."""

    members: Labelled
    others: Labelled
    population: Labelled | None = None

    def digest(self) -> str:
        """Return a digest of the members and the others, in their order: of whom an attack asks about."""
        parts = [part for records in (self.members, self.others) for part in (records.X, records.y)]
        return digest_of(*(np.ascontiguousarray(part).tobytes() for part in parts))

    def as_asked(self, model: Mapping[str, Any]) -> "Candidates":
        """Return the same with rows that ask the model one question made one row."""
        both, count = self.members + self.others, len(self.members)
        both = Labelled(as_asked(model, both.X), both.y)
        return Candidates(both[:count], both[count:], self.population)

    def check(self, model: Mapping[str, Any]) -> None:
        """Raise ValueError where the records are not what the model takes."""
        for what, records in (("members", self.members), ("non-members", self.others), ("population", self.population)):
            if records is not None:
                _check_fit(what, records, model)


def read_labelled(
    path: Path, model: Mapping[str, Any], *, label: str, ignore: Sequence[str] = (), class_names: str | None = None
) -> Labelled:
    """Read records from a table, or an NPZ file written FILE.npz or FILE.npz:ARRAY, by the model's declaration.

    ARRAY names booleans that pick rows. label, ignore: the table's columns. class_names: VALUE=NAME of each class,
    between commas, where the file has other values than the model's names. Raises DataError, and ValueError where the
    columns are not the model's.
    """
    names, classes = list(model["feature_names"]), list(model["classes"])
    values = values_of(classes, class_names)
    feature_map = model["feature_map"]
    limits = list(zip(feature_map["lower"], feature_map["upper"], strict=True))
    file, _, where = str(path).partition(".npz:")
    if where or path.suffix == ".npz":
        target = Path(f"{file}.npz") if where else path
        with np.load(target, allow_pickle=False) as archive:
            width = int(np.prod(archive["X"].shape[1:])) if "X" in archive.files else len(names)
        if width != len(names):
            raise ValueError(f"{target.name} has rows of {width} values, and the model takes {len(names)}")
        bounds = [f"x{index}={low!r}:{high!r}" for index, (low, high) in enumerate(limits)]
        found = read_npz(target, classes=classes, values=values, bounds=bounds, where=where or None)
        return Labelled(found.X, found.y)
    columns = columns_from(feature_map.get("columns", ()))
    schema = schema_of(columns, label, classes, values)
    _check_columns(path, [column.name for column in columns] if schema else names, label, ignore)
    if schema:
        found = read_with_schema(path, schema, label, ignore=ignore)
        return Labelled(found.X, found.y)
    bounds = [f"{name}={low!r}:{high!r}" for name, (low, high) in zip(names, limits, strict=True)]
    found = read_numbers(path, label=label, classes=classes, values=values, bounds=bounds, ignore=ignore)
    order = [found.declaration.feature_names.index(name) for name in names]
    return Labelled(found.X[:, order], found.y)


def _check_columns(path: Path, names: Sequence[str], label: str, ignore: Sequence[str]) -> None:
    found = column_names(path)
    missing = [name for name in names if name not in found]
    unknown = [name for name in found if name not in (*names, label, *ignore)]
    if label not in found:
        raise ValueError(f"{path.name} has no column {label!r} of class names: say which it is with --label")
    if missing:
        raise ValueError(f"{path.name} lacks the column {_shown(missing)}; the model takes {_shown(names)}")
    if unknown:
        raise ValueError(f"the model does not take the column {_shown(unknown)} of {path.name}: --ignore leaves it out")


def digits() -> Candidates:
    """The records of `dpserve train --data digits`, and those that it holds out."""
    split = load_digits()
    return Candidates(Labelled(split.train.X, split.train.y), Labelled(split.held_out_rows, split.held_out_labels))


@dataclass(frozen=True)
class Difference:
    """How well members and others can be distinguished by the records alone, without the model.

    p_value: of "not at all", corrected for the tests made. accuracy: of a classifier on records it was not fitted to;
    1/2 is guessing. duplicates: others that equal a member; overlap: which share of the others they are. repeated:
    members, and others, whose row another of their own kind has: they are left out.
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
        """What the reader of a result must know."""
        found = []
        if self.distinguishable:
            found.append(
                f"members and non-members differ by themselves (a classifier that sees no answers tells them apart: "
                f"accuracy {self.accuracy:.3f}, p = {self.p_value:.2g}): draw both from one distribution at random, or "
                "the attack measures that difference"
            )
        if self.duplicates:
            found.append(
                f"{self.duplicates} non-members ({self.overlap:.1%}) are equal to a member: for them there is no right "
                "answer, and TPR - FPR is smaller by as much"
            )
        if any(self.repeated):
            found.append(
                f"{self.repeated[0]} members and {self.repeated[1]} non-members have a row that another of their kind "
                "has, too, and are not asked about: their answers would be one answer, about all of them"
            )
        return tuple(found)


def difference(members: Labelled, others: Labelled, seed: int = 0) -> Difference:
    """Compare the two by their labels and by a classifier (a two-sample test, Lopez-Paz and Oquab 2017).

    Equal numbers of both are split in halves; what tells them apart is fitted to one and counted on the other, so that
    under no difference the count is binomial and the p-value valid. With fewer than 20 of each p is 1. What is
    `repeated` is left out of everything but its count.
    """
    again = repeated(members), repeated(others)
    counts = int(again[0].sum()), int(again[1].sum())
    if again[0].all() or again[1].all():
        return Difference(1.0, 0.5, 0, 0.0, counts)
    members, others = members[~again[0]], others[~again[1]]
    known = {(row.tobytes(), int(y)) for row, y in zip(members.X, members.y, strict=True)}
    duplicates = sum((row.tobytes(), int(y)) in known for row, y in zip(others.X, others.y, strict=True))
    overlap = duplicates / len(others)
    size = min(len(members), len(others), _MOST_TO_COMPARE) // 2 * 2
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
    classes, half = np.eye(int(max(members.y.max(), others.y.max())) + 1), size // 2
    chosen = (part[generator.permutation(len(part))[:size]] for part in (members, others))
    features = [np.column_stack([part.X, classes[part.y]]) for part in chosen]
    fit, count = (np.concatenate([part[rows] for part in features]) for rows in (slice(half), slice(half, None)))
    truth = np.repeat([True, False], half)
    rights = [int((one.fit(fit, truth).predict(count) == truth).sum()) for one in classifiers]
    p_values = [scipy.stats.binomtest(right, size, 0.5, alternative="greater").pvalue for right in rights]
    smallest = float(min(*p_values, _labels_differ(members.y, others.y)))
    return Difference(min(1.0, smallest * (len(p_values) + 1)), max(rights) / size, duplicates, overlap, counts)


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


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f", ... ({len(names)} in all)" if len(names) > 8 else "")
