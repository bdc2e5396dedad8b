"""`dpserve plan`: before training, on public rows, in the owner's words, and never on private records."""

import json

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from accounting.budgets import Budget
from accounting.planner import plan
from dpserve.cli import app
from dpserve.commands.plotting import plot_accuracy
from mechanisms.mechanism import priced

BEFORE = ["plan", "--lam", 100, "--classes", 10]
BUDGET = ["--epsilon", 3, "--delta", 1e-6]
PUBLIC = "age,income,id,ok\n" + "".join(
    f"{21 + index % 57},{1000 * (index % 57) + 3},{index},{'yes' if index % 57 > 28 else 'no'}\n" for index in range(57)
)


def invoked(folder, *arguments):
    """The command in this process: a process of its own for every wrong argument would take seconds each."""
    home = {"DPSERVE_HOME": str(folder / "home"), "COLUMNS": "200"}
    return CliRunner().invoke(app, ["plan", *map(str, arguments)], env=home)


def planned(run, *arguments):
    return json.loads(run(*arguments, "--json").stdout)


def test_before_training(run):
    """Every price named can be served, and pays for the queries asked."""
    found = planned(run, *BEFORE, *BUDGET, "--queries", 500, "--n", 1437)

    assert "an upper end, not an expectation" in found["accuracy_from"]
    assert {option["mechanism"] for option in found["options"] if option["enforced"]} == {
        "gaussian",
        "laplace",
        "selected-neuron",
        "label",
    }
    budgets = {budget["accepts"]: budget["rho"] for budget in found["budgets"]}
    assert budgets["gaussian"] == Budget.from_epsilon_delta(3, 1e-6, "gaussian").picorho / 1e12
    for option in found["options"]:
        if option["enforced"]:
            cost = priced(option["mechanism"], option["price"], 10).cost
            kind = "gaussian" if cost.is_gaussian else "any"
            assert cost.picorho * 500 <= round(budgets[kind] * 1e12)
            assert float(cost.rho) == pytest.approx(option["rho"], rel=1e-6)


def test_a_table_says_how_to_serve(run):
    said = run(*BEFORE, "--mu", 0.5, "--delta", 1e-6).stdout

    assert "rho:0.000125" in said
    assert "laplace" not in said
    assert "No accuracy is given" in said


def test_on_public_rows(run):
    (run.folder / "public.csv").write_text(PUBLIC)
    sharp = ["--lam", 0.01, "--bias", 0.7, "--bounds", "age=0:120", "--bounds", "income=0:60000"]
    run(
        "train", "--data", "own.csv", "--label", "ok", "--classes", "no,yes", "--ignore", "id", *sharp, "--out", "model"
    )
    public = ["plan", "model", "--public", "public.csv", "--label", "ok", "--ignore", "id"]

    found = planned(run, *public, "--rho", 40, "--delta", 1e-6, "--queries", 10, "--plot", "curve.png")

    assert found["accuracy_from"] == "57 rows of public.csv, declared public"
    assert found["noiseless_accuracy"] > 0.9
    best = found["options"][0]
    assert best["enforced"]
    assert 0.5 < best["accuracy"] <= 1
    assert imread(run.folder / "curve.png").ndim == 3
    fewer = planned(run, *public, "--rho", 40, "--delta", 1e-6, "--accuracy", 0.6)
    assert all(option["accuracy"] >= 0.6 for option in fewer["options"])
    queries = [option["queries"] for option in fewer["options"] if option["enforced"]]
    assert queries == sorted(queries, reverse=True)


def test_columns_in_another_order_are_the_same_rows(run, bundle):
    rows = [line.split(",") for line in PUBLIC.splitlines()]
    (run.folder / "public.csv").write_text(PUBLIC)
    (run.folder / "turned.csv").write_text("\n".join(",".join((row[1], row[3], row[0])) for row in rows))
    arguments = ["--label", "ok", *BUDGET, "--queries", 5]

    first = planned(run, "plan", bundle, "--public", "public.csv", "--ignore", "id", *arguments)
    second = planned(run, "plan", bundle, "--public", "turned.csv", *arguments)

    assert first["options"] == second["options"]


