"""The distinguishing audit of a service: two running services of neighbouring models, asked and distinguished.

The auditor holds both bundles, as an owner does, and has a key of each service. A question that was asked before is
answered with the same bytes, by anybody, so every trial asks a question of its own: the strongest row a few steps of
its features away. Every trial's noise is then independent of the others', and its score is computed from the logits of
the very row that was asked, so that the distance costs no power.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.audit.distinguishing.neighbours import Neighbours
from dpserve.audit.endpoint import served_mechanism
from dpserve.audit.noise import NoiseFinding, judge_known_logits, together
from dpserve.audit.pieces import ResultStore, kept_scores_and_noise
from dpserve.mechanisms.mechanism import Mechanism
from dpserve.mechanisms.worlds import Worlds

_DRAWS = 4

JITTER = 2.0**-10
"""Largest distance of a trial's row from the strongest one, in ranges of a feature: about 2^14 steps."""


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
) -> Floats:
    """Return rows (count, d) within the bounds, each within JITTER of the range of `row` (1, d), no two one question.

    features: the model's, which tell what one question is. Raises ValueError where there are not so many questions so
    close.
    """
    questions = set[bytes]()
    nearby: list[Floats] = []
    for _ in range(_DRAWS):
        moves = rng.uniform(-JITTER, JITTER, (count, row.shape[1])) * (upper - lower)
        # Reflected at the bounds, for clipping would make rows alike where the strongest row lies on all of them.
        moved = row + moves
        moved = np.where(moved > upper, 2 * upper - moved, moved)
        rows: Floats = np.clip(np.where(moved < lower, 2 * lower - moved, moved), lower, upper)
        for nearby_row, phi in zip(rows, features(rows) + 0.0, strict=True):
            question = hashlib.sha256(phi.tobytes()).digest()
            if question not in questions and len(nearby) < count:
                questions.add(question)
                nearby.append(nearby_row)
        if len(nearby) == count:
            return np.stack(nearby)
    raise ValueError(f"there are not {count} different questions so close to one another")


def observe_services(
    service_in: PredictionClient,
    service_out: PredictionClient,
    pair: Neighbours,
    row: Floats,
    trials: int,
    rng: np.random.Generator,
    store: ResultStore,
    *,
    seed: int,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[Mechanism, Floats, Floats, NoiseFinding]:
    """Ask both services about `trials` rows near `row` (1, d); return the mechanism and the scores of either world.

    And what the answers show of their noise, about the exact logits of either model. That is the heart of the audit: it
    convicts noise that is too small or reused by far fewer answers than the two worlds' scores.

    Raises ValueError unless the services serve the pair's two models by the same mechanism at the same price, and
    whatever the client raises. Every row is charged at either service, unless the store has its scores: of both models,
    the price, the rows and the seed that `rng` came from.
    """
    mechanism = _check_agreement(service_in, service_out, pair)
    feature_map = pair.head_in.certificate.feature_map
    lower, upper = np.asarray(feature_map.lower), np.asarray(feature_map.upper)
    both: tuple[list[Floats], list[Floats]] = ([], [])
    noise: list[NoiseFinding] = []
    rows = nearby_rows(row, trials, lower, upper, rng, pair.head_in.features)
    batch = min(int(service_in.model()["largest_batch"]), int(service_out.model()["largest_batch"]))
    for start in range(0, trials, batch):
        asked = rows[start : start + batch]

        def ask(asked: Floats = asked) -> tuple[Floats, Floats, NoiseFinding]:
            worlds: Worlds = pair.worlds(asked)
            answers = [service.predict_proba(asked) for service in (service_in, service_out)]
            inside, outside = (mechanism.log_ratio(replies, worlds) for replies in answers)
            tested = [
                judge_known_logits(mechanism, replies, logits, worlds.sensitivity)
                for replies, logits in zip(answers, (worlds.logits_in, worlds.logits_out), strict=True)
            ]
            return inside, outside, together(tested)

        piece = {
            "name": "audit-service",
            "seed": seed,
            "models": [head.certificate.model_id for head in (pair.head_in, pair.head_out)],
            "mechanism": mechanism.name,
            "losses": str(mechanism.cost),
            "rows": hashlib.sha256(asked.tobytes()).hexdigest(),
        }
        inside, outside, tested = kept_scores_and_noise(store, piece, ask)
        both[0].append(inside)
        both[1].append(outside)
        noise.append(tested)
        progress(len(asked))
    return mechanism, np.concatenate(both[0]), np.concatenate(both[1]), together(noise)


def _check_agreement(service_in: PredictionClient, service_out: PredictionClient, pair: Neighbours) -> Mechanism:
    models = service_in.model(), service_out.model()
    for model, head, which in zip(models, (pair.head_in, pair.head_out), ("first", "second"), strict=True):
        if model["model_id"] != head.certificate.model_id:
            raise ValueError(f"the {which} service serves another model than the {which} bundle holds")
    if any(models[0][key] != models[1][key] for key in ("mechanism", "price_per_row")):
        raise ValueError("the two services answer by different mechanisms or at different prices")
    return served_mechanism(models[0])
