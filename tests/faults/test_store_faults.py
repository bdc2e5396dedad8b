"""The store dies, loses its tail, fills its disk, freezes; primaries fall."""

import asyncio
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dpserve.accounting.ledger import ApiKey, KeyExpired, Ledger, LedgerUnavailable, StoreBehind, key_digest
from tests.topologies import wait_until

from .books import (
    BLOCKS,
    COST,
    Acknowledged,
    Blocks,
    asking,
    charge_until,
    nothing_acknowledged_is_missing,
    open_accounts,
)
from .conftest import fault, trials
from .servers import DURABLE, StoreServer

pytestmark = pytest.mark.anyio

_DAY = 86400


def _merged(one: Acknowledged, other: Acknowledged) -> Acknowledged:
    return Acknowledged(one.rows + other.rows, one.attempts + other.attempts)


@pytest.mark.parametrize("blocks", [pytest.param((), marks=pytest.mark.slow), BLOCKS], ids=["one budget", "blocks"])
async def test_the_store_is_killed_in_the_middle_of_load(tmp_path: Path, blocks: Blocks) -> None:
    done = Acknowledged()
    turns = random.Random(1)
    with fault("store killed under load, restarted from its AOF") as found, StoreServer(tmp_path / "store") as store:
        for trial in range(trials(50, 4)):
            async with await Ledger.connect(store.url, journals=tmp_path / "journals") as ledger:
                if trial == 0:
                    await open_accounts(ledger, "lineage", blocks=blocks)
                await ledger.join("lineage")
                after = turns.randrange(1, 120)
                charged = await charge_until(ledger, "lineage", str(trial), store.kill, after=after, blocks=blocks)
                done = _merged(done, charged)
            store.start()
            async with await Ledger.connect(store.url, journals=tmp_path / "journals") as ledger:
                await ledger.join("lineage")
                found.trial(held=await nothing_acknowledged_is_missing(ledger, "lineage", done, blocks))


async def test_the_tail_of_the_append_only_file_is_cut(tmp_path: Path) -> None:
    """Whatever is cut: either nothing acknowledged is gone, or the service that saw it refuses."""
    turns = random.Random(2)
    with fault("AOF cut by 1 to 4000 bytes: refused, or nothing is missing") as found:
        for trial in range(trials(40, 4)):
            folder, journals = tmp_path / f"{trial}", tmp_path / f"journals {trial}"
            store = StoreServer(folder).start()
            async with await Ledger.connect(store.url, journals=journals) as ledger:
                await ledger.join("lineage")
                await open_accounts(ledger, "lineage")
                done = await charge_until(ledger, "lineage", "row", store.kill, after=20, tasks=2)
            (log,) = (folder / "appendonlydir").glob("*.incr.aof")
            with log.open("r+b") as file:
                file.truncate(log.stat().st_size - turns.choice([1, 7, 60, 400, 4000]))
            with store:
                async with await Ledger.connect(store.url, journals=journals) as ledger:
                    try:
                        await ledger.join("lineage")
                    except StoreBehind:
                        found.trial(held=True)
                    else:
                        found.trial(held=await nothing_acknowledged_is_missing(ledger, "lineage", done))


def _mounted(folder: Path) -> bool:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    return bool(shutil.which("mount")) and subprocess.run(command, capture_output=True, check=False).returncode == 0


async def test_the_disk_is_full(tmp_path: Path) -> None:
    """A file system of one megabyte; skipped where none may be mounted."""
    with fault("disk full: refused, and nothing acknowledged is missing") as found:
        for trial in range(trials(10, 1)):
            small = tmp_path / f"small {trial}"
            if not _mounted(small):
                pytest.skip("a small file system can be mounted by root only")
            try:
                store = StoreServer(small / "store").start()
                async with await Ledger.connect(store.url, deadline=1.0) as ledger:
                    await open_accounts(ledger, "lineage")
                    done = await charge_until(ledger, "lineage", "row", lambda: None, after=1)
                store.kill()
                larger = tmp_path / f"larger {trial}"
                shutil.copytree(small / "store", larger)
            finally:
                subprocess.run(["umount", "-l", str(small)], check=True)
            with StoreServer(larger) as store:
                async with await Ledger.connect(store.url) as ledger:
                    found.trial(held=await nothing_acknowledged_is_missing(ledger, "lineage", done))


