"""The power of the attack's test: the probability of missing faulty mechanisms on heads that remember.

A run draws 320 records at random, trains a head on half of them and attacks it in all ways. Records have few ones
in many columns, so that rows are nearly orthogonal, and Lambda is large: one record moves its own logits by about six
tenths of what the certificate says at most. Labels are random: nothing but memory knows them.

The test (tests/audit/membership/test_power.py) refutes a claim where the pooled lower end of several runs' TPR - FPR
(`least_advantage`) lies above the bound. This measures TPR - FPR of every control on heads that the test does not use,
and from its mean and its deviation from head to head the probability that as many runs as the test makes stay below.
Run: python benchmarks/membership_power.py [--results FILE] [--heads 32] [--seconds 200]
"""

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import norm

from benchmarks import kept_runs
from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import LaplaceLoss
from dpserve.audit.estimators import Errors, upper_limit
from dpserve.audit.in_process import BundleEndpoint, rehearsal_key
from dpserve.audit.membership.attack import Attack, AttackChoices, Outcome
from dpserve.audit.membership.candidates import Candidates, Labelled
from dpserve.audit.pieces import code_digest
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.label import Label
from dpserve.mechanisms.laplace import Laplace
from dpserve.mechanisms.randomness import Randomness
from dpserve.mechanisms.selected_neuron import SelectedNeuron
from dpserve.training.features.maps import Identity
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head

RECORDS, COLUMNS, CLASSES, LAMBDA, ONES = 160, 640, 4, 20.0, 8
DECLARATION = Declaration(
    tuple(f"x{i}" for i in range(COLUMNS)),
    (0.0,) * COLUMNS,
    (1.0,) * COLUMNS,
    tuple(f"class {i}" for i in range(CLASSES)),
)
SURE_OF_POOLED = 1 - 1e-7
"""The confidence of `least_advantage` in the test."""
HEADS_OF_THE_TEST = 10_000
"""The test's heads have numbers below this one."""


class Weaker:
    """A mechanism that states a claim and adds a tenth of the noise for it."""

    def __init__(self, mechanism: Any) -> None:
        self._mechanism = mechanism

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._mechanism!r})"

    def release(self, logits: Floats, sensitivity: Floats, randomness: Randomness) -> Floats:
        released: Floats = self._mechanism.release(logits, sensitivity / 10, randomness)
        return released


class Silent(Weaker):
    """A mechanism that states a claim and adds no noise at all."""

    def release(self, logits: Floats, sensitivity: Floats, randomness: Randomness) -> Floats:
        del sensitivity, randomness
        return softmax(logits)


MECHANISMS = (Gaussian(2.0), Gaussian(5.0), Laplace(0.75), Label(1.0), SelectedNeuron(0.5, LaplaceLoss(0.5)))
CONTROLS = (
    ("gaussian, noise-multiplier:2, no noise", Silent(MECHANISMS[0]), 3),
    ("gaussian, noise-multiplier:2, a tenth", Weaker(MECHANISMS[0]), 3),
    ("gaussian, noise-multiplier:5, a tenth", Weaker(MECHANISMS[1]), 5),
    ("laplace, epsilon:0.75, a tenth", Weaker(MECHANISMS[2]), 10),
    ("label, epsilon:1, a tenth", Weaker(MECHANISMS[3]), 4),
    ("selected-neuron, epsilon 0.5 and 0.5, a tenth", Weaker(MECHANISMS[4]), 8),
)
"""Name, mechanism, and how many runs the test pools."""


def attack_head(run: int, mechanism: Any, confidence: float) -> Outcome:
    """Train head number `run` and attack it behind the mechanism. Everything follows from the number."""
    generator = np.random.default_rng(run)
    X = (generator.random((2 * RECORDS, COLUMNS)) < ONES / COLUMNS).astype(np.float64)
    y = generator.integers(CLASSES, size=2 * RECORDS)
    members, others = Labelled(X[:RECORDS], y[:RECORDS]), Labelled(X[RECORDS:], y[RECORDS:])
    feature_map = Identity(lower=DECLARATION.lower, upper=DECLARATION.upper, clip_norm=1.0, bias=0.1)
    records = Records(members.X, members.y, DECLARATION, ())
    head = train_head(records, Recipe("memory", feature_map, LAMBDA), f"lineage-{run}")
    # Random like every model's, it would make other noise each time.
    head = replace(head, certificate=head.certificate.model_copy(update={"model_id": f"{run:032x}"}))
    endpoint = BundleEndpoint(head, mechanism, rehearsal_key(run))
    choices = AttackChoices(shadow_models=2, confidence=confidence, seed=run)
    return Attack([endpoint], Candidates(members, others), choices).run()


