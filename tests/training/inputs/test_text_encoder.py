"""Public encoders of texts: what a text becomes, what a folder may hold, and what pins it."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from dpserve.training.errors import BundleError, DataError, TrainingError, WrongOption
from dpserve.training.features.maps import Identity
from dpserve.training.inputs import text_encoder
from dpserve.training.inputs.columns import TextColumn, coordinates_of, encode_rows
from dpserve.training.inputs.reading import RowsForm
from dpserve.training.inputs.schema import parse_schema, read_schema
from dpserve.training.inputs.text_encoder import CHARACTERS, MODEL_FILE, TOKENIZER_FILE, open_bundled, read_text_encoder
from tests.training.text_encoders import UNKNOWN_TO_THE_MODEL, WIDTH, WORDS, model, table, tokenizer, write_encoder


@pytest.fixture(autouse=True)
def nothing_is_open(monkeypatch):
    monkeypatch.setattr(text_encoder, "_open", {})


@pytest.fixture
def folder(tmp_path):
    return write_encoder(tmp_path / "tiny")


def column_of(folder, **more):
    return TextColumn(name="t", encoder=read_text_encoder(folder).encoding, **more)


def tokens_of(text):
    known = [WORDS.index(word) if word in WORDS else 0 for word in text.lower().split()]
    return table().astype(np.float64)[[1, *known, 2]]


def unit(vector):
    return vector / np.linalg.norm(vector)


def test_a_text_is_the_direction_of_its_tokens_mean_with_signs_apart(folder):
    (X,) = encode_rows((column_of(folder, required=True, missing=()),), [{"t": "The good  CAT whatever"}])
    assert X.shape == (2 * WIDTH,)
    assert X.min() == 0.0
    np.testing.assert_allclose(X[:WIDTH] - X[WIDTH:], unit(tokens_of("the good cat whatever").mean(axis=0)), atol=1e-12)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("cls_token", lambda tokens: tokens[0]),
        ("max_tokens", lambda tokens: tokens.max(axis=0)),
        ("mean_sqrt_len_tokens", lambda tokens: tokens.mean(axis=0)),
        ("lasttoken", lambda tokens: tokens[-1]),
    ],
)
def test_tokens_are_pooled_as_the_folder_says(tmp_path, pooling, expected):
    encoder = read_text_encoder(write_encoder(tmp_path / "other", pooling=pooling))
    np.testing.assert_allclose(encoder.directions(["bad dog"])[0], unit(expected(tokens_of("bad dog"))), atol=1e-12)


def test_a_model_may_pool_by_itself(tmp_path):
    mean = helper.make_node("ReduceMean", ["y"], ["pooled"], axes=[1], keepdims=0)
    content = model(table(), [mean], output="pooled")
    encoder = read_text_encoder(write_encoder(tmp_path / "pooled", content=content, pooling="cls_token"))
    assert encoder.encoding.pooling == "model"
    np.testing.assert_allclose(encoder.directions(["bad dog"])[0], unit(tokens_of("bad dog").mean(axis=0)), atol=1e-6)


PARTS = st.sampled_from(["good ", "bad ", "owl ", *"ab \0é漢\ud800"])


@settings(max_examples=30)
@given(texts=st.lists(st.lists(PARTS, max_size=20).map("".join), min_size=1, max_size=20))
def test_a_text_has_the_same_bits_whatever_is_beside_it(tmp_path_factory, texts):
    encoder = read_text_encoder(write_encoder(tmp_path_factory.getbasetemp() / "same"))
    together = encoder.directions(texts)
    alone = np.concatenate([encoder.directions([text]) for text in texts[::-1]])[::-1]
    assert together.tobytes() == alone.tobytes()
    assert np.abs(together).max() <= 1.0
    lengths = np.linalg.norm(together, axis=1)
    assert np.all((np.abs(lengths - 1) < 1e-12) | (lengths == 0))


def test_no_text_costs_more_than_its_first_tokens(folder, tmp_path):
    encoder = read_text_encoder(folder)
    first = encoder.directions(["good bad cat dog the the"])
    assert np.array_equal(encoder.directions(["good bad cat dog the the" + " bad" * 100_000]), first)
    spaces = " " * (8 * CHARACTERS - 4)
    beyond, within = encoder.directions([f"cat{spaces} dog", f"cat{spaces[9:]} dog"])
    assert np.array_equal(beyond, encoder.directions(["cat"])[0])
    assert np.array_equal(within, encoder.directions(["cat dog"])[0])


def test_what_the_model_cannot_compute_counts_as_zeros(folder, tmp_path):
    assert not read_text_encoder(folder).directions([UNKNOWN_TO_THE_MODEL, f"cat {UNKNOWN_TO_THE_MODEL}"]).any()
    vectors = table()
    vectors[WORDS.index("cat")], vectors[WORDS.index("dog")] = np.inf, np.nan
    endless = read_text_encoder(write_encoder(tmp_path / "endless", content=model(vectors)))
    assert not endless.directions(["cat", "dog"]).any()


def test_a_missing_text_has_a_coordinate_of_its_own(folder):
    X = encode_rows((column_of(folder),), [{"t": None}, {"t": "cat"}])
    assert not X[0, :-1].any()
    assert X[:, -1].tolist() == [1.0, 0.0]


def test_the_digest_is_of_all_that_decides_and_not_of_the_folders_name(tmp_path):
    def digest(name, **other):
        return read_text_encoder(write_encoder(tmp_path / name, **other)).encoding.sha256

    others = {"content": model(table(1))}, {"pooling": "cls_token"}, {"tokens": 9}
    others = (*others, {"tokenizer": tokenizer() | {"normalizer": None}})
    digests = {digest(str(place), **other) for place, other in enumerate(others)}
    assert len(digests | {digest("tiny")}) == 5
    assert digest("elsewhere") == digest("tiny")


def declared(text, **field):
    return {"fields": [{"name": "said", "type": "string", "text": text} | field]}


def test_a_schema_names_the_folder_beside_it_and_may_pin_it(folder):
    sha256 = read_text_encoder(folder).encoding.sha256
    schema = folder.parent / "schema.json"
    schema.write_text(json.dumps(declared({"encoder": "tiny", "sha256": sha256}, constraints={"maxLength": 99})))
    (column,) = read_schema(schema).columns
    assert column.encoder.name == "tiny"
    assert column.encoder.sha256 == sha256
    assert column.longest == 99
    assert parse_schema(declared({"encoder": str(folder)})).columns[0].encoder == column.encoder
    with pytest.raises(DataError, match=f"has the SHA-256 {sha256}, not {'0' * 64}"):
        parse_schema(declared({"encoder": str(folder), "sha256": "0" * 64}))
    with pytest.raises(DataError, match="takes the place of n-grams"):
        parse_schema(declared({"encoder": str(folder), "buckets": 64}))
    with pytest.raises(DataError, match="needs the folder of its encoder"):
        parse_schema(declared({"sha256": sha256}))
    with pytest.raises(DataError, match="cannot read the encoder nowhere: there is no such folder"):
        parse_schema(declared({"encoder": "nowhere"}))
    with pytest.raises(DataError, match=r"schema\.json: it is no folder"):
        parse_schema(declared({"encoder": str(schema)}))
    with pytest.raises(DataError, match="neither model"):
        parse_schema(declared({"encoder": str(folder.parent)}))
    for nameless in ("", " "):
        with pytest.raises(DataError, match="needs the folder of its encoder"):
            parse_schema(declared({"encoder": nameless}))
    with pytest.raises(WrongOption) as refused:
        RowsForm().read("table.csv", schema=read_schema(schema), engine="ray")
    assert refused.value.field == "engine"


DRAWN = model(
    table(),
    [
        helper.make_node("RandomNormalLike", ["y"], ["noise"]),
        helper.make_node("Add", ["y", "noise"], ["noisy"]),
    ],
    output="noisy",
)
DENSE = [{"type": "sentence_transformers.models.Dense"}]
WORD_PIECES = {"type": "WordPiece", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]", "max_input_chars_per_word": 10**6}
WORD_PIECES |= {"continuing_subword_prefix": "##"}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"tokenizer": None}, "cannot read .*tokenizer.json"),
        ({"tokenizer": "["}, "tokenizer.json is not JSON"),
        ({"tokenizer": {"model": {}}}, "tokenizer.json cannot be used"),
        ({"tokenizer": tokenizer() | {"model": WORD_PIECES}}, "words of 1000000 characters"),
        ({"content": b"no model"}, "no ONNX model in one file"),
        ({"content": DRAWN}, "gives another vector for the same text"),
        ({"content": model(table(), inputs=("input_ids", "pixels"))}, "input 'pixels' takes tensor"),
        ({"1_Pooling/config": None}, "there is no 1_Pooling/config.json"),
        ({"pooling": "weightedmean_tokens"}, "one of cls, mean, max"),
        ({"pooling": None}, "not none"),
        ({"modules": DENSE}, "a step Dense"),
        ({"config_sentence_transformers": {"default_prompt_name": "query"}}, "the prompt 'query'"),
        ({"sentence_bert_config": {"max_seq_length": 8, "do_lower_case": True}}, "do_lower_case"),
        (
            {"sentence_bert_config": {}, "tokenizer_config": {"model_max_length": 10**30}},
            "does not say how many tokens",
        ),
        ({"sentence_bert_config": []}, "must hold an object"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(tmp_path, other, said):
    with pytest.raises(Exception, match=said) as refused:
        read_text_encoder(write_encoder(tmp_path / "wrong", **other))
    assert isinstance(refused.value, TrainingError)


def test_the_tokenizers_own_limit_counts_where_no_other_is_declared(tmp_path):
    limit = {"sentence_bert_config": None, "tokenizer_config": {"model_max_length": 5}}
    assert read_text_encoder(write_encoder(tmp_path / "own", **limit)).encoding.tokens == 5


def bundled(folder, out):
    column = column_of(folder, required=True)
    _, lower, upper = coordinates_of((column,))
    feature_map = Identity(lower=lower, upper=upper, clip_norm=1.0, bias=0.0, columns=(column,))
    out.mkdir()
    for name, content in feature_map.files().items():
        (out / name).write_bytes(content)
    return feature_map


def test_a_bundle_holds_the_encoder_and_opens_no_other(folder, tmp_path, monkeypatch):
    feature_map = bundled(folder, tmp_path / "bundle")
    row = [{"t": "good dog"}]
    before = encode_rows(feature_map.columns, row)
    monkeypatch.setattr(text_encoder, "_open", {})
    with pytest.raises(DataError, match="needs the public encoder tiny"):
        encode_rows(feature_map.columns, row)
    with pytest.raises(BundleError, match="was not read"):
        feature_map.files()
    feature_map.open_files(tmp_path / "bundle")
    assert encode_rows(feature_map.columns, row).tobytes() == before.tobytes()
    monkeypatch.setattr(text_encoder, "_open", {})
    (encoding,) = (column.encoder for column in feature_map.columns)
    for name in (MODEL_FILE, TOKENIZER_FILE):
        content = (tmp_path / "bundle" / name).read_bytes()
        (tmp_path / "bundle" / name).write_bytes(content + b" ")
        with pytest.raises(BundleError, match="and the certificate says"):
            open_bundled(tmp_path / "bundle", encoding)
        (tmp_path / "bundle" / name).unlink()
        with pytest.raises(BundleError, match="lacks its text encoder"):
            open_bundled(tmp_path / "bundle", encoding)
        (tmp_path / "bundle" / name).write_bytes(content)
    with pytest.raises(BundleError, match="not the one that the certificate describes"):
        open_bundled(tmp_path / "bundle", encoding.model_copy(update={"width": 7}))
    (folder / "tokenizer.json").write_text("{}")
    read = text_encoder.opened(read_text_encoder(write_encoder(tmp_path / "again")).encoding.sha256)
    (tmp_path / "again" / "tokenizer.json").write_text("{}")
    with pytest.raises(BundleError, match="changed after it was read"):
        read.files()


def test_a_map_has_one_encoder(folder, tmp_path):
    other = column_of(write_encoder(tmp_path / "other", tokens=9)).model_copy(update={"name": "u"})
    columns = (column_of(folder), other)
    _, lower, upper = coordinates_of(columns)
    with pytest.raises(ValueError, match="by the same encoder"):
        Identity(lower=lower, upper=upper, clip_norm=1.0, bias=0.0, columns=columns)
