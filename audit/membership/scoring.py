"""Every attack's membership scores: larger the more a row looks as if the model was trained on it.

A privacy unit's score is the mean of its rows' scores.

From the endpoint's answers (n, C), probabilities, to rows with true labels y (n,), and the shadow models' answers. Each
score with shadow models was the best in a measured cell of `research/README.md` or `docs/attacks.md`; endpoints
without them have others (`dpserve.audit.membership.leakage`).

The likelihood-ratio attack, LiRA, asks how likely an answer is from models that saw the row, and from others (Carlini
et al. 2022, Algorithm 1, online, and Section V-C, offline). A row's scaled confidence is taken to be normal over shadow
models; with few of them one variance is shared by all rows, as the paper advises. "LiRA, pooled" learns how far a
record moves its own confidence from all rows, too.

RMIA compares p_y(x) over its mean for reference models with the same of records z of the population (Zarifzadeh et al.
2024, Equations 2 to 4): the share of the z that x exceeds. That share grows with x's own ratio, whatever the z are, so
the ratio ranks candidates as RMIA does with infinitely many z, and no answer about a z has to be paid for.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, log_ndtr, logsumexp
from sklearn.metrics import roc_curve

from dpserve.accounting.arrays import Floats, Labels, Mask
from dpserve.mechanisms.seeded import derived_seed

LEAST_MODELS = 2
"""A row needs so many shadow models that saw it, and that did not, for its mean to be estimated by itself."""

MODELS_FOR_OWN_VARIANCE = 64
"""With fewer shadow models all rows share one variance (Carlini et al. 2022, Section VI-B)."""

_LEAST_DEVIATION = 1e-3
_LEAST = 1e-308
"""Probabilities are taken to be no smaller, so that a label that was not released has a finite score."""


@dataclass(frozen=True, eq=False)
class Scores:
    """One attack's scores. members, others: (n,) each, in a random order."""

    attack: str
    members: Floats
    others: Floats


def log_of(answers: Floats) -> Floats:
    """Return ln p, where no probability is smaller than what a class that was not released is taken to have."""
    return np.log(np.maximum(answers, _LEAST))


def log_confidence(answers: Floats, y: Labels) -> Floats:
    """Return ln p_y, the loss with its sign changed (Yeom et al. 2018; loss-threshold attacks)."""
    return log_of(_chance_of(answers, y))


def scaled_confidence(answers: Floats, y: Labels) -> Floats:
    """Return ln p_y - ln(1 - p_y), nearly normal over models (Carlini et al. 2022, Equation 3)."""
    # 1 - p_y is added up from the others, so that small sums keep their digits.
    others = answers.copy()
    np.put_along_axis(others, y[:, None], 0.0, axis=1)
    return log_of(_chance_of(answers, y)) - log_of(others.sum(axis=1))


def average_answers(answers: Floats) -> Floats:
    """Return the normalised geometric mean of several answers: (copies, n, C), NaN where one is missing, to (n, C).

    Noise that was added to logits is averaged as it was added, so that this is the best that averaging can do.
    """
    if len(answers) == 1:
        first: Floats = answers[0]
        return first
    means = np.nanmean(log_of(answers), axis=0)
    weights = np.exp(means - means.max(axis=1, keepdims=True))
    average: Floats = weights / weights.sum(axis=1, keepdims=True)
    return average


def best_threshold(scores: Floats, member: Mask) -> float:
    """Return the threshold with the largest TPR - FPR of saying "member" for scores of at least it."""
    false_positives, true_positives, thresholds = roc_curve(member, scores, drop_intermediate=False)
    return float(thresholds[1:][np.argmax((true_positives - false_positives)[1:])])


def _chance_of(answers: Floats, y: Labels) -> Floats:
    chance: Floats = np.take_along_axis(answers, y[:, None], axis=1)[:, 0]
    return chance


def scores_of(
    answers: Floats,
    y: Labels,
    member: Mask,
    shadow: Floats,
    seen: Mask,
    seed: int,
    *,
    of: Labels | None = None,
    own_law: Floats | None = None,
) -> list[Scores]:
    """Score candidates with answers (n, C), labels y (n,); member: (n,), the truth, which only sorts the scores.

    shadow: (k, n, C), the shadow models' answers about the candidates; seen: (k, n), who was trained on whom. of: (n,),
    each row's candidate, from 0, where one has several rows: its score is the mean of theirs. own_law: (n,), each row's
    score by the mechanism's law (`dpserve.audit.membership.own_law`), if any.
    """
    loss, scores_by_attack = log_confidence(answers, y), dict[str, Floats]()
    confidences = scaled_confidence(answers, y)
    shadow_confidences = np.stack([scaled_confidence(answers_of_model, y) for answers_of_model in shadow])
    if seen.any():
        scores_by_attack["LiRA, online"] = online_ratio(confidences, shadow_confidences, seen)
    if (seen.any(axis=0) & ~seen.all(axis=0)).any():
        scores_by_attack["LiRA, pooled"] = pooled_ratio(confidences, shadow_confidences, seen)
    if not seen.all():
        scores_by_attack["LiRA, offline"] = offline_ratio(confidences, shadow_confidences, seen)
    shadow_losses = np.stack([log_confidence(answers_of_model, y) for answers_of_model in shadow])
    scores_by_attack["RMIA"] = relative_confidence(loss, shadow_losses, seen)
    if own_law is not None:
        scores_by_attack["own law"] = own_law
    of = np.arange(len(y)) if of is None else of
    rows = np.bincount(of)
    order = order_of(len(rows), seed)
    inside = (np.bincount(of, member) > 0)[order]
    means = {name: (np.bincount(of, scores) / rows)[order] for name, scores in scores_by_attack.items()}
    return [Scores(name, mean[inside], mean[~inside]) for name, mean in means.items()]


