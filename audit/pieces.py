"""Finished pieces of an audit or an experiment on disk, so that an interrupted run goes on where it stopped.

A piece is named by a digest of everything that its result depends on. A file appears whole or not at all, and a file
that does not describe the piece asked for is not used. Files are their owner's alone: some hold what was measured on
private records, as scores of an audit, without noise.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from dpserve import accounting, audit, mechanisms, training
from dpserve.accounting.arrays import Floats
from dpserve.accounting.whole_files import write_whole
from dpserve.audit.noise import NoiseFinding

Piece = Mapping[str, Any]
"""The inputs of a result, in JSON's types."""


@dataclass(frozen=True)
class ResultStore:
    """A directory of results, one JSON file for each piece.

    bound_to: what every piece depends on, too, as the code that computes them.
    """

    directory: Path
    bound_to: Mapping[str, str] = field(default_factory=dict)

    def result(self, piece: Piece, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the stored result of the piece, or the computed one, which is stored first."""
        result = self.stored(piece)
        if result is None:
            result = compute()
            text, path = self._place(piece)
            self.directory.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps({"piece": json.loads(text), "result": result}, indent=1))
        return result

    def stored(self, piece: Piece) -> dict[str, Any] | None:
        """Return the stored result of the piece, if there is one."""
        text, path = self._place(piece)
        try:
            content = json.loads(path.read_text("utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        if not isinstance(content, dict) or content.get("piece") != json.loads(text):
            return None
        result = content.get("result")
        return result if isinstance(result, dict) else None

    def _place(self, piece: Piece) -> tuple[str, Path]:
        text = json.dumps({**piece, **self.bound_to}, sort_keys=True)
        return text, self.directory / f"{piece['name']}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def kept_scores(
    store: ResultStore, piece: Piece, observe: Callable[[], tuple[Floats, Floats]]
) -> tuple[Floats, Floats]:
    """Return scores with the record in and without it: those stored for the piece, or those observed now."""
    inside, outside, _ = kept_scores_and_noise(store, piece, lambda: (*observe(), NoiseFinding(0)))
    return inside, outside


def kept_scores_and_noise(
    store: ResultStore, piece: Piece, observe: Callable[[], tuple[Floats, Floats, NoiseFinding]]
) -> tuple[Floats, Floats, NoiseFinding]:
    """Return the same, and what the answers show of their noise."""

    def compute() -> dict[str, Any]:
        inside, outside, noise = observe()
        return {"in": inside.tolist(), "out": outside.tolist(), "noise": asdict(noise)}

    result = store.result(piece, compute)
    inside, outside = (np.array(result[world], dtype=np.float64) for world in ("in", "out"))
    return inside, outside, NoiseFinding(**result["noise"])


@cache
def code_digest(*others: ModuleType) -> str:
    """Return a digest of every module of `accounting`, `mechanisms`, `training`, `audit` and the other packages.

    By path and content. What is only shown is among them: to compute a piece again is cheaper than to trust one that
    other code made.
    """
    digest = hashlib.sha256()
    for package in (accounting, mechanisms, training, audit, *others):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{package.__name__}/{path.relative_to(root)}".encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
