"""The experiments of Nasr et al. 2023: steps, planted faults and whole runs (Sections 6.3, 6.4), in pieces that resume.

Networks are fully connected, where the paper has convolutional ones for images: what is audited is the step, and its
guarantee asks nothing of the network.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from accounting.conversions import gaussian_mu
from audit.pieces import ResultStore
from audit.white_box.bounds import ClaimedRun, claimed_run
from audit.white_box.canaries import Canary, DiracCanary, FixedCanary, blank, mislabelled, quiet_coordinate
from audit.white_box.observations import Descent, Floats, Records, observe_steps, score_run
from audit.white_box.steps import AuditedStep, Fault, faulty, sound
from mechanisms.seeded import derived_seed
from training.data.digits import load_digits
from training.extras import extra
from training.releases.dpsgd.network import Network
from training.releases.dpsgd.step import StepRelease

Progress = Callable[[str, float], None]

FAULT_EPSILON = 1.27
"""What the faulty implementations of Section 6.3 claim for a step, at delta = 1e-5."""

CANARY_LENGTH = 1000.0
"""Of the gradient canary, in clipping norms."""

CanaryKind = Literal["dirac", "crafted", "blank", "mislabelled"]
CANARIES: tuple[CanaryKind, ...] = get_args(CanaryKind)

_PROBE = 200
_MOST_TEST = 2000


@dataclass(frozen=True)
class Setting:
    """What is trained. hidden: widths of the hidden layers; records: how many train."""

    dataset: str
    hidden: tuple[int, ...]
    records: int = 6400
    sampling_rate: float = 0.01
    steps: int = 1000
    runs: int = 5
    learning_rate: float = 0.5
    delta: float = 1e-5
    canary: CanaryKind = "dirac"


DIGITS = Setting("digits", (32,), records=1000, sampling_rate=0.05, steps=400)


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

    claim: ClaimedRun
    without: Floats
    with_canary: Floats
    accuracy: float


@dataclass(frozen=True, eq=False)
class MeasuredRuns:
    """Scores of whole runs, (with the canary, without it), of who sees every step and of who sees the model."""

    claim: ClaimedRun
    every_step: tuple[Floats, Floats]
    final_model: tuple[Floats, Floats]


def digits(setting: Setting, seed: int) -> Material:
    """Return scikit-learn's digits, drawn by `seed`."""
    inputs, labels = load_digits().scaled()
    return prepare(setting, inputs, labels, 10, "scikit-learn's digits", seed)


def prepare(
    setting: Setting,
    inputs: NDArray[np.floating[Any]],
    labels: NDArray[np.int64],
    classes: int,
    source: str,
    seed: int,
) -> Material:
    """Return the records of a setting, drawn by `seed`. Raises ValueError where there are too few.

    inputs: (n, width); labels: (n,), in 0..classes-1.
    """
    left = len(labels) - setting.records - _PROBE
    if left < 1:
        raise ValueError(
            f"{setting.dataset} has {len(labels)} records, and more than {setting.records + _PROBE} are needed"
        )
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[: setting.records + _PROBE + min(left, _MOST_TEST)]
    parts = np.split(order, [setting.records, setting.records + _PROBE])
    training, probe, test = (Records(inputs[rows].astype(np.float64), labels[rows]) for rows in parts)
    network = Network((inputs.shape[1], *setting.hidden, classes))
    return Material(training, probe, test, network, source)


def canary_of(kind: CanaryKind, material: Material, seed: int) -> Canary:
    """Return the canary: a gradient where the probe's are least, or a record.

    crafted: from the probe, anew at every step. mislabelled: one of the probe. blank: of the probe's rarest label.
    Raises ValueError for another kind, and MissingExtra for a crafted one without torch.
    """
    network, probe = material.network, material.probe
    if kind == "dirac":
        coordinate = quiet_coordinate(network, network.initial(seed), probe.inputs, probe.labels)
        return DiracCanary(network.size, coordinate, CANARY_LENGTH)
    if kind == "crafted":
        with extra("torch", "crafting canaries"):
            from audit.white_box.crafting import CraftedCanary
        return CraftedCanary(network, probe.inputs, probe.labels)
    return record_canary(kind, material, seed)


