"""Models behind proven mechanisms, each attacked in all ways: how close TPR - FPR comes to the exact bound.

Run r trains a certified head on 250 of 500 digits drawn with seed r, Lambda = 0.3, on 100 public random features, and
attacks it by a mechanism's answers to all 500, as `dpserve attack` does, with 3 shadow models. Mechanisms take turns.
Every figure follows from the run's number alone, so that runs may be made in any order and in pieces: what is in the
file of results is not made again. The table is the one of research/README.md.
Run: python benchmarks/fifty_models.py [--results FILE] [--runs 50] [--seconds 200]
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits as scikit_learns_digits

from benchmarks import kept_runs
from dpserve.audit.in_process import BundleEndpoint, rehearsal_key
from dpserve.audit.membership.attack import Attack, AttackChoices
from dpserve.audit.membership.candidates import Candidates, Labelled
from dpserve.audit.pieces import code_digest
from dpserve.mechanisms.registry import priced
from dpserve.training.features.maps import Fourier
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head

RECORDS, LAMBDA, SHADOW_MODELS = 250, 0.3, 3
PIXELS, CLASSES = 64, 10
MECHANISMS = (
    ("gaussian", "noise-multiplier:1"),
    ("gaussian", "noise-multiplier:0.5"),
    ("laplace", "epsilon:1"),
    ("selected-neuron", "rho:0.5"),
    ("label", "epsilon:2"),
)

Result = Mapping[str, Any]


def attack_run(run: int) -> dict[str, Any]:
    """Train and attack one model; return every attack's TPR - FPR, and the bounds for one and two steps."""
    name, price = MECHANISMS[run % len(MECHANISMS)]
    digits = scikit_learns_digits()
    some = np.random.default_rng(run).permutation(len(digits.target))[: 2 * RECORDS]
    everyone = Labelled(digits.data[some].astype(np.float64), digits.target[some].astype(np.int64))
    members, others = everyone[:RECORDS], everyone[RECORDS:]
    declaration = Declaration(
        tuple(f"pixel {i}" for i in range(PIXELS)), (0.0,) * PIXELS, (16.0,) * PIXELS, tuple(map(str, range(CLASSES)))
    )
    features = Fourier(
        lower=declaration.lower,
        upper=declaration.upper,
        clip_norm=4.0,
        bias=0.0,
        random_features=100,
        bandwidth=0.4,
        seed=0,
    )
    head = train_head(Records(members.X, members.y, declaration, ()), Recipe("digits", features, LAMBDA), f"run-{run}")
    # Random like every model's, it would make other noise each time.
    head = replace(head, certificate=head.certificate.model_copy(update={"model_id": f"{run:032x}"}))
    endpoint = BundleEndpoint(head, priced(name, price, CLASSES), rehearsal_key(run))
    choices = AttackChoices(shadow_models=SHADOW_MODELS, seed=run)
    outcome = Attack([endpoint], Candidates(members, others), choices).run()
    verdict = outcome.verdict
    return {
        "run": run,
        "mechanism": name,
        "price": price,
        "best": verdict.best.advantage,
        "of_each_attack": {found.attack: found.advantage for found in verdict.found},
        "largest_epsilon": max(found.epsilon for found in verdict.found),
        "bound_one_step": verdict.decision.advantage(),
        "bound_two_steps": verdict.decision.advantage(2),
        "decided": [int(verdict.best.errors.positives), int(verdict.best.errors.negatives)],
        "convicted": outcome.convicted,
        "inconclusive": outcome.inconclusive,
    }


def table(results: Sequence[Result]) -> str:
    """Return the rows of the table in research/README.md."""
    lines = [
        "| mechanism, price of a row | models | best attack: mean, largest | any attack: largest | bound, one step |",
        "|---|---|---|---|---|",
    ]
    for name, price in MECHANISMS:
        of_it = [one for one in results if (one["mechanism"], one["price"]) == (name, price)]
        if not of_it:
            continue
        best = [one["best"] for one in of_it]
        largest = max(max(one["of_each_attack"].values()) for one in of_it)
        lines.append(
            f"| `{name}`, {price} | {len(of_it)} | {np.mean(best):.3f}, {max(best):.3f} | {largest:.3f} | "
            f"{of_it[0]['bound_one_step']:.3f} |"
        )
    return "\n".join(lines)


def summary(results: Sequence[Result]) -> str:
    """Say what holds of all runs together."""
    advantages = [value for one in results for value in one["of_each_attack"].values()]
    beyond = sum(max(one["of_each_attack"].values()) > one["bound_one_step"] for one in results)
    decided = sorted({tuple(one["decided"]) for one in results})
    return (
        f"{len(results)} models, {len(advantages)} measured TPR - FPR, the largest {max(advantages):.3f}; runs in "
        f"which one exceeds the bound for one step: {beyond}; largest lower bound of epsilon: "
        f"{max(one['largest_epsilon'] for one in results):.3g}; convicted: "
        f"{sum(one['convicted'] for one in results)}; inconclusive: {sum(one['inconclusive'] for one in results)}; "
        f"members and others counted: from {decided[0]} to {decided[-1]}"
    )


def kept(path: Path, code: str) -> list[dict[str, Any]]:
    """Return the finished runs of this code in the file, by number; a line that was cut off is no run."""
    found = {one["run"]: one for one in kept_runs.read(path, code)}
    return [found[run] for run in sorted(found)]


def main() -> None:
    """Make the runs that are missing, for as long as asked, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("fifty-models.jsonl"))
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="Begin no run after so many.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started, code = time.monotonic(), code_digest()
    there = {one["run"] for one in kept(arguments.results, code)}
    for run in range(arguments.runs):
        if run not in there and time.monotonic() - started < arguments.seconds:
            kept_runs.append(arguments.results, attack_run(run) | {"code": code})
    results = [one for one in kept(arguments.results, code) if one["run"] < arguments.runs]
    if results:
        print(f"{table(results)}\n\n{summary(results)}")


if __name__ == "__main__":
    main()
