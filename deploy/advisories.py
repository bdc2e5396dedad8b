"""Add what `pip-audit --format json` found to tests/advisories.csv, which the tests compare every version with.

    python deploy/advisories.py AUDIT.json

`make advisories` asks pip-audit about deploy/constraints.txt first; `make advisories AUDIT=FILE` takes an output that
was made elsewhere, and asks nobody. What was listed stays: a hole that was closed must not come back with an older
version.
"""

import csv
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

LIST = Path(__file__).parents[1] / "tests" / "advisories.csv"
HEAD = ("package", "fixed in", "advisory")
NO_FIX = ""
"""The fixed version of a hole that no version closes."""

Row = tuple[str, str, str]


def read(path: Path) -> list[Row]:
    """Return the rows of the list. Raises KeyError where it has other columns."""
    _, *lines = path.read_text("utf-8").splitlines()
    return [(row["package"], row["fixed in"], row["advisory"]) for row in csv.DictReader(lines)]


def found(audit: dict[str, Any]) -> list[Row]:
    """Return a row for each vulnerability of pip-audit's output, with the nearest version that closes it."""
    rows = []
    for package in audit["dependencies"]:
        for hole in package.get("vulns", ()):
            here = Version(package["version"])
            above = sorted(version for version in map(Version, hole["fix_versions"]) if version > here)
            known_as = sorted(name for name in hole.get("aliases", ()) if name.startswith("CVE-"))
            rows.append(
                (canonicalize_name(package["name"]), str(above[0]) if above else NO_FIX, (*known_as, hole["id"])[0])
            )
    return rows


def merged(listed: list[Row], new: list[Row]) -> list[Row]:
    """Return both, one row for each hole of a package, with the newer fix where they differ; sorted."""
    by_hole = {(package, advisory): fixed for package, fixed, advisory in [*listed, *new]}
    rows = [(package, fixed, advisory) for (package, advisory), fixed in by_hole.items()]
    return sorted(rows, key=lambda row: (row[0], Version(row[1] or "0"), row[2]))


def main(audit_path: Path, list_path: Path = LIST) -> None:
    """Write the list anew, dated by when pip-audit's output was written. Exits for what is no such output."""
    try:
        audit = json.loads(audit_path.read_text("utf-8"))
        new = found(audit)
        looked_at = [each["name"] for each in audit["dependencies"] if "skip_reason" not in each]
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{audit_path} is no output of `pip-audit --format json`: {error!r}")
    if not looked_at:
        why = [each["skip_reason"] for each in audit["dependencies"]][:1]
        sys.exit(": ".join([f"{audit_path} has looked at no package", *why]))
    day = datetime.fromtimestamp(audit_path.stat().st_mtime, UTC).date()
    listed = read(list_path)
    rows = merged(listed, new)
    with list_path.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# As of {day}: pip-audit looked at {len(looked_at)} packages, and what was listed before.\n")
        csv.writer(file, lineterminator="\n").writerows([HEAD, *rows])
    print(f"{list_path.name}: {len(rows) - len(listed)} added to {len(listed)}; {len(new)} concern versions in use")
    for package, fixed, advisory in new:
        print(f"  {package}: {advisory}, " + (f"closed in {fixed}" if fixed else "which no version closes"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python deploy/advisories.py AUDIT.json")
    main(Path(sys.argv[1]))
