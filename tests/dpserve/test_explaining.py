"""`dpserve explain`: of releases given by hand, and of accounts, as `GET /budget` serves them."""

import json

import httpx
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from dpserve.accounting.explanation import explain, parse_release
from dpserve.cli import app


def invoked(folder, *arguments):
    """The command in this process: a process of its own for every wrong argument would take seconds each."""
    home = {"DPSERVE_HOME": str(folder / "home"), "COLUMNS": "200"}
    return CliRunner().invoke(app, ["explain", *map(str, arguments)], env=home)


def test_releases_given_by_hand(run):
    found = json.loads(run("explain", "--release", "gaussian:20", "--times", 200, "--delta", 1e-6, "--json").stdout)

    assert found == json.loads(explain({parse_release("gaussian:20"): 200}, 1e-6).model_dump_json())
    assert [analysis["name"] for analysis in found["analyses"]] == ["basic", "advanced", "zcdp", "rdp", "exact"]


def test_several_releases_as_a_table(run):
    arguments = ["--release", "gaussian:20", "--times", 200, "--release", "exponential:0.1,laplace:40", "--times", 3]
    others = ["--delta", 1e-6, "--epsilon", 2, "--attack", "0.9:0.05", "--plot", "analyses.png"]
    said = run("explain", *arguments, *others).stdout

    assert imread(run.folder / "analyses.png").ndim == 3
    assert "203 noisy results" in said
    assert "<- tightest" in said
    assert "delta at epsilon = 2" in said
    assert "it is not possible" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to explain"),
        (["--release", "gaussian:1"], "--delta"),
        (["--release", "gaussian:1", "--times", 1, "--times", 2, "--delta", 1e-6], "--times"),
        (["--release", "gaussian:1", "--client", "alice", "--delta", 1e-6], "not both"),
        (["--client", "alice", "--delta", 1e-6], "has its own delta"),
    ],
)
def test_wrong_usage_is_exit_2(tmp_path, arguments, said):
    refused = invoked(tmp_path, *arguments)
    assert refused.exit_code == 2
    assert said in " ".join(refused.stderr.split())


def test_an_account_is_explained_as_the_service_serves_it(run, service):
    key = run("clients", "add", "alice", "--posterior-belief", 0.95, "--delta", 1e-6).stdout.strip()
    headers = {"Authorization": f"Bearer {key}"}
    httpx.post(f"{service}/predict", json={"instances": [[30, 5000], [31, 5000]]}, headers=headers).raise_for_status()

    served = httpx.get(f"{service}/budget", headers=headers).json()

    assert json.loads(run("explain", "--client", "alice", "--json").stdout) == served
    assert served["explanation"]["releases"] == [{"losses": served["price"]["losses"], "times": 2}]
    assert served["queries_left"] > 0
    assert f"{served['queries_left']:,} more answers" in " ".join(run("explain", "--client", "alice").stdout.split())
    (name,) = {line.split()[1] for line in run("lineage", "list").stdout.splitlines() if line.startswith("│")}
    whole = json.loads(run("explain", "--lineage", name, "--price", "gaussian:100", "--json").stdout)
    assert whole["spent"] != whole["limit"]
    assert whole["price"]["losses"] == "gaussian:0.01"
