"""Microseconds of processor that a question takes of the store and of its caller: alone, and by the batch.

A batch is a call of so many requests of one question, as a service's batcher sends them; the last one is of a single
request. Each is asked for questions that are new, and again for those that the call before paid for. The store is the
embedded one, with `appendfsync always`. Figures are medians of rounds in which the batches take turns; time in the
kernel, and so in writing, is part of them, and waiting for the disk is not. A lone `INCR` shows what a call costs that
does next to nothing.

Run: python -m benchmarks.ledger [--rounds 5] [--receipts 0]
"""

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from redis.asyncio import Redis

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import ChargeRequest, EmbeddedStore, Ledger, key_digest
from dpserve.accounting.ledger.receipts import charge_terms
from dpserve.accounting.losses import Cost, GaussianLoss

BATCHES = ((1, 1), (16, 1), (256, 1), (1, 256))
"""Requests of a call, and questions of each."""

_LINEAGE, _CLIENT = "benchmark", "client"
_BUDGET = Budget.from_rho(8000, 1e-3, "gaussian")
_TERMS = charge_terms("5f1d7e84a1c04c55b8ee1a6f1d3be3a1", "gaussian", Cost((GaussianLoss(1e-4),)))

_questions = itertools.count()


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--questions", type=int, default=5000, help="of one figure in one round, about")
    parser.add_argument("--receipts", type=int, default=0, help="that are there before")
    parser.add_argument("--folder", type=Path, help="where the store's files go [default: the temporary folder]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, EmbeddedStore(Path(folder) / "ledger") as store:
        asyncio.run(_measure(store.url, options.rounds, options.questions, options.receipts))


async def _measure(url: str, rounds: int, questions: int, receipts: int) -> None:
    figures: dict[str, list[tuple[float, float]]] = {}
    async with (
        await Ledger.connect(url) as ledger,
        Redis.from_url(url, single_connection_client=True, protocol=2) as bare,
    ):
        server = (await bare.info("server"))["process_id"]
        owner = ledger.acting("owner")
        await owner.open_lineage(_LINEAGE, _BUDGET, time=0.0)
        await owner.add_client(_LINEAGE, _CLIENT, _BUDGET, key_digest("key"), time=0.0)
        for _ in range(0, receipts, 500):
            await _charge(ledger, _batch(500, 1))

        async def measure(what: str, calls: Sequence[Callable[[], Awaitable[object]]], size: int) -> None:
            own, store = time.process_time(), _processor_seconds(server)
            for call in calls:
                await call()
            spent = _processor_seconds(server) - store, time.process_time() - own
            figures.setdefault(what, []).append((1e6 * spent[0] / size, 1e6 * spent[1] / size))

        for _ in range(rounds):
            for requests, each in BATCHES:
                size = requests * each
                batches = [_batch(requests, each) for _ in range(max(1, min(500, questions // size)))]
                what = f"{requests} of {each}"
                for asked in ("new", "asked before"):
                    calls = [lambda batch=batch: _charge(ledger, batch) for batch in batches]  # type: ignore[misc]
                    await measure(f"{what}, {asked}", calls, size * len(batches))
            await measure("INCR", [lambda: bare.incr("benchmark")] * 500, 500)
    print(f"{'us of a question':<24} {'store':>8} {'caller':>8}")
    for what, values in figures.items():
        store, caller = map(statistics.median, zip(*values, strict=True))
        print(f"{what:<24} {store:8.1f} {caller:8.1f}")


def _batch(requests: int, each: int) -> list[ChargeRequest]:
    return [
        ChargeRequest(
            lineage=_LINEAGE,
            client=_CLIENT,
            terms=_TERMS,
            questions=tuple(next(_questions).to_bytes(16, "big") for _ in range(each)),
            time=1.0,
            key_digest=key_digest("key"),
        )
        for _ in range(requests)
    ]


async def _charge(ledger: Ledger, batch: Sequence[ChargeRequest]) -> None:
    for charge in await ledger.charge_batch(batch):
        if isinstance(charge, Exception):
            raise charge


def _processor_seconds(process: int) -> float:
    """Return the seconds that a process has run for, on Linux; 0 elsewhere."""
    ran = [path.read_text().split()[0] for path in Path(f"/proc/{process}/task").glob("*/schedstat")]
    return sum(map(int, ran)) / 1e9


if __name__ == "__main__":
    main()
