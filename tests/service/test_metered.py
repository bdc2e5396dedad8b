"""A metered model's answers: what is done before one is charged."""

import asyncio

import numpy as np
import pytest

from dpserve.mechanisms.gaussian import Gaussian
from dpserve.service import metered
from dpserve.service.metered import MeteredPredictor
from dpserve.service.predictor import FEW_ROWS, Caller, RowsRequest
from dpserve.training.kinds.head.bundle import CertifiedHead

ROWS = {"instances": [[0.1, 0.2, 0.3, 0.4]]}


def is_on_a_loop():
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def test_the_cipher_is_loaded_once_off_the_loop_and_before_anything_is_charged(monkeypatch, start, head):
    seen = []

    def load_cipher():
        seen.append((is_on_a_loop(), service.spent()))

    monkeypatch.setattr(metered, "load_cipher", load_cipher)
    service = start(head)
    asking = service.http(service.add_client())
    unspent = service.spent()
    for _ in range(2):
        assert asking.post("/predict", json=ROWS).status_code == 200
    assert seen == [(False, unspent)]
    assert service.spent() != unspent


class Noting(CertifiedHead):
    """A head that notes the first row's first number of all whose features it computes, whether on a loop, and ends."""

    noted = ()

    def features(self, X):
        self.noted = (*self.noted, (X[0, 0], is_on_a_loop()))
        raise FloatingPointError


@pytest.fixture
def noting(head):
    return MeteredPredictor(
        Noting(head.certificate, head.weights, head.tensors, head.noise_key), Gaussian(10.0), None, largest_batch=1000
    )


@pytest.mark.anyio
@pytest.mark.parametrize("rows", [FEW_ROWS, FEW_ROWS + 1])
async def test_features_of_many_rows_are_computed_off_the_loop(noting, rows):
    with pytest.raises(FloatingPointError):
        await noting.predict(Caller("ann"), RowsRequest(np.zeros((rows, 4))))
    assert noting.head.noted == ((0.0, rows == FEW_ROWS),)


@pytest.mark.anyio
async def test_clients_take_turns_with_dry_runs(noting):
    asked = [noting.quote(client, RowsRequest(np.full((1, 4), place))) for place, client in enumerate("aaaaaab")]
    await asyncio.gather(*asked, return_exceptions=True)
    order = [place for place, _ in noting.head.noted]
    assert sorted(order) == [0, 1, 2, 3, 4, 5, 6]
    assert order.index(6) <= 1
