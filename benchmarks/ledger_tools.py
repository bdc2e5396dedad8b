"""The owner's tools on a large ledger: seconds, processor seconds and memory of verify, backup and restore.

Beside them, how long another client of the store waited at most for a PING, which is sent every millisecond, and the
longest call of the store, without what passes between calls: on a busy machine a PING waits for a processor, too.

The receipts are written as the ledger writes them, but by a pipeline of the store's own commands and not by a charge
each: one of twenty clients asks one question, every tenth of which another one has asked, eight receipts to a call of
the service. `verify` says whether the books that this makes are right. Each tool runs as a process of its own, as an
owner would start it.

Run: python -m benchmarks.ledger_tools [--receipts 1000000] [--folder FOLDER] [--without restore]
"""

import argparse
import asyncio
import hashlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import hiredis
from redis.asyncio import Redis

from benchmarks.serving.processes import free_port
from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import ChargeRequest, Ledger, key_digest
from dpserve.accounting.ledger.embedded import server_binary
from dpserve.accounting.ledger.receipts import Numbers, Receipt, charge_terms, entry_of_receipt, next_link
from dpserve.accounting.ledger.wire import LineageKeys
from dpserve.accounting.losses import Cost, GaussianLoss

LINEAGE = "lineage"
COST = Cost((GaussianLoss(1e-4),))
CLIENTS = [f"client-{number}" for number in range(20)]
_CALL = 8
_COMMANDS_AT_ONCE = 5000


