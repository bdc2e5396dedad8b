"""What `dpserve audit region` does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from audit import region
from audit.reports import Report
from dpserve.commands.audit_output import stored
from dpserve.commands.console import counting
from mechanisms.mechanism import names
from mechanisms.seeded import SeededRandomness

MULTIPLIERS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Where none are given."""


def audit_region(
    name: str,
    *,
    classes: int,
    noise_multipliers: Sequence[float] | None,
    releases: int,
    trials: int,
    delta: float,
    confidence: float,
    conviction_confidence: float,
    seed: int,
    resume: Path | None,
) -> Report:
    """Return the report. Raises ValueError for nonsense."""
    if name not in names():
        raise ValueError(f"a region can be drawn of {', '.join(names())}, not of {name!r}")
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
