"""The experiments of Nasr et al. 2023 on data that is here: Table 1 and Section 6.3, in pieces that resume.

Networks are fully connected, where the paper has convolutional ones for images: what is audited is the step, and its
guarantee asks nothing of the network.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from accounting.conversions import gaussian_mu
from audit.white_box.bounds import Claim, claim_of
from audit.white_box.canaries import Canary, DiracCanary, quiet_coordinate
from audit.white_box.observations import Descent, Floats, Records, observe_steps
from audit.white_box.printed import FAULT_EPSILON
from audit.white_box.steps import AuditedStep, Fault, faulty, sound
from training.data import benchmarks, retail
from training.data.labelled import LabelledSet
from training.releases.dpsgd.network import Network
from training.releases.dpsgd.step import StepRelease
from training.reproduction.seeded import derived_seed
from training.reproduction.store import ResultStore

Progress = Callable[[str, float], None]

CANARY_LENGTH = 100.0
"""Of the gradient canary, in clipping norms."""

_PROBE = 200
_TEST = 2000


@dataclass(frozen=True)
class Setting:
    """One column of the table. hidden: widths of the hidden layers; records: how many train."""

    dataset: str
    hidden: tuple[int, ...]
    records: int = 6400
    sampling_rate: float = 0.01
    steps: int = 1000
    runs: int = 5
    learning_rate: float = 0.5
    delta: float = 1e-5


SETTINGS: dict[str, Setting] = {
    "retail-100": Setting("retail-100", (128,), learning_rate=2.0),
    "mnist": Setting("mnist", (64,)),
    "cifar-10": Setting("cifar-10", (32,), runs=3),
}
"""By data set."""


@dataclass(frozen=True, eq=False)
class Material:
    """Records to train on, others of the same distribution for the auditor, and the network."""

    records: Records
    probe: Records
    test: Records
    network: Network
    source: str


@dataclass(frozen=True, eq=False)
class Measured:
    """What was seen of one implementation: observations of all runs together, and the mean accuracy of training."""

    claim: Claim
    without: Floats
    with_canary: Floats
    accuracy: float


def read(name: str, directory: Path) -> LabelledSet:
    """Read a data set by name. Raises ValueError for an unknown one and DataError for its files."""
    return retail.read(directory) if name == "retail-100" else benchmarks.read(name, directory)


def prepare(setting: Setting, data: LabelledSet, seed: int) -> Material:
    """Return the records of a setting, drawn by `seed`. Raises ValueError where there are too few."""
    needed = setting.records + _PROBE + _TEST
    if needed > len(data.y):
        raise ValueError(f"{data.name} has {len(data.y)} records, and {needed} are needed")
    order = np.random.default_rng(seed).permutation(len(data.y))[:needed]
    parts = np.split(order, [setting.records, setting.records + _PROBE])
    training, probe, test = (Records(data.X[rows].astype(np.float64), data.y[rows]) for rows in parts)
    network = Network((data.X.shape[1], *setting.hidden, data.classes))
    return Material(training, probe, test, network, data.source)


def dirac(material: Material, seed: int) -> DiracCanary:
    """Return the gradient canary, where the probe's gradients are least."""
    network, probe = material.network, material.probe
    coordinate = quiet_coordinate(network, network.initial(seed), probe.inputs, probe.labels)
    return DiracCanary(network.size, coordinate, CANARY_LENGTH)


def measure(
    setting: Setting, epsilon: float, material: Material, store: ResultStore, seed: int, progress: Progress
) -> Measured:
    """Observe `runs` runs of the sound step at the noise that epsilon allows a run (Table 1)."""
    claim = claim_of(epsilon, setting.sampling_rate, setting.steps, setting.delta)
    release = StepRelease(claim.noise_multiplier, setting.sampling_rate)
    return _measure(
        setting,
        claim,
        material,
        lambda run: sound(material.network, release, run),
        ("sound", f"epsilon {epsilon:g}"),
        store,
        seed,
        progress,
    )


def measure_fault(
    setting: Setting,
    fault: Fault | None,
    noise_ratio: float,
    material: Material,
    store: ResultStore,
    seed: int,
    progress: Progress,
) -> Measured:
    """Observe an implementation with a planted fault, or a sound one, that claims 1.27 for a step (Section 6.3)."""
    noise = 1 / gaussian_mu(FAULT_EPSILON, setting.delta)
    claim = Claim(noise, setting.sampling_rate, setting.steps, setting.delta)
    release = StepRelease(noise, setting.sampling_rate)

    def implementation(run: int) -> AuditedStep:
        if fault is None:
            return sound(material.network, release, run)
        # One set of few seeds for all runs: they belong to the program.
        chosen = seed if fault == "noise-from-100-seeds" else run
        return faulty(
            fault, material.network, release, chosen, records=len(material.records.labels), noise_ratio=noise_ratio
        )

    purpose = (str(fault), f"{noise_ratio:.6g}")
    return _measure(setting, claim, material, implementation, purpose, store, seed, progress)


def noise_ratio_of(true_epsilon: float, delta: float) -> float:
    """Return by how much less noise than for 1.27 a step has `true_epsilon`."""
    return gaussian_mu(FAULT_EPSILON, delta) / gaussian_mu(true_epsilon, delta)


def _measure(
    setting: Setting,
    claim: Claim,
    material: Material,
    implementation: Callable[[int], AuditedStep],
    purpose: Sequence[str],
    store: ResultStore,
    seed: int,
    progress: Progress,
) -> Measured:
    canary = dirac(material, seed)
    pieces = []
    for run in range(setting.runs):
        run_seed = derived_seed(seed, *purpose, f"run {run}")
        piece = _piece(setting, purpose, seed, run)

        def compute(run_seed: int = run_seed, done: int = run) -> dict[str, Any]:
            def advance(step: int) -> None:
                progress(" ".join(purpose), (done + step / setting.steps) / setting.runs)

            return _observe(setting, material, implementation(run_seed), canary, run_seed, advance)

        pieces.append(store.result(piece, compute))
        progress(" ".join(purpose), (run + 1) / setting.runs)
    without, with_canary = (np.concatenate([np.array(piece[key]) for piece in pieces]) for key in ("without", "with"))
    return Measured(claim, without, with_canary, float(np.mean([piece["accuracy"] for piece in pieces])))


def _observe(
    setting: Setting,
    material: Material,
    audited: AuditedStep,
    canary: Canary,
    seed: int,
    advance: Callable[[int], None],
) -> dict[str, Any]:
    descent = Descent(setting.steps, setting.learning_rate, seed)
    found = observe_steps(audited, material.records, descent, canary, advance=advance)
    logits = material.network.logits(found.parameters, material.test.inputs)
    return {
        "without": found.without.tolist(),
        "with": found.with_canary.tolist(),
        "accuracy": float(np.mean(logits.argmax(axis=1) == material.test.labels)),
    }


def _piece(setting: Setting, purpose: Sequence[str], seed: int, run: int) -> dict[str, Any]:
    return {
        "name": f"white-box-{setting.dataset}",
        "hidden": list(setting.hidden),
        "records": setting.records,
        "sampling_rate": setting.sampling_rate,
        "steps": setting.steps,
        "learning_rate": setting.learning_rate,
        "delta": setting.delta,
        "purpose": list(purpose),
        "seed": seed,
        "run": run,
    }


def scaled(setting: Setting, *, runs: int | None, steps: int | None) -> Setting:
    """Return the setting with another number of runs or of steps where one is given."""
    return replace(setting, runs=runs or setting.runs, steps=steps or setting.steps)
