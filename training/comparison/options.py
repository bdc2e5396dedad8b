"""The options of the comparison: each turns a case and a budget into accuracies by number of queries.

Every one runs what an owner's command runs (the trainer, the mechanism, its noise from the same tables), with the
public rules of `training.comparison.rules` and seeded randomness in place of the system's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from accounting.budgets import Budget
from accounting.picorho import PICORHO_PER_RHO
from mechanisms.gaussian import Gaussian
from mechanisms.gaussian_vector import GaussianVector, mu_for
from mechanisms.published import Published
from training.comparison import rules
from training.comparison.cases import Case, Floats
from training.comparison.heads import TOLERANCE, Features, Heads, logits_move, weights_move
from training.reproduction.seeded import SeededRandomness, derived_seed

DELTA = 1e-5
UNLIMITED = "unlimited"
QUERIES = (10, 100, 1_000, 10_000)

Pays = Literal["each answer", "once", "nothing"]
Status = Literal["proven", "unproven", "not private"]
Accuracies = dict[str, float | None]
"""By number of queries, or `UNLIMITED`, which holds for every number. None: the mechanism refuses to."""


@dataclass(frozen=True)
class Asked:
    """One cell's question: a case, a budget in all, in picorho, and numbers of queries. label: what noise follows."""

    heads: Heads
    whole: int
    label: str
    queries: Sequence[int] = QUERIES

    @classmethod
    def at_epsilon(cls, heads: Heads, epsilon: float) -> "Asked":
        """The budget of (epsilon, DELTA), as an account that accepts Gaussian charges holds it."""
        return cls(heads, Budget.from_epsilon_delta(epsilon, DELTA, "gaussian").picorho, repr(epsilon))

    @property
    def case(self) -> Case:
        """The records and the rows."""
        return self.heads.case

    def randomness(self, *purpose: str) -> SeededRandomness:
        """Words for one purpose of this cell."""
        return SeededRandomness(self.case.seed, (self.case.name, self.label, *purpose))


@dataclass(frozen=True)
class Option:
    """One way to answer. title: for tables; pays: for what the budget pays."""

    title: str
    pays: Pays
    status: Status
    accuracies: Callable[[Asked], Accuracies]
    version: int = 1
    """Raised when what it measures changes, so that stored results of the older one are not used."""


def _noise_on_answers(features: Features) -> Callable[[Asked], Accuracies]:
    def accuracies(asked: Asked) -> Accuracies:
        return {str(count): _answered(asked, features, count) for count in asked.queries}

    return accuracies


