"""The wheel: built of what the image's build gets, with all that an installation needs, under the one version."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from datetime import date
from importlib.metadata import version
from pathlib import PurePosixPath

import pytest

from .conftest import ROOT
from .test_image import INSTRUCTIONS, program

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PROJECT["project"]["version"]
LINKS = {path.name: path.resolve() for path in (ROOT / "dpserve").iterdir() if path.is_symlink()}
FOLDERS = {PurePosixPath("dpserve"): ROOT / "dpserve"} | {
    PurePosixPath("dpserve") / name: folder for name, folder in LINKS.items()
}
"""The one package, and the folders that are its own by links: each module by the place that it is installed at."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of what the Dockerfile copies before it installs, by the project's own build backend."""
    folder = tmp_path_factory.mktemp("src")
    for word, rest in INSTRUCTIONS:
        if word == "COPY" and not rest.startswith("--from") and "healthcheck" not in rest:
            *sources, target = rest.split()
            for source in sources:
                place = folder / target / source if target.endswith("/") else folder / target
                place.parent.mkdir(parents=True, exist_ok=True)
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, place, symlinks=True)  # as an image's build copies
                else:
                    shutil.copy(ROOT / source, place)
    build = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, "out"], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(folder / "out" / done.stdout.split()[-1]) as opened:
        yield opened


def test_it_holds_every_module_and_what_lies_beside_them_and_nothing_else(wheel):
    there = {
        str(prefix / path.relative_to(folder))
        for prefix, folder in FOLDERS.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == there
    needed = {"accounting/ledger/charge.lua", "service/page/static/owner.js", "py.typed"}
    assert {f"dpserve/{name}" for name in needed} <= held
    assert {name.partition("/")[0] for name in held} == {"dpserve"}


def test_its_metadata_has_the_version_and_the_command(wheel):
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    assert f"\nVersion: {VERSION}\n" in wheel.read(metadata).decode()
    assert "dpserve = dpserve.__main__:main" in wheel.read(metadata.replace("METADATA", "entry_points.txt")).decode()


def test_the_version_is_that_of_the_project_wherever_it_is_named():
    assert version("dpserve") == VERSION
    for name in ("docs/deploying.md", "k8s/components/image/kustomization.yaml"):
        text = (ROOT / name).read_text()
        named = re.findall(r"(?:dpserve:|newName: dpserve\n +newTag: )(\d+\.\d+\.\d+)", text)
        assert named, name
        assert set(named) == {VERSION}, name


def test_the_changelog_has_the_version_and_dates():
    headings = re.findall(r"^## (\S+) \((.*)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0][0] == VERSION
    dates = [date.fromisoformat(when) for _, when in headings if when != "unreleased"]
    assert [when for _, when in headings].count("unreleased") == len(headings) - len(dates) <= 1
    assert headings[0][1] == "unreleased" or len(dates) == len(headings)
    assert dates == sorted(dates, reverse=True)


@pytest.mark.slow
def test_a_wheel_is_tried_on_each_python_and_a_failure_is_said(tmp_path, capsys):
    tried = program("try_wheel")
    (tmp_path / "broken.whl").write_bytes(b"no wheel")
    missing = ["--python", "python-that-is-nowhere"]
    assert tried.main([str(tmp_path / "broken.whl"), *missing]) == 1
    assert "not on this machine" in capsys.readouterr().out
    assert tried.main([str(tmp_path / "broken.whl"), "--python", sys.executable, *missing]) == 1
    captured = capsys.readouterr()
    assert f"{sys.executable}: fails" in captured.out
    assert "broken.whl" in captured.err