def least_advantage(errors: Errors, confidence: float = SURE_OF_POOLED) -> float:
    """Return a lower bound of the mean TPR - FPR of equally many members and others, from both errors in one count.

    TPR - FPR = 1 - 2q, q being the mean probability of an error over all decisions, which are independent given the
    models: Clopper and Pearson's limit of a binomial probability holds for such a mean (Hoeffding 1956, as in
    `dpserve.audit.estimators.gdp_of_pooled_errors`). Two limits, one for each rate, know it about 1.4 times worse.
    """
    if errors.positives != errors.negatives:
        raise ValueError("both errors make one count only where as many members as others are decided about")
    count = errors.false_positives + errors.false_negatives
    return 1 - 2 * upper_limit(count, errors.positives + errors.negatives, 1 - confidence)


def refuting_advantage(bound: float, decisions: float) -> float:
    """Return the least TPR - FPR, measured on so many members and as many others, that refutes the bound."""
    errors = decisions  # of either kind together: TPR - FPR = 1 - errors/decisions
    while errors >= 0 and least_advantage(Errors(errors, decisions, 0.0, decisions)) <= bound:
        errors -= 1
    return 1 - errors / decisions if errors >= 0 else math.inf


def missing_probability(advantages: Floats, bound: float, decisions: float, runs: int) -> float:
    """Return the probability that `runs` runs do not refute the bound, by the normal law of their mean."""
    deviation = advantages.std(ddof=1) / math.sqrt(runs)
    return float(norm.cdf((refuting_advantage(bound, decisions * runs) - advantages.mean()) / deviation))


def measured(head: int, name: str, mechanism: Any) -> dict[str, Any]:
    """Attack one head behind one control; what the table needs of it."""
    outcome = attack_head(HEADS_OF_THE_TEST + head, mechanism, 0.95)
    best = outcome.verdict.best
    return {
        "head": head,
        "control": name,
        "advantage": best.advantage,
        "decisions": best.errors.positives,
        "bound": outcome.verdict.decision.advantage(),
        "convicted": outcome.convicted,
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return the table of research/README.md."""
    lines = [
        "| control | bound | TPR - FPR: mean, deviation | runs in the test | TPR - FPR that refutes | missed with "
        "probability | convicted one by one at 95 % |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, _, runs in CONTROLS:
        of_it = [one for one in results if one["control"] == name]
        if len(of_it) < 2:
            continue
        advantages, bound, decisions = (
            np.array([one["advantage"] for one in of_it]),
            of_it[0]["bound"],
            of_it[0]["decisions"],
        )
        lines.append(
            f"| {name} | {bound:.3f} | {advantages.mean():.3f}, {advantages.std(ddof=1):.3f} | {runs} | "
            f"{refuting_advantage(bound, decisions * runs):.3f} | "
            f"{_shown(missing_probability(advantages, bound, decisions, runs))} | "
            f"{sum(one['convicted'] for one in of_it)} of {len(of_it)} |"
        )
    return "\n".join(lines)


def _shown(probability: float) -> str:
    """A normal law fitted to so few heads says nothing more of what is smaller."""
    return "below 1e-6" if probability < 1e-6 else f"{probability:.1g}"


def main() -> None:
    """Make the runs that are missing, for as long as asked, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("membership-power.jsonl"))
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="Begin no run after so many.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started, code = time.monotonic(), code_digest()
    results = [one for one in kept_runs.read(arguments.results, code) if one["head"] < arguments.heads]
    there = {(one["head"], one["control"]) for one in results}
    for head in range(arguments.heads):
        for name, mechanism, _ in CONTROLS:
            if (head, name) not in there and time.monotonic() - started < arguments.seconds:
                results.append(measured(head, name, mechanism) | {"code": code})
                kept_runs.append(arguments.results, results[-1])
    print(table(results))


if __name__ == "__main__":
    main()
