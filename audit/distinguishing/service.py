"""The distinguishing audit of a service: two running services of neighbouring models, asked and told apart.

The auditor holds both bundles, as an owner does, and has a key of each service. A row that was asked before is answered
with the same bytes, so every trial asks a row of its own: the strongest row with a change too small to matter.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from audit.distinguishing.likelihood import scores
from audit.distinguishing.neighbours import Neighbours
from audit.distinguishing.worlds import Worlds
from audit.endpoint import served_mechanism
from mechanisms.mechanism import Mechanism

Floats = NDArray[np.float64]
Kept = Callable[[Mapping[str, Any], Callable[[], tuple[Floats, Floats]]], tuple[Floats, Floats]]

JITTER = 2.0**-20
"""How far, of a feature's range, a trial's row may lie from the strongest one."""


class PredictionClient(Protocol):
    """A service through its public client, as `dpserve.Client`."""

    def model(self) -> Mapping[str, Any]:
        """Return the public part of the model's certificate and how it is served."""
        ...

    def predict_proba(self, X: Floats) -> Floats:
        """Return private probabilities (n, C) of rows (n, d)."""
        ...


def nearby_rows(row: Floats, count: int, lower: Floats, upper: Floats, rng: np.random.Generator) -> Floats:
    """Return `count` different rows (count, d) within the bounds, each within JITTER of the range of `row` (1, d).

    Raises ValueError where floating point has fewer.
    """
    moves = rng.uniform(-JITTER, JITTER, (count, row.shape[1])) * (upper - lower)
    # Reflected at the bounds, for clipping would make rows alike where the strongest row lies on all of them.
    moved = row + moves
    moved = np.where(moved > upper, 2 * upper - moved, moved)
    rows: Floats = np.clip(np.where(moved < lower, 2 * lower - moved, moved), lower, upper)
    if len(np.unique(rows, axis=0)) < count:
        raise ValueError(f"there are not {count} different rows so close to one another")
    return rows


def observe_services(
    service_in: PredictionClient,
    service_out: PredictionClient,
    pair: Neighbours,
    row: Floats,
    trials: int,
    rng: np.random.Generator,
    *,
    kept: Kept = lambda _, ask: ask(),
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[Mechanism, Floats, Floats]:
    """Ask both services about `trials` rows near `row` (1, d); return the mechanism and the scores of either world.

    Raises ValueError unless the services serve the pair's two models by the same mechanism at the same price, and
    whatever the client raises. Every row is charged at either service. kept: from what the scores of some rows depend
    on besides the seed, and how to ask, to those scores: asked, or as they were kept before.
    """
    mechanism = _agreed(service_in, service_out, pair)
    feature_map = pair.head_in.certificate.feature_map
    lower, upper = np.asarray(feature_map.lower), np.asarray(feature_map.upper)
    found: tuple[list[Floats], list[Floats]] = ([], [])
    rows = nearby_rows(row, trials, lower, upper, rng)
    batch = min(int(service_in.model()["largest_batch"]), int(service_out.model()["largest_batch"]))
    for start in range(0, trials, batch):
        asked = rows[start : start + batch]

        def ask(asked: Floats = asked) -> tuple[Floats, Floats]:
            worlds: Worlds = pair.worlds(asked)
            inside, outside = (
                scores(mechanism, service.predict_proba(asked), worlds) for service in (service_in, service_out)
            )
            return inside, outside

        piece = {
            "models": [head.certificate.model_id for head in (pair.head_in, pair.head_out)],
            "mechanism": mechanism.name,
            "losses": str(mechanism.cost),
            "rows": hashlib.sha256(asked.tobytes()).hexdigest(),
        }
        for scored, all_scored in zip(kept(piece, ask), found, strict=True):
            all_scored.append(scored)
        progress(len(asked))
    return mechanism, np.concatenate(found[0]), np.concatenate(found[1])


def _agreed(service_in: PredictionClient, service_out: PredictionClient, pair: Neighbours) -> Mechanism:
    models = service_in.model(), service_out.model()
    for model, head, which in zip(models, (pair.head_in, pair.head_out), ("first", "second"), strict=True):
        if model["model_id"] != head.certificate.model_id:
            raise ValueError(f"the {which} service serves another model than the {which} bundle holds")
    if any(models[0][key] != models[1][key] for key in ("mechanism", "price_per_row")):
        raise ValueError("the two services answer by different mechanisms or at different prices")
    return served_mechanism(models[0])
