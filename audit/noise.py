"""Is the noise there? Answers to near-copies of one row, tested for noise that is smaller than promised, or reused.

No members are needed, no shadow models and no second world: answers to rows that lie close together differ by their
noise. A mechanism's name, its price and the model's public sensitivity say how much noise that is.

The law. Row i's answer shows y_i = z(x_i) + s_i e_i up to a constant that all C classes share: z are exact logits, s_i
the public scale of the row's noise, e_i its standard noise, independent for distinct questions. Let P = I - 11'/C take
off what all classes share. Then, for rows next to each other:

- of noise on each logit the difference of two rows' P y has the covariance 2 v s^2 (I - 11'/C), v being the law's
  variance, whatever the model, if their exact logits are equal;
- of noise on the log-odds of one class, v: given v, the difference of two rows' log-odds is that of two draws;
- a class that is shown alone shows no noise but itself (see below).

Exact logits that differ. Every test of too little noise convicts where a sum of squares Q = ||M y||^2 is *small*, M
being an orthogonal projection that was fixed before any answer was seen. Then M y = M (z + s e), and

    P(||M (z + s e)||^2 <= q) <= P(||M s e||^2 <= q)   for every z (Anderson 1955, Theorem 1),

because {e : ||M s e||^2 <= q} is convex and symmetric and the law of e is symmetric and unimodal. So no bound on how
far the logits of near-copies lie apart is needed: what is convicted of too little noise has too little whatever its
model is. Nearness gives power, and only that. The same theorem allows scales above those assumed: larger Gaussian noise
is Gaussian noise and more of it, and Laplace noise of a scale b' > b is Laplace noise of scale b and, with probability
1 - (b/b')^2, an independent Laplace variable of scale b' added to it (their characteristic functions, 1/(1 + b^2 t^2)
and the mixture's, have the product 1/(1 + b'^2 t^2)), which is symmetric. So one scale, the smallest, serves all rows.

The grid and floating point. The noise is the rounded continuous law, at most half a step from it, and the logits'
rounding to the grid is a part of z. A logarithm of an answer is within 2^-42 of the noisy logit. With N numbers M reads
||M y|| is then within sqrt(N) (1/2 step + 2^-42) of its value for the continuous law, by which it is enlarged before it
is judged. The tables' distance from the law, 2^-106 a draw, is added to every p. An answer near the smallest number
that a softmax returns is no logarithm of a noisy logit: with such an answer the tests that read it find nothing. They
convict no more often by that.

How small is too small. The law says (`Law.lower_tail` in `dpserve.mechanisms.laws`).

Selections. A row's class v may have any law: so many models, so many laws, and one that always selects the same class
may be sound. But rows are drawn independently from one law, whatever the place: their selections are then independent
and alike distributed, whatever the model. If noise comes again at the same place of another request, selections agree
there more often than in other pairings of the two requests, which are all alike likely (Fisher's exact test).

Not found: a sensitivity that the certificate itself states wrongly, for the scale is derived from it; noise of
selections that is too small; noise reused for questions that are asked far apart in time or by others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.special
import scipy.stats
from pydantic import TypeAdapter, ValidationError

from dpserve.accounting.arrays import Floats, Integers
from dpserve.mechanisms.answer_noise import AnswerNoise, SelectionNoise
from dpserve.mechanisms.laws import Law
from dpserve.mechanisms.mechanism import Mechanism
from dpserve.mechanisms.noise import DISTANCE
from dpserve.training.exact.quantised import norms
from dpserve.training.features.maps import AnyFeatureMap

FEWEST_ROWS = 16
"""Fewer rows say too little to be paid for."""
MOST_ROWS = 200
_FEWEST_ROWS_WANTED = 64

_LEAST_LOGARITHM = -694.0
"""`dpserve.mechanisms.elementary.exp` ends at -700; what is above this is a logarithm of a noisy logit."""
_LOGARITHM_ERROR = 2.0**-42
_UP = 1 + 2.0**-40

_PIECE = 64
"""Rows that are tested together where some answers of many show nothing."""

_COMPARED = 8
"""Rows that each of more than MOST_ROWS is compared with: the next by a coordinate."""

_ROUNDED_SELECTION = 1e-3
"""More than a selection's chance differs from that without grid, floor and slack, for up to 1,024 classes."""

