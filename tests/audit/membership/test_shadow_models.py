"""Shadow models: who is trained on what, that stacks and shares agree, and that heads reach their minimum."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpserve.audit.membership.shadow_models import (
    Draws,
    HeadRecipe,
    NetworkRecipe,
    Pool,
    ShadowSetup,
    shadow_setup_of,
    train_heads,
    train_shadow_models,
)
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.label import Label
from dpserve.mechanisms.laplace import Laplace
from dpserve.mechanisms.published import Published
from dpserve.training.errors import TrainingError
from dpserve.training.fitting.log_mean_exp import RegularisedLogMeanExp
from dpserve.training.fitting.objective import RegularisedCrossEntropy
from dpserve.training.fitting.sensitivity import Convexity
from dpserve.training.fitting.solver import minimise
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.published.bounds import PublishedRecipe, Topology
from dpserve.training.kinds.published.train import train_published

HEADS = HeadRecipe(3, 1.0)
NETWORKS = NetworkRecipe(PublishedRecipe(Topology(5, (4,), 3), "cross-entropy", epochs=3, batch_size=10))


@pytest.fixture(scope="module")
def pool():
    generator = np.random.default_rng(0)
    y = generator.integers(3, size=90)
    X = 0.3 * generator.random((90, 5)) + 0.4 * np.eye(3, 5)[y]
    return Pool((X / 2).astype(np.float32), y)


@pytest.mark.parametrize("recipe", [HEADS, NETWORKS])
def test_the_shares_of_the_work_do_not_matter(pool, recipe):
    draws = Draws(4, 30, seed=3)
    whole = train_shadow_models(pool, recipe, draws, device="cpu")
    assert whole.members.sum(axis=1).tolist() == [30] * 4
    assert whole.logits.shape == (4, 90, 3)
    first, second, third = (train_shadow_models(pool, recipe, part, device="cpu") for part in draws.shares(3))
    shared = first + second + third
    np.testing.assert_array_equal(shared.members, whole.members)
    np.testing.assert_allclose(shared.logits, whole.logits, atol=2e-3)


def test_heads_are_the_minimisers_that_the_owners_solver_finds(pool):
    rows = torch.tensor(np.stack([np.arange(40), np.arange(40, 80)]))
    X = torch.from_numpy(pool.X)
    W = train_heads(X, torch.from_numpy(pool.y), rows, HeadRecipe(3, 0.1))
    for model, own in enumerate(rows.numpy()):
        exact = minimise(RegularisedCrossEntropy.from_rows(pool.X[own].astype(np.float64), pool.y[own], 3, 0.1), 1e-9)
        # A gradient of tau leaves tau / Lambda: 40 * 1e-4 / 0.1.
        assert np.linalg.norm(W[model].numpy().T - exact) <= 0.04 + 1e-3


@pytest.mark.parametrize("xp", [np.asarray, torch.tensor])
def test_heads_of_a_convexified_target_are_minimisers_of_its_objective(pool, xp):
    rows = np.stack([np.arange(40), np.arange(40, 80)])
    target = {"classes": [0, 1, 2], "strong_convexity": 2.0, "convexified": {"alpha": 2.0, "least_records": 30}}
    recipe = shadow_setup_of(target, 40).recipe
    assert recipe == HeadRecipe(3, 2.0, Convexity(2.0, 30))
    W = train_heads(xp(pool.X), xp(pool.y), xp(rows), recipe)
    for model, own in enumerate(rows):
        objective = RegularisedLogMeanExp.from_rows(
            pool.X[own].astype(np.float64), pool.y[own], 3, 2.0, recipe.convexity
        )
        # A gradient of tau leaves tau / Lambda: 30 * 1e-3 / 2.
        assert np.linalg.norm(np.asarray(W[model]).T - minimise(objective, 1e-9)) <= 0.015 + 1e-3


def test_shadow_models_remember_their_members(pool):
    """A linear head with little regularisation fits its members better than others: a mean over 8 models."""
    trained = train_shadow_models(pool, HeadRecipe(3, 0.01), Draws(8, 40, 0), device="cpu")
    z = trained.logits - trained.logits.max(axis=2, keepdims=True)
    own = np.take_along_axis(z, pool.y[None, :, None], axis=2)[:, :, 0] - np.log(np.exp(z).sum(axis=2))
    assert own[trained.members].mean() > own[~trained.members].mean()


def test_a_pool_that_is_too_small_says_what_to_do(pool):
    with pytest.raises(ValueError, match=r"need 92, and there are 90: .*shadow_records"):
        train_shadow_models(pool, HEADS, Draws(2, 46, 0))


def test_shares_cover_all_models_once():
    draws = Draws(10, 5, 1)
    for parts in (1, 3, 10, 40):
        shares = draws.shares(parts)
        assert sum((part.seeds() for part in shares), ()) == draws.seeds()


def test_models_of_two_devices_are_not_joined(pool):
    here = train_shadow_models(pool, HEADS, Draws(2, 30, seed=3), device="cpu")
    assert here.device == (here + here).device == "cpu"
    with pytest.raises(ValueError, match="'cpu' and others on 'cuda'"):
        here + replace(here, device="cuda")
    with pytest.raises(TrainingError, match="'auto', 'cpu' or 'cuda'"):
        train_shadow_models(pool, HEADS, Draws(2, 30, seed=3), device="abacus")


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", [HEADS, NETWORKS])
def test_cuda_trains_the_models_that_the_processor_does(pool, recipe):
    draws = Draws(4, 30, seed=3)
    here, there = (train_shadow_models(pool, recipe, draws, device=device) for device in ("cpu", "cuda"))
    np.testing.assert_array_equal(there.members, here.members)
    np.testing.assert_allclose(there.logits, here.logits, atol=5e-3)


def test_a_published_network_is_mimicked_by_networks_of_its_shape_and_passes():
    """Its map of inputs is none that a head may stand on."""
    generator = np.random.default_rng(2)
    declared = Declaration(("a", "b", "c"), (0.0,) * 3, (1.0,) * 3, ("no", "yes", "maybe"))
    records = Records(generator.random((30, 3)), generator.integers(3, size=30), declared, ())
    certificate = train_published(records, "network", "lineage", hidden=(5,), epochs=2).certificate
    losses = str(Published(3, 0.5, "laplace").cost)
    setup = shadow_setup_of(
        certificate.public() | {"mechanism": "published", "price_per_row": {"losses": losses}}, 30, epochs=None
    )
    assert isinstance(setup.recipe, NetworkRecipe)
    assert setup.recipe.network.topology == Topology(3, (5,), 3)
    assert setup.mechanism == Published(3, 0.5, "laplace")
    assert setup.sensitivity == pytest.approx(certificate.claimed_neuron_sensitivity)
    assert not setup.departures


@pytest.mark.parametrize(
    ("mechanism", "normal"),
    [
        (None, True),
        (Gaussian(1.0), True),
        (Laplace(1.0), False),
        (Label(1.0), False),
        (Published(3, 1.0, "gaussian"), False),
    ],
)
def test_confidences_are_taken_for_normal_where_noise_is_normal_on_each_logit(mechanism, normal):
    assert ShadowSetup({"classes": ["a", "b", "c"]}, HEADS, mechanism, None).nearly_normal is normal


def test_a_model_on_an_unknown_encoder_gets_no_shadow_models():
    model = {"classes": ["a", "b"], "feature_map": {"kind": "encoder", "model_sha256": "0" * 64}}
    with pytest.raises(ValueError, match="does not show"):
        shadow_setup_of(model, 100)
