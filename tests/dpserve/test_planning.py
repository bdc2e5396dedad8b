"""`dpserve plan`: before training, on public rows, of a bundle, and never on private records."""

import json
import re
import shlex
import shutil

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from dpserve import PrivateClassifier
from dpserve.accounting.budgets import Budget
from dpserve.accounting.picorho import to_rho
from dpserve.cli import app
from dpserve.mechanisms.registry import priced
from dpserve.training.kinds.loading import load_model
from dpserve.training.planning import recommendation

BUDGET = ["--epsilon", 3, "--delta", 1e-6]
QUICK = {
    **recommendation.recommend_by_simulation.__kwdefaults__,
    "seeds": 2,
    "options": ("class-sums", "weights", "per-query"),
}
PUBLIC = "age,income,id,ok\n" + "".join(
    f"{21 + index % 57},{1000 * (index % 57) + 3},{index},{'yes' if index % 57 > 28 else 'no'}\n" for index in range(57)
)


def invoked(folder, *arguments):
    """The command in this process: a process of its own for every wrong argument would take seconds each."""
    home = {"DPSERVE_HOME": str(folder / "home"), "COLUMNS": "200"}
    return CliRunner().invoke(app, ["plan", *map(str, arguments)], env=home)


def words_of(*arguments):
    """Return the words that the command prints, wherever its lines end."""
    return " ".join(invoked(*arguments).output.split())


def planned(run, *arguments):
    return json.loads(run(*arguments, "--json").stdout)


def test_every_price_of_an_answer_can_be_served_and_pays_for_the_queries_asked(tmp_path):
    asked = ("--n", 1437, "--classes", 10, *BUDGET, "--queries", 500)
    found = json.loads(invoked(tmp_path, *asked, "--json").stdout)["answers"]

    assert {option["mechanism"] for option in found["options"]} == {"gaussian", "laplace", "selected-neuron", "label"}
    budgets = {budget["accepts"]: budget["rho"] for budget in found["budgets"]}
    assert budgets["gaussian"] == Budget.from_epsilon_delta(3, 1e-6, "gaussian").limit / 1e12
    for option in found["options"]:
        cost = priced(option["mechanism"], option["price"], 10).cost
        kind = "gaussian" if cost.is_gaussian else "any"
        assert found["queries"] == 500
        if option["price"].startswith("rho:"):
            assert cost.picorho * 500 <= round(budgets[kind] * 1e12)
            assert float(cost.rho) == pytest.approx(option["rho"], rel=1e-6)
    said = words_of(tmp_path, *asked, "--all")
    assert "Answers that are paid for one by one" in said
    assert next(each["price"] for each in found["options"]) in said


def test_an_account_of_pure_epsilon_is_planned_for(tmp_path, run, bundle):
    """At the epsilon of a budget with a delta, and alone with --delta 0."""
    for delta, most in ((1e-6, {"gaussian", "any", "pure"}), (0, {"pure"})):
        found = planned(run, "plan", bundle, "--epsilon", 1, "--delta", delta, "--queries", 1)
        assert {budget["accepts"] for budget in found["budgets"]} == most
        assert {option["accepts"] for option in found["options"]} == most
        for option in found["options"]:
            if option["accepts"] == "pure":
                assert priced(option["mechanism"], option["price"], 2).cost.picoepsilon == 10**12
    refused = invoked(tmp_path, "--n", 300, "--classes", 10, "--epsilon", 1, "--delta", 0)
    assert refused.exit_code == 2


