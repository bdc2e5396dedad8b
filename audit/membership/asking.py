"""Asking an endpoint: rows through one or more keys, in batches, and the journal of the answers.

Running out of budget is a result: what was answered until then is used.

The journal keeps the answers on disk, so that an interrupted attack goes on where it stopped. It has one JSON line for
each answer, in the order they came, after a line that says what it was recorded for: the model and its price, the keys,
and whatever else the attack's rows follow from. Another attack is refused. An answer is paid for: it is on disk before
it is used. Where the account went with the process that asked (`Endpoint.account_lasts`), what it answered is asked for
again.

The file is its owner's alone. Rows, keys, addresses and the set of candidates are named by digests under a random
salt, which the first line holds, and a row's name depends on the keys' names and on all else that the answers belong
to, too. So whoever gets hold of the file cannot test whether somebody's row is among the candidates without the API
keys and all candidates.
"""

import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError

from dpserve.accounting.arrays import Floats
from dpserve.accounting.messages import Message
from dpserve.accounting.whole_files import owners_alone
from dpserve.audit.endpoint import Endpoint, Exhausted, digest_of, row_name

FORMAT = "dpserve attack journal 3"

_SPOKEN_NAMES = {
    "model_id": "model",
    "price_per_row": "price",
    "keys": "address, bundle or key",
    "copies": "number of copies",
    "candidates": "number of candidates",
}
"""Names for the first line's entries in messages about differences; the others go by their own names."""


class _Planned(BaseModel):
    planned: int


class _NearCopies(BaseModel):
    near_copies: int


class _Answer(BaseModel):
    key: int
    row: str
    answer: list[float]


_LINE: TypeAdapter[_Planned | _NearCopies | _Answer] = TypeAdapter(_Planned | _NearCopies | _Answer)


class OtherJournal(ValueError):
    """A journal was recorded for something else. `differing` names the fields of its head that differ."""

    def __init__(self, path: Path, differing: Sequence[str]) -> None:
        """Name the file and what differs."""
        self.differing = tuple(differing)
        what = " and ".join(_SPOKEN_NAMES.get(name, name) for name in differing) or "attack"
        super().__init__(Message("{} was recorded for another {}; name another file with {journal}", path, what))


class AnswerJournal:
    """Answers by key and row. Without a path they are remembered for this run only.

    planned: how many candidates of each kind the attack set out to ask about; near_copies: how many rows the test of
    noise asks about. None before that was settled.
    """

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
        self.planned: int | None = None
        self.near_copies: int | None = None
        self._model = {name: model.get(name) for name in ("model_id", "mechanism", "price_per_row")}
        self._keys, self._purpose = list(keys), dict(purpose or {})
        self._take(secrets.token_hex(32))
        if path is not None and path.exists() and path.stat().st_size > 0:
            self._read_file(path)
        else:
            self._append([self._header()])

    def count(self, key: int) -> int:
        """Return how many rows this key has answers to. key: its place in the list of keys."""
        return len(self._answers.get(key, {}))

    def settle(self, planned: int) -> None:
        """Keep how many candidates of each kind are asked about; durable when this returns."""
        if self.planned is None:
            self._append([{"planned": planned}])
        self.planned = planned

    def settle_near_copies(self, count: int) -> None:
        """Keep how many rows the test of noise asks about; durable when this returns."""
        if self.near_copies is None:
            self._append([{"near_copies": count}])
        self.near_copies = count

    def get(self, key: int, row: Floats) -> Floats | None:
        """Return the answer (C,) that a key got for a row, if any. key: its place in the list of keys."""
        return self._answers.get(key, {}).get(self._name(row))

    def add(self, key: int, rows: Floats, answers: Floats) -> None:
        """Keep answers (n, C) to rows (n, d); durable when this returns."""
        answers_of_key = self._answers.setdefault(key, {})
        new = {self._name(row): answer for row, answer in zip(rows, answers, strict=True)}
        self._append(
            {"key": key, "row": name, "answer": answer.tolist()}
            for name, answer in new.items()
            if name not in answers_of_key
        )
        answers_of_key.update(new)

    def _take(self, salt: str) -> None:
        """Name everything under this salt from now on."""
        self._salt = salt
        self._secret_of_keys = digest_of(salt.encode(), *(key.encode() for key in self._keys))
        self._secret_of_rows = _keyed_digest(self._secret_of_keys, json.dumps(self._purpose))

    def _name(self, row: Floats) -> str:
        return _keyed_digest(self._secret_of_rows, row_name(row))

    def _header(self) -> dict[str, Any]:
        purpose = {
            name: _keyed_digest(self._secret_of_keys, value) if isinstance(value, str) else value
            for name, value in self._purpose.items()
        }
        keys = [_keyed_digest(self._salt, key) for key in self._keys]
        header = {"format": FORMAT, "salt": self._salt} | self._model | {"keys": keys} | purpose
        plain: dict[str, Any] = json.loads(json.dumps(header))
        return plain

    def _append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        if self._path is None:
            return
        with open(self._path, "a", encoding="utf-8", opener=owners_alone) as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())

    def _read_file(self, path: Path) -> None:
        content = path.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]
        if len(complete) < len(content):
            os.truncate(path, len(complete))
        first, *rest = complete.splitlines() or [b""]
        self._check(path, first)
        for number, text in enumerate(rest, start=2):
            try:
                line = _LINE.validate_json(text)
            except ValidationError as error:
                raise ValueError(
                    f"{path}, line {number}, is damaged; remove it to ask about its row again, at no cost"
                ) from error
            if isinstance(line, _Planned):
                self.planned = line.planned
            elif isinstance(line, _NearCopies):
                self.near_copies = line.near_copies
            else:
                self._answers.setdefault(line.key, {})[line.row] = np.array(line.answer)

    def _check(self, path: Path, text: bytes) -> None:
        """Take the salt from the first line. Raises ValueError where it was recorded for anything else."""
        try:
            first = json.loads(text)
        except ValueError:
            first = None
        if not isinstance(first, dict) or first.get("format") != FORMAT or not isinstance(first.get("salt"), str):
            raise ValueError(Message("{} is not the journal of an attack; name another file with {journal}", path))
        self._take(first["salt"])
        expected = self._header()
        differing = [name for name in expected if first.get(name) != expected[name]]
        if "keys" in differing:  # and so do all digests that depend on the keys, whatever they are of
            differing = [name for name in differing if not isinstance(self._purpose.get(name), str)]
        if differing or first.keys() != expected.keys():
            raise OtherJournal(path, differing)


