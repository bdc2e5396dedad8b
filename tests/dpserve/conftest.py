"""The command line as a user runs it: a process of its own, with a home of its own."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG

from tests.command_line import Forks, Service, ran

# A service beside other work answers later than in the five seconds that httpx waits for.
DEFAULT_TIMEOUT_CONFIG.connect = DEFAULT_TIMEOUT_CONFIG.read = DEFAULT_TIMEOUT_CONFIG.write = 60

CSV = "age,income,id,ok\n" + "".join(
    f"{20 + index % 60},{1000 * (index % 60) + index % 7},{index},{'yes' if index % 60 > 30 else 'no'}\n"
    for index in range(200)
)
TRAIN = ["train", "--label", "ok", "--classes", "no,yes", "--ignore", "id", "head", "--lam", "1", "--lineage", "people"]
TRAIN += ["--bounds", "age=0:120", "--bounds", "income=0:1e6"]


class CommandLine:
    """Runs `dpserve` in a folder; everything it keeps stays there."""

    csv = CSV
    train = TRAIN

    def __init__(self, folder: Path) -> None:
        """folder: where the user is."""
        self.folder = folder
        self.environment = os.environ | {
            "DPSERVE_HOME": str(folder / "home"),
            "DPSERVE_PORT": "0",
            "COLUMNS": "200",
            "NO_COLOR": "1",
        }
        self.started = []
        self.imports_anew = False
        """Whether a service is to be no fork of a process that has imported everything: to find other packages."""
        self.with_packages = None
        """A process that has other packages imported, to be forked for commands that find these."""

    def __call__(self, *arguments, status=0, stdin=""):
        done = ran([str(argument) for argument in arguments], self.folder, self.environment, stdin=stdin)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def with_others(self, *arguments, status=0):
        """Run the command where the example of other packages is installed."""
        done = self.with_packages.ran([str(each) for each in arguments], self.folder, self.environment)
        assert done.returncode == status, done.stdout + done.stderr
        return done

    def in_a_new_process(self, *arguments, status=0):
        """Run the command in a process that has imported nothing: there other packages are found."""
        words = [sys.executable, "-m", "dpserve", *map(str, arguments)]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=300, cwd=self.folder, env=self.environment, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done

    def fails(self, *arguments):
        """Return the one line that the command fails with."""
        done = self(*arguments, status=1)
        (line,) = done.stderr.strip().splitlines()
        assert line.startswith("dpserve: ")
        return line.removeprefix("dpserve: ")

    def start(self, *arguments, stdin=None):
        """Start a service and return its process and its address."""
        return self.start_and_read(*arguments, stdin=stdin)[:2]

    def start_and_read(self, *arguments, stdin=None):
        """Start a service and return its process, its address, and the lines that it printed before."""
        words = [str(argument) for argument in arguments]
        if self.imports_anew or "--workers" in words or stdin is not None:
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", "dpserve", "serve", *words],
                cwd=self.folder,
                env=self.environment,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        else:
            process = Service(words, self.folder, self.environment)
        self.started.append(process)
        before = []
        for line in process.stdout:
            said = json.loads(line)["message"] if line.startswith("{") else line.removeprefix("dpserve: ")
            if said.startswith("serving"):
                return process, said.split()[-1], before
            before.append(line.rstrip())
        raise AssertionError(process.stderr.read())

    @staticmethod
    def read_log(process, counts):
        """Read a service's log until each expression of `counts` is in so many of its lines."""
        met = dict.fromkeys(counts, 0)
        patience = threading.Timer(120, process.kill)  # which ends the log of one that falls silent
        patience.start()
        try:
            for line in process.stderr:
                for expression in counts:
                    met[expression] += re.search(expression, line) is not None
                if all(met[each] >= counts[each] for each in counts):
                    return
        finally:
            patience.cancel()
        raise AssertionError(met)

    def end(self):
        """End what a failed test left, and close its pipes: left open, they would fail whichever test runs later."""
        for process in self.started:
            with process:  # closes the pipes
                process.terminate()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()


@pytest.fixture
def run(tmp_path) -> Iterator[CommandLine]:
    (tmp_path / "own.csv").write_text(CSV)
    found = CommandLine(tmp_path)
    yield found
    found.end()


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with a bundle and the home that it was trained in."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "own.csv").write_text(CSV)
    run = CommandLine(folder)
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


@pytest.fixture(scope="session")
def installed_packages(tmp_path_factory):
    """The folder in which the example of other packages is installed, as its authors would install it."""
    folder = tmp_path_factory.mktemp("packages")
    # A build writes into the folder that it builds.
    source = shutil.copytree(Path(__file__).parents[1] / "another_package", folder / "source")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*install, "--target", folder / "site", source], check=True, timeout=300)
    return folder / "site"


def and_packages(folder):
    """Return the PYTHONPATH of who has the packages of a folder installed."""
    return os.pathsep.join([str(folder), *sys.path])


@pytest.fixture(scope="session")
def with_packages(installed_packages):
    """A process that has the packages of `tests/another_package` imported, and is forked for each command."""
    forks = Forks(os.environ | {"PYTHONPATH": and_packages(installed_packages)})
    yield forks
    forks.end()


@pytest.fixture
def another_package(run, installed_packages, with_packages):
    """Have the packages of `tests/another_package` installed for the command line."""
    run.imports_anew = True
    run.with_packages = with_packages
    run.environment["PYTHONPATH"] = and_packages(installed_packages)
