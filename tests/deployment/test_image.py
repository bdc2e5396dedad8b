"""The Dockerfile: nothing a linter minds, nothing that `make image-check` does not carry out, no drifting builds."""

import importlib.util
import json
import os
import re
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement

from dpserve import configuration
from dpserve.commands.serving import serve

from .conftest import ROOT, SCRIPTS

DOCKERFILE = (ROOT / "Dockerfile").read_text()


def program(name):
    """A program of deploy/, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "deploy" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rehearsal():
    """The program that runs the Dockerfile's steps."""
    return program("rehearse_image")


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


@pytest.mark.parametrize(
    ("words", "environment", "file", "url"),
    [
        ("", {}, "", "http://127.0.0.1:8000/livez"),
        ("", {"DPSERVE_PORT": "9000", "DPSERVE_HOST": "0.0.0.0"}, "port = 1", "http://127.0.0.1:9000/livez"),
        ("", {"DPSERVE_PORT": ""}, 'port = 9001\ntls-cert = "own.pem"', "https://127.0.0.1:9001/livez"),
        ("", {"DPSERVE_TLS_CERT": "own.pem"}, 'host = "::"', "https://[::1]:8000/livez"),
        ("--port 9002 --tls-cert own.pem", {"DPSERVE_PORT": "1"}, "port = 2", "https://127.0.0.1:9002/livez"),
        ("--port=9003 --host 10.0.0.1", {}, "", "http://10.0.0.1:9003/livez"),
    ],
)
def test_the_health_check_asks_where_the_service_is(tmp_path, monkeypatch, words, environment, file, url):
    for name in os.environ.keys() - configuration.environment_without_settings().keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("DPSERVE_HOME", str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "dpserve.toml").write_text(f"[serve]\n{file}\n")
    command = ["python3", "dpserve", "serve", "/bundle", *words.split()]
    assert program("healthcheck").live_url(command) == url
    if not words:  # the same that the service finds
        settings = configuration.settings(serve)
        assert url.split(":")[-1] == f"{settings['port'].value if 'port' in settings else 8000}/livez"
        assert url.startswith("https") == ("tls_cert" in settings)
    (tmp_path / "elsewhere.toml").write_text("[serve]\nport = 9004\n")
    command = ["dpserve", "--config", str(tmp_path / "elsewhere.toml"), "serve"]
    monkeypatch.delenv("DPSERVE_PORT", raising=False)
    assert program("healthcheck").live_url(command).endswith(":9004/livez")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_the_images_user_can_read_a_bundle_that_was_made_ready_as_the_page_says(rehearsal, tmp_path):
    page = (ROOT / "docs" / "deploying.md").read_text()
    ready, run = re.search(r"^(sudo cp -r model .*)\n(docker run (?:.*\\\n)*.*)$", page, re.MULTILINE).groups()
    *_, last = rehearsal.stages(DOCKERFILE)[1]
    user, group = map(int, dict(last.steps)["USER"].split(":"))

    def readable(folder):
        # Past the folders above, which a mount does not have.
        outer = os.open(folder, os.O_RDONLY)
        command = ["cat", f"/proc/self/fd/{outer}/certificate.json"]
        done = subprocess.run(command, user=user, group=group, extra_groups=[], pass_fds=[outer], capture_output=True)
        os.close(outer)
        return done.returncode == 0

    model = tmp_path / "model"
    model.mkdir(mode=0o700)
    (model / "certificate.json").touch(mode=0o600)
    subprocess.run(["bash", "-ec", ready.replace("sudo ", "")], cwd=tmp_path, check=True)
    mounted = tmp_path / re.search(r'-v "\$PWD/(\S+):/bundle:ro"', run)[1]
    assert readable(mounted)
    assert not readable(model)
    assert {path.stat().st_mode & 0o077 for path in (mounted, mounted / "certificate.json")} == {0}
    assert f"`COPY --chown={user}:{group} model /bundle`" in page


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
    assert not {"ray", "opacus", "matplotlib"} & pins.keys()
