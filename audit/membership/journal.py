"""The answers an attack got so far, on disk, so that an interrupted attack goes on where it stopped.

One JSON line for each answer, in the order they came, after a line that says what it was recorded for: the model and
its price, the keys, and whatever else the attack's rows follow from. Another attack is refused. An answer is paid for:
it is on disk before it is used. Rows, keys and addresses are named by digests alone.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.endpoint import row_name

Floats = NDArray[np.float64]

FORMAT = "dpserve attack journal 2"

_CALLED = {
    "model_id": "model",
    "price_per_row": "price",
    "keys": "address, bundle or key",
    "copies": "number of copies",
    "candidates": "number of candidates",
}
"""What the first line's entries are called where they differ, if not by their own names."""


class Journal:
    """Answers by key and row. Without a path they are remembered for this run only."""

    def __init__(self, path: Path | None, model: Mapping[str, Any], purpose: Mapping[str, Any] | None = None) -> None:
        """Open the journal of one attack on this model. A line that an interruption cut off is dropped.

        purpose: what else the answers belong to, ready for JSON. Raises ValueError where the file was recorded for
        another model, mechanism, price or purpose, and OSError.
        """
        self._path = path
        self._answers: dict[int, dict[str, Floats]] = {}
        self._planned: int | None = None
        recorded_for = {name: model.get(name) for name in ("model_id", "mechanism", "price_per_row")}
        header = {"format": FORMAT} | recorded_for | dict(purpose or {})
        if path is None:
            return
        if not path.exists() or path.stat().st_size == 0:
            self._append([header])
        else:
            self._read(path, json.loads(json.dumps(header)))

    def __len__(self) -> int:
        """How many answers there are."""
        return sum(len(answers) for answers in self._answers.values())

    @property
    def planned(self) -> int | None:
        """How many candidates of each kind the attack set out to ask about; None before that was settled."""
        return self._planned

    def settle(self, planned: int) -> None:
        """Keep how many candidates of each kind are asked about; durable when this returns."""
        if self._planned is None and self._path is not None:
            self._append([{"planned": planned}])
        self._planned = planned

    def answers_to(self, key: int) -> Mapping[str, Floats]:
        """Return all answers (C,) that a key got, by `row_name`. key: its place in the list of keys."""
        return self._answers.get(key, {})

    def get(self, key: int, row: Floats) -> Floats | None:
        """The answer (C,) that a key got for a row, if any. key: its place in the list of keys."""
        return self.answers_to(key).get(row_name(row))

    def add(self, key: int, rows: Floats, answers: Floats) -> None:
        """Keep answers (n, C) to rows (n, d); durable when this returns."""
        names = [row_name(row) for row in rows]
        if self._path is not None:
            self._append(
                {"key": key, "row": name, "answer": answer.tolist()}
                for name, answer in zip(names, answers, strict=True)
            )
        self._answers.setdefault(key, {}).update(zip(names, answers, strict=True))

    def _append(self, lines: Any) -> None:
        assert self._path is not None
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())

    def _read(self, path: Path, expected: Mapping[str, Any]) -> None:
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            path.write_bytes(whole)
        lines = whole.decode("utf-8", errors="replace").splitlines()
        found = [_parsed(line) for line in lines]
        if not found or found[0] is None or found[0].get("format") != FORMAT:
            raise ValueError(f"{path} is not the journal of an attack; name another file with --journal")
        differing = [_CALLED.get(name, name) for name in expected if found[0].get(name) != expected[name]]
        if differing or found[0].keys() != expected.keys():
            what = " and ".join(differing) or "attack"
            raise ValueError(f"{path} was recorded for another {what}; name another file with --journal")
        for number, line in enumerate(found[1:], start=2):
            if line is not None and isinstance(line.get("planned"), int):
                self._planned = line["planned"]
                continue
            answer = None if line is None else _answer(line)
            if line is None or answer is None:
                raise ValueError(f"{path}, line {number}, is damaged; remove it to ask about its row again, at no cost")
            self._answers.setdefault(int(line["key"]), {})[str(line["row"])] = answer


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _answer(line: Mapping[str, Any]) -> Floats | None:
    answer = line.get("answer")
    if not isinstance(answer, Sequence) or not isinstance(line.get("key"), int) or not isinstance(line.get("row"), str):
        return None
    try:
        return np.asarray(answer, dtype=np.float64)
    except (TypeError, ValueError):
        return None
