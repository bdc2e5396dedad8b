"""Whole runs as single observations: what a run tells whom (Nasr et al. 2023, Algorithm 1 and Section 5.5).

The observer of every step scores a run by its log-likelihood ratio; the observer of the final model alone by the
log-odds of the canary's label. Each run is one observation, so many runs are needed, and each bound is of a whole run.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import PrivacyLoss, SubsampledGaussianLoss
from dpserve.audit import estimators
from dpserve.audit.estimators import LowerBound
from dpserve.audit.families import Family, composition_family
from dpserve.audit.pieces import ResultStore
from dpserve.audit.progress import OnStage
from dpserve.audit.reports import Report, ReportTable, number
from dpserve.mechanisms.seeded import derived_seed
from dpserve.training.kinds.dpsgd.noisy_step import StepRelease
from research.white_box.bounds import ClaimedRun, claimed_run, composed_epsilon
from research.white_box.experiments import Material, Setting, piece_of, record_canary
from research.white_box.observations import (
    AuditedStep,
    Canary,
    Descent,
    Example,
    Moment,
    Records,
    rate_of,
    sound,
)


@dataclass(frozen=True, eq=False)
class Run:
    """One training run as its observer saw it: the final parameters (size,) and an observation of every step (T,).

    shifts: (T,), by how much the canary's presence in a step moves its observation.
    """

    parameters: Floats
    observed: Floats
    shifts: Floats


@dataclass(frozen=True, eq=False)
class MeasuredRuns:
    """Scores of whole runs, (with the canary, without it), of who sees every step and of who sees the model."""

    claim: ClaimedRun
    every_step: tuple[Floats, Floats]
    final_model: tuple[Floats, Floats]


def watch_run(
    audited: AuditedStep,
    records: Records,
    descent: Descent,
    canary: Canary,
    *,
    member: bool,
) -> Run:
    """Train once, the canary sampled like any record if it is a `member`, and observe every step."""
    rate = audited.claim.sampling_rate
    draw = np.random.default_rng([descent.seed, 2])
    parameters = audited.network.initial(descent.seed)
    observed, shifts = np.empty((2, descent.steps))
    for t in range(descent.steps):
        moment = Moment.sampled(audited, records, parameters, canary)
        released = moment.release(member=member and draw.random() < rate)
        observed[t], shifts[t] = moment.look(released), moment.shift
        parameters = parameters - rate_of(audited, records, descent) * released
    return Run(parameters, observed, shifts)


def log_likelihood_ratios(
    observed: Floats, noise_multiplier: float, canary_rate: float, shifts: "Floats | float" = 1.0
) -> Floats:
    """Return ln of the density with the canary over the density without, for each observation (T,).

    (1 - q) N(0, s^2) + q N(shift, s^2) against N(0, s^2). The sum over a run is the best score of the run.
    """
    gain = shifts * (2 * observed - shifts) / (2 * noise_multiplier**2)
    if canary_rate == 1:
        return gain
    mixed: Floats = np.logaddexp(math.log1p(-canary_rate), math.log(canary_rate) + gain)
    return mixed


def log_odds_of_label(audited: AuditedStep, parameters: Floats, example: Example) -> float:
    """Return ln(p/(1 - p)) of the example's label: what an auditor who sees only the model measures (Section 6.4)."""
    logits = audited.network.logits(parameters, example.x[None])[0]
    rest = np.delete(logits, example.label)
    return float(logits[example.label] - np.logaddexp.reduce(rest))


@dataclass(frozen=True)
class RunScores:
    """Scores of one run (Nasr et al. 2023, Algorithm 1 and Section 5.5).

    every_step: the log-likelihood ratio, by who sees every step. final_model: the log-odds of
    the canary's label, by who sees only the model at its end.
    """

    every_step: float
    final_model: float


def score_run(audited: AuditedStep, records: Records, descent: Descent, canary: Example, *, member: bool) -> RunScores:
    """Train once with the canary among the records, if it is a `member`, or without, and score the run."""
    run = watch_run(audited, records, descent, canary, member=member)
    claim = audited.claim
    ratios = log_likelihood_ratios(run.observed, claim.noise_multiplier, claim.sampling_rate, run.shifts)
    return RunScores(float(ratios.sum()), log_odds_of_label(audited, run.parameters, canary))


