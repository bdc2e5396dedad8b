"""The commands as a newcomer would use them: wrong first, then right."""

import fcntl
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np
import pytest

from dpserve.training.kinds.published.bounds import Topology, claimed_sensitivities
from tests.command_line import ran
from tests.faults.servers import StoreServer


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("servee", "'serve'"), ("clients ad alice", "'add'"), ("serve model --epsilonn 3", "--epsilon")],
)
def test_a_mistyped_word_gets_a_suggestion(run, typed, meant):
    assert meant in run(*typed.split(), status=2).stderr


def test_the_shell_completes_commands_options_and_names(run, bundle):
    """As bash asks after `dpserve --install-completion`."""
    run("lineage", "set-budget", bundle, "--epsilon", 3, "--delta", 1e-6)
    run("clients", "add", "alice", "--epsilon", 1, "--delta", 1e-6)
    for typed, offered in (
        ("dpserve se", ["serve"]),
        ("dpserve clients add", ["add", "add-key"]),
        ("dpserve serve --eps", ["--epsilon"]),
        ("dpserve explain --client a", ["alice"]),
        ("dpserve explain --lineage pe", ["people"]),
        ("dpserve clients show a", ["alice"]),
        ("dpserve inspect m", ["model"]),
        ("dpserve serve --mechanism lab", ["label"]),
        ("dpserve train we", ["weights"]),
    ):
        asked = {"_DPSERVE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
        done = ran([], run.folder, run.environment | asked)
        assert (done.stdout.split(), done.stderr) == (offered, ""), typed


def test_it_says_its_version(run):
    assert run("--version").stdout.strip() == f"dpserve {version('dpserve')}"


def test_training_on_own_records(run, bundle):
    inspected = run("inspect", bundle).stdout
    assert "verified" in inspected
    assert "add or remove one record" in inspected
    certificate = json.loads(run("inspect", bundle, "--json").stdout)
    assert certificate["verified"]
    assert certificate["classes"] == ["no", "yes"]
    assert certificate["weight_sensitivity"] == pytest.approx(2**0.5 + 2e-3, rel=1e-6)


def test_training_again_on_the_same_records_stays_in_the_lineage(run, bundle):
    lines = run.csv.splitlines()
    (run.folder / "shuffled.csv").write_text("\n".join([lines[0], *reversed(lines[1:])]))
    said = run(*run.train, "--data", "shuffled.csv", "--out", "again")
    first, second = (json.loads(run("inspect", name, "--json").stdout) for name in ("model", "again"))
    assert first["private"]["lineage"] == second["private"]["lineage"] == "people"
    assert "binding_key" not in first["private"]
    assert first["model_id"] != second["model_id"]
    assert "WARNING" not in said.stdout + said.stderr


def test_own_records_are_not_trained_on_without_the_name_of_a_lineage(run):
    unnamed = [word for word in run.train if word not in ("--lineage", "people")]
    for command, status in ((unnamed, 2), (["train-published", *unnamed[1:7]], 1)):  # the latter lacks more
        said = run(*command, "--data", "own.csv", "--out", "model", status=status).stderr
        assert re.search("--lineage:? is needed", said)
    assert not (run.folder / "model").exists()


def test_a_second_budget_for_one_record_less_is_refused_unless_it_is_accepted(run, bundle):
    """The neighbouring data set, under another name: the pair that no two budgets may tell apart unseen."""
    lines = run.csv.splitlines()
    (run.folder / "fewer.csv").write_text("\n".join([*lines[:7], *lines[8:]]))
    again = [*run.train, "--data", "fewer.csv", "--out", "again", "--lineage", "others"]
    refused = run.fails(*again)
    warning = "Of the 199 records of the lineage 'others', 199 records are in the lineage 'people' as well"
    assert warning in refused
    assert "train with --lineage people" in refused
    assert not (run.folder / "again").exists()
    accepted = "--overlapping-lineage-is-accepted"
    said = run(*again, accepted)
    assert warning in said.stderr
    assert warning in said.stdout
    assert "Next:" not in said.stdout
    assert "Only if these records shall have a second budget: dpserve serve again --epsilon" in said.stdout
    run("lineage", "set-budget", "again", "--rho", 0.1, "--delta", 1e-6)
    served = run(*run.train, "--data", "fewer.csv", "--out", "third", "--lineage", "others", accepted)
    assert "Next: dpserve serve third\n" in served.stdout
    assert warning in served.stderr


def test_who_opens_a_budget_beside_others_is_told_of_them(run, bundle):
    run("lineage", "set-budget", bundle, "--rho", 0.1, "--delta", 1e-6)
    lines = run.csv.splitlines()
    (run.folder / "new.csv").write_text("\n".join([lines[0], "30,1,900,no", "40,2,901,yes"]))
    said = run(*run.train, "--data", "new.csv", "--out", "new", "--lineage", "strangers").stdout
    assert "Next: dpserve serve new --epsilon 3 --delta 1e-6\n" in said
    assert "This opens a budget for 'strangers' in addition to those of 'people'." in said


@pytest.mark.parametrize(
    "features", [("fourier", "--random-features", 20), ("bins", "--cross", "x0:x2"), ("identity", "--clip-norm", 1)]
)
def test_the_chosen_feature_map_is_in_the_certificate(run, features):
    generator = np.random.default_rng(0)
    np.savez(run.folder / "own.npz", X=generator.uniform(size=(50, 3)), y=generator.integers(2, size=50))
    train = ("train", "head", "--data", "own.npz", "--classes", "0,1", "--bounds", "0:1", "--lam", 1)
    run(*train, "--lineage", "mine", "--out", "model", "--features", *features)
    certificate = json.loads((run.folder / "model" / "certificate.json").read_text())
    assert (certificate["feature_map"]["kind"], certificate["lineage"]) == (features[0], "mine")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data", "nowhere.csv"], "cannot read nowhere.csv: No such file or directory"),
        (["--data", "own.txt"], "own.txt is no table that can be read: a file ends in"),
        (["--data", "own.csv", "--label", "nope"], "no column 'nope'"),
        (["--data", "own.csv", "--bounds", "age=0:30"], "bounds for age are given twice"),
        (["--data", "old.csv"], "line 13, column 'age': 131 is above the declared bound 120"),
        (["--data", "own.csv", "--tolerance", "1e-11"], "Start again with a --tolerance"),
        (["--data", "own.csv", "--out", "."], "exists already"),
    ],
)
def test_wrong_training_is_explained(run, arguments, said):
    (run.folder / "old.csv").write_text(run.csv.replace("\n31,", "\n131,", 1))
    assert said in run.fails(*run.train, "--out", "model", *arguments)
    assert not (run.folder / "model").exists()


