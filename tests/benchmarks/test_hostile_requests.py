"""Work for a request grows no faster than the request: by what is called, and by what the source searches in loops."""

import ast
import asyncio
import sys
import threading
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.hostile_requests import HostileRequest, hostile_requests, service

SMALL, LARGE = 400, 4_000
SLACK = 2_000
"""Calls that do not depend on a request's size, such as those of a page of the ledger that is read now and then."""


class Calls:
    """Counts the calls, of Python's functions and of C's, in all threads that are started within the block."""

    def __enter__(self):
        self.count = 0
        threading.setprofile(self._call)
        sys.setprofile(self._call)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        threading.setprofile(None)

    def _call(self, frame, event, argument):
        self.count += event in ("call", "c_call")


def chosen(requests):
    """Bodies to each codec's first route, and heads to a route of each application: the others have the same code."""
    asked = (
        "POST /predict",
        "POST /v2/models/{name}/infer",
        "POST /models/{name}/predict columns",
    )
    heads = ("POST /predict,", "GET /budget/receipts,")
    for request in requests:
        by_columns = request.kind.startswith("POST /models/{name}/predict columns, JSON:")
        if request.kind.startswith(heads) or by_columns or any(request.kind.startswith(f"{each} ") for each in asked):
            yield request


async def counted(folder, step):
    found, paths = {}, set()
    async with service(folder) as asked:
        for size in (SMALL, LARGE):
            for request in islice(chosen(hostile_requests(asked, size)), 0, None, step):
                if request.path not in paths:  # the first time it is asked, things are made that stay
                    paths.add(request.path)
                    await asked.ask(HostileRequest("first", request.path, request.method))
                with Calls() as calls:
                    status = await asked.ask(request)
                found.setdefault(request.kind, []).append((calls.count, status))
    return found


@pytest.mark.parametrize(
    ("step", "least"), [(10, 30), pytest.param(1, 300, marks=pytest.mark.slow)], ids=["one in ten", "all"]
)
def test_calls_grow_no_faster_than_the_request(tmp_path, step, least):
    found = asyncio.run(counted(str(tmp_path / "ledger"), step))
    assert len(found) > least
    allowed = 1.1 * LARGE / SMALL
    assert {kind: both for kind, both in found.items() if both[1][0] > allowed * both[0][0] + SLACK} == {}
    assert {kind: both for kind, both in found.items() if any(status >= 500 for _, status in both)} == {}


ROOT = Path(__file__).resolve().parents[2]
ON_THE_WAY = [
    *sorted((ROOT / "service").rglob("*.py")),
    *sorted((ROOT / "training" / "inputs").glob("*.py")),
]
LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def searches(tree):
    """Yield the lines of `count`, of `index`, and of `in` a list that is made there, within a loop."""
    for loop in ast.walk(tree):
        if not isinstance(loop, LOOPS):
            continue
        over = loop.iter if isinstance(loop, ast.For) else getattr(loop, "generators", [None])[0]
        over = getattr(over, "iter", over)
        if isinstance(over, ast.Name) and over.id.isupper():
            continue  # a constant: of few
        first = {id(each) for each in ast.walk(over)} if over is not None else set()
        for node in ast.walk(loop):
            if id(node) in first:
                continue
            called = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
            if called in ("count", "index") and node.args and not isinstance(node.args[0], ast.Constant):
                yield node.lineno
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                yield from [node.lineno] * isinstance(node.comparators[0], ast.ListComp)


@pytest.mark.parametrize("path", ON_THE_WAY, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_on_a_requests_way_searches_a_list_for_each_element_of_another(path):
    assert [*searches(ast.parse(path.read_text("utf-8")))] == []


@pytest.mark.parametrize(
    "text",
    [
        "next(name for name in names if names.count(name) > 1)",
        "for name in names:\n    places.append(head.index(name))",
        "[name for name in names if name not in [other.name for other in others]]",
    ],
)
def test_a_search_in_a_loop_is_noticed(text):
    assert [*searches(ast.parse(text))]
