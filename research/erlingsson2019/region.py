"""The region of privacy of DP-SGD: Table 2 and Figure 2 of Erlingsson et al. 2019, and a stronger attack.

Theirs knows the final model and calls the records with the least loss members (Yeom et al. 2018). Ours watches every
step for a canary (Nasr et al. 2023).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpserve.accounting import identifiability
from dpserve.accounting.arrays import Floats, Labels
from dpserve.audit.estimators import confidence_of_each
from dpserve.audit.pieces import ResultStore
from dpserve.audit.progress import OnStage
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.seeded import derived_seed
from dpserve.training.fitting.network import Network
from dpserve.training.kinds.dpsgd.noisy_step import StepRelease
from research import dpsgd_theorems
from research.erlingsson2019.presentation import Point
from research.white_box.bounds import ClaimedRun, pooled_bound, run_epsilon
from research.white_box.experiments import Material, Setting, canary_of
from research.white_box.observations import Descent, observe_steps, sound

FALSE_POSITIVES = 0.05


@dataclass(frozen=True)
class Printed:
    """A row of Tables 1 and 2: accuracy, attack TPR at 5 % FPR, the lower bound, and three upper ones."""

    accuracy: float
    true_positives: float
    lower: float
    rdp: float
    advanced: float
    composition: float


PRINTED: dict[float, Printed] = {
    136.67: Printed(0.019, 0.05, 0.0, 0.05, 0.31, 4.07),
    13.76: Printed(0.07, 0.053, 0.003, 0.5, 4.23, 51.2),
    6.99: Printed(0.14, 0.056, 0.006, 1.0, 12.3, 125.0),
    1.06: Printed(0.71, 0.078, 0.04, 10.0, 37722.0, 8421.0),
    0.44: Printed(0.92, 0.089, 0.05, 100.0, 3.5e8, 44770.0),
}
"""Figures on Purchase-100 with logistic regression, by noise multiplier; accuracy relative to that without noise."""

SETTINGS: dict[str, Setting] = {
    "digits": Setting("digits", (), records=1000, sampling_rate=0.05, steps=400, learning_rate=2.0),
    "retail-100": Setting("retail-100", (), records=10_000, sampling_rate=0.02, steps=5000, learning_rate=2.0),
}
"""Logistic regression. retail-100, which is not Purchase-100, with the 10,000 records and 100 epochs that they have."""


def points(
    setting: Setting,
    noise_multipliers: Sequence[float],
    material: Material,
    store: ResultStore,
    seed: int,
    confidence: float,
    conviction_confidence: float,
    progress: OnStage,
) -> list[Point]:
    """Train once at each noise multiplier and return what both attacks and all analyses say.

    A sound implementation is acquitted at all of them with `conviction_confidence`; lower bounds hold one by one.
    """
    found = []
    each = confidence_of_each(conviction_confidence, len(noise_multipliers))
    for count, noise in enumerate(noise_multipliers):
        piece = {
            "name": f"region-{setting.dataset}",
            "records": setting.records,
            "sampling_rate": setting.sampling_rate,
            "steps": setting.steps,
            "learning_rate": setting.learning_rate,
            "noise_multiplier": noise,
            "seed": seed,
        }

        def compute(noise: float = noise, done: int = count) -> dict[str, Any]:
            def advance(step: int) -> None:
                progress(f"noise multiplier {noise:g}", (done + step / setting.steps) / len(noise_multipliers))

            return _train(setting, noise, material, seed, advance)

        result = store.result(piece, compute)
        found.append(_point(setting, noise, result, confidence, each))
        progress(f"noise multiplier {noise:g}", (count + 1) / len(noise_multipliers))
    return found


def losses(network: Network, parameters: Floats, inputs: Floats, labels: Labels) -> Floats:
    """Return the cross-entropy (n,) of each record."""
    probabilities = softmax(network.logits(parameters, inputs))[np.arange(len(labels)), labels]
    each: Floats = -np.log(np.maximum(probabilities, 1e-300))
    return each


def attack_rates(members: Floats, others: Floats) -> tuple[float, float]:
    """Return Yeom's attack on losses (n,), (m,): its TPR at 5 % FPR, and the best TPR - FPR of any threshold.

    The best threshold is of the very losses that it is judged by, as published: an estimate, and no bound.
    """
    at = float(np.quantile(others, FALSE_POSITIVES))
    thresholds = np.unique(np.concatenate([members, others]))
    caught = np.searchsorted(np.sort(members), thresholds, side="right") / len(members)
    accused = np.searchsorted(np.sort(others), thresholds, side="right") / len(others)
    return float(np.mean(members <= at)), float(np.max(caught - accused))


def _train(
    setting: Setting, noise: float, material: Material, seed: int, advance: Callable[[int], None]
) -> dict[str, Any]:
    run_seed = derived_seed(seed, "region", f"{noise:g}")
    audited = sound(material.network, StepRelease(noise, setting.sampling_rate), run_seed)
    descent = Descent(setting.steps, setting.learning_rate, run_seed)
    seen = observe_steps(audited, material.records, descent, canary_of("dirac", material, seed), advance=advance)
    network, train, test = material.network, material.records, material.test
    rates = attack_rates(
        losses(network, seen.parameters, train.inputs, train.labels),
        losses(network, seen.parameters, test.inputs, test.labels),
    )
    right = network.logits(seen.parameters, train.inputs).argmax(axis=1) == train.labels
    return {
        "without": seen.without.tolist(),
        "with": seen.with_canary.tolist(),
        "accuracy": float(right.mean()),
        "true_positives": rates[0],
        "advantage": rates[1],
    }


def _point(
    setting: Setting, noise: float, result: dict[str, Any], confidence: float, conviction_confidence: float
) -> Point:
    claim = ClaimedRun(noise, setting.sampling_rate, setting.steps, setting.delta)
    inside, outside = np.array(result["with"]), np.array(result["without"])
    bound = pooled_bound(inside, outside, confidence)
    sure = pooled_bound(inside, outside, conviction_confidence)
    known = dpsgd_theorems.guarantees(noise, setting.sampling_rate, setting.steps, setting.delta)
    upper = {theorem.name: theorem.epsilon for theorem in known.theorems if theorem.proven}
    upper |= {one.name: one.epsilon for one in known.analyses.analyses if one.epsilon is not None}
    return Point(
        noise,
        {"white box, f-DP (CP), pooled errors": run_epsilon(bound, claim)},
        upper,
        {
            "training accuracy": result["accuracy"],
            "attack TPR at 5 % FPR": result["true_positives"],
            "epsilon of it (Prop. 3)": _attack_epsilon(result["true_positives"] - FALSE_POSITIVES, setting.delta),
            "epsilon of best threshold (Prop. 3)": _attack_epsilon(result["advantage"], setting.delta),
        },
        sure.value > 1 / noise,
    )


def _attack_epsilon(advantage: float, delta: float) -> float:
    """Return Proposition 3's epsilon of a measured advantage, which has no confidence: an estimate."""
    return identifiability.epsilon_of_attack(min(advantage, 1 - 1e-12), delta)
