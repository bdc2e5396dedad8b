"""`dpserve evaluate` on records that lie in blocks: who pays, and what is refused before anything is charged."""

import json
import re

import pytest

from dpserve.training.evaluation import IN_BLOCKS, Evaluation
from dpserve.training.kinds.loading import load_model
from tests.command_line import ran

TRAIN = ("train", "--label", "ok", "--classes", "no,yes", "--bounds", "age=0:120", "--bounds", "income=0:1e6")
TRAIN += ("class-sums", "--n", "200", "--prediction-sets", "off", "--rho", "0.05")
TRAIN += ("--unit", "who", "--lineage", "sales")
BUDGET = ("--lineage-epsilon", "6", "--lineage-delta", "1e-6")
BY_MONTH = ("--block", "day", "--block-by", "month", "--blocks")
PRICE = ("--label", "ok", "--rho", "0.1", "--report", "accuracy")
TRAINED, NEW = ("2026-09", "2026-10"), "2026-11"


def records(*months, shift=0.0, who=""):
    """A hundred records of each month, each with a person and values of its own."""
    return "age,income,who,day,ok\n" + "".join(
        f"{20 + index % 60 + shift},{1000 * (index % 60 + int(month[-2:])) + 7 * index},{who}{month}/{index},"
        f"{month}-{1 + index % 28:02},{'yes' if index % 60 > 30 else 'no'}\n"
        for month in months
        for index in range(100)
    )


@pytest.fixture
def table(run):
    def table(name, *months, **more):
        (run.folder / name).write_text(records(*months, **more))
        return name

    return table


@pytest.fixture
def certificate(run, table):
    """The certificate of a model of two months, which is not charged yet."""
    run(*TRAIN, *BUDGET, "--data", table("trained.csv", *TRAINED), "--out", "model", *BY_MONTH, ",".join(TRAINED))
    return load_model(run.folder / "model").certificate


def spent(run, lineage="sales"):
    shown = json.loads(run("lineage", "show", lineage, "--json").stdout)
    return {each["block"]: each["spent_picorho"] for each in shown["blocks"]}


def lineages(run):
    return [each["lineage"] for each in json.loads(run("lineage", "list", "--json").stdout)]


def written(run, name="model/evaluation.json"):
    content = json.loads((run.folder / name).read_text())
    for beside in ("figures", "seal"):
        del content[beside]
    return Evaluation.model_validate(content)


def test_the_blocks_of_the_rows_pay_for_an_evaluation_and_those_of_the_model_for_the_model(run, table, certificate):
    """To the unit of the ledger: new rows of a new block, then new rows of a block that was trained on, then both."""
    model = certificate.price.picorho
    new = ("evaluate", "model", "--data", table("new.csv", NEW), *PRICE, *BY_MONTH, NEW)
    assert f"the block {NEW} of the lineage sales has no budget yet" in run.fails(*new)
    said = run(*new, *BUDGET).stdout
    one = written(run).law.cost.picorho
    assert spent(run) == {**dict.fromkeys(TRAINED, model), NEW: one}
    assert re.search(
        "each of the blocks 2026-09, 2026-10 of the lineage sales was charged epsilon = .* for the model", said
    )
    assert re.search("the block 2026-11 of the lineage sales was charged epsilon = .* for the evaluation", said)
    # Rows that were trained on lie in the same block.
    run("evaluate", "model", "--data", "trained.csv", *PRICE, *BY_MONTH, ",".join(TRAINED), "--out", "t.json")
    assert spent(run) == {**dict.fromkeys(TRAINED, model + one), NEW: one}
    both = table("both.csv", TRAINED[0], NEW, shift=0.5, who="other ")
    run("evaluate", "model", "--data", both, *PRICE, *BY_MONTH, f"{NEW},{TRAINED[0]}", "--out", "b.json")
    assert spent(run) == {TRAINED[0]: model + 2 * one, TRAINED[1]: model + one, NEW: 2 * one}
    assert "right" in run("ledger", "verify").stdout
    evaluation = written(run)
    assert evaluation.assumptions[-1] == IN_BLOCKS
    assert not {"sales", NEW} & set(evaluation.model_dump_json().split('"'))
    assert "one block" in " ".join(run("inspect", "model", "--json").stdout.split())


def test_a_table_that_is_one_block_is_named_and_a_lineage_of_its_own_opens_its_blocks(run, table, certificate):
    held = ("evaluate", "model", "--data", table("new.csv", NEW), "--ignore", "day", *PRICE, "--lineage", "held")
    run(*held, "--block-name", NEW, *BUDGET)
    model, one = certificate.price.picorho, written(run).law.cost.picorho
    assert spent(run) == dict.fromkeys(TRAINED, model)
    assert spent(run, "held") == {NEW: one}
    # A block that is open needs no budget, and keeps the one that it has.
    run(*held, "--block-name", NEW, "--out", "again.json")
    assert spent(run, "held") == {NEW: 2 * one}
    said = " ".join(run.fails(*held, "--out", "third.json").split())
    assert f"100 units of the unnamed block are in the block {NEW}, too" in said
    others = ("--data", table("others.csv", NEW, who="other "), "--out", "third.json")
    said = " ".join(
        run("evaluate", "model", "--ignore", "day", *PRICE, "--lineage", "held", *others, status=2).stderr.split()
    )
    assert "has no budget but its blocks', and those that the held-out rows lie in pay" in said


