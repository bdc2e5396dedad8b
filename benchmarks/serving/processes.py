"""A server under load: started, waited for, measured from outside, and stopped with all that it started."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_SECONDS_TO_START = 90


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@dataclass(frozen=True)
class Use:
    """CPU seconds so far and the peak of resident memory in MiB, of a process and all below it."""

    cpu_seconds: float
    peak_mebibytes: float


@dataclass(frozen=True)
class Server:
    """A running server."""

    process: subprocess.Popen[bytes]

    def use(self) -> Use:
        """Return what the server has used so far. Shared pages count once for each process that maps them."""
        ticks, kibibytes = 0, 0
        for number in _family(self.process.pid):
            try:
                fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
                status = Path(f"/proc/{number}/status").read_text()
            except OSError:
                continue
            ticks += int(fields[11]) + int(fields[12])
            kibibytes += next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
        return Use(ticks / _TICKS, kibibytes / 1024)


@contextmanager
def started(
    command: Sequence[str], ready: str, log: Path, *, cwd: Path | None = None, env: dict[str, str] | None = None
) -> Iterator[Server]:
    """Start a server, wait until `ready` answers 2xx, and stop it and its children at the end.

    Raises RuntimeError with the end of its log when it does not come up.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=cwd, env=os.environ | (env or {}), stdout=output, stderr=output, start_new_session=True
        )
    try:
        _wait(process, ready, log)
        yield Server(process)
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def _wait(process: subprocess.Popen[bytes], ready: str, log: Path) -> None:
    deadline = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(ready, timeout=2):
                return
        except urllib.error.HTTPError as error:
            if error.code < 500:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"{ready} does not answer; its log ends:\n{log.read_text(errors='replace')[-2000:]}")


def _family(pid: int) -> list[int]:
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()
    ]
    return [pid, *(below for child in children for below in _family(child))]
