"""A service whose model computes its products by PyTorch answers as one that computes them by NumPy, bit for bit."""

import numpy as np
import pytest

from dpserve.mechanisms.gaussian import Gaussian
from dpserve.training.features.maps import Fourier
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.loading import computed_by
from dpserve.training.kinds.weights.train import release_weights
from tests.seeded import Seeded
from tests.service.conftest import Starter
from tests.training.conftest import make_records

MAP = Fourier(lower=(0.0,) * 4, upper=(1.0,) * 4, clip_norm=0.9, bias=0.3, random_features=300, bandwidth=0.4, seed=1)


def answered(starter, model, paid_once, rows):
    """The bytes of all answers to rows: alone, and together."""
    service = starter.release(model) if paid_once else starter(model, Gaussian(0.25), lineage_rho=900.0)
    client = service.http(service.add_client(rho=0.9 if paid_once else 800.0))
    found = [client.post("/predict", json={"instances": part}).raise_for_status() for part in (rows[:1], rows)]
    return [each.json()["predictions"] for each in found]


@pytest.mark.parametrize("paid_once", [False, True])
def test_answers_over_http_are_the_same(tmp_path, torch_arithmetic, paid_once):
    records = make_records()
    model = train_head(records, Recipe("small", MAP, 0.1), "lineage")
    if paid_once:
        model = release_weights(model, 5 * 10**11, "lineage", Seeded(1))
    rows, found = np.random.default_rng(2).uniform(size=(40, 4)).tolist(), []
    for place, each in enumerate((model, computed_by(model, torch_arithmetic))):
        starter = Starter(tmp_path / str(place))
        try:
            found.append(answered(starter, each, paid_once, rows))
        finally:
            starter.stop()
    assert found[0] == found[1]
