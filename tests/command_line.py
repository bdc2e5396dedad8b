"""`dpserve` as a user runs it: a process of its own for each command.

It is forked from one that has imported what commands import, for imports take most of a command's time.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(
    [
        "dpserve.cli",
        *(
            f"dpserve.commands.{name}"
            for name in ("accounts", "attacking", "explaining", "ledger", "planning", "serving", "training")
        ),
        "dpserve.audit.presentation",
        "dpserve.audit.membership.attack",
        "dpserve.training.kinds.head.train",
    ]
)


def ran(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], *, stdin: str = "", seconds: float = 120
) -> "subprocess.CompletedProcess[str]":
    """Run `dpserve` with these words in a folder and return what it printed and its exit status."""
    with TemporaryDirectory() as temporary:
        streams = Path(temporary)
        (streams / "stdin").write_text(stdin)
        process = _FORKING.Process(target=_be_the_command, args=(list(words), folder, dict(environment), streams))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()  # the tests' own process would wait for it at its end
            process.join()
            raise AssertionError(f"dpserve {' '.join(words)} does not end")
        stdout, stderr = ((streams / name).read_text() for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess(words, process.exitcode, stdout, stderr)


def _be_the_command(words: list[str], folder: Path, environment: dict[str, str], streams: Path) -> None:
    """Be the process of one command: its standard streams are files. Ends with the command's exit status."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    new = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, name, flags in ((0, "stdin", os.O_RDONLY), (1, "stdout", new), (2, "stderr", new)):
        opened = os.open(streams / name, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, encoding="utf-8", closefd=False) for number, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["dpserve", *words]
    from dpserve.cli import main

    try:
        main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
