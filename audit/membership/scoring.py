"""Every attack's scores for every candidate, from the endpoint's answers and the shadow models'.

The likelihood-ratio attack, LiRA, asks how likely an answer is from models that saw the row, and from others (Carlini
et al. 2022, Algorithm 1, online, and Section V-C, offline). A row's scaled confidence is taken to be normal over shadow
models; with few of them one variance is shared by all rows, as the paper advises.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from audit.membership import signals
from audit.membership.signals import KnownAnswers
from audit.membership.verdict import Scores
from mechanisms.seeded import derived_seed

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Mask = NDArray[np.bool_]

Signal = Callable[[Floats, Labels], Floats]

LEAST_MODELS = 2
"""A row needs so many shadow models that saw it, and that did not, for its mean to be estimated by itself."""

MODELS_FOR_OWN_VARIANCE = 64
"""With fewer shadow models all rows share one variance (Carlini et al. 2022, Section VI-B)."""

_LEAST_DEVIATION = 1e-3


@dataclass(frozen=True, eq=False)
class Shadowed:
    """What shadow models answer about the pool, whose first rows are the candidates.

    answers: (k, N, C). y: (N,). members, held_out: (k, N). records: how many each was trained on.
    """

    answers: Floats
    y: Labels
    members: Mask
    held_out: Mask
    records: int

    def known(self) -> KnownAnswers:
        """Answers about each model's members and as many others, with what is known of them."""
        model, row = np.nonzero(self.members | self.held_out)
        return KnownAnswers(self.answers[model, row], self.y[row], self.members[model, row])

    def of_candidates(self, signal: Signal, count: int) -> Floats:
        """A signal of every model's answer to each of the first `count` rows: (k, count)."""
        return np.stack([signal(answers[:count], self.y[:count]) for answers in self.answers])


def scores_of(
    answers: Floats,
    y: Labels,
    member: Mask,
    shadowed: Shadowed,
    seed: int,
    *,
    epochs: int | None = None,
    progress: Callable[[str, float], None] = lambda _, __: None,
) -> list[Scores]:
    """Score candidates with answers (n, C), labels y (n,); member: (n,), the truth, which only sorts the scores.

    epochs: of the attack networks, None for the published ones. They are left out where PyTorch is missing.
    """
    known = shadowed.known()
    found: dict[str, tuple[Floats, float | None]] = {}
    if attack_networks_are_there():
        from audit.membership.attack_network import EPOCHS, KINDS, train_attack_network

        for name, kind in KINDS.items():
            on_share = partial(progress, f"training the attack network, {kind}")
            network = train_attack_network(known, kind, seed, epochs=epochs or EPOCHS, on_share=on_share)
            found[name] = (network.scores(answers, y), 0.0)
    found |= _thresholded(answers, y, known)
    confidences = signals.scaled_confidence(answers, y)
    shadow = shadowed.of_candidates(signals.scaled_confidence, len(y))
    seen = shadowed.members[:, : len(y)]
    if seen.any():
        found["LiRA, online"] = (online_ratio(confidences, shadow, seen), None)
    if not seen.all():
        found["LiRA, offline"] = (offline_ratio(confidences, shadow, seen), None)
    order = order_of(len(y), seed)
    return [
        Scores(name, scores[order][member[order]], scores[order][~member[order]], threshold)
        for name, (scores, threshold) in found.items()
    ]


def attack_networks_are_there() -> bool:
    """Whether attack networks can be trained: they need PyTorch."""
    return find_spec("torch") is not None


def order_of(count: int, seed: int) -> Labels:
    """The order of the scores: not from the plan's seed, because pairs follow from it and must not follow the plan."""
    return np.random.default_rng(derived_seed(seed, "order")).permutation(count)


def _thresholded(answers: Floats, y: Labels, known: KnownAnswers) -> dict[str, tuple[Floats, float | None]]:
    loss = signals.log_confidence(answers, y)
    average = float(signals.log_confidence(known.answers[known.member], known.y[known.member]).mean())
    found: dict[str, tuple[Floats, float | None]] = {
        "loss, average": (loss, average),
        "loss, best": (loss, None),
        "gap": (signals.correctness(answers, y), 1.0),
    }
    for name, signal in (
        ("confidence", signals.log_confidence),
        ("entropy", signals.negative_entropy),
        ("modified entropy", signals.negative_modified_entropy),
    ):
        thresholds = signals.class_thresholds(
            signal(known.answers, known.y), known.y, known.member, known.answers.shape[1]
        )
        found[name] = (signal(answers, y) - thresholds[y], 0.0)
    return found


@dataclass(frozen=True, eq=False)
class _Normal:
    """Means and deviations, (n,) each."""

    mean: Floats
    deviation: Floats


def online_ratio(confidences: Floats, shadow: Floats, seen: Mask) -> Floats:
    """ln N(x; in) - ln N(x; out) of each row: (n,).

    confidences: (n,), of the target's answers. shadow: (k, n), of the shadow models' answers to the same rows.
    seen: (k, n), whether each model was trained on the row.
    """
    _check(confidences, shadow, seen)
    inside, outside = _fitted(shadow, seen), _fitted(shadow, ~seen)
    return _log_density(confidences, inside) - _log_density(confidences, outside)


def offline_ratio(confidences: Floats, shadow: Floats, seen: Mask) -> Floats:
    """ln P(N(out) <= x) of each row: (n,). Only models that did not see the row are used."""
    _check(confidences, shadow, seen)
    outside = _fitted(shadow, ~seen)
    score: Floats = log_ndtr((confidences - outside.mean) / outside.deviation)
    return score


def _fitted(shadow: Floats, used: Mask) -> _Normal:
    """Each row's normal law over the models that are used; the mean over all rows where there are too few."""
    count = used.sum(axis=0)
    if not used.any():
        raise ValueError("no shadow model is of the kind that the likelihood ratio needs: train more of them")
    total = np.where(used, shadow, 0.0).sum(axis=0)
    everywhere = float(shadow[used].mean())
    mean = np.where(count >= LEAST_MODELS, total / np.maximum(count, 1), everywhere)
    squares = np.where(used, np.square(shadow - mean), 0.0)
    trusted = count >= LEAST_MODELS
    freedom = float((count[trusted] - 1).sum())
    shared = np.sqrt(squares[:, trusted].sum() / freedom) if freedom > 0 else float(shadow[used].std())
    deviation = np.full(len(mean), max(float(shared), _LEAST_DEVIATION))
    if len(shadow) >= MODELS_FOR_OWN_VARIANCE:
        own = np.sqrt(squares.sum(axis=0) / np.maximum(count - 1, 1))
        deviation = np.where(trusted, np.maximum(own, _LEAST_DEVIATION), deviation)
    return _Normal(mean, deviation)


def _log_density(x: Floats, law: _Normal) -> Floats:
    return -np.square((x - law.mean) / law.deviation) / 2 - np.log(law.deviation)


def _check(confidences: Floats, shadow: Floats, seen: Mask) -> None:
    if shadow.ndim != 2 or shadow.shape != seen.shape or confidences.shape != shadow.shape[1:]:
        raise ValueError(
            f"confidences {confidences.shape} do not fit shadow models' {shadow.shape} and who saw what {seen.shape}"
        )
