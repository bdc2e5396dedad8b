"""The likelihood-ratio attack, LiRA: how likely an answer is from models that saw the row, and from others.

Carlini et al. 2022, Algorithm 1 (online) and Section V-C (offline). A row's scaled confidence is taken to be normal
over shadow models; with few of them one variance is shared by all rows, as the paper advises.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

LEAST_MODELS = 2
"""A row needs so many shadow models that saw it, and that did not, for its mean to be estimated by itself."""

MODELS_FOR_OWN_VARIANCE = 64
"""With fewer shadow models all rows share one variance (Carlini et al. 2022, Section VI-B)."""

_LEAST_DEVIATION = 1e-3


@dataclass(frozen=True, eq=False)
class _Normal:
    """Means and deviations, (n,) each."""

    mean: Floats
    deviation: Floats


def online(confidences: Floats, shadow: Floats, seen: Mask) -> Floats:
    """ln N(x; in) - ln N(x; out) of each row: (n,).

    confidences: (n,), of the target's answers. shadow: (k, n), of the shadow models' answers to the same rows.
    seen: (k, n), whether each model was trained on the row.
    """
    _check(confidences, shadow, seen)
    inside, outside = _fitted(shadow, seen), _fitted(shadow, ~seen)
    return _log_density(confidences, inside) - _log_density(confidences, outside)


def offline(confidences: Floats, shadow: Floats, seen: Mask) -> Floats:
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