def test_a_block_that_is_spent_refuses_the_evaluation_and_nothing_is_charged_opened_or_noted(run, table, certificate):
    del certificate
    first = ("evaluate", "model", "--data", table("one.csv", TRAINED[0], shift=0.5, who="other "), *PRICE, *BY_MONTH)
    run(*first, TRAINED[0])
    before = spent(run)
    run("lineage", "set-budget", "sales", "--block", TRAINED[0], "--rho", "0.2", "--delta", "1e-6", "--yes")
    both = (
        "evaluate",
        "model",
        "--data",
        table("both.csv", TRAINED[0], NEW, shift=0.7, who="more "),
        *PRICE,
        *BY_MONTH,
    )
    said = " ".join(run.fails(*both, f"{TRAINED[0]},{NEW}", *BUDGET, "--out", "b.json").split())
    assert "the block 2026-09 of the lineage sales does not pay for " in said
    assert "is left in its budget; nothing was charged for it" in said
    assert "leave its records out, or raise its budget with" in said
    assert spent(run) == before
    assert not (run.folder / "b.json").exists()
    # The others pay without it; what was refused noted nothing, so that its rows may be another block's.
    run(*both, NEW, *BUDGET, "--leave-out-other-blocks", "--out", "b.json")
    assert spent(run) == before | {NEW: written(run, "b.json").law.cost.picorho}


def test_new_blocks_that_could_not_pay_are_not_opened(run, table, certificate):
    del certificate
    poor = ("--lineage-epsilon", "0.5", "--lineage-delta", "1e-6")
    said = run.fails("evaluate", "model", "--data", table("new.csv", NEW), *PRICE, *BY_MONTH, NEW, *poor)
    assert f"the block {NEW} of the lineage sales does not pay for" in " ".join(said.split())
    assert lineages(run) == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (("--ignore", "day"), "--block: is needed, or --block-name"),
        ((*BY_MONTH, "2026-11"), "'2026-12-01' is in none of the declared blocks"),
        (("--block-name", "x", "--block", "day", "--blocks", "x"), "takes the place of --block"),
        (("--block", "absent", "--blocks", "x"), "no column 'absent'"),
        ((*BY_MONTH, "november"), "'november' is no month"),
        (("--ignore", "day", "--block-name", "x", "--lineage-epsilon", "3"), "--lineage-epsilon"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_blocks_that_are_declared_wrongly_charge_nothing(run, table, certificate, wrong, says):
    del certificate
    table("new.csv", NEW, "2026-12")
    budget = () if "--lineage-epsilon" in wrong or wrong == ("--ignore", "day") else BUDGET
    words = ["evaluate", "model", "--data", "new.csv", *PRICE, *wrong, *budget]
    done = ran(words, run.folder, run.environment)
    assert done.returncode in (1, 2), done.stdout
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert lineages(run) == []
    assert not (run.folder / "model" / "evaluation.json").exists()


def test_rows_and_people_of_another_block_are_refused(run, table, certificate):
    """A record that was trained on would be charged to a block that did not pay for the training."""
    del certificate
    moved = ("evaluate", "model", "--data", "trained.csv", "--ignore", "day", *PRICE, *BUDGET)
    said = " ".join(run.fails(*moved, "--block-name", NEW).split())
    assert f"100 units of the block {NEW} are in the block 2026-09, too" in said
    assert lineages(run) == []


def test_a_model_without_blocks_is_evaluated_on_rows_of_a_block_which_pays_for_the_evaluation(run, table):
    (run.folder / "plain.csv").write_text(records("2026-09"))
    run(*TRAIN, "--data", "plain.csv", "--ignore", "day", "--out", "plain")
    asked = ("evaluate", "plain", "--data", table("new.csv", NEW), "--ignore", "day", *PRICE)
    said = run.fails(*asked, "--block-name", NEW, *BUDGET)
    assert "the lineage sales has no budget yet" in " ".join(said.split())
    run("lineage", "set-budget", "plain", "--rho", "1", "--delta", "1e-6")
    run(*asked, "--block-name", NEW, *BUDGET)
    assert spent(run) == {NEW: written(run, "plain/evaluation.json").law.cost.picorho}
    shown = json.loads(run("lineage", "show", "sales", "--json").stdout)
    assert shown["spent_picorho"] > 0
    assert len(shown["models"]) == 2
    assert "right" in run("ledger", "verify").stdout
