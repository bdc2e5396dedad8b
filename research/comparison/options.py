"""The compared options: those of the planner, a head without privacy, the published mechanism, and rivals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.accounting.budgets import Budget
from dpserve.accounting.picorho import PICORHO_PER_RHO
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.published import Published
from dpserve.mechanisms.seeded import derived_seed
from dpserve.training.errors import TrainingError
from dpserve.training.kinds.cases import Case, Heads
from dpserve.training.kinds.planned import UNLIMITED, Qualities, Trial
from dpserve.training.planning import options as planned
from research.comparison import rivals

Status = Literal["proven", "unproven", "not private"]


@dataclass(frozen=True)
class Option:
    """One row of the tables. pays: for what the budget pays."""

    title: str
    pays: Literal["each answer", "once", "nothing"]
    status: Status
    qualities: Callable[[Trial], Qualities]


def _planned(name: str) -> Option:
    one = planned.planned_options()[name]
    return Option(one.title, one.pays, "proven", one.qualities)


def _without_privacy(trial: Trial) -> Qualities:
    chosen = trial.heads.feature_map("modality")
    weights = trial.heads.weights(chosen, 1.0)
    return {UNLIMITED: trial.case.quality(softmax(trial.heads.asked(chosen) @ weights.T))}


def _boosted(trial: Trial) -> Qualities:
    """scikit-learn's trees, boosted with its defaults, on the table as it is."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    case = trial.case
    model = HistGradientBoostingClassifier(random_state=0).fit(case.X, case.y)
    probabilities = np.zeros((len(case.asked), case.classes))
    probabilities[:, model.classes_] = model.predict_proba(case.asked)
    return {UNLIMITED: case.quality(probabilities)}


def _algorithm_1(trial: Trial) -> Qualities:
    """Algorithm 1 with Gaussian noise, its claim composed as mu-GDP composes: mu / sqrt(Q) for each of Q answers."""
    logits, sensitivity = _published_logits(trial.case)
    mu = float(np.sqrt(2 * trial.whole / PICORHO_PER_RHO))
    found: Qualities = {}
    for count in trial.queries:
        mechanism = Published(trial.case.classes, mu / np.sqrt(count), "gaussian")
        answers = mechanism.release(
            logits, np.full(len(logits), sensitivity), trial.randomness("published", str(count))
        )
        found[str(count)] = trial.case.quality(answers)
    return found


_PUBLISHED: dict[tuple[str, int], tuple[Floats, float]] = {}


def _published_logits(case: Case) -> tuple[Floats, float]:
    """The logits of the network of Table IV, trained on the case, and the claimed Delta z. The last case is kept."""
    key = (case.split, case.seed)
    if key not in _PUBLISHED:
        import torch

        from dpserve.training.kinds.published import bounds
        from dpserve.training.kinds.published.bounds import PublishedRecipe
        from dpserve.training.kinds.published.train import Assignment, stacked_logits, train_stack
        from research.lu2022 import printed

        topology = bounds.Topology(case.X.shape[1], printed.HIDDEN, case.classes)
        recipe = PublishedRecipe(topology, "per-record-and-class")
        X = torch.from_numpy(np.vstack([case.X, case.asked]).astype(np.float32))
        y = torch.from_numpy(np.concatenate([case.y, case.answers]))
        n = len(case.y)
        seed = derived_seed(case.seed, "published", case.name)
        parameters = train_stack(X, y, Assignment(torch.arange(n)[None], (seed,), (1.0,)), recipe)
        z = stacked_logits(parameters, X, torch.arange(n, len(X))[None])[0]
        claimed = bounds.claimed_sensitivities(topology, n, l2_regulariser=printed.L2_REGULARISER)
        _PUBLISHED.clear()
        _PUBLISHED[key] = (z.double().numpy(), claimed.neuron)
    return _PUBLISHED[key]


COUNTS = (10, 1_000)
"""Numbers of answers at which options are compared that each answer is paid for of."""

_OF_TABLES = (
    "dpsgd-linear",
    "dpsgd-even",
    "dpsgd-unit",
    "dpsgd-crosses",
    "class-sums-quantiles",
    "weights-quantiles",
)
_PROVEN = (
    "per-query",
    "weights",
    "class-sums",
    "dpsgd",
    "per-query-fourier",
    "weights-fourier",
    "dpsgd-fourier",
    "dpsgd-hog-fourier",
    "dpsgd-quantiles",
    *_OF_TABLES,
)

BY_HAND = (*_OF_TABLES, "class-sums")
"""Options that an owner of a table may choose in place of the rule's."""

_CHOICES: Mapping[str, Sequence[float]] = {
    "dp-ebm": (),
    "diffprivlib": (0.01, 0.1, 1.0),
    "opacus": (0.05, 0.5, 5.0),
}
"""Values of C of diffprivlib, and learning rates of Opacus, which have no rules for them. DP-EBM has its defaults."""

RIVALS: Mapping[str, str] = {
    name: rival
    for rival, choices in _CHOICES.items()
    for name in ([f"{rival}-{choice:g}" for choice in choices] or [rival])
}
"""The rival of each option that is one's."""


def _never(trial: Trial) -> Qualities:
    raise AssertionError(f"a rival is not trained here on {trial.case.name}")


OPTIONS: dict[str, Option] = {
    "non-private": Option("no privacy (linear head)", "nothing", "not private", _without_privacy),
    "boosted": Option("no privacy (scikit-learn's boosted trees)", "nothing", "not private", _boosted),
    **{name: _planned(name) for name in _PROVEN},
    "published": Option("Algorithm 1, at its claimed cost", "each answer", "unproven", _algorithm_1),
    **{name: Option(name, "once", "proven", _never) for name in RIVALS},
}
"""In the order of the tables."""


def measured(heads: Heads, option: str, epsilon: float, python: Path | None = None) -> Qualities:
    """Return what an option reaches at an epsilon, by number of queries. python: the interpreter of the rivals.

    Raises ValueError for an option that is none, and DataError for a rival that cannot be trained.
    """
    if option not in OPTIONS:
        raise ValueError(f"there is no option {option!r}; there are {', '.join(OPTIONS)}")
    if (rival := RIVALS.get(option)) is not None:
        choice = float(option.removeprefix(rival).removeprefix("-") or 0.0)
        return {UNLIMITED: rivals.trained(heads.case, rival, choice, epsilon, python)}
    whole = Budget.from_epsilon_delta(epsilon, planned.DELTA, "gaussian").limit
    try:
        return OPTIONS[option].qualities(Trial(heads, whole, f"{epsilon:g}", COUNTS))
    except (ValueError, TrainingError):
        return {UNLIMITED: None}
