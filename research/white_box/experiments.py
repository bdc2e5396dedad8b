"""Training runs that are watched step by step, in pieces that resume.

Networks are fully connected: what is audited is the step, and its guarantee asks nothing of the network.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpserve.audit.pieces import ResultStore
from dpserve.audit.progress import OnStage
from dpserve.mechanisms.seeded import derived_seed
from dpserve.training.fitting.network import Network
from dpserve.training.kinds.dpsgd.noisy_step import StepRelease
from research.data import benchmarks
from research.white_box.bounds import ClaimedRun, Measured, claimed_run
from research.white_box.observations import (
    AuditedStep,
    Canary,
    Descent,
    Example,
    Records,
    dirac,
    mislabel,
    observe_steps,
    quiet_coordinate,
    sound,
)

CANARY_LENGTH = 1000.0
"""Length of the gradient canary, in clipping norms."""

CANARIES = ("dirac", "blank", "mislabelled")

_PROBE = 200
_MOST_TEST = 2000


@dataclass(frozen=True)
class Setting:
    """The model to train. hidden: widths of the hidden layers; records: how many train."""

    dataset: str
    hidden: tuple[int, ...]
    records: int = 6400
    sampling_rate: float = 0.01
    steps: int = 1000
    runs: int = 5
    learning_rate: float = 0.5
    delta: float = 1e-5
    canary: str = "dirac"


DIGITS = Setting("digits", (32,), records=1000, sampling_rate=0.05, steps=400)


@dataclass(frozen=True, eq=False)
class Material:
    """Records to train on, others of the same distribution for the auditor, and the network."""

    records: Records
    probe: Records
    test: Records
    network: Network
    source: str


def prepare_records(setting: Setting, data_dir: Path | None, seed: int) -> Material:
    """Return the records of a setting, drawn by `seed`. Raises ValueError for too few, and DataError for files."""
    data = benchmarks.read(setting.dataset, data_dir)
    left = len(data.y) - setting.records - _PROBE
    if left < 1:
        raise ValueError(
            f"{setting.dataset} has {len(data.y)} records, and more than {setting.records + _PROBE} are needed"
        )
    order = np.random.default_rng(seed).permutation(len(data.y))
    order = order[: setting.records + _PROBE + min(left, _MOST_TEST)]
    parts = np.split(order, [setting.records, setting.records + _PROBE])
    training, probe, test = (Records(data.X[rows].astype(np.float64), data.y[rows]) for rows in parts)
    network = Network((data.X.shape[1], *setting.hidden, data.classes))
    return Material(training, probe, test, network, data.source)


def canary_of(kind: str, material: Material, seed: int) -> Canary:
    """Return the canary: a gradient where the probe's are least, or a record. Raises ValueError for another kind."""
    if kind != "dirac":
        return record_canary(kind, material, seed)
    network, probe = material.network, material.probe
    coordinate = quiet_coordinate(network, network.initial(seed), probe.inputs, probe.labels)
    return dirac(network.size, coordinate, CANARY_LENGTH)


def record_canary(kind: str, material: Material, seed: int) -> Example:
    """Return a record: blank (Nasr et al. 2023, Section 6.4) of the probe's rarest label, or one of it mislabelled.

    Raises ValueError for another kind.
    """
    probe, widths = material.probe, material.network.widths
    if kind == "blank":
        return Example(np.zeros(widths[0]), int(np.bincount(probe.labels, minlength=widths[-1]).argmin()))
    if kind == "mislabelled":
        return mislabel(probe.inputs, probe.labels, widths[-1], seed)
    raise ValueError(f"the canaries are {', '.join(CANARIES)}, not {kind!r}")


def measure(
    setting: Setting,
    epsilon: float,
    material: Material,
    store: ResultStore,
    seed: int,
    progress: OnStage,
    canary: Canary | None = None,
) -> Measured:
    """Observe `runs` runs of the sound step at the noise that epsilon allows a run. canary: if not the setting's."""
    claim = claimed_run(epsilon, setting.sampling_rate, setting.steps, setting.delta)
    release = StepRelease(claim.noise_multiplier, setting.sampling_rate)
    return measure_implementation(
        setting,
        claim,
        material,
        lambda run: sound(material.network, release, run),
        ("sound", f"epsilon {epsilon:g}"),
        store,
        seed,
        progress,
        canary,
    )


def measure_implementation(
    setting: Setting,
    claim: ClaimedRun,
    material: Material,
    implementation: Callable[[int], AuditedStep],
    purpose: Sequence[str],
    store: ResultStore,
    seed: int,
    progress: OnStage,
    canary: Canary | None = None,
) -> Measured:
    """Observe `runs` runs of an implementation of the step, made from each run's seed, that claims this."""
    present = canary_of(setting.canary, material, seed) if canary is None else canary
    pieces = []
    for run in range(setting.runs):
        run_seed = derived_seed(seed, *purpose, f"run {run}")

        def compute(run_seed: int = run_seed, done: int = run) -> dict[str, Any]:
            def advance(step: int) -> None:
                progress(" ".join(purpose), (done + step / setting.steps) / setting.runs)

            descent = Descent(setting.steps, setting.learning_rate, run_seed)
            found = observe_steps(implementation(run_seed), material.records, descent, present, advance=advance)
            right = material.network.logits(found.parameters, material.test.inputs).argmax(axis=1)
            return {
                "without": found.without.tolist(),
                "with": found.with_canary.tolist(),
                "accuracy": float(np.mean(right == material.test.labels)),
            }

        pieces.append(store.result(piece_of(setting, purpose, seed, run), compute))
        progress(" ".join(purpose), (run + 1) / setting.runs)
    without, with_canary = (np.concatenate([np.array(piece[key]) for piece in pieces]) for key in ("without", "with"))
    return Measured(claim, without, with_canary, float(np.mean([piece["accuracy"] for piece in pieces])))


def piece_of(setting: Setting, purpose: Sequence[str], seed: int, run: int) -> dict[str, Any]:
    """Return what a run's result depends on: everything but how many runs there are."""
    name, depends = f"white-box-{setting.dataset}", asdict(setting) | {"runs": None}
    return {"name": name, **depends, "purpose": list(purpose), "seed": seed, "run": run}


def scaled(setting: Setting, *, canary: str, runs: int | None, steps: int | None) -> Setting:
    """Return the setting with this canary, and with another number of runs or of steps where one is given."""
    return replace(setting, canary=canary, runs=runs or setting.runs, steps=steps or setting.steps)