def neighbours_trained(folder):
    """Bundles of 300 records and of all of them but one, and public rows: numbers that nothing rounds."""
    rng = np.random.default_rng(5)
    X = rng.uniform(size=(700, 3))
    y = (X[:, 0] + 0.3 * rng.standard_normal(700) > 0.5).astype(int)
    np.savez(folder / "public.npz", X=X[300:], y=y[300:])
    for name, records in (("with", slice(0, 300)), ("without", slice(1, 300))):
        np.savez(folder / f"{name}.npz", X=X[records], y=y[records])
        words = ["train", "--data", folder / f"{name}.npz", "--classes", "0,1", "--bounds", "0:1", "head", "--lam", 3]
        home = {"DPSERVE_HOME": str(folder / f"home-{name}"), "COLUMNS": "200"}
        done = CliRunner().invoke(app, [*map(str, words), "--lineage", "a", "--out", str(folder / name)], env=home)
        assert done.exit_code == 0, done.output + str(done.exception)
        yield folder / name


def test_a_plan_for_a_bundle_tells_nothing_about_a_record(tmp_path):
    """Exact accuracies would differ between neighbouring sets: rows beside a bundle are refused, plans are equal."""
    bundles = list(neighbours_trained(tmp_path))
    budget = ("--rho", 40, "--delta", 1e-6)
    refused = [invoked(tmp_path, bundle, *budget, "--public", tmp_path / "public.npz") for bundle in bundles]
    assert {done.exit_code for done in refused} == {2}
    assert refused[0].output == refused[1].output
    covered = [invoked(tmp_path, bundle, *budget, "--queries", 20, "--json").stdout for bundle in bundles]
    assert covered[0] == covered[1]
    assert len(json.loads(covered[0])["options"]) == 4


def test_private_records_are_refused(run, bundle):
    lines = run.csv.splitlines()
    (run.folder / "shuffled.csv").write_text("\n".join([lines[0], *reversed(lines[1:])]))
    (run.folder / "some.csv").write_text("\n".join([lines[0], *lines[5:25], "30,5,999,no"]))
    declared = ("--classes", "no,yes", "--bounds", "age=0:120", "--bounds", "income=0:1e6")
    for source, shared in (("own.csv", 200), ("shuffled.csv", 200), ("some.csv", 20)):
        said = run.fails("plan", "--public", source, "--label", "ok", "--ignore", "id", *declared, *BUDGET)
        assert f"holds private records of the lineage 'people': {shared} of its rows as they are" in said
    assert "is no table that can be read" in run.fails("plan", "--public", "own.txt", *declared, *BUDGET)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (BUDGET, 1, "`n` is needed"),
        (["--n", 100, "--classes", 2], 2, "one of --epsilon"),
        (["--n", 100, "--classes", 2, *BUDGET, "--plot", "curve.png"], 2, "to draw an accuracy on"),
        (["model", "--n", 100, *BUDGET], 2, "a bundle has its own numbers"),
        (["--n", 100, *BUDGET], 2, "--classes"),
        (["--public", "rows.csv", *BUDGET], None, "--classes"),
        (["--public", "rows.txt", "--classes", "a,b", *BUDGET], None, "is no table that can be read"),
        (["--n", 100, "--classes", 2, "--queries", 0, *BUDGET], None, "at least 1"),
    ],
)
def test_what_cannot_be_planned_is_refused(tmp_path, arguments, status, said):
    done = invoked(tmp_path, *arguments)
    assert done.exit_code != 0
    assert status in (None, done.exit_code)
    assert said in " ".join((done.output + str(done.exception)).split())


def test_choosing_before_training_by_rule(run):
    """Public numbers alone: no records, no accuracy, and a command that `train` takes."""
    asked = ("plan", "--n", 20_000, "--classes", 2, "--epsilon", 1, "--delta", 1e-5)
    found = planned(run, *asked)

    assert found["recommended"] == "dpsgd-quantiles"
    assert (found["estimates"], found["answers"]) == ([], None)
    assert found["command"] == (
        "dpserve train --data FILE --classes A,B --bounds LOW:HIGH --lineage NAME --epsilon 1 --delta 1e-5 --n 20000 "
        "--out model"
    )
    said = run(*asked).stdout
    assert [line.partition(":")[0] for line in said.splitlines() if line[0] != " "] == ["Run", "Gives", "Costs"]
    assert "Recommended: DP-SGD, cuts at quantiles" in run(*asked, "--all").stdout


