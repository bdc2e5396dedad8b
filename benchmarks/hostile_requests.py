"""Requests of the worst kind known, of any size, to every route of a service; and what they take.

`python -m benchmarks.hostile_requests` asks each of them, and matches each regular expression with the longest text
that its repetitions read, at 1, 10 and 100 kB, and prints how often longer each size takes than the one before. 10 is
in proportion; what does not depend on the size has 1. The times are the shortest of several, of the
processor and this process alone.
"""

import asyncio
import json
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from starlette.routing import Route

from benchmarks.expressions import SEARCH, Automaton, expressions
from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import Ledger, key_digest, new_api_key
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.service.http.app import create_app
from dpserve.service.http.npy import npy_of
from dpserve.service.metered import MeteredPredictor
from dpserve.service.models import Models
from dpserve.training.features.maps import Identity
from dpserve.training.inputs.columns import (
    BooleanColumn,
    LevelsColumn,
    NumberColumn,
    TextColumn,
    TimeColumn,
    coordinates_of,
)
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head

SIZES = (1_000, 10_000, 100_000)
_REPEATS = 3
_COLUMNS = (
    NumberColumn(name="age", minimum=0, maximum=100),
    BooleanColumn(name="smokes"),
    LevelsColumn(name="town", levels=("A", "B"), unknown="coordinate"),
    TimeColumn(name="since", kind="datetime", minimum="2000-01-01", maximum="2030-01-01", parts=("time",)),
    TextColumn(name="note", buckets=8, of="characters", lengths=(1, 3)),
)


@dataclass(frozen=True)
class HostileRequest:
    """A request. kind: what is hostile about it."""

    kind: str
    path: str
    method: str = "POST"
    query: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    more: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


