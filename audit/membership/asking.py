"""Asking an endpoint: rows through one or more keys, in batches, and the journal of the answers.

Running out of budget is a result: what was answered until then is used.

The journal keeps the answers on disk, so that an interrupted attack goes on where it stopped. It has one JSON line for
each answer, in the order they came, after a line that says what it was recorded for: the model and its price, the keys,
and whatever else the attack's rows follow from. Another attack is refused. An answer is paid for: it is on disk before
it is used.

The file is its owner's alone. Rows, keys, addresses and the set of candidates are named by digests under a random
salt, which the first line holds, and a row's name depends on the keys' names and on all else that the answers belong
to, too. So whoever gets hold of the file cannot test whether somebody's row is among the candidates without the API
keys and all candidates.
"""

import hmac
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.endpoint import Endpoint, Exhausted, Remembered, digest_of, row_name
from training.private_files import owners_alone

Floats = NDArray[np.float64]

FORMAT = "dpserve attack journal 3"

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

    def __init__(
        self,
        path: Path | None,
        model: Mapping[str, Any],
        keys: Sequence[str] = (),
        purpose: Mapping[str, Any] | None = None,
    ) -> None:
        """Open the journal of one attack on this model. A line that an interruption cut off is dropped.

        keys: `Endpoint.name` of each key. purpose: what else the answers belong to, ready for JSON; texts are
        named by digests. Raises ValueError where the file was recorded for another model, mechanism, price, key or
        purpose, and OSError.
        """
        self._path = path
        self._answers: dict[int, dict[str, Floats]] = {}
        self._planned: int | None = None
        self._model = {name: model.get(name) for name in ("model_id", "mechanism", "price_per_row")}
        self._keys, self._purpose = list(keys), dict(purpose or {})
        self._take(secrets.token_hex(32))
        if path is None:
            return
        if not path.exists() or path.stat().st_size == 0:
            self._append([self._header()])
        else:
            self._read(path)

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

    def answered_to(self, key: int) -> Remembered:
        """Return all answers that a key got until now. key: its place in the list of keys."""
        return Remembered(dict(self._answers.get(key, {})), self._name)

    def get(self, key: int, row: Floats) -> Floats | None:
        """The answer (C,) that a key got for a row, if any. key: its place in the list of keys."""
        return self._answers.get(key, {}).get(self._name(row_name(row)))

    def add(self, key: int, rows: Floats, answers: Floats) -> None:
        """Keep answers (n, C) to rows (n, d); durable when this returns."""
        names = [self._name(row_name(row)) for row in rows]
        if self._path is not None:
            self._append(
                {"key": key, "row": name, "answer": answer.tolist()}
                for name, answer in zip(names, answers, strict=True)
            )
        self._answers.setdefault(key, {}).update(zip(names, answers, strict=True))

    def _take(self, salt: str) -> None:
        """Name everything under this salt from now on."""
        self._salt = salt
        self._secret_of_keys = digest_of(salt.encode(), *(key.encode() for key in self._keys))
        self._secret_of_rows = _under(self._secret_of_keys, json.dumps(self._purpose))

    def _name(self, row: str) -> str:
        return _under(self._secret_of_rows, row)

    def _header(self) -> dict[str, Any]:
        purpose = {
            name: _under(self._secret_of_keys, value) if isinstance(value, str) else value
            for name, value in self._purpose.items()
        }
        keys = [_under(self._salt, key) for key in self._keys]
        header = {"format": FORMAT, "salt": self._salt} | self._model | {"keys": keys} | purpose
        plain: dict[str, Any] = json.loads(json.dumps(header))
        return plain

    def _append(self, lines: Any) -> None:
        assert self._path is not None
        with open(self._path, "a", encoding="utf-8", opener=owners_alone) as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(path, len(whole))
        lines = whole.decode("utf-8", errors="replace").splitlines()
        found = [_parsed(line) for line in lines]
        self._check(path, found[0] if found else None)
        for number, line in enumerate(found[1:], start=2):
            if line is not None and isinstance(line.get("planned"), int):
                self._planned = line["planned"]
                continue
            answer = None if line is None else _answer(line)
            if line is None or answer is None:
                raise ValueError(f"{path}, line {number}, is damaged; remove it to ask about its row again, at no cost")
            self._answers.setdefault(int(line["key"]), {})[str(line["row"])] = answer

    def _check(self, path: Path, first: Mapping[str, Any] | None) -> None:
        """Take the salt from the first line. Raises ValueError where it was recorded for anything else."""
        if first is None or first.get("format") != FORMAT or not isinstance(first.get("salt"), str):
            raise ValueError(f"{path} is not the journal of an attack; name another file with --journal")
        self._take(first["salt"])
        expected = self._header()
        differing = [name for name in expected if first.get(name) != expected[name]]
        if "keys" in differing:  # and so do all digests that depend on the keys, whatever they are of
            differing = [name for name in differing if not isinstance(self._purpose.get(name), str)]
        if differing or first.keys() != expected.keys():
            what = " and ".join(_CALLED.get(name, name) for name in differing) or "attack"
            raise ValueError(f"{path} was recorded for another {what}; name another file with --journal")


