"""Charges per second, and what a charge adds to a request, against what the store itself can do on this machine.

Figures are medians of rounds in which the contenders take turns, so that a busy moment hits all of them. The store is
the embedded one, on the folder's file system (`--folder`), with `appendfsync always`: every figure includes the disk.

- charges: 32 requests of one row at a time through one `Ledger`, against `redis-benchmark` calling the same function
  from 32 connections without pipelining (if there is one: `--redis-benchmark PATH`). It cannot foresee a hash,
  so the store computes SHA-256 for it in Lua; `blind` is a `Ledger` that does not foresee either, and so asks for the
  same work: one new row a charge, the same keys, no service's journal, the hash left to the store;
- rows: requests of ten rows, 32 at a time;
- latency: one charge at a time, against one `INCR` at a time on a bare connection of the same library, with the
  processor time of the client and (where /proc tells it) of the store beside it, which other work on the machine and a
  slow disk hardly touch;
- growth: a charge in a lineage with a thousand receipts against one with many.

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
from collections.abc import Sequence
from pathlib import Path

import redis
from accounting.ledger.heads import Head
from redis.asyncio import Redis

from accounting.budgets import Budget
from accounting.ledger import ChargeRequest, EmbeddedStore, Ledger, key_digest
from accounting.ledger.store import Reply, our_library
from accounting.ledger.wire import LineageKeys, charge_call
from accounting.losses import Cost, GaussianLoss

CONCURRENCY = 32
FORESEEING = "charges/s, 32 requests of 1 row"
BLIND = "charges/s, 32 requests of 1 row, blind"
THEIRS = "charges/s, redis-benchmark, 32 connections"
CHARGE, INCR = "us for a lone charge", "us for a lone INCR"
COST = Cost((GaussianLoss(1e-4),))

_rows = itertools.count()


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--charges", type=int, default=3000, help="charges of one round")
    parser.add_argument("--receipts", type=int, default=1_000_000)
    parser.add_argument("--redis-benchmark", default=shutil.which("redis-benchmark"))
    parser.add_argument("--folder", type=Path, help="where the store's files go [default: the temporary folder]")
    parser.add_argument("--only", choices=("rates", "growth"), help="measure nothing else")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, EmbeddedStore(Path(folder) / "ledger") as store:
        asyncio.run(_measure(store.url, options))


async def _measure(url: str, options: argparse.Namespace) -> None:
    async with await Ledger.connect(url) as ledger:
        if options.only != "growth":
            await _open(ledger, "benchmark")
            await _rates(ledger, url, options)
        if options.only != "rates":
            await _growth(ledger, url, options)


async def _rates(ledger: Ledger, url: str, options: argparse.Namespace) -> None:
    figures: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        _add(figures, FORESEEING, await _throughput(ledger, options.charges, 1))
        if options.redis_benchmark:
            rate = await asyncio.to_thread(_redis_benchmark, url, options.redis_benchmark, options.charges)
            _add(figures, THEIRS, rate)
        async with await _Blind.connect(url) as blind:
            _add(figures, BLIND, await _throughput(blind, options.charges, 1))
        with redis.Redis.from_url(url, protocol=2) as client:
            server = client.info("server")["process_id"]
        requests = [_asking("benchmark", 10) for _ in range(options.charges)]
        own, store = time.process_time(), _processor_seconds(server)
        _add(figures, "charged rows/s, 32 requests of 10 rows", await _charge_all(ledger, requests))
        ran = time.process_time() - own + _processor_seconds(server) - store
        _add(figures, "us of both processors for such a row", 1e6 * ran / (10 * options.charges))
        await _latencies(ledger, url, figures, 500)
    medians = {what: statistics.median(values) for what, values in figures.items()}
    for what, value in medians.items():
        print(f"{what:<52} {value:12,.0f}   {min(figures[what]):,.0f} to {max(figures[what]):,.0f}")
    ratios = {
        "charges: of redis-benchmark, the same work": (BLIND, THEIRS),
        "charges: of redis-benchmark, hashes foreseen": (FORESEEING, THEIRS),
        "a lone charge: times INCR": (CHARGE, INCR),
        "processor time of client and store: times INCR": (f"{CHARGE}, processors", f"{INCR}, processors"),
    }
    for what, (ours, other) in ratios.items():
        if other in figures:
            each = [one / another for one, another in zip(figures[ours], figures[other], strict=True)]
            print(f"{what:<52} {statistics.median(each):12.2f}   {min(each):.2f} to {max(each):.2f}")


class _Blind(Ledger):
    """Foresees no hash, so that the store computes them all."""

    async def _send_charges(self, lineage: str, requests: Sequence[ChargeRequest]) -> tuple[Reply, Head, Head]:
        call = charge_call(requests, remembered_rows=self._remembered_rows, head=None)
        return await self._store.call(lineage, "charge", call.keys, call.arguments), Head(), Head()


async def _latencies(ledger: Ledger, url: str, figures: dict[str, list[float]], calls: int) -> None:
    """Time charges and INCRs one after the other, and add up the processor time that either takes."""
    async with Redis.from_url(url, single_connection_client=True, protocol=2) as client:
        server = (await client.info("server"))["process_id"]
        for what, one in (
            (CHARGE, lambda: _latency(ledger, "benchmark", calls)),
            (INCR, lambda: _bare_latency(client, calls)),
        ):
            own, store = time.process_time(), _processor_seconds(server)
            _add(figures, what, await one())
            own, store = time.process_time() - own, _processor_seconds(server) - store
            _add(figures, f"{what}, processors", 1e6 * (own + store) / calls)


def _processor_seconds(process: int) -> float:
    """Return the seconds that a process has run for, on Linux; 0 elsewhere."""
    ran = [path.read_text().split()[0] for path in Path(f"/proc/{process}/task").glob("*/schedstat")]
    return sum(map(int, ran)) / 1e9


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
    return await _charge_all(ledger, [_asking("benchmark", rows) for _ in range(charges)])


async def _charge_all(ledger: Ledger, requests: list[ChargeRequest]) -> float:
    for request in requests:
        _ = request.row_ids  # hashing rows is the request's own work, whoever charges for it
    waiting = iter(requests)

    async def one() -> None:
        for request in waiting:
            await ledger.charge(request)

    start = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(CONCURRENCY)))
    return sum(len(request.rows) for request in requests) / (time.perf_counter() - start)


async def _latency(ledger: Ledger, lineage: str, charges: int) -> float:
    """Return the median microseconds of a charge on its own."""
    seconds = []
    for _ in range(charges):
        request = _asking(lineage, 1)
        start = time.perf_counter()
        await ledger.charge(request)
        seconds.append(time.perf_counter() - start)
    return 1e6 * statistics.median(seconds)


async def _bare_latency(client: Redis, calls: int) -> float:
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        await client.incr("benchmark")
        seconds.append(time.perf_counter() - start)
    return 1e6 * statistics.median(seconds)


def _redis_benchmark(url: str, binary: str, charges: int) -> float:
    """Return calls a second of the function with one new row each; the row's id has a random number in it."""
    call = charge_call([_asking("benchmark", 1)], remembered_rows=10**6, head=None)
    library = our_library()
    words = [
        "FCALL",
        f"{library.name}_charge",
        str(len(call.keys)),
        *call.keys,
        str(library.version),
        "nonce678",
        "",
        "0",
    ]
    words += [argument.hex() if isinstance(argument, bytes) else str(argument) for argument in call.arguments]
    words[-4:] = ["row:" + "x" * 16 + "__rand_int__", "t" * 32, "", ""]  # 12 digits make it a row id of 32 bytes
    socket = url.removeprefix("unix://").partition("?")[0]
    command = [binary, "-s", socket, "-c", str(CONCURRENCY), "-n", str(charges), "-r", str(10**11), "--csv", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=True)
    return float(done.stdout.splitlines()[-1].split('","')[1].strip('"'))


