"""What `dpserve audit mechanism` does."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from audit.distinguishing import presentation
from audit.distinguishing.mechanism import judge, observe
from audit.distinguishing.worlds import worst_case
from audit.pieces import ResultStore, code_digest
from audit.reports import Report
from dpserve.commands.console import counting
from mechanisms.mechanism import Mechanism, priced
from mechanisms.randomness import Randomness, SystemRandomness
from mechanisms.seeded import SeededRandomness

Floats = NDArray[np.float64]

_PIECE = 10_000
_DEFAULT_DELTA = 1e-5


def audit_mechanism(
    name: str,
    classes: int,
    *,
    epsilon: float | None,
    price: str | None,
    delta: float | None,
    trials: int,
    confidence: float,
    conviction_confidence: float,
    seed: int | None,
    resume: Path | None,
) -> Report:
    """Return the report. Raises ValueError for nonsense."""
    written = _price(name, epsilon, price, _DEFAULT_DELTA if delta is None else delta)
    mechanism = priced(name, written, classes)
    if delta is None:
        delta = 0.0 if np.isfinite(mechanism.cost.pure_epsilon) else _DEFAULT_DELTA
    if resume is not None and seed is None:
        raise ValueError("--resume needs a --seed: pieces without one would be other draws than those of this audit")
    store = None if resume is None else ResultStore(resume, {"code": code_digest()})
    with counting(f"asking {name}", trials) as progress:
        scores = _observed(mechanism, classes, written, trials, seed, store, progress)
    finding = judge(mechanism, *scores, delta=delta, confidence=confidence, conviction_confidence=conviction_confidence)
    setting = {"classes": classes, "price": written, "trials": trials, "seed": seed}
    return presentation.report(
        finding,
        *scores,
        f"Audit of the mechanism {name!r} ({mechanism.status}) with {classes} classes at {written}",
        setting,
        "The two worlds' logits are exactly as far apart as the sensitivity allows.",
    )


def _price(name: str, epsilon: float | None, price: str | None, delta: float) -> str:
    if (epsilon is None) == (price is None):
        raise ValueError("state the claim: either --epsilon E or --price PRICE")
    if price is not None:
        return price
    amount = f"epsilon:{Decimal(repr(epsilon))}"
    return f"{amount}@{delta!r}" if name == "gaussian" else amount


def _observed(
    mechanism: Mechanism,
    classes: int,
    price: str,
    trials: int,
    seed: int | None,
    store: ResultStore | None,
    progress: Callable[[int], None],
) -> tuple[Floats, Floats]:
    """Return the scores, piece by piece: each piece's noise follows from the seed and the piece's number.

    A kept piece is bound to the seed and to what was asked, and by its store to the code that made it.
    """
    worlds = worst_case(mechanism, classes)
    found: tuple[list[Floats], list[Floats]] = ([], [])
    for number, start in enumerate(range(0, trials, _PIECE)):
        count = min(_PIECE, trials - start)
        randomness: Randomness = (
            SystemRandomness()
            if seed is None
            else SeededRandomness(seed, ("audit mechanism", mechanism.name, price, str(classes), str(number)))
        )

        def compute(count: int = count, randomness: Randomness = randomness) -> dict[str, list[float]]:
            scores_in, scores_out = observe(mechanism, worlds, count, randomness)
            return {"in": scores_in.tolist(), "out": scores_out.tolist()}

        piece = {
            "name": f"audit-{mechanism.name}",
            "price": price,
            "classes": classes,
            "seed": seed,
            "piece": number,
            "count": count,
        }
        result = compute() if store is None else store.result(piece, compute)
        for kept, key in zip(found, ("in", "out"), strict=True):
            kept.append(np.asarray(result[key], dtype=np.float64))
        progress(count)
    return np.concatenate(found[0]), np.concatenate(found[1])
