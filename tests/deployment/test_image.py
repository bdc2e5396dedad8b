"""The Dockerfile: nothing a linter minds, nothing that `make image-check` does not carry out, no drifting builds."""

import importlib.util
import json
import re
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement

from .conftest import ROOT, SCRIPTS

DOCKERFILE = (ROOT / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def rehearsal():
    """The program that runs the Dockerfile's steps."""
    spec = importlib.util.spec_from_file_location("rehearse_image", ROOT / "deploy" / "rehearse_image.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lint(text):
    """What the linter says of a Dockerfile."""
    return subprocess.run(
        [SCRIPTS / "hadolint", "--no-color", "-"], input=text, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_linter_minds_nothing():
    done = lint(DOCKERFILE)
    assert (done.returncode, done.stdout) == (0, "")
    worse = lint(DOCKERFILE.replace("3.11.14-slim-bookworm", "latest").replace("USER 10001:10001", "USER root"))
    assert worse.returncode != 0
    assert {"DL3002"} <= set(re.findall(r"DL\d+", worse.stdout))


def test_every_step_is_one_that_is_rehearsed(rehearsal):
    arguments, stages = rehearsal.stages(DOCKERFILE)
    assert not arguments["PYTHON_IMAGE"].endswith(":latest")
    assert [word for stage in stages for word, _ in stage.steps].count("RUN") == DOCKERFILE.count("\nRUN ")
    with pytest.raises(ValueError, match="ONBUILD"):
        rehearsal.stages(DOCKERFILE + "ONBUILD RUN true\n")


def test_the_last_stage_is_not_roots_and_checks_its_health(rehearsal):
    *_, last = rehearsal.stages(DOCKERFILE)[1]
    steps = dict(last.steps)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", steps["USER"])
    assert json.loads(steps["HEALTHCHECK"].partition(" CMD ")[2])[1] == "/opt/dpserve/healthcheck.py"
    assert json.loads(steps["ENTRYPOINT"]) == ["dpserve"]
    assert "RUN" not in steps  # what is built is built in the stage before, whose tools stay there


@pytest.mark.parametrize("name", ["model/weights.npz", "patients.csv", ".git/config", "tests/conftest.py", ".env"])
def test_nothing_private_is_sent_to_the_build(rehearsal, name):
    assert not rehearsal.in_context(ROOT / name)


def test_what_the_package_needs_is_sent_to_the_build(rehearsal):
    for name in ("pyproject.toml", "service/run.py", "accounting/ledger/charges.lua", "deploy/constraints.txt"):
        assert (ROOT / name).exists()
        assert rehearsal.in_context(ROOT / name)
    assert not rehearsal.in_context(ROOT / "service" / "__pycache__" / "run.cpython-311.pyc")
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    for package in (each.rstrip("*") for each in packages):
        assert f"\nCOPY {package} {package}\n" in DOCKERFILE


def test_what_is_installed_is_pinned_to_what_the_project_allows():
    pins = dict(
        line.split("==") for line in (ROOT / "deploy" / "constraints.txt").read_text().splitlines() if "==" in line
    )
    pins = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]:
        wanted = Requirement(line)
        assert wanted.name in pins, f"{wanted.name} is not pinned: run `make lock`"
        assert wanted.specifier.contains(pins[wanted.name]), f"{wanted.name} is pinned too low: run `make lock`"
    assert not {"torch", "ray", "opacus", "matplotlib"} & pins.keys()  # the slim image is for certified heads