async def _growth(ledger: Ledger, url: str, options: argparse.Namespace) -> None:
    """Print what a charge takes in a lineage with a thousand receipts and in one with many, taking turns."""
    for lineage, receipts in (("few", 1000), ("many", options.receipts)):
        await _open(ledger, lineage)
        _fill(url, lineage, receipts)
    with redis.Redis.from_url(url, protocol=2) as client:
        server = client.info("server")["process_id"]
    times: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for lineage in ("few", "many"):
            ran = _processor_seconds(server)
            _add(times, lineage, await _latency(ledger, lineage, 500))
            _add(times, f"{lineage}, store's processor", 1e6 * (_processor_seconds(server) - ran) / 500)
    for what in ("", ", store's processor"):
        few, many = times[f"few{what}"], times[f"many{what}"]
        growth = statistics.median(after / before for after, before in zip(many, few, strict=True) if before)
        print(
            f"us for a charge{what} after 1,000 and {options.receipts:,} receipts: {statistics.median(few):.0f} and "
            f"{statistics.median(many):.0f}; median ratio {growth:.2f}"
        )


_FILLER = """
local own, client = KEYS[1], KEYS[2]
local before, hash = redis.call('HGET', KEYS[3], 'seq'), string.rep('h', 32)
for number = before + 1, before + ARGV[1] do
  local id = string.format('%.0f-0', number)
  redis.call('XADD', own, id, 'lineage', ARGV[2], 'client', 'client', 'model', ARGV[3], 'mechanism', 'gaussian',
    'cost', ARGV[4], 'price', ARGV[5], 'rows', '1', 'total', ARGV[5], 'time', '1.0', 'previous', hash, 'hash', hash)
  redis.call('XADD', client, id, 'lineage', ARGV[2])
  redis.call('HSET', KEYS[4], string.format('%032d', number), '?0:' .. number)
end
redis.call('HSET', KEYS[3], 'seq', string.format('%.0f', before + ARGV[1]), 'head', hash)
return true
"""


def _fill(url: str, lineage: str, receipts: int) -> None:
    """Give the lineage receipts as charges write them, but for the hashes; faster than to charge for them."""
    asked = _asking(lineage, 1)
    keys = LineageKeys(lineage)
    named = [keys.receipts, keys.client("client").receipts, keys.account, keys.rows]
    words = [lineage, asked.model, asked.terms.text, asked.terms.price]
    with redis.Redis.from_url(url, protocol=2, socket_timeout=60) as client:
        client.config_set("appendfsync", "no")
        for start in range(0, receipts, 1000):
            client.execute_command("EVAL", _FILLER, len(named), *named, min(1000, receipts - start), *words)
            if start % 100_000 == 0 and start:
                print(f"  {start:,} receipts", file=sys.stderr)
        client.config_set("appendfsync", "always")


if __name__ == "__main__":
    main()
