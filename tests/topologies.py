"""Replicated stores of real servers on loopback: a primary with a replica, and Sentinels that watch both."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from tests.faults.servers import DURABLE, StoreServer
from tests.tls_fronts import STORES_OWN, Fronts

_PATIENCE = 60.0


@dataclass(frozen=True)
class Replicated:
    """A store of several servers, whose primaries have one replica each. `url` has the credentials of `user`."""

    url: str
    primaries: Sequence[StoreServer]

    def empty(self) -> None:
        """Remove all keys."""
        for each in self.primaries:
            said(each, "FLUSHALL")


def said(server: StoreServer, *words: str | int) -> Any:
    """Send a server one command as its administrator, and return the reply."""
    with redis.Redis(port=server.port, protocol=2, decode_responses=True) as client:
        return client.execute_command(*words)


@contextmanager
def primary_and_sentinels(folder: Path, user: Sequence[str]) -> Iterator[tuple[Replicated, Replicated]]:
    """Give a primary with a replica by its own address, and the same by that of three Sentinels.

    user: the name of the user that the ledger is to be, its password and its rights.
    """
    with ExitStack() as started:
        first = started.enter_context(StoreServer(folder / "first"))
        following: Mapping[str, str] = DURABLE | {"replicaof": f"127.0.0.1 {first.port}"}
        second = started.enter_context(StoreServer(folder / "second", following))
        wait_until(lambda: _has_copy(second))
        watching = [
            started.enter_context(StoreServer(folder / f"sentinel {n}", sentinel_for=first.port)) for n in range(3)
        ]
        _add_user(first, user)
        yield (
            Replicated(f"redis://{user[0]}:{user[1]}@127.0.0.1:{first.port}/0", [first]),
            Replicated(f"redis+sentinel://{user[0]}:{user[1]}@{_hosts(watching)}/ledger", [first]),
        )


@contextmanager
def encrypted_sentinels(folder: Path, user: Sequence[str], front: Fronts) -> Iterator[tuple[Replicated, StoreServer]]:
    """Give a primary by the address of three Sentinels that ask for a password, all behind TLS; and its replica.

    user: as for `primary_and_sentinels`.
    """
    own = {"bind-source-addr": STORES_OWN}
    watcher = {"user": "watcher on >seen +@all ~* &*", "sentinel sentinel-user": "watcher"}
    watcher |= {"sentinel sentinel-pass": "seen", "requirepass": "closed", "sentinel announce-ip": "127.0.0.1"}
    with ExitStack() as started:
        first = started.enter_context(StoreServer(folder / "first", DURABLE | own))
        _add_user(first, user)
        port = front.start(first.port)
        second = StoreServer(folder / "second")
        announced = {"replica-announce-ip": "127.0.0.1", "replica-announce-port": str(front.start(second.port))}
        second.settings = DURABLE | own | announced | {"replicaof": f"127.0.0.1 {port}"}
        started.enter_context(second)
        _add_user(second, user)
        wait_until(lambda: _has_copy(second))
        watching = [
            started.enter_context(StoreServer(folder / f"sentinel {n}", own | watcher, sentinel_for=port))
            for n in range(3)
        ]
        hosts = ",".join(f"127.0.0.1:{front.start(one.port)}" for one in watching)
        query = f"sentinel_username=watcher&sentinel_password=seen&{front.query}"
        yield Replicated(f"rediss+sentinel://{user[0]}:{user[1]}@{hosts}/ledger?{query}", [first]), second


def _hosts(servers: Sequence[StoreServer]) -> str:
    return ",".join(f"127.0.0.1:{one.port}" for one in servers)


def wait_until(holds: Callable[[], bool], patience: float = _PATIENCE) -> None:
    """Return as soon as it holds. Raises TimeoutError after a minute, or so many seconds."""
    last = time.monotonic() + patience
    while not holds():
        if time.monotonic() > last:
            raise TimeoutError("the servers do not find each other")
        time.sleep(0.02)


def _add_user(server: StoreServer, user: Sequence[str]) -> None:
    name, password, *rights = user
    said(server, "ACL", "SETUSER", name, "reset", "on", f">{password}", *rights)


def _has_copy(replica: StoreServer) -> bool:
    found: Mapping[str, Any] = said(replica, "INFO", "replication")
    return found.get("role") == "slave" and found.get("master_link_status") == "up"