def record_canary(kind: CanaryKind, material: Material, seed: int) -> FixedCanary:
    """Return the blank or the mislabelled canary. Raises ValueError for another kind."""
    probe, classes = material.probe, material.network.widths[-1]
    if kind == "blank":
        return blank(material.network.widths[0], int(np.bincount(probe.labels, minlength=classes).argmin()))
    if kind == "mislabelled":
        return mislabelled(probe.inputs, probe.labels, classes, seed)
    raise ValueError(f"the canaries are {', '.join(CANARIES)}, not {kind!r}")


def measure(
    setting: Setting, epsilon: float, material: Material, store: ResultStore, seed: int, progress: Progress
) -> Measured:
    """Observe `runs` runs of the sound step at the noise that epsilon allows a run (Table 1)."""
    claim = claimed_run(epsilon, setting.sampling_rate, setting.steps, setting.delta)
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
    claim = ClaimedRun(noise, setting.sampling_rate, setting.steps, setting.delta)
    release = StepRelease(noise, setting.sampling_rate)

    def implementation(run: int) -> AuditedStep:
        if fault is None:
            return sound(material.network, release, run)
        return faulty(
            fault, material.network, release, run, records=len(material.records.labels), noise_ratio=noise_ratio
        )

    purpose = (str(fault), f"{noise_ratio:.6g}", "runs of their own")
    return _measure(setting, claim, material, implementation, purpose, store, seed, progress)


def noise_ratio_of(true_epsilon: float, delta: float) -> float:
    """Return by how much less noise than for 1.27 a step has `true_epsilon`."""
    return gaussian_mu(FAULT_EPSILON, delta) / gaussian_mu(true_epsilon, delta)


def measure_runs(
    setting: Setting, epsilon: float, material: Material, store: ResultStore, seed: int, progress: Progress
) -> MeasuredRuns:
    """Score `runs` whole runs without the canary, a record, and as many with it (Algorithm 1)."""
    claim = claimed_run(epsilon, setting.sampling_rate, setting.steps, setting.delta)
    release = StepRelease(claim.noise_multiplier, setting.sampling_rate)
    canary = record_canary(setting.canary, material, seed)
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for number in range(2 * setting.runs):
        member, run = bool(number % 2), number // 2
        purpose = ("whole runs", f"epsilon {epsilon:g}", "with" if member else "without")

        def compute(member: bool = member, run: int = run, purpose: Sequence[str] = purpose) -> dict[str, Any]:
            run_seed = derived_seed(seed, *purpose, f"run {run}")
            descent = Descent(setting.steps, setting.learning_rate, run_seed)
            audited = sound(material.network, release, run_seed)
            return asdict(score_run(audited, material.records, descent, canary, member=member))

        found[member].append(store.result(_piece(setting, purpose, seed, run), compute))
        progress("whole runs", (number + 1) / (2 * setting.runs))

    def column(member: bool, key: str) -> Floats:
        return np.array([one[key] for one in found[member]])

    return MeasuredRuns(
        claim,
        (column(True, "every_step"), column(False, "every_step")),
        (column(True, "final_model"), column(False, "final_model")),
    )


def _measure(
    setting: Setting,
    claim: ClaimedRun,
    material: Material,
    implementation: Callable[[int], AuditedStep],
    purpose: Sequence[str],
    store: ResultStore,
    seed: int,
    progress: Progress,
) -> Measured:
    canary = canary_of(setting.canary, material, seed)
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
        **({} if setting.canary == "dirac" else {"canary": setting.canary}),
        "purpose": list(purpose),
        "seed": seed,
        "run": run,
    }


def scaled(setting: Setting, *, canary: str, runs: int | None, steps: int | None) -> Setting:
    """Return the setting with this canary, and with another number of runs or of steps where one is given.

    Raises ValueError for another kind of canary.
    """
    for kind in CANARIES:
        if kind == canary:
            return replace(setting, canary=kind, runs=runs or setting.runs, steps=steps or setting.steps)
    raise ValueError(f"the canaries are {', '.join(CANARIES)}, not {canary!r}")