def main() -> None:
    """Print a line for each tool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--receipts", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where all files go [default: the temporary folder]")
    parser.add_argument("--without", nargs="*", default=[], choices=["verify", "backup", "restore"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        backup = folder / "ledger.backup"
        with _store(folder / "first") as url:
            began = time.monotonic()
            asyncio.run(_load(url, options.receipts))
            print(f"{options.receipts:,} receipts written in {time.monotonic() - began:,.0f} s", flush=True)
            for tool, words in (("verify", ["verify"]), ("backup", ["backup", str(backup)])):
                if tool not in options.without:
                    _measure(folder, url, options.receipts, *words)
        if backup.exists() and "restore" not in options.without:
            print(f"the backup has {backup.stat().st_size / options.receipts:,.0f} bytes a receipt", flush=True)
            with _store(folder / "second") as url:
                _measure(folder, url, options.receipts, "restore", str(backup))


@contextmanager
def _store(folder: Path) -> Iterator[str]:
    """Run a durable store until the context ends."""
    folder.mkdir()
    port = free_port()
    words = [str(server_binary()), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    words += ["--appendonly", "yes", "--appendfsync", "always", "--no-appendfsync-on-rewrite", "no"]
    words += ["--auto-aof-rewrite-percentage", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert any(b"Ready to accept connections" in line for line in process.stdout)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.communicate()


def _measure(folder: Path, url: str, receipts: int, *words: str) -> None:
    """Run a command of `dpserve ledger`, and print what it took."""
    environment = os.environ | {"DPSERVE_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    asyncio.run(_note_slow_calls(url))
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "dpserve", "ledger", *words, "--ledger", url], env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with _Pings(url) as pings:
        said = process.stdout.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(said)
    ran, seconds = usage.ru_utime + usage.ru_stime, time.monotonic() - began
    print(
        f"{words[0]:<8} {seconds:8,.0f} s   {ran:8,.0f} s of a processor   {receipts / ran:10,.0f} receipts a second "
        f"of it   {usage.ru_maxrss / 1024:6,.0f} MiB at most   {1000 * pings.longest:6,.0f} ms for a PING   "
        f"{asyncio.run(_longest_call(url))}",
        flush=True,
    )


async def _note_slow_calls(url: str) -> None:
    """Let the store note calls of a millisecond or more from now on."""
    async with Redis.from_url(url, protocol=2) as store:
        await store.config_set("slowlog-log-slower-than", 1000)
        await store.config_set("slowlog-max-len", 1_000_000)
        await store.slowlog_reset()


async def _longest_call(url: str) -> str:
    """Return how long the longest call took since then, and its name."""
    async with Redis.from_url(url, protocol=2) as store:
        calls = await store.slowlog_get(1_000_000)
    longest = max(calls, key=lambda call: call["duration"], default=None)
    if longest is None:
        return "no call took 1 ms"
    named = b" ".join(longest["command"].split(b" ")[:2]).decode()
    return f"{longest['duration'] / 1000:,.0f} ms for {named}"


async def _load(url: str, count: int) -> None:
    """Write receipts as the ledger would, after one that it writes."""
    keys, budget = LineageKeys(LINEAGE), Budget.from_rho(8000, 1e-3, "gaussian")
    async with await Ledger.connect(url) as ledger, Redis.from_url(url, protocol=2) as store:
        await ledger.acting("owner").open_lineage(LINEAGE, budget, time=0.0)
        for client in CLIENTS:
            await ledger.acting("owner").add_client(LINEAGE, client, budget, key_digest(client), time=0.0)
        first = ChargeRequest(LINEAGE, CLIENTS[0], charge_terms("model", "gaussian", COST), (_question(0),), 1.5)
        (receipt,) = (await ledger.charge(first)).receipts
        named = await ledger.numbers(LINEAGE)
        numbers = {what: {name: number for number, name in those.items()} for what, those in named.items()}
        await store.config_set("appendfsync", "no")
        account, writes = await asyncio.to_thread(_write_receipts, url, count, receipt, numbers)
        for key, state in account.items():
            await store.hset(key, mapping=state)
        await store.hset(keys.services, receipt.service, f"1 {writes}")
        await store.config_set("appendfsync", "always")


def _write_receipts(url: str, count: int, first: Receipt, numbers: Numbers) -> tuple[dict[str, dict[str, int]], int]:
    """Write the receipts after the first; return the fields of the accounts, by key, and the service's writes."""
    keys, call, link = LineageKeys(LINEAGE), [first], first.link
    calls, asked, own, later = 1, 1, Counter({CLIENTS[0]: 1}), Counter[str]()
    with _Pipeline(url) as pipeline:
        for start in range(1, count, _CALL):
            link, call, calls = next_link(link, call), [], calls + 1
            for sequence in range(start + 1, min(start + _CALL, count) + 1):
                client = CLIENTS[sequence % len(CLIENTS)]
                own[client] += 1
                is_new = sequence % 10 > 0
                question = _question(sequence if is_new else sequence - 1)
                if is_new:
                    asked += 1
                    pipeline.send("HSET", keys.questions, question, numbers["client"][client])
                else:
                    later[client] += 1
                    pipeline.send("SADD", keys.client(client).questions, question)
                one = Receipt(
                    lineage=LINEAGE,
                    client=client,
                    sequence=sequence,
                    number=own[client],
                    terms=first.terms,
                    microseconds=1_500_000 + sequence,
                    questions=(question,),
                    lineage_questions=int(is_new),
                    service=first.service,
                    link=b"" if call else link,
                )
                id_, words = entry_of_receipt(one, numbers)
                pipeline.send("XADD", keys.receipts, id_, *words)
                pipeline.send("XADD", keys.client(client).receipts, f"{own[client]}-{sequence}", "", "")
                call.append(one)
    counts = {keys.account: (asked, count, asked)}
    counts |= {keys.client(client).account: (own[client], own[client], later[client]) for client in CLIENTS}
    return {
        key: {"spent": COST.picorho * releases, "seq": receipts, "asked": questions, f"n:{COST}": releases}
        for key, (releases, receipts, questions) in counts.items()
    }, calls


class _Pings:
    """Asks a store for a PING every millisecond, on a connection of its own, as long as the context lasts.

    `longest` is how many seconds it waited for a reply at most.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.longest = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def _ask(self) -> None:
        while not self._ended.wait(0.001):
            began = time.monotonic()
            self._socket.sendall(b"PING\r\n")
            self._socket.recv(64)
            self.longest = max(self.longest, time.monotonic() - began)


class _Pipeline:
    """Commands that are sent many at a time, and whose replies must be no errors."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port))
        self._reader = hiredis.Reader()
        self._waiting: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._socket.close()

    def send(self, *words: str | bytes | int) -> None:
        """Send a command, now or later."""
        self._waiting.append(hiredis.pack_command(words))
        if len(self._waiting) == _COMMANDS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self._socket.sendall(b"".join(self._waiting))
        for _ in self._waiting:
            while (reply := self._reader.gets()) is False:
                self._reader.feed(self._socket.recv(1 << 20))
            if isinstance(reply, Exception):
                raise reply
        self._waiting = []


def _question(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()[:16]


if __name__ == "__main__":
    main()
