"""Finished runs of a benchmark in a file, a line of JSON each, so that an interrupted one goes on where it stopped."""

import json
from pathlib import Path
from typing import Any


def read(path: Path, code: str) -> list[dict[str, Any]]:
    """Return the runs of this code in the file, in its order; a line that was cut off is no run."""
    found = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            one = json.loads(line)
        except ValueError:
            continue
        if one.get("code") == code:
            found.append(one)
    return found


def append(path: Path, run: dict[str, Any]) -> None:
    """Add a finished run, on a line of its own also after one that was cut off."""
    before = path.read_text("utf-8") if path.exists() else ""
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * (before != "" and not before.endswith("\n")) + json.dumps(run) + "\n")
