"""The log-likelihood ratio of an answer under two worlds: the best score, from the mechanism's own noise law.

The attacker sees probabilities, hence the noisy logits up to a constant. Noise is a rounded continuous law; scores
use the continuous law's density at the grid's points, which differs from the rounded law's mass per step by a relative
(k^2/S^2 - 1)/(24 S^2), S >= 2^8 being the noise's scale in steps and k the noise. That costs an attack nothing that
can be seen, and no bound depends on it: whatever the scores are, the bounds drawn from them hold.

A world is the exact logits of some rows under one of two neighbouring models.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import GaussianLoss
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.label import Label
from dpserve.mechanisms.laplace import Laplace
from dpserve.mechanisms.mechanism import Mechanism
from dpserve.mechanisms.published import Published
from dpserve.mechanisms.selected_neuron import SelectedNeuron
from dpserve.mechanisms.selection import Law, cumulative_weights, probabilities

_ROUNDING = 1e-9
_BEYOND_SELECTION = 20.0
"""Exponents below the largest at which the exponential mechanism's floor leaves a class next to nothing."""


@dataclass(frozen=True, eq=False)
class Worlds:
    """Rows as two neighbours' logits. logits_in, logits_out: (n, C); sensitivity: (n,), of the mechanism's input."""

    logits_in: Floats
    logits_out: Floats
    sensitivity: Floats

    @property
    def classes(self) -> int:
        """C."""
        return int(self.logits_in.shape[1])


def worst_case(mechanism: Mechanism, classes: int) -> Worlds:
    """Return one row of sensitivity 1 whose logits are exactly as far apart as the mechanism's proof allows.

    A softmax forgets what is added to all logits alike, so the difference d has mean 0 and nothing of it is lost.
    - gaussian, label, selected-neuron: d = (1, -1, 0, ...)/sqrt(2), of L2 norm 1. For the two that select, all
      other classes lie too low to be selected, so that the whole of epsilon is in the choice between two. By
      permute-and-flip the lower of two classes tells the whole of it, if it is nowhere the higher: out they are level.
    - laplace: equal parts on all classes (on all but one if C is odd), which has the largest L1 norm.
    - published: every two logits change by different amounts, each by at most the claimed 1 of one neuron.
    """
    base = np.zeros(classes)
    if mechanism.name == "published":
        difference = np.linspace(1.0, -1.0, classes)
    elif mechanism.name == "laplace":
        moved = classes - classes % 2
        difference = np.zeros(classes)
        difference[:moved] = np.where(np.arange(moved) % 2 == 0, 1.0, -1.0) / math.sqrt(moved)
    else:
        difference = np.zeros(classes)
        difference[:2] = np.array([1.0, -1.0]) / math.sqrt(2)
        selection = getattr(mechanism, "selection_epsilon", getattr(mechanism, "epsilon", None))
        if mechanism.name in ("label", "selected-neuron") and selection is not None:
            base[2:] = -_BEYOND_SELECTION * math.sqrt(2) / selection
            shown = classes > 2 or mechanism.name == "label"  # of two classes the selected neuron hides which
            if shown and getattr(mechanism, "law", "exponential") == "permute-and-flip":
                base[:2] = difference[:2] / 2
    # A hair less than allowed, so that rounding here is not what an audit finds.
    difference *= 1 - _ROUNDING
    return Worlds((base + difference / 2)[None], (base - difference / 2)[None], np.ones(1))


_LEAST_LOGARITHM = -746.0
_MATCH = 1e-3
"""Largest distance at which an answer's log-ratio agrees with a world's, as a share of the worlds' difference."""


def scores(mechanism: Mechanism, answers: Floats, worlds: Worlds) -> Floats:
    """Return ln P_in(answer)/P_out(answer) for each row's answer, (n,): the record is in if it is large.

    answers: (n, C) as released for the rows of `worlds`. For the published mechanism with three or more classes there
    is no ratio, because the two worlds' answers do not overlap; see `_matches`. Raises ValueError for a mechanism
    whose law is not known here.
    """
    match mechanism:
        case Gaussian():
            return _gaussian(answers, worlds, mechanism.noise_scale(worlds.sensitivity, worlds.classes))
        case Laplace():
            scale = mechanism.noise_scale(worlds.sensitivity, worlds.classes)[:, None]
            noisy = _logarithms(answers)
            return _shifted_laplace((noisy - worlds.logits_in) / scale) - _shifted_laplace(
                (noisy - worlds.logits_out) / scale
            )
        case Label():
            chosen = answers.argmax(axis=1)
            return _selection(mechanism, worlds, chosen)
        case SelectedNeuron():
            return _selected_neuron(mechanism, answers, worlds)
        case Published():
            return _published(mechanism, answers, worlds)
    raise ValueError(f"the noise law of the mechanism {mechanism.name!r} is not known to the audit")


def _logarithms(answers: Floats) -> Floats:
    """Return ln p, a probability that underflowed to 0 being taken for the smallest there is."""
    with np.errstate(divide="ignore"):
        logarithms: Floats = np.maximum(np.log(answers), _LEAST_LOGARITHM)
    return logarithms


def _gaussian(answers: Floats, worlds: Worlds, deviations: Floats) -> Floats:
    """Return the log-ratio of N(z_in, s^2) and N(z_out, s^2) on what softmax leaves: vectors up to their mean."""
    noisy = _centre(_logarithms(answers))
    inside, outside = _centre(worlds.logits_in), _centre(worlds.logits_out)
    middle = (inside + outside) / 2
    ratios: Floats = ((noisy - middle) * (inside - outside)).sum(axis=1) / deviations**2
    return ratios


