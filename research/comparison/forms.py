"""Which form of class sums to release: every form, compared on parts of the training records alone.

The rule was fixed before anything was measured: the form whose accuracy is best in the mean over the sets, the
epsilons and the splits. No row that the comparison asks about takes part. The records of a set are those of its seed
0, and each split sets a sixth of them aside at random.
"""

import csv
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np

from accounting.arrays import Floats
from accounting.budgets import Budget
from mechanisms.gaussian_vector import GaussianVector, mu_for
from mechanisms.seeded import SeededRandomness, derived_seed
from research.comparison.cases import Drawn
from training.kinds.cases import Case, Heads
from training.kinds.class_sums import model as class_sums
from training.kinds.class_sums import shrinkage
from training.planning.options import DELTA

EPSILONS = (1.0, 4.0)
SETS = ("location", "mnist-10k", "adult", "retail")
SPLITS = 5
_VALIDATED = 6
"""One in so many records is asked about."""

ESTIMATORS: dict[str, Callable[[Floats, float], Floats]] = {
    "none": lambda noisy, _: noisy,
    "singular-value": shrinkage.by_singular_value,
    "both": shrinkage.by_both,
    "entry": shrinkage.by_entry,
    "both and entry": shrinkage.shrunk,
}


@dataclass(frozen=True, order=True)
class Form:
    """A way to make class sums. share: of the budget, for the mean of the rows; None for rows that are not centred.

    lengthened: a centred row counts as (u - m)/||u - m||, and as (u - m)/2 otherwise: at most 1 either way.
    estimator: what takes noise from the sums. by_direction: classes are compared by direction, not by the sum itself.
    """

    share: Fraction | None
    lengthened: bool
    estimator: str
    by_direction: bool

    def __str__(self) -> str:
        """The name in tables."""
        rows = (
            "not centred"
            if self.share is None
            else f"centred for {float(self.share):g}, {'unit' if self.lengthened else 'half'} rows"
        )
        return f"{rows}, shrinkage: {self.estimator}, {'directions' if self.by_direction else 'sums'}"


FORMS: tuple[Form, ...] = tuple(
    Form(share, lengthened, estimator, by_direction)
    for share, lengthened in (
        (None, True),
        *product((Fraction(1, 20), Fraction(1, 10), Fraction(1, 5)), (True, False)),
    )
    for estimator, by_direction in product(ESTIMATORS, (True, False))
)

SHIPPED = Form(class_sums.CENTRE_SHARE, True, "both and entry", True)
"""The form that `training.kinds.class_sums.model` releases."""


@dataclass(frozen=True)
class Figure:
    """An accuracy. part: "validation", or "test" for the rows that the comparison asks about."""

    part: str
    dataset: str
    epsilon: float
    split: int
    form: str
    accuracy: float


def validation(case: Case, split: int) -> Case:
    """Five sixths of the case's own records, and the others to ask about. The rows that the case asks take no part."""
    order = np.random.default_rng(derived_seed(split, "class-sum forms", case.name)).permutation(len(case.y))
    count = len(order) // _VALIDATED
    asked, kept = order[:count], order[count:]
    return Case(
        case.name, split, case.X[kept], case.y[kept], case.X[asked], case.y[asked], case.classes, f"forms-{split}"
    )


def measure(
    directory: Path, datasets: Sequence[str] = SETS, splits: int = SPLITS, epsilons: Sequence[float] = EPSILONS
) -> Iterator[Figure]:
    """Measure every form on every split of every set; then, for information alone, at the rows that are asked."""
    for part, name in product(("validation", "test"), datasets):
        drawn = Drawn.read(name, directory)
        for split in range(splits):
            case = validation(drawn.case(0), split) if part == "validation" else drawn.case(split)
            heads = Heads(case)
            records, asked = _directions(heads, case.X), _directions(heads, case.asked)
            for epsilon in epsilons:
                for form, accuracy in accuracies(case, records, asked, epsilon).items():
                    yield Figure(part, name, epsilon, split, str(form), accuracy)


def accuracies(case: Case, records: Floats, asked: Floats, epsilon: float) -> dict[Form, float]:
    """Return each form's accuracy. records, asked: unit rows u, (n, D) and (m, D)."""
    whole = Budget.from_epsilon_delta(epsilon, DELTA, "gaussian").limit
    found: dict[Form, float] = {}
    for share, lengthened in dict.fromkeys((form.share, form.lengthened) for form in FORMS):
        noisy, sigma, rows = _released(case, records, asked, (share, lengthened), whole, epsilon)
        for name, estimator in ESTIMATORS.items():
            sums = estimator(noisy, sigma)
            found[Form(share, lengthened, name, True)] = case.accuracy(rows @ shrinkage.unit_rows(sums).T)
            found[Form(share, lengthened, name, False)] = case.accuracy(rows @ sums.T)
    return {form: found[form] for form in FORMS}


def best(figures: Sequence[Figure]) -> tuple[tuple[str, float], ...]:
    """Return the forms and their means over sets, epsilons and splits, by validation alone, the best first."""
    figures = [figure for figure in figures if figure.part == "validation"]
    means = {
        form: fmean(figure.accuracy for figure in figures if figure.form == form)
        for form in dict.fromkeys(figure.form for figure in figures)
    }
    return tuple(sorted(means.items(), key=lambda pair: -pair[1]))


def write_csv(figures: Sequence[Figure], path: Path) -> None:
    """Write the means over the splits, one line for each part, set, epsilon and form."""
    cells: dict[tuple[str, str, float, str], list[float]] = {}
    for figure in figures:
        cells.setdefault((figure.part, figure.dataset, figure.epsilon, figure.form), []).append(figure.accuracy)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("part", "dataset", "epsilon", "form", "mean", "splits"))
        for (part, dataset, epsilon, form), found in cells.items():
            writer.writerow((part, dataset, f"{epsilon:g}", form, f"{fmean(found):.4f}", len(found)))


def read_csv(path: Path) -> tuple[Figure, ...]:
    """Read what `write_csv` wrote: a figure for each mean, of split 0."""
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(
            Figure(row["part"], row["dataset"], float(row["epsilon"]), 0, row["form"], float(row["mean"]))
            for row in csv.DictReader(file)
        )


def _directions(heads: Heads, X: Floats) -> Floats:
    chosen = heads.feature_map("identity")
    return shrinkage.unit_rows(chosen(X, chosen.public_tensors()))


def _released(
    case: Case, records: Floats, asked: Floats, how: tuple[Fraction | None, bool], whole: int, epsilon: float
) -> tuple[Floats, float, Floats]:
    """Return the noisy sums (C, D), their noise, and the asked rows as a form sees them (m, D)."""
    share, lengthened = how
    randomness = functools.partial(SeededRandomness, case.seed)
    words = (case.name, case.split, repr(epsilon))
    if share is not None:
        paid = whole * share.numerator // share.denominator
        b = class_sums.COUNT_COORDINATE
        total = np.append(records.sum(axis=0) * np.sqrt(1 - b**2), b * len(records))
        law = GaussianVector(mu_for(paid), len(total), 1.0)
        mean = class_sums.mean_of(law.release(total, randomness((*words, "centre"))))
        records, asked, whole = records - mean, asked - mean, whole - paid
        if lengthened:
            records, asked = shrinkage.unit_rows(records), shrinkage.unit_rows(asked)
        else:
            records = records / 2
    exact = np.zeros((case.classes, records.shape[1]))
    np.add.at(exact, case.y, records)
    law = GaussianVector(mu_for(whole), exact.size, 1.0)
    return law.release(exact, randomness((*words, "sums"))), law.standard_deviation, asked
