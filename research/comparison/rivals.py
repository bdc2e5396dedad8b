"""Other libraries' private classifiers, trained by an interpreter of their own on what dpserve is told of a table."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from dpserve.training.errors import DataError
from dpserve.training.inputs.columns import LevelsColumn, blocks_of
from dpserve.training.kinds.cases import Case, Quality
from dpserve.training.planning.options import DELTA
from research.comparison import trainers


def task_of(case: Case, rival: str, choice: float, epsilon: float) -> dict[str, Any]:
    """Return a rival's task as arrays: numbers from 0 to 1 by their bounds, levels as codes, and what to train."""
    assert case.declared is not None
    columns = case.declared.columns
    low, high = np.array(case.declared.lower), np.array(case.declared.upper)
    arrays: dict[str, Any] = {"y": case.y}
    for part, X in (("records", case.X), ("asked", case.asked)):
        scaled = (X - low) / (high - low)
        blocks = list(blocks_of(columns, scaled))
        numbers = [block for column, block in blocks if not isinstance(column, LevelsColumn)]
        codes = [block.argmax(axis=1)[:, None] for column, block in blocks if isinstance(column, LevelsColumn)]
        none = np.zeros((len(X), 0))
        arrays |= {
            f"coded_{part}": scaled,
            f"numbers_{part}": np.hstack([none, *numbers]),
            f"codes_{part}": np.hstack([none.astype(np.int64), *codes]),
        }
    task = {"rival": rival, "delta": DELTA, "seed": case.seed, "classes": case.classes, "columns": len(columns)}
    return arrays | {"tasks": json.dumps([task | {"epsilon": epsilon, "choice": choice}])}


def trained(case: Case, rival: str, choice: float, epsilon: float, python: Path | None) -> Quality:
    """Return what a rival reaches. choice: what it has no rule for. python: the interpreter that has it."""
    advice = "install research/comparison/requirements.txt into an environment, and name its interpreter by --python"
    if python is None:
        raise DataError(f"{rival} on {case.name}: {advice}")
    with tempfile.TemporaryDirectory() as folder:
        tasks, answers = Path(folder) / "tasks.npz", Path(folder) / "answers.npz"
        np.savez(tasks, **task_of(case, rival, choice, epsilon))
        try:
            command = [python, Path(trainers.__file__), tasks, answers]
            subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - the owner's own interpreter
        except (subprocess.CalledProcessError, OSError) as error:
            said = getattr(error, "stderr", b"").decode(errors="replace").strip().splitlines()
            reason = said[-1] if said else str(error)
            raise DataError(f"{rival} on {case.name}: {reason}; {advice}") from error
        with np.load(answers, allow_pickle=False) as file:
            return case.quality(file["probabilities0"])
