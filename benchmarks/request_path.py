"""Functions of ours that one prediction enters: calls, the files they lie in, and changes from one file to another.

A reader follows a request through these files, and each call costs the event loop its time. The figures are counts of
one request over HTTP on a connection that has asked before, and do not depend on the machine.
`tests/benchmarks/test_request_path.py` holds them.

Run: python -m benchmarks.request_path [--calls]
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import uvicorn

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import Ledger, key_digest, new_api_key
from dpserve.accounting.ledger.purchases import buy
from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.mechanisms.registry import priced
from dpserve.service.http.app import create_app
from dpserve.service.listener import Application, ServiceSettings, bind, server_config
from dpserve.service.metered import MeteredPredictor
from dpserve.service.models import Models
from dpserve.service.pay_once import PayOncePredictor
from dpserve.service.predictor import Predictor
from dpserve.training.features.maps import Identity
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.bundle import CertifiedHead
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.weights.train import release_weights
from dpserve.training.purchases import model_purchase

_ROOT = Path(__file__).parents[1]
_PACKAGE = str(_ROOT / "dpserve") + "/"
_TRIES = 5
"""Requests that are traced: the shortest trace is free of what a timer of the service did meanwhile."""

_BUDGET = Budget.from_rho(10.0, 1e-6, "gaussian")

_LINEAGE = "colours"
METERED, PAY_ONCE = "metered", "pay-once"


@dataclass
class Trace:
    """The functions of ours that one request entered, in order: a file and a name in it."""

    entered: list[tuple[str, str]] = field(default_factory=list)

    @property
    def calls(self) -> int:
        """Number of functions that were entered; one that goes on after it has waited was entered before."""
        return len(self.entered)

    @property
    def files(self) -> int:
        """In how many files they lie."""
        return len({file for file, _ in self.entered})

    @property
    def changes(self) -> int:
        """Number of functions in another file than the one before."""
        return sum(one[0] != other[0] for one, other in zip(self.entered, self.entered[1:], strict=False))

    def __str__(self) -> str:
        """Return the figures as a line."""
        return f"{self.calls} calls in {self.files} files, {self.changes} changes of file"


@contextmanager
def _tracing() -> Iterator[Trace]:
    """Note what this thread enters of ours for as long as the block lasts."""
    trace = Trace()
    names: dict[str, str] = {}
    met: set[FrameType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        del argument
        if event != "call" or frame in met:  # it goes on after it has waited
            return
        met.add(frame)
        path = frame.f_code.co_filename
        if path not in names:
            names[path] = str(Path(path).resolve().relative_to(_ROOT)) if path.startswith(_PACKAGE) else ""
        if names[path]:
            trace.entered.append((names[path], frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        yield trace
    finally:
        sys.setprofile(None)
        met.clear()  # or what these frames hold is in use for ever: simdjson's parser among it


@dataclass(frozen=True)
class _Asking:
    """A connection on which one client asks for one row after the other."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    key: str
    numbers: Iterator[int]

    async def trace(self) -> Trace:
        """Return what asking for a row that is new enters."""
        content = json.dumps({"instances": [[next(self.numbers) / 1000, 0.5, 0.5, 0.5]]}).encode()
        head = (
            f"POST /predict HTTP/1.1\r\nHost: localhost\r\nUser-Agent: trace\r\nAccept: */*\r\n"
            f"Authorization: Bearer {self.key}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        )
        with _tracing() as trace:
            self.writer.write(head.encode() + b"\r\n" + content)
            answer = await self.reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await self.reader.readexactly(length)
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"the row was refused: {answer!r}")
        return trace


@asynccontextmanager
async def _asking(folder: Path, make: Callable[[Ledger], Awaitable[Predictor]]) -> AsyncIterator[_Asking]:
    """Serve a model on this event loop as `dpserve serve` does, with a ledger in `folder`; give a client of it."""
    async with Ledger.open(folder / "ledger", journals=folder / "journals") as ledger:
        await ledger.acting("owner").open_lineage(_LINEAGE, _BUDGET, time=time.time())
        await ledger.join(_LINEAGE)
        predictor = await make(ledger)
        key, budget = new_api_key(), _BUDGET
        await ledger.acting("owner").add_client(predictor.lineage, "tracer", budget, key_digest(key), time=time.time())

        @asynccontextmanager
        async def opening() -> AsyncIterator[Any]:
            yield create_app(Models([predictor]), ledger)
            await predictor.drain()

        application = Application(opening())
        server = uvicorn.Server(server_config(lambda: application, ServiceSettings()))
        with bind() as listening:
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            try:
                yield _Asking(reader, writer, key, iter(range(1000)))
            finally:
                writer.close()
                server.should_exit = True
                await serving


def _head() -> CertifiedHead:
    generator = np.random.default_rng(0)
    X, y = generator.random((120, 4)), generator.integers(3, size=120)
    declaration = Declaration(("a", "b", "c", "d"), (0.0,) * 4, (1.0,) * 4, ("red", "green", "blue"))
    feature_map = Identity(lower=declaration.lower, upper=declaration.upper, clip_norm=1.0, bias=0.0)
    return train_head(Records(X, y, declaration, ()), Recipe("colours", feature_map, 1.0), _LINEAGE)


def traces(folder: Path) -> dict[str, Trace]:
    """Return what a request for one new row enters: of a metered model, and of a pay-once model that is held.

    folder: for the ledgers.
    """
    head = _head()
    released = release_weights(head, 10**11, _LINEAGE, SystemRandomness())

    async def metered(ledger: Ledger) -> Predictor:
        return MeteredPredictor(head, priced("gaussian", "rho:1e-6", 3), ledger, largest_batch=10)

    async def paid_once(ledger: Ledger) -> Predictor:
        await buy(ledger, [model_purchase(released.certificate)], by="a benchmark")
        return PayOncePredictor(released, ledger, largest_batch=10)

    async def shortest(name: str, make: Callable[[Ledger], Awaitable[Predictor]]) -> Trace:
        async with _asking(folder / name, make) as asking:
            await asking.trace()
            return min([await asking.trace() for _ in range(_TRIES)], key=lambda trace: trace.calls)

    return {name: asyncio.run(shortest(name, make)) for name, make in ((METERED, metered), (PAY_ONCE, paid_once))}


def main() -> None:
    """Print the figures, and with --calls every function in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", action="store_true", help="list the functions in order")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = traces(Path(name))
    for which, trace in found.items():
        print(f"{which}: {trace}")
        if options.calls:
            for file, function in trace.entered:
                print(f"  {file:45}{function}")


if __name__ == "__main__":
    main()