def _under(secret: str, text: str) -> str:
    return hmac.new(secret.encode(), text.encode(), "sha256").hexdigest()


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


_TURNS = 32
"""Into how many requests several keys divide their rows at least."""

OnRows = Callable[[int], None]
"""Told how many more rows were answered."""


@dataclass(frozen=True, eq=False)
class Answered:
    """What came back. answers: (keys, n, C), NaN where there is none. exhausted: whose budgets ran out, in order."""

    answers: Floats
    exhausted: tuple[str, ...]


def ask(endpoints: Sequence[Endpoint], rows: Floats, journal: Journal, *, on_rows: OnRows = lambda _: None) -> Answered:
    """Ask every key about every row, in order. rows: (n, d), or (keys, n, d), each key's own. Raises EndpointError.

    Several keys take turns, a batch each, so that where the account they share ends they were answered about nearly the
    same rows.
    """
    classes = len(endpoints[0].model()["classes"])
    each = np.broadcast_to(rows, (len(endpoints), *rows.shape[-2:]))
    answers = np.full((*each.shape[:2], classes), np.nan)
    turns = [
        _Turns(key, endpoint, each[key], answers[key], journal, on_rows, _batch(endpoint, each.shape[1], len(each)))
        for key, endpoint in enumerate(endpoints)
    ]
    going = turns
    while going:
        going = [one for one in going if one.take()]
    return Answered(answers, tuple(f"key {one.key + 1}: {one.gone}" for one in turns if one.gone is not None))


def _batch(endpoint: Endpoint, rows: int, keys: int) -> int:
    """Return how many rows one request has: as many as it may, but for keys that take turns."""
    largest = int(endpoint.model()["largest_batch"])
    return largest if keys == 1 else min(largest, max(1, -(-rows // _TURNS)))


class _Turns:
    """One key's way through the rows: `answers` (n, C) are filled in from the journal, and then a batch at a time."""

    def __init__(
        self,
        key: int,
        endpoint: Endpoint,
        rows: Floats,
        answers: Floats,
        journal: Journal,
        on_rows: OnRows,
        size: int,
    ) -> None:
        self.key = key
        self.gone: str | None = None
        self._endpoint, self._rows, self._answers = endpoint, rows, answers
        self._journal, self._on_rows, self._size = journal, on_rows, size
        self._waiting = []
        for index, row in enumerate(rows):
            known = journal.get(key, row)
            if known is None:
                self._waiting.append(index)
            else:
                answers[index] = known
        on_rows(len(rows) - len(self._waiting))

    def take(self) -> bool:
        """Ask about the next rows; return whether there may be more to ask about. `gone` says whose budget ran out."""
        while self._waiting and self.gone is None:
            batch = self._waiting[: self._size]
            try:
                found = self._endpoint.answers(self._rows[batch])
            except Exhausted as refusal:
                left = self._endpoint.budget()["queries_left"]
                # The account may say more than another key leaves: halve until one row is refused.
                self._size = min(len(batch) // 2, len(batch) - 1 if left is None else int(left))
                if self._size < 1:
                    self.gone = refusal.scope
                continue
            self._waiting = self._waiting[len(batch) :]
            self._journal.add(self.key, self._rows[batch], found)
            self._answers[batch] = found
            self._on_rows(len(batch))
            return True
        return False
