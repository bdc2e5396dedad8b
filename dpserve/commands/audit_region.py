"""What `dpserve audit region` does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from audit import region, region_of_training
from audit.region import Point
from audit.reports import Report
from audit.white_box import experiments
from dpserve.commands.audit_output import stored
from dpserve.commands.console import counting, shares
from mechanisms.mechanism import names
from mechanisms.seeded import SeededRandomness

DP_SGD = "dp-sgd"
MULTIPLIERS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Of a mechanism, where none are given; those of DP-SGD are the paper's."""


def audit_region(
    name: str,
    *,
    classes: int,
    noise_multipliers: Sequence[float] | None,
    releases: int,
    trials: int,
    delta: float,
    dataset: str,
    data_dir: Path | None,
    confidence: float,
    conviction_confidence: float,
    seed: int,
    resume: Path | None,
) -> Report:
    """Return the report. Raises ValueError for nonsense, and DataError for missing files."""
    if name == DP_SGD:
        multipliers = noise_multipliers or tuple(region_of_training.PRINTED)
        return _of_training(dataset, data_dir, multipliers, confidence, conviction_confidence, seed, resume)
    if name not in names():
        raise ValueError(f"a region can be drawn of {', '.join((*names(), DP_SGD))}, not of {name!r}")
    points = []
    multipliers = noise_multipliers or MULTIPLIERS
    with stored(resume) as store, counting(f"asking {name}", len(multipliers)) as advance:
        for noise in multipliers:
            mechanism = region.mechanism_at(name, classes, noise)
            piece = {
                "name": f"region-{name}",
                "classes": classes,
                "noise_multiplier": noise,
                "releases": releases,
                "trials": trials,
                "seed": seed,
            }

            def compute(noise: float = noise, mechanism: Any = mechanism) -> dict[str, Any]:
                randomness = SeededRandomness(seed, ("region", name, f"{noise!r}"))
                scores = region.observe_releases(mechanism, classes, releases, trials, randomness)
                return {"in": scores[0].tolist(), "out": scores[1].tolist()}

            found = store.result(piece, compute)
            points.append(
                region.point_of(
                    mechanism,
                    noise,
                    releases,
                    (np.array(found["in"]), np.array(found["out"])),
                    delta=delta,
                    confidence=confidence,
                    conviction_confidence=conviction_confidence,
                    points=len(multipliers),
                )
            )
            advance(1)
    setting = {"mechanism": name, "classes": classes, "releases": releases, "trials": trials, "seed": seed}
    title = f"The region of privacy of {name!r}: {releases} releases of {classes} classes"
    note = "A noise multiplier stands for the price rho = 1/(2 multiplier^2) of a row, whatever the mechanism."
    return region.report(title, points, delta, setting, note)


def _of_training(
    dataset: str,
    data_dir: Path | None,
    multipliers: Sequence[float],
    confidence: float,
    conviction_confidence: float,
    seed: int,
    resume: Path | None,
) -> Report:
    settings = region_of_training.SETTINGS
    if dataset not in settings:
        raise ValueError(f"a region of training can be drawn on {', '.join(settings)}, not on {dataset!r}")
    setting = settings[dataset]
    material = experiments.prepare(setting, experiments.read(dataset, data_dir), seed)
    with stored(resume) as store, shares(f"training on {dataset}") as progress:
        points: list[Point] = region_of_training.points(
            setting, multipliers, material, store, seed, confidence, conviction_confidence, progress
        )
    title = f"The region of privacy of DP-SGD with logistic regression on {dataset}"
    chosen = {"dataset": dataset, "records": setting.records, "steps": setting.steps, "seed": seed}
    return region.report(title, points, setting.delta, chosen, material.source)
