"""Every attack's scores for every candidate, from the endpoint's answers and the shadow models'."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from audit.membership import likelihood_ratio, signals
from audit.membership.attack_network import EPOCHS, Kind, KnownAnswers, train_attack_network
from audit.membership.verdict import Scores
from mechanisms.seeded import derived_seed

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Mask = NDArray[np.bool_]

Signal = Callable[[Floats, Labels], Floats]


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
    epochs: int = EPOCHS,
    progress: Callable[[str, float], None] = lambda _, __: None,
) -> list[Scores]:
    """Score candidates with answers (n, C), labels y (n,); member: (n,), the truth, which only sorts the scores."""
    known = shadowed.known()
    found: dict[str, tuple[Floats, float | None]] = {}
    kinds: tuple[tuple[str, Kind], ...] = (
        ("shadow, per class", "per-class"),
        ("shadow, pooled", "pooled"),
    )
    for name, kind in kinds:
        what = f"training the attack network, {kind}"
        on_share = partial(progress, what)
        network = train_attack_network(known, kind, seed, epochs=epochs, on_share=on_share)
        found[name] = (network.scores(answers, y), 0.0)
    found |= _thresholded(answers, y, known)
    confidences = signals.scaled_confidence(answers, y)
    shadow = shadowed.of_candidates(signals.scaled_confidence, len(y))
    seen = shadowed.members[:, : len(y)]
    if seen.any():
        found["LiRA, online"] = (likelihood_ratio.online(confidences, shadow, seen), None)
    if not seen.all():
        found["LiRA, offline"] = (likelihood_ratio.offline(confidences, shadow, seen), None)
    order = order_of(len(y), seed)
    return [
        Scores(name, scores[order][member[order]], scores[order][~member[order]], threshold)
        for name, (scores, threshold) in found.items()
    ]


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