@pytest.mark.parametrize(
    ("arguments", "option", "said"),
    [
        (["--features", "magic"], "--features", "must be one of"),
        (["--features", "hog"], "--image-shape", "is needed"),
        (["--image-shape", "28,28"], "--image-shape", "784 values"),
        (["--cross", "age:height"], "--cross", "no column 'height'"),
        (["--cross", "age:income", "--features", "fourier"], "--cross", "goes with --features bins"),
        (["--lineage", "a b"], "--lineage", "must be letters"),
    ],
)
def test_a_wrong_option_of_training_is_wrong_usage(run, arguments, option, said):
    words = " ".join(run(*run.train, "--data", "own.csv", "--out", "model", *arguments, status=2).stderr.split())
    assert f"Invalid value for {option}: " in words
    assert said in words
    assert not (run.folder / "model").exists()


def test_a_tampered_bundle_is_neither_inspected_nor_served(run, bundle):
    path = bundle / "certificate.json"
    path.write_text(path.read_text().replace('"strong_convexity": 1.0', '"strong_convexity": 9.0'))
    assert "the certificate does not hold" in run.fails("inspect", bundle)
    assert "the certificate does not hold" in run.fails("serve", bundle, "--port", 0, "--epsilon", 3, "--delta", 1e-6)
    assert "is not a bundle" in run.fails("serve", run.folder, "--port", 0)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


LOADS_WHEN_TOLD = """
import sys
from pathlib import Path
from dpserve import serving
from dpserve.cli import main

def load_when_told(*arguments, load=serving.load_model):
    Path("told").read_text()
    return load(*arguments)

serving.load_model = load_when_told
main()
"""