_FEATURE_MAPS: TypeAdapter[AnyFeatureMap] = TypeAdapter(AnyFeatureMap)


@dataclass(frozen=True)
class NoiseFinding:
    """The result of the tests of noise. rows: the number of answers, 0 where nothing was tested, and why in `note`.

    p_values: of each test, for the claim that the noise is what it should be. ratio: the noise that was measured over
    what is promised; a difference of exact logits makes it larger. None where no number shows noise.
    """

    rows: int
    p_values: Mapping[str, float] = field(default_factory=dict)
    ratio: float | None = None
    note: str = ""

    @property
    def p_value(self) -> float:
        """The smallest p times the number of tests (Bonferroni), at most 1."""
        return min([1.0, *(len(self.p_values) * p for p in self.p_values.values())])

    @property
    def strongest(self) -> str:
        """The name of the test with the smallest p, empty where nothing was tested."""
        return min(self.p_values, key=lambda name: self.p_values[name], default="")


def rows_wanted(mechanism: Mechanism, classes: int) -> int:
    """Return how many near-copies show the mechanism's noise on so many classes well: an even number, 0 for no noise.

    Of a selected class each answer shows one number, or none.
    """
    noise = mechanism.answer_noise(np.ones(1), classes)
    if isinstance(noise, AnswerNoise) and noise.on == "logits":
        wanted = noise.law.enough // (classes - 1) + 1
        return 2 * (min(MOST_ROWS, max(_FEWEST_ROWS_WANTED, wanted)) // 2)
    return MOST_ROWS if isinstance(noise, AnswerNoise | SelectionNoise) else 0


def known_features(model: Mapping[str, Any]) -> AnyFeatureMap | None:
    """Return the model's public feature map; None where the endpoint does not show it, or shows another kind."""
    try:
        return _FEATURE_MAPS.validate_python(model["feature_map"])
    except ValidationError:
        return None


def public_sensitivity(model: Mapping[str, Any], rows: Floats) -> Floats | None:
    """Return what the certificate says, at least, of the sensitivity of each row's logits; None where it does not.

    model: as `GET /models/NAME` returns it. Of a model on a deep network nobody outside knows how long features are:
    they are at least as long as their constant coordinate.
    """
    if "logit_sensitivity" in model:
        return np.full(len(rows), float(model["logit_sensitivity"]))
    if "logit_sensitivity_per_norm" not in model:
        return None
    per_norm = float(model["logit_sensitivity_per_norm"])
    if model["feature_map"]["kind"] == "encoder":
        return np.full(len(rows), per_norm * float(model["feature_map"]["bias"]))
    features = known_features(model)
    if features is None:
        return None
    return per_norm * norms(features(rows, features.public_tensors()))


def judge_near_copies(
    mechanism: Mechanism, answers: Floats, sensitivity: Floats, *, distinct: bool = True
) -> NoiseFinding:
    """Test the noise of answers (n, C) to near-copies, whose rows were drawn independently from one law.

    The first half was asked in one request and the second in another. sensitivity: (n,), public, or less. distinct:
    whether no two rows are one question; where nobody outside can tell, answers that come twice, to the bit, are left
    out with those at the same place of the other request: they are one answer to one question.
    """
    classes = answers.shape[1]
    half = len(answers) // 2
    kept = np.arange(2 * half)
    promised = mechanism.answer_noise(sensitivity, classes)
    if not distinct and not isinstance(promised, SelectionNoise):
        _, place, count = np.unique(answers[kept], axis=0, return_inverse=True, return_counts=True)
        once = count[place.reshape(-1)] == 1
        kept = kept[np.tile(once[:half] & once[half:], 2)]
    if len(kept) < FEWEST_ROWS:
        return NoiseFinding(0, note=f"fewer than {FEWEST_ROWS} different questions were answered")
    answers, sensitivity = answers[kept], sensitivity[kept]
    if isinstance(promised, SelectionNoise):
        return NoiseFinding(len(answers), _selection_tests(answers.argmax(axis=1)))
    if not isinstance(promised, AnswerNoise):
        return NoiseFinding(0, note=f"no law of the noise of {mechanism.name!r} is known whatever the model is")
    noise = _Noise.promised(promised, mechanism.least_scale(sensitivity, classes))
    if noise.scale <= 0:
        return NoiseFinding(0, note="the model's public sensitivity is 0 there, so that no noise is promised")
    if promised.on == "logits":
        p_values, ratio = _added_noise(noise, answers)
    else:
        p_values, ratio = _log_odds_noise(noise, answers)
        if (selected := selected_classes(answers)) is not None:
            p_values |= _selection_tests(selected)
    return NoiseFinding(len(answers), p_values, ratio)


@dataclass(frozen=True)
class _Noise:
    """The promised noise. rounding: how far what is drawn lies from the law at most, over the scale."""

    law: Law
    scale: float
    rounding: float

    @classmethod
    def promised(cls, promised: AnswerNoise, scales: Floats) -> "_Noise":
        """Return the least noise of rows with these least scales, (n,)."""
        return cls(promised.law, float(scales.min()), promised.rounding)

    @property
    def error(self) -> float:
        """Largest distance of a number from that of the continuous law, in units of the scale."""
        return self.rounding + _LOGARITHM_ERROR / self.scale

    def p_value(self, square: float, numbers: int, leverages: Mapping[float, float]) -> float:
        """Return what the probability of so small a ||M y||^2, in units of the scale, does not exceed.

        numbers: how many numbers M reads; leverages: how many of the M_jj have which value.
        """
        largest = (math.sqrt(max(square, 0.0)) + math.sqrt(numbers) * self.error) ** 2 * _UP
        return min(1.0, self.law.lower_tail(largest, leverages) + numbers * DISTANCE)


def centred_logarithms(answers: Floats) -> Floats | None:
    """Return ln p less its row's mean, (n, C); None where a probability is too small to show a noisy logit."""
    with np.errstate(divide="ignore"):
        noisy = np.log(answers)
    if not (noisy >= _LEAST_LOGARITHM).all():
        return None
    centred: Floats = noisy - noisy.mean(axis=1, keepdims=True)
    return centred


def _added_noise(noise: _Noise, answers: Floats) -> tuple[dict[str, float], float | None]:
    """Test noise on every logit: of all classes, of each, between two requests and two rows of one."""
    n, classes = answers.shape
    noisy = centred_logarithms(answers)
    if noisy is None:
        return {"noise too small": 1.0}, None
    y = noisy / noise.scale
    squares = squares_by_class(y)
    kept, shared = 1 - 1 / n, 1 - 1 / classes
    total = float(squares.sum())
    p_values = {"noise too small": noise.p_value(total, n * classes, {kept * shared: n * classes})}
    for label in range(classes if classes > 2 else 0):
        # The projection on (e_c - 1/C)/sqrt(1 - 1/C), whose entries' absolute values add up to 2 at most.
        leverages = {kept * shared: float(n), kept / (classes * (classes - 1)): float(n * (classes - 1))}
        square = float(squares[label]) / shared
        p_values[f"noise too small on class {label}"] = noise.p_value(square, 4 * n, leverages)
    for name, difference in _differences(y).items():
        square = float((difference**2).sum()) / 2
        p_values[name] = noise.p_value(square, n * classes, {shared / 2: float(n * classes)})
    p_values["the same noise in two answers"] = _nearest_pairs_p_value(noise, y)
    return p_values, math.sqrt(total / (noise.law.variance * (n - 1) * (classes - 1)))


def squares_by_class(y: Floats) -> Floats:
    """Return the sum of squares of each column of y (n, C) about its mean: (C,)."""
    squares: Floats = ((y - y.mean(axis=0)) ** 2).sum(axis=0)
    return squares


def _differences(y: Floats) -> dict[str, Floats]:
    """Return differences of rows at the same place of two requests, and of rows one after the other: (n/2, C) each."""
    n = len(y) // 2 * 2
    return {
        "the same noise in two requests": y[: n // 2] - y[n // 2 : n],
        "the same noise in two rows of a request": y[0:n:2] - y[1:n:2],
    }


def _nearest_pairs_p_value(noise: _Noise, y: Floats) -> float:
    """Return what the probability does not exceed that two of the rows of y (n, C) lie so near each other, wherever.

    Any two rows do with at most the probability that their noise does, and there are n (n - 1)/2 pairs of them.
    """
    n, classes = y.shape
    least = noise.p_value(nearest_pair(y) ** 2 / 2, 2 * classes, {(1 - 1 / classes) / 2: 2.0 * classes})
    return float(min(1.0, n * (n - 1) / 2 * least))


def nearest_pair(y: Floats) -> float:
    """Return the distance of the nearest two rows of y (n, C), or of two others that lie further apart.

    Rows are sorted by a coordinate and compared with the next few: equal rows, and nearly equal ones, meet. A distance
    that is too large makes p too large, and no more.
    """
    ordered = y[np.argsort(y[:, 0], kind="stable")]
    lags = range(1, len(y) if len(y) <= MOST_ROWS else _COMPARED + 1)
    return math.sqrt(min(float(((ordered[lag:] - ordered[:-lag]) ** 2).sum(axis=1).min()) for lag in lags))


def selected_classes(answers: Floats) -> Integers | None:
    """Return the class of which each answer shows the log-odds, (n,); None where two classes, or chance, hide it."""
    if answers.shape[1] == 2:
        return None
    common = np.sort(answers, axis=1)[:, 1:2]
    differs = answers != common
    if not (differs.sum(axis=1) == 1).all():
        return None
    return np.asarray(differs.argmax(axis=1), dtype=np.int64)


def _log_odds_noise(noise: _Noise, answers: Floats) -> tuple[dict[str, float], float | None]:
    """Test the noise of the log-odds, among rows with the same class: which were selected says nothing of it.

    With two classes the log-odds of the one are those of the other with their sign changed, and so is the noise.
    """
    n, classes = answers.shape
    selected = selected_classes(answers) if classes > 2 else np.zeros(n, np.int64)
    with np.errstate(divide="ignore"):
        logarithms = np.log(answers)
    if selected is None or not (logarithms >= _LEAST_LOGARITHM).all():
        return {"noise too small": 1.0}, None
    rows = np.arange(n)
    rest = np.where(selected == 0, 1, 0)
    y = (logarithms[rows, selected] - logarithms[rows, rest]) / noise.scale
    square, numbers, leverages = 0.0, 0, dict[float, float]()
    for label in np.unique(selected):
        shown = y[selected == label]
        if len(shown) > 1:
            square += float(((shown - shown.mean()) ** 2).sum())
            numbers += len(shown)
            kept = 1 - 1 / len(shown)
            leverages[kept] = leverages.get(kept, 0.0) + len(shown)
    p_values = {"noise too small": noise.p_value(square, 2 * numbers, leverages) if leverages else 1.0}
    half = n // 2
    for name, (first, second) in {
        "the same noise in two requests": (rows[:half], rows[half : 2 * half]),
        "the same noise in two rows of a request": (rows[0 : 2 * half : 2], rows[1 : 2 * half : 2]),
    }.items():
        same = selected[first] == selected[second]
        difference = (y[first] - y[second])[same]
        count = 2 * len(difference)
        square_of_pairs = float((difference**2).sum()) / 2
        p_values[name] = noise.p_value(square_of_pairs, 2 * count, {0.5: float(count)}) if count else 1.0
    rank = sum(leverage * count for leverage, count in leverages.items())
    return p_values, math.sqrt(square / (noise.law.variance * rank)) if rank else None


def _selection_tests(selected: Integers) -> dict[str, float]:
    """Test that selections (n,) do not depend on their place; the first half of them is the first request's.

    Given how often each request selected a class, every pairing of their places is alike likely; and given how often
    both did, so is every division among them. Fisher's exact test of each class, by a union bound.
    """
    first = len(selected) // 2
    early, late = selected[:first], selected[first:]
    labels = np.unique(selected)
    agreement, division = 1.0, 1.0
    for label in labels:
        a, b = int((early == label).sum()), int((late == label).sum())
        both = int(((early == label) & (late == label)).sum())
        agreement = min(agreement, float(scipy.stats.hypergeom.sf(both - 1, first, a, b)))
        law = scipy.stats.hypergeom(2 * first, a + b, first)
        division = min(division, 2 * float(min(law.cdf(a), law.sf(a - 1))))
    return {
        "the same selection at the same place of two requests": min(1.0, len(labels) * agreement),
        "one selection for each request": min(1.0, len(labels) * division),
    }


def judge_known_logits(mechanism: Mechanism, answers: Floats, logits: Floats, sensitivity: Floats) -> NoiseFinding:
    """Test the noise of answers (n, C) to different questions whose exact logits (n, C) are known, in any place.

    sensitivity: (n,), as the mechanism was told it. Noise too small is tested as for near-copies, about the exact
    logits in place of a mean. Where logits are known more can be seen: noise that is the same in many answers has a
    mean that is not 0, and selections have a known law, from which they must not depart in either direction.
    """
    n, classes = answers.shape
    promised = mechanism.answer_noise(sensitivity, classes)
    if isinstance(promised, SelectionNoise):
        return NoiseFinding(n, _known_selections(answers, logits, mechanism.chances(logits, sensitivity)))
    if not isinstance(promised, AnswerNoise):
        return NoiseFinding(0, note=f"no law is known that all noise of {mechanism.name!r} follows")
    scales = mechanism.least_scale(sensitivity, classes)
    if not (scales > 0).all():
        return NoiseFinding(0, note="a row's sensitivity is 0, so that no noise is promised")
    if promised.on == "log-odds":
        return _known_log_odds(promised, answers, logits, scales)
    tested = _known_added(promised, answers, logits, scales)
    if tested is None:
        tested = _known_added_in_pieces(promised, answers, logits, scales)
    # Which of the two was made follows from the answers: either errs with half of what is said.
    return replace(tested, p_values={name: min(1.0, 2 * p) for name, p in tested.p_values.items()})


def _known_added_in_pieces(promised: AnswerNoise, answers: Floats, logits: Floats, scales: Floats) -> NoiseFinding:
    """Test pieces of a few rows each, by their place, all of their tests counted; a piece that shows nothing has p 1.

    Of much Laplace noise one answer among thousands nearly always has a probability too small to show its logit.
    """
    pieces = []
    for start in range(0, len(answers), _PIECE):
        rows = slice(start, start + _PIECE)
        count = len(answers[rows])
        if count > 1:
            noise = replace(promised, scale=promised.scale[rows])
            pieces.append((count, _known_added(noise, answers[rows], logits[rows], scales[rows])))
    names = next((finding.p_values for _, finding in pieces if finding is not None), {"noise too small": 1.0})
    return together([finding or NoiseFinding(count, dict.fromkeys(names, 1.0)) for count, finding in pieces])


def _known_added(promised: AnswerNoise, answers: Floats, logits: Floats, scales: Floats) -> NoiseFinding | None:
    """Test noise on every logit, about the exact ones; None where a probability is too small to show a noisy logit."""
    n, classes = answers.shape
    noise = _Noise.promised(promised, scales)
    noisy = centred_logarithms(answers)
    if noisy is None:
        return None
    residuals = (noisy - (logits - logits.mean(axis=1, keepdims=True))) / scales[:, None]
    shared = 1 - 1 / classes
    squares = (residuals**2).sum(axis=0)
    total = float(squares.sum())
    p_values = {"noise too small": noise.p_value(total, n * classes, {shared: float(n * classes)})}
    for label in range(classes if classes > 2 else 0):
        leverages = {shared: float(n), 1 / (classes * (classes - 1)): float(n * (classes - 1))}
        p_values[f"noise too small on class {label}"] = noise.p_value(float(squares[label]) / shared, 4 * n, leverages)
    for name, difference in _differences(residuals).items():
        count = 2 * len(difference) * classes
        p_values[name] = noise.p_value(float((difference**2).sum()) / 2, count, {shared / 2: float(count)})
    p_values["the same noise in two answers"] = _nearest_pairs_p_value(noise, residuals)
    means = residuals.sum(axis=0) / math.sqrt(n * shared) * _least_share(promised, scales)
    weights = {math.sqrt(shared / n): n, 1 / math.sqrt(n * classes * (classes - 1)): n * (classes - 1)}
    slack = 4 * math.sqrt(n) * noise.error
    tails = [noise.law.upper_tail(max(0.0, abs(float(mean)) - slack), weights) for mean in means]
    p_values["the same noise in many answers"] = min(1.0, classes * min(tails))
    return NoiseFinding(n, p_values, math.sqrt(total / (noise.law.variance * n * (classes - 1))))


def _known_selections(answers: Floats, logits: Floats, chances: Floats) -> dict[str, float]:
    """Count the selections of the likeliest class, and of each, and compare them with their law. chances: (n, C)."""
    n, classes = answers.shape
    selected, likeliest = answers.argmax(axis=1), logits.argmax(axis=1)
    counted = {f"selections of class {label}": (selected == label, chances[:, label]) for label in range(classes)}
    counted["selections of the likeliest class"] = selected == likeliest, chances[np.arange(n), likeliest]
    return {name: _departure(int(chosen.sum()), n, float(law.mean())) for name, (chosen, law) in counted.items()}


def _known_log_odds(promised: AnswerNoise, answers: Floats, logits: Floats, scales: Floats) -> NoiseFinding:
    """Test the noise of the selected classes' log-odds about the exact ones."""
    n, classes = answers.shape
    noise = _Noise.promised(promised, scales)
    selected = selected_classes(answers) if classes > 2 else np.zeros(n, np.int64)
    with np.errstate(divide="ignore"):
        logarithms = np.log(answers)
    if selected is None or not (logarithms >= _LEAST_LOGARITHM).all():
        return NoiseFinding(n, {"noise too small": 1.0})
    rows, rest = np.arange(n), np.where(selected == 0, 1, 0)
    others = logits.copy()
    others[rows, selected] = -np.inf
    exact = logits[rows, selected] - scipy.special.logsumexp(others, axis=1)
    shown = logarithms[rows, selected] - logarithms[rows, rest] - math.log(classes - 1)
    deviations = (shown - exact) / scales
    square = float((deviations**2).sum())
    p_values = {"noise too small": noise.p_value(square, 2 * n, {1.0: float(n)})}
    for name, difference in _differences(deviations[:, None]).items():
        count = 2 * len(difference)
        p_values[name] = noise.p_value(float((difference**2).sum()) / 2, 2 * count, {0.5: float(count)})
    return NoiseFinding(n, p_values, math.sqrt(square / (noise.law.variance * n)))


def _least_share(promised: AnswerNoise, scales: Floats) -> float:
    """Return the least share that these scales are of the noise's own, less what the choice of a table may add."""
    return float((scales / promised.scale).min()) / 1.01


def _departure(successes: int, trials: int, mean: float) -> float:
    """Return an upper bound of the probability of a count so far from trials * mean, of independent unequal trials.

    exp(-n KL(k/n, mean)) for either side (Hoeffding 1963, Theorem 1), widened by what the law of a selection leaves to
    rounding and its floor.
    """
    rate = successes / trials
    mean = min(1 - _ROUNDED_SELECTION, max(_ROUNDED_SELECTION, mean))
    mean = min(max(rate, mean - _ROUNDED_SELECTION), mean + _ROUNDED_SELECTION)
    divergence = scipy.special.rel_entr(rate, mean) + scipy.special.rel_entr(1 - rate, 1 - mean)
    return min(1.0, 2 * math.exp(-trials * float(divergence)))


def together(findings: Sequence[NoiseFinding]) -> NoiseFinding:
    """Return several findings as one, each test by the number of its finding."""
    p_values = {
        f"{name} ({place})": p for place, finding in enumerate(findings, 1) for name, p in finding.p_values.items()
    }
    ratios = [finding.ratio for finding in findings if finding.ratio is not None]
    ratio = float(np.sqrt(np.mean(np.square(ratios)))) if ratios else None
    notes = "; ".join({finding.note for finding in findings})
    return NoiseFinding(sum(finding.rows for finding in findings), p_values, ratio, notes)