def test_public_rows_in_an_archive(run):
    rng = np.random.default_rng(1)
    for name, n in (("own", 80), ("public", 30)):
        X = rng.uniform(size=(n, 2))
        np.savez(run.folder / f"{name}.npz", X=X, y=(X[:, 0] > 0.5).astype(int), picked=X[:, 1] > 0.2)
    run("train", "--data", "own.npz", "--classes", "0,1", "--bounds", "0:1", "--lam", 1, "--out", "model")

    found = planned(run, "plan", "model", "--public", "public.npz", "--where", "picked", *BUDGET)

    assert "public.npz" in found["accuracy_from"]


def test_private_records_are_refused(run, bundle):
    lines = run.csv.splitlines()
    (run.folder / "shuffled.csv").write_text("\n".join([lines[0], *reversed(lines[1:])]))
    for source in ("own.csv", "shuffled.csv"):
        arguments = ["--public", source, "--label", "ok", "--ignore", "id", *BUDGET]
        assert "holds the private records of the bundle's lineage" in run.fails("plan", bundle, *arguments)
    assert "was not trained on digits" in run.fails("plan", bundle, "--public", "digits", *BUDGET)
    assert "takes 'digits', a .csv or an .npz file" in run.fails("plan", bundle, "--public", "own.txt", *BUDGET)


def test_margins_of_the_owners_own(run):
    found = planned(run, *BEFORE, *BUDGET, "--margins", "2:1", "--accuracy", 0.9)

    assert "normal with mean 2" in found["accuracy_from"]
    assert found["noiseless_accuracy"] == pytest.approx(0.977, abs=0.01)
    for margins in ("2", "2:-1", "nan:1", "1:inf", "a:b"):
        assert "margins are written MEAN:SD" in run.fails(*BEFORE, *BUDGET, "--margins", margins)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--lam", 0, "--classes", 10, *BUDGET], "Lambda must"),
        (["--lam", 1, "--classes", 1, *BUDGET], "classes must lie between 2 and"),
        (["--lam", 1, "--classes", 2, *BUDGET, "--n", 0], "at least 1 record"),
        (["--lam", 1, "--classes", 2, *BUDGET, "--queries", 0], "queries must lie between 1 and"),
        (["--lam", 1, "--classes", 2, *BUDGET, "--accuracy", 0.9], "only with public data"),
        (["--lam", 1, "--classes", 2, "--epsilon", 3, "--delta", 1], "delta must lie strictly between 0 and 1"),
        (["--lam", 1, "--classes", 2, *BUDGET, "--n", 9, "--plot", "no/such/folder.png"], "cannot write the plot"),
    ],
)
def test_nonsense_is_refused_with_what_would_do(tmp_path, arguments, said):
    refused = invoked(tmp_path, *arguments).exception
    assert said in str(refused)
    assert "\n" not in str(refused)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (BUDGET, "name a bundle"),
        (["--lam", 1, "--classes", 2], "one of the words"),
        (["--lam", 1, "--classes", 2, *BUDGET, "--public", "own.csv"], "needs a bundle"),
        (["--lam", 1, "--classes", 2, *BUDGET, "--plot", "curve.png"], "to draw an accuracy from"),
    ],
)
def test_wrong_usage_is_exit_2(tmp_path, arguments, said):
    refused = invoked(tmp_path, *arguments)
    assert refused.exit_code == 2
    assert said in " ".join(refused.stderr.split())


def test_without_matplotlib_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    budgets = {"gaussian": Budget.from_mu(1, 1e-6)}
    with pytest.raises(ValueError, match=r"pip install 'dpserve\[plots\]'"):
        plot_accuracy(tmp_path / "curve.png", budgets, None, plan(budgets, classes=2))
