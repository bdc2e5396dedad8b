"""One folder, one server: found, shared, replaced and shut down."""

import asyncio
import fcntl
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import redis

from dpserve.accounting.ledger import (
    Charge,
    EmbeddedStore,
    EmbeddedStoreFailed,
    Ledger,
    LedgerUnavailable,
    embedded,
)
from dpserve.accounting.ledger.journal import Journal
from dpserve.accounting.ledger.verification import verify

from .conftest import asking, open_accounts, releases


def _client(store: EmbeddedStore) -> "redis.Redis[bytes]":
    return redis.Redis.from_url(store.url, protocol=2)


def _process(store: EmbeddedStore) -> int:
    with _client(store) as client:
        return int(client.info()["process_id"])


def _answers(store: EmbeddedStore) -> bool:
    with _client(store) as client:
        try:
            return bool(client.ping())
        except redis.exceptions.ConnectionError:
            return False


def _user(folder: Path) -> "subprocess.Popen[bytes]":
    """Return another process that opens the store, says so, and stays."""
    code = (
        "import pathlib, sys, time; from dpserve.accounting.ledger import EmbeddedStore\n"
        "print('here', flush=True); EmbeddedStore(pathlib.Path(sys.argv[1])).open(); print('open', flush=True)\n"
        "sys.stdin.read()"
    )
    user = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert user.stdout is not None
    assert user.stdout.readline() == b"here\n"
    return user


def _until_open(user: "subprocess.Popen[bytes]") -> None:
    assert user.stdout is not None
    assert user.stdout.readline() == b"open\n"


def _kill(user: "subprocess.Popen[bytes]") -> None:
    user.kill()
    user.communicate()


def test_its_settings_are_the_durable_ones_and_it_has_no_port(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path) as store, _client(store) as client:
        found = client.config_get("port", "appendonly", "appendfsync", "maxmemory-policy", "save", "unixsocketperm")
        assert found == {
            "port": "0",
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            "save": "",
            "unixsocketperm": "700",
        }
        assert os.getsid(_process(store)) == _process(store)


def test_the_folder_is_made_for_its_owner_alone_whatever_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "a folder" / 'with "quotes"'
    with EmbeddedStore(folder) as store:
        assert _answers(store)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_last_of_several_users_shuts_it_down(tmp_path: Path) -> None:
    first, second = EmbeddedStore(tmp_path), EmbeddedStore(tmp_path)
    first.open()
    second.open()
    assert _process(first) == _process(second)
    first.close()
    assert _answers(second)
    second.close()
    assert not _answers(second)
    second.close()


def test_a_store_is_opened_once(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path) as store, pytest.raises(ValueError, match="open already"):
        store.open()


