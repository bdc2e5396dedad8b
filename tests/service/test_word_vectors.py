"""A model whose texts are encoded with word vectors: its clients send rows by name, and the service encodes them."""

import numpy as np
import pandas as pd
import pytest

from dpserve import Client
from training.features.maps import Identity
from training.inputs.columns import NumberColumn, TextColumn, Vectors, coordinates_of, encode_rows
from training.inputs.records import Declaration, Records
from training.inputs.word_vectors import read_word_vectors
from training.kinds.head.recipe import Recipe
from training.kinds.head.train import train_head

from .test_http import PRICE

ROWS = [{"age": 40.0, "note": "a cat, it seems"}, {"age": None, "note": "dogs"}, {"age": 7.0, "note": None}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "vectors.txt"
    path.write_text("cat 1 0\ndogs 0 1\n")
    vectors = read_word_vectors(path)
    columns = (
        NumberColumn(name="age", minimum=0, maximum=100),
        TextColumn(name="note", buckets=4, vectors=Vectors(sha256=vectors.sha256, width=vectors.width)),
    )
    names, lower, upper = coordinates_of(columns)
    feature_map = Identity(lower=lower, upper=upper, clip_norm=1.0, bias=0.0, columns=columns)
    records = Records(
        encode_rows(columns, ROWS * 20),
        np.tile([0, 1, 1], 20),
        Declaration(names, lower, upper, ("no", "yes"), columns),
        (),
    )
    return train_head(records, Recipe("words", feature_map, 1.0), "words-lineage")


@pytest.mark.parametrize("rows", [ROWS, pd.DataFrame(ROWS)], ids=["mappings", "frame"])
def test_a_client_asks_by_name_and_is_answered_as_the_encoded_rows_are(start, model, rows):
    service = start(model, lineage_rho=20 * PRICE / 1e12)
    numbers = encode_rows(model.certificate.columns, ROWS)
    with Client(service.url, service.add_client("alice", rho=20 * PRICE / 1e12)) as client:
        assert client.quote(rows)
        by_name = client.predict_proba(rows)
        np.testing.assert_array_equal(client.answers(rows).probabilities, by_name)
        np.testing.assert_array_equal(client.predict_proba(numbers), by_name)
        spent = client.budget()["spent"]["rho"]
        client.predict_proba(rows)
        assert client.budget()["spent"]["rho"] == spent
        with pytest.raises(ValueError, match="yet now missing"):
            client.predict_proba([{"age": 1.0}])
