"""Shadow models of pay-once models: trained by the target's own kind, from what strangers are shown of it."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from dpserve.audit.membership.scoring import online_ratio, scaled_confidence
from dpserve.audit.membership.shadow_models import Draws, OwnRecipe, Pool, shadow_setup_of, train_shadow_models
from dpserve.mechanisms.gaussian_vector import whole_picorho
from dpserve.training.features.maps import Fourier, Identity
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.class_sums.train import train_class_sums
from dpserve.training.kinds.dpsgd.choices import Choices, NetworkChoices
from dpserve.training.kinds.dpsgd.train import DpSgdRecipe, train_dpsgd
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.registry import kind_of
from dpserve.training.kinds.weights.train import release_weights
from tests.seeded import Seeded

WHOLE = whole_picorho("rho:2")
FEATURES = 20
LOWER, UPPER = (0.0,) * FEATURES, (1.0,) * FEATURES
MAPS = {
    "identity": Identity(lower=LOWER, upper=UPPER, clip_norm=1.0, bias=0.1),
    "fourier": Fourier(lower=LOWER, upper=UPPER, clip_norm=1.0, random_features=32, bandwidth=2.0, seed=0, bias=0.1),
}
OF_ITS_OWN = ("model_id", "binding_key", "lineage", "name", "model_digest", "weights_digest", "released")


def some_records(count, seed=0):
    rng = np.random.default_rng(seed)
    declaration = Declaration(tuple(f"x{place}" for place in range(FEATURES)), LOWER, UPPER, ("a", "b", "c"))
    return Records(rng.uniform(size=(count, FEATURES)), rng.integers(3, size=count), declaration, (b"of tests",))


def target_of(kind, feature_map, records, whole=WHOLE):
    match kind:
        case "class-sums":
            return train_class_sums(records, "m", feature_map, whole, "l", Seeded(0))
        case "class-sums with steps":
            return train_class_sums(records, "m", feature_map, whole, "l", Seeded(0), records_declared=len(records))
        case "weights":
            head = train_head(records, Recipe("m", feature_map, 2.0), "l")
            return release_weights(head, whole, "l", Seeded(0), records)
    beside = NetworkChoices(5, 0.2, 0.4) if "network" in kind else None
    noise = 9.0 if "more noise" in kind else None
    choices = Choices(records_declared=700, sampling_rate=0.3, steps=8, learning_rate=0.4, beside=beside)
    return train_dpsgd(records, DpSgdRecipe("m", feature_map, choices, whole, noise), "l", Seeded(0))


KINDS = ("class-sums", "class-sums with steps", "weights", "dpsgd", "dpsgd network", "dpsgd more noise")


@pytest.mark.parametrize(
    ("kind", "feature_map"), [*((kind, "fourier") for kind in KINDS), ("class-sums", "identity")], ids=str
)
def test_a_shadow_has_the_public_numbers_of_its_target(kind, feature_map):
    """Its certificate differs from the target's in nothing but names, and a millionth of the noise."""
    target = target_of(kind, MAPS[feature_map], some_records(700))
    setup = shadow_setup_of(target.certificate.shown_to_strangers(), 700)
    assert isinstance(setup.recipe, OwnRecipe)
    assert setup.departures == ()
    shadow = setup.recipe.trainer(some_records(700, 1), Seeded(1))
    shown, of_shadow = (each.certificate.shown_to_strangers() for each in (target, shadow))
    assert shown.keys() == of_shadow.keys()
    for name in shown.keys() - set(OF_ITS_OWN):
        if isinstance(shown[name], float) or (name == "beside" and shown[name]):
            assert of_shadow[name] == pytest.approx(shown[name], rel=1e-6), name
        elif name == "releases":
            names, of_names = ([each["name"] for each in releases] for releases in (shown[name], of_shadow[name]))
            assert names == of_names
        elif name != "cost":
            assert of_shadow[name] == shown[name], name
    cost, cost_of_shadow = (float(each.certificate.whole_cost().rho) for each in (target, shadow))
    assert cost_of_shadow == pytest.approx(cost, rel=1e-6)
    assert not np.array_equal(target.answers(np.full((1, 20), 0.5))[0], shadow.answers(np.full((1, 20), 0.5))[0])


def test_shadows_follow_from_the_seed_and_the_shares_of_the_work_do_not_matter():
    records = some_records(120)
    target = target_of("dpsgd", MAPS["identity"], records)
    setup = shadow_setup_of(target.certificate.shown_to_strangers(), 40)
    pool, draws = Pool(setup.inputs(records.X), records.y), Draws(4, 40, seed=5)
    whole = train_shadow_models(pool, setup.recipe, draws)
    first, second = (train_shadow_models(pool, setup.recipe, part) for part in draws.shares(2))
    joined = first + second
    assert whole.logits.shape == (4, 120, 3)
    np.testing.assert_array_equal(whole.logits, joined.logits)
    np.testing.assert_array_equal(whole.members, joined.members)
    answers = setup.answers(whole.logits, setup.inputs(records.X), 0)
    np.testing.assert_allclose(answers, np.exp(whole.logits), rtol=1e-9)


def test_own_shadows_tell_members_from_others():
    """Random labels behind DP-SGD at rho 4, 60 members and 60 others: an area of about 0.72 on average over six.

    An area's deviation is at most 0.055 for so many (Hanley and McNeil 1982), their mean's 0.023: below 0.6, five of
    them away, it is with a probability below 1e-6.
    """
    records, areas = some_records(120, 3), []
    for seed in range(6):
        inside = np.zeros(120, dtype=bool)
        inside[np.random.default_rng(seed).permutation(120)[:60]] = True
        choices = Choices(records_declared=60, sampling_rate=1.0, steps=40, learning_rate=1.0)
        recipe = DpSgdRecipe("m", MAPS["identity"], choices, whole_picorho("rho:4"))
        target = train_dpsgd(records.taken(inside), recipe, "l", Seeded(seed))
        setup = shadow_setup_of(target.certificate.shown_to_strangers(), 60)
        trained = train_shadow_models(Pool(setup.inputs(records.X), records.y), setup.recipe, Draws(16, 60, seed))
        shadow = np.stack([scaled_confidence(np.exp(each), records.y) for each in trained.logits])
        scores = online_ratio(scaled_confidence(target.answers(records.X)[0], records.y), shadow, trained.members)
        areas.append(roc_auc_score(inside, scores))
    assert np.mean(areas) > 0.6


def test_what_strangers_cannot_tell_has_no_shadows_of_its_own():
    records = some_records(100)
    head = train_head(records, Recipe("m", MAPS["identity"], 2.0), "l")
    assert OwnRecipe(head.certificate.public()).trainer is None
    assert kind_of(head).trainer_alike(head.certificate.public(), MAPS["identity"]) is None
