"""Whole attacks, small: what they find, what they say, and that nothing sound is convicted."""

import json
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from dpserve.audit import reports
from dpserve.audit.in_process import BundleEndpoint, rehearsal_key
from dpserve.audit.membership import scoring
from dpserve.audit.membership.attack import Attack, AttackChoices
from dpserve.audit.membership.candidates import Candidates, Labelled
from dpserve.audit.membership.charges import ask_again
from dpserve.audit.membership.plan import TooFewSamples
from dpserve.audit.membership.shadow_models import shadow_setup_of, train_shadow_models
from dpserve.audit.presentation import attack_report
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.label import Label
from dpserve.mechanisms.laplace import Laplace
from dpserve.mechanisms.published import Published
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.training.features.maps import Identity
from dpserve.training.inputs.digits import load_digits
from dpserve.training.inputs.records import Records
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.published.train import train_published
from research.noise_faults import Faulty
from tests.audit.membership.conftest import DECLARATION, draw

REMEMBERING = AttackChoices(shadow_models=4, shadow_epochs=300)
QUICK = AttackChoices(shadow_models=4, seed=1)


class Exact(Published):
    """The mechanism without its noise: it states a claim and releases the softmax of the logits."""

    def release(self, logits, sensitivity, randomness):
        return softmax(logits)


@pytest.fixture(scope="module")
def remembered():
    """A network that knows its records by heart: random labels, which nothing but memory can know."""
    generator = np.random.default_rng(5)
    members, others = (Labelled(generator.random((80, 12)), generator.integers(3, size=80)) for _ in range(2))
    network = train_published(
        Records(members.X, members.y, DECLARATION, ()),
        "heart",
        "lineage",
        hidden=(64,),
        objective="cross-entropy",
        epochs=1500,
        l2_regulariser=1e-5,
    )
    return network, Candidates(members, others)


def test_a_network_whose_noise_is_missing_is_convicted(remembered):
    network, candidates = remembered
    endpoint = BundleEndpoint(network, Exact(3, 0.1, "laplace"), rehearsal_key(0))
    outcome = Attack([endpoint], candidates, REMEMBERING).run()
    assert not outcome.verdict.decision.proven
    assert outcome.verdict.claimed_epsilon == pytest.approx(0.2, rel=1e-6)
    assert outcome.verdict.best.epsilon > 0.2
    page = attack_report(outcome)
    assert page.exit_status == 3
    assert page.verdict.startswith("Convicted")
    assert page.picture is not None
    roc = json.loads(reports.as_json(page))["roc"]
    rates = np.array(roc["false_positive_rates"])
    curves = np.array([roc["bound"], *(one["true_positive_rates"] for one in roc["attacks"])])
    assert roc["attacks"][0]["attack"] == outcome.verdict.best.attack
    assert (rates[0], rates[-1]) == (0, 1)
    assert (np.diff(rates) > 0).all()
    assert (np.diff(curves) >= 0).all()
    assert (curves[:, -1] == 1).all()
    best = outcome.verdict.best
    for fpr, tpr in zip(best.false_positive_curve, best.true_positive_curve, strict=True):
        assert curves[1][rates >= fpr].min() >= tpr


def test_each_record_is_found_in_its_file(remembered):
    """A network that knows its members by heart, and one of them with another label: that one is no member to it."""
    network, candidates = remembered
    wrong = candidates.members.y.copy()
    wrong[17] = (wrong[17] + 1) % 3
    asked = Candidates(Labelled(candidates.members.X, wrong), candidates.others)
    endpoint = BundleEndpoint(network, Exact(3, 0.1, "laplace"), rehearsal_key(0))
    found = Attack([endpoint], asked, REMEMBERING).run().exposure
    assert found.row.tolist() == [*range(1, 81), *range(1, 81)]
    assert found.member.tolist() == [True] * 80 + [False] * 80
    assert (found.own.limits == found.own.rates).all()  # Laplace's noise on one logit is no normal law
    assert found.own.limits[17] > 0.5
    assert found.own.limits[:80].mean() < found.own.limits[80:].mean() - 0.1
    assert found.score[17] < np.quantile(found.score[:80], 0.05)


@pytest.fixture(scope="module")
def split_by_label():
    """Digits below 5 as members and the others as non-members, and a head trained on the members."""
    split = load_digits().train
    low = split.y < 5
    records = Records(split.X[low], split.y[low], split.declaration, ())
    lower, upper = split.declaration.lower, split.declaration.upper
    feature_map = Identity(lower=lower, upper=upper, clip_norm=1.0, bias=0.1)
    head = train_head(records, Recipe("digits", feature_map, 0.5), "digits-lineage")
    return head, Candidates(Labelled(records.X, records.y), Labelled(split.X[~low], split.y[~low]))