@pytest.mark.parametrize("budget", [BUDGET, ["--rho", 1e-3, "--delta", 1e-9]])
@pytest.mark.parametrize(
    "more",
    [
        ["--n", 200, "--classes", 2],
        [
            "--n",
            10**7,
            "--classes",
            "ill,well",
            "--share",
            "ill=0.02",
            *(f"--bounds=column_{n}=0:1" for n in range(30)),
        ],
        ["--n", 60_000, "--classes", 10, "--image-shape", "28,28", "--lineage", "a" * 64],
        ["--n", 20_000, "--classes", 2, "--queries", 10],
        ["--n", 40_000, "--classes", 2, "--retrain", "quarter", "--window", 2, "--epsilon", 3],
    ],
)
def test_no_line_of_a_plan_is_wider_than_a_terminal(tmp_path, budget, more):
    if "--retrain" in more:
        budget = ["--delta", 1e-6]
    for shown in ([], ["--all"]):
        done = invoked(tmp_path, *more, *budget, *shown)
        assert done.exit_code == 0, done.output
        assert max(map(len, done.output.splitlines())) <= 80, done.output


def test_a_rare_class_is_counted_and_the_majority_is_said(tmp_path):
    rare = ["--n", 2000, "--classes", "well,ill", "--share", "ill=0.02", "--epsilon", 1, "--delta", 1e-6]
    said = json.loads(invoked(tmp_path, *rare, "--json").output)["gives"]
    assert "about 40 of 2,000 records, few beside this noise" in said
    assert "right on 0.98" in said
    many = json.loads(invoked(tmp_path, *rare, "--n", 200_000, "--json").output)["gives"]
    assert "about 4,000 of 200,000 records." in many
    for wrong in ("sick=0.02", "ill=1.5", "ill=few"):
        assert invoked(tmp_path, *rare, "--share", wrong).exit_code == 2


def test_choosing_before_training_on_rows(tmp_path, monkeypatch):
    """A simulation says what its figures come from."""
    monkeypatch.setattr(recommendation.recommend_by_simulation, "__kwdefaults__", QUICK)
    (tmp_path / "public.csv").write_text(PUBLIC)
    file = ["--label", "ok", "--ignore", "id", "--classes", "no,yes", "--bounds", "0:60000"]
    budget = ["--epsilon", 8, "--delta", 1e-5, "--queries", 10, "--json"]

    public = json.loads(invoked(tmp_path, "--public", tmp_path / "public.csv", *file, *budget).stdout)
    shown = invoked(tmp_path, "--public", tmp_path / "public.csv", *file, *budget[:-1], "--all").stdout.splitlines()
    assert {line[-1] for line in shown if line[:1] in ("│", "┃")} == {"│", "┃"}  # no table is cut off

    assert public["from"] == f"Accuracy on 57 rows of {tmp_path / 'public.csv'}, declared public."
    assert {each["option"] for each in public["estimates"]} == {"class-sums", "weights", "per-query"}
    assert all(each["accuracy"] is not None for each in public["estimates"])


def test_training_follows_the_planner(tmp_path):
    """Without public rows the rule chooses; its options and nobody else's are used."""
    home = {"DPSERVE_HOME": str(tmp_path / "home"), "COLUMNS": "200"}
    train = ["train", "--data", "digits", "--out", str(tmp_path / "model"), "--epsilon", "1", "--delta", "1e-5"]

    def trained(*arguments):
        return CliRunner().invoke(app, [*train, *map(str, arguments)], env=home)

    assert "Invalid value for --n: is needed" in trained().output
    done = trained("--n", 1437, "--queries", 1000)
    assert done.exit_code == 0, done.output
    assert "Chosen: DP-SGD, linear head, by rule; " in done.output
    certificate = json.loads((tmp_path / "model" / "certificate.json").read_text())
    assert certificate["release"] == "dpsgd"
    assert certificate["feature_map"]["kind"] == "identity"
    assert "--epsilon 1 --delta 1e-5" in done.output
    refused = CliRunner().invoke(app, [*train[:3], "--out", str(tmp_path / "other"), "--queries", "5"], env=home)
    assert {error.field for error in refused.exception.errors} == {"epsilon", "n"}


