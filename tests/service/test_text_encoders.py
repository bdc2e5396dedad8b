"""A model whose texts a public encoder encodes: its clients send plain text by name, and the service encodes it."""

import asyncio
import threading
import time

import numpy as np
import pandas as pd
import pytest

from dpserve import Client
from dpserve.accounting.ledger import key_digest
from dpserve.service.errors import DeadlinePassed
from dpserve.service.predictor import Caller, RowsRequest
from dpserve.training.features.maps import Identity
from dpserve.training.inputs.columns import NumberColumn, TextColumn, coordinates_of, encode_rows
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.inputs.text_encoder import read_text_encoder
from dpserve.training.kinds.head.bundle import load_bundle, save_bundle
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from tests.training.text_encoders import write_encoder

from .test_http import PRICE

ROWS = [{"age": 40.0, "note": "a good cat"}, {"age": None, "note": "Bad dogs, it seems"}, {"age": 7.0, "note": None}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoders")
    encoding = read_text_encoder(write_encoder(folder / "tiny")).encoding
    columns = (NumberColumn(name="age", minimum=0, maximum=100), TextColumn(name="note", encoder=encoding, longest=500))
    names, lower, upper = coordinates_of(columns)
    feature_map = Identity(lower=lower, upper=upper, clip_norm=1.0, bias=0.0, columns=columns)
    records = Records(
        encode_rows(columns, ROWS * 20),
        np.tile([0, 1, 1], 20),
        Declaration(names, lower, upper, ("no", "yes"), columns),
        (),
    )
    save_bundle(folder / "texts", train_head(records, Recipe("texts", feature_map, 1.0), "texts-lineage"))
    return load_bundle(folder / "texts")


@pytest.mark.parametrize("rows", [ROWS, pd.DataFrame(ROWS)], ids=["mappings", "frame"])
def test_a_client_asks_with_plain_text_and_pays_once_for_it(start, model, rows):
    service = start(model, lineage_rho=20 * PRICE / 1e12)
    numbers = encode_rows(model.certificate.columns, ROWS)
    with Client(service.url, service.add_client("alice", rho=20 * PRICE / 1e12)) as client:
        assert client.quote(rows)
        by_name = client.predict_proba(rows)
        np.testing.assert_array_equal(client.predict_proba(numbers), by_name)
        spent = client.budget()["spent"]["rho"]
        # Beside other texts, in another order, it is the same question.
        np.testing.assert_array_equal(client.predict_proba([ROWS[2], ROWS[1]]), by_name[[2, 1]])
        assert client.budget()["spent"]["rho"] == spent
        shown = client.model()["feature_map"]["columns"][1]["encoder"]
        assert (shown["name"], shown["pooling"], shown["tokens"]) == ("tiny", "mean", 8)


def test_a_text_that_is_too_long_or_a_bad_row_beside_it_is_refused_and_costs_nothing(start, model):
    service = start(model)
    http = service.http(service.add_client())
    for row, said in (({"note": "x" * 501, "age": 1}, "longer than 500"), ({"note": "x", "age": 101}, "above")):
        refused = http.post("/predict", json={"instances": [ROWS[0], row]})
        assert refused.status_code == 422
        assert said in refused.json()["detail"]
    assert service.spent() == 0


class Slow:
    """Texts that take until they are allowed, and count how many were begun."""

    deep = True

    def __init__(self, rows):
        self.values = [""] * rows
        self.begun = []
        self.allowed = threading.Event()

    def characters(self, start, stop):
        return stop - start

    def encode(self, start, stop):
        self.begun.append(start)
        assert self.allowed.wait(30)


def test_what_a_client_does_not_wait_for_is_not_encoded_to_its_end(start, model):
    service = start(model)
    plane, caller = service.predictor, Caller("alice", key_digest(service.add_client()))
    X = np.zeros((100, len(model.certificate.feature_names)))
    gone, late, next_ = Slow(100), Slow(100), Slow(1)
    next_.allowed.set()

    async def ask():
        asked = asyncio.create_task(plane.encode("alice", RowsRequest(X, unencoded=(gone,))))
        while not gone.begun:
            await asyncio.sleep(0)
        asked.cancel()
        gone.allowed.set()
        waited = asyncio.create_task(plane.encode("bob", RowsRequest(X, unencoded=(late,), deadline=time.monotonic())))
        await plane.encode("alice", RowsRequest(X[:1], unencoded=(next_,)))
        with pytest.raises(DeadlinePassed):
            await waited
        return await plane.predict(caller, RowsRequest(X[:1]))

    assert service.call(ask()).charged_rows == 1
    assert gone.begun == [0]
    assert late.begun == []
    assert next_.begun == [0]
