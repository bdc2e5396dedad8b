"""Charges per second, and what a charge adds to a request, against what the store itself can do on this machine.

Figures are medians of rounds in which the contenders take turns, so that a busy moment hits all of them. The store is
the embedded one, on the folder's file system (`--folder`), with `appendfsync always`: every figure includes the disk.

- charges: 32 requests of one question, or of ten, in a call, as a service's batcher sends them;
- lone: one charge at a time, against one `INCR` at a time by the same library, with the processor time of the client
  and (where /proc tells it) of the store beside it, which other work on the machine and a slow disk hardly touch;
- growth: a lone charge after a thousand receipts against one after many;
- blocks: a lone charge, and a call of 32 requests, of a model of 1, 12 and 100 blocks, and the store's memory for
each of 1,000 blocks.

Run: python benchmarks/ledger.py [--rounds 5] [--receipts 200000]
"""

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from redis.asyncio import Redis

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import ChargeRequest, EmbeddedStore, Ledger, key_digest
from dpserve.accounting.ledger.receipts import charge_terms
from dpserve.accounting.losses import Cost, GaussianLoss

REQUESTS = 32
COST = Cost((GaussianLoss(1e-4),))

_questions = itertools.count()


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=200, help="calls of one figure in one round")
    parser.add_argument("--receipts", type=int, default=200_000)
    parser.add_argument("--folder", type=Path, help="where the store's files go [default: the temporary folder]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, EmbeddedStore(Path(folder) / "ledger") as store:
        asyncio.run(_measure(store.url, options.rounds, options.calls, options.receipts))


async def _measure(url: str, rounds: int, calls: int, receipts: int) -> None:
    figures: dict[str, list[float]] = {}
    async with (
        await Ledger.connect(url) as ledger,
        Redis.from_url(url, single_connection_client=True, protocol=2) as bare,
    ):
        server = (await bare.info("server"))["process_id"]
        blocks = {f"{count}-blocks": _blocks(count) for count in (1, 12, 100)}
        for lineage, count in (("few", 1000), ("many", receipts), *((name, 1000) for name in blocks)):
            budget = Budget.from_rho(8000, 1e-3, "gaussian")
            await ledger.acting("owner").open_lineage(lineage, budget, time=0.0)
            await ledger.acting("owner").add_client(lineage, "client", budget, key_digest(lineage), time=0.0)
            for block in blocks.get(lineage, ()):
                await ledger.acting("owner").open_block(lineage, block, budget, time=0.0)
            for _ in range(0, count, 500):
                await ledger.charge_batch([_asking(lineage, 1, blocks.get(lineage, ())) for _ in range(500)])
        contenders: dict[str, Callable[[], Awaitable[object]]] = {
            "a call of 32 requests of 1 question": lambda: _charge(ledger, "few", REQUESTS, 1),
            "a call of 32 requests of 10 questions": lambda: _charge(ledger, "few", REQUESTS, 10),
            "a lone charge after few receipts": lambda: _charge(ledger, "few", 1, 1),
            "a lone charge after many receipts": lambda: _charge(ledger, "many", 1, 1),
            "a lone INCR": lambda: bare.incr("benchmark"),
        }
        for name, its in blocks.items():
            contenders[f"a lone charge of {name}"] = partial(_charge, ledger, name, 1, 1, its)
            contenders[f"a call of 32 requests of {name}"] = partial(_charge, ledger, name, REQUESTS, 1, its)
        for _ in range(rounds):
            for what, call in contenders.items():
                own, store = time.process_time(), _processor_seconds(server)
                seconds = [await _time_call(call) for _ in range(calls)]
                ran = time.process_time() - own + _processor_seconds(server) - store
                figures.setdefault(f"us for {what}", []).append(1e6 * statistics.median(seconds))
                figures.setdefault(f"us for {what}, processors", []).append(1e6 * ran / calls)
        figures["bytes of the store for each of 1,000 blocks"] = [await _bytes_of_a_block(ledger, bare)]
    for what, values in figures.items():
        print(f"{what:<56} {statistics.median(values):10,.0f}   {min(values):,.0f} to {max(values):,.0f}")


def _blocks(count: int) -> tuple[str, ...]:
    return tuple(f"{number:04}" for number in range(count))


async def _bytes_of_a_block(ledger: Ledger, bare: Redis) -> float:
    """Return how much of the store's memory a block takes that has paid for something, with the act that opened it."""
    budget, names = Budget.from_rho(8000, 1e-3, "gaussian"), _blocks(1000)
    await ledger.acting("owner").open_lineage("1000-blocks", budget, time=0.0)
    await ledger.acting("owner").add_client("1000-blocks", "client", budget, key_digest("1000-blocks"), time=0.0)
    before = (await bare.info("memory"))["used_memory"]
    for block in names:
        await ledger.acting("owner").open_block("1000-blocks", block, budget, time=0.0)
    await _charge(ledger, "1000-blocks", 1, 1, names)
    return float((await bare.info("memory"))["used_memory"] - before) / len(names)


async def _charge(ledger: Ledger, lineage: str, requests: int, questions: int, blocks: tuple[str, ...] = ()) -> None:
    for charge in await ledger.charge_batch([_asking(lineage, questions, blocks) for _ in range(requests)]):
        if isinstance(charge, Exception):
            raise charge


async def _time_call(call: Callable[[], Awaitable[object]]) -> float:
    start = time.perf_counter()
    await call()
    return time.perf_counter() - start


def _asking(lineage: str, questions: int, blocks: tuple[str, ...] = ()) -> ChargeRequest:
    return ChargeRequest(
        lineage=lineage,
        client="client",
        terms=charge_terms("5f1d7e84a1c04c55b8ee1a6f1d3be3a1", "gaussian", COST, blocks=blocks),
        questions=tuple(next(_questions).to_bytes(16, "big") for _ in range(questions)),
        time=1.0,
    )


def _processor_seconds(process: int) -> float:
    """Return the seconds that a process has run for, on Linux; 0 elsewhere."""
    ran = [path.read_text().split()[0] for path in Path(f"/proc/{process}/task").glob("*/schedstat")]
    return sum(map(int, ran)) / 1e9


if __name__ == "__main__":
    main()