def of_candidates(scores: Scores, member: Mask, seed: int) -> Floats:
    """Return scores in the order of the candidates (c,), who are members or not, before `scores_of` mixed them."""
    order = order_of(len(member), seed)
    by_candidate = np.empty(len(member))
    by_candidate[order[member[order]]], by_candidate[order[~member[order]]] = scores.members, scores.others
    return by_candidate


def order_of(count: int, seed: int) -> Labels:
    """Return the order of the scores: not from the plan's seed, as pairs must not follow the plan."""
    return np.random.default_rng(derived_seed(seed, "order")).permutation(count)


def online_ratio(confidences: Floats, shadow: Floats, seen: Mask) -> Floats:
    """Return ln N(x; in) - ln N(x; out) of each row: (n,).

    confidences: (n,), of the target's answers. shadow: (k, n), of the shadow models' answers to the same rows.
    seen: (k, n), whether each model was trained on the row.
    """
    densities = []
    for used in (seen, ~seen):
        mean, deviation = _fit_normals(shadow, used)
        densities.append(-np.square((confidences - mean) / deviation) / 2 - np.log(deviation))
    ratio: Floats = densities[0] - densities[1]
    return ratio


def offline_ratio(confidences: Floats, shadow: Floats, seen: Mask) -> Floats:
    """Return ln P(N(out) <= x) of each row: (n,). Only models that did not see the row are used."""
    mean, deviation = _fit_normals(shadow, ~seen)
    score: Floats = log_ndtr((confidences - mean) / deviation)
    return score


def pooled_ratio(confidences: Floats, shadow: Floats, seen: Mask) -> Floats:
    """Return the log-ratio of two normals whose distance is learnt from all rows together: (n,).

    A row's own difference of means has the error of a few shadow models, which is nearly all of it: what a record moves
    follows from how well its row is told without it. So the difference is a quadratic function of 1 - p, p being the
    probability of the true class in the middle m of both means, by least squares over the rows that have both. The
    score is (x - m) times it, over the variance that all rows share.

    confidences, shadow and seen: as for `online_ratio`. Where all shadow models saw a row, or none did, the middle is
    the mean over all of them. Raises ValueError where no row has both.
    """
    counts = seen.sum(axis=0), (~seen).sum(axis=0)
    both = np.minimum(*counts) > 0
    if not both.any():
        raise ValueError(
            "no row has shadow models that were trained with it and others that were not, as a likelihood ratio needs: "
            "train more of them"
        )
    inside, outside = (
        np.where(used, shadow, 0.0).sum(axis=0) / np.maximum(count, 1)
        for used, count in zip((seen, ~seen), counts, strict=True)
    )
    middle = np.where(both, (inside + outside) / 2, shadow.mean(axis=0))
    missed = expit(-middle)
    basis = np.stack([np.ones_like(missed), missed, missed**2], axis=1)
    moved = basis @ np.linalg.lstsq(basis[both], (inside - outside)[both], rcond=None)[0]
    squares = np.square(shadow - np.where(seen, inside, outside)).sum(axis=0)
    variance = max(float(squares[both].sum() / max(1, both.sum() * (len(shadow) - 2))), _LEAST_DEVIATION**2)
    ratio: Floats = (confidences - middle) * moved / variance
    return ratio


def relative_confidence(loss: Floats, shadow: Floats, seen: Mask) -> Floats:
    """Return ln p_y less ln of its mean over shadow models, half of whom saw the row: (n,).

    loss: (n,), ln p_y of the target's answers. shadow: (k, n), of the shadow models'. seen: (k, n), as for
    `online_ratio`. Where all shadow models saw a row, or none did, the mean is over all of them.
    """
    counts = np.stack([seen.sum(axis=0), (~seen).sum(axis=0)])
    weights = np.where(seen, 1 / np.maximum(counts[0], 1), 1 / np.maximum(counts[1], 1))
    weights = weights / weights.sum(axis=0)
    relative: Floats = loss - logsumexp(shadow, axis=0, b=weights)
    return relative


def _fit_normals(shadow: Floats, used: Mask) -> tuple[Floats, Floats]:
    """Return each row's mean and deviation over the models that are used; of all rows where there are too few."""
    count = used.sum(axis=0)
    if not used.any():
        raise ValueError(
            "the likelihood ratio needs shadow models trained with rows and others trained without, and all are of one "
            "kind: train more of them"
        )
    total = np.where(used, shadow, 0.0).sum(axis=0)
    trusted = count >= LEAST_MODELS
    mean = np.where(trusted, total / np.maximum(count, 1), float(shadow[used].mean()))
    squares = np.where(used, np.square(shadow - mean), 0.0)
    freedom = float((count[trusted] - 1).sum())
    shared = np.sqrt(squares[:, trusted].sum() / freedom) if freedom > 0 else float(shadow[used].std())
    deviation = np.full(len(mean), max(float(shared), _LEAST_DEVIATION))
    if len(shadow) >= MODELS_FOR_OWN_VARIANCE:
        deviation_of_row = np.sqrt(squares.sum(axis=0) / np.maximum(count - 1, 1))
        deviation = np.where(trusted, np.maximum(deviation_of_row, _LEAST_DEVIATION), deviation)
    return mean, deviation
