"""Installs a wheel with pip alone in an empty environment of each Python, and has it train, serve and ask.

    python deploy/try_wheel.py dist/dpserve-*.whl --python python3.11 --python python3.12

An interpreter that is not on the machine is said. Exit status 1 where one fails, or none was there.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_SECONDS = 900
_ASKED = (
    "from importlib.metadata import version; import dpserve; "
    "print(version('dpserve'), dpserve.Client, dpserve.PrivateClassifier)"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the wheel and print what came of each Python; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", action="append", required=True, help="a name on PATH, or a path")
    given = parser.parse_args(arguments)
    outcomes = {name: _tried(name, given.wheel.resolve()) for name in given.python}
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome}")
    return 0 if any(each == "works" for each in outcomes.values()) and "fails" not in outcomes.values() else 1


def _tried(name: str, wheel: Path) -> str:
    """Return what came of one Python; the output of a command that fails goes to stderr."""
    found = shutil.which(name)
    if found is None or subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
        return "not on this machine"
    with tempfile.TemporaryDirectory(prefix="try-wheel-") as folder:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DPSERVE_"))}
        environment |= {"DPSERVE_HOME": f"{folder}/state", "HOME": folder}
        python, dpserve = f"{folder}/venv/bin/python", f"{folder}/venv/bin/dpserve"
        for command in (
            [found, "-m", "venv", f"{folder}/venv"],
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)],
            [python, "-m", "pip", "check", "--disable-pip-version-check"],
            [python, "-c", _ASKED],
            [dpserve, "--version"],
            [dpserve, "demo"],
        ):
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
            if done.returncode:
                sys.stderr.write(f"{name}: {' '.join(command)}\n{done.stdout}{done.stderr}")
                return "fails"
    return "works"


if __name__ == "__main__":
    sys.exit(main())
