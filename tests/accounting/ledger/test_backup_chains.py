"""A chain of backups is restored whole or not at all, wherever it lies and whoever may read it."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from accounting.ledger import Ledger, LedgerDamaged
from accounting.ledger.backup_chains import Place, Written, add_to_chain, lines_of_file, links_of_chain, write_file
from accounting.ledger.backup_streams import identities, read_lines, recipients, writing
from accounting.ledger.backups import restore
from accounting.ledger.errors import CannotRecover
from accounting.ledger.verification import verify
from accounting.ledger.wire import LineageKeys

from .conftest import COST, asking, open_accounts, releases

pytestmark = pytest.mark.anyio

BEGUN = datetime(2026, 3, 2, 7, tzinfo=UTC)


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    """A ledger with one lineage, which each step charges further."""
    async with Ledger.open(tmp_path / "store") as opened:
        await open_accounts(opened, "lineage", releases(100), ann=releases(50), bob=releases(50))
        yield opened


async def _charge(ledger: Ledger, *names: str) -> None:
    for name in names:
        await ledger.charge(asking("lineage", "ann", name))
        await ledger.charge(asking("lineage", "bob", name, f"{name} again"))


async def _three_links(ledger: Ledger, place: Place, **more: Any) -> list[Written]:
    """A chain whose links have receipts and acts, acts alone, and a further lineage."""
    written = []
    await _charge(ledger, "1", "2")
    written.append(await add_to_chain(ledger, place, (), now=BEGUN, **more))
    await ledger.set_budget("lineage", releases(60), client="ann")
    written.append(await add_to_chain(ledger, place, (), now=BEGUN, **more))
    await _charge(ledger, "3")
    await open_accounts(ledger, "another", releases(9), cy=releases(9))
    await ledger.charge(asking("another", "cy", "1"))
    written.append(await add_to_chain(ledger, place, (), now=BEGUN, **more))
    return written


async def _restored(folder: Path, place: Place, **more: Any) -> list[str]:
    async with Ledger.open(folder) as new:
        names = await restore(new, *links_of_chain(place, **more))
        for name in names:
            assert (await verify(new, name)).findings == ()
        assert (await new.client("lineage", "ann")).budget.limit == 60 * COST.picorho
        assert (await new.client("lineage", "bob")).spent == 6 * COST.picorho
        assert (await new.charge(asking("lineage", "bob", "3 again"))).receipts == ()
        return names


@pytest.fixture(params=["folder", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return Place(str(tmp_path / "backups"))
    pytest.importorskip("fsspec")
    return Place(f"fsspec+memory://{tmp_path}/backups")


async def test_each_link_holds_what_came_since_the_one_before(tmp_path: Path, ledger: Ledger, place: Place) -> None:
    written = await _three_links(ledger, place)
    assert [one.number for one in written] == [1, 2, 3]
    assert [one.receipts for one in written] == [4, 4, 7]
    lines = [[json.loads(line) for line in link] for link in links_of_chain(place)]
    assert [sum("receipt" in line for line in link) for link in lines] == [4, 0, 3]
    acts = [[len(line["section"]["acts"]) for line in link if "section" in line] for link in lines]
    assert acts == [[3], [1], [2, 0]]
    assert await _restored(tmp_path / "new", place) == ["lineage", "another"]


async def test_a_folder_is_its_owners_alone(ledger: Ledger, tmp_path: Path) -> None:
    await _three_links(ledger, Place(str(tmp_path / "backups")))
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "backups").rglob("*"))
    assert not list((tmp_path / "backups").glob("*.partial"))


Damage = Callable[[Path, list[Path]], object]


def _alter(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def _list(folder: Path) -> Path:
    (found,) = folder.glob("chain-*.json")
    return found


def _edit_list(folder: Path, edit: Callable[[list[dict[str, Any]]], object]) -> None:
    listed = json.loads(_list(folder).read_text())
    edit(listed["files"])
    _list(folder).write_text(json.dumps(listed))


def _swap(files: list[Path]) -> None:
    first, second = files[1].read_bytes(), files[2].read_bytes()
    files[1].write_bytes(second)
    files[2].write_bytes(first)


DAMAGE: dict[str, tuple[Damage, str]] = {
    "the first file gone": (lambda _, files: files[0].unlink(), "missing"),
    "a file in the middle gone": (lambda _, files: files[1].unlink(), "missing"),
    "the last file gone": (lambda _, files: files[2].unlink(), "missing"),
    "two files swapped": (lambda _, files: _swap(files), "altered|does not follow"),
    "a file cut short": (lambda _, files: files[2].write_bytes(files[2].read_bytes()[:-9]), "cut short|altered"),
    "a file altered": (lambda _, files: _alter(files[0], -20), "cut short|altered|cannot be read"),
    "something behind a file": (lambda _, files: files[1].write_bytes(files[1].read_bytes() + b"x"), "altered|cut"),
    "a file dropped from the list": (
        lambda folder, _: _edit_list(folder, lambda listed: listed.pop(1)),
        "does not follow",
    ),
    "the first file dropped from the list": (
        lambda folder, _: _edit_list(folder, lambda listed: listed.pop(0)),
        "does not follow",
    ),
    "two files swapped in the list": (lambda folder, _: _edit_list(folder, lambda listed: listed.reverse()), "follow"),
    "a file listed twice": (
        lambda folder, _: _edit_list(folder, lambda listed: listed.append(listed[2])),
        "does not follow",
    ),
    "all but the last dropped": (
        lambda folder, _: _edit_list(folder, lambda listed: listed.__delitem__(slice(0, 2))),
        "number 3 of a chain",
    ),
    "an empty list": (lambda folder, _: _edit_list(folder, lambda listed: listed.clear()), "lists no files"),
    "a list that is none": (lambda folder, _: _list(folder).write_text("[]"), "is no list"),
    "a list under another name": (
        lambda folder, _: _list(folder).rename(folder / "chain-20300101T000000Z-aaaaaaaa.json"),
        "is no list",
    ),
    "no list": (lambda folder, _: _list(folder).unlink(), "no chain"),
}


@pytest.mark.parametrize("what", DAMAGE)
async def test_a_damaged_chain_is_refused_whole(tmp_path: Path, ledger: Ledger, what: str) -> None:
    folder = tmp_path / "backups"
    written = await _three_links(ledger, Place(str(folder)))
    damage, message = DAMAGE[what]
    damage(folder, [folder / one.name for one in written])
    async with Ledger.open(tmp_path / "new") as new:
        with pytest.raises(CannotRecover, match=message):
            await restore(new, *links_of_chain(Place(str(folder))))
        assert await new.lineage_names() == []


async def test_a_link_of_another_chain_is_refused(tmp_path: Path, ledger: Ledger) -> None:
    """The link is of the same ledger, at the same place of its chain, and listed with the right digest."""
    first, second = Place(str(tmp_path / "first")), Place(str(tmp_path / "second"))
    for place in (first, second):
        await add_to_chain(ledger, place, ())
    await _charge(ledger, "1")
    for place in (first, second):
        await add_to_chain(ledger, place, ())
    other = json.loads(_list(tmp_path / "second").read_text())["files"][1]
    (tmp_path / "second" / other["name"]).rename(tmp_path / "first" / other["name"])
    _edit_list(tmp_path / "first", lambda listed: listed.__setitem__(1, other))
    async with Ledger.open(tmp_path / "new") as new:
        with pytest.raises(CannotRecover, match="does not follow"):
            await restore(new, *links_of_chain(first))


async def test_a_ledger_that_was_restored_does_not_go_on_with_the_chain(tmp_path: Path, ledger: Ledger) -> None:
    place = Place(str(tmp_path / "backups"))
    await _three_links(ledger, place)
    await _charge(ledger, "4")
    await add_to_chain(ledger, place, ())
    older = [*links_of_chain(place)][:3]
    async with Ledger.open(tmp_path / "new") as new:
        await restore(new, *older)
        with pytest.raises(CannotRecover, match="not the one that was backed up before"):
            await add_to_chain(new, place, ())
        await _charge(new, "5", "6")  # as many receipts, but others
        with pytest.raises(CannotRecover, match="not the one that was backed up before"):
            await add_to_chain(new, place, ())
        assert (await add_to_chain(new, place, (), full=True)).number == 1


async def test_what_does_not_follow_is_not_backed_up(tmp_path: Path, ledger: Ledger) -> None:
    place, keys = Place(str(tmp_path / "backups")), LineageKeys("lineage")
    await _three_links(ledger, place)
    await _charge(ledger, "4", "5")
    newest = (await ledger.lineage("lineage")).newest_receipt
    with redis.Redis(unix_socket_path=(tmp_path / "store" / "socket").read_text().strip()) as store:
        (entry,) = store.xrange(keys.receipts, str(newest - 2), str(newest - 2))
        store.xdel(keys.receipts, entry[0])
    before = place.names()
    with pytest.raises((CannotRecover, LedgerDamaged), match="missing"):
        await add_to_chain(ledger, place, ())
    assert place.names() == before


async def test_old_chains_are_removed_when_one_is_begun(tmp_path: Path, ledger: Ledger) -> None:
    place, chains = Place(str(tmp_path / "backups")), []
    for week in range(4):
        now = BEGUN + timedelta(days=7 * week)
        await _charge(ledger, f"week {week}")
        for later in (0, 6):
            await add_to_chain(ledger, place, (), full_after=7 * 86_400, kept=2, now=now + timedelta(days=later))
        lists = [name for name in place.names() if name.startswith("chain-")]
        chains.append(lists[-1])
        assert lists == chains[-2:]
    assert len(place.names()) == 2 * (1 + 2)
    assert len(links_of_chain(place)) == 2
    chosen = chains[-2].removesuffix(".json").rpartition("-")[2]
    async with Ledger.open(tmp_path / "new") as new:
        await restore(new, *links_of_chain(place, chain=chosen))
        assert (await new.lineage("lineage")).newest_receipt == 6


async def test_one_file_is_compressed_and_read_back(tmp_path: Path, ledger: Ledger) -> None:
    await _charge(ledger, *map(str, range(6)))
    path = tmp_path / "ledger.backup"
    await write_file(ledger, path, ())
    lines = "".join(lines_of_file(path))
    assert path.stat().st_size < len(lines) / 2
    async with Ledger.open(tmp_path / "new") as new:
        await restore(new, lines_of_file(path))
        assert (await verify(new, "lineage")).receipts == 12


# Encryption


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, Path]:
    """A public key, and the file of its secret key."""
    age = pytest.importorskip("pyrage")
    secret = age.x25519.Identity.generate()
    (tmp_path / "key.txt").write_text(f"# created today\n# public key: {secret.to_public()}\n{secret}\n")
    return str(secret.to_public()), tmp_path / "key.txt"


async def test_an_encrypted_chain_shows_nothing_of_clients_and_needs_the_secret_key(
    tmp_path: Path, ledger: Ledger, keys: tuple[str, Path], place: Place
) -> None:
    public, secret = keys
    await _three_links(ledger, place, keys=recipients([public]))
    for name in place.names():
        assert not any(word in place.read(name) for word in (b"ann", b"bob", b"gaussian"))
    async with Ledger.open(tmp_path / "none") as new:
        with pytest.raises(CannotRecover, match="encrypted"):
            await restore(new, *links_of_chain(place))
        age = pytest.importorskip("pyrage")
        with pytest.raises(CannotRecover, match="cannot be decrypted"):
            await restore(new, *links_of_chain(place, keys=[age.x25519.Identity.generate()]))
        assert await new.lineage_names() == []
    await _restored(tmp_path / "new", place, keys=identities(secret))


def test_keys_that_are_none_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyrage")
    for text in ("age1", "ssh-ed25519 AAAA", "ann@example.org"):
        with pytest.raises(ValueError, match="no public key"):
            recipients([text])
    for content in ("", "# nothing\n", "AGE-SECRET-KEY-1\n", "-----BEGIN PRIVATE KEY-----\n"):
        (tmp_path / "key").write_text(content)
        with pytest.raises(ValueError, match="secret key"):
            identities(tmp_path / "key")


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_lines_that_are_not_read_to_the_end_leave_no_thread(
    tmp_path: Path, request: pytest.FixtureRequest, *, is_encrypted: bool
) -> None:
    public, secret = request.getfixturevalue("keys") if is_encrypted else ("", tmp_path)
    path, own = tmp_path / "lines", identities(secret) if is_encrypted else []
    with path.open("wb") as sink, writing(sink, recipients([public] if is_encrypted else [])) as writer:
        for number in range(200_000):
            writer.write(f"{number}\n")
    with path.open("rb") as source:
        assert sum(1 for _ in read_lines(source, own)) == 200_000
    with path.open("rb") as source:
        lines: Iterator[str] = read_lines(source, own)
        assert next(lines) == "0\n"
        lines.close()  # type: ignore[attr-defined]


async def test_a_chain_lies_in_an_object_store(tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
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
        place = Place(f"s3://safe/backups?scheme=http&endpoint_override={host}:{port}&region=us-east-1")
        written = await _three_links(ledger, place)
        assert await _restored(tmp_path / "new", place) == ["lineage", "another"]
        store.delete_object(Bucket="safe", Key=f"backups/{written[1].name}")
        async with Ledger.open(tmp_path / "other") as new:
            with pytest.raises(CannotRecover, match="missing"):
                await restore(new, *links_of_chain(place))
    finally:
        server.stop()
