"""`python -m research.lu2022` on a small file in the publisher's form: its outputs, its seeds, and that it resumes."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dpserve.training.errors import TrainingError
from research.lu2022 import printed
from research.lu2022.__main__ import app
from research.lu2022.presentation import closed_form
from research.lu2022.results import Plan

SMALL = ("--no-attack", "--repeats", "2", "--n", "100", "--epochs", "3", "--epsilons", "0.1,1000000")


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("dataset", printed.ROWS)
def test_the_closed_forms_need_no_data(dataset: str) -> None:
    content = json.loads(invoke("--dataset", dataset, "--bounds", "--json"))
    assert content["status"] == "unproven"
    compared = [row for row in content["table_vi"] if row["printed"] is not None]
    assert len(compared) == 6
    assert all(abs(row["relative_error"]) <= 0.003 or row["same_digits"] for row in compared)
    assert "Delta z" in invoke("--dataset", dataset, "--bounds")


def test_what_is_off_is_said_in_spreads() -> None:
    (rho, *_) = closed_form(printed.row("adult"))
    assert rho.spreads_off is None
    assert rho.same_digits


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--dataset"),
        (("--dataset", "iris", "--bounds"), "no data set 'iris'"),
        (("--dataset", "location"), "--data-dir"),
        (("--dataset", "location", "--data-dir", ".", "--epsilons", "1,x"), "numbers separated by commas"),
        (("--dataset", "location", "--data-dir", ".", "--epsilons", "0"), "epsilon must be positive"),
        (("--dataset", "location", "--data-dir", ".", "--alpha", "-1"), "alpha must be positive"),
        (("--dataset", "location", "--data-dir", "."), "'location' is missing: put bangkok"),
    ],
)
def test_foreseen_errors_are_sentences(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.delenv("DPSERVE_DATA_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match=said):
        invoke(*arguments)


@pytest.fixture
def small_location(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    centres = rng.random((30, 446)) < 0.3
    labels = rng.integers(0, 30, size=240)
    X = centres[labels] ^ (rng.random((240, 446)) < 0.02)
    lines = [
        ",".join([f'"{label + 1}"', *map(str, row)]) for label, row in zip(labels, X.astype(int).tolist(), strict=True)
    ]
    (tmp_path / "bangkok").write_text("\n".join(lines))
    return tmp_path


def small_run(data: Path, out: Path, *more: str) -> dict[str, object]:
    return json.loads(
        invoke("--dataset", "location", "--data-dir", str(data), "--out", str(out), "--json", *SMALL, *more)
    )


def test_a_run_writes_its_figures_and_is_the_same_again(small_location: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    first = small_run(small_location, tmp_path / "first")
    second = small_run(small_location, tmp_path / "second")
    assert first == second
    assert len(first["table_v"]) == 9
    by_point = {(p["mechanism"], p["epsilon"]): p for p in first["accuracy_loss"]}
    assert len(by_point) == 4
    assert all(p["status"] == "unproven" for p in by_point.values())
    assert by_point["published-gaussian", 1e6]["accuracy_loss"] == pytest.approx(0, abs=0.02)
    assert small_run(small_location, tmp_path / "third", "--seed", "1") != first
    with (tmp_path / "first" / "location-tables.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["ours"]) for row in rows] == [c["ours"] for c in first["table_v"] + first["table_vi"]]
    assert (tmp_path / "first" / "location-accuracy-loss.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "first" / "location-accuracy-loss.csv").read_text().count("\n") == 5


def test_an_interrupted_run_goes_on_where_it_stopped(
    small_location: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    from research.lu2022 import experiment

    train_stack, trained = experiment.train_stack, []

    def interrupted_at_the_third(*arguments: object, **named: object) -> object:
        trained.append(arguments[3].objective)
        if len(trained) == 3:
            raise KeyboardInterrupt
        return train_stack(*arguments, **named)

    monkeypatch.setattr(experiment, "train_stack", interrupted_at_the_third)
    out = tmp_path / "out"
    where = ("--data-dir", str(small_location), "--out", str(out))
    result = CliRunner().invoke(app, ["--dataset", "location", *where, *SMALL])
    assert result.exit_code != 0
    resumed = small_run(small_location, out)
    assert trained == ["cross-entropy", "per-record", "per-record-and-class", "per-record-and-class"]
    assert resumed == small_run(small_location, tmp_path / "whole")


def test_pieces_say_where_they_were_computed(small_location: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    small_run(small_location, tmp_path / "out", "--device", "cpu")
    pieces = [json.loads(path.read_text())["piece"] for path in (tmp_path / "out" / "pieces").iterdir()]
    assert [piece["device"] for piece in pieces] == ["cpu"] * 3
    if not torch.cuda.is_available():
        with pytest.raises(TrainingError, match="no CUDA device"):
            small_run(small_location, tmp_path / "out", "--device", "cuda")


def test_the_alpha_search_tries_twenty_in_one_stack(small_location: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    search = small_run(small_location, tmp_path / "out", "--search-alpha")["alpha_search"]
    assert [row["alpha"] for row in search["searched"]] == [0.5 * step for step in range(1, 21)]
    assert search["closest_to_cross_entropy"] in printed.ALPHAS


def test_the_proven_rivals_stand_beside_it(small_location: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    content = small_run(small_location, tmp_path / "out", "--rivals")
    proven = [point for point in content["accuracy_loss"] if point["status"] == "proven"]
    assert {point["mechanism"] for point in proven} == {
        f"{head}-{name}"
        for head in ("certified", "convexified")
        for name in ("gaussian", "laplace", "selected-neuron", "label")
    }
    assert {point["epsilon"] for point in proven} == {0.1}, "a row may not cost as much as epsilon = 1e6"
    assert small_run(small_location, tmp_path / "out", "--rivals") == content


@pytest.mark.filterwarnings("ignore")
def test_dp_sgd_stands_beside_it_under_four_compositions(small_location: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("opacus")
    pytest.importorskip("matplotlib")
    content = small_run(small_location, tmp_path, "--dp-sgd", "1", "--epsilons", "1")
    rival = [p for p in content["accuracy_loss"] if p["mechanism"].startswith("dp-sgd")]
    assert [p["mechanism"] for p in rival] == [f"dp-sgd-{c}" for c in ("naive", "advanced", "zcdp", "rdp")]
    assert [p["status"] for p in rival] == ["unproven", "unproven", "proven", "proven"]
    assert small_run(small_location, tmp_path, "--dp-sgd", "1", "--epsilons", "1") == content


def test_a_plan_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Plan("location", repeats=0)
    with pytest.raises(ValueError, match="readings"):
        Plan("location", reading="cross-entropy")
