"""Pay-once models from the command line."""

import re
import signal
import subprocess
import sys

import pytest

from dpserve.training.kinds.class_sums.model import ReleasedClassSums
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.weights.model import ReleasedWeights

CSV = "age,income,ok\n" + "".join(
    f"{20 + index % 60},{1000 * (index % 60)},{'yes' if index % 60 > 30 else 'no'}\n" for index in range(120)
)
TRAIN = ("train", "--data", "r.csv", "--label", "ok", "--classes", "no,yes", "--bounds", "age=0:120")
TRAIN += ("--bounds", "income=0:1e6", "--lineage", "people")
PRICE = ("--epsilon", "2", "--delta", "1e-5")


@pytest.fixture
def train(run):
    (run.folder / "r.csv").write_text(CSV)
    return lambda *arguments, **how: run(*TRAIN, *arguments, **how)


@pytest.mark.parametrize(
    ("arguments", "kind", "shown"),
    [
        (("class-sums", *PRICE), ReleasedClassSums, "class_sums.steps.Centre"),
        (("weights", "--lam", "1", *PRICE), ReleasedWeights, "weight sensitivity"),
    ],
)
def test_each_kind_is_trained_and_inspected(train, run, arguments, kind, shown):
    printed = train(*arguments, "--out", "model").stdout
    assert shown in printed
    assert "Next: dpserve serve model --epsilon" in printed
    assert isinstance(load_model(run.folder / "model"), kind)
    assert "verified" in run("inspect", "model").stdout


def test_what_cannot_be_is_refused_with_the_reason(train):
    cheap = train("class-sums", "--rho", "0.0005", "--out", "m", status=1).stderr
    assert "these class sums are not possible: class sums are two releases, and cost at least 0.0008 rho" in cheap
    other = train("class-sums", "--lam", "3", *PRICE, "--out", "m", status=2).stderr
    assert "--lam goes with dpserve train weights or dpserve train head, not class-sums" in " ".join(other.split())
    width = train("dpsgd", "--hidden", "x", *PRICE, "--n", "200", "--out", "m", status=2).stderr
    assert "--hidden: must be a whole number, not 'x'" in width
    for unknown, said in (("shouts", "There are auto, class-sums, weights"), ("WIEGHTS", "Did you mean 'weights'?")):
        refused = train(unknown, "--out", "m", status=2).stderr
        assert f"No kind of model is called {unknown!r}. {said}" in " ".join(refused.split())


def next_command(printed):
    """The command that `dpserve train` says comes next, as words."""
    (line,) = [line for line in printed.splitlines() if "Next: dpserve " in line]
    return line.partition("Next: dpserve ")[2].split()


def test_a_price_is_needed_for_a_model_that_is_paid_for_once(train):
    assert "--epsilon: is needed" in train("dpsgd", "--n", "100", "--out", "model", status=2).stderr
    assert "--delta is needed beside --epsilon" in train("--epsilon", "1", "--out", "model", status=1).stderr
    assert "--epsilon goes with" in train("head", "--epsilon", "1", "--out", "model", status=2).stderr


def test_the_next_command_that_is_printed_works_whatever_was_served_before(train, run):
    started = []
    for arguments in (
        ("head", "--lam", "1", "--out", "m1"),
        ("class-sums", "--epsilon", "1", "--delta", "1e-6", "--out", "sums"),
    ):
        words = next_command(train(*arguments).stdout)
        assert words[:2] == ["serve", arguments[-1]]
        started.append(words[2:])
        process, _ = run.start(*words[1:], "--port", "0", "--no-admin")
        process.terminate()
        process.communicate(timeout=60)
    assert started == [["--epsilon", "3", "--delta", "1e-6"], []]
    trained = train("class-sums", "--epsilon", "4", "--delta", "1e-6", "--out", "more")
    too_much = trained.stdout
    # Said before the training, too, which may be ended then.
    assert "set-budget people" in trained.stderr
    assert "Next:" not in too_much
    assert "The lineage's budget does not pay for this model. The lineage people does not pay for" in too_much
    assert load_model(run.folder / "more")


@pytest.mark.slow
def test_what_comes_next_is_said_of_a_ledger_that_does_not_answer_too(train, run):
    run.environment["DPSERVE_LEDGER"] = "redis://127.0.0.1:1/0"
    printed = train("head", "--lam", "1", "--out", "m1").stdout
    assert next_command(printed) == ["serve", "m1", "--epsilon", "3", "--delta", "1e-6"]
    assert "The ledger could not be asked" in printed


def test_an_owner_who_gave_epsilon_reads_no_rho_and_what_a_price_adds(train, run):
    said = [train("class-sums", *PRICE, "--out", "model").stdout, run("inspect", "model").stdout]
    run("lineage", "set-budget", "model", "--epsilon", "3", "--delta", "1e-5", "--yes")
    said += [run("export", "model", "--to", "safetensors").stdout]
    said += [run("lineage", "show", "people").stdout, run("ledger", "status").stdout]
    train("class-sums", "--epsilon", "2.8", "--delta", "1e-5", "--out", "more")
    said += [run.fails("export", "more", "--to", "safetensors")]
    run("lineage", "set-budget", "people", *PRICE)
    said += [run.fails("export", "more", "--to", "safetensors")]
    said += [run.fails("plan", "--epsilon", "0.1", "--delta", "1e-6", "--n", "1000", "--classes", "2")]
    raised = run("lineage", "set-budget", "people", "--rho", "0.5", "--delta", "1e-5", status=1)
    assert re.search(r"from rho = \S+ to rho = 0\.5\?", raised.stdout + raised.stderr)
    assert not [words for words in said if re.search(r"\brho\b", words)]
    *_, shown, status, dearer, spent, _ = said
    assert "1 release, epsilon = 2 at delta = 1e-05 by itself" in shown
    assert "2 of 3, epsilon at 1e-05" in status
    assert re.search(r"costs epsilon = 2\.8 by itself and adds 1\.\d+ to the 2 that was spent, and 1 of 3", dearer)
    assert "whole budget, epsilon = 2 at delta = 1e-05" in spent


UNUSED = (
    *(
        "torch",
        "sklearn",
        "pandas",
        "pyarrow",
        "onnxruntime",
        "grpc",
        "cryptography.x509",
        "opentelemetry.sdk.trace",
        "jwt",
    ),
    *("scipy.optimize", "scipy.stats", "scipy.sparse", "scipy.linalg", "scipy.special", "numpy.random", "sqlite3"),
    *("numpy.polynomial", "httpx", "rich", "websockets", "dpserve.audit", "dpserve.service.metered"),
    *("dpserve.training.fit", "dpserve.training.fitting.solver", "dpserve.accounting.ledger.verification"),
)
SERVING = """
import atexit, sys
from dpserve.cli import main
atexit.register(lambda: print(*sys.modules, sep=chr(10)))
main()
"""


def test_an_idle_worker_has_imported_nothing_that_a_pay_once_service_does_not_use(train, run):
    train("class-sums", *PRICE, "--out", "model")
    words = [sys.executable, "-c", SERVING, "serve", "model", "--rho", "9", "--delta", "1e-5"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=run.folder, env=run.environment) as worker:
        said = iter(worker.stdout)
        assert any("serving" in line for line in said)
        worker.send_signal(signal.SIGTERM)
        imported = {line.strip() for line in said}
    assert "dpserve.service.pay_once" in imported
    assert sorted(imported.intersection(UNUSED)) == []
