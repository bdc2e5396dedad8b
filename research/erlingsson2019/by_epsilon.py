"""Sections 3 and 4 of Erlingsson et al. 2019: the same models by epsilon, and rotated to be read by their noise.

Section 3 rotates a table of Jayaraman and Evans 2019: at a fixed epsilon the analyses name different models; at a fixed
noise they name one model differently. Section 4 trains to an epsilon by each analysis, on Purchase-100.
"""

import math
from collections.abc import Callable, Iterator, Mapping

from scipy.optimize import brentq

from dpserve.audit.reports import ReportTable, number
from dpserve.training.errors import TrainingError
from research import dpsgd_theorems
from research.erlingsson2019.region import FALSE_POSITIVES, PRINTED

ANALYSES: Mapping[str, Callable[[float, float, int, float], float]] = {
    "naive": dpsgd_theorems.composed_epsilon,
    "advanced": dpsgd_theorems.advanced_epsilon,
    "RDP": dpsgd_theorems.moments_epsilon,
}
"""Section 4's, as taught: epsilon by noise multiplier, sampling rate, steps and delta."""

SAMPLING_RATE, STEPS, DELTA = 0.02, 5000, 1e-5
EPSILONS = (1.0, 10.0, 100.0)
_HALF_A_HUNDREDTH = 0.005

PRINTED_BY_EPSILON: dict[tuple[float, str], tuple[float, float]] = {
    (1.0, "naive"): (0.02, 0.051),
    (1.0, "advanced"): (0.04, 0.052),
    (1.0, "RDP"): (0.14, 0.056),
    (10.0, "naive"): (0.03, 0.051),
    (10.0, "advanced"): (0.12, 0.056),
    (10.0, "RDP"): (0.71, 0.078),
    (100.0, "naive"): (0.11, 0.059),
    (100.0, "advanced"): (0.34, 0.061),
    (100.0, "RDP"): (0.92, 0.081),
}
"""Section 4: (training accuracy relative to training without privacy, attack TPR at 5 % FPR)."""

JAYARAMAN_EVANS: dict[tuple[float, str], tuple[float, int]] = {
    (1.0, "naive"): (0.93, 0),
    (1.0, "advanced"): (0.93, 0),
    (1.0, "zCDP"): (0.88, 0),
    (1.0, "RDP"): (0.51, 122),
    (10.0, "naive"): (0.90, 0),
    (10.0, "advanced"): (0.87, 0),
    (10.0, "zCDP"): (0.47, 157),
    (10.0, "RDP"): (0.09, 329),
    (100.0, "naive"): (0.48, 152),
    (100.0, "advanced"): (0.53, 138),
    (100.0, "zCDP"): (0.08, 362),
    (100.0, "RDP"): (0.00, 456),
}
"""Section 3: (cross-entropy loss, count of attack successes at 5 % FPR) by epsilon and analysis."""

ROTATED: dict[float, dict[str, tuple[float, int]]] = {
    0.93: {"naive": (1, 0), "advanced": (1, 0), "zCDP": (0.1, 0), "RDP": (0.05, 0)},
    0.65: {"naive": (50, 16), "advanced": (50, 73), "zCDP": (5, 45), "RDP": (0.5, 27)},
    0.50: {"naive": (100, 152), "advanced": (100, 138), "zCDP": (10, 157), "RDP": (1, 122)},
}
"""Section 3, rotated: (epsilon, count of attack successes) by approximate loss and analysis."""


def noise_for(analysis: str, epsilon: float, sampling_rate: float, steps: int, delta: float) -> float:
    """Return the noise multiplier at which an analysis says this epsilon. Raises TrainingError where there is none."""

    def excess(log_noise: float) -> float:
        found = ANALYSES[analysis](math.exp(log_noise), sampling_rate, steps, delta)
        return math.log(found) - math.log(epsilon)

    low, high = math.log(0.3), math.log(1e5)
    if not excess(high) <= 0 <= excess(low):
        raise TrainingError(f"no noise multiplier from 0.3 to 100,000 has epsilon {epsilon:g} by {analysis}")
    return math.exp(float(brentq(excess, low, high, xtol=1e-9)))