def _keyed_digest(secret: str, text: str) -> str:
    return hmac.new(secret.encode(), text.encode(), "sha256").hexdigest()


_TURNS = 32
"""Into how many requests several keys divide their rows at least."""


@dataclass(frozen=True, eq=False)
class Answered:
    """Replies to a plan. answers: (keys, n, C), NaN where there is none. exhausted: keys without budget, in order."""

    answers: Floats
    exhausted: tuple[str, ...]


def ask(
    endpoints: Sequence[Endpoint],
    rows: Floats,
    journal: AnswerJournal,
    *,
    on_rows: Callable[[int], None] = lambda _: None,
) -> Answered:
    """Ask every key about every row, in order. rows: (n, d), or (keys, n, d), each key's own. Raises EndpointError.

    Several keys take turns, a batch each, so that where the account they share ends they were answered about nearly the
    same rows. on_rows: told how many more rows were answered.
    """
    model = endpoints[0].model()
    rows_of_keys = np.broadcast_to(rows, (len(endpoints), *rows.shape[-2:]))
    answers = np.full((*rows_of_keys.shape[:2], len(model["classes"])), np.nan)
    for key, endpoint in enumerate(endpoints):
        for place, row in enumerate(rows_of_keys[key] if endpoint.account_lasts else ()):
            answer = journal.get(key, row)
            if answer is not None:
                answers[key, place] = answer
    waiting = {key: np.flatnonzero(np.isnan(answers_of_key[:, 0])) for key, answers_of_key in enumerate(answers)}
    on_rows(answers.shape[0] * answers.shape[1] - sum(map(len, waiting.values())))
    # As many rows in a request as it may have, except for keys that take turns.
    turns = 1 if len(endpoints) == 1 else _TURNS
    sizes = [
        min(int(endpoint.model()["largest_batch"]), max(1, -(-rows_of_keys.shape[1] // turns)))
        for endpoint in endpoints
    ]
    exhausted: dict[int, str] = {}
    while waiting := {key: rest for key, rest in waiting.items() if len(rest) and key not in exhausted}:
        for key, rest in waiting.items():
            batch = rest[: sizes[key]]
            try:
                replies = endpoints[key].answers(rows_of_keys[key, batch])
            except Exhausted as refusal:
                left = endpoints[key].budget()["queries_left"]
                # The account may say more than another key leaves: halve until one row is refused.
                sizes[key] = min(len(batch) // 2, len(batch) - 1 if left is None else int(left))
                if sizes[key] < 1:
                    exhausted[key] = refusal.scope
                continue
            journal.add(key, rows_of_keys[key, batch], replies)
            answers[key, batch] = replies
            on_rows(len(batch))
            waiting[key] = rest[len(batch) :]
    return Answered(answers, tuple(f"key {key + 1}: {scope}" for key, scope in sorted(exhausted.items())))
