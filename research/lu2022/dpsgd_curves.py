"""DP-SGD's points of the accuracy-loss figure: its epsilon is spent on training, once, whatever is asked afterwards.

delta is 1/(10 n), as Table IV has it. zCDP and RDP are valid; naive and advanced composition are the theorems as
published, whose premise, a step of epsilon below 1, fails at large epsilons: their curves are labelled unproven.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dpserve.audit.pieces import ResultStore
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.seeded import derived_seed
from dpserve.training.kinds.published.train import logits
from research.lu2022 import measures, printed
from research.lu2022.dpsgd_training import COMPOSITIONS, Composition, DpSgd, noise_multiplier, train_private
from research.lu2022.leakage import Attacks
from research.lu2022.results import Curve, Plan, Status
from research.lu2022.samples import Samples


def curves(
    plan: Plan,
    samples: Samples,
    store: ResultStore,
    baseline: Sequence[float],
    repeats: int,
    progress: Callable[[str, float], None],
    attacks: Attacks | None = None,
) -> tuple[Curve, ...]:
    """Acc_Loss (Eq. 31) of DP-SGD under each composition, for the first `repeats` repeats; one stored piece each.

    With attacks also Priv_Leak.
    """
    repeats = min(repeats, plan.repeats)
    total, done = len(COMPOSITIONS) * len(plan.epsilons) * repeats, 0
    found = []
    for composition in COMPOSITIONS:
        losses: dict[float, tuple[float, ...]] = {}
        leakage: dict[float, tuple[float, ...]] = {}
        for epsilon in plan.epsilons:
            results = []
            for repeat in range(repeats):
                progress(f"DP-SGD, {composition}", done / total)
                results.append(_result(plan, samples, store, composition, epsilon, repeat, attacks))
                done += 1
            pairs = zip((float(result["test"]) for result in results), baseline[:repeats], strict=True)
            losses[epsilon] = tuple(measures.accuracy_loss(*pair) for pair in pairs)
            if attacks is not None:
                leakage[epsilon] = tuple(float(result["leakage"]) for result in results)
        status: Status = "proven" if composition in ("zcdp", "rdp") else "unproven"
        found.append(Curve(f"dp-sgd-{composition}", status, losses, leakage))
    return tuple(found)


def _result(
    plan: Plan,
    samples: Samples,
    store: ResultStore,
    composition: Composition,
    epsilon: float,
    repeat: int,
    attacks: Attacks | None,
) -> dict[str, Any]:
    piece = {
        "name": f"{plan.dataset}-dp-sgd-{composition}",
        "records": samples.fingerprint,
        "n": plan.records,
        "repeat": repeat,
        "seed": plan.seed,
        "epochs": plan.epochs,
        "epsilon": epsilon,
    }
    if attacks is not None:
        piece["attack"] = attacks.name
    return store.result(piece, lambda: _trained(plan, samples, composition, epsilon, repeat, attacks))


def _trained(
    plan: Plan,
    samples: Samples,
    composition: Composition,
    epsilon: float,
    repeat: int,
    attacks: Attacks | None,
) -> dict[str, float]:
    n = plan.records
    batch = min(printed.BATCH_SIZE, n)
    steps_of_an_epoch = -(-n // batch)  # what Opacus makes of it: each record joins a step with one over this
    delta = 1 / (10 * n)
    steps = plan.epochs * steps_of_an_epoch
    noise = noise_multiplier(epsilon, delta, composition, sampling_rate=1 / steps_of_an_epoch, steps=steps)
    choices = DpSgd(
        samples.topology,
        noise,
        epochs=plan.epochs,
        batch_size=batch,
        learning_rate=printed.LEARNING_RATE,
        l2_regulariser=printed.L2_REGULARISER,
    )
    X, y = torch.from_numpy(samples.data.X), torch.from_numpy(samples.data.y)
    rows, unseen = torch.from_numpy(samples.train[repeat]), torch.from_numpy(samples.test[repeat])
    seed = derived_seed(plan.seed, "model", str(repeat))
    parameters = train_private(X[rows], y[rows], choices, seed)
    z = logits(parameters, X[unseen])
    right = z.argmax(1) == y[unseen]
    found = {"noise_multiplier": noise, "test": float(right.double().mean())}
    if attacks is not None:
        members, others = (softmax(part.double().numpy()) for part in (logits(parameters, X[rows]), z))
        found["leakage"] = attacks.leakage(repeat, members, others)
    return found
