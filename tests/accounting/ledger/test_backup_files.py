"""A backup is there whole or not at all, wherever it lies and whoever may read it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow.fs as pa_fs
import pytest
import redis

from dpserve.accounting.ledger import Ledger
from dpserve.accounting.ledger.backup_files import BackupFile, write_backup
from dpserve.accounting.ledger.backups import restore
from dpserve.accounting.ledger.errors import CannotRecover
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.ledger.wire import LineageKeys

from .conftest import COST, asking, open_accounts, releases

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    async with Ledger.open(tmp_path / "store") as opened:
        await open_accounts(opened, "lineage", releases(100), ann=releases(50), bob=releases(50))
        for name in map(str, range(6)):
            await opened.charge(asking("lineage", "ann", name))
            await opened.charge(asking("lineage", "bob", name, f"{name} again"))
        await open_accounts(opened, "another", releases(9), cy=releases(9))
        yield opened


async def _check_restored(folder: Path, place: str) -> None:
    async with Ledger.open(folder) as new:
        assert await restore(new, BackupFile(place)) == ["another", "lineage"]
        for name in ("lineage", "another"):
            assert (await verify(new, name)).findings == ()
        assert (await new.client("lineage", "bob")).spent == 12 * COST.picorho
        assert (await new.charge(asking("lineage", "bob", "3 again"))).receipts == ()


@pytest.fixture(params=["file", "file://", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        pytest.importorskip("fsspec")
        return f"fsspec+memory://{tmp_path}/ledger.backup"
    return f"{'' if request.param == 'file' else 'file://'}{tmp_path}/backups/ledger.backup"


async def test_a_backup_is_compressed_and_restored(tmp_path: Path, ledger: Ledger, place: str) -> None:
    await write_backup(ledger, place, ())
    files, path = pa_fs.FileSystem.from_uri(place if "://" in place else f"file://{place}")
    assert files.get_file_info(path).size < len("".join(BackupFile(place))) / 2
    await _check_restored(tmp_path / "new", place)


async def test_a_file_is_its_owners_alone_and_replaced_whole(tmp_path: Path, ledger: Ledger) -> None:
    path = tmp_path / "backups" / "ledger.backup"
    await write_backup(ledger, str(path), ())
    before, keys = path.read_bytes(), LineageKeys("lineage")
    assert path.stat().st_mode & 0o077 == 0
    with redis.Redis(unix_socket_path=(tmp_path / "store" / "socket").read_text().strip()) as store:
        store.hset(keys.account, "spent", "0")
    with pytest.raises(CannotRecover, match="not right"):
        await write_backup(ledger, str(path), ())
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
    await write_backup(ledger, str(path), ["another"])
    assert path.read_bytes() != before


async def test_an_object_that_is_there_stays_and_one_that_fails_goes(tmp_path: Path, ledger: Ledger) -> None:
    pytest.importorskip("fsspec")
    place = f"fsspec+memory://{tmp_path}/ledger.backup"
    await write_backup(ledger, place, ["another"])
    with pytest.raises(FileExistsError, match="there already"):
        await write_backup(ledger, place, ())
    with redis.Redis(unix_socket_path=(tmp_path / "store" / "socket").read_text().strip()) as store:
        store.hset(LineageKeys("lineage").account, "spent", "0")
    with pytest.raises(CannotRecover, match="not right"):
        await write_backup(ledger, f"{place}.2", ())
    with pytest.raises(FileNotFoundError):
        BackupFile(f"{place}.2")
    assert len([*BackupFile(place)]) == 3


async def test_a_folder_is_no_backup(tmp_path: Path, ledger: Ledger) -> None:
    for attempt in (write_backup(ledger, str(tmp_path), ()),):
        with pytest.raises(IsADirectoryError, match="a folder"):
            await attempt
    with pytest.raises(IsADirectoryError, match="a folder"):
        BackupFile(str(tmp_path))


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:-20] + b"x" + data[-19:]])
async def test_a_damaged_file_is_refused_whole(tmp_path: Path, ledger: Ledger, damage: Any) -> None:
    path = tmp_path / "ledger.backup"
    await write_backup(ledger, str(path), ())
    path.write_bytes(damage(path.read_bytes()))
    async with Ledger.open(tmp_path / "new") as new:
        with pytest.raises(CannotRecover, match=r"cut short|altered|cannot be read"):
            await restore(new, BackupFile(str(path)))
        assert await new.lineage_names() == []


async def test_a_backup_lies_in_an_object_store(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    boto3 = pytest.importorskip("boto3")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server.start()
    try:
        host, port = server.get_host_and_port()
        store = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
        store.create_bucket(Bucket="safe")
        for name in ("ledger.backup", "backups/ledger.backup"):
            place = f"s3://safe/{name}?scheme=http&endpoint_override={host}:{port}&region=us-east-1"
            await write_backup(ledger, place, ())
        await _check_restored(tmp_path / "new", place)
        store.delete_object(Bucket="safe", Key=name)
        with pytest.raises(FileNotFoundError):
            BackupFile(place)
    finally:
        server.stop()
