"""The distinguishing audit of a service: two running services of neighbouring models, asked and told apart.

The auditor holds both bundles, as an owner does, and has a key of each service. A question that was asked before is
answered with the same bytes, by anybody, so every trial asks a question of its own: the strongest row a few steps of
its features away. Every trial's noise is then independent of the others', and its score is computed from the logits of
the very row that was asked, so that the distance costs no power.
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
_DRAWS = 4
Kept = Callable[[Mapping[str, Any], Callable[[], tuple[Floats, Floats]]], tuple[Floats, Floats]]

JITTER = 2.0**-10
"""How far, of a feature's range, a trial's row may lie from the strongest one: 2^14 steps of its features or so."""


class PredictionClient(Protocol):
    """A service through its public client, as `dpserve.Client`."""

    def model(self) -> Mapping[str, Any]:
        """Return the public part of the model's certificate and how it is served."""
        ...

    def predict_proba(self, X: Floats) -> Floats:
        """Return private probabilities (n, C) of rows (n, d)."""
        ...


def nearby_rows(
    row: Floats,
    count: int,
    lower: Floats,
    upper: Floats,
    rng: np.random.Generator,
    features: Callable[[Floats], Floats],
    asked: set[bytes] | None = None,
) -> Floats:
    """Return rows (count, d) within the bounds, each within JITTER of the range of `row` (1, d), no two one question.

    features: the model's, which tell what one question is. asked: questions that must not be asked again; takes up
    those of the rows. Raises ValueError where there are not so many questions so close.
    """
    known: set[bytes] = set() if asked is None else asked
    found: list[Floats] = []
    for _ in range(_DRAWS):
        moves = rng.uniform(-JITTER, JITTER, (count, row.shape[1])) * (upper - lower)
        # Reflected at the bounds, for clipping would make rows alike where the strongest row lies on all of them.
        moved = row + moves
        moved = np.where(moved > upper, 2 * upper - moved, moved)
        rows: Floats = np.clip(np.where(moved < lower, 2 * lower - moved, moved), lower, upper)
        for one, phi in zip(rows, features(rows) + 0.0, strict=True):
            question = hashlib.sha256(phi.tobytes()).digest()
            if question not in known and len(found) < count:
                known.add(question)
                found.append(one)
        if len(found) == count:
            return np.stack(found)
    raise ValueError(f"there are not {count} different questions so close to one another")


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
    rows = nearby_rows(row, trials, lower, upper, rng, pair.head_in.features)
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
