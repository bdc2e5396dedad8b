"""Tables that need no data: Table VI of all sets, Table I's rivals with their values, and Finding 5's sweep."""

import math
from collections.abc import Iterator, Sequence

from dpserve.audit.reports import ReportTable
from dpserve.training.kinds.published import bounds
from dpserve.training.kinds.published.bounds import ClaimedSensitivities, Topology
from research.lu2022 import printed, rival_bounds
from research.lu2022.presentation import closed_form, number

LAMBDA = bounds.strong_convexity(printed.L2_REGULARISER)


def table_vi() -> ReportTable:
    """Return Table VI and Table V's stability column of all sets, ours beside the printed figures."""
    rows, quantities = [], []
    for row in printed.ROWS.values():
        compared = closed_form(row)
        quantities = [one.quantity for one in compared]
        rows.append((row.dataset, *(text for one in compared for text in (number(one.ours), number(one.printed)))))
    columns = [name for quantity in quantities for name in (f"{quantity}, ours", f"{quantity}, printed")]
    return ReportTable("Table VI, and Table V's OARO stability (unproven)", ("data set", *columns), tuple(rows))


def table_i() -> tuple[ReportTable, ReportTable]:
    """Return Table I, and the value of each of its bounds on every data set.

    The largest norm of a record is sqrt(features): features are scaled to [0, 1]. The constant step is Table IV's.
    """
    conditions = (
        "bound",
        "convex loss",
        "smooth loss",
        "step size in SGD",
        "normalised data",
        "binary classes",
        "formula",
    )
    values = (
        "data set",
        "Chaudhuri, binary",
        "Chaudhuri, any classes",
        "Wu, decreasing steps",
        "Wu, constant step",
        "this work",
        "multiple of this work's: Chaudhuri",
        "Wu",
    )
    return (
        ReportTable(
            "Table I: bounds of Delta_2 W, and what each asks for, as printed", conditions, _CONDITIONS, _ASKED
        ),
        ReportTable("Table I: the bounds' values", values, tuple(_rivals()), _VALUES),
    )


_CONDITIONS = (
    ("Chaudhuri, binary", "yes", "-", "-", "yes", "yes", "2 rho/(lambda n)"),
    ("Chaudhuri, any classes", "yes", "-", "-", "-", "-", "C ||x|| rho/(lambda n)"),
    ("Wu, decreasing steps", "yes", "yes", "decreasing", "-", "-", "2 rho/(lambda n)"),
    ("Wu, constant step", "yes", "yes", "constant", "-", "-", "2 eta rho/(1 - (1 - eta lambda)^n)"),
    ("this work", "yes", "-", "-", "-", "-", "2 rho/(lambda n)"),
)
_ASKED = "All five ask for a convex loss, which a network's is not (python -m research.lu2022 convexity)."
_VALUES = (
    f"lambda = {LAMBDA:g}; ||x|| = sqrt(features), as features lie in [0, 1]; eta = {printed.LEARNING_RATE:g}, the "
    "step of Table IV, which is Adam's and not SGD's; - where a bound asks for two classes and the set has more. The "
    "bound for two classes also asks for ||x|| <= 1, which features in [0, 1] do not promise."
)


def _rivals() -> Iterator[tuple[str, ...]]:
    for row in printed.ROWS.values():
        rho, n = bounds.lipschitz(row.topology), row.n
        own = bounds.weights_l2(rho, LAMBDA, n)
        norm = math.sqrt(row.features)
        binary = rival_bounds.chaudhuri_binary_normalised(rho, LAMBDA, n) if row.classes == 2 else None
        any_classes = rival_bounds.chaudhuri_multiclass(rho, LAMBDA, n, row.classes, norm)
        constant = rival_bounds.wu_constant_step(rho, LAMBDA, n, printed.LEARNING_RATE)
        yield (
            row.dataset,
            "-" if binary is None else number(binary),
            number(any_classes),
            number(rival_bounds.wu_decreasing_steps(rho, LAMBDA, n)),
            number(constant),
            number(own),
            f"{any_classes / own:.1f}",
            f"{constant / own:.4f}",
        )


BASE = printed.ROWS["purchase-100"]
"""Finding 5's sweep changes one number of this set's shape at a time."""

_SWEPT: dict[str, Sequence[int]] = {
    "classes": (2, 5, 10, 20, 50, 100),
    "records": (1_200, 2_500, 5_000, 10_000, 20_000),
    "features": (14, 100, 446, 594, 784, 3_072, 6_169),
    "hidden neurons": (32, 64, 128, 256),
    "hidden layers": (1, 2, 3),
}


def sensitivities_of(features: int, hidden: tuple[int, ...], classes: int, n: int) -> ClaimedSensitivities:
    """Return the claimed sensitivities of a shape, with the paper's regulariser."""
    return bounds.claimed_sensitivities(Topology(features, hidden, classes), n, l2_regulariser=printed.L2_REGULARISER)


def finding_5() -> tuple[ReportTable, ...]:
    """Return the sweep: one table for each number of the shape that is changed."""
    columns = ("rho", "Delta omega", "Delta z", "(C - 1)/(C n)", "rho to base", "Delta z to base")
    base = sensitivities_of(BASE.features, printed.HIDDEN, BASE.classes, BASE.n)
    tables = []
    for what, values in _SWEPT.items():
        rows = []
        for value in values:
            features, classes, n = BASE.features, BASE.classes, BASE.n
            hidden: tuple[int, ...] = printed.HIDDEN
            match what:
                case "classes":
                    classes = value
                case "records":
                    n = value
                case "features":
                    features = value
                case "hidden neurons":
                    hidden = (value,)
                case _:
                    hidden = printed.HIDDEN * value
            found = sensitivities_of(features, hidden, classes, n)
            rows.append(
                (
                    str(value),
                    number(found.lipschitz),
                    f"{found.weight:.6f}",
                    number(found.neuron),
                    f"{(classes - 1) / (classes * n):.3e}",
                    f"{found.lipschitz / base.lipschitz:.3f}",
                    f"{found.neuron / base.neuron:.3f}",
                )
            )
        tables.append(ReportTable(f"Finding 5, by {what}", (what, *columns), tuple(rows)))
    return tuple(tables)


FINDING_5 = (
    f"Base: the shape of {BASE.dataset}, {BASE.features} features, {BASE.classes} classes, {BASE.n:,} records, 128 "
    "hidden neurons. The finding holds for one hidden layer, where Delta z is exactly 2 (C - 1)/C sqrt(m/(m + C))/"
    "(lambda n): rho's dependence on the m features cancels against the number of weights, for m far above C. A second "
    "hidden layer brings rho back."
)
