"""Charges per second, and what a charge adds to a request, against what the store itself can do on this machine.

Figures are medians of rounds in which the contenders take turns, so that a busy moment hits all of them. The store is
the embedded one, on the folder's file system, with `appendfsync always`: every figure includes the disk.

- charges: 32 requests of one row at a time through one `Ledger`, against `redis-benchmark` calling the same function
  from 32 connections without pipelining (if there is one: `--redis-benchmark PATH`);
- rows: requests of ten rows, 32 at a time;
- latency: one charge at a time, against one `INCR` at a time on a bare connection of the same library;
- growth: the seconds of a charge in a lineage with few receipts against one with many.

Run: python benchmarks/ledger.py [--rounds 5] [--receipts 1000000] [--redis-benchmark PATH]
"""

import argparse
import asyncio
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import redis
from redis.asyncio import Redis

from accounting.budgets import Budget
from accounting.ledger import ChargeRequest, EmbeddedStore, Ledger, key_digest
from accounting.ledger.store import our_library
from accounting.ledger.wire import charge_call
from accounting.losses import Cost, GaussianLoss

CONCURRENCY = 32
COST = Cost((GaussianLoss(1e-4),))

_rows = itertools.count()


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--charges", type=int, default=3000, help="charges of one round")
    parser.add_argument("--receipts", type=int, default=1_000_000)
    parser.add_argument("--redis-benchmark", default=shutil.which("redis-benchmark"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, EmbeddedStore(Path(folder) / "ledger") as store:
        asyncio.run(_measure(store.url, options))


async def _measure(url: str, options: argparse.Namespace) -> None:
    async with await Ledger.connect(url) as ledger:
        await _open(ledger, "benchmark")
        figures: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            _add(figures, "charges/s, 32 requests of 1 row", await _throughput(ledger, options.charges, 1))
            if options.redis_benchmark:
                rate = await asyncio.to_thread(_redis_benchmark, url, options.redis_benchmark, options.charges)
                _add(figures, "charges/s, redis-benchmark, 32 connections", rate)
            _add(figures, "charged rows/s, 32 requests of 10 rows", await _throughput(ledger, options.charges, 10))
            _add(figures, "us for a lone charge", await _latency(ledger, "benchmark", 500))
            _add(figures, "us for a lone INCR", await _bare_latency(url, 500))
        medians = {what: statistics.median(values) for what, values in figures.items()}
        for what, value in medians.items():
            print(f"{what:<52} {value:12,.0f}   {min(figures[what]):,.0f} to {max(figures[what]):,.0f}")
        ours, theirs = (
            medians["charges/s, 32 requests of 1 row"],
            medians.get("charges/s, redis-benchmark, 32 connections"),
        )
        if theirs:
            print(f"{'charges: of redis-benchmark':<52} {ours / theirs:12.2f}")
        print(f"{'latency: times INCR':<52} {medians['us for a lone charge'] / medians['us for a lone INCR']:12.2f}")
        await _growth(ledger, url, options)


def _add(figures: dict[str, list[float]], what: str, value: float) -> None:
    figures.setdefault(what, []).append(value)


async def _open(ledger: Ledger, lineage: str) -> None:
    budget = Budget.from_rho(8000, 1e-3, "gaussian")
    await ledger.open_lineage(lineage, budget, time=0.0)
    await ledger.add_client(lineage, "client", budget, key_digest(lineage), time=0.0)


def _asking(lineage: str, rows: int) -> ChargeRequest:
    return ChargeRequest(
        lineage=lineage,
        client="client",
        model="5f1d7e84a1c04c55b8ee1a6f1d3be3a1",
        mechanism="gaussian",
        cost=COST,
        rows=tuple(str(next(_rows)).encode() for _ in range(rows)),
        time=1.0,
    )


async def _throughput(ledger: Ledger, charges: int, rows: int) -> float:
    """Return charged rows a second."""
    requests = [_asking("benchmark", rows) for _ in range(charges)]
    for request in requests:
        _ = request.row_ids  # hashing rows is the request's own work, whoever charges for it
    waiting = iter(requests)

    async def one() -> None:
        for request in waiting:
            await ledger.charge(request)

    start = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(CONCURRENCY)))
    return charges * rows / (time.perf_counter() - start)


async def _latency(ledger: Ledger, lineage: str, charges: int) -> float:
    """Return the median microseconds of a charge on its own."""
    seconds = []
    for _ in range(charges):
        request = _asking(lineage, 1)
        start = time.perf_counter()
        await ledger.charge(request)
        seconds.append(time.perf_counter() - start)
    return 1e6 * statistics.median(seconds)


async def _bare_latency(url: str, calls: int) -> float:
    client = Redis.from_url(url, single_connection_client=True, protocol=2)
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        await client.incr("benchmark")
        seconds.append(time.perf_counter() - start)
    await client.aclose()
    return 1e6 * statistics.median(seconds)


def _redis_benchmark(url: str, binary: str, charges: int) -> float:
    """Return calls a second of the function with one new row each; the row's id has a random number in it."""
    keys, arguments = charge_call([_asking("benchmark", 1)], remembered_rows=10**6, head=None)
    words = ["FCALL", "dpserve_charge", str(len(keys)), *keys, str(our_library().version), "nonce678", "", "0"]
    words += [argument.hex() if isinstance(argument, bytes) else str(argument) for argument in arguments]
    words[-3:] = ["row:" + "x" * 16 + "__rand_int__", "t" * 32, ""]  # 12 digits make it a row id of 32 bytes
    socket = url.removeprefix("unix://").partition("?")[0]
    command = [binary, "-s", socket, "-c", str(CONCURRENCY), "-n", str(charges), "-r", str(10**11), "--csv", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=True)
    return float(done.stdout.splitlines()[-1].split('","')[1].strip('"'))


async def _growth(ledger: Ledger, url: str, options: argparse.Namespace) -> None:
    """Print what a charge takes in a lineage with a thousand receipts and in one with many, taking turns."""
    for lineage, receipts in (("few", 1000), ("many", options.receipts)):
        await _open(ledger, lineage)
        _fill(url, lineage, receipts)
    times: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for lineage in ("few", "many"):
            _add(times, lineage, await _latency(ledger, lineage, 500))
    few, many = (statistics.median(times[lineage]) for lineage in ("few", "many"))
    print(f"{f'us for a charge after {1000:,} and {options.receipts:,} receipts':<52} {few:8.0f} {many:8.0f}")
    print(f"{'growth':<52} {many / few:12.2f}")


def _fill(url: str, lineage: str, receipts: int) -> None:
    """Charge `receipts` requests of one row in large batches, as fast as the store takes them."""
    with redis.Redis.from_url(url, protocol=2) as client:
        client.config_set("appendfsync", "no")
        for start in range(0, receipts, 500):
            requests = [_asking(lineage, 1) for _ in range(min(500, receipts - start))]
            keys, arguments = charge_call(requests, remembered_rows=10**7, head=_head(client, lineage))
            client.execute_command(
                "FCALL", "dpserve_charge", len(keys), *keys, our_library().version, "nonce678", "", 0, *arguments
            )
            if start % 100_000 == 0 and start:
                print(f"  {start:,} receipts", file=sys.stderr)
        client.config_set("appendfsync", "always")


def _head(client: "redis.Redis[bytes]", lineage: str):
    from accounting.ledger.wire import Head

    number, known = client.hmget(f"dpserve:{{{lineage}}}:account", "seq", "head")
    return Head(int(number or 0), known or bytes(32))


if __name__ == "__main__":
    main()
