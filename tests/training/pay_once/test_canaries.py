"""Canaries of a run: sound runs are not convicted, each planted fault is, and a bundle's canaries are judged again.

Statistical tests have fixed seeds; each states its false-alarm rate.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpserve.accounting.conversions import gaussian_epsilon, gaussian_mu, zcdp_epsilon
from dpserve.accounting.losses import Cost, GaussianLoss, PureLoss
from dpserve.mechanisms.gaussian_vector import GaussianVector, mu_for, whole_picorho
from dpserve.training.errors import BundleError, ClaimRefuted
from dpserve.training.features.maps import Bins
from dpserve.training.fitting.network import Network
from dpserve.training.kinds.class_sums.bundle import load_class_sums, save_class_sums
from dpserve.training.kinds.class_sums.train import train_class_sums
from dpserve.training.kinds.dpsgd import noisy_step as dpsgd_step
from dpserve.training.kinds.dpsgd.bundle import load_dpsgd, save_dpsgd
from dpserve.training.kinds.dpsgd.choices import choices_for
from dpserve.training.kinds.dpsgd.train import DpSgdRecipe, train_dpsgd
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.weights.bundle import load_weights, save_weights
from dpserve.training.kinds.weights.train import release_weights
from dpserve.training.pay_once.canaries import Canaries, CanaryPart, CanaryRun, Coins, labels_of, moved_alike
from dpserve.training.pay_once.canary_verdict import (
    DOUBT,
    combined_scores,
    epsilon_of,
    judged,
    p_values_of,
    shared_noise,
)
from tests.seeded import Seeded
from tests.training.conftest import identity, make_records

WHOLE = whole_picorho("epsilon:4@1e-5")
MANY = 1000


def simulated(kind, number, rng, *, noise=1.0, moves=1.0, rate=1.0, mu=None):
    """A part and a run of it, as the claim has them but for factors of the noise, the movement and the sampling."""
    mu = gaussian_mu(4, 1e-5) if mu is None else mu
    included = rng.random(number) < 0.5
    if kind == "vector":
        vector = GaussianVector(mu, number, 1.0)
        part = CanaryPart("sums", mu, np.ones((number, 1)), vector.standard_deviation, vector.step)
        exact = moves * included[:, None]
    else:
        steps, sampling = 100, 0.1
        deviation = sampling * math.sqrt(steps) / mu * math.sqrt(steps)
        moved = moved_alike(np.array([-0.7, 0.7]), labels_of(number, 2))
        part = CanaryPart("steps", mu, moved, deviation, deviation * 2.0**-24, steps, sampling)
        joined = rng.binomial(steps, min(1.0, rate * sampling), number) * included
        exact = moves * joined[:, None] * moved
    drawn = exact + noise * part.deviation * rng.normal(size=part.moved.shape)
    released = np.rint(drawn / part.step) * part.step
    return part, CanaryRun(Coins(included, bytes(32)), {part.name: released})


def p_value(parts, run):
    p_values = p_values_of(parts, run)
    return min(1.0, len(p_values) * min(p_values.values()))


@pytest.mark.parametrize("kind", ["vector", "steps"])
def test_sound_runs_are_not_convicted(kind):
    """2,000 runs: DOUBT each, 2e-6 together at most; and P(Binomial(2000, 0.01) > 47) < 1e-6 below 0.01."""
    rng = np.random.default_rng(7)
    found = np.array([p_value([part], run) for part, run in (simulated(kind, 200, rng) for _ in range(2000))])
    assert stats.binom.sf(47, 2000, 0.01) < 1e-6
    assert (found <= 0.01).sum() <= 47
    assert found.min() > DOUBT


FAULTS = {
    "noise x 0.9": ({"noise": 0.9}, 5 * MANY),
    "noise x 0.7": ({"noise": 0.7}, MANY),
    "noise x 0.5": ({"noise": 0.5}, MANY),
    "noise x 1.5": ({"noise": 1.5}, MANY),
    "a record moves twice as much": ({"moves": 2.0}, MANY),
}


@pytest.mark.parametrize("kind", ["vector", "steps"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_convicted(kind, fault):
    changed, number = FAULTS[fault]
    for seed in range(5):
        part, run = simulated(kind, number, np.random.default_rng(seed), **changed)
        assert p_value([part], run) < DOUBT


def test_sampling_more_often_than_claimed_is_convicted():
    for seed in range(5):
        part, run = simulated("steps", MANY, np.random.default_rng(seed), rate=2.0)
        assert p_values_of([part], run)["steps: canaries that move more or less than they may"] < DOUBT / 8


@pytest.mark.parametrize("kind", ["vector", "steps"])
def test_noise_that_comes_again_is_convicted(kind):
    """In a third of the canaries; once in a pair of numbers it is no proof, as they are equal by chance, too."""
    part, run = simulated(kind, MANY, np.random.default_rng(1))
    included = run.coins.included
    exact = included[:, None] * part.moved * part.steps * part.rate if part.is_certain else 0
    noise = run.released[part.name] - exact
    noise[700:] = noise[:300]
    again = run.with_part(part.name, noise + exact)
    if part.is_certain:
        assert p_value([part], again) < DOUBT
        assert p_values_of([part], again)["sums: noise that comes again"] < DOUBT
    else:  # the noise of canaries that were left out both times is known
        assert p_values_of([part], again)["steps: noise that comes again"] < DOUBT


def test_numbers_without_noise_are_convicted():
    part, run = simulated("vector", MANY, np.random.default_rng(2))
    released = run.released["sums"].copy()
    released[:20] = run.coins.included[:20, None]
    assert p_values_of([part], run.with_part("sums", released))["sums: numbers without noise"] < DOUBT


def test_noise_that_two_runs_share_is_convicted_and_that_of_others_is_not():
    part, run = simulated("vector", MANY, np.random.default_rng(3))
    _, other = simulated("vector", MANY, np.random.default_rng(4))
    noise = run.released["sums"] - run.coins.included[:, None]
    again = other.with_part("sums", np.roll(noise, 123, axis=0) + other.coins.included[:, None])
    assert shared_noise(run, other, [part], [part]) > 1e-7
    assert shared_noise(run, again, [part], [part]) < DOUBT


def test_the_bounds_of_a_sound_run_lie_below_its_claim():
    mu = gaussian_mu(4, 1e-5)
    part, run = simulated("vector", MANY, np.random.default_rng(11), mu=mu)
    shown = judged(Canaries(number=MANY, commitment="0" * 64), [part], run, Cost((GaussianLoss(mu),))).canaries
    assert shown.promised_epsilon == pytest.approx(4, rel=1e-6)
    assert 0.75 * 4 < shown.lower_bound_epsilon < 4
    assert 1 < shown.guesses_lower_bound_epsilon < shown.lower_bound_epsilon


@pytest.mark.parametrize("number", [200, MANY, 10 * MANY])
def test_a_claim_that_is_too_small_is_refuted_with_the_coins_of_a_real_run(number):
    """Noise, steps and sampling are as certified, and the accountant's mu is not: only the claim itself is wrong."""
    rng = np.random.default_rng(13)
    part, run = simulated("steps", number, rng, mu=8.0)
    real = replace(part, coin=2.0**-40, draws=part.steps)
    claimed = replace(real, mu=0.5)
    canaries = Canaries(number=number, commitment="0" * 64)
    found = judged(canaries, [claimed], run, Cost((GaussianLoss(0.5),)))
    assert found.convicts
    assert found.strongest == "scores farther apart than claimed"
    assert DOUBT < found.false_alarm <= DOUBT + number * 2.0**-39
    assert not judged(canaries, [real], run, Cost((GaussianLoss(8.0),))).convicts


