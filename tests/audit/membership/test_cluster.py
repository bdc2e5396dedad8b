"""Shadow models on a real Ray cluster of two workers on this machine."""

import os
import warnings

import numpy as np
import pytest

from dpserve.audit.membership.shadow_models import Draws, HeadRecipe, Pool, train_on_ray, train_shadow_models


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
    yield ray
    ray.shutdown()


@pytest.mark.slow
def test_two_workers_train_the_models_that_one_machine_would(cluster):
    generator = np.random.default_rng(0)
    y = generator.integers(3, size=60)
    pool = Pool((0.3 * generator.random((60, 5)) + 0.2 * np.eye(3, 5)[y]).astype(np.float32), y)
    recipe, draws, shares = HeadRecipe(3, 1.0), Draws(5, 20, seed=1), []
    assert cluster.cluster_resources()["CPU"] == 2
    spread = train_on_ray("auto")(pool, recipe, draws, shares.append)
    alone = train_shadow_models(pool, recipe, draws, device="cpu")
    np.testing.assert_array_equal(spread.members, alone.members)
    np.testing.assert_allclose(spread.logits, alone.logits, atol=2e-3)
    assert shares == [0.5, 1.0]