class Service:
    """An ASGI application, asked without a network."""

    def __init__(self, app: Any, key: str) -> None:
        """key: of a client that may ask everything."""
        self.app = app
        self._key = key

    def routes(self) -> Iterator[tuple[str, str]]:
        """Yield the method and the path of every route, with a model's name in it."""
        app = self.app
        while not hasattr(app, "router"):
            app = app._app
        for route in (*app.router.routes, *app.router.default.routes):
            if isinstance(route, Route):
                for method in sorted(route.methods or {"POST"}):
                    yield method, route.path

    async def ask(self, request: HostileRequest) -> int:
        """Return the status of the answer."""
        fields = {"authorization": f"Bearer {self._key}"} | dict(request.headers)
        headers = [(name.encode(), value.encode("latin-1")) for name, value in (*fields.items(), *request.more)]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.path,
            "raw_path": request.path.encode(),
            "root_path": "",
            "query_string": request.query,
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "state": {},
        }
        statuses: list[int] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": request.body, "more_body": False}

        async def send(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await self.app(scope, receive, send)
        return statuses[0]


@asynccontextmanager
async def service(folder: str) -> AsyncIterator[Service]:
    """Serve two models, one by names of numbers and one with columns of every kind. folder: of the ledger."""
    names, lower, upper = coordinates_of(_COLUMNS)
    tables = {
        "numbers": (tuple(map("x{}".format, range(4))), (0.0,) * 4, (1.0,) * 4, ()),
        "columns": (names, lower, upper, _COLUMNS),
    }
    key, budget = new_api_key(), Budget.from_rho(1000.0, 1e-6, "gaussian")
    async with Ledger.open(folder) as ledger:
        served = []
        for name, (features, low, high, columns) in tables.items():
            declaration = Declaration(features, low, high, ("no", "yes"), columns)
            features_map = Identity(lower=low, upper=high, clip_norm=1.0, bias=0.5, columns=columns)
            records = Records(np.array([low, high]), np.array([0, 1]), declaration, ())
            head = train_head(records, Recipe(name, features_map, 1.0), "lineage")
            served.append(MeteredPredictor(head, Gaussian(1e3), ledger, largest_batch=1000))
        await ledger.acting("owner").open_lineage("lineage", budget, time=time.time())
        await ledger.acting("owner").add_client("lineage", "client", budget, key_digest(key), time=time.time())
        models = Models(served, "numbers")
        yield Service(create_app(models, ledger), key)


def _bodies(size: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield a kind, a media type and a body of about `size` bytes."""
    count = size // 2
    names = [f"{number:x}" for number in range(size // 5)]
    row: dict[str, Any] = {"age": 1, "smokes": True, "town": "A", "since": "2020-01-01", "note": "a"}
    csv = {
        "a number's digits": ",".join(row) + "\n" + "1" * size + "x,1,A,2020-01-01,a",
        "digits in a header": "1" * size + "x\n1",
        "one name twice": "x0," * (size // 3) + "x0\n1",
        "other names": ",".join(names) + "\n1",
        "empty lines": "x0,x1,x2,x3\n" + "\n" * size,
        "many rows": "x0,x1,x2,x3\n" + "0,0,0,0\n" * (size // 8),
        "short rows": "x0,x1,x2,x3\n" + "0\n" * count,
        "a quoted value": 'x0,x1,x2,x3\n"' + '""' * count + '",0,0,0',
        "delimiters": "," * size,
        "spaces": " " * size + "\n1",
    }
    for kind, text in csv.items():
        yield f"CSV: {kind}", "text/csv", text.encode()
    for name in row:
        for value in ("1" * size, " " * size, "a" * size, "2020-" * (size // 5), "0." + "0" * size, "a " * count):
            odd = json.dumps({"instances": [row | {name: value}]})
            yield f"JSON: {name} = {value[:6]!r}...", "application/json", odd.encode()
    nested = "[" * count + "]" * count
    said = {
        "nested": nested,
        "nested instances": f'{{"instances": {nested}}}',
        "a whole number": f'{{"instances": [[{"1" * size}]]}}',
        "an exponent": f'{{"instances": [[1e{"9" * size}]]}}',
        "a small number": f'{{"instances": [[0.{"0" * size}1, 0, 0, 0]]}}',
        "infinite numbers": f'{{"instances": [[{"1e400," * (size // 6)}0]]}}',
        "an unknown field": f'{{"{"a" * size}": 1}}',
        "a field like a place": f'{{"{" - at `$.a[1]" * (size // 13)}": 1}}',
        "one field again": "{" + ",".join(['"model": "m"'] * (size // 13)) + "}",
        "other columns": json.dumps({"instances": [dict.fromkeys(names, 1)]}),
        "empty rows": json.dumps({"instances": [[]] * (size // 4)}),
        "empty objects": json.dumps({"instances": [{}] * (size // 4)}),
        "a model's name": json.dumps({"instances": [[0]], "model": "m" * size}),
        "escapes": '{"instances": [[0]], "model": "' + r"\u0000" * (size // 6) + '"}',
        "no end": '{"instances": [[' + "0," * count,
        "split: one name": json.dumps({"dataframe_split": {"columns": ["a"] * (size // 5), "data": [[1]]}}),
        "split: other names": json.dumps({"dataframe_split": {"columns": names, "data": [[1]]}}),
        "split: numbers as names": json.dumps({"dataframe_split": {"columns": [*range(size // 6)], "data": [[1]]}}),
        "split: an index": json.dumps({"dataframe_split": {"index": [1] * count, "data": [[0.0] * 4]}}),
        "inputs: columns": json.dumps({"inputs": {name: [1] for name in names}}),
        "inputs: a column": json.dumps({"inputs": {"x0": [1] * count}}),
        "inputs: no values": json.dumps({"inputs": {name: [] for name in names}}),
        "inputs: missing values": '{"inputs": [[' + "NaN," * (size // 4) + "0]]}",
        "params": json.dumps({"inputs": [[0]], "params": dict.fromkeys(names, 1)}),
    }
    for kind, text in said.items():
        yield f"JSON: {kind}", "application/json", text.encode()
    tensor = {"name": "instances", "shape": [1, 4], "datatype": "FP64", "data": [0.0] * 4}
    tensors: dict[str, Any] = {
        "a shape": {"inputs": [tensor | {"shape": [1] * count}]},
        "flat": {"inputs": [tensor | {"data": [0] * count, "shape": [1, count]}]},
        "rows": {"inputs": [tensor | {"data": [[0]] * (size // 4), "shape": [size // 4, 1]}]},
        "inputs": {"inputs": [tensor] * (size // 80)},
        "one output": {"inputs": [tensor], "outputs": [{"name": "probabilities"}] * (size // 25)},
        "other outputs": {"inputs": [tensor], "outputs": [{"name": name} for name in names[: size // 25]]},
        "parameters": {"inputs": [tensor], "parameters": dict.fromkeys(names, 1)},
    }
    for kind, content in tensors.items():
        yield f"tensors: {kind}", "application/json", json.dumps(content).encode()
    nulls = b"\x93NUMPY\x02\x00" + size.to_bytes(4, "little")
    yield "array: numbers", "application/x-npy", npy_of(np.zeros((max(1, size // 32), 4)))
    yield "array: a header", "application/x-npy", nulls + b"{'descr': '<f8'" + b" " * size
    yield "array: digits", "application/x-npy", nulls + b"{'shape': (" + b"1" * size


_FIELDS = {
    "accept": (
        "application/x-npy;q=0." + "0",
        "application/x-npy;" + " ",
        "application/x-npy;q=0,",
        "application/x-npy,;",
    ),
    "authorization": ("Bearer .", "Bearer a", "Bearer  ", "a "),
    "content-type": ("text/csv;", "a", " ", "application/json;charset="),
    "content-encoding": ("gzip,",),
    "idempotency-key": ("k", " "),
    "inference-header-content-length": ("1", " "),
    "prefer": ("wait ", "wait=1", ",", "wait=1,", "wait=1.1", " "),
    "x-request-id": ("a", "-", " "),
    "traceparent": ("00-", "0"),
    "cookie": ("a=b;",),
    "if-none-match": ('"a",', "W/"),
    "origin": ("http://",),
    "host": ("a.", "a"),
    "expect": ("100-continue,",),
    "forwarded": ("for=a,",),
    "x-forwarded-for": ("1.1.1.1,",),
}


def _heads(size: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a kind, and what of a request is about `size` bytes long."""
    for name, starts in _FIELDS.items():
        for start in starts:
            end = start[-2:] if len(start) > 2 else start
            yield f"{name}: {start}...", {"headers": {name: (start + end * size)[:size]}}
        yield f"{name} again and again", {"more": ((name, "a"),) * (size // (len(name) + 5))}
    yield "many headers", {"more": tuple((f"x-{number}", "a") for number in range(size // 10))}
    for text in (
        "&",
        "clip=a&",
        "dry_run=true&",
        "a=b&",
        "a",
        "%41",
        "+",
        "after=1",
        "count=1&",
        "to=onnx&",
        "=",
        ";",
    ):
        yield f"query: {text}...", {"query": (text.encode() * size)[:size]}
    yield "query: many names", {"query": b"&".join(b"%x=1" % number for number in range(size // 7))}


def hostile_requests(service: Service, size: int) -> Iterator[HostileRequest]:
    """Yield requests of about `size` bytes: heads to every route, and bodies to every one that takes some."""
    body = json.dumps({"instances": [[0.0] * 4]}).encode()
    for method, path in service.routes():
        named = re.sub(r"{name(:path)?}", "numbers", re.sub(r"{version}", "1", path))
        for kind, parts in _heads(size):
            yield HostileRequest(f"{method} {path}, {kind}", named, method, **{"body": body, **parts})
        if "{" in path:
            for start in ("a", "%2f", ".", "a/", "/"):
                long = re.sub(r"{[^}]*}", lambda _, start=start: (start * size)[:size], path)  # type: ignore[misc]
                yield HostileRequest(f"{method} {path}, a path of {start}...", long, method, body=body)
        if method == "POST":
            for name in ("numbers", "columns") if "{name}" in path else ("",):
                for kind, media, content in _bodies(size):
                    asked = re.sub(r"{version}", "1", path.replace("{name}", name))
                    headers = {"content-type": media}
                    yield HostileRequest(f"{method} {path} {name}, {kind}", asked, headers=headers, body=content)
    yield HostileRequest("an unknown path", "/" + "a/" * (size // 2), "GET")


def texts(size: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each expression of Python's, and what matches it with a text of about `size` characters."""
    for expression in expressions():
        if not expression.where.partition(":")[0].endswith(".py"):
            continue
        compiled = re.compile(expression.pattern, expression.flags)
        match = compiled.search if expression.how == SEARCH else compiled.fullmatch
        for before, again in Automaton(expression).longest_ways():
            for end in ("", "\0", "x"):
                text = before + again * (size // len(again)) + end
                yield (
                    f"{expression.where} {(before + again)[:20]!r}...{end!r}",
                    lambda text=text, match=match: match(text),
                )  # type: ignore[misc]


async def _requests_measured() -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with service(folder) as asked:
            for size in SIZES:
                for request in hostile_requests(asked, size):
                    times = []
                    for _ in range(_REPEATS):
                        began = time.process_time()
                        await asked.ask(request)
                        times.append(time.process_time() - began)
                    found.setdefault(request.kind, []).append(min(times))
    return found


def _texts_measured() -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for size in SIZES:
        for kind, match in texts(size):
            times = []
            for _ in range(_REPEATS):
                began = time.process_time()
                match()
                times.append(time.process_time() - began)
            found.setdefault(kind, []).append(min(times))
    return found


def main() -> None:
    """Print the requests and expressions that grow most, and those that take longest."""
    measures = {"expressions": _texts_measured, "requests": lambda: asyncio.run(_requests_measured())}
    for what, measure in measures.items():
        measured = measure()
        print(f"{len(measured)} {what}; milliseconds at 1, 10 and 100 kB, and how often longer the last takes")
        growth = sorted(measured.items(), key=lambda each: -each[1][2] / each[1][1])
        longest = sorted(measured.items(), key=lambda each: -each[1][2])
        for title, listed in (("those that grow most", growth), ("those that take longest", longest)):
            print(f" {title}:")
            for kind, times in listed[:8]:
                said = " ".join(f"{1e3 * each:9.3f}" for each in times)
                print(f"  {said}  x{times[1] / times[0]:5.1f} x{times[2] / times[1]:5.1f}  {kind}")


if __name__ == "__main__":
    main()