def test_what_a_sound_run_may_be_off_by_is_counted():
    """Rounding of each step widens the bound's step, and coins the doubt of what rests on the claim alone."""
    part, run = simulated("steps", MANY, np.random.default_rng(12))
    _, _, step = combined_scores([part], run)
    often = replace(part, draws=part.steps, coin=1e-6, distance=1e-9)
    assert combined_scores([often], run)[2] == pytest.approx(part.steps * step)
    assert often.rounding == pytest.approx(part.steps * part.step / 2)
    canaries, cost = Canaries(number=MANY, commitment="0" * 64), Cost((GaussianLoss(part.mu),))
    far = run.with_part("steps", run.released["steps"] + 3 * part.deviation * part.moved)
    assert judged(canaries, [part], far, cost).convicts
    uncertain = judged(canaries, [often], far, cost)
    assert uncertain.p_value < DOUBT
    assert uncertain.false_alarm >= MANY * (1e-6 + 1e-9)
    assert not uncertain.convicts
    sound = [judged(canaries, [each], run, cost).canaries.lower_bound_mu for each in (part, often)]
    assert 0 < sound[1] < sound[0]


def test_numbers_between_multiples_of_the_grid_do_not_look_like_noise_that_comes_again():
    """A movement of half a step rounds two multiples to one; sound noise on a coarse grid. False alarm 1e-9 a run."""
    rng = np.random.default_rng(13)
    for _ in range(20):
        coins = Coins(rng.random(MANY) < 0.5, bytes(32))
        part = CanaryPart("sums", 1.0, np.full((MANY, 1), 1.5), 64.0, 1.0)
        drawn = np.rint(part.deviation * rng.normal(size=(MANY, 1)))
        run = CanaryRun(coins, {"sums": drawn + coins.included[:, None] * part.moved})
        assert p_values_of([part], run)["sums: noise that comes again"] > DOUBT


def test_a_promise_of_other_losses_is_not_taken_for_a_gaussian_one():
    pure, gaussian = Cost((PureLoss(1.0),)), Cost((GaussianLoss(1.0),))
    assert epsilon_of(gaussian) == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-9)
    assert epsilon_of(pure) >= zcdp_epsilon(float(pure.rho), 1e-5)