def sampled_run(claim: ClaimedRun) -> Family:
    """Return the trade-off functions of a whole run of sampled steps, by mu = 1/noise multiplier (Algorithm 4).

    Up to twice the claimed mu: what refutes that has refuted the claim.
    """

    def losses(mu: float) -> Counter[PrivacyLoss]:
        return Counter({SubsampledGaussianLoss(1 / mu, claim.sampling_rate): claim.steps})

    return composition_family("mu", losses, claim.delta, largest=2 / claim.noise_multiplier)


def run_bound(
    inside: Floats, outside: Floats, claim: ClaimedRun, confidence: float, threshold: float | None = None
) -> tuple[LowerBound, float]:
    """Return the bound of mu from scores of runs with and without the canary, and the epsilon of a run with it.

    f-DP by Clopper and Pearson through the trade-off function of the composed run. Without a threshold fixed in
    advance, as 0 for log-likelihood ratios, a share of the scores chooses one and is left out. Raises ValueError where
    the composition cannot be had numerically.
    """
    family = sampled_run(claim)
    bound = estimators.tradeoff(inside, outside, confidence, family, threshold=threshold)
    if bound.value <= 1e-3:
        return bound, 0.0
    return bound, composed_epsilon(1 / bound.value, claim.sampling_rate, claim.steps, claim.delta)


def measure_runs(
    setting: Setting, epsilon: float, material: Material, store: ResultStore, seed: int, progress: OnStage
) -> MeasuredRuns:
    """Score `runs` whole runs without the canary, a record, and as many with it (Algorithm 1)."""
    claim = claimed_run(epsilon, setting.sampling_rate, setting.steps, setting.delta)
    release = StepRelease(claim.noise_multiplier, setting.sampling_rate)
    canary = record_canary(setting.canary, material, seed)
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for each in range(2 * setting.runs):
        member, run = bool(each % 2), each // 2
        purpose = ("whole runs", f"epsilon {epsilon:g}", "with" if member else "without")

        def compute(member: bool = member, run: int = run, purpose: Sequence[str] = purpose) -> dict[str, Any]:
            run_seed = derived_seed(seed, *purpose, f"run {run}")
            descent = Descent(setting.steps, setting.learning_rate, run_seed)
            audited = sound(material.network, release, run_seed)
            return asdict(score_run(audited, material.records, descent, canary, member=member))

        found[member].append(store.result(piece_of(setting, purpose, seed, run), compute))
        progress("whole runs", (each + 1) / (2 * setting.runs))

    def column(member: bool, key: str) -> Floats:
        return np.array([one[key] for one in found[member]])

    return MeasuredRuns(
        claim,
        (column(True, "every_step"), column(False, "every_step")),
        (column(True, "final_model"), column(False, "final_model")),
    )


def runs_report(
    measured: MeasuredRuns, confidence: float, conviction_confidence: float, title: str, setting: Mapping[str, Any]
) -> Report:
    """Return the report of whole runs: by who sees every step, and by who sees only the model."""
    claim = measured.claim
    found = {
        "sees every step": run_bound(*measured.every_step, claim, confidence, threshold=0.0),
        "sees the final model": run_bound(*measured.final_model, claim, confidence),
    }
    bound, _ = run_bound(*measured.every_step, claim, conviction_confidence, threshold=0.0)
    convicted = bound.value > 1 / claim.noise_multiplier
    _, lower = found["sees every step"]
    shown = (
        f"an observer of every step finds epsilon >= {number(lower)} at delta = {claim.delta:g} with {confidence:.4g} "
        "confidence"
    )
    return Report(
        title=title,
        finding=f"{shown}, and {number(claim.epsilon)} is claimed",
        convicted=convicted,
        content={
            "setting": dict(setting),
            "claim": {**asdict(claim), "epsilon": claim.epsilon},
            "bounds": {who: {"bound": bound, "epsilon": epsilon} for who, (bound, epsilon) in found.items()},
        },
        tables=(
            ReportTable(
                "Lower bounds of the run's epsilon, f-DP (CP) through the composed run",
                ("observer", "runs, each way", "epsilon"),
                tuple(
                    (who, str(len(scores[0])), number(epsilon))
                    for (who, (_, epsilon)), scores in zip(
                        found.items(), (measured.every_step, measured.final_model), strict=True
                    )
                ),
            ),
        ),
        notes=("Each run is one observation; the observer of the final model sees no step.",),
    )