def test_a_sound_model_is_not_convicted_of_what_its_records_say_without_it(split_by_label):
    """Labels alone tell members from others: a bound by scores that exceeds the claim must not count."""
    head, candidates = split_by_label
    endpoint = BundleEndpoint(head, Gaussian(20.0), rehearsal_key(0))
    outcome = Attack([endpoint], candidates, QUICK).run()
    judged = outcome.verdict
    assert judged.decision.proven
    outcome = replace(outcome, verdict=replace(judged, best=replace(judged.best, epsilon=judged.claimed_epsilon + 1)))
    assert outcome.verdict.convicted
    assert outcome.inconclusive
    assert not outcome.convicted
    page = attack_report(outcome)
    assert page.exit_status == 4
    assert page.verdict.startswith("Inconclusive: ")
    assert "differ by themselves" in page.warnings[0]


def test_a_few_records_that_are_in_both_spare_no_model_that_leaks(remembered):
    """A tenth of the others are members' doubles: they are accused with them, and the rest convicts all the same."""
    network, candidates = remembered
    doubled = Candidates(candidates.members, candidates.members[:8] + candidates.others[8:])
    outcome = Attack([BundleEndpoint(network, Exact(3, 0.1, "laplace"), rehearsal_key(0))], doubled, REMEMBERING).run()
    assert outcome.difference.duplicates == 8
    assert outcome.convicted
    everyone = Candidates(candidates.members, candidates.members)
    outcome = Attack([BundleEndpoint(network, Exact(3, 0.1, "laplace"), rehearsal_key(0))], everyone, REMEMBERING).run()
    assert outcome.inconclusive
    assert attack_report(outcome).exit_status == 4


def test_one_answer_is_not_counted_as_decisions_about_many(remembered):
    """Half of the members are one row: its one answer, right or wrong, would be half of all decisions."""
    network, candidates = remembered
    count = len(candidates.members) // 2
    many = Candidates(candidates.members[count:] + candidates.members[[0] * count], candidates.others)
    endpoint = BundleEndpoint(network, Exact(3, 0.1, "laplace"), rehearsal_key(0))
    outcome = Attack([endpoint], many, REMEMBERING).run()
    assert outcome.difference.repeated == (count, 0)
    assert outcome.decided == (count, count)
    assert endpoint.paid == 2 * count


def test_more_answers_of_one_row_cost_more_and_are_held_to_more(bundle, candidates):
    once = Attack(bundle(rho=0.401), candidates, QUICK).run()
    often = Attack(bundle(rho=0.401), candidates, AttackChoices(shadow_models=4, copies=4, confidence=0.8)).run()
    assert (once.plan.of_each, often.plan.of_each) == (40, 10)
    assert often.releases == 4
    assert often.verdict.decision.rho == pytest.approx(4 * once.verdict.decision.rho)
    assert [account["queries_left"] for account in (*once.accounts, *often.accounts)] == [0, 0]


def test_pooled_keys_are_held_to_what_all_of_them_spent(bundle, candidates):
    outcome = Attack(bundle(keys=3), candidates, QUICK).run()
    assert outcome.releases == 3
    assert outcome.verdict.decision.rho == pytest.approx(3 * 0.005)
    assert outcome.verdict.total.rho == pytest.approx(3 * 120 * 0.005)


@pytest.mark.parametrize("share", [0.0, 0.999, 1.0])
def test_new_noise_for_less_than_its_price_is_convicted(bundle, candidates, share):
    """A replay draws new noise, and only a share of it is charged."""

    class Discounting:
        def __init__(self, endpoint):
            self._endpoint, self._turns = endpoint, count()

        def answers(self, rows):
            found = []
            for row in rows:
                self._endpoint.asked.clear()
                self._endpoint.noise_key = rehearsal_key(next(self._turns))
                found.append(self._endpoint.answers(row[None])[0])
            return np.stack(found)

        def budget(self):
            paid, self._endpoint.paid = self._endpoint.paid, int(1 + share * (self._endpoint.paid - 1))
            try:
                return self._endpoint.budget()
            finally:
                self._endpoint.paid = paid

        def __getattr__(self, name):
            return getattr(self._endpoint, name)

    endpoint = Discounting(bundle()[0])
    row = candidates.members.X[0]
    found = ask_again(endpoint, row, endpoint.answers(row[None])[0])
    assert (found.times, found.answers) == (1000, 1001)
    assert found.price == Gaussian(10.0).cost.picorho
    assert found.averaging_is_free == (share < 1)


def test_too_few_and_misfitting_records_are_refused_before_a_row_is_asked(bundle, candidates):
    (endpoint,) = bundle(rho=0.0201)
    with pytest.raises(TooFewSamples, check=lambda error: error.affordable == 2):
        Attack([endpoint], candidates, QUICK).run()
    with pytest.raises(ValueError, match="rows of 2 values"):
        Attack([endpoint], Candidates(candidates.members, Labelled(np.zeros((9, 2)), np.zeros(9, int))), QUICK).run()
    assert endpoint.paid == 0


