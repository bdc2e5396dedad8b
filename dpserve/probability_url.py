"""Any server that answers probabilities in JSON of its own, as what `dpserve attack --predict-url` asks.

A template says how rows are sent. In the reply the probabilities are looked for: a vector for each row, or all of them
in one list, that add up to 1. A path says where they are, if more than one place has such numbers.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import httpx
import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.accounting.messages import Message
from dpserve.audit.endpoint import EndpointError
from dpserve.training.errors import WrongOption

_ROUNDING = 0.01
"""The most by which the probabilities of a row may miss 1: servers round."""
_SECONDS = 60.0
_SHOWN = 200


class ProbabilityUrl:
    """A URL that takes rows by POST and answers probabilities of classes."""

    def __init__(
        self,
        url: str,
        *,
        columns: Sequence[str],
        classes: Sequence[str],
        template: str,
        answer_path: str | None = None,
        key: str | None = None,
    ) -> None:
        """columns: names of the rows' values. classes: in the order of the answers. key: sent as a bearer token.

        template: JSON in which the texts "ROWS" (lists of numbers), "FLAT" (one list), "NAMED" (an object a row),
        "COUNT" and "WIDTH" stand for the rows. answer_path: names and places with dots between. Raises WrongOption.
        """
        if httpx.URL(url).scheme not in ("http", "https") or not httpx.URL(url).host:
            raise WrongOption("predict_url", "must be a whole address, http://host:port/path")
        try:
            self._template = json.loads(template)
        except ValueError as error:
            raise WrongOption("request_json", f"is no JSON: {error}") from error
        if not {"ROWS", "FLAT", "NAMED"} & set(_texts(self._template)):
            raise WrongOption("request_json", 'needs "ROWS", "FLAT" or "NAMED" where the rows go')
        self.url, self._columns, self._classes = url, tuple(columns), tuple(classes)
        self._path = None if answer_path is None else answer_path.split(".")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(headers=headers, timeout=_SECONDS)

    def answers(self, rows: Floats) -> Floats:
        """Return the probabilities (n, C) of rows (n, d). Raises EndpointError."""
        try:
            reply = self._http.post(self.url, json=_filled(self._template, self._values(rows)))
        except httpx.TransportError as error:
            raise EndpointError(f"{self.url} does not answer: {error}. Is the server running?") from error
        if reply.status_code != httpx.codes.OK:
            raise EndpointError(
                Message(
                    "{} answered {}: {!r}. What it takes is said with {request_json}",
                    self.url,
                    reply.status_code,
                    reply.text[:_SHOWN],
                )
            )
        try:
            content = reply.json()
        except ValueError as error:
            raise EndpointError(f"{self.url} answered no JSON: {reply.text[:_SHOWN]!r}") from error
        return self._read(content, len(rows))

    def _values(self, rows: Floats) -> Mapping[str, Any]:
        lists = rows.tolist()
        named = [dict(zip(self._columns, row, strict=True)) for row in lists]
        flat = rows.reshape(-1).tolist()
        return {"ROWS": lists, "FLAT": flat, "NAMED": named, "COUNT": len(rows), "WIDTH": rows.shape[1]}

    def _read(self, content: Any, count: int) -> Floats:
        places = dict(_places(content, ()))
        if self._path is not None:
            places = {path: value for path, value in places.items() if path == tuple(self._path)}
        read = {path: _probabilities(value, count, self._classes) for path, value in places.items()}
        answers = {path: answer for path, answer in read.items() if answer is not None}
        if not answers:
            raise EndpointError(
                Message(
                    "the answer of {} has no probabilities of {} classes for {} rows{}: {}. Classes are said "
                    "with {answer_classes}",
                    self.url,
                    len(self._classes),
                    count,
                    "" if self._path is None else f" at {'.'.join(self._path)}",
                    json.dumps(content)[:_SHOWN],
                )
            )
        first = next(iter(answers.values()))
        if any(not np.array_equal(first, answer) for answer in answers.values()):
            where = ", ".join(".".join(path) or "the whole answer" for path in answers)
            raise EndpointError(
                Message(
                    "the answer of {} has probabilities in several places: {}. Name one with {answer_path}",
                    self.url,
                    where,
                )
            )
        return first

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        """Return it, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def _filled(template: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(template, dict):
        return {name: _filled(one, values) for name, one in template.items()}
    if isinstance(template, list):
        return [_filled(one, values) for one in template]
    return values.get(template, template) if isinstance(template, str) else template


def _places(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every object and list of an answer, with its path; not the lists of numbers that a list of lists has."""
    if isinstance(value, dict):
        yield path, value
        for name, one in value.items():
            yield from _places(one, (*path, name))
    elif isinstance(value, list):
        yield path, value
        if not all(isinstance(one, list | int | float) for one in value):
            for place, one in enumerate(value):
                yield from _places(one, (*path, str(place)))


def _probabilities(value: Any, count: int, classes: Sequence[str]) -> Floats | None:
    """Return probabilities (n, C) that a part of an answer holds; None for anything else."""
    rows: list[Any] = []
    if isinstance(value, list) and len(value) == count:
        rows = [_vector(one, classes) for one in value]
    if count == 1 and (not rows or rows[0] is None):
        rows = [_vector(value, classes)]
    if not rows and isinstance(value, list) and len(value) == count * len(classes):
        rows = [_vector(value[start : start + len(classes)], classes) for start in range(0, len(value), len(classes))]
    if not rows or any(row is None for row in rows):
        return None
    answers: Floats = np.array(rows, dtype=np.float64)
    sums = answers.sum(axis=1)
    if not np.isfinite(answers).all() or (answers < 0).any() or (np.abs(sums - 1) > _ROUNDING).any():
        return None
    return answers


def _vector(value: Any, classes: Sequence[str]) -> list[float] | None:
    """Return a row's probabilities: a list, an object with a number for each class, or an object that holds one."""
    if isinstance(value, dict):
        if set(value) == set(classes):
            value = [value[name] for name in classes]
        else:
            held = [one for one in (_vector(part, classes) for part in value.values()) if one is not None]
            return held[0] if len(held) == 1 else None
    numbers = isinstance(value, list) and len(value) == len(classes)
    if not numbers or any(isinstance(one, bool) or not isinstance(one, int | float) for one in value):
        return None
    return [float(one) for one in value]
