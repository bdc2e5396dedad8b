"""Does clipping alone help? Section 6.4 and Figure 11 of Nasr et al. 2023, on whole runs without noise.

The auditor sees the final model, and measures the canary's label in runs with the canary and without it. Training
without noise has no epsilon; what is found says how far clipping alone is from having one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.audit.estimators import Errors, epsilon_of_mu
from dpserve.audit.families import GAUSSIAN
from dpserve.audit.pieces import ResultStore
from dpserve.audit.progress import OnStage
from dpserve.audit.reports import Report, ReportTable, number
from dpserve.mechanisms.seeded import derived_seed
from dpserve.training.kinds.dpsgd.noisy_step import StepRelease
from research.nasr2023.methods import credible_gdp, credible_of_errors
from research.nasr2023.runs import log_odds_of_label, watch_run
from research.white_box.experiments import Material, Setting, piece_of, record_canary
from research.white_box.observations import Descent, sound

CLIP_NORMS = (0.1, 1.0, 10.0)
PRINTED: dict[float, float] = {0.1: 23.4, 1.0: 26.8, 10.0: 41.0}
"""Figure 11, by f-DP (ZB), of 1,000 runs each way on CIFAR-10."""
PRINTED_MOST, PRINTED_RUNS = 44.0, 1000
_NO_NOISE = 2.0**-60
"""In clipping norms."""


def most_of(runs: int, confidence: float, delta: float) -> float:
    """Return the epsilon that runs each way show at most: where all of them are told apart."""
    return epsilon_of_mu(credible_of_errors(Errors(0, runs, 0, runs), confidence, GAUSSIAN), delta)


def log_odds(
    setting: Setting, clip_norm: float, material: Material, store: ResultStore, seed: int, progress: OnStage
) -> tuple[Floats, Floats]:
    """Return the log-odds of the canary's label after runs with it and without it: (runs,) each."""
    canary = record_canary(setting.canary, material, seed)
    release = StepRelease(_NO_NOISE, setting.sampling_rate, clip_norm)
    purpose = ("clipping alone", f"clip norm {clip_norm:g}")
    found: dict[bool, list[float]] = {True: [], False: []}
    for each in range(2 * setting.runs):
        member, run = bool(each % 2), each // 2
        named = (*purpose, "with" if member else "without")

        def compute(member: bool = member, run: int = run, named: Sequence[str] = named) -> dict[str, Any]:
            run_seed = derived_seed(seed, *named, f"run {run}")
            audited = sound(material.network, release, run_seed)
            descent = Descent(setting.steps, setting.learning_rate, run_seed)
            seen = watch_run(audited, material.records, descent, canary, member=member)
            return {"log_odds": log_odds_of_label(audited, seen.parameters, canary)}

        found[member].append(float(store.result(piece_of(setting, named, seed, run), compute)["log_odds"]))
        progress(f"clip norm {clip_norm:g}", (each + 1) / (2 * setting.runs))
    return np.array(found[True]), np.array(found[False])


def clipping_report(
    measured: Mapping[float, tuple[Floats, Floats]], confidence: float, setting: Setting, *notes: str
) -> Report:
    """Return the report beside Figure 11. It convicts nobody: nothing is claimed of clipping."""
    rows, content = [], {}
    for clip_norm, scores in measured.items():
        bound = credible_gdp(*scores, confidence)
        content[f"{clip_norm:g}"] = bound.epsilon(setting.delta)
        rows.append((f"{clip_norm:g}", number(bound.epsilon(setting.delta), 3), f"{PRINTED[clip_norm]:g}"))
    most = most_of(setting.runs, confidence, setting.delta)
    rows.append(("most that can be shown", number(most, 3), f"{PRINTED_MOST:g}"))
    columns = ("clipping norm", f"here: {setting.runs} runs each way", f"printed: {PRINTED_RUNS:,} runs each way")
    return Report(
        title=f"Clipping without noise on {setting.dataset}, beside Figure 11 of Nasr et al. 2023",
        finding="nothing is claimed of clipping alone",
        convicted=False,
        content={"epsilon": content, "most": most, "runs": setting.runs, "steps": setting.steps},
        tables=(ReportTable("Lower bound of epsilon at delta = 1e-5, f-DP (ZB)", columns, tuple(rows)),),
        notes=(
            *notes,
            "A part of the runs chooses the threshold and is left out; the other part is what the bound counts.",
            f"The paper's size is --whole-runs {PRINTED_RUNS}: {6 * PRINTED_RUNS:,} trainings here.",
        ),
    )
