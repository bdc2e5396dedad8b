"""Print the lowest versions that pyproject.toml allows, as constraints for pip: of each series its last correction."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
named = [project["dependencies"], *project["optional-dependencies"].values()]
split = [re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?(==|>=)?([0-9.]*)", each) for group in named for each in group]
pinned = {part[1] for part in split if part and part[2] == "=="}
for name, version in sorted(
    {(part[1], part[3]) for part in split if part and part[2] == ">=" and part[1] not in pinned}
):
    print(f"{name}=={version}.*")
