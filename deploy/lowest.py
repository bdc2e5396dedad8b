"""Print the lowest versions that pyproject.toml allows, as constraints for pip; what it pins stays as it is pinned.

A package that several groups name gets the highest of their bounds: pip would refuse any lower one.
"""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[[^]]*\])?(?P<pin>==)?([^;]*?>=(?P<bound>[\d.]+))?")


def lowest(requirements: Iterable[str]) -> dict[str, str]:
    """Return the lowest version of each package with a lower bound that no requirement pins."""
    bounds: dict[str, str] = {}
    pinned = set()
    for requirement in requirements:
        part = _REQUIREMENT.match(requirement)
        assert part is not None
        name, bound = re.sub(r"[-_.]+", "-", part["name"]).lower(), part["bound"]
        if part["pin"]:
            pinned.add(name)
        elif bound and _numbers(bound) > _numbers(bounds.get(name, "")):
            bounds[name] = bound
    return {name: bounds[name] for name in sorted(bounds.keys() - pinned)}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)


def main() -> None:
    """Print the constraints."""
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for name, version in lowest(requirement for group in groups for requirement in group).items():
        print(f"{name}=={version}")


if __name__ == "__main__":
    main()
