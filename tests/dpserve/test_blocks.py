"""Blocks from the command line and in Python to the answers: who pays, who is refused, and what it is told."""

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import dpserve
from dpserve.training.kinds.loading import load_model
from tests.command_line import ran, ran_program
from tests.dpserve.estimators import estimator

TRAIN = ("train", "--label", "ok", "--classes", "no,yes", "--bounds", "age=0:120", "--bounds", "income=0:1e6")
TRAIN += ("--lineage", "sales", "--lineage-epsilon", "3", "--lineage-delta", "1e-6")
BY_MONTH = ("--block", "day", "--block-by", "month", "--blocks")
ONCE = ("class-sums", "--n", "100", "--prediction-sets", "off", "--rho", "0.05")
HEAD = ("head", "--lam", "1")
MONTHS = ("2026-09", "2026-10", "2026-11")


def records(*months, named=True):
    """A hundred records of each month, each with a person and values of its own."""
    columns = "age,income,who,ok" + (",day" if named else "") + "\n"
    return columns + "".join(
        f"{20 + index % 60},{1000 * (index % 60 + int(month[-2:])) + 7 * index},{month}/{index},"
        f"{'yes' if index % 60 > 30 else 'no'}" + (f",{month}-{1 + index % 28:02}" if named else "") + "\n"
        for month in months
        for index in range(100)
    )


@pytest.fixture
def train(run):
    def train(name, months, *more, status=0, table=None, kind=HEAD, blocks=BY_MONTH):
        (run.folder / f"{name}.csv").write_text(records(*(months if table is None else table)))
        declared = (*blocks, ",".join(months)) if blocks else ()
        return run(
            *TRAIN, *kind, "--unit", "who", "--data", f"{name}.csv", "--out", name, *declared, *more, status=status
        )

    return train


def left(run, lineage="sales"):
    shown = json.loads(run("lineage", "show", lineage, "--json").stdout)
    return {each["block"]: each["spent_picorho"] for each in shown["blocks"]}


def test_each_answer_charges_the_blocks_of_its_model_and_a_spent_block_is_named(run, train):
    train("autumn", MONTHS[:2])
    train("newest", MONTHS[2:])
    shown = " ".join(run("inspect", "autumn").stdout.split())
    assert "2026-09, 2026-10" in shown
    assert load_model(run.folder / "autumn").certificate.blocks == MONTHS[:2]
    process, address = run.start("autumn", "newest", "--default", "autumn", "--price", "rho:0.01")
    try:
        run("lineage", "set-budget", "sales", "--block", "2026-10", "--rho", "0.025", "--delta", "1e-6", "--yes")
        key = run("clients", "add", "ann", "--rho", "1", "--delta", "1e-5").stdout.strip()
        with dpserve.Client(address, key) as client:
            client.predict([[30.0, 1000.0], [50.0, 2000.0]])
            assert left(run) == {"2026-09": 2 * 10**10, "2026-10": 2 * 10**10, "2026-11": 0}
            with pytest.raises(dpserve.BudgetExhausted) as refused:
                client.predict([[60.0, 3000.0]])
        assert refused.value.scope == "block"
        assert "block 2026-10" in str(refused.value)
        assert refused.value.remaining is None  # which would tell what others ask
        with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}) as http:
            assert http.get("/models/autumn").json()["blocks"] == ["2026-09", "2026-10"]
            answered = http.post("/models/newest/predict", json={"instances": [[60.0, 3000.0]]})
            assert answered.status_code == 200, answered.text
            told = http.get("/models/autumn/budget").json()
            assert told["queries_left"] == 0
            assert "2026-09, 2026-10" in told["explanation"]["in_plain_words"]
            assert told["limiting_block"] == "2026-10"
            said = "At the present price the block 2026-10, which has less left, pays for 0 more answers."
            assert said in told["explanation"]["in_plain_words"]
            assert http.get("/models/newest/budget").json()["limiting_block"] == "2026-11"
            receipts = http.get("/models/autumn/budget/receipts").json()["receipts"]
            assert [each.get("blocks") for each in receipts] == [["2026-09", "2026-10"], ["2026-11"]]
        # An account that pays for no more than each block does is told of none.
        poor = run("clients", "add", "bob", "--rho", "0.01", "--delta", "1e-6").stdout.strip()
        told = httpx.get(f"{address}/models/newest/budget", headers={"Authorization": f"Bearer {poor}"}).json()
        assert (told["queries_left"], told["limiting_block"]) == (1, None)
        assert left(run) == {"2026-09": 2 * 10**10, "2026-10": 2 * 10**10, "2026-11": 10**10}
        assert "right" in run("ledger", "verify").stdout
        explained = run("explain", "--lineage", "sales", "--block", "2026-09").stdout
        assert "this block" in " ".join(explained.split())
    finally:
        process.terminate()
        process.wait()


