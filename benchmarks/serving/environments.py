"""The peers' environments: each peer in one of its own, made at the first run, never the project's."""

import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.serving.contenders import PEERS


def install(environments: Path) -> None:
    """Make an environment for each peer that has none yet, or another one than its requirements say."""
    for requirements in sorted(PEERS.glob("*/requirements.txt")):
        make_environment(environments / requirements.parent.name, requirements.read_text())


def make_environment(home: Path, requirements: str) -> Path:
    """Return the Python of an environment in `home` with these requirements, one a line; make it where it lacks."""
    done = home / ".installed"
    if not (done.exists() and done.read_text() == requirements):
        print(f"installing {home.name} into {home} ...", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        # One after the other, so that a pinned torch is there before anything asks for a newer one.
        for requirement in sorted(requirements.split(), key=lambda line: not line.startswith("torch")):
            subprocess.run([home / "bin/pip", "install", "-qq", requirement], check=True)
        done.write_text(requirements)
    return home / "bin/python"


def versions() -> dict[str, str]:
    """Return each peer's pinned version."""
    pinned = [line.split("==") for file in PEERS.glob("*/requirements.txt") for line in file.read_text().split()]
    peers = {folder.name for folder in PEERS.iterdir()}
    return {name: version for name, version in pinned if name in peers}