def trained(kind, words, canaries=200, records=None):
    """A model with canaries, and the functions that save and load it."""
    records = make_records(n=400) if records is None else records
    feature_map = identity(records)
    if kind == "class-sums":
        made = train_class_sums(records, "m", feature_map, WHOLE, "l", words, records_declared=1000, canaries=canaries)
        return made, save_class_sums, load_class_sums
    if kind == "class-sums, sparse":
        bins = Bins(lower=feature_map.lower, upper=feature_map.upper, bias=0.5)
        made = train_class_sums(records, "m", bins, WHOLE, "l", words, canaries=canaries)
        return made, save_class_sums, load_class_sums
    if kind == "weights":
        head = train_head(records, Recipe("m", feature_map, 8.0), "l")
        return release_weights(head, WHOLE, "l", words, records, canaries), save_weights, load_weights
    size = Network((feature_map.dimension, 3)).size
    recipe = DpSgdRecipe("m", feature_map, choices_for(400, mu_for(WHOLE), size, steps=40), WHOLE)
    return train_dpsgd(records, recipe, "l", words, canaries=canaries), save_dpsgd, load_dpsgd


KINDS = ("class-sums", "class-sums, sparse", "weights", "dpsgd")


@pytest.mark.parametrize("kind", KINDS)
def test_a_bundle_keeps_its_canaries_and_loading_judges_them_again(kind, tmp_path):
    model, save, load = trained(kind, Seeded(5), MANY)
    certificate = save(tmp_path / "model", model)
    assert certificate.canaries.number == MANY
    assert 0 < certificate.canaries.lower_bound_epsilon < certificate.canaries.promised_epsilon
    assert certificate.canaries.observed_epsilon <= certificate.canaries.promised_epsilon
    loaded = load(tmp_path / "model")
    assert np.array_equal(loaded.canaries.coins.included, model.canaries.coins.included)
    assert certificate.public()["canaries"]["lower_bound_epsilon"] == certificate.canaries.lower_bound_epsilon
    coins = model.canaries.coins
    turned = replace(model, canaries=replace(model.canaries, coins=replace(coins, included=~coins.included)))
    save(tmp_path / "turned", turned)
    with pytest.raises(BundleError, match="committed"):
        load(tmp_path / "turned")
    better = certificate.canaries.model_copy(update={"lower_bound_epsilon": 0.5})
    save(tmp_path / "told", replace(model, certificate=certificate.model_copy(update={"canaries": better})))
    with pytest.raises(BundleError, match="lower_bound_epsilon"):
        load(tmp_path / "told")


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_without_canaries_has_none(kind, tmp_path):
    model, save, load = trained(kind, Seeded(5), None)
    assert "canaries" not in save(tmp_path / "model", model).model_dump()
    assert load(tmp_path / "model").canaries is None


def test_what_canaries_show_is_the_same_for_neighbours_bit_for_bit():
    """Class sums with one draw of words: a record more changes the model's numbers, and none of the canaries'."""
    records = make_records(n=400)
    fewer = records.taken(np.arange(400) != 17)
    one, other = (trained("class-sums", Seeded(9), records=each)[0] for each in (records, fewer))
    assert not np.array_equal(one.sums, other.sums)
    for name, released in one.canaries.released.items():
        assert np.array_equal(released, other.canaries.released[name])


def test_numbers_beside_a_release_leave_its_grid_and_size_alone():
    vector = GaussianVector(1.0, 6, 1.0)
    values = np.arange(6.0).reshape(2, 3)
    released, beside = vector.release_beside(values, np.ones((2, 500)), Seeded(1))
    assert released.shape == (2, 3)
    assert beside.shape == (2, 500)
    alone, nothing = vector.release_beside(values, np.empty((2, 0)), Seeded(1))
    assert nothing.size == 0
    assert np.array_equal(alone, vector.release(values, Seeded(1)))
    with pytest.raises(ValueError, match="between 1 and 6"):
        vector.release_beside(np.ones(7), np.ones(2), Seeded(1))


def less_noise(monkeypatch, factor):
    """Let Gaussian vectors and steps add a part of their noise."""
    drawn, with_noise = GaussianVector._with_noise, dpsgd_step.with_noise
    monkeypatch.setattr(
        GaussianVector,
        "_with_noise",
        lambda self, values, words: values + factor * (drawn(self, values, words) - values),
    )
    monkeypatch.setattr(
        dpsgd_step, "with_noise", lambda total, step, words: total + factor * (with_noise(total, step, words) - total)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_with_half_of_its_noise_fails(kind, monkeypatch):
    less_noise(monkeypatch, 0.5)
    with pytest.raises(ClaimRefuted):
        trained(kind, Seeded(1), MANY)


def test_a_commitment_is_of_all_coins_and_of_its_number():
    coins = Coins.drawn(100, Seeded(1))
    assert 20 < coins.included.sum() < 80  # P < 1e-8
    other = coins.included.copy()
    other[3] ^= True
    commitments = {
        coins.commitment,
        replace(coins, included=other).commitment,
        replace(coins, nonce=bytes(32)).commitment,
    }
    assert len(commitments) == 3
    assert Coins.drawn(100, Seeded(1)).commitment == coins.commitment