@pytest.mark.parametrize("seconds", [None, 0.001, 0.003, 0.006, 0.01, 0.02, 0.05])
def test_a_server_ends_with_its_last_user_whenever_that_is_killed(tmp_path: Path, seconds: float | None) -> None:
    """seconds: after it began to open the store; None: once it has."""
    user = _user(tmp_path)
    if seconds is None:
        _until_open(user)
    else:
        time.sleep(seconds)
    _kill(user)
    lock = os.open(tmp_path / "server.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)  # the server holds it until it ends; without its end the test does not
    os.close(lock)


def test_a_server_outlives_the_user_who_started_it_while_another_is_there(tmp_path: Path) -> None:
    starter = _user(tmp_path)
    _until_open(starter)
    with EmbeddedStore(tmp_path) as store:
        process = _process(store)
        _kill(starter)
        second = _user(tmp_path)
        _until_open(second)
        assert _process(store) == process
        _kill(second)
        assert _process(store) == process
    assert not _answers(store)


def test_an_orphan_that_nothing_ends_and_that_does_not_answer_is_replaced(tmp_path: Path) -> None:
    user = _user(tmp_path)
    _until_open(user)
    orphan = EmbeddedStore(tmp_path)
    process = _process(orphan)
    with _client(orphan) as client:
        client.set("key", "value")
    os.killpg(process, signal.SIGSTOP)  # and what would end it
    try:
        _kill(user)
        with EmbeddedStore(tmp_path, patience=0.5) as store, _client(store) as client:
            assert _process(store) != process
            assert client.get("key") == b"value"
    finally:
        os.killpg(process, signal.SIGKILL)


def test_a_server_that_others_use_is_not_killed_for_being_slow(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path) as store:
        process = _process(store)
        os.kill(process, signal.SIGSTOP)
        try:
            with pytest.raises(EmbeddedStoreFailed, check=lambda error: error.reason == "no-answer"):
                EmbeddedStore(tmp_path, patience=0.2).open()
        finally:
            os.kill(process, signal.SIGCONT)
        assert _process(store) == process


def test_no_second_server_can_be_started_on_the_same_files(tmp_path: Path) -> None:
    """Even for someone who lost the socket and every lock file's content."""
    with EmbeddedStore(tmp_path) as store:
        (tmp_path / "socket").unlink()
        (tmp_path / "valkey.sock").rename(tmp_path / "moved")
        with pytest.raises(EmbeddedStoreFailed):
            EmbeddedStore(tmp_path, patience=0.2).open()
        (tmp_path / "moved").rename(tmp_path / "valkey.sock")
        assert _answers(store)


def test_a_path_too_long_for_a_socket_gets_a_short_one(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    with EmbeddedStore(folder) as store:
        path = Path(store.url.removeprefix("unix://").removesuffix("?db=0"))
        assert path.parent.parent == Path(tempfile.gettempdir())
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with EmbeddedStore(folder) as other:
            assert _process(other) == _process(store)
    assert not path.parent.exists()


def test_a_short_folder_that_others_can_enter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr(tempfile, "gettempdir", lambda: short)
        folder = tmp_path / ("long" * 30)
        with EmbeddedStore(folder) as store:
            made = Path(store.url.removeprefix("unix://")).parent
            assert made.parent == Path(short)
        made.mkdir(mode=0o755)
        with pytest.raises(EmbeddedStoreFailed, check=lambda error: error.reason == "not-ours"):
            EmbeddedStore(folder).open()


def test_a_temporary_folder_with_too_long_a_path_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("long" * 30)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(long))
    with pytest.raises(EmbeddedStoreFailed, check=lambda error: error.reason == "path"):
        EmbeddedStore(long).open()


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(EmbeddedStoreFailed) as caught:
        EmbeddedStore(tmp_path / "file").open()
    assert str(caught.value) == f"the ledger's folder {tmp_path / 'file'} cannot be used: File exists"
    with pytest.raises(EmbeddedStoreFailed, check=lambda error: error.reason == "folder"):
        EmbeddedStore(tmp_path / "file" / "in").open()


def test_a_folder_whose_locks_do_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with pytest.raises(EmbeddedStoreFailed, match="second lock"):
        EmbeddedStore(tmp_path / "ledger").open()
    with pytest.raises(LedgerUnavailable, match="second lock"):
        Journal.open(tmp_path / "journals", "people")
    assert not list((tmp_path / "journals").rglob("*.jsonl"))


def test_a_broken_file_is_said_with_the_servers_own_words(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path) as store, _client(store) as client:
        client.set("key", "value")
    (base,) = (tmp_path / "appendonlydir").glob("*.base.rdb")
    base.write_bytes(b"not a file of the server's")
    with pytest.raises(EmbeddedStoreFailed, check=lambda error: error.reason == "no-start") as caught:
        EmbeddedStore(tmp_path).open()
    assert "\n" not in str(caught.value)


def test_a_platform_without_an_embedded_store_is_told_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "distribution", lambda name: type("Wheel", (), {"files": None}))
    with pytest.raises(EmbeddedStoreFailed, check=lambda error: error.reason == "platform"):
        EmbeddedStore(tmp_path).open()


@pytest.mark.anyio
async def test_a_ledger_opens_in_a_folder_and_leaves_it(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path) as ledger, Ledger.open(str(tmp_path)) as other:
        await open_accounts(ledger, "lineage", releases(1), ann=releases(1))
        await other.charge(asking("lineage", "ann", "1"))
    assert not _answers(EmbeddedStore(tmp_path))
    async with Ledger.open(tmp_path) as ledger:
        assert (await ledger.lineage("lineage")).releases == 1
        async with Ledger.open(EmbeddedStore(tmp_path).url) as by_address:
            assert await by_address.lineage("lineage") == await ledger.lineage("lineage")


async def _charged(ledger: Ledger, row: str) -> Charge:
    """Ask until the store is back; whatever comes before is an unknown outcome."""
    last = asyncio.get_running_loop().time() + 60
    while True:
        try:
            return await ledger.charge(asking("lineage", "ann", row))
        except LedgerUnavailable:
            assert asyncio.get_running_loop().time() < last
            await asyncio.sleep(0.02)