async def test_the_store_freezes(tmp_path: Path) -> None:
    name = "store frozen: refused within the deadline, nothing answered"
    with fault(name) as found, StoreServer(tmp_path / "store") as store:
        for trial in range(trials(20, 2)):
            lineage = f"lineage-{trial}"
            async with await Ledger.connect(store.url, deadline=1.0) as ledger:
                await open_accounts(ledger, lineage)
                done = await charge_until(ledger, lineage, "row", lambda: None, after=0, tasks=0)
                store.stop()
                start = time.monotonic()
                try:
                    done = await charge_until(ledger, lineage, "row", lambda: None, after=0, tasks=8)
                    in_time = time.monotonic() - start < 10 * 1.0
                finally:
                    store.go_on()
                answered_nothing = done.rows == []
            async with await Ledger.connect(store.url) as ledger:
                right = await nothing_acknowledged_is_missing(ledger, lineage, done)
                found.trial(held=answered_nothing and in_time and right)


async def _available(url: str, lineage: str, deadline: float, replicas: int, blocks: Blocks = ()) -> Ledger:
    last = time.monotonic() + deadline
    while True:
        try:
            ledger = await Ledger.connect(url, deadline=1.0, replicas=replicas)
        except LedgerUnavailable:
            if time.monotonic() > last:
                raise
            await asyncio.sleep(0.1)
            continue
        try:
            await ledger.charge(asking(lineage, "ann", "is it there?", blocks=blocks))
        except LedgerUnavailable:
            await ledger.close()
            if time.monotonic() > last:
                raise
            await asyncio.sleep(0.1)
        else:
            return ledger


@pytest.mark.parametrize("blocks", [pytest.param((), marks=pytest.mark.slow), BLOCKS], ids=["one budget", "blocks"])
async def test_the_primary_dies_and_sentinels_promote_its_replica(tmp_path: Path, blocks: Blocks) -> None:
    first = StoreServer(tmp_path / "first").start()
    second = StoreServer(tmp_path / "second", DURABLE | {"replicaof": f"127.0.0.1 {first.port}"}).start()
    await asyncio.to_thread(
        wait_until, second.has_copy
    )  # Sentinels look for replicas when they start, and rarely later
    sentinels = [StoreServer(tmp_path / f"sentinel {n}", sentinel_for=first.port).start() for n in range(3)]
    url = "redis+sentinel://" + ",".join(f"127.0.0.1:{one.port}" for one in sentinels) + "/ledger"
    primary, replica = first, second
    try:
        with fault("primary killed under load, replica promoted, WAITAOF 1 1") as found:
            for trial in range(trials(10, 1)):
                lineage = f"lineage-{trial}"
                ledger = await _ready(url, lineage, blocks)
                async with ledger:
                    done = await charge_until(ledger, lineage, "row", primary.kill, after=60, blocks=blocks)
                await asyncio.to_thread(_wait_for_promotion, sentinels[0], replica)
                primary.settings = DURABLE | {"replicaof": f"127.0.0.1 {replica.port}"}
                primary.start()
                async with await _available(url, lineage, 60, 1, blocks) as ledger:
                    done.attempts += 1
                    found.trial(held=await nothing_acknowledged_is_missing(ledger, lineage, done, blocks))
                primary, replica = replica, primary
    finally:
        for server in (*sentinels, first, second):
            server.kill()


