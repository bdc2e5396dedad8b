"""Released weights, as the planner tries them."""

from collections.abc import Callable

from dpserve.mechanisms.answer_noise import AnswerNoise
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.gaussian_vector import GaussianVector, mu_for
from dpserve.mechanisms.laws import GAUSSIAN
from dpserve.training.exact.quantised import norms
from dpserve.training.features import rules
from dpserve.training.features.rules import FeatureRule
from dpserve.training.inputs.sums import Rows, of_rows
from dpserve.training.kinds.cases import weights_move
from dpserve.training.kinds.planned import CUT, NOT_CUT, PlannedOption, Qualities, Trial
from dpserve.training.pay_once import calibration
from dpserve.training.pay_once.model import rounded


def _released_weights(features: FeatureRule) -> Callable[[Trial], Qualities]:
    def qualities(trial: Trial) -> Qualities:
        bought, whole = trial.bought(features)
        chosen = bought.feature_map
        part = calibration.share_of(whole)
        lam = rules.strong_convexity(mu_for(whole))
        weights = trial.heads.weights(chosen, lam)
        law = GaussianVector(mu_for(whole - part), weights.size, weights_move(lam, weights))
        words = trial.randomness("weights", features)
        released = rounded(law.release(weights, words)).T
        case = trial.case
        rows = of_rows(trial.heads.records(chosen), case.y)
        calibrated = calibration.Calibration.none(case.classes)
        if part:
            calibrated = calibration.calibrated(
                rows, Rows(lambda phi: phi @ released), case.classes, mu_for(part), words
            )
        phi = trial.heads.asked(chosen)
        answers = softmax(calibrated(phi @ released))
        noise = AnswerNoise(GAUSSIAN, calibrated.scale * law.standard_deviation * norms(phi))
        return trial.paid_once(answers, noise)

    return qualities


PLANNED = (
    PlannedOption(
        "weights",
        "released weights",
        "once",
        _released_weights("modality"),
        "weights",
        "modality",
        fallback=3,
        suits=NOT_CUT,
    ),
    PlannedOption(
        "weights-fourier",
        "released weights, Fourier features",
        "once",
        _released_weights("fourier"),
        "weights",
        "fourier",
        suits=NOT_CUT,
    ),
    PlannedOption(
        "weights-quantiles",
        "released weights, cuts at quantiles",
        "once",
        _released_weights("quantiles"),
        "weights",
        "quantiles",
        suits=CUT,
    ),
)
