"""Teachers, as the planner tries them."""

from types import MappingProxyType

from accounting.arrays import Floats
from mechanisms.answer_noise import AnswerNoise
from mechanisms.gaussian import Gaussian
from mechanisms.gaussian_vector import mu_for
from mechanisms.seeded import SeededRandomness
from training.kinds.cases import Heads
from training.kinds.planned import PlannedOption, Qualities, Trial


def _teachers(trial: Trial) -> Qualities:
    """250 linear teachers' votes, with noise on each answer."""
    logits, sensitivity = _said_by_teachers(trial.heads)
    qualities: Qualities = {}
    for count in trial.queries:
        try:
            mechanism = Gaussian(1 / mu_for(trial.whole // count) * (1 + 2.0**-50))
            answers = mechanism.release(logits, sensitivity, trial.randomness("teachers", str(count)))
        except ValueError:
            qualities[str(count)] = None
            continue
        noise = AnswerNoise("gaussian", mechanism.noise_scale(sensitivity, trial.case.classes))
        qualities[str(count)] = trial.case.quality(answers, noise)
    return qualities


_TAUGHT: dict[tuple[str, int], tuple[Floats, Floats]] = {}


def _said_by_teachers(heads: Heads) -> tuple[Floats, Floats]:
    """Return the mean of the votes (m, C) and its sensitivity (m,). The last case is kept."""
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


PLANNED = (
    PlannedOption(
        "teachers",
        "250 teachers, noise on each answer",
        "each answer",
        _teachers,
        "teachers",
        "identity",
        MappingProxyType({"teachers": 250}),
        version=2,
    ),
)