def test_a_budget_is_planned_for_on_the_owner_s_crosses(tmp_path):
    """Classes differ by whether two numbers are alike: by one column alone half of the answers are right."""
    rng = np.random.default_rng(5)
    X = rng.random((4000, 2))
    lines = [f"{a:.4f},{b:.4f},{'same' if (a > 0.5) == (b > 0.5) else 'other'}" for a, b in X]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,outcome", *lines]))
    arguments = ["--data", tmp_path / "own.csv", "--label", "outcome", "--classes", "same,other", "--bounds", "a=0:1"]
    arguments += ["--bounds", "b=0:1", "--lineage", "own", "--epsilon", "4", "--delta", "1e-5", "--n", 4000]
    home = {"DPSERVE_HOME": str(tmp_path / "home"), "COLUMNS": "300"}
    done = CliRunner().invoke(
        app, ["train", *map(str, arguments), "--cross", "a:b", "--out", str(tmp_path / "model")], env=home
    )
    assert done.exit_code == 0, done.output + str(done.exception)
    certificate = json.loads((tmp_path / "model" / "certificate.json").read_text())
    assert certificate["feature_map"]["crosses"]
    answers = load_model(tmp_path / "model").values(X)
    assert np.mean((answers[:, 0] > 0.5) == ((X[:, 0] > 0.5) == (X[:, 1] > 0.5))) > 0.65


def test_what_the_planner_chooses_is_not_chosen_beside_it(tmp_path):
    home = {"DPSERVE_HOME": str(tmp_path / "home"), "COLUMNS": "300"}
    train = ["train", "--data", "digits", "--epsilon", "1", "--delta", "1e-5", "--n", "1437", "--out", "none"]
    for arguments, said in (
        (("--features", "fourier"), "auto chooses the features, too: leave yours out"),
        (("--features", "quantiles"), "auto chooses the features, too: leave yours out"),
        (("--quantile-share", "0.1"), "auto chooses the features, too: leave yours out"),
        (("--bias", "0.5"), "auto chooses the features, too: leave yours out"),
        (("--cross-buckets", "9", "--public", "digits"), "simulates on features that follow from rules"),
        (("weights", "--public", "digits"), "--public goes with dpserve train auto, not weights"),
        (("--lam", "3"), "--lam goes with dpserve train weights or dpserve train head, not auto"),
    ):
        done = CliRunner().invoke(app, [*train, *arguments], env=home)
        assert done.exit_code == 2
        assert said in " ".join(done.output.split())


def test_images_have_dp_sgd_on_histograms_of_their_gradients(tmp_path):
    home = {"DPSERVE_HOME": str(tmp_path / "home"), "COLUMNS": "300"}
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", X=generator.uniform(size=(60, 432)), y=generator.integers(2, size=60))
    train = ["train", "--data", str(tmp_path / "own.npz"), "--classes", "0,1", "--bounds", "0:1", "--lineage", "a"]
    train += ["--image-shape", "12,12,3", "--epsilon", "1", "--delta", "1e-5", "--n", "60"]

    def trained(name, *arguments):
        done = CliRunner().invoke(app, [*train, *arguments, "--out", str(tmp_path / name)], env=home)
        path = tmp_path / name / "certificate.json"
        return done.output + str(done.exception), json.loads(path.read_text()) if path.exists() else None

    said, certificate = trained("chosen")
    assert "Chosen: DP-SGD, linear head, by rule; " in said
    assert certificate["release"] == "dpsgd"
    assert certificate["steps"] == 200
    assert certificate["feature_map"]["kind"] == "hog"
    assert certificate["feature_map"]["image_shape"] == [12, 12, 3]
    assert "centred" not in certificate["feature_map"]
    _, certificate = trained("asked", "class-sums")
    assert certificate["feature_map"]["kind"] == "hog"
    assert "centred" not in certificate["feature_map"]


