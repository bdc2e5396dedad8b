"""What `dpserve audit sampler` does."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from audit import sampler
from audit.reports import Picture, Report, Table, number, picture
from dpserve.commands.console import counting
from mechanisms.mechanism import Mechanism, priced
from mechanisms.noise import DISTANCE
from mechanisms.randomness import Randomness, SystemRandomness
from mechanisms.wide_gaussian import SCALE as WIDE_SCALE

_BATCH = 1_000_000
_GAUSSIAN_SCALES = (2**8, 2**9, 2**10, 2**12)
"""Where none is asked for: some that releases use, and the digits of the wide Gaussian. 2^16 takes minutes."""
_LAPLACE_SCALES = (2**16, 2**24)
_SELECTION_EPSILON, _SELECTED_AMONG = 1.0, 10
_FORKS, _FORKED_WORDS = 8, 100_000
_PRICES = {
    "gaussian": "noise-multiplier:4",
    "laplace": "epsilon:1",
    "label": "epsilon:1",
    "selected-neuron": "epsilon:1",
}


if TYPE_CHECKING:
    from matplotlib.figure import Figure


def audit_sampler(scale: int | None, draws: int, releases: int, classes: int, false_alarm: float) -> Report:
    """Return the report. Tables, chi-squares and forks convict; times only warn, for a busy machine moves them."""
    if not 0 < false_alarm < 1:
        raise ValueError(f"the false-alarm rate lies between 0 and 1, not {false_alarm}")
    randomness = SystemRandomness()
    scales = _GAUSSIAN_SCALES if scale is None else (scale,)
    laws = _laws(scales)
    batches = max(1, draws // _BATCH)
    size = min(draws, _BATCH)
    steps = len(scales) + len(_LAPLACE_SCALES) + (len(laws) + 1) * batches + 1 + len(_PRICES)
    with counting("auditing the sampler", steps) as progress:
        distances = {}
        for one in scales:
            distances[f"gaussian, scale {one}"] = sampler.gaussian_table_distance(one)
            progress(1)
        for one in _LAPLACE_SCALES:
            distances[f"laplace, scale {one}"] = sampler.laplace_table_distance(one)
            progress(1)
        tests = []
        for law, of in laws:
            for _ in range(batches):
                tests += [(f"{law}, scale {of}", found) for found in sampler.chi_squares(law, of, size, randomness)]
                progress(1)
        for batch in range(batches):
            selected = sampler.selections(_SELECTION_EPSILON, _SELECTED_AMONG, max(size, 10_000), randomness, batch)
            tests.append(("label, selected-neuron", selected))
            progress(1)
        repeated = sampler.repeated_words(randomness, _FORKS, _FORKED_WORDS)
        progress(1)
        times = {}
        for name, price in _PRICES.items():
            times[name] = _timed(priced(name, price, classes), classes, releases, randomness)
            progress(1)
    least = false_alarm / len(tests)
    faults = [name for name, distance in distances.items() if not sampler.within_the_distance(distance)]
    faults += [f"chi-square of {law}: {found.what}" for law, found in tests if found.p < least]
    faults += ["forks share words"] if repeated else []
    return Report(
        title="Audit of the sampler behind every release",
        verdict="Convicted: " + "; ".join(faults) + "." if faults else "Nothing was found.",
        convicted=bool(faults),
        content={
            "distances": distances,
            "promised_distance": DISTANCE,
            "chi_squares": [{"law": law} | asdict(found) for law, found in tests],
            "false_alarm": false_alarm,
            "repeated_words": repeated,
            "timings": {name: asdict(found) for name, found in times.items()},
        },
        tables=(_distances(distances), _tests(tests, least), _times(times, releases)),
        pictures=(_p_values(tests, least),),
        warnings=tuple(
            f"the times of {name!r} differ between extreme and zero logits (t = {found.t:.3g}): look again on a "
            "quiet machine"
            for name, found in times.items()
            if found.suspicious
        ),
        notes=(
            f"{_FORKS} processes forked from this one drew {_FORKED_WORDS} words each from one source: "
            f"{repeated} came twice.",
        ),
    )


def _laws(scales: Sequence[int]) -> list[tuple[sampler.LawName, int]]:
    return [
        *(("gaussian", scale) for scale in scales),
        ("wide gaussian", WIDE_SCALE),
        *(("laplace", scale) for scale in _LAPLACE_SCALES),
    ]


def _timed(mechanism: Mechanism, classes: int, releases: int, randomness: Randomness) -> sampler.Timings:
    """Time a mechanism, and once more where |t| is above 3, with twice as many releases: the second look counts."""
    found = sampler.timings(mechanism, classes, releases, randomness, 0)
    return sampler.timings(mechanism, classes, 2 * releases, randomness, 1) if found.worth_another_look else found


def _p_values(tests: list[tuple[str, sampler.ChiSquare]], least: float) -> Picture:
    found = sorted(max(one.p, 1e-18) for _, one in tests)

    def draw(figure: "Figure") -> None:
        axes = figure.add_subplot()
        expected = [(i + 0.5) / len(found) for i in range(len(found))]
        axes.loglog(expected, found, "o", label="chi-square tests")
        axes.loglog(expected, expected, ":", color="grey", label="expected of a right sampler")
        axes.axhline(least, linestyle="--", color="tab:red", label="convicts below")
        axes.set_xlabel("rank of the test, of all")
        axes.set_ylabel("p-value")
        axes.legend(fontsize="small")

    return picture("p-values", "The chi-square tests' p-values in ascending order.", draw, inches=(6.4, 4.0))


def _distances(distances: dict[str, float]) -> Table:
    return Table(
        "tables: exact total variation distance from the ideal law",
        ("table", "distance", "promised at most"),
        tuple((name, number(found), number(DISTANCE)) for name, found in distances.items()),
    )


def _tests(tests: list[tuple[str, sampler.ChiSquare]], least: float) -> Table:
    smallest: dict[tuple[str, str], list[sampler.ChiSquare]] = {}
    for law, found in tests:
        smallest.setdefault((law, found.what), []).append(found)
    return Table(
        "draws: chi-square tests",
        ("law", "of", "tests", "cells", "smallest p", "convicts below"),
        tuple(
            (law, what, str(len(of)), str(of[0].cells), number(min(one.p for one in of)), number(least, 2))
            for (law, what), of in smallest.items()
        ),
    )


def _times(times: dict[str, sampler.Timings], releases: int) -> Table:
    rows = []
    for name, found in times.items():
        best = min(found.correlations, key=lambda one: one.p)
        row = number(found.median_microseconds), number(best.correlation, 2), best.property, number(best.p, 2)
        rows.append((name, str(found.releases), *row, number(found.t, 3)))
    return Table(
        "time of a release of one row",
        ("mechanism", "releases", "median, us", "correlation", "with", "p", "t, extreme against zero"),
        tuple(rows),
        note="The strongest of four correlations with the logits is shown. Where |t| was above 3, the mechanism was "
        f"timed again, with {2 * releases} releases, and the second look is shown.",
    )
