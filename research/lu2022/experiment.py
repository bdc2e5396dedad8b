"""One data set of Lu et al. 2022, rerun: Table V's accuracies and the points of the accuracy-loss figure.

Section 5.3's protocol: each repeat draws two disjoint sets of n records, trains on one, answers the other. All repeats
of one training loss are one stack of networks. Everything follows from one seed.
"""

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from dpserve.audit.pieces import ResultStore
from dpserve.audit.progress import OnStage
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.published import Noise, Published
from dpserve.mechanisms.seeded import SeededRandomness, derived_seed
from dpserve.training.kinds.published import bounds
from dpserve.training.kinds.published.bounds import OBJECTIVES, Objective, PublishedRecipe
from dpserve.training.kinds.published.train import Assignment, stacked_logits, train_stack
from research.lu2022 import measures, printed
from research.lu2022.leakage import Attacks
from research.lu2022.results import Accuracies, Curve, Plan, Results
from research.lu2022.samples import Samples

NOISES: tuple[Noise, ...] = get_args(Noise)


def run(
    plan: Plan,
    samples: Samples,
    store: ResultStore,
    progress: OnStage = lambda _, __: None,
    attacks: Attacks | None = None,
) -> Results:
    """Rerun one data set: cross-entropy, both readings of the convexified loss, and Algorithm 1 on the matching one.

    attacks: what Priv_Leak is measured with; None to leave it out.
    """
    accuracies, curves = [], []
    leakage: tuple[float, ...] = ()
    for objective in OBJECTIVES:
        alpha = None if objective == "cross-entropy" else plan.risk_factor
        result = train_repeats(plan, samples, store, objective, (alpha or 1.0,), progress, attacks)
        accuracies.append(Accuracies(objective, alpha, tuple(result["train"][0]), tuple(result["test"][0])))
        if objective == plan.reading:
            curves = [
                Curve(
                    f"published-{noise}",
                    "unproven",
                    _losses(plan.epsilons, result["answered"][noise], result["test"][0]),
                    _by_epsilon(plan.epsilons, result.get("leakage_answered", {}).get(noise, [])),
                )
                for noise in NOISES
            ]
            leakage = tuple(result.get("leakage", ()))
    return Results(plan, samples.data.source, tuple(accuracies), tuple(curves), leakage)


def search_alpha(
    plan: Plan, samples: Samples, store: ResultStore, progress: OnStage = lambda _, __: None
) -> tuple[float, tuple[Accuracies, ...]]:
    """Section 5.3's search: alpha in (0, 10] by steps of 0.5, all of them and all repeats in one stack.

    Returns the alpha whose mean (train, test) accuracies are closest in sum of squares to cross-entropy's, and the
    accuracies of each. The paper says "(almost) the same training and test accuracy" without a distance.
    """
    original = train_repeats(plan, samples, store, "cross-entropy", (1.0,), progress)
    target = np.array([np.mean(original["train"][0]), np.mean(original["test"][0])])
    result = train_repeats(plan, samples, store, plan.reading, printed.ALPHAS, progress)
    found = tuple(
        Accuracies(plan.reading, alpha, tuple(train), tuple(test))
        for alpha, train, test in zip(printed.ALPHAS, result["train"], result["test"], strict=True)
    )
    distances = [np.square(np.array([np.mean(a.train), np.mean(a.test)]) - target).sum() for a in found]
    return printed.ALPHAS[int(np.argmin(distances))], found


def train_repeats(
    plan: Plan,
    samples: Samples,
    store: ResultStore,
    objective: Objective,
    alphas: Sequence[float],
    progress: OnStage,
    attacks: Attacks | None = None,
) -> dict[str, Any]:
    """Train every repeat with every alpha as one stack; lists of accuracies (alphas, repeats) under train and test.

    With the plan's reading and one alpha also `answered`: Algorithm 1's test accuracies by noise and epsilon; and with
    attacks `leakage` (repeats) without noise and `leakage_answered` by noise, epsilon and repeat.
    """
    answers = objective == plan.reading and len(alphas) == 1
    piece = {
        "name": f"{plan.dataset}-{objective}",
        "records": samples.fingerprint,
        "n": plan.records,
        "repeats": plan.repeats,
        "seed": plan.seed,
        "epochs": plan.epochs,
        "device": plan.device,
        "alphas": list(alphas),
        "epsilons": list(plan.epsilons) if answers else [],
    }
    if not answers:
        attacks = None
    if attacks is not None:
        piece["attack"] = attacks.name
    return store.result(piece, lambda: _train(plan, samples, objective, alphas, answers, progress, attacks))