def test_what_shadow_models_cannot_be_is_refused_before_a_row_is_asked(bundle, candidates):
    (endpoint,) = bundle()
    with pytest.raises(ValueError, match="need 122, and there are 120"):
        Attack([endpoint], candidates, replace(QUICK, shadow_records=61)).run()

    class Deep:
        """Stands on a network that it does not show."""

        def model(self):
            public = endpoint.model()
            return {**public, "feature_map": {**public["feature_map"], "kind": "encoder"}}

        def __getattr__(self, name):
            return getattr(endpoint, name)

    with pytest.raises(ValueError, match="whose weights the endpoint does not show"):
        Attack([Deep()], candidates, QUICK).run()
    assert endpoint.paid == 0


def test_a_budget_that_another_client_drains_is_a_result(bundle, candidates):
    """The plan sees a budget for all 120 rows; another key then takes what 50 of them would cost."""
    mine, other = bundle(keys=2, lineage_rho=0.601)

    def drain(plan):
        assert plan.of_each == 60
        other.answers(draw(99, 7).X[:50])

    outcome = Attack([mine], candidates, QUICK, on_plan=drain).run()
    assert outcome.exhausted == ("key 1: lineage",)
    assert outcome.decided == (35, 35)
    said = " ".join(attack_report(outcome).warnings)
    assert "ran out of budget" in said
    assert "60 members and 60 non-members were to be asked about; 35 and 35 were answered about" in said


def test_candidates_that_one_key_less_was_asked_about_are_counted_and_said(bundle, candidates):
    """Another client leaves 201 of the 240 rows that the keys' own accounts pay for."""
    first, second, third = bundle(keys=3, rho=0.601, lineage_rho=1.501)

    def drain(plan):
        assert plan.of_each == 60
        third.answers(draw(99, 7).X[:50])
        third.answers(draw(99, 7).X[50:])

    outcome = Attack([first, second], candidates, QUICK, on_plan=drain).run()
    assert outcome.decided == (51, 50)
    assert outcome.releases == 2
    assert any("1 of 101 candidates got fewer than 2 answers" in caution for caution in outcome.cautions)


def test_candidates_that_were_not_asked_about_train_shadow_models_too(bundle, candidates):
    """The budget pays for 20 of each; the pool has all 120 and the population, the decided ones first."""
    pools = []

    def spy(pool, recipe, draws, on_share):
        pools.append((pool, draws))
        return train_shadow_models(pool, recipe, draws, on_share)

    with_more = Candidates(candidates.members, candidates.others, draw(30, 8))
    outcome = Attack(bundle(rho=0.2001), with_more, QUICK, train=spy).run()
    ((pool, draws),) = pools
    assert (outcome.plan.of_each, len(pool.y), draws.records) == (20, 150, 60)
    assert len(np.unique(pool.X, axis=0)) == 150
    assert outcome.cautions == ()
    fewer = Attack(bundle(rho=0.2001), candidates, replace(QUICK, shadow_records=25)).run()
    assert "shadow models have 25 records, and 60 members are named" in fewer.cautions[0]


def test_shadow_models_that_cannot_be_like_the_target_are_announced(bundle):
    public = dict(bundle()[0].model())
    assert shadow_setup_of(public, 60).departures == ()
    unlike = {name: value for name, value in public.items() if name != "strong_convexity"}
    assert "the target is another kind of model" in shadow_setup_of(unlike, 60).departures[0]
    silent = shadow_setup_of(public | {"mechanism": "rounding"}, 60)
    assert silent.mechanism is None
    assert "without the target's noise" in silent.departures[0]


@pytest.mark.parametrize("mechanism", [Laplace(0.5), Label(1.0)])
def test_shadow_models_average_as_many_answers_as_the_target_gave(bundle, mechanism):
    """Not one answer with less noise: the average of Laplace noise is not Laplace, and that of labels is no label."""
    setup = shadow_setup_of(bundle(mechanism)[0].model(), 60)
    generator = np.random.default_rng(0)
    logits, inputs = generator.standard_normal((2, 40, 3)), generator.random((40, 13)).astype(np.float32) / 4
    averaged = setup.answers(logits, inputs, 5, copies=3)
    noise = SeededRandomness(5, ("shadow answers",))
    sensitivity = np.tile(setup.sensitivity * np.linalg.norm(inputs.astype(float), axis=1), 2)
    drawn = [mechanism.release(logits.reshape(80, 3), sensitivity, noise) for _ in range(3)]
    np.testing.assert_allclose(averaged.reshape(80, 3), scoring.average_answers(np.stack(drawn)), rtol=1e-9, atol=1e-12)


def test_a_service_whose_noise_is_too_small_is_convicted_over_http(serve, candidates):
    endpoint = serve(Faulty(Gaussian(10.0), 0.5)).endpoint()
    outcome = Attack([endpoint], candidates, QUICK).run()
    assert outcome.noise_is_missing
    assert "noise too small" in outcome.convictions[0]
    page = attack_report(outcome)
    assert page.exit_status == 3
    assert json.loads(reports.as_json(page))["convicted_by"] == list(outcome.convictions)
