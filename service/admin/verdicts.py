"""The newest verdict of each kind of attack and audit, kept as files in the owner's state folder.

`dpserve attack --json` and `dpserve audit ... --json` write `verdicts/NAME.json` there, NAME being the command
(`attack`, `audit-service`, ...): the newest replaces the one before. A file is an object with `name`, `time` (seconds
since the epoch), `report` (what --json prints) and `pictures` (each with `title`, `caption`, and `png` in base64).
"""

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpserve.accounting.whole_files import write_whole

FOLDER = "verdicts"
"""In the owner's state folder."""

_NAME = re.compile(r"[a-z][a-z-]{0,63}")
_LARGEST_FILE = 32 * 1024 * 1024


def keep(
    folder: Path, name: str, report: Mapping[str, Any], pictures: Sequence[tuple[str, str, bytes]], *, time: float
) -> Path:
    """Write a verdict over the former one of its name. pictures: title, caption, PNG. Raises OSError, ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name a verdict: small letters and dashes can")
    content = {
        "name": name,
        "time": time,
        "report": dict(report),
        "pictures": [
            {"title": title, "caption": caption, "png": base64.b64encode(png).decode("ascii")}
            for title, caption, png in pictures
        ],
    }
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    write_whole(path, json.dumps(content, allow_nan=False))
    return path


def newest(folder: Path) -> list[dict[str, Any]]:
    """Return the kept verdicts, the newest first; a file that is no verdict is left out."""
    newest_of_each = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            if not _NAME.fullmatch(path.stem) or path.stat().st_size > _LARGEST_FILE:
                continue
            verdict = json.loads(path.read_text("utf-8"), parse_constant=_finite, parse_float=_finite)
        except (OSError, ValueError, RecursionError):
            continue  # removed since it was listed, not to be read, or no JSON
        if _is_verdict(verdict):
            newest_of_each.append(verdict | {"name": path.stem})
    return sorted(newest_of_each, key=lambda verdict: -verdict["time"])


def _finite(text: str) -> float:
    """Return a number of a verdict; NaN and 1e999 are none: nothing is sorted by them, and no answer may have them."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number")
    return number


def _is_verdict(content: Any) -> bool:
    return (
        isinstance(content, dict)
        and isinstance(content.get("time"), int | float)
        and isinstance(content.get("report"), dict)
        and isinstance(content["report"].get("convicted"), bool)
        and isinstance(content.get("pictures"), list)
    )