@pytest.mark.anyio
async def test_a_server_that_dies_under_a_running_ledger_is_started_again(tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    async with Ledger.open(tmp_path / "ledger", journals=journals, deadline=2.0) as ledger:
        await ledger.join("lineage")
        await open_accounts(ledger, "lineage", releases(9), ann=releases(9))
        store = EmbeddedStore(tmp_path / "ledger")
        for turn in range(3):
            before = _process(store)
            os.kill(before, signal.SIGKILL)
            charge = await _charged(ledger, str(turn))
            assert len(charge.free) == 1
            assert _process(store) != before
            assert (await ledger.lineage("lineage")).releases == turn + 1
        assert (await verify(ledger, "lineage")).findings == ()
    assert not _answers(store)


@pytest.mark.anyio
async def test_a_folder_that_was_moved_charges_nothing_until_it_is_put_back(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    async with Ledger.open(folder) as ledger:
        await open_accounts(ledger, "lineage", releases(9), ann=releases(9))
        folder.rename(tmp_path / "elsewhere")
        with pytest.raises(EmbeddedStoreFailed, check=lambda error: error.reason == "moved"):
            await ledger.charge(asking("lineage", "ann", "1"))
        folder.mkdir()  # another folder of the same name is not the ledger
        with pytest.raises(EmbeddedStoreFailed, check=lambda error: error.reason == "moved"):
            await ledger.charge(asking("lineage", "ann", "1"))
        folder.rmdir()
        (tmp_path / "elsewhere").rename(folder)
        assert (await ledger.charge(asking("lineage", "ann", "1"))).receipt is not None
    assert not _answers(EmbeddedStore(folder))


@pytest.mark.anyio
async def test_the_server_of_a_folder_that_is_gone_is_ended(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "ledger"):
        process = _process(EmbeddedStore(tmp_path / "ledger"))
        shutil.rmtree(tmp_path / "ledger")
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_child_that_outlives_its_server_is_waited_for(tmp_path: Path) -> None:
    """It rewrites the file, and holds the lock that it inherited: here, a process that ends when told."""
    with EmbeddedStore(tmp_path) as store, _client(store) as client:
        client.set("key", "value")
    lock = os.open(tmp_path / "server.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=[lock]
    )
    os.close(lock)
    assert child.stdin is not None
    threading.Timer(0.3, child.stdin.close).start()
    with EmbeddedStore(tmp_path) as store, _client(store) as client:
        assert client.get("key") == b"value"
    child.wait()


def test_a_process_without_a_descriptor_left_does_not_take_its_server_for_dead(tmp_path):
    with EmbeddedStore(tmp_path / "ledger") as store:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            with pytest.raises(OSError, match="Too many"):
                os.dup(0)
            running = store.is_running()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert running


@pytest.mark.anyio
async def test_a_disk_that_is_full_is_named_by_the_log_and_by_the_command_that_fails(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(embedded, "_LEAST_FREE", 1 << 80)  # no disk has as much

    async def use() -> None:
        async with Ledger.open(tmp_path / "ledger", deadline=2.0):
            os.kill(_process(EmbeddedStore(tmp_path / "ledger")), signal.SIGKILL)
            while "has died" not in caplog.text:
                await asyncio.sleep(0.01)
            raise LedgerUnavailable("Connection closed by server")

    with pytest.raises(LedgerUnavailable, match=r"closed by server \(no space is left on its disk"):
        await use()
    assert "has died (no space is left on its disk" in caplog.text


def test_a_folder_that_a_volumes_group_was_let_into_is_closed_again(tmp_path, caplog):
    folder = tmp_path / "ledger"
    with EmbeddedStore(folder) as store, _client(store) as client:
        client.set("key", "value")
    folder.chmod(0o2770)
    for file in folder.iterdir():
        file.chmod(0o660)
    with EmbeddedStore(folder) as store, _client(store) as client:
        assert client.get("key") == b"value"
    assert stat.S_IMODE(folder.stat().st_mode) & 0o777 == 0o700
    assert "closed to its group" in caplog.text
    for mode in (0o770 | 0o007, 0o705):
        folder.chmod(mode)
        with pytest.raises(EmbeddedStoreFailed, check=lambda error: error.reason == "open-to-others"):
            EmbeddedStore(folder).open()
