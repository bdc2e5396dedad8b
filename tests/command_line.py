"""`dpserve` and programs as a user runs them: a process of its own for each.

It is forked from one that has imported what commands import, for imports take most of a command's time.
"""

import importlib
import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, ForkServerContext
from pathlib import Path

PRELOADED = (
    "dpserve.cli",
    *(
        f"dpserve.commands.{name}"
        for name in ("accounts", "attacking", "explaining", "ledger", "planning", "serving", "training")
    ),
    "dpserve.audit.presentation",
    "dpserve.audit.membership.attack",
    "dpserve.classifier",
    "dpserve.service.admin.app",
    "dpserve.serving",
    "dpserve.training.kinds.head.train",
    "uvicorn.protocols.http.httptools_impl",
)
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload([*PRELOADED])

Being = Callable[[list[str], Path, dict[str, str]], None]
"""A process's work, with words, in a folder and an environment."""


def ran(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], *, stdin: str = "", seconds: float = 120
) -> "subprocess.CompletedProcess[str]":
    """Run `dpserve` with these words in a folder and return what it printed and its exit status."""
    return _ended(FORKING, _be_dpserve, words, folder, environment, stdin, seconds)


def ran_program(
    program: Path, words: Sequence[str], folder: Path, environment: Mapping[str, str], *, seconds: float = 300
) -> "subprocess.CompletedProcess[str]":
    """Run a program of Python as `ran` does `dpserve`."""
    return _ended(FORKING, _be_a_program, [str(program), *words], folder, environment, "", seconds)


def _ended(
    forking: ForkServerContext | ForkContext,
    being: Being,
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    stdin: str,
    seconds: float,
) -> "subprocess.CompletedProcess[str]":
    with tempfile.TemporaryDirectory() as temporary:
        streams = Path(temporary)
        (streams / "stdin").write_text(stdin)
        process = forking.Process(
            target=_be_one_that_ends, args=(being, list(words), folder, dict(environment), streams)
        )
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()  # the tests' own process would wait for it at its end
            process.join()
            raise AssertionError(f"{' '.join(words)} does not end")
        stdout, stderr = ((streams / name).read_text() for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess(words, process.exitcode, stdout, stderr)


class Forks:
    """A process that has imported `dpserve` with other packages on its path, and is forked for each command."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """environment: that of the process, whose PYTHONPATH leads to the packages."""
        words = [sys.executable, "-c", "from tests.command_line import fork_for_commands; fork_for_commands()"]
        self._process = subprocess.Popen(
            words, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ran(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str]
    ) -> "subprocess.CompletedProcess[str]":
        """Run `dpserve` with these words in a folder and return what it printed and its exit status."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps([words, str(folder), dict(environment)]), file=self._process.stdin, flush=True)
        return subprocess.CompletedProcess(words, *json.loads(self._process.stdout.readline()))

    def end(self) -> None:
        """End it."""
        self._process.communicate(timeout=60)


def fork_for_commands() -> None:
    """Be the process of `Forks`: read commands from the standard input, and write what each printed."""
    for name in PRELOADED:
        importlib.import_module(name)
    forking = multiprocessing.get_context("fork")
    for line in sys.stdin:
        words, folder, environment = json.loads(line)
        done = _ended(forking, _be_dpserve, words, Path(folder), environment, "", 300)
        print(json.dumps([done.returncode, done.stdout, done.stderr]), flush=True)


class Service:
    """`dpserve serve` in a process of its own, forked as others are, with the methods of `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        (stdout, theirs), (stderr, their_errors) = FORKING.Pipe(duplex=False), FORKING.Pipe(duplex=False)
        arguments = (["serve", *words], folder, dict(environment), theirs, their_errors)
        self._process = FORKING.Process(target=_be_the_service, args=arguments)
        self._process.start()
        self.stdout, self.stderr = (os.fdopen(os.dup(each.fileno()), encoding="utf-8") for each in (stdout, stderr))
        for each in (stdout, theirs, stderr, their_errors):
            each.close()

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.stderr.close()
        self.wait()

    @property
    def pid(self) -> int:
        """Its number."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status, if it has ended."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("dpserve", timeout or 0)
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read what it prints until its end."""
        streams = self.stdout, self.stderr
        with ThreadPoolExecutor(2) as pool:
            reading = [pool.submit(lambda stream: "" if stream.closed else stream.read(), each) for each in streams]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            said, errors = (each.result() for each in reading)
        for each in streams:
            each.close()
        return said, errors

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended: the server of forks takes its status before it is known here."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


def _be_the_service(
    words: list[str], folder: Path, environment: dict[str, str], stdout: Connection, stderr: Connection
) -> None:
    """Be the process of one service, whose output is read while it runs."""
    keep_descriptors()
    for number, stream in ((1, stdout), (2, stderr)):
        os.dup2(stream.fileno(), number)
        stream.close()
    _be_dpserve(words, folder, environment)


def keep_descriptors() -> None:
    """Give none of this process's descriptors on: a store that outlives it would keep what it says open."""
    for number in (int(each.name) for each in Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # the one that listed them
            os.set_inheritable(number, False)


def _be_one_that_ends(being: Being, words: list[str], folder: Path, environment: dict[str, str], streams: Path) -> None:
    """Be a process whose standard streams are files. Ends with its exit status."""
    new = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, name, flags in ((0, "stdin", os.O_RDONLY), (1, "stdout", new), (2, "stderr", new)):
        opened = os.open(streams / name, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    being(words, folder, environment)


@contextmanager
def _begun(words: list[str], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Begin as a new process does, on standard streams that are open."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # what the server of forks took it for, where something that it imported asked
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, buffering=1, encoding="utf-8", closefd=False)
        for number, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = words
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _be_dpserve(words: list[str], folder: Path, environment: dict[str, str]) -> None:
    with _begun(["dpserve", *words], folder, environment):
        from dpserve.cli import main

        main()


def _be_a_program(words: list[str], folder: Path, environment: dict[str, str]) -> None:
    with _begun(words, folder, environment):
        runpy.run_path(words[0], run_name="__main__")
