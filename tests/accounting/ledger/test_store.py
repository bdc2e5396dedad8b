"""The ledger's demands on its store, and its errors when the store fails."""

import asyncio
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.asyncio import Redis

from dpserve.accounting.ledger import (
    BudgetExhausted,
    Charge,
    Ledger,
    LedgerUnavailable,
    StoreBehind,
    UnsafeStore,
    WrongFormat,
    key_digest,
)
from dpserve.accounting.ledger.errors import TooFewDisks
from dpserve.accounting.ledger.store import DEADLINE, RIGHTS, FunctionLibrary, Store, our_library
from dpserve.accounting.ledger.verification import verify

from .conftest import (
    BINARY,
    DURABLE,
    asking,
    decided,
    dump,
    free_port,
    new_lineage,
    open_accounts,
    releases,
    running_server,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def changeable_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a store whose settings the tests may change."""
    with running_server(tmp_path_factory.mktemp("changeable"), BINARY, **DURABLE) as url:
        yield url


def _wait_for_rewrite(client: "redis.Redis[bytes]") -> None:
    """The server writes a new append-only file when it is told to keep one."""
    while any(client.info("persistence")[f"aof_rewrite_{what}"] for what in ("in_progress", "scheduled")):
        continue


@pytest.fixture
def store(changeable_url: str) -> Iterator["redis.Redis[bytes]"]:
    with redis.Redis.from_url(changeable_url, protocol=2) as client:
        yield client
        client.config_set("appendonly", "yes")
        client.config_set("appendfsync", "always")
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("requirepass", "")
        client.replicaof("NO", "ONE")
        client.execute_command("FUNCTION", "FLUSH")
        _wait_for_rewrite(client)


async def _lines(url: str) -> tuple[str, ...]:
    with pytest.raises(UnsafeStore) as caught:
        await Ledger.connect(url)
    assert str(caught.value) == "\n".join(map(str, caught.value.failures))
    return tuple(map(str, caught.value.failures))


async def test_a_replica_is_refused_even_for_a_rehearsal(
    changeable_url: str, store: "redis.Redis[bytes]", tmp_path: Path
) -> None:
    store.replicaof("127.0.0.1", free_port())
    assert await _lines(changeable_url) == ("the ledger's store is a replica; give the address of its primary",)
    with pytest.raises(UnsafeStore):
        await Ledger.connect(changeable_url, rehearsal=True)


async def test_a_store_that_becomes_a_replica_charges_nothing(changeable_url: str, store: "redis.Redis[bytes]") -> None:
    lineage = new_lineage()
    async with await Ledger.connect(changeable_url) as ledger:
        await open_accounts(ledger, lineage, releases(1), ann=releases(1))
        store.replicaof("127.0.0.1", free_port())
        with pytest.raises(
            LedgerUnavailable, match=r"is a read-only replica$|is a replica; give the address of its primary"
        ):
            await ledger.charge(asking(lineage, "ann", "1"))


@pytest.mark.parametrize(
    ("name", "value"), [("appendonly", "no"), ("appendfsync", "no"), ("maxmemory-policy", "allkeys-lru")]
)
async def test_a_setting_that_changes_while_the_store_runs_is_noticed_within_a_second(
    changeable_url: str, store: "redis.Redis[bytes]", monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    now = 100.0
    monkeypatch.setattr("dpserve.accounting.ledger.store.time.monotonic", lambda: now)
    lineage = new_lineage()
    async with await Ledger.connect(changeable_url) as ledger:
        await open_accounts(ledger, lineage, releases(2), ann=releases(2))
        store.config_set(name, value)
        now += 0.99
        with pytest.raises(UnsafeStore, match=f"set `{name} "):
            await ledger.charge(asking(lineage, "ann", "1"))
        with pytest.raises(UnsafeStore):
            await ledger.check(lineage)
        with pytest.raises(UnsafeStore):
            await Ledger.connect(changeable_url)
        await (await Ledger.connect(changeable_url, rehearsal=True)).close()
        store.config_set(name, {"appendonly": "yes", "appendfsync": "always"}.get(name, "noeviction"))
        _wait_for_rewrite(store)
        assert (await ledger.charge(asking(lineage, "ann", "1"))).receipt is not None


async def test_a_file_that_holds_nothing_before_its_first_rewrite_ends_is_waited_for(tmp_path: Path) -> None:
    with running_server(tmp_path, BINARY, **DURABLE | {"appendonly": "no"}) as url, redis.Redis.from_url(url) as store:
        store.mset({str(number): "" for number in range(50)})
        store.config_set("rdb-key-save-delay", 20_000)  # microseconds for each of them
        store.config_set("appendonly", "yes")
        with pytest.raises(UnsafeStore, match="rewriting its append-only file, which may hold nothing yet; wait until"):
            await Ledger.connect(url, deadline=0.2)
        await (await Ledger.connect(url, deadline=0.2, rehearsal=True)).close()
        await (await Ledger.connect(url, deadline=60)).close()
        assert not store.info("persistence")["aof_rewrite_in_progress"]


async def test_a_store_that_is_started_a_moment_later_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, pauses, servers = asyncio.sleep, list[float](), list["subprocess.Popen[bytes]"]()
    port = free_port()

    async def then_start(seconds: float) -> None:
        pauses.append(seconds)
        if not servers:
            words = [BINARY, "--port", str(port), "--dir", str(tmp_path), "--save", "", "--appendonly", "yes"]
            servers.append(subprocess.Popen([*words, "--appendfsync", "always"], stdout=subprocess.PIPE))
        await real(seconds)

    monkeypatch.setattr(asyncio, "sleep", then_start)
    try:
        await (await Ledger.connect(f"redis://127.0.0.1:{port}/0", deadline=60)).close()
    finally:
        for server in servers:
            server.kill()
            server.communicate()
    assert pauses


async def test_a_primary_with_replicas_needs_to_be_told_how_many_to_wait_for(
    changeable_url: str, store: "redis.Redis[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lineage = new_lineage()
    with running_server(tmp_path, BINARY, **DURABLE) as replica_url:
        with redis.Redis.from_url(replica_url) as replica:
            host, port = changeable_url.removeprefix("redis://").split("/")[0].split(":")
            replica.replicaof(host, port)
            while replica.info("replication")["master_link_status"] != "up":
                await asyncio.sleep(0.01)
        (failure,) = await _lines(changeable_url)
        assert "set `ledger_replicas` or more" in failure
        await (await Ledger.connect(changeable_url, rehearsal=True)).close()
        async with await Ledger.connect(changeable_url, replicas=1) as ledger:
            await open_accounts(ledger, lineage, releases(2), ann=releases(2))
            assert (await ledger.charge(asking(lineage, "ann", "1"))).receipt is not None
        monkeypatch.setattr(Store, "_waits_for", lambda _: [50])
        await _disks_of_a_charge(changeable_url, lineage, 2, there=1)


async def test_another_run_of_the_server_is_looked_at_before_it_decides(tmp_path: Path) -> None:
    """It comes back on the same address with other settings, and no connection is made in between."""
    lineage, port = new_lineage(), free_port()
    words = [BINARY, "--port", str(port), "--dir", str(tmp_path), "--save", "", "--appendonly", "yes"]

    def started(*more: str) -> "subprocess.Popen[bytes]":
        server = subprocess.Popen([*words, *more], stdout=subprocess.PIPE)
        assert server.stdout is not None
        assert any(b"Ready to accept" in line for line in server.stdout)
        return server

    server = started("--appendfsync", "always")
    async with await Ledger.connect(f"redis://127.0.0.1:{port}") as ledger:
        await open_accounts(ledger, lineage, releases(2), ann=releases(2))
        server.kill()
        server.communicate()
        server = started("--appendfsync", "no")
        try:
            for _ in range(2):
                with pytest.raises(LedgerUnavailable, match=r"cannot be reached|set `appendfsync always`"):
                    await ledger.charge(asking(lineage, "ann", "1"))
            assert await _lines(f"redis://127.0.0.1:{port}")
        finally:
            server.kill()
            server.communicate()


async def test_a_disk_that_lags_is_waited_for(changeable_url: str, store: "redis.Redis[bytes]") -> None:
    store.config_set("appendfsync", "everysec")
    lineage = new_lineage()
    async with await Ledger.connect(changeable_url) as ledger:
        store.config_resetstat()
        await open_accounts(ledger, lineage, releases(2), ann=releases(2))
        await ledger.charge(asking(lineage, "ann", "1"))
        assert store.info("commandstats")["cmdstat_waitaof"]["calls"] >= 3
    async with await Ledger.connect(changeable_url, rehearsal=True) as ledger:
        store.config_resetstat()
        await ledger.charge(asking(lineage, "ann", "2"))
        assert "cmdstat_waitaof" not in store.info("commandstats")


@pytest.mark.parametrize("synced", ["everysec", "always"])
async def test_a_library_that_was_removed_is_loaded_again_also_behind_a_wait_for_the_disk(
    changeable_url: str, store: "redis.Redis[bytes]", synced: str
) -> None:
    store.config_set("appendfsync", synced)
    lineage = new_lineage()
    async with await Ledger.connect(changeable_url) as ledger:
        await open_accounts(ledger, lineage, releases(2), ann=releases(2))
        await ledger.charge(asking(lineage, "ann", "1"))
        store.execute_command("FUNCTION", "FLUSH")
        await ledger.charge(asking(lineage, "ann", "2"))
        store.delete(f"dpserve:{{{lineage}}}:services")
        with pytest.raises(StoreBehind):
            await ledger.charge(asking(lineage, "ann", "1"))


async def _disks_of_a_charge(url: str, lineage: str, replicas: int, there: int) -> None:
    """See that a charge which too few replicas have is never taken, although the primary and `there` of them have it.

    Each try waits for a moment only, so that none ends at the deadline; the disks may need several.
    """
    async with await Ledger.connect(url, replicas=replicas) as ledger:
        for _ in range(100):
            with pytest.raises(TooFewDisks) as caught:
                await ledger.charge(asking(lineage, "ann", "1"))
            if (caught.value.own, caught.value.replicas) == (1, there):
                return
    raise AssertionError("the disks did not get the write")


async def test_a_server_that_cannot_wait_for_a_disk_is_refused(
    changeable_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Redis.info

    async def older(self: Redis, section: str) -> dict[str, object]:
        return await real(self, section) | {"redis_version": "7.0.15"}

    monkeypatch.setattr(Redis, "info", older)
    assert await _lines(changeable_url) == (
        "the ledger's store is Redis 7.0.15; it needs Redis or Valkey 7.2 or later",
    )


@pytest.mark.parametrize("scheme", ["redis+sentinel", "rediss+sentinel"])
async def test_sentinels_without_replicas_to_wait_for_are_refused(scheme: str) -> None:
    with pytest.raises(UnsafeStore, match="set `ledger_replicas`"):
        await Ledger.connect(f"{scheme}://127.0.0.1:{free_port()}/ledger")


async def test_settings_that_may_not_be_read_are_a_failure(changeable_url: str, store: "redis.Redis[bytes]") -> None:
    store.acl_setuser("shy", enabled=True, nopass=True, keys="*", categories=["+@all"], commands=["-config"])
    failures = await _lines(changeable_url.replace("redis://", "redis://shy:any@"))
    assert failures == ("the ledger's store does not show its settings; permit `CONFIG GET` to the ledger's user",)
    store.acl_deluser("shy")


def test_the_rights_to_look_at_are_all_that_the_library_calls() -> None:
    code = our_library().source
    calls = re.findall(r"redis\.p?call\((?!'[A-Z]+')([^)]*)", code)
    assert calls == ["command, key, unpack(arguments, first, math.min(first + SLICE * width - 1, #arguments"]
    assert re.search(r"function in_slices\(command, key, arguments, width\)", code)
    sliced = [each for each in re.findall(r"in_slices\(([^,\n]*),", code) if each != "command"]
    assert all(re.findall(r"'[A-Z]+'", each) for each in sliced)
    named = set(re.findall(r"redis\.p?call\('([A-Z]+)'", code))
    assert named | {"HSET", "SADD"} == {each.split()[0] for each in our_library().commands}
    assert {"TIME", "XINFO STREAM"} <= set(our_library().commands)


async def test_each_right_that_the_ledger_needs_is_in_the_acl_and_missed_at_the_start(
    changeable_url: str, store: "redis.Redis[bytes]"
) -> None:
    await (await Ledger.connect(changeable_url)).close()
    url = changeable_url.replace("redis://", "redis://clerk:any@")
    granted = ("ACL", "SETUSER", "clerk", "reset", "on", "nopass", *RIGHTS.split())
    for command in (*our_library().commands, "SADD", "SMEMBERS"):
        store.execute_command(*granted)
        store.execute_command("ACL", "SETUSER", "clerk", f"-{command.lower().replace(' ', '|')}")
        with pytest.raises(UnsafeStore, match=f"lacks the right to {command};"):
            await Ledger.connect(url)
    store.execute_command(*granted)
    store.execute_command("ACL", "SETUSER", "clerk", "-waitaof")
    with pytest.raises(UnsafeStore, match="the right to WAITAOF"):
        await Ledger.connect(url, replicas=1)
    store.execute_command(*granted)
    async with await Ledger.connect(url) as ledger:
        lineage = new_lineage()
        await open_accounts(ledger, lineage, releases(1), ann=releases(1))
        assert (await ledger.charge(asking(lineage, "ann", "1"))).receipt
        assert (await verify(ledger, lineage)).findings == ()
    store.acl_deluser("clerk")


@pytest.mark.parametrize(
    "denied",
    ["hset", "xadd", "sadd", "unlink", "rename", "exists", "hget", "hlen", "hmget", "scard", "xlen"],
)
async def test_whichever_command_is_denied_nobody_pays_and_the_lineage_goes_on(
    changeable_url: str, store: "redis.Redis[bytes]", monkeypatch: pytest.MonkeyPatch, denied: str
) -> None:
    """Accounts and questions are written after the receipts, and idempotency keys may need room."""
    monkeypatch.setattr("dpserve.accounting.ledger.wire.IDEMPOTENCY_KEYS", 4)
    await (await Ledger.connect(changeable_url)).close()
    store.execute_command("ACL", "SETUSER", "clerk", "reset", "on", "nopass", "~dpserve:*", "+@all")
    lineage = new_lineage()
    url = changeable_url.replace("redis://", "redis://clerk:any@")
    async with await Ledger.connect(url) as ledger:
        await open_accounts(ledger, lineage, releases(6), ann=releases(6), bob=releases(6))
        asked = [asking(lineage, client, row, key=row) for client, row in (("ann", "1"), ("bob", "2"), ("ann", "a"))]
        paid = await ledger.charge_batch(asked)
        before = dump(changeable_url, lineage)
        store.execute_command("ACL", "SETUSER", "clerk", f"-{denied}")
        batch = [asking(lineage, client, row, key=row) for client, row in (("ann", "3"), ("bob", "a"), ("ann", "5"))]
        for _ in range(2):
            decisions = await decided(ledger, batch)
            assert [type(decision) for decision in decisions] == [LedgerUnavailable] * 3
            assert {str(decision).partition(": ")[0] for decision in decisions} == {"the ledger's store reports"}
            assert all(re.search("NOPERM|ACL failure", str(decision)) for decision in decisions)
        assert dump(changeable_url, lineage) == before
        store.execute_command("ACL", "SETUSER", "clerk", f"+{denied}")
        paid += await ledger.charge_batch([*batch, asking(lineage, "bob", "6")])
        assert all(isinstance(charge, Charge) and charge.receipt for charge in paid)
        with pytest.raises(BudgetExhausted):
            await ledger.charge(asking(lineage, "ann", "7"))
        assert (await ledger.lineage(lineage)).releases == 6
        assert (await verify(ledger, lineage)).findings == ()
    store.acl_deluser("clerk")


def _libraries(store: "redis.Redis[bytes]") -> dict[str, str]:
    listed = store.execute_command("FUNCTION", "LIST", "WITHCODE")
    named = (dict(zip(one[::2], one[1::2], strict=True)) for one in listed)
    return {one[b"library_name"].decode(): one[b"library_code"].decode() for one in named}


async def test_libraries_of_two_releases_lie_side_by_side(
    changeable_url: str, store: "redis.Redis[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older service goes on while a newer one loads its library and charges the same accounts."""
    ours = our_library()
    newer = FunctionLibrary(f"{ours.source}\n-- newer\n")
    assert newer.name != ours.name
    lineage = new_lineage()
    async with await Ledger.connect(changeable_url) as old:
        await open_accounts(old, lineage, releases(9), ann=releases(9))
        await old.charge(asking(lineage, "ann", "1"))
        monkeypatch.setattr("dpserve.accounting.ledger.store.our_library", lambda: newer)
        async with await Ledger.connect(changeable_url) as new:
            await new.charge(asking(lineage, "ann", "2"))
            monkeypatch.undo()
            charge = await old.charge(asking(lineage, "ann", "1", "2", "3"))
            assert charge.receipt is not None
            assert (charge.receipt.sequence, charge.receipt.releases) == (3, 1)
    assert _libraries(store) == {ours.name: ours.code, newer.name: newer.code}


@pytest.mark.parametrize("written", ["none", "8"])
async def test_a_lineage_of_another_format_is_left_alone(
    changeable_url: str, store: "redis.Redis[bytes]", written: str
) -> None:
    lineage = new_lineage()
    async with await Ledger.connect(changeable_url) as ledger:
        await open_accounts(ledger, lineage, releases(9), ann=releases(9))
        await ledger.charge(asking(lineage, "ann", "1"))
        account = f"dpserve:{{{lineage}}}:account"
        store.hset(account, "format", written)
        if written == "none":
            store.hdel(account, "format")
        before = dump(changeable_url, lineage)
        calls = [
            ledger.charge(asking(lineage, "ann", "2")),
            ledger.quote(asking(lineage, "ann", "2")),
            ledger.lineage(lineage),
            ledger.acting("owner").add_client(lineage, "bob", releases(1), key_digest("bob"), time=0.0),
            ledger.acting("owner").set_budget(lineage, releases(10)),
        ]
        for call in calls:
            with pytest.raises(WrongFormat, check=lambda error: error.named[1] == written):
                await call
        assert dump(changeable_url, lineage) == before


async def test_a_library_that_was_altered_is_refused(changeable_url: str, store: "redis.Redis[bytes]") -> None:
    store.execute_command("FUNCTION", "LOAD", "REPLACE", our_library().code + "\n-- altered")
    with pytest.raises(UnsafeStore, match="altered"):
        await Ledger.connect(changeable_url)


async def test_nobody_listening_is_one_line_without_the_password() -> None:
    port = free_port()
    with pytest.raises(LedgerUnavailable) as caught:
        await Ledger.connect(f"redis://owner:secret@127.0.0.1:{port}/0", deadline=0.3)
    assert str(caught.value).startswith(f"the ledger's store at 127.0.0.1:{port} cannot be reached: ")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_missing_or_wrong_password_is_one_line(changeable_url: str, store: "redis.Redis[bytes]") -> None:
    store.config_set("requirepass", "right")
    for url in (changeable_url, changeable_url.replace("redis://", "redis://:wrong@")):
        with pytest.raises(LedgerUnavailable, match=r"^the ledger's store denies access: .*") as caught:
            await Ledger.connect(url)
        assert "wrong" not in str(caught.value)
    await (await Ledger.connect(changeable_url.replace("redis://", "redis://:right@"))).close()


async def test_a_reply_to_another_call_is_not_taken(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = await Ledger.connect(store_url)
    lineage = new_lineage()
    await open_accounts(ledger, lineage, releases(2), ann=releases(2))
    kept: list[list[object]] = []
    real = Redis.execute_command

    async def one_behind(self: Redis, *words: object, **options: object) -> object:
        reply = await real(self, *words, **options)
        if words[0] != "FCALL":
            return reply
        kept.append(reply)
        return kept[-2] if len(kept) > 1 else reply

    monkeypatch.setattr(Redis, "execute_command", one_behind)
    await ledger.client(lineage, "ann")
    with pytest.raises(LedgerUnavailable, match="replied to another call"):
        await ledger.lineage(lineage)
    await ledger.close()


async def test_more_calls_than_connections_wait_their_turn(store_url: str) -> None:
    store = Store(store_url, connections=2)
    await store.verify()
    replies = await asyncio.gather(
        *(
            store.call("none", "find_client", ["dpserve:{none}:services", "dpserve:{none}:keys"], {"digest": str(n)})
            for n in range(50)
        )
    )
    assert [values for values, _ in replies] == [[b""]] * 50
    await store.close()


@pytest.mark.parametrize("deadline", [0.0001, 0.01, 0.5, 5.0])
@pytest.mark.parametrize("replicas", [0, 2])
def test_the_waits_for_disks_end_before_the_deadline_and_none_is_for_ever(deadline: float, replicas: int) -> None:
    waits = Store("redis://localhost", deadline=deadline, replicas=replicas)._waits_for()
    assert min(waits) > 0
    assert sum(waits) <= max(1, 900 * deadline)


def test_waits_that_each_end_late_are_over_before_the_deadline() -> None:
    waits = Store("redis://localhost", replicas=1)._waits_for()
    assert sum(waits) + 100 * len(waits) < 1000 * DEADLINE


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://localhost", "must start with redis://, rediss:// or unix://"),
        ("redis://localhost?retry_on_timeout=yes&socket_timeout=9", "not retry_on_timeout, socket_timeout"),
        ("redis://localhost:none", "is not one that can be read"),
        ("redis+sentinel://localhost:26379", "must name the service"),
        ("redis+sentinel://localhost/ledger/first", "first"),
        ("redis+sentinel://localhost/ledger?db=3", "not db"),
        ("rediss://localhost?ssl_cert_reqs=optional", "ssl_cert_reqs"),
        ("rediss://localhost?ssl_ca_certs=/nowhere/ca.pem", "/nowhere/ca.pem"),
        ("rediss+sentinel://localhost/l?ssl_certfile=/nowhere/client.pem", "/nowhere/client.pem"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Store(url)


@pytest.mark.parametrize("place", ["redis://localhost", "redis+sentinel://localhost/ledger"])
@pytest.mark.parametrize("option", ["ssl_ca_certs=ca.pem", "ssl_cert_reqs=none", "ssl_check_hostname="])
def test_an_address_that_asks_for_tls_and_has_none_is_refused(place: str, option: str) -> None:
    with pytest.raises(ValueError, match="not encrypted"):
        Store(f"{place}?{option}")


@pytest.mark.parametrize("scheme", ["redis+sentinel", "rediss+sentinel"])
def test_an_address_is_shown_without_its_passwords(scheme: str) -> None:
    url = f"{scheme}://clerk:secret@one:1,two/ledger/2?sentinel_username=watcher&sentinel_password=seen"
    assert Store(url).address == "ledger by one:1, two:26379"
