"""The stores that the ledger's tests run against, one of each kind for each test process."""

import hashlib
import itertools
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from msgspec.structs import asdict

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import (
    Charge,
    Chargeable,
    ChargeRequest,
    EmbeddedStore,
    Idempotency,
    Ledger,
    LedgerError,
    LedgerUnavailable,
    key_digest,
)
from dpserve.accounting.ledger.embedded import server_binary
from dpserve.accounting.ledger.journal import Acknowledged, open_journals
from dpserve.accounting.ledger.receipts import Receipt, charge_terms
from dpserve.accounting.losses import Cost, GaussianLoss

DELTA = 1e-4
COST = Cost((GaussianLoss(0.5),))
DURABLE = {"appendonly": "yes", "appendfsync": "always"}

BINARY = os.environ.get("DPSERVE_TEST_STORE") or str(server_binary())
"""The server of every store that is not embedded: set DPSERVE_TEST_STORE to try another Redis or Valkey."""

_names = itertools.count()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_server(folder: Path, binary: str, **settings: str) -> Iterator[str]:
    """A server on a free TCP port, as an owner would run it, until the context ends; yields its URL."""
    words = [binary, "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    for name, value in settings.items():
        words += [f"--{name.replace('_', '-')}", value]
    process, port = _started(words)
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.communicate()


def _started(words: list[str]) -> tuple["subprocess.Popen[bytes]", int]:
    said = b""
    for _ in range(5):  # a port that was free may be taken by the time it is used
        port = free_port()
        process = subprocess.Popen([*words, "--port", str(port)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        for line in process.stdout:
            if b"Ready to accept connections" in line:
                return process, port
            said = line
        process.communicate()
    raise RuntimeError(f"the server did not start: {said.decode()}")


@pytest.fixture(scope="session")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an embedded store; `test_contract` has what every kind of store holds."""
    with EmbeddedStore(tmp_path_factory.mktemp("ledger")) as store:
        yield store.url


ON_EACH_LOOP = pytest.mark.parametrize(
    "anyio_backend",
    [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})],
    ids=["asyncio", "uvloop"],
)
"""Runs a test under both event loops that a service may run on."""


@pytest.fixture
async def ledger(store_url: str) -> AsyncIterator[Ledger]:
    async with await Ledger.connect(store_url) as opened:
        yield opened


@pytest.fixture
def lineage() -> str:
    """A lineage that no other test uses."""
    return new_lineage()


def new_lineage() -> str:
    return f"lineage-{next(_names)}"


def budget(picorho: int, accepts: str = "any") -> Budget:
    return Budget(picorho, "gaussian" if accepts == "gaussian" else "any", DELTA)


def releases(count: int, cost: Cost = COST) -> Budget:
    """A budget that pays for `count` releases exactly."""
    return budget(count * cost.picorho)


async def open_accounts(ledger: Ledger, lineage: str, lineage_budget: Budget, **clients: Budget) -> None:
    await ledger.acting("owner").open_lineage(lineage, lineage_budget, time=0.0)
    for client, client_budget in clients.items():
        await ledger.acting("owner").add_client(
            lineage, client, client_budget, key_digest(f"{lineage}/{client}"), time=0.0
        )


def question(row: str, cost: Cost = COST, model: str = "model") -> bytes:
    """A row's question, as a caller would derive it: from all that decides the answer, and not from who asks."""
    return hashlib.sha256(f"{model}|gaussian|{cost}|{row}".encode()).digest()[:16]


def asking(
    lineage: str,
    client: str,
    *rows: str,
    cost: Cost = COST,
    key: str = "",
    body: str = "",
    model: str = "model",
    blocks: tuple[str, ...] = (),
) -> ChargeRequest:
    return ChargeRequest(
        lineage=lineage,
        client=client,
        terms=charge_terms(model, "gaussian", cost, blocks=blocks),
        questions=tuple(question(row, cost, model) for row in rows),
        time=1.5,
        idempotency=Idempotency(key, key_digest(body)) if key else None,
    )


class JournalInMemory(Acknowledged, frozen=True, kw_only=True):
    """A journal as tests compare and alter it, with its receipts, in order."""

    receipts: tuple[Receipt, ...]


def read_journals(folder: Path) -> list[JournalInMemory]:
    """Return every journal below a folder. Raises ValueError for a file that is no journal, or was altered."""
    return [
        JournalInMemory(**asdict(journal.acknowledged), receipts=tuple(journal.receipts))
        for journal in open_journals(folder)
    ]


async def decided(ledger: Ledger, requests: Sequence[Chargeable]) -> list[Charge | LedgerError]:
    """Decisions on requests, with the error of the whole call for each where none is known of any."""
    try:
        return await ledger.charge_batch(requests)
    except LedgerUnavailable as error:
        return [error] * len(requests)


def dump(url: str, lineage: str) -> dict[str, object]:
    """Everything that the store holds of a lineage."""
    with redis.Redis.from_url(url, decode_responses=False, protocol=2) as client:
        read: dict[bytes, Callable[[bytes], object]] = {
            b"hash": client.hgetall,
            b"set": client.smembers,
            b"stream": client.xrange,
        }
        keys = client.scan_iter(match=f"dpserve:{{{lineage}}}:*", count=1000)
        return {key.decode(): read[client.type(key)](key) for key in sorted(keys)}