async def _ready(url: str, lineage: str, blocks: Blocks = ()) -> Ledger:
    ledger = await _whole(url, replicas=1)
    last = time.monotonic() + 60
    while True:
        try:
            await open_accounts(ledger, lineage, blocks=blocks)
        except LedgerUnavailable:
            if time.monotonic() > last:
                await ledger.close()
                raise
            await asyncio.sleep(0.2)
        else:
            return ledger


def _wait_for_promotion(sentinel: StoreServer, replica: StoreServer) -> None:
    last = time.monotonic() + 60
    with redis.Redis(port=sentinel.port, protocol=2, decode_responses=True) as client:
        while time.monotonic() < last:
            _, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "ledger")
            if int(port) == replica.port:
                return
            time.sleep(0.05)
    raise TimeoutError("the Sentinels promoted nobody")


async def _whole(url: str, replicas: int = 0) -> Ledger:
    last = time.monotonic() + 60
    while True:
        try:
            return await Ledger.connect(url, replicas=replicas)
        except LedgerUnavailable:
            if time.monotonic() > last:
                raise
            await asyncio.sleep(0.1)


async def test_the_time_that_callers_say_jumps(tmp_path: Path) -> None:
    turns = random.Random(3)
    with fault("callers' times between the years 1 and 9999") as found, StoreServer(tmp_path / "store") as store:
        async with await Ledger.connect(store.url) as ledger:
            await open_accounts(ledger, "lineage")
            done = Acknowledged()
            for trial in range(trials(200, 20)):
                row = str(trial)
                done.attempts += 1
                await ledger.charge(asking("lineage", "ann", row, time=turns.uniform(-6.2e10, 2.5e11)))
                done.rows.append(row)
                account = await ledger.lineage("lineage")
                found.trial(held=account.spent == (trial + 1) * COST.picorho)
            assert await nothing_acknowledged_is_missing(ledger, "lineage", done)


def _faketime() -> str | None:
    """Return Debian's libfaketime, or what DPSERVE_TEST_FAKETIME names, if there is one."""
    named = [
        os.environ.get("DPSERVE_TEST_FAKETIME", ""),
        *map(str, Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")),
    ]
    return next((path for path in named if path and Path(path).exists()), None)


@pytest.fixture
def moved_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[StoreServer, Path]]:
    """A store whose clock runs as a file says, as `+2.5d`."""
    library = _faketime()
    if library is None:
        pytest.skip("libfaketime is not installed")
    clock = tmp_path / "clock"
    faked = {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    for name, value in faked.items():
        monkeypatch.setenv(name, value)
    clock.write_text("+0d\n")
    with StoreServer(tmp_path / "store") as store:
        for name in faked:
            monkeypatch.delenv(name)
        yield store, clock


async def test_the_stores_clock_jumps(moved_store: tuple[StoreServer, Path]) -> None:
    """Nothing is lost or charged twice, and an API key is good exactly as long as the store's clock says."""
    store, clock = moved_store
    turns = random.Random(4)
    with fault("the store's clock jumps by up to 20 years") as found:
        async with await Ledger.connect(store.url) as ledger:
            await open_accounts(ledger, "lineage")
            end, key = time.time() + _DAY, key_digest("ends tomorrow")
            await ledger.acting("owner").add_key("lineage", "ann", ApiKey(key, expires=int(end)))
            done = Acknowledged()
            for trial in range(trials(100, 10)):
                days = turns.choice([turns.uniform(-7000, 0.9), turns.uniform(1.1, 7000)])
                clock.write_text(f"{days:+.3f}d\n")
                done.attempts += 1
                await ledger.charge(asking("lineage", "ann", str(trial)))
                done.rows.append(str(trial))
                good = True
                try:
                    await ledger.api_keys.authenticate("lineage", key)
                except KeyExpired:
                    good = False
                account = await ledger.lineage("lineage")
                found.trial(held=account.spent == (trial + 1) * COST.picorho and good == (days < 1))
            assert await nothing_acknowledged_is_missing(ledger, "lineage", done)
