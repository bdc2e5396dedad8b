"""Says what pip-audit's output knows of the pinned versions: an advisory, nothing, or that nobody looked.

    python deploy/release_audit.py deploy/constraints.txt AUDIT.json

A package that could not be looked up is not one without advisories: pip-audit itself ends with 0 and "No known
vulnerabilities found" where an index answered for none. Exit status 1 where something is known against a pinned
version, 3 where a pinned version was not looked up, 0 where each was and nothing is known.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisories import Row, found
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ADVISED, NOT_LOOKED_UP = 1, 3
_SHOWN = 10
_ELSEWHERE = """\
That is no advisory: nothing is known of these, good or bad. Where pip-audit reaches a database, run
  pip-audit --format json --no-deps --disable-pip --requirement deploy/constraints.txt --output audit.json
(it ends with 1 where it found something), and here: make release AUDIT=audit.json"""


@dataclass(frozen=True)
class Verdict:
    """The pinned packages of which something is known, and those that were not looked up, with why."""

    packages: int
    advised: tuple[Row, ...]
    not_looked_up: tuple[tuple[str, str], ...]

    @property
    def status(self) -> int:
        """The exit status: an advisory goes before what was not looked up."""
        return ADVISED if self.advised else NOT_LOOKED_UP if self.not_looked_up else 0

    @property
    def words(self) -> str:
        """The lines for a person, of which the last says which of the three it is."""
        lines = []
        for name, why in self.not_looked_up[:_SHOWN]:
            lines.append(f"not looked up: {name}: {why}")
        if len(self.not_looked_up) > _SHOWN:
            lines.append(f"not looked up: {len(self.not_looked_up) - _SHOWN} more")
        if self.not_looked_up:
            lines.append(_ELSEWHERE)
        for package, fixed, advisory in self.advised:
            lines.append(f"advisory: {package}: {advisory}, " + (f"closed in {fixed}" if fixed else "not closed yet"))
        unknown = f"{len(self.not_looked_up)} of {self.packages} packages could not be looked up"
        if self.advised:
            known = f"{len({row[0] for row in self.advised})} of {self.packages} packages have a known advisory"
            lines.append(f"stopped: {known}" + (f", and {unknown}" if self.not_looked_up else ""))
        elif self.not_looked_up:
            others = "" if len(self.not_looked_up) == self.packages else ", and no advisory is known against the others"
            lines.append(f"stopped: {unknown}{others}")
        else:
            lines.append(f"all {self.packages} packages were looked up: no advisory is known against any")
        return "\n".join(lines)


def pins(constraints: str) -> dict[str, str]:
    """Return the pinned version of each package of a constraints file."""
    lines = (line.split("==") for line in constraints.splitlines() if "==" in line and not line.startswith("#"))
    return {str(canonicalize_name(name.strip())): version.strip() for name, version in lines}


def judged(pinned: Mapping[str, str], audit: dict[str, Any]) -> Verdict:
    """Compare an output of pip-audit with the pins.

    A package that the output lacks, or has at another version, was not looked up. Raises KeyError, TypeError or
    ValueError for what is no output of pip-audit.
    """
    why: dict[str, str] = {}
    looked_at: set[str] = set()
    for each in audit["dependencies"]:
        name = str(canonicalize_name(each["name"]))
        if "skip_reason" in each:
            why[name] = str(each["skip_reason"])
        elif name in pinned and _same(each["version"], pinned[name]):
            looked_at.add(name)
        else:
            why[name] = f"the output is of version {each['version']}"
    advised = tuple(row for row in found(audit) if row[0] in looked_at)
    missing = [name for name in pinned if name not in looked_at]
    return Verdict(
        len(pinned),
        advised,
        tuple((f"{name} {pinned[name]}", why.get(name, "the output does not name it")) for name in missing),
    )


def _same(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def main(constraints_path: Path, audit_path: Path) -> int:
    """Print the verdict and return its exit status."""
    pinned = pins(constraints_path.read_text("utf-8"))
    if not pinned:
        print(f"stopped: {constraints_path} pins no package")
        return NOT_LOOKED_UP
    try:
        verdict = judged(pinned, json.loads(audit_path.read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"{audit_path} is no output of `pip-audit --format json`: {error!r}\n{_ELSEWHERE}")
        print(f"stopped: none of {len(pinned)} packages could be looked up")
        return NOT_LOOKED_UP
    print(verdict.words)
    return verdict.status


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python deploy/release_audit.py CONSTRAINTS AUDIT.json")
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
