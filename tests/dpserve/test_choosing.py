"""`dpserve train --choose`: what is chosen on the private records, and what the lineage pays for it."""

import json

import pytest

from accounting.losses import Cost
from training.bundles.certificate import CHOICE_ASSUMPTION
from training.kinds.loading import load_model
from training.pay_once.certificate import ChosenAmong

CSV = "age,income,ok\n" + "".join(
    f"{20 + index % 60},{1000 * (index % 60) + index},{'yes' if index % 60 > 30 else 'no'}\n" for index in range(600)
)
TRAIN = ("train", "--data", "r.csv", "--label", "ok", "--classes", "no,yes", "--bounds", "age=0:120")
TRAIN += ("--bounds", "income=0:1e6", "--lineage", "people")
CHOOSE = ("--choose", "lam=10,3000", "--choose-price", "rho:1", "--records-declared", "600")
AMONG = ("--release", "dpsgd", "--choose", "hidden=0,4", "--records-declared", "600", "--steps", "20")


FEATURES = ("--release", "class-sums", "--choose", "features=quantiles,bins,identity")
BUCKETS = ("--release", "class-sums", "--choose", "cross-buckets=0,64")


@pytest.fixture
def train(run):
    (run.folder / "r.csv").write_text(CSV)
    return lambda *arguments, **how: run(*TRAIN, *arguments, **how)


def spent(run):
    (found,) = json.loads(run("lineage", "list", "--json").stdout)
    return found["spent_picorho"]


def lineages(run):
    return [each["lineage"] for each in json.loads(run("lineage", "list", "--json").stdout)]


def test_a_choice_is_charged_to_the_lineage_and_the_head_has_what_was_chosen(run, train):
    said = train(*CHOOSE, "--choose-budget", "12@1e-5", "--out", "model").stdout
    assert "the lineage people was charged rho = 1 for choosing" in said
    assert "Chosen: --lam" in said
    certificate = load_model(run.folder / "model").certificate
    assert certificate.choice.lams == (10.0, 3000.0)
    assert certificate.strong_convexity == certificate.choice.lam
    assert certificate.assumptions[-1] == CHOICE_ASSUMPTION
    assert "from 10, 3000, for rho = 1 besides" in " ".join(run("inspect", "model").stdout.replace("│", " ").split())
    assert 0 <= 10**12 - spent(run) < 10
    # Choosing again draws again, and is paid for again; released weights can be chosen for, too.
    train(*CHOOSE, "--release", "weights", "--price", "rho:0.1", "--out", "once")
    assert load_model(run.folder / "once").certificate.choice.cost == certificate.choice.cost
    assert 0 <= 2 * 10**12 - spent(run) < 20


def test_the_lineage_pays_for_all_candidates_before_the_best_one_is_there_and_never_again(run, train):
    said = train(*AMONG, "--price", "rho:1", "--choose-budget", "12@1e-5", "--out", "model").stdout
    assert "charged rho = 1 for all 2 candidates" in said
    assert "Chosen: --hidden" in said
    assert "Noisy scores (right answers less wrong ones)" in said
    assert 0 <= 10**12 - spent(run) < 10
    charged = spent(run)
    run("export", "model", "--to", "safetensors")
    assert spent(run) == charged
    shown = " ".join(run("inspect", "model").stdout.split())
    assert "hidden was chosen" in shown
    assert "among 0 (rho 0.5, score" in shown
    assert "one in 6, by a keyed hash of the record or its unit" in shown
    assert "right answers less wrong ones on the records that validate, with Gaussian noise" in shown


def test_candidates_that_the_lineage_does_not_pay_for_leave_nothing(run, train):
    said = train(*AMONG, "--price", "rho:1", "--choose-budget", "1@1e-5", "--out", "m", status=1)
    assert "nothing was chosen" in said.stderr
    assert "Chosen" not in said.stdout
    assert not (run.folder / "m").exists()
    assert lineages(run) == []


def test_units_are_chosen_by_as_a_whole(run, train):
    (run.folder / "r.csv").write_text(
        "".join(f"{line},{'who' if not at else at // 3}\n" for at, line in enumerate(CSV.splitlines()))
    )
    train(*AMONG, "--price", "rho:1", "--choose-budget", "12@1e-5", "--unit", "who", "--out", "model")
    certificate = load_model(run.folder / "model").certificate
    assert certificate.unit == "who"
    assert certificate.chosen_among.option == "hidden"


def test_features_are_chosen_and_those_that_cost_something_are_in_the_price(run, train):
    train(*FEATURES, "--price", "rho:0.6", "--choose-budget", "12@1e-5", "--out", "model")
    certificate = load_model(run.folder / "model").certificate
    among = certificate.chosen_among
    assert (among.option, among.candidates) == ("features", ("quantiles", "bins", "identity"))
    assert certificate.feature_map.kind == among.chosen
    costs = [Cost.parse(cost) for cost in among.costs]
    assert all(0.199 * 10**12 < cost.picorho <= 0.2 * 10**12 for cost in costs)
    assert certificate.cost == ",".join(among.costs)
    assert 0 <= 0.6 * 10**12 - spent(run) < 20
    bought = [len(cost.losses) for cost in costs]
    assert bought[0] > bought[1] == bought[2]  # the counts of the quantiles