def _train(
    plan: Plan,
    samples: Samples,
    objective: Objective,
    alphas: Sequence[float],
    answers: bool,
    progress: OnStage,
    attacks: Attacks | None,
) -> dict[str, Any]:
    X, y = torch.from_numpy(samples.data.X).to(plan.device), torch.from_numpy(samples.data.y).to(plan.device)
    recipe = PublishedRecipe(
        samples.topology,
        objective,
        epochs=plan.epochs,
        batch_size=printed.BATCH_SIZE,
        learning_rate=printed.LEARNING_RATE,
        l2_regulariser=printed.L2_REGULARISER,
    )
    seeds = tuple(derived_seed(plan.seed, "model", str(repeat)) for repeat in range(plan.repeats))
    assignment = Assignment(
        torch.from_numpy(samples.train).repeat(len(alphas), 1),
        seeds * len(alphas),
        tuple(alpha for alpha in alphas for _ in seeds),
    )
    what = f"{len(assignment.seeds)} networks, {objective}"
    parameters = train_stack(X, y, assignment, recipe, on_epoch=lambda done: progress(what, done / plan.epochs))
    shape = (len(alphas), plan.repeats)
    result: dict[str, Any] = {}
    logits: dict[str, NDArray[np.float64]] = {}
    for part, rows in (("train", samples.train), ("test", samples.test)):
        own = torch.from_numpy(rows).repeat(len(alphas), 1)
        z = stacked_logits(parameters, X, own)
        right = (z.argmax(-1) == y[own.to(plan.device)]).double().mean(1)
        result[part] = right.cpu().numpy().reshape(shape).tolist()
        if answers:
            logits[part] = z.double().cpu().numpy()
    if answers:
        result["answered"] = _algorithm_1(plan, samples, logits["test"], progress)
    if attacks is not None:
        result |= _leakage(plan, samples, logits, attacks, progress)
    return result


def _leakage(
    plan: Plan, samples: Samples, logits: dict[str, NDArray[np.float64]], attacks: Attacks, progress: OnStage
) -> dict[str, Any]:
    """Priv_Leak without noise by repeat, and of Algorithm 1 by noise, epsilon and repeat."""
    exact = {part: [softmax(z) for z in stack] for part, stack in logits.items()}
    repeats = range(plan.repeats)
    found: dict[str, Any] = {
        "leakage": [attacks.leakage(repeat, exact["train"][repeat], exact["test"][repeat]) for repeat in repeats]
    }
    found["leakage_answered"] = {
        noise: [
            [
                attacks.leakage(
                    repeat,
                    _answers(plan, samples, logits["train"], noise, epsilon, repeat, "members"),
                    _answers(plan, samples, logits["test"], noise, epsilon, repeat),
                )
                for repeat in repeats
            ]
            for epsilon in plan.epsilons
        ]
        for noise in NOISES
    }
    progress("Priv_Leak", 1.0)
    return found


def _algorithm_1(
    plan: Plan, samples: Samples, logits: NDArray[np.float64], progress: OnStage
) -> dict[str, list[list[float]]]:
    """Test accuracies of Algorithm 1's answers by noise, then epsilon, then repeat. logits: (repeats, n, C)."""
    answered: dict[str, list[list[float]]] = {}
    for noise in NOISES:
        answered[noise] = []
        for done, epsilon in enumerate(plan.epsilons):
            answered[noise].append(
                [
                    measures.accuracy(
                        _answers(plan, samples, logits, noise, epsilon, repeat), samples.data.y[samples.test[repeat]]
                    )
                    for repeat in range(plan.repeats)
                ]
            )
            progress(f"Algorithm 1, {noise}", (done + 1) / len(plan.epsilons))
    return answered


def _answers(
    plan: Plan,
    samples: Samples,
    logits: NDArray[np.float64],
    noise: Noise,
    epsilon: float,
    repeat: int,
    *purpose: str,
) -> NDArray[np.float64]:
    """Algorithm 1's answers (n, C) of one repeat. logits: (repeats, n, C). purpose: of the noise, if not the test's."""
    claimed = bounds.claimed_sensitivities(samples.topology, plan.records, l2_regulariser=printed.L2_REGULARISER)
    return Published(samples.data.classes, epsilon, noise).release(
        logits[repeat],
        np.full(plan.records, claimed.neuron),
        SeededRandomness(plan.seed, ("published", noise, repr(epsilon), str(repeat), *purpose)),
    )


def _by_epsilon(epsilons: Sequence[float], leakage: Sequence[Sequence[float]]) -> dict[float, tuple[float, ...]]:
    return {epsilon: tuple(repeats) for epsilon, repeats in zip(epsilons, leakage, strict=False)}


def _losses(
    epsilons: Sequence[float], answered: Sequence[Sequence[float]], baseline: Sequence[float]
) -> dict[float, tuple[float, ...]]:
    """Eq. 31 for each epsilon and repeat, against the same repeat's baseline."""
    return {
        epsilon: tuple(measures.accuracy_loss(*pair) for pair in zip(accuracies, baseline, strict=True))
        for epsilon, accuracies in zip(epsilons, answered, strict=True)
    }