def test_a_request_that_comes_while_the_bundle_loads_is_answered_when_it_is_loaded(run, bundle):
    """Loading waits for a pipe into which nobody has written yet, and so does the request."""
    os.mkfifo(run.folder / "told")
    port = free_port()
    words = [sys.executable, "-u", "-c", LOADS_WHEN_TOLD, "serve", bundle, "--port", port]
    process = subprocess.Popen(
        list(map(str, [*words, "--epsilon", 3, "--delta", 1e-6])),
        cwd=run.folder,
        env=run.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with connected(port, process) as waiting:
            waiting.sendall(b"GET /readyz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
            (run.folder / "told").write_text("go on")  # opens once the service does
            assert any(line.startswith("dpserve: serving") for line in process.stdout)
            assert waiting.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        process.terminate()
        process.communicate(timeout=60)


def connected(port, process):
    """Return a connection to the port, which somebody will listen on."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=60)
        except ConnectionRefusedError:
            assert process.poll() is None
            assert time.monotonic() < deadline


def test_a_service_that_cannot_start_says_why(run, bundle):
    budget = ("--epsilon", 3, "--delta", 1e-6)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}" in run.fails("serve", bundle, *budget, "--port", port)
    with socket.create_server(("127.0.0.1", 0)) as closing:
        port = closing.getsockname()[1]
    said = run.fails("serve", bundle, *budget, "--port", 0, "--ledger", f"redis://127.0.0.1:{port}")
    assert str(port) in said
    assert "has no budget yet" in run.fails("serve", bundle, "--port", 0)
    assert "price" in run.fails("serve", bundle, *budget, "--port", 0, "--price", "cheap")
    assert "rot13" in run.fails("serve", bundle, *budget, "--port", 0, "--mechanism", "rot13")
    assert "--accept-unproven" in run.fails("serve", bundle, *budget, "--port", 0, "--mechanism", "published")


def test_what_could_never_answer_is_not_served(run, bundle):
    budget = ("--rho", 0.1, "--delta", 1e-6, "--port", 0)
    assert "more than its whole budget" in run.fails("serve", bundle, *budget, "--port", 0, "--price", "rho:0.5")
    run("lineage", "set-budget", bundle, "--rho", 0.1, "--delta", 1e-6)
    said = run.fails("serve", bundle, "--port", 0, "--mechanism", "laplace", "--price", "epsilon:0.1")
    assert "accepts 'gaussian' charges only" in said


@pytest.mark.parametrize("budget", [("--epsilon", 1, "--delta", 0), ("--rho", 0.1, "--delta", 1e-6)])
def test_a_mechanism_is_served_at_its_default_price_to_accounts_that_accept_it(run, bundle, budget):
    """The lineage's currency decides on it."""
    process, address = run.start(bundle, "--port", 0, "--mechanism", "label", *budget)
    key = run("clients", "add", "alice", *budget).stdout.strip()
    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx.post(f"{address}/predict", json={"instances": [[30, 5000]]}, headers=headers).json()
    assert sorted(answer["predictions"][0]) == [0, 1]
    price = httpx.get(f"{address}/models/model").json()["price_per_row"]
    currency, expected = ("epsilon", 0.05) if "--epsilon" in budget else ("rho", 0.00125)
    assert price[currency] == pytest.approx(expected, rel=1e-9)
    process.terminate()
    process.communicate(timeout=60)


def test_a_published_network_is_served_as_unproven_or_not_at_all(run):
    declared = [word for word in run.train[1:] if word not in ("head", "--lam", "1")]
    run("train-published", *declared, "--data", "own.csv", "--epochs", 2, "--out", "net")
    certificate = json.loads(run("inspect", "net", "--json").stdout)
    assert certificate["status"] == "unproven"
    shown = run("inspect", "net").stdout
    claimed = claimed_sensitivities(Topology(2, (128,), 2), certificate["private"]["records"])
    for figure in (claimed.lipschitz, claimed.weights_l2, claimed.weight, claimed.neuron, claimed.oaro):
        assert f"{figure:.6g}" in shown
    budget = ("--epsilon", 50, "--delta", 1e-5, "--port", 0)
    assert "needs a certificate" in run.fails("serve", "net", *budget)
    published = (*budget, "--mechanism", "published", "--price", "epsilon:1")
    assert "--accept-unproven" in run.fails("serve", "net", *published)
    process, address = run.start("net", *published, "--accept-unproven")
    key = run("clients", "add", "alice", "--epsilon", 9, "--delta", 1e-5).stdout.strip()
    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx.post(f"{address}/predict", json={"instances": [[30, 5000]]}, headers=headers).json()
    report = httpx.get(f"{address}/budget", headers=headers).json()
    page = httpx.get(f"{address}/models/net").json()
    statuses = (answer["receipt"], answer["budget"], report, report["explanation"], page)
    assert {each["status"] for each in statuses} == {"unproven"}
    assert report["membership_advantage_bound"] == {"now": 1, "when_spent": 1}
    process.terminate()
    process.communicate(timeout=60)


def test_a_hang_up_ends_a_service_that_has_a_terminal(run, bundle):
    ours, theirs = pty.openpty()
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests, too, may be run by nohup
    try:
        process, _ = run.start(bundle, "--port", 0, "--rho", 0.1, "--delta", 1e-6, stdin=theirs)
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=60)
    finally:
        signal.signal(signal.SIGHUP, before)
        os.close(ours)
        os.close(theirs)
    assert process.returncode == 0


@pytest.mark.parametrize("location", ["", "localhost:6379", "redis:/127.0.0.1:6379"])
def test_a_mistyped_ledger_opens_no_new_one(run, bundle, location):
    said = run("serve", bundle, "--port", 0, "--rho", 0.1, "--delta", 1e-6, "--ledger", location, status=2).stderr
    assert "neither a URL" in said
    assert sorted(path.name for path in run.folder.iterdir()) == ["home", "model", "own.csv"]


def test_a_mistyped_bundle_opens_no_account(run, bundle):
    assert "no lineage 'modle'" in run.fails("lineage", "set-budget", "modle", "--rho", 0.1, "--delta", 1e-6)


def test_budgets_must_make_sense(run):
    for options in (["--epsilon", 1], ["--delta", 1e-6], ["--epsilon", 1, "--rho", 1, "--delta", 1e-6]):
        assert "a budget is given by one of" in run("clients", "add", "alice", *options, status=2).stderr
    said = run.fails("clients", "add", "alice", "--posterior-belief", 1, "--delta", 1e-6)
    assert said == "the posterior belief must lie strictly between 0.5 and 1, not be 1.0"


def test_the_ledger_outlives_the_service_and_its_store_does_not(run, bundle):
    """Nor does a service without a terminal end by a hang-up."""
    run("lineage", "set-budget", bundle, "--epsilon", 3, "--delta", 1e-6)
    key = run("clients", "add", "alice", "--epsilon", 1, "--delta", 1e-6).stdout.strip()
    reports = []
    for row, number in (([30, 5000], signal.SIGTERM), ([40, 5000], signal.SIGINT)):
        process, address = run.start(bundle, "--port", 0, "--price", "rho:0.001", stdin=subprocess.DEVNULL)
        process.send_signal(signal.SIGHUP)
        headers = {"Authorization": f"Bearer {key}"}
        reports.append(httpx.post(f"{address}/predict", json={"instances": [row]}, headers=headers).json()["budget"])
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "Traceback" not in errors
        with (run.folder / "home" / "ledger" / "server.lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while a server lives
    assert reports[1]["queries_left"] == reports[0]["queries_left"] - 1
    assert "another budget already" in run.fails("serve", bundle, "--port", 0, "--epsilon", 2, "--delta", 1e-6)


def test_raising_a_lineages_budget_asks_first(run, bundle):
    run("lineage", "set-budget", bundle, "--rho", 0.1, "--delta", 1e-6)
    asked = run("lineage", "set-budget", bundle, "--rho", 0.2, "--delta", 1e-6, stdin="n\n")
    assert "nothing was changed" in asked.stdout
    run("lineage", "set-budget", bundle, "--rho", 0.2, "--delta", 1e-6, "--yes")
    assert "0.2" in run("lineage", "list").stdout


def demonstration(run, *options):
    """Start a demonstration in a session of its own, as a terminal does."""
    command = [sys.executable, "-u", "-m", "dpserve", "demo", *options]
    former = signal.signal(signal.SIGINT, signal.SIG_DFL)  # which whoever runs the tests beside their shell has ignored
    process = subprocess.Popen(
        command, cwd=run.folder, env=run.environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    signal.signal(signal.SIGINT, former)
    run.started.append(process)
    return process


def left_in(folder):
    """The processes that work in a folder or were started with it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            said = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            if str(folder).encode() in said or (process / "cwd").resolve().is_relative_to(folder):
                found.append((process.name, (process / "cmdline").read_bytes()))
    return found


@pytest.mark.parametrize("kind", [pytest.param((), marks=pytest.mark.slow), ("--metered",)])
def test_the_demonstration_stays_up_for_a_browser_and_leaves_nothing(run, kind):
    with TemporaryDirectory() as temporary:  # a short path, for the store's socket
        run.environment["TMPDIR"] = temporary
        process = demonstration(run, "--stay", *kind)
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("curl") and "/predict" in line:
                break
        address = re.search(r"Open (http://\S+/) in a browser", said)[1]
        key = re.search(r"Sign in with the API key .*: (dp_\S+)", said)[1]
        rows = Path(re.search(r"Digits to ask about: (\S+)", said)[1]).read_text().splitlines()
        owner = re.search(r"The owner's page: (\S+),", said)[1]
        assert httpx.get(address).status_code == httpx.get(owner + "/").status_code == 200
        names = httpx.get(address + "models/digits").json()["feature_names"]
        assert rows[0].split(",") == names
        body = {"instances": [[float(value) for value in row.split(",")] for row in rows[1:]]}
        answered = httpx.post(address + "predict", json=body, headers={"Authorization": f"Bearer {key}"})
        assert len(answered.json()["predictions"]) == len(rows) - 1
        os.killpg(process.pid, signal.SIGINT)  # Ctrl-C is for all that runs in the terminal
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert left_in(temporary) == []
        assert list(Path(temporary).iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["more to ask", "Two heads"])
def test_a_demonstration_that_is_interrupted_leaves_nothing(run, moment):
    with TemporaryDirectory() as temporary:
        run.environment["TMPDIR"] = temporary
        process = demonstration(run, "--metered")
        assert any(moment in line for line in process.stdout)
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
        assert left_in(temporary) == []
        assert list(Path(temporary).iterdir()) == []


def test_a_service_that_does_not_start_for_the_demonstration_says_why_in_one_line(run):
    run.environment["TMPDIR"] = str(run.folder / ("long" * 30))
    Path(run.environment["TMPDIR"]).mkdir()
    assert "too long for a socket" in run.fails("demo", "--metered")


def test_a_store_is_for_the_metered_demonstration(run):
    assert "--metered" in run("demo", "--ledger", "redis://127.0.0.1:1/0", status=2).stderr
    assert "URL" in run("demo", "--metered", "--ledger", "here", status=2).stderr


@pytest.mark.slow
@pytest.mark.parametrize("external", [False, True])
def test_the_metered_demonstration(run, tmp_path, external):
    """It ends with status 1 where chance decides otherwise: tests/docs/test_papers_system_page.py has how rarely."""
    with StoreServer(tmp_path / "store") if external else nullcontext() as store:
        ledger = ["--ledger", store.url] if external else []
        said, _ = (process := demonstration(run, "--metered", *ledger)).communicate(timeout=600)
        assert process.returncode == 0, said
        if external:
            (kept,) = json.loads(run("lineage", "list", "--json", *ledger).stdout)
            assert kept["lineage"].startswith("demo-")
    assert (said.count("alice asks"), said.count("bob asks"), said.count("BudgetExhausted")) == (12, 2, 3)
    assert re.findall(r"^(?:(\S+): )?(Convicted|Not refuted):", said, re.MULTILINE) == [
        ("published", "Convicted"),
        ("selected-neuron", "Not refuted"),
        ("", "Convicted"),
    ]
    assert "answers: Not refuted:" in said


def test_the_demonstration(run):
    said = run("demo").stdout
    assert "certificate of digits" in said
    assert float(re.search(r"Accuracy on all 360 held-out digits: (\S+)", said)[1]) > 0.85
    assert "charged 1 time, epsilon = 3 at delta = 1e-06" in said
    assert "BudgetExhausted" in said
    assert "exact" in said.lower()
