"""Membership scores by the noise law of the mechanism itself, from shadow models' exact logits.

LiRA takes an answer for one number that is normal over models. The noise is the larger part of that number, and its law
is public. So shadow models are asked for their exact logits, and the answer's likelihood is the mechanism's own
(`Mechanism.log_ratio`).

What a record moves. Training on a record moves its own logits along the gradient of its loss, e_y - p, by a step that
hardly depends on the record. So the two worlds of a row are m + a (e_y - p)/2 and m - a (e_y - p)/2: m is the mean of
shadow models with and without the row, p its softmax, and a the least-squares step from the one to the other, of all
rows together. A row's own difference has the error of a few shadow models in C coordinates, which is several times the
step.

Where one logit, of v, has the noise, and the answer does not say which (`HiddenNoise`: Algorithm 1 of Lu et al.), all
log-ratios of other classes are exact, so that noise says nothing there, and LiRA is made without v:

    P(answer | in)/P(answer | out) = sum over v of P(v | answer, out) N(s_v; in)/N(s_v; out),

where s_v = z_y - ln sum over j != y, v of e^(z_j), and the factor is 1 for v = y. Given v, the other logits are about
normal around the mean of shadow models, and that of v has the noise, too: this gives P(v | answer, out), without any
knowledge of which v is likely. An answer of which more than one logit is too small to be shown says nothing.

Scores see nothing of the endpoint but the answers about their own candidate.
"""

import numpy as np
import scipy.special

from dpserve.accounting.arrays import Floats, Labels, Mask
from dpserve.audit.membership.scoring import log_of, online_ratio
from dpserve.mechanisms.answer_noise import HiddenNoise
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.mechanism import Mechanism
from dpserve.mechanisms.worlds import Worlds

_LEAST_LOGARITHM = -694.0
"""A smaller probability may be the smallest that a softmax returns, and then says nothing of its logit."""

_HYPOTHESES = 3
"""The neurons of a row that may have been noised, the likeliest first: with the paper's noise the first is sure."""

_LARGEST_BLOCK = 2_000_000
"""Numbers that a likelihood makes at once, n C^2 of n answers."""


