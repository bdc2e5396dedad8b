"""The options for a budget: how each is trained, and what it reaches on a case, by number of queries.

To simulate one is to run what an owner's command runs (the trainer, the mechanism, its noise from the same tables),
with the public rules of `training.planning.rules` and seeded randomness in place of the system's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from accounting.arrays import Floats
from mechanisms.answer_noise import AnswerNoise
from mechanisms.elementary import softmax
from mechanisms.gaussian import Gaussian
from mechanisms.gaussian_vector import GaussianVector, mu_for
from mechanisms.seeded import SeededRandomness
from training.exact.quantised import norms, products, summands
from training.inputs.sums import of_rows
from training.pay_once import calibration
from training.pay_once.model import rounded
from training.planning import rules
from training.planning.cases import TOLERANCE, Case, Heads, Quality, logits_move, weights_move
from training.planning.rules import Features

DELTA = 1e-5
UNLIMITED = "unlimited"
QUERIES = (10, 100, 1_000, 10_000)

Pays = Literal["each answer", "once"]
Qualities = dict[str, Quality | None]
"""Qualities by number of queries, or `UNLIMITED`, which holds for every number. None: the mechanism refuses."""


@dataclass(frozen=True)
class Trial:
    """One cell's question: a case, a budget in all, in picorho, and numbers of queries. label: what noise follows."""

    heads: Heads
    whole: int
    label: str
    queries: Sequence[int] = QUERIES

    @property
    def case(self) -> Case:
        """The records and the rows."""
        return self.heads.case

    def randomness(self, *purpose: str) -> SeededRandomness:
        """Words for one purpose of this cell."""
        return SeededRandomness(self.case.seed, (self.case.name, self.label, *purpose))


@dataclass(frozen=True)
class Option:
    """One way to answer, and how `dpserve train` makes it. title: for tables; pays: for what the budget pays.

    release: the kind of release, None for noise on each answer. features: by `train`'s names, as settings.
    """

    title: str
    pays: Pays
    qualities: Callable[[Trial], Qualities]
    release: str | None
    features: Features
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    version: int = 1
    """Raised when what it measures changes, so that stored results of the older one are not used."""


def _noise_on_answers(features: Features) -> Callable[[Trial], Qualities]:
    def qualities(trial: Trial) -> Qualities:
        return {str(count): _answered(trial, features, count) for count in trial.queries}

    return qualities


