"""The answers an attack got so far, on disk, so that an interrupted attack goes on where it stopped.

One JSON line for each answer, in the order they came, after a line that says which model and price they belong to. An
answer is paid for: it is on disk before it is used. Rows are named by their digest alone.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FORMAT = "dpserve attack journal 1"


class Journal:
    """Answers by key and row. Without a path they are remembered for this run only."""

    def __init__(self, path: Path | None, model: Mapping[str, Any]) -> None:
        """Open the journal of attacks on this model. A line that an interruption cut off is dropped.

        Raises ValueError where the file belongs to another model, mechanism or price, and OSError.
        """
        self._path = path
        self._answers: dict[tuple[int, str], Floats] = {}
        header = {"format": FORMAT} | {name: model.get(name) for name in ("model_id", "mechanism", "price_per_row")}
        if path is None:
            return
        if not path.exists() or path.stat().st_size == 0:
            self._append([header])
        else:
            self._read(path, header)

    def __len__(self) -> int:
        """How many answers there are."""
        return len(self._answers)

    def get(self, key: int, row: Floats) -> Floats | None:
        """The answer (C,) that a key got for a row, if any. key: its place in the list of keys."""
        return self._answers.get((key, _name(row)))

    def add(self, key: int, rows: Floats, answers: Floats) -> None:
        """Keep answers (n, C) to rows (n, d); durable when this returns."""
        names = [_name(row) for row in rows]
        if self._path is not None:
            self._append(
                {"key": key, "row": name, "answer": answer.tolist()}
                for name, answer in zip(names, answers, strict=True)
            )
        self._answers |= {(key, name): answer for name, answer in zip(names, answers, strict=True)}

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
        if found[0] != expected:
            raise ValueError(f"{path} holds answers of another model, mechanism or price; name another --journal")
        for number, line in enumerate(found[1:], start=2):
            answer = None if line is None else _answer(line)
            if line is None or answer is None:
                raise ValueError(f"{path}, line {number}, is damaged; remove it to ask about its row again, at no cost")
            self._answers[int(line["key"]), str(line["row"])] = answer


def _name(row: Floats) -> str:
    return hashlib.sha256((np.asarray(row, dtype=np.float64) + 0.0).tobytes()).hexdigest()


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