@pytest.mark.parametrize("chosen", ["quantiles", "bins"])
def test_a_choice_of_features_that_leaves_out_what_they_cost_is_refused(run, train, chosen):
    """Whichever is chosen: noise of 0.01 on scores that differ by hundreds would keep the better one alone."""
    train("--release", "class-sums", "--features", chosen, "--price", "rho:0.2", "--out", "model")
    certificate = load_model(run.folder / "model").certificate
    own = certificate.cost_as_candidate("features")
    among = ChosenAmong(
        option="features", candidates=(chosen, "identity"), costs=(str(own), str(own)), scores=(0, 0), scores_mu=0.5
    )
    certificate.chosen_by(among).verify()
    assert certificate.chosen_by(among).cost == f"{own},{own}"
    if chosen == "quantiles":
        without = among.model_copy(update={"costs": (str(certificate.derived_cost()), str(own))})
        with pytest.raises(ValueError, match="does not cost"):
            certificate.chosen_by(without)


def test_crosses_are_chosen(run, train):
    train(*BUCKETS, "--price", "rho:0.6", "--choose-budget", "12@1e-5", "--out", "model")
    certificate = load_model(run.folder / "model").certificate
    assert certificate.feature_map.cross_buckets == int(certificate.chosen_among.chosen)


def test_features_that_cannot_be_made_are_refused_and_nothing_is_charged(run, train):
    given = (*BUCKETS, "--features", "quantiles", "--price", "rho:0.6", "--choose-budget", "12@1e-5", "--out", "m")
    assert "goes with --features bins" in train(*given, status=2).stderr
    assert lineages(run) == []


def test_what_cannot_be_paid_for_is_not_chosen(run, train):
    without = train(*CHOOSE, "--out", "m", status=1).stderr
    assert "has no budget yet" in without
    poor = train(*CHOOSE, "--choose-budget", "1@1e-5", "--out", "m", status=1).stderr
    assert "nothing was chosen" in poor
    assert not (run.folder / "m").exists()
    assert lineages(run) == []


@pytest.mark.parametrize("asked", [CHOOSE, (*AMONG, "--price", "rho:1")])
def test_records_of_another_lineage_open_no_account(run, train, asked):
    train("--lam", "3", "--lineage", "others", "--out", "model")
    refused = train(*asked, "--choose-budget", "12@1e-5", "--out", "m", status=1).stderr
    assert "in the lineage 'others' as well" in refused
    assert lineages(run) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*CHOOSE, "--lam", "3"), "leave it out"),
        ((*CHOOSE, "--release", "dpsgd", "--price", "rho:0.1"), "goes with a head or --release weights"),
        (("--choose", "lam=3", "--choose-price", "rho:1"), "two values or more"),
        (("--choose", "lam=3,4"), "what the choice costs"),
        ((*CHOOSE, "--release", "weights"), "is needed: either one price"),
        ((*CHOOSE, "--price", "rho:0.1"), "goes with --release class-sums, weights or dpsgd"),
        ((*CHOOSE, "--choose-budget", "x"), "Invalid value for --choose-budget: must be E@DELTA"),
        (("--lam", "3", "--choose-price", "rho:1"), "goes with --choose"),
        ((*AMONG, "--budget", "rho:1"), "goes with neither --budget nor --engine"),
        ((*AMONG, "--engine", "ray", "--price", "rho:1"), "goes with neither --budget nor --engine"),
        ((*AMONG, "--price", "rho:0.0007"), "too small for 2 candidates"),
        ((*AMONG[:2], "--choose", "hidden=0,00", "--price", "rho:1"), "each value once"),
        ((*AMONG[:2], "--choose", "hidden=0,some", "--price", "rho:1"), "must be a whole number"),
        ((*AMONG[:2], "--choose", "width=1,2", "--price", "rho:1"), "must be OPTION=V1,V2"),
        (("--release", "class-sums", "--choose", "lam=2,3", "--price", "rho:1"), "among values of --features, "),
        ((*FEATURES, "--price", "rho:1", "--features", "bins"), "leave it out"),
        ((*BUCKETS, "--price", "rho:1", "--cross-buckets", "64"), "leave it out"),
        ((*FEATURES[:3], "features=bins,relief", "--price", "rho:1"), "must be one of auto"),
        ((*BUCKETS[2:], "--choose-price", "rho:1"), "takes lam=V1,V2"),
    ],
)
def test_options_that_do_not_go_together_are_refused(run, train, arguments, said):
    (run.folder / "r.csv").unlink()  # records are not looked at
    printed = train(*arguments, "--out", "m", status=2).stderr
    assert said in " ".join(printed.replace("│", " ").split())


def test_a_choice_is_not_paid_for_where_the_model_cannot_be(train):
    wrong = ("--release", "weights", "--price", "rho:99")
    said = train(*CHOOSE, "--choose-budget", "12@1e-5", *wrong, "--out", "m", status=2)
    assert "must lie between" in said.stderr
    assert "was charged" not in said.stdout
