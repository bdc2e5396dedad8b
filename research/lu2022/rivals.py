"""The rivals with a proof: the certified head with each proven mechanism, on the paper's own samples.

Each epsilon is spent on one release of one row, as the paper's figures do: as mu with Gaussian noise, which the paper
calls epsilon-GDP, and as pure epsilon with the other mechanisms. Acc_Loss is against the same baseline as the
published method's: the network trained with the convexified loss, not the head itself.

For every epsilon the best of a few public values of Lambda is shown, by mean test accuracy. That is how the curves of
a paper are drawn and not how a service may choose: choosing Lambda on the records is not covered by any certificate.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import LaplaceLoss
from dpserve.audit.pieces import ResultStore
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.label import Label
from dpserve.mechanisms.laplace import Laplace
from dpserve.mechanisms.mechanism import Mechanism
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.mechanisms.selected_neuron import SelectedNeuron
from dpserve.training.exact.quantised import norms, products, quantised, summands
from dpserve.training.features.feature_map import NORM_BOUND, default_clip_norm
from dpserve.training.features.maps import Identity
from dpserve.training.fitting.log_mean_exp import RegularisedLogMeanExp
from dpserve.training.fitting.objective import RegularisedCrossEntropy
from dpserve.training.fitting.sensitivity import (
    Convexity,
    convexified_sensitivity,
    logit_sensitivity_per_norm,
    quantised_weight_sensitivity,
    weight_sensitivity,
)
from dpserve.training.fitting.solver import minimise
from research.lu2022 import measures
from research.lu2022.leakage import Attacks
from research.lu2022.results import Curve, Head, Plan
from research.lu2022.samples import Samples

STRONG_CONVEXITIES = (0.1, 1.0, 10.0, 100.0)
"""Lambda; over n the convexified objective has lambda = Lambda / n."""

TOLERANCE = 1e-5
"""tau; over n the convexified objective has tau / n."""

BIAS = 0.3

MECHANISMS: dict[str, Callable[[float], Mechanism]] = {
    "gaussian": lambda epsilon: Gaussian(1 / epsilon),
    "laplace": Laplace,
    "selected-neuron": lambda epsilon: SelectedNeuron(epsilon / 2, LaplaceLoss(epsilon / 2)),
    "label": Label,
}


def curves(
    plan: Plan,
    samples: Samples,
    store: ResultStore,
    baseline: Sequence[float],
    progress: Callable[[str, float], None],
    attacks: Attacks | None = None,
) -> tuple[Curve, ...]:
    """Acc_Loss of each proven mechanism on each certified head. baseline: each repeat's test accuracy (Eq. 31).

    An epsilon that a mechanism refuses, as being more than one row may cost, has no point.
    """
    found = []
    for head in get_args(Head):
        piece = {
            "name": f"{plan.dataset}-{head}",
            "records": samples.fingerprint,
            "n": plan.records,
            "repeats": plan.repeats,
            "seed": plan.seed,
            "alpha": plan.risk_factor if head == "convexified" else None,
            "epsilons": list(plan.epsilons),
            "lambdas": list(STRONG_CONVEXITIES),
        }
        if attacks is not None:
            piece["attack"] = attacks.name
        compute = partial(_test_answers, plan, samples, head, progress, attacks)
        result = store.result(piece, compute)
        for name in MECHANISMS:
            accuracies = {
                float(epsilon): np.array(by_lambda) for epsilon, by_lambda in result["answered"][name].items()
            }
            chosen = {epsilon: int(table.mean(axis=1).argmax()) for epsilon, table in accuracies.items()}
            best = {epsilon: table[chosen[epsilon]] for epsilon, table in accuracies.items()}
            losses = {
                epsilon: tuple(measures.accuracy_loss(*pair) for pair in zip(row.tolist(), baseline, strict=True))
                for epsilon, row in best.items()
            }
            leakage = {
                float(epsilon): tuple(by_lambda[chosen[float(epsilon)]])
                for epsilon, by_lambda in result.get("leakage", {}).get(name, {}).items()
            }
            found.append(Curve(f"{head}-{name}", "proven", losses, leakage))
    return tuple(found)


def _test_answers(
    plan: Plan,
    samples: Samples,
    head: Head,
    progress: Callable[[str, float], None],
    attacks: Attacks | None,
) -> dict[str, dict[str, dict[str, list[list[float]]]]]:
    """Test accuracies, and Priv_Leak where there are attacks, by mechanism and epsilon: (lambdas, repeats)."""
    shape = (len(STRONG_CONVEXITIES), plan.repeats)
    mechanisms = {(name, epsilon): _affordable(name, epsilon) for name in MECHANISMS for epsilon in plan.epsilons}
    tables = {key: np.zeros(shape) for key, mechanism in mechanisms.items() if mechanism is not None}
    leakages = {key: np.zeros(shape) for key in tables} if attacks is not None else {}
    for repeat in range(plan.repeats):
        phi, phi_test = _features(samples, repeat)
        y = samples.data.y[samples.test[repeat]]
        for column, strength in enumerate(STRONG_CONVEXITIES):
            done = (repeat * len(STRONG_CONVEXITIES) + column) / (plan.repeats * len(STRONG_CONVEXITIES))
            progress(f"certified head, {head}", done)
            train_labels = samples.data.y[samples.train[repeat]]
            W, delta_w = _train(plan, head, phi, train_labels, samples.data.classes, strength)
            per_norm = logit_sensitivity_per_norm(delta_w)
            for (name, epsilon), table in tables.items():
                mechanism = mechanisms[name, epsilon]
                assert mechanism is not None
                purpose = (head, name, repr(epsilon), repr(strength), str(repeat))
                answers = _released(mechanism, phi_test, W, per_norm, SeededRandomness(plan.seed, purpose))
                table[column, repeat] = measures.accuracy(answers, y)
                if attacks is not None:
                    noise = SeededRandomness(plan.seed, (*purpose, "members"))
                    members = _released(mechanism, phi, W, per_norm, noise)
                    leakages[name, epsilon][column, repeat] = attacks.leakage(repeat, members, answers)
    found = {"answered": _by_name(tables)}
    return found | ({"leakage": _by_name(leakages)} if attacks is not None else {})


def _released(mechanism: Mechanism, phi: Floats, W: Floats, per_norm: float, noise: SeededRandomness) -> Floats:
    return mechanism.release(products(phi, summands(W)), per_norm * norms(phi), noise)


def _by_name(tables: dict[tuple[str, float], Floats]) -> dict[str, dict[str, list[list[float]]]]:
    found: dict[str, dict[str, list[list[float]]]] = {name: {} for name in MECHANISMS}
    for (name, epsilon), table in tables.items():
        found[name][repr(epsilon)] = table.tolist()
    return found


def _affordable(name: str, epsilon: float) -> Mechanism | None:
    try:
        return MECHANISMS[name](epsilon)
    except ValueError:
        return None


def _features(samples: Samples, repeat: int) -> tuple[Floats, Floats]:
    d = samples.data.X.shape[1]
    feature_map = Identity(lower=(0.0,) * d, upper=(1.0,) * d, clip_norm=default_clip_norm(d), bias=BIAS)
    tensors = feature_map.public_tensors()
    train, test = (
        feature_map(samples.data.X[rows[repeat]].astype(np.float64), tensors) for rows in (samples.train, samples.test)
    )
    return train, test


def _train(
    plan: Plan,
    head: Head,
    phi: Floats,
    y: NDArray[np.int64],
    classes: int,
    strength: float,
) -> tuple[Floats, float]:
    """The weights and their certified sensitivity."""
    if head == "certified":
        objective = RegularisedCrossEntropy.from_rows(phi, y, classes, strength)
        W = quantised(minimise(objective, TOLERANCE))
        exact = weight_sensitivity(strength, TOLERANCE, NORM_BOUND)
        return W, quantised_weight_sensitivity(exact, *W.shape)
    convexity = Convexity(plan.risk_factor, len(y))
    convexified = RegularisedLogMeanExp.from_rows(phi, y, classes, strength, convexity)
    W = quantised(minimise(convexified, TOLERANCE))
    exact = convexified_sensitivity(convexity, strength, TOLERANCE, NORM_BOUND, classes).weights
    return W, quantised_weight_sensitivity(exact, *W.shape)