def test_a_pay_once_model_is_refused_by_a_block_that_is_spent_and_trained_without_it(run, train):
    train("all", MONTHS, kind=ONCE)
    process, _ = run.start("all")
    process.terminate()
    process.wait()
    assert set(left(run)) == set(MONTHS)
    assert all(abs(spent - 5 * 10**10) < 10 for spent in left(run).values())
    run("lineage", "set-budget", "sales", "--block", "2026-09", "--rho", "0.06", "--delta", "1e-6", "--yes")
    train("again", MONTHS, kind=ONCE)
    said = run.fails("serve", "again")
    assert "the block 2026-09 of the lineage sales does not pay for " in said
    assert re.search(r"again, which costs rho = 0\.05, and 0\.0(1|0999\d*) of 0\.06 is left", " ".join(said.split()))
    assert "leave its records out, or raise its budget with" in said
    assert all(abs(spent - 5 * 10**10) < 10 for spent in left(run).values())
    train("without", MONTHS[1:], kind=ONCE)
    process, _ = run.start("without")
    process.terminate()
    process.wait()
    spent = left(run)
    assert abs(spent["2026-09"] - 5 * 10**10) < 10
    assert abs(spent["2026-11"] - 10 * 10**10) < 20


def test_a_record_of_an_undeclared_block_is_refused_or_left_out_by_name(run, train):
    said = train("some", MONTHS[:2], table=MONTHS, status=1).stderr
    assert "'2026-11-01' is in none of the declared blocks" in said
    assert "--leave-out-other-blocks leaves out records of others" in said
    train("some", MONTHS[:2], "--leave-out-other-blocks", table=MONTHS)
    assert load_model(run.folder / "some").certificate.blocks == MONTHS[:2]
    # The records of the third month were left out: they are in no block yet.
    train("third", MONTHS[2:])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--block", "day", "--blocks", "2026-09", "--block-name", "x"), "block-name"),
        (("--blocks", "2026-09"), "goes with --block"),
        (("--block", "day"), "--blocks: is needed"),
        (("--block", "day", "--block-by", "month", "--blocks", "september"), "'september' is no month"),
        (("--block", "day", "--blocks", "2026-09,2026-09"), "each once"),
        (("--block", "day", "--blocks", "{x}"), "a block's name"),
        (("--block", "absent", "--blocks", "a"), "no column 'absent'"),
        (
            ("--ignore", "day", "--id", "who", "--block", "who", "--block-by", "day", "--blocks", "2026-09-01"),
            "does not begin with a date",
        ),
        (("--block-name", "2026-09", "--engine", "ray"), "has no blocks"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_blocks_that_are_declared_wrongly_train_nothing(run, train, wrong, said):
    (run.folder / "r.csv").write_text(records("2026-09"))
    done = refused(run, *TRAIN, *HEAD, "--unit", "who", "--data", "r.csv", "--out", "model", *wrong)
    assert said in " ".join(done.stderr.split())
    assert not (run.folder / "model").exists()


def refused(run, *arguments):
    """Run a command that fails, or that is used wrongly."""
    done = ran([str(argument) for argument in arguments], run.folder, run.environment, stdin="")
    assert done.returncode in (1, 2), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_a_budget_of_blocks_is_needed_and_must_be_one(run):
    (run.folder / "r.csv").write_text(records("2026-09"))
    words = [word for word in TRAIN if word not in ("--lineage-epsilon", "3", "--lineage-delta", "1e-6")]
    base = (*words, *HEAD, "--unit", "who", "--data", "r.csv", "--out", "model", *BY_MONTH, "2026-09")
    for more in ((), ("--lineage-epsilon", "3"), ("--lineage-epsilon", "-1", "--lineage-delta", "1e-6")):
        assert "--lineage-epsilon" in refused(run, *base, *more).stderr


def test_a_person_in_two_blocks_is_refused(run, train):
    """Within a table, and in a table of another day."""
    both = records("2026-09") + "30,5000,2026-09/7,no,2026-10-03\n"
    (run.folder / "both.csv").write_text(both)
    declared = (*BY_MONTH, "2026-09,2026-10", "--unit", "who")
    said = run(*TRAIN, *HEAD, "--data", "both.csv", "--out", "both", *declared, status=1).stderr
    assert "1 units of the block" in said
    train("september", MONTHS[:1])
    (run.folder / "one.csv").write_text(records("2026-09", named=False))
    name = ("--unit", "who", "--block-name", "2026-12")
    said = run(*TRAIN, *HEAD, "--data", "one.csv", "--out", "one", *name, status=1).stderr
    assert "100 units of the block 2026-12 are in the block 2026-09, too" in said
    # What was refused noted nothing: those records are in their own block alone.
    run(*TRAIN, *HEAD, "--data", "one.csv", "--out", "one", "--unit", "who", "--block-name", "2026-09")


def test_rows_of_another_block_are_refused_unless_they_are_said_to_be_others(run):
    (run.folder / "one.csv").write_text(records("2026-09", named=False))
    base = (*TRAIN, *HEAD, "--ignore", "who", "--data", "one.csv")
    run(*base, "--out", "a", "--block-name", "a")
    said = run(*base, "--out", "b", "--block-name", "b", status=1).stderr
    assert "100 records of the block b have rows that are in the block a, too" in said
    run(*base, "--out", "b", "--block-name", "b", "--equal-rows-in-blocks-are-others")


def test_blocks_that_a_store_lost_are_named_come_back_and_get_a_budget(run, train):
    """A lineage that is opened anew has no blocks: a loss that named none would be that of other records."""
    train("autumn", MONTHS[:2])

    def ask(*rows):
        process, address = run.start("autumn", "--price", "rho:0.01")
        try:
            client = f"ann {len(rows)}"
            key = run("clients", "add", client, "--rho", "1", "--delta", "1e-5").stdout.strip()
            with dpserve.Client(address, key) as client:
                return client.predict(list(rows))
        finally:
            process.terminate()
            process.wait()

    ask([30.0, 1000.0])
    shutil.move(run.folder / "home" / "journals", run.folder / "kept")
    shutil.rmtree(run.folder / "home" / "ledger")
    run("ledger", "reconcile", "--lineage", "sales", "--epsilon", "3", "--delta", "1e-6")
    declare = ("ledger", "reconcile", "--lineage", "sales", "--declare-lost", "2", "--lost-cost", "gaussian:0.1")
    declare += ("--yes",)
    assert "(2026-09, 2026-10), which the store lost: name those" in " ".join(run.fails(*declare).split())
    back = ("ledger", "reconcile", "--lineage", "sales", "--journal", run.folder / "kept")
    done = run(*back).stdout
    assert "1 receipts put back" in done
    assert left(run) == {"2026-09": 10**10, "2026-10": 10**10}
    for block in MONTHS[:2]:
        assert f"--block {block}'" in " ".join(done.split())
    assert "--lost-block-accounts" in run.fails(*declare, "--lost-blocks", "2026-99")
    run(*declare, "--lost-blocks", "2026-10,2026-11", "--lost-block-accounts", "2026-11")
    lost = 10**10 + 2  # two releases of 0.005, each rounded up
    assert left(run) == {"2026-09": 10**10, "2026-10": 10**10 + lost, "2026-11": lost}
    for block in MONTHS[:2]:
        run("lineage", "set-budget", "sales", "--block", block, "--epsilon", "3", "--delta", "1e-6", "--yes")
    ask([30.0, 1000.0], [50.0, 2000.0])
    assert left(run)["2026-09"] == 2 * 10**10
    assert "right" in run("ledger", "verify").stdout


def test_what_was_trained_on_without_blocks_is_the_unnamed_blocks_and_no_others(run, train):
    """Each block pays for its own records; a record of two would lose what both allow."""
    plain = [word for word in TRAIN if word not in ("--lineage-epsilon", "3", "--lineage-delta", "1e-6")]
    train_plain = (*plain, *ONCE, "--unit", "who", "--data")
    (run.folder / "r.csv").write_text(records("2026-09", named=False))
    run(*train_plain, "r.csv", "--out", "plain")
    process, _ = run.start("plain", "--rho", "1", "--delta", "1e-6")
    process.terminate()
    process.wait()
    said = " ".join(train("autumn", MONTHS[:2], status=1).stderr.split())
    assert "100 units of the block 2026-09 are in the unnamed block, too" in said
    # Records of their own have a block with a budget of its own, in the same lineage.
    train("autumn", MONTHS[1:2])
    process, _ = run.start("autumn", "--price", "rho:0.01")
    process.terminate()
    process.wait()
    shown = json.loads(run("lineage", "show", "sales", "--json").stdout)
    assert shown["spent_picorho"] > 0
    assert [(each["block"], each["spent_picorho"]) for each in shown["blocks"]] == [("2026-10", 0)]
    # And the other way round.
    (run.folder / "r.csv").write_text(records("2026-10", named=False))
    said = " ".join(run.fails(*train_plain, "r.csv", "--out", "again").split())
    assert "100 units of the unnamed block are in the block 2026-10, too" in said
    assert not (run.folder / "again").exists()
    listed = run("lineage", "list").stdout
    assert "sales, block 2026-10" in " ".join(listed.split())
    assert "right" in run("ledger", "verify").stdout


SHARING = """
import sys
from dpserve import Blocks, BudgetExhausted, ClassSums, Lineage, PrivateClassifier, Schema
blocks = Blocks(block="day", block_by="month", blocks=sys.argv[2])
model = PrivateClassifier(
    Schema(label="ok", bounds={"age": (0, 120), "income": (0, 1e6)}, classes=["no", "yes"], unit="who"),
    epsilon=1,
    delta=1e-6,
    lineage=Lineage("sales", epsilon=1.2, delta=1e-6, blocks=blocks),
    n=200,
    kind=ClassSums(),
    prediction_sets="off",
    again=True,  # whoever comes later, too, is decided on by the block alone
)
try:
    model.fit(sys.argv[1])
except BudgetExhausted as refused:
    print("refused", refused)
else:
    print("charged")
"""


def test_of_two_trainings_at_once_that_share_a_block_it_pays_for_one(run):
    """The block pays for one model: the other charges neither the shared block nor its own."""
    for name, months in (("a", MONTHS[:2]), ("b", MONTHS[1:])):
        (run.folder / f"{name}.csv").write_text(records(*months))
    (program := run.folder / "sharing.py").write_text(SHARING)

    def trained(name, months):
        return ran_program(program, [f"{name}.csv", ",".join(months)], run.folder, run.environment).stdout

    with ThreadPoolExecutor(2) as pool:
        said = sorted(words.split()[0] for words in pool.map(trained, "ab", (MONTHS[:2], MONTHS[1:])))
    assert said == ["charged", "refused"]
    spent = left(run)
    one = spent["2026-10"]
    assert one > 0
    assert sorted((spent.get("2026-09", 0), spent.get("2026-11", 0))) == [0, one]
    assert "right" in run("ledger", "verify").stdout


def test_blocks_pay_once_for_a_model_whoever_asks(run, train):
    train("model", MONTHS[:2], kind=ONCE)
    train("other", MONTHS[1:], kind=ONCE)
    process, address = run.start("model", "other", "--default", "model")
    try:
        spent = [left(run)]
        for client in ("ann", "bob"):
            key = run("clients", "add", client, "--rho", "1", "--delta", "1e-5").stdout.strip()
            with dpserve.Client(address, key) as asking:
                asking.predict([[30.0, 1000.0]])
            spent.append(left(run))
    finally:
        process.terminate()
        process.wait()
    one, two, three = (spent[0][month] for month in MONTHS)
    assert one > 0
    assert two == one + three
    assert spent[1:] == [spent[0]] * 2
    assert "right" in run("ledger", "verify").stdout


def test_python_charges_each_fit_to_its_blocks(run, monkeypatch):
    monkeypatch.setenv("DPSERVE_HOME", run.environment["DPSERVE_HOME"])
    path = run.folder / "months.csv"
    path.write_text(records(*MONTHS))
    declared = {"bounds": {"age": (0, 120), "income": (0, 1e6)}, "classes": ["no", "yes"], "epsilon": 1, "delta": 1e-6}
    declared |= {"n": 300, "kind": "class-sums", "prediction_sets": "off", "unit": "who", "budget": (1.2, 1e-6)}
    declared |= {"lineage": "sales", "block": "day", "block_by": "month"}
    model = estimator(blocks="2026-09,2026-10,2026-11", **declared).fit(path, "ok")
    assert model.certificate_.blocks == MONTHS
    assert model.feature_names_in_.tolist() == ["age", "income"]
    before = left(run)
    assert len(set(before.values())) == 1
    with pytest.raises(dpserve.BudgetExhausted, match="the block 2026-09 of the lineage sales does not pay for"):
        estimator(blocks="2026-09,2026-10,2026-11", **declared, again=True).fit(path, "ok")
    assert left(run) == before
    with pytest.raises(ValueError, match=r"Lineage\(epsilon=\) is needed"):
        estimator(blocks="2026-09", **declared | {"budget": None}).fit(path, "ok")


def served_once(run, *bundles):
    """Start and end a service, which charges for what it serves; return what each block has paid."""
    process, _ = run.start(*bundles)
    process.terminate()
    process.wait()
    return left(run)


def test_what_is_refused_opens_no_block(run, train):
    """Serving, exporting and fitting ask every block first, those that would open, too."""
    train("first", MONTHS[:1], kind=ONCE)
    assert set(served_once(run, "first")) == {MONTHS[0]}
    run("lineage", "set-budget", "sales", "--block", "2026-09", "--rho", "0.06", "--delta", "1e-6", "--yes")
    train("both", MONTHS[:2], kind=ONCE)
    assert "the block 2026-09 of the lineage sales does not pay for" in run.fails("serve", "both")
    assert "2026-09" in run.fails("export", "both", "--to", "safetensors", "--out", "away")
    dear = ("weights", "--lam", "1", "--rho", "3")
    train("dear", MONTHS[2:], kind=dear)
    assert "the block 2026-11" in run.fails("serve", "dear")
    assert "2026-11" in run.fails("export", "dear", "--to", "safetensors", "--out", "away")
    assert set(left(run)) == {MONTHS[0]}


def test_a_budget_given_at_start_opens_the_lineages_that_have_no_blocks(run, train):
    """Blocks keep the budgets that they were trained with; where every model has blocks a lineage's is refused."""
    budget = ("--rho", "0.5", "--delta", "1e-6")
    train("autumn", MONTHS[:2], kind=ONCE)
    assert "has blocks, which pay for what its models say" in run.fails("serve", "autumn", *budget)
    run("train", "--data", "digits", "class-sums", "--rho", "0.1", "--out", "digits")
    assert "the lineage digits has no budget yet" in run.fails("serve", "autumn", "digits", "--default", "digits")
    process, _ = run.start("autumn", "digits", "--default", "digits", *budget)
    process.terminate()
    process.communicate(timeout=60)
    lineages = {each["lineage"]: each for each in json.loads(run("lineage", "list", "--json").stdout)}
    assert lineages["digits"]["budget_picorho"] == 5 * 10**11
    assert set(left(run)) == set(MONTHS[:2])
    assert all(abs(spent - 5 * 10**10) < 10 for spent in left(run).values())