def _answered(trial: Trial, features: Features, count: int) -> Quality | None:
    """Return the quality of answers where the budget pays for `count`, with noise of its own on each row asked."""
    try:
        mechanism = Gaussian(1 / mu_for(trial.whole // count) * (1 + 2.0**-50))
        mechanism.prepare(trial.case.classes)
    except ValueError:
        return None
    lam = rules.strong_convexity(mechanism.mu)
    chosen = trial.heads.feature_map(features, head=True)
    weights, phi = trial.heads.weights(chosen, lam), trial.heads.asked(chosen)
    randomness = trial.randomness("per-query", features, str(count))
    moved = logits_move(lam, weights, phi)
    answers = mechanism.release(products(phi, summands(weights)), moved, randomness)
    return trial.case.quality(answers, AnswerNoise("gaussian", mechanism.noise_scale(moved, trial.case.classes)))


def _released_weights(features: Features) -> Callable[[Trial], Qualities]:
    def qualities(trial: Trial) -> Qualities:
        part, rest = calibration.divided(trial.whole)
        lam = rules.strong_convexity(mu_for(trial.whole))
        chosen = trial.heads.feature_map(features)
        weights = trial.heads.weights(chosen, lam)
        law = GaussianVector(mu_for(rest), weights.size, weights_move(lam, weights))
        words = trial.randomness("weights", features)
        released = rounded(law.release(weights, words)).T
        case = trial.case
        calibrated = calibration.calibrated(
            of_rows(trial.heads.records(chosen), case.y),
            lambda phi: phi @ released,
            case.classes,
            calibration.mu_of(part),
            words,
        )
        phi = trial.heads.asked(chosen)
        answers = softmax(calibrated(phi @ released))
        noise = AnswerNoise("gaussian", calibrated.scale * law.standard_deviation * norms(phi))
        return {UNLIMITED: case.quality(answers, noise)}

    return qualities


def _class_sums(trial: Trial) -> Qualities:
    from training.kinds.class_sums.model import train_class_sums

    records = trial.case.records
    feature_map = trial.heads.feature_map("identity")
    words = trial.randomness("class-sums")
    model = train_class_sums(
        records, "compared", feature_map, trial.whole, "compared", words, records_declared=len(records)
    )
    return {UNLIMITED: trial.case.quality(*model.answers(trial.case.asked))}


def _perturbed_objective(features: Features) -> Callable[[Trial], Qualities]:
    def qualities(trial: Trial) -> Qualities:
        from training.kinds.objective.model import perturbation_for, train_perturbed

        records = trial.case.records
        chosen = trial.heads.feature_map(features)
        choices = perturbation_for(trial.whole, trial.case.classes)
        words = trial.randomness("objective", features)
        model = train_perturbed(records, "compared", chosen, choices, TOLERANCE, "compared", words)
        return {UNLIMITED: trial.case.quality(*model.answers(trial.case.asked))}

    return qualities


def _dp_sgd(features: Features, *hidden: int) -> Callable[[Trial], Qualities]:
    def qualities(trial: Trial) -> Qualities:
        from training.fitting.network import Network
        from training.kinds.dpsgd.choices import by_rule
        from training.kinds.dpsgd.train import DpSgdRecipe, train_dpsgd

        case, whole = trial.case, trial.whole
        chosen = trial.heads.feature_map(features)
        network = Network((chosen.dimension, *hidden, case.classes))
        choices = by_rule(len(case.y), mu_for(whole), network.size, hidden=hidden, **rules.steps(chosen))
        words = trial.randomness("dpsgd", features, *map(str, hidden))
        recipe = DpSgdRecipe("compared", chosen, choices, whole)
        known = trial.heads.directions(chosen)
        model = train_dpsgd(case.records, recipe, "compared", words, directions=known)
        return {UNLIMITED: case.quality(*model.answers(case.asked))}

    return qualities


def _teachers(trial: Trial) -> Qualities:
    """250 linear teachers' votes, with noise on each answer."""
    logits, sensitivity = _said_by_teachers(trial.heads)
    found: Qualities = {}
    for count in trial.queries:
        try:
            mechanism = Gaussian(1 / mu_for(trial.whole // count) * (1 + 2.0**-50))
            answers = mechanism.release(logits, sensitivity, trial.randomness("teachers", str(count)))
        except ValueError:
            found[str(count)] = None
            continue
        noise = AnswerNoise("gaussian", mechanism.noise_scale(sensitivity, trial.case.classes))
        found[str(count)] = trial.case.quality(answers, noise)
    return found


_TAUGHT: dict[tuple[str, int], tuple[Floats, Floats]] = {}


def _said_by_teachers(heads: Heads) -> tuple[Floats, Floats]:
    """The mean of the votes (m, C) and its sensitivity (m,). The last case is kept."""
    case = heads.case
    key = (case.split, case.seed)
    if key not in _TAUGHT:
        from training.kinds.teachers.train import TeachersRecipe, train_teachers

        recipe = TeachersRecipe("compared", heads.feature_map("identity"))
        words = SeededRandomness(case.seed, (case.name, "teachers' parts")).words(4).tobytes()
        model = train_teachers(case.records, recipe, "compared", words)
        phi = model.features(case.asked)
        _TAUGHT.clear()
        _TAUGHT[key] = (model.logits(phi), model.logit_sensitivity(phi))
    return _TAUGHT[key]


_HIDDEN = 128

OPTIONS: dict[str, Option] = {
    "class-sums": Option("class sums", "once", _class_sums, "class-sums", "identity", version=4),
    "weights": Option("released weights", "once", _released_weights("identity"), "weights", "identity", version=2),
    "weights-fourier": Option(
        "released weights, Fourier features", "once", _released_weights("fourier"), "weights", "fourier", version=3
    ),
    "objective": Option(
        "objective perturbation", "once", _perturbed_objective("identity"), "objective", "identity", version=2
    ),
    "objective-fourier": Option(
        "objective perturbation, Fourier features",
        "once",
        _perturbed_objective("fourier"),
        "objective",
        "fourier",
        version=3,
    ),
    "dpsgd": Option("DP-SGD, linear head", "once", _dp_sgd("identity"), "dpsgd", "identity", version=4),
    "dpsgd-fourier": Option("DP-SGD, Fourier features", "once", _dp_sgd("fourier"), "dpsgd", "fourier", version=4),
    "dpsgd-128": Option(
        "DP-SGD, 128 tanh units",
        "once",
        _dp_sgd("identity", _HIDDEN),
        "dpsgd",
        "identity",
        MappingProxyType({"hidden": [_HIDDEN]}),
        version=3,
    ),
    "teachers": Option(
        "250 teachers, noise on each answer",
        "each answer",
        _teachers,
        "teachers",
        "identity",
        MappingProxyType({"teachers": 250}),
        version=2,
    ),
    "per-query": Option(
        "noise on each answer", "each answer", _noise_on_answers("identity"), None, "identity", version=3
    ),
    "per-query-fourier": Option(
        "noise on each answer, Fourier features",
        "each answer",
        _noise_on_answers("fourier"),
        None,
        "fourier",
        version=3,
    ),
}
"""The options that can be recommended, the simplest first: of equally good ones the first is taken."""