def printed_tables() -> tuple[ReportTable, ...]:
    """Return Section 3's table, rotated, and Section 4's, with what follows from them computed."""
    return (_by_epsilon(), _rotated_table(), _section_4(), _noise_fixed())


def _by_epsilon() -> ReportTable:
    rows = [
        (f"{epsilon:g}", analysis, f"{loss:.2f}", str(count))
        for (epsilon, analysis), (loss, count) in JAYARAMAN_EVANS.items()
    ]
    columns = ("epsilon", "analysis", "loss, printed", "attack successes, printed")
    return ReportTable("Section 3: by epsilon (Jayaraman and Evans 2019, Table 5)", columns, tuple(rows))


def _rotated_table() -> ReportTable:
    """Each printed cell beside the nearest of the table that it rotates; the row of loss 0.65 has none there."""
    rows = []
    for loss, cells in ROTATED.items():
        for analysis, (epsilon, count) in cells.items():
            source = JAYARAMAN_EVANS.get((float(epsilon), analysis))
            same = "" if source is None else "yes" if source[1] == count and abs(source[0] - loss) <= 0.05 else "no"
            rows.append((f"{loss:.2f}", analysis, f"{epsilon:g}", str(count), same))
    note = "Where the table by epsilon has no cell of this epsilon, nothing stands in the last column."
    columns = ("loss, about", "analysis", "epsilon, printed", "attack successes, printed", "follows from it")
    return ReportTable("Section 3: the same, rotated", columns, tuple(rows), note)


def _section_4() -> ReportTable:
    rows = []
    for (epsilon, analysis), (accuracy, caught) in PRINTED_BY_EPSILON.items():
        noise = noise_for(analysis, epsilon, SAMPLING_RATE, STEPS, DELTA)
        exact = dpsgd_theorems.guarantees(noise, SAMPLING_RATE, STEPS, DELTA).analyses
        least = min(one.epsilon for one in exact.analyses if one.epsilon is not None)
        bound = math.log((1 - DELTA) / (1 - (caught - FALSE_POSITIVES)))
        rows.append(
            (f"{epsilon:g}", analysis, number(noise), number(least), f"{accuracy:.0%}", f"{caught:.1%}", f"{bound:.4f}")
        )
    columns = (
        "epsilon",
        "analysis",
        "noise multiplier",
        "least epsilon known",
        "accuracy, printed",
        "attack TPR, printed",
        "epsilon of it (Prop. 3)",
    )
    note = (
        f"Noise and epsilons are computed for {STEPS:,} steps at a sampling rate of {SAMPLING_RATE:g} and delta = "
        f"{DELTA:g}; accuracy is relative to training without privacy, on Purchase-100. To train at such a noise: "
        "python -m research.erlingsson2019 training --noise-multiplier."
    )
    return ReportTable("Section 4: by epsilon and analysis", columns, tuple(rows), note)


def _noise_fixed() -> ReportTable:
    def rows() -> Iterator[tuple[str, ...]]:
        for noise, row in PRINTED.items():
            paper = {"naive": row.composition, "advanced": row.advanced, "RDP": row.rdp}
            cells: list[str] = []
            for analysis, epsilon in ANALYSES.items():
                cells += [number(epsilon(noise, SAMPLING_RATE, STEPS, DELTA)), f"{paper[analysis]:g}"]
            yield (f"{noise:g}", *cells)

    columns = [f"{analysis}, {whose}" for analysis in ANALYSES for whose in ("ours", "printed")]
    least = min(PRINTED)
    at_most = ANALYSES["RDP"](least + _HALF_A_HUNDREDTH, SAMPLING_RATE, STEPS, DELTA)
    target = PRINTED[least].rdp
    note = (
        f"The multipliers are printed rounded to hundredths. That does not explain RDP's {target:g}: the greatest that "
        f"rounds to {least:g} gives {number(at_most)}, and {target:g} takes "
        f"{number(noise_for('RDP', target, SAMPLING_RATE, STEPS, DELTA))}."
    )
    return ReportTable(
        "Section 4, rotated (Table 1): one model, three epsilons", ("noise multiplier", *columns), tuple(rows()), note
    )