def _centre(rows: Floats) -> Floats:
    centred: Floats = rows - rows.mean(axis=1, keepdims=True)
    return centred


def _shifted_laplace(residuals: Floats) -> Floats:
    """Return ln of the integral over c of exp(-sum_i |r_i + c|), r: (n, C): Laplace's density up to a shift of all.

    With a the sorted -r_i, g(c) = sum_i |c - a_i| has the slope 2k - C between a_k and a_k+1, and -C, C beyond.
    """
    places = np.sort(-residuals, axis=1)
    classes = places.shape[1]
    sums = np.abs(places[:, :, None] - places[:, None, :]).sum(axis=2)
    slopes = np.abs(2.0 * np.arange(1, classes) - classes)
    lengths = np.diff(places, axis=1)
    lower = np.minimum(sums[:, :-1], sums[:, 1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = np.where(slopes > 0, -np.expm1(-slopes * lengths) / np.maximum(slopes, 1e-300), lengths)
        logarithms = np.log(inner) - lower
    ends = np.stack([-sums[:, 0], -sums[:, -1]], axis=1) - np.log(classes)
    total: Floats = scipy.special.logsumexp(np.concatenate([logarithms, ends], axis=1), axis=1)
    return total


def _selection(mechanism: Label, worlds: Worlds, chosen: NDArray[Any]) -> Floats:
    inside, outside = (
        _log_selection(mechanism.law, mechanism.epsilon, logits, worlds.sensitivity)
        for logits in (worlds.logits_in, worlds.logits_out)
    )
    rows = np.arange(len(chosen))
    ratios: Floats = inside[rows, chosen] - outside[rows, chosen]
    return ratios


def _log_selection(law_name: Law, epsilon: float, logits: Floats, sensitivity: Floats) -> Floats:
    """Return ln of the very law that is drawn from, (n, C), or of permute-and-flip's without its grid."""
    if law_name == "permute-and-flip":
        return _logarithms(probabilities(law_name, logits, sensitivity, epsilon))
    cumulative = cumulative_weights(logits, sensitivity, epsilon).astype(np.float64)
    weights = np.diff(cumulative, axis=1, prepend=0.0)
    law: Floats = np.log(weights / cumulative[:, -1:])
    return law


def _selected_neuron(mechanism: SelectedNeuron, answers: Floats, worlds: Worlds) -> Floats:
    """Sum over the classes that may have been selected: those whose fellows all share the rest evenly."""
    classes = worlds.classes
    logarithms = _logarithms(answers)
    # The largest and smallest of the others agree, for the selected class and no other (with two classes for both).
    possible = np.stack(
        [np.ptp(np.delete(answers, selected, axis=1), axis=1) == 0 for selected in range(classes)], axis=1
    )
    others = np.stack(
        [np.delete(logarithms, selected, axis=1).max(axis=1) for selected in range(classes)], axis=1
    ) + np.log(classes - 1)
    log_odds = logarithms - others
    scale = mechanism.noise_scale(worlds.sensitivity)[:, None]

    def log_law(logits: Floats) -> Floats:
        residuals = (log_odds - _log_odds(logits)) / scale
        noise = -(residuals**2) / 2 if isinstance(mechanism.noise, GaussianLoss) else -np.abs(residuals)
        selection = _log_selection(mechanism.law, mechanism.selection_epsilon, logits, worlds.sensitivity)
        law: Floats = scipy.special.logsumexp(np.where(possible, selection + noise, -np.inf), axis=1)
        return law

    return log_law(worlds.logits_in) - log_law(worlds.logits_out)


def _log_odds(logits: Floats) -> Floats:
    """Return z_v - ln sum_{j != v} e^(z_j) for every class v, (n, C)."""
    return np.stack(
        [
            logits[:, selected] - scipy.special.logsumexp(np.delete(logits, selected, axis=1), axis=1)
            for selected in range(logits.shape[1])
        ],
        axis=1,
    )


def _published(mechanism: Published, answers: Floats, worlds: Worlds) -> Floats:
    if worlds.classes > 2:
        return _matches(answers, worlds)
    scale = worlds.sensitivity / mechanism.epsilon_neuron
    noisy, inside, outside = (
        rows[:, 0] - rows[:, 1] for rows in (_logarithms(answers), worlds.logits_in, worlds.logits_out)
    )
    if mechanism.noise == "gaussian":
        ratios: Floats = (((noisy - outside) / scale) ** 2 - ((noisy - inside) / scale) ** 2) / 2
        return ratios
    distances: Floats = np.abs(noisy - outside) - np.abs(noisy - inside)
    return distances / scale


def _matches(answers: Floats, worlds: Worlds) -> Floats:
    """Return how many log-ratios of two classes agree with the world "in", less those that agree with "out".

    Algorithm 1 noises one logit: the log-ratio of any two other classes is z_i - z_j of its world, to the last digits.
    Two classes whose log-ratio is the same in both worlds say nothing and are left out.
    """
    first, second = np.triu_indices(worlds.classes, 1)
    observed, inside, outside = (
        rows[:, first] - rows[:, second] for rows in (_logarithms(answers), worlds.logits_in, worlds.logits_out)
    )
    reach = _MATCH * np.abs(inside - outside)
    agree: Floats = np.float64(1) * (np.abs(observed - inside) < reach) - (np.abs(observed - outside) < reach)
    total: Floats = agree.sum(axis=1)
    return total
