"""The command line as a user runs it: a process of its own, with a home of its own."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CSV = "age,income,id,ok\n" + "".join(
    f"{20 + index % 60},{1000 * (index % 60) + index % 7},{index},{'yes' if index % 60 > 30 else 'no'}\n"
    for index in range(200)
)
TRAIN = ["train", "--label", "ok", "--classes", "no,yes", "--ignore", "id", "--lam", "1", "--lineage", "people"]
TRAIN += ["--bounds", "age=0:120", "--bounds", "income=0:1e6"]

# Every command is a process, forked from one that has imported what commands import: imports take most of their time.
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(
    [
        "dpserve.cli",
        *(
            f"dpserve.commands.{name}"
            for name in ("accounts", "attacking", "explaining", "ledger", "planning", "serving", "training")
        ),
        "audit.presentation",
        "audit.membership.attack",
        "training.train",
    ]
)


def command_line(arguments, folder, environment, stdin, written):
    """Be the process of one command: its standard streams are files. Ends with the command's exit status."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, name, flags in (
        (0, stdin, os.O_RDONLY),
        (1, written / "stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, written / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(name, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, encoding="utf-8", closefd=False) for number, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["dpserve", *arguments]
    from dpserve.cli import main

    try:
        main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


class CommandLine:
    """Runs `dpserve` in a folder; everything it keeps stays there."""

    csv = CSV
    train = TRAIN

    def __init__(self, folder: Path, written: Path) -> None:
        """written: a folder for what commands print."""
        self.folder = folder
        self.written = written
        self.environment = os.environ | {"DPSERVE_HOME": str(folder / "home"), "COLUMNS": "200", "NO_COLOR": "1"}

    def __call__(self, *arguments, status=0, stdin=""):
        (self.written / "stdin").write_text(stdin)
        words = [str(argument) for argument in arguments]
        process = FORKING.Process(
            target=command_line, args=(words, self.folder, self.environment, self.written / "stdin", self.written)
        )
        process.start()
        process.join(120)
        assert process.exitcode is not None, f"dpserve {' '.join(words)} does not end"
        stdout, stderr = ((self.written / name).read_text() for name in ("stdout", "stderr"))
        done = subprocess.CompletedProcess(words, process.exitcode, stdout, stderr)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def fails(self, *arguments):
        """Return the one line that the command fails with."""
        done = self(*arguments, status=1)
        (line,) = done.stderr.strip().splitlines()
        assert line.startswith("dpserve: ")
        return line.removeprefix("dpserve: ")

    def start(self, *arguments):
        """Start a service and return its process and its address."""
        return self.start_and_read(*arguments)[:2]

    def start_and_read(self, *arguments):
        """Start a service and return its process, its address, and the lines that it printed before."""
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "dpserve", "serve", *map(str, arguments)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        before = []
        for line in process.stdout:
            said = json.loads(line)["message"] if line.startswith("{") else line.removeprefix("dpserve: ")
            if said.startswith("serving"):
                return process, said.split()[-1], before
            before.append(line.rstrip())
        raise AssertionError(process.stderr.read())


@pytest.fixture
def run(tmp_path, tmp_path_factory) -> CommandLine:
    (tmp_path / "own.csv").write_text(CSV)
    return CommandLine(tmp_path, tmp_path_factory.mktemp("written"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with a bundle and the home that it was trained in."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "own.csv").write_text(CSV)
    run = CommandLine(folder, tmp_path_factory.mktemp("written"))
    run(*run.train, "--data", "own.csv", "--features", "identity", "--out", "model")
    return folder


@pytest.fixture
def bundle(run, trained):
    """A bundle of the test's own: a copy of one that is trained once."""
    shutil.copytree(trained, run.folder, dirs_exist_ok=True)
    return run.folder / "model"


@pytest.fixture
def service(run, bundle):
    """A served model: its address."""
    process, address = run.start(bundle, "--port", 0, "--epsilon", 3, "--delta", 1e-6, "--price", "rho:0.001")
    yield address
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
