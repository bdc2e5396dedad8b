"""What a single answer says about membership: scores that are larger the more a row looks as if it was trained on.

Every function takes answers (n, C), probabilities, and the true labels y (n,), and returns (n,).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Mask = NDArray[np.bool_]

_LEAST = 1e-30
"""Probabilities are taken to be no smaller, so that a label that was not released has a finite score."""


@dataclass(frozen=True, eq=False)
class KnownAnswers:
    """Answers of shadow models, with what is known of each. answers: (n, C); y: (n,); member: (n,)."""

    answers: Floats
    y: Labels
    member: NDArray[np.bool_]

    def __post_init__(self) -> None:
        """Refuse parts that do not fit, and answers from which nothing can be learnt."""
        if self.answers.ndim != 2 or not self.y.shape == self.member.shape == (len(self.answers),):
            raise ValueError(f"answers {self.answers.shape} do not fit {self.y.shape} labels, {self.member.shape}")
        if self.member.all() or not self.member.any():
            raise ValueError("an attack learns from answers about members and about others")


def log_confidence(answers: Floats, y: Labels) -> Floats:
    """ln p_y, the loss with its sign changed (Yeom et al. 2018; loss-threshold attacks)."""
    return np.log(np.maximum(_own(answers, y), _LEAST))


def scaled_confidence(answers: Floats, y: Labels) -> Floats:
    """ln p_y - ln(1 - p_y), nearly normal over models (Carlini et al. 2022, Equation 3)."""
    return np.log(np.maximum(_own(answers, y), _LEAST)) - np.log(np.maximum(_sum_of_others(answers, y), _LEAST))


def correctness(answers: Floats, y: Labels) -> Floats:
    """1 where the likeliest class is the true one, 0 elsewhere: the gap attack (Yeom et al. 2018)."""
    right: Floats = (answers.argmax(axis=1) == y).astype(np.float64)
    return right


def negative_entropy(answers: Floats, y: Labels) -> Floats:
    """Sum of p ln p: how sure the answer is, whatever the label (Shokri et al. 2017, Section VI; Song and Mittal)."""
    del y
    p = np.maximum(answers, _LEAST)
    found: Floats = (p * np.log(p)).sum(axis=1)
    return found


def negative_modified_entropy(answers: Floats, y: Labels) -> Floats:
    """(1 - p_y) ln p_y + sum over i != y of p_i ln(1 - p_i) (Song and Mittal 2021, Equation 8, sign changed).

    Unlike entropy it knows the label: a sure answer counts for membership only where it is right.
    """
    rest = np.maximum(1 - answers, _LEAST)
    terms = answers * np.log(rest)
    np.put_along_axis(terms, y[:, None], 0.0, axis=1)
    own = np.maximum(_own(answers, y), _LEAST)
    found: Floats = (1 - own) * np.log(own) + terms.sum(axis=1)
    return found


def averaged(answers: Floats) -> Floats:
    """The normalised geometric mean of several answers to each row: (copies, n, C), NaN if missing, to (n, C).

    Noise that was added to logits is averaged as it was added, so that this is the best that averaging can do.
    """
    if len(answers) == 1:
        first: Floats = answers[0]
        return first
    return from_mean_log(np.nanmean(log_of(answers), axis=0))


def log_of(answers: Floats) -> Floats:
    """ln p, where no probability is smaller than what a class that was not released is taken to have."""
    return np.log(np.maximum(answers, _LEAST))


def from_mean_log(means: Floats) -> Floats:
    """The probabilities (..., C) whose logarithms are these means, but for a constant in each row."""
    weights = np.exp(means - means.max(axis=-1, keepdims=True))
    found: Floats = weights / weights.sum(axis=-1, keepdims=True)
    return found


def best_threshold(scores: Floats, member: Mask) -> float:
    """The threshold with the largest TPR - FPR of saying "member" for scores of at least it, on known members."""
    order = np.argsort(-scores, kind="stable")
    ranked, known = scores[order], member[order]
    gain = np.cumsum(known) / max(1, int(member.sum())) - np.cumsum(~known) / max(1, int((~member).sum()))
    last_of_equals = np.append(ranked[1:] != ranked[:-1], True)
    gain[~last_of_equals] = -np.inf
    return float(ranked[int(np.argmax(gain))])


def class_thresholds(scores: Floats, y: Labels, member: Mask, classes: int) -> Floats:
    """Each class's best threshold (C,), after Song and Mittal 2021; that of all where a class lacks either kind."""
    overall = best_threshold(scores, member)
    found = np.full(classes, overall)
    for label in range(classes):
        own = y == label
        if member[own].any() and not member[own].all():
            found[label] = best_threshold(scores[own], member[own])
    return found


def _own(answers: Floats, y: Labels) -> Floats:
    if answers.ndim != 2 or y.shape != (len(answers),):
        raise ValueError(f"answers {answers.shape} do not fit labels {y.shape}")
    own: Floats = np.take_along_axis(answers, y[:, None], axis=1)[:, 0]
    return own


def _sum_of_others(answers: Floats, y: Labels) -> Floats:
    """The sum without the true label's entry, added up without subtracting it: small sums keep their digits."""
    others = answers.copy()
    np.put_along_axis(others, y[:, None], 0.0, axis=1)
    found: Floats = others.sum(axis=1)
    return found
