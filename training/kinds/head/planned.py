"""Noise on each answer of a head, as the planner tries it."""

from collections.abc import Callable
from decimal import Decimal

from dpserve.mechanisms.gaussian_vector import mu_for
from dpserve.mechanisms.mechanism import Price
from dpserve.mechanisms.registry import DEFAULT, priced
from dpserve.training.exact.quantised import products, summands
from dpserve.training.features import rules
from dpserve.training.features.rules import FeatureRule
from dpserve.training.kinds.cases import Quality, logits_move
from dpserve.training.kinds.planned import PlannedOption, Qualities, Trial


def _noise_on_answers(features: FeatureRule) -> Callable[[Trial], Qualities]:
    def qualities(trial: Trial) -> Qualities:
        return {str(count): _answered(trial, features, count) for count in trial.queries}

    return qualities


def _answered(trial: Trial, features: FeatureRule, count: int) -> Quality | None:
    """Return what answers with noise of their own are worth where the budget pays for `count` of them."""
    try:
        mechanism = priced(DEFAULT, Price("rho", Decimal(trial.whole // count).scaleb(-12)), trial.case.classes)
    except ValueError:
        return None
    lam = rules.strong_convexity(mu_for(trial.whole // count))
    chosen = trial.heads.feature_map(features, head=True)
    weights, phi = trial.heads.weights(chosen, lam), trial.heads.asked(chosen)
    randomness = trial.randomness("per-query", features, str(count))
    moved = logits_move(lam, weights, phi)
    answers = mechanism.release(products(phi, summands(weights)), moved, randomness)
    return trial.case.quality(answers, mechanism.answer_noise(moved, trial.case.classes))


PLANNED = (
    PlannedOption(
        "per-query", "noise on each answer", "each answer", _noise_on_answers("modality"), "head", "modality"
    ),
    PlannedOption(
        "per-query-fourier",
        "noise on each answer, Fourier features",
        "each answer",
        _noise_on_answers("fourier"),
        "head",
        "fourier",
    ),
)