def test_only_images_whose_answers_get_noise_are_centred(tmp_path):
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", X=generator.uniform(size=(60, 144)), y=generator.integers(2, size=60))
    train = ["train", "--data", str(tmp_path / "own.npz"), "--classes", "0,1", "--bounds", "0:1", "--lineage", "a"]
    train += ["--image-shape", "12,12", "--lam", "10"]
    for name, more in {"head": ("head",), "weights": ("weights", "--rho", "1")}.items():
        out = tmp_path / name
        done = CliRunner().invoke(app, [*train, *more, "--out", str(out)], env={"DPSERVE_HOME": str(tmp_path / "home")})
        assert done.exit_code == 0, done.output
        found = json.loads((out / "certificate.json").read_text())["feature_map"]
        assert ("centred" in found) == (name == "head")


def test_the_command_of_a_plan_trains_as_it_stands(run, monkeypatch):
    """A schema, or flags for each column; the lineage's budget is looked up."""
    declared = ["--label", "ok", "--classes", "no,yes", "--bounds", "age=0:120", "--bounds", "income=0:1e6"]
    run("schema", "init", "own.csv", *declared, "--id", "id", "--n", 200, "--out", "own.toml")
    price = ("--epsilon", 1, "--delta", 1e-5)
    for words in (["--schema", "own.toml"], [*declared, "--ignore", "id", "--n", 200, "--lineage", "own"]):
        found = planned(run, "plan", "--data", "own.csv", *words, *price)
        assert "has no budget yet" in found["costs"]
        _, *command = shlex.split(found["command"])
        run(*command)
        if words[0] == "--schema":
            shutil.rmtree(run.folder / "model")
    run("lineage", "set-budget", "model", "--epsilon", 3, "--delta", 1e-6)
    run("export", "model", "--to", "safetensors")
    said = planned(run, "plan", "--schema", "own.toml", *price)["costs"]
    monkeypatch.setenv("DPSERVE_HOME", run.environment["DPSERVE_HOME"])
    fit = PrivateClassifier(run.folder / "own.toml", epsilon=1, delta=1e-5).cost()
    assert fit.left[""] in said  # one currency, in which the parts add up
    adds = re.search(r"epsilon = ([\d.]+) of .* adds ([\d.]+) to .* leaves ([\d.]+)", said)
    assert adds is not None
    left, taken, after = map(float, adds.groups())
    assert left - taken == pytest.approx(after, abs=0.002)
    images = planned(run, "plan", "--n", 60_000, "--classes", 10, "--image-shape", "28,28", *price)
    assert "--image-shape 28,28" in images["command"]


def test_a_command_for_a_person_to_run_keeps_names_whole(run):
    (run.folder / "a table --x.csv").write_text((run.folder / "own.csv").read_text())
    answers = ("--label", "ok", "--classes", "no,yes", "--bounds", "0:1e6", "--id", "id", "--n", 200)
    said = run("schema", "init", "a table --x.csv", *answers, "--out", "it's.toml").stdout
    _, *train = shlex.split(said.partition("Next: ")[2])
    run(*train)
    price = ("--epsilon", 1, "--delta", 1e-5)
    lines = run("plan", "--data", "a table --x.csv", "--schema", "it's.toml", *price).stdout.partition("Gives:")[0]
    _, _, *plan = shlex.split(lines)
    assert {"a table --x.csv", "it's.toml"} <= {*plan}


