"""The Dockerfile: nothing a linter minds, every source in the build context, no drifting builds."""

import fnmatch
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from dpserve import configuration
from dpserve.cli import app
from dpserve.settings import ServeSettings

from .conftest import ROOT, SCRIPTS

DOCKERFILE = (ROOT / "Dockerfile").read_text()
INSTRUCTIONS = [
    line.split(maxsplit=1) for line in re.sub(r"\\\n\s*", " ", DOCKERFILE).splitlines() if line and line[0] != "#"
]
LAST = dict(INSTRUCTIONS)
"""The instructions of the last stage, of which none but COPY and LABEL comes twice."""


def program(name):
    """A program of deploy/, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "deploy" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_context(name):
    """Whether .dockerignore sends a file of the repository to the build."""
    refusals = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] not in "#!"]
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert refusals[0] == "*"
    parts = name.split("/")
    refused = any(fnmatch.fnmatch(part, each.removeprefix("**/")) for part in parts for each in refusals[1:])
    return parts[0] in allowed and not refused


def lint(text):
    """Run the linter on a Dockerfile."""
    return subprocess.run(
        [SCRIPTS / "hadolint", "--no-color", "-"], input=text, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_linter_minds_nothing():
    done = lint(DOCKERFILE)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_source_that_is_copied_exists_and_is_sent_to_the_build():
    copies = [shlex.split(rest) for word, rest in INSTRUCTIONS if word == "COPY"]
    sources = [name for words in copies if not words[0].startswith("--from") for name in words[:-1]]
    assert {"pyproject.toml", "deploy/healthcheck.py", "service"} <= set(sources)
    for name in sources:
        assert (ROOT / name).exists(), name
        assert in_context(name), name
    stages = {rest.rpartition(" AS ")[2] for word, rest in INSTRUCTIONS if word == "FROM"}
    assert (
        {words[0] for words in copies if words[0].startswith("--from")}
        == {"--from=build"}
        <= {f"--from={stage}" for stage in stages}
    )


def test_every_command_is_one_that_a_shell_or_the_command_line_takes():
    for rest in (rest for word, rest in INSTRUCTIONS if word == "RUN"):
        subprocess.run(["sh", "-n", "-c", rest], check=True)
    entry, command = json.loads(LAST["ENTRYPOINT"]), json.loads(LAST["CMD"])
    assert entry == list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"])
    assert CliRunner().invoke(app, [*command, "--help"]).exit_code == 0


def test_the_last_stage_is_not_roots_and_checks_its_health():
    assert not dict(line[1].split("=", 1) for line in INSTRUCTIONS if line[0] == "ARG")["PYTHON_IMAGE"].endswith(
        "latest"
    )
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", LAST["USER"])
    _, target = json.loads(LAST["HEALTHCHECK"].partition(" CMD ")[2])
    assert f"COPY deploy/healthcheck.py {target}\n" in DOCKERFILE
    *_, last = DOCKERFILE.split("\nFROM ")
    assert "\nRUN " not in last  # what is built is built in the stage before, whose tools stay there


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
        settings = ServeSettings()
        assert url.split(":")[-1] == f"{settings.port}/livez"
        assert url.startswith("https") == (settings.tls_cert is not None)
    (tmp_path / "elsewhere.toml").write_text("[serve]\nport = 9004\n")
    command = ["dpserve", "--config", str(tmp_path / "elsewhere.toml"), "serve"]
    monkeypatch.delenv("DPSERVE_PORT", raising=False)
    assert program("healthcheck").live_url(command).endswith(":9004/livez")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_the_images_user_can_read_a_bundle_that_was_made_ready_as_the_page_says(tmp_path):
    page = (ROOT / "docs" / "deploying.md").read_text()
    ready, run = re.search(r"^(sudo cp -r model .*)\n(docker run (?:.*\\\n)*.*)$", page, re.MULTILINE).groups()
    user, group = map(int, LAST["USER"].split(":"))

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


@pytest.mark.parametrize(
    "name",
    ["model/weights.npz", "patients.csv", ".git/config", "tests/conftest.py", ".env", "service/__pycache__/a.pyc"],
)
def test_nothing_private_is_sent_to_the_build(name):
    assert not in_context(name)


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


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_one_that_systemd_takes(tmp_path):
    unit = (ROOT / "deploy" / "dpserve.service").read_text()
    written = tmp_path / "dpserve.service"
    written.write_text(unit.replace("/opt/dpserve/bin/dpserve", "/bin/true").replace("User=dpserve", "User=root"))
    done = subprocess.run(["systemd-analyze", "verify", written], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
