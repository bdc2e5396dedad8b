"""A server under load: started, waited for, measured from outside, and stopped with all that it started."""

import os
import resource
import signal
import socket
import subprocess
import time
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
    """The use of one process: CPU seconds so far, in the kernel and in all, and memory in MiB.

    peak: of resident memory; resident: now, pages shared with others included; share: now, each shared page divided by
    how many processes map it.
    """

    name: str
    cpu_seconds: float
    kernel_seconds: float
    peak: float
    resident: float
    share: float


def busy_seconds() -> float:
    """Return the CPU seconds that all processes of the machine together have used so far."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, interrupts, soft_interrupts = (int(field) for field in fields[:7])
    return (user + nice + system + interrupts + soft_interrupts) / _TICKS


def children_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


@dataclass(frozen=True)
class Server:
    """A running server."""

    process: subprocess.Popen[bytes]

    def use(self) -> list[Use]:
        """Return what each of the server's processes has used so far, the first one first."""
        found = []
        for number in _family(self.process.pid):
            try:
                found.append(_use(number))
            except OSError:
                continue
        return found

    def pause(self) -> None:
        """Stop all of its processes where they are."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Have them go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in _family(self.process.pid):
            os.kill(process, number)


@contextmanager
def start_server(
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


def _use(number: int) -> Use:
    process = Path(f"/proc/{number}")
    name, _, after = (process / "stat").read_text().rpartition(")")
    fields = after.split()
    user, kernel = int(fields[11]) / _TICKS, int(fields[12]) / _TICKS
    kibibytes = {}
    for table in ("status", "smaps_rollup"):
        for line in (process / table).read_text().splitlines():
            what, _, value = line.partition(":")
            if what in ("VmHWM", "VmRSS", "Pss"):
                kibibytes[what] = int(value.split()[0])
    peak, resident, share = (kibibytes.get(what, 0) / 1024 for what in ("VmHWM", "VmRSS", "Pss"))
    return Use(name.partition("(")[2], user + kernel, kernel, peak, resident, share)


def _wait(process: subprocess.Popen[bytes], ready: str, log: Path) -> None:
    deadline = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(ready, timeout=2):
                return
        except OSError:  # an HTTPError is one
            pass
        time.sleep(0.1)
    raise RuntimeError(f"{ready} does not answer; its log ends:\n{log.read_text(errors='replace')[-2000:]}")


def _family(pid: int) -> list[int]:
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()
    ]
    return [pid, *(below for child in children for below in _family(child))]