def test_public_rows_that_hold_a_private_record_are_refused(tmp_path):
    """One record among them is enough, whatever else the file holds and however it is written."""
    home = {"DPSERVE_HOME": str(tmp_path / "home"), "COLUMNS": "300"}
    rng = np.random.default_rng(2)
    X, other = rng.uniform(size=(80, 2)), rng.uniform(size=(60, 2))
    np.savez(tmp_path / "own.npz", X=X, y=(X[:, 0] > 0.5).astype(int))
    other[7] = X[3]
    np.savez(tmp_path / "public.npz", X=other, y=(other[:, 0] > 0.5).astype(int))
    train = ["train", "--data", str(tmp_path / "own.npz"), "--classes", "0,1", "--bounds", "0:1"]
    train += ["--lineage", "a"]
    budget = ["--epsilon", "1", "--delta", "1e-5", "--n", "80", "--public", str(tmp_path / "public.npz")]
    done = CliRunner().invoke(app, [*train, *budget, "--out", str(tmp_path / "model")], env=home)
    assert "holds private records of the lineage 'a': 1 of its rows as they are" in str(done.exception)


def test_public_rows_beyond_the_bounds_are_clipped_where_that_is_asked(run):
    """Ten rows are too few to simulate on, which is said of rows that are within the bounds."""
    (run.folder / "public.csv").write_text("".join(PUBLIC.splitlines(keepends=True)[:11]))
    words = ["plan", "--public", "public.csv", "--label", "ok", "--ignore", "id", "--classes", "no,yes"]
    words += ["--bounds", "0:1", *BUDGET]
    assert "above the declared bound 1" in run(*words, status=1).stderr
    assert "needs at least 50 rows" in run(*words, "--clip", status=1).stderr


def test_retrainings_share_a_blocks_budget_and_say_their_price(run):
    budget = ("--epsilon", 3, "--delta", 1e-6, "--n", 40_000, "--classes", 2)
    found = planned(run, "plan", "--retrain", 4, "--window", 3, *budget)
    assert found["price"] == Budget.from_epsilon_delta(3, 1e-6, "gaussian").limit // 3
    assert [(each["first"], each["last"]) for each in found["retrainings"]] == [(1, 1), (1, 2), (1, 3), (2, 4)]
    assert (
        f"give each rho = {to_rho(found['price'])!r},"
        in run("plan", "--retrain", "quarter", "--window", 3, *budget).stdout
    )
    assert "--block COLUMN --blocks NAMES-OF-3 --leave-out-other-blocks" in found["command"]
    assert f"--lineage-epsilon 3 --lineage-delta 1e-6 --rho {to_rho(found['price'])!r} " in found["command"]
    monthly = run("plan", "--retrain", "month", "--window", 1, *budget).stdout
    assert (
        "Next, for each: dpserve train --data FILE --classes A,B --bounds LOW:HIGH --block COLUMN \\ --block-by month "
        in " ".join(monthly.split())
    )
    for wrong in (
        ("--retrain", "never", *budget),
        ("--retrain", 4, "--n", 100, "--classes", 2),
        ("--retrain", 4, "--rho", 0.3, "--delta", 1e-5, "--n", 100, "--classes", 2),
        ("--retrain", 4, *budget, "--queries", 10),
    ):
        run("plan", *wrong, status=2)


def test_a_plan_draws_each_option_against_the_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(recommendation.recommend_by_simulation, "__kwdefaults__", QUICK)
    lines = [f"{'yes' if index % 3 else 'no'},{index % 3 + index / 90}" for index in range(60)]
    (tmp_path / "public.csv").write_text("\n".join(["ok,a", *lines]))
    few = ("--public", tmp_path / "public.csv", "--label", "ok", "--classes", "no,yes", "--bounds", "0:4")
    assert invoked(tmp_path, *BUDGET, *few, "--plot", tmp_path / "simulated.png").exit_code == 0
    picture = imread(tmp_path / "simulated.png")
    assert picture.ndim == 3
    assert picture.std() > 0