def _answered(asked: Asked, features: Features, count: int) -> float | None:
    """The accuracy where the budget pays for `count` answers, by noise of its own on each row asked."""
    try:
        mechanism = Gaussian(1 / mu_for(asked.whole // count) * (1 + 2.0**-50))
        mechanism.prepare(asked.case.classes)
    except ValueError:
        return None
    lam = rules.strong_convexity(mechanism.mu)
    weights, phi = asked.heads.weights(features, lam), asked.heads.asked(features)
    randomness = asked.randomness("per-query", features, str(count))
    return asked.case.accuracy(mechanism.release(phi @ weights.T, logits_move(lam, phi), randomness))


def _released_weights(features: Features) -> Callable[[Asked], Accuracies]:
    def accuracies(asked: Asked) -> Accuracies:
        mu = mu_for(asked.whole)
        lam = rules.strong_convexity(mu)
        weights = asked.heads.weights(features, lam)
        law = GaussianVector(mu, weights.size, weights_move(lam))
        noisy = law.release(weights, asked.randomness("weights", features))
        return {UNLIMITED: asked.case.accuracy(asked.heads.asked(features) @ noisy.T)}

    return accuracies


def _class_sums(asked: Asked) -> Accuracies:
    from training.releases.class_sums import train_class_sums

    records = asked.case.records
    feature_map = rules.identity(records.declaration)
    model = train_class_sums(records, "compared", feature_map, asked.whole, "compared", asked.randomness("class-sums"))
    return {UNLIMITED: asked.case.accuracy(model.probabilities(asked.case.asked))}


def _perturbed_objective(features: Features) -> Callable[[Asked], Accuracies]:
    def accuracies(asked: Asked) -> Accuracies:
        from training.releases.objective import perturbation_for, train_perturbed

        records = asked.case.records
        chosen = asked.heads.feature_map(features)
        choices = perturbation_for(asked.whole, asked.case.classes)
        words = asked.randomness("objective", features)
        model = train_perturbed(records, "compared", chosen, choices, TOLERANCE, "compared", words)
        return {UNLIMITED: asked.case.accuracy(asked.heads.asked(features) @ model.weights.T)}

    return accuracies


def _dp_sgd(features: Features, *hidden: int) -> Callable[[Asked], Accuracies]:
    def accuracies(asked: Asked) -> Accuracies:
        from training.releases.dpsgd.centre import inputs_around
        from training.releases.dpsgd.choices import by_rule
        from training.releases.dpsgd.network import Network
        from training.releases.dpsgd.train import DpSgdRecipe, train_dpsgd

        case, whole = asked.case, asked.whole
        chosen = asked.heads.feature_map(features)
        network = Network((chosen.dimension, *hidden, case.classes))
        choices = by_rule(len(case.y), mu_for(whole), network.size, hidden=hidden)
        words = asked.randomness("dpsgd", features, *map(str, hidden))
        recipe = DpSgdRecipe("compared", chosen, choices, whole)
        known = asked.heads.directions(features)
        model = train_dpsgd(case.records, recipe, "compared", words, directions=known)
        inputs = inputs_around(model.centre, asked.heads.asked(features), choices.input_norm)
        return {UNLIMITED: case.accuracy(network.logits(model.parameters, inputs))}

    return accuracies


def _teachers(asked: Asked) -> Accuracies:
    """250 linear teachers' votes, with noise on each answer."""
    logits, sensitivity = _said_by_teachers(asked.case)
    found: Accuracies = {}
    for count in asked.queries:
        try:
            mechanism = Gaussian(1 / mu_for(asked.whole // count) * (1 + 2.0**-50))
            answers = mechanism.release(logits, sensitivity, asked.randomness("teachers", str(count)))
        except ValueError:
            found[str(count)] = None
            continue
        found[str(count)] = asked.case.accuracy(answers)
    return found


_TAUGHT: dict[tuple[str, int], tuple[Floats, Floats]] = {}


def _said_by_teachers(case: Case) -> tuple[Floats, Floats]:
    """The mean of the votes (m, C) and its sensitivity (m,). The last case is kept."""
    key = (case.split, case.seed)
    if key not in _TAUGHT:
        from training.teachers.train import TeachersRecipe, train_teachers

        recipe = TeachersRecipe("compared", rules.identity(case.records.declaration))
        words = SeededRandomness(case.seed, (case.name, "teachers' parts")).words(4).tobytes()
        model = train_teachers(case.records, recipe, "compared", words)
        phi = model.features(case.asked)
        _TAUGHT.clear()
        _TAUGHT[key] = (model.logits(phi), model.logit_sensitivity(phi))
    return _TAUGHT[key]


def _without_privacy(asked: Asked) -> Accuracies:
    weights = asked.heads.weights("identity", 1.0)
    return {UNLIMITED: asked.case.accuracy(asked.heads.asked("identity") @ weights.T)}


def _algorithm_1(asked: Asked) -> Accuracies:
    """Algorithm 1 with Gaussian noise, its claim composed as mu-GDP composes: mu / sqrt(Q) for each of Q answers."""
    logits, sensitivity = _published_logits(asked.case)
    mu = float(np.sqrt(2 * asked.whole / PICORHO_PER_RHO))
    found: Accuracies = {}
    for count in asked.queries:
        mechanism = Published(asked.case.classes, mu / np.sqrt(count), "gaussian")
        answers = mechanism.release(
            logits, np.full(len(logits), sensitivity), asked.randomness("published", str(count))
        )
        found[str(count)] = asked.case.accuracy(answers)
    return found


_PUBLISHED: dict[tuple[str, int], tuple[Floats, float]] = {}


def _published_logits(case: Case) -> tuple[Floats, float]:
    """The logits of the network of Table IV, trained on the case, and the claimed Delta z. The last case is kept."""
    key = (case.split, case.seed)
    if key not in _PUBLISHED:
        import torch

        from training.published import bounds
        from training.published.batched import Assignment, Recipe, stacked_logits, train_stack
        from training.reproduction import printed

        topology = bounds.Topology(case.X.shape[1], printed.HIDDEN, case.classes)
        recipe = Recipe(topology, "per-record-and-class")
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


OPTIONS: dict[str, Option] = {
    "non-private": Option("no privacy (linear head)", "nothing", "not private", _without_privacy),
    "per-query": Option("noise on each answer", "each answer", "proven", _noise_on_answers("identity")),
    "weights": Option("released weights", "once", "proven", _released_weights("identity")),
    "class-sums": Option("class sums", "once", "proven", _class_sums),
    "objective": Option("objective perturbation", "once", "proven", _perturbed_objective("identity")),
    "dpsgd": Option("DP-SGD, linear head", "once", "proven", _dp_sgd("identity"), version=3),
    "dpsgd-128": Option("DP-SGD, 128 tanh units", "once", "proven", _dp_sgd("identity", 128), version=2),
    "per-query-fourier": Option(
        "noise on each answer, Fourier features", "each answer", "proven", _noise_on_answers("fourier"), version=2
    ),
    "weights-fourier": Option(
        "released weights, Fourier features", "once", "proven", _released_weights("fourier"), version=2
    ),
    "objective-fourier": Option(
        "objective perturbation, Fourier features", "once", "proven", _perturbed_objective("fourier"), version=2
    ),
    "dpsgd-fourier": Option("DP-SGD, Fourier features", "once", "proven", _dp_sgd("fourier"), version=3),
    "teachers": Option("250 teachers, noise on each answer", "each answer", "proven", _teachers),
    "published": Option("Algorithm 1, at its claimed cost", "each answer", "unproven", _algorithm_1),
}