def own_law_ratio(
    mechanism: Mechanism, sensitivity: Floats, answers: Floats, logits: Floats, y: Labels, seen: Mask
) -> Floats | None:
    """Return the log-likelihood ratio of each row's answers, in over out: (n,).

    sensitivity: (n,), public. answers: (copies, n, C), to each row and its near-copies, NaN where one is missing.
    logits: (k, n, C), exact ones of shadow models. y: (n,). seen: (k, n), which of them were trained on the row. None
    where no row has shadow models of both kinds.
    """
    if not (seen.any(axis=0) & ~seen.all(axis=0)).any():
        return None
    total = np.zeros(len(y))
    noise = mechanism.answer_noise(sensitivity, logits.shape[2])
    if isinstance(noise, HiddenNoise):
        shown = np.zeros(len(y))
        for copy in answers:
            ratios, shows = _exact_coordinates(noise, copy, logits, y, seen)
            total += ratios
            shown += shows
        return total / np.maximum(shown, 1)  # near-copies show the same exact logits again
    inside, outside = _worlds(logits, y, seen)
    block = max(1, _LARGEST_BLOCK // logits.shape[2] ** 2)
    for copy in answers:
        answered = np.flatnonzero(~np.isnan(copy[:, 0]))
        for start in range(0, len(answered), block):
            rows = answered[start : start + block]
            total[rows] += mechanism.log_ratio(copy[rows], Worlds(inside[rows], outside[rows], sensitivity[rows]))
    return total


def _means(logits: Floats, seen: Mask) -> tuple[Floats, Mask]:
    """Return the mean of the centred logits of both kinds of models, weighing the kinds alike; and who has both."""
    counts = np.stack([seen.sum(axis=0), (~seen).sum(axis=0)])
    weights = np.where(seen, 1 / np.maximum(counts[0], 1), 1 / np.maximum(counts[1], 1))
    weights = weights / weights.sum(axis=0)
    mean: Floats = (weights[:, :, None] * logits).sum(axis=0)
    both: Mask = np.minimum(*counts) > 0
    return mean - mean.mean(axis=1, keepdims=True), both


def _worlds(logits: Floats, y: Labels, seen: Mask) -> tuple[Floats, Floats]:
    """Return the exact logits (n, C) in and out."""
    mean, both = _means(logits, seen)
    direction = np.eye(logits.shape[2])[y] - softmax(mean)
    counts = seen.sum(axis=0), (~seen).sum(axis=0)
    with_row, without = (
        (np.where(used[:, :, None], logits, 0.0)).sum(axis=0) / np.maximum(count, 1)[:, None]
        for used, count in zip((seen, ~seen), counts, strict=True)
    )
    moved = np.where(both[:, None], with_row - without, 0.0)
    length = float(np.square(direction[both]).sum())
    step = float((moved * direction).sum()) / length if length > 0 else 0.0
    return mean + step / 2 * direction, mean - step / 2 * direction


def _exact_coordinates(
    noise: HiddenNoise, answers: Floats, logits: Floats, y: Labels, seen: Mask
) -> tuple[Floats, Mask]:
    """Return the log-ratio of each row's answer (n,), and which answers show anything."""
    observed = log_of(answers)
    hidden = (~(observed >= _LEAST_LOGARITHM)).sum(axis=1)
    shown = ~np.isnan(answers[:, 0]) & (hidden <= 1)
    observed = np.where(shown[:, None], observed, 0.0)
    chances = _noised(noise, observed, logits, seen)
    order = np.argsort(-chances, axis=1)[:, :_HYPOTHESES]
    ratios = []
    for place in range(order.shape[1]):
        v = order[:, place]
        confidences = np.stack([_confidence_without(model, y, v) for model in logits])
        ratio = online_ratio(_confidence_without(observed, y, v), confidences, seen)
        ratios.append(np.where(v == y, 0.0, ratio))
    weights = log_of(np.take_along_axis(chances, order, axis=1))
    weights = weights - scipy.special.logsumexp(weights, axis=1, keepdims=True)
    total = scipy.special.logsumexp(np.stack(ratios, axis=1) + weights, axis=1)
    return np.where(shown, total, 0.0), shown


def _confidence_without(logits: Floats, y: Labels, left_out: Labels) -> Floats:
    """Return z_y - ln sum over j != y, v of e^(z_j) for each row: (n,)."""
    others = logits.copy()
    np.put_along_axis(others, y[:, None], -np.inf, axis=1)
    logit = np.where(left_out == y, logits.max(axis=1), np.take_along_axis(logits, y[:, None], axis=1)[:, 0])
    np.put_along_axis(others, left_out[:, None], -np.inf, axis=1)
    confidence: Floats = logit - scipy.special.logsumexp(others, axis=1)
    return confidence


def _noised(noise: HiddenNoise, observed: Floats, logits: Floats, seen: Mask) -> Floats:
    """Return P(v | answer) for every neuron v, all taken to be alike likely beforehand: (n, C)."""
    classes = observed.shape[1]
    mean, _ = _means(logits, seen)
    centred = logits - logits.mean(axis=2, keepdims=True)
    spread = max(float(np.square(centred - centred.mean(axis=0)).mean()), 1e-12) ** 0.5
    residuals = observed - mean
    total, squares = residuals.sum(axis=1, keepdims=True), np.square(residuals).sum(axis=1, keepdims=True)
    level = (total - residuals) / (classes - 1)
    others = squares - np.square(residuals) - (classes - 1) * np.square(level)
    log_chances = noise.law.blurred(residuals - level, spread, noise.scale[:, None]) - others / (2 * spread**2)
    chances: Floats = np.exp(log_chances - scipy.special.logsumexp(log_chances, axis=1, keepdims=True))
    return chances
