"""The structure of JSON by itself: counted as a parser sees it, and in bounded memory; and what is refused for it."""

import json
import tracemalloc
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpserve.mechanisms.gaussian import Gaussian
from dpserve.service.errors import InvalidRows
from dpserve.service.http.codec import RowsCodec
from dpserve.service.http.openinference import OpenInferenceCodec
from dpserve.service.http.problems import Problem, ProblemType
from dpserve.service.http.requests import RequestHeader
from dpserve.service.http.structure import Structure, structure_of
from dpserve.service.metered import MeteredPredictor
from dpserve.service.predictor import LARGEST_BODY
from dpserve.training.inputs.columns import TextColumn, encode_rows

from .people import COLUMNS, ROW, head_on

SMALL_VALUES = st.recursive(
    st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.text('a\\",:[{é😀', max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('k\\",:[{', max_size=4), inner, max_size=4),
    max_leaves=20,
)


def structure_in(value):
    """Count what a value's JSON has, but for commas, from the value."""
    if isinstance(value, list):
        return np.array([max(0, len(value) - 1), 0, 1, 0]) + sum(map(structure_in, value), np.zeros(4, int))
    if isinstance(value, dict):
        own = np.array([max(0, len(value) - 1), len(value), 0, 1])
        return own + sum(map(structure_in, value.values()), np.zeros(4, int))
    return np.zeros(4, int)


@given(SMALL_VALUES, st.booleans(), st.integers(1, 9))
def test_it_is_what_the_value_has_wherever_the_text_is_cut(value, escaped, chunk):
    text = json.dumps(value, ensure_ascii=escaped).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("dpserve.service.http.structure._CHUNK", chunk)
        assert structure_of(text) == tuple(structure_in(value).tolist())


@pytest.mark.parametrize("text", [b"", b'"', b'"[,:{', b'"\\', b'"\\\\\\"[', b'"' + b"\\" * 9])
def test_a_string_that_does_not_end_has_no_structure(text):
    assert structure_of(text) == Structure(0, 0, 0, 0)


@pytest.fixture(scope="module")
def predictor():
    """A model with five columns, one of which is a text of 1,024 coordinates."""
    columns = (*COLUMNS[:-1], TextColumn(name="note"))
    return MeteredPredictor(head_on(columns, [ROW] * 2), Gaussian(1.0), None, largest_batch=1000)


def repeated(before, again, end="]}"):
    """Return a body of the largest size, of the same text again and again."""
    return (before + again * ((LARGEST_BODY - len(before) - len(end)) // len(again)) + end).encode()


def raw_tensors(datatype, again):
    """Return columns of which one has bytes behind the JSON, of the largest size, where its shape says one row."""
    size = LARGEST_BODY - 1024
    tensor = {"name": "age", "shape": [1], "datatype": datatype, "parameters": {"binary_data_size": size}}
    others = [
        {"name": each.name, "shape": [1], "datatype": "BYTES", "data": [None]}
        for each in (*COLUMNS[1:-1], TextColumn(name="note"))
    ]
    return json.dumps({"inputs": [tensor, *others]}).encode(), again * (size // len(again))


@cache
def many_names():
    """Return members of as many names as the largest body has room for."""
    return ",".join(f'"{n:x}":0' for n in range(1_400_000))


TENSOR = '{"inputs": [{"name": "age", "shape": [1], "datatype": "FP64", "data": ['
SHAPE = '{"inputs": [{"name": "age", "datatype": "FP64", "data": [0], "shape": ['
HOSTILE = {
    "empty objects": lambda: repeated('{"instances":[', "{},"),
    "empty rows": lambda: repeated('{"instances":[', "[],"),
    "one long row": lambda: repeated('{"instances":[[', "0,"),
    "one long row of texts": lambda: repeated('{"instances":[[', '"",'),
    "one object of many names": lambda: f'{{"instances":[{{{many_names()}}}]}}'.encode(),
    "one name in each row": lambda: repeated('{"instances":[', '{"a":0},'),
    "one name twice in each row": lambda: repeated('{"instances":[', '{"age":0,"age":0},'),
    "nested lists": lambda: b'{"instances":' + b"[" * LARGEST_BODY,
    "members": lambda: f"{{{many_names()}}}".encode(),
    "quotes": lambda: b'{"instances":[' + b'"' * (LARGEST_BODY - 14),
    "escaped quotes": lambda: b'{"instances":["' + b'\\"' * (LARGEST_BODY // 2 - 8),
    "tensor: numbers": lambda: repeated(TENSOR, "0,"),
    "tensor: rows": lambda: repeated(TENSOR, "[0],"),
    "tensor: texts": lambda: repeated(TENSOR, '"",'),
    "tensor: a shape": lambda: repeated(SHAPE, "1,"),
    "tensors": lambda: repeated('{"inputs": [', '{"name":"a"},'),
    "tensors: parameters": lambda: f'{{"inputs": [], "parameters": {{{many_names()}}}}}'.encode(),
    "tensors: outputs": lambda: repeated('{"inputs": [], "outputs": [', '{"name":"a"},'),
}
"""Functions that make each body: together they would be some hundred megabytes."""


RAW = {"BOOL": b"\1", "INT32": b"\1\0\0\0", "BYTES": b"\2\0\0\0ab"}


def refusing(predictor, codec, fields, body):
    """Return how many bytes refusing a body took."""
    tracemalloc.start()
    try:
        with pytest.raises((InvalidRows, Problem)):
            codec.decode(predictor, RequestHeader(fields, {}, ""), body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("datatype", RAW)
def test_raw_tensors_are_counted_before_their_values_are_made(predictor, datatype):
    described, raw = raw_tensors(datatype, RAW[datatype])
    fields = {b"inference-header-content-length": str(len(described)).encode()}
    assert refusing(predictor, OpenInferenceCodec(), fields, described + raw) < 3 * LARGEST_BODY


def wide(buckets, largest_batch=1000):
    columns = (*COLUMNS[:-1], TextColumn(name="note", buckets=buckets))
    return MeteredPredictor(head_on(columns, [ROW] * 2), Gaussian(1.0), None, largest_batch=largest_batch)


def test_the_largest_batch_has_no_more_numbers_than_the_largest_body_has_bytes():
    predictor = wide(2**14)
    assert predictor.largest_batch == LARGEST_BODY // (8 * predictor.certificate.feature_map.dimension) < 128
    assert wide(2**14, 7).largest_batch == 7
    rows = [ROW | {"note": "a"}] * predictor.largest_batch
    request = RowsCodec().decode(predictor, RequestHeader({}, {}, ""), json.dumps({"instances": rows}).encode())
    assert request.X.nbytes <= LARGEST_BODY
    assert refusing(predictor, RowsCodec(), {}, HOSTILE["one long row"]()) < 5 * LARGEST_BODY


@pytest.mark.parametrize("column", ["age", "city", "member", "since", "note"])
def test_a_long_text_that_does_not_fit_its_column_is_not_copied(predictor, column):
    long = "9" * LARGEST_BODY + "\N{GRINNING FACE}"
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRows) as refused:
            predictor.check_named([ROW | {"note": "", column: long}])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 300
    assert most < LARGEST_BODY


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_large_body_takes_no_more_memory_than_its_bytes_do_before_it_is_refused(predictor, kind):
    body, codec = HOSTILE[kind](), OpenInferenceCodec() if kind.startswith("tensor") else RowsCodec()
    assert len(body) <= LARGEST_BODY + 2**17
    assert refusing(predictor, codec, {}, body) < 3 * LARGEST_BODY


def test_the_largest_batch_is_read_whatever_its_texts_say(predictor):
    note = ',:[{"\\é' * 900
    rows = [ROW | {"note": note, "age": age % 100} for age in range(1000)]
    for escaped in (True, False):
        body = json.dumps({"instances": rows}, ensure_ascii=escaped).encode()
        assert 64 * 1024 < len(body) < predictor.largest_body
        request = RowsCodec().decode(predictor, RequestHeader({}, {}, ""), body)
        assert request.X[:, 0].tolist() == [age % 100 for age in range(1000)]
    inputs = [
        {"name": name, "shape": [1000, 1], "datatype": kind, "data": [[row[name]] for row in rows]}
        for name, kind in {"age": "FP64", "city": "BYTES", "member": "BOOL", "since": "BYTES", "note": "BYTES"}.items()
    ]
    tensors = OpenInferenceCodec().decode(predictor, RequestHeader({}, {}, ""), json.dumps({"inputs": inputs}).encode())
    np.testing.assert_array_equal(tensors.X, request.X)


@pytest.mark.parametrize("indent", [None, 2])
def test_rows_of_as_many_numbers_as_there_are_coordinates_are_read(predictor, indent):
    rows = np.tile(encode_rows(predictor.certificate.columns, [ROW]), (600, 1)).tolist()
    body = json.dumps({"instances": rows}, indent=indent).encode()
    assert RowsCodec().decode(predictor, RequestHeader({}, {}, ""), body).X.shape == (600, predictor.width)


TWICE = {
    "in a row": '{"instances": [{"age": 1, "age": 2, "city": "Oslo", "member": true, "since": null, "note": ":"}]}',
    "in a row, escaped": '{"instances": [{"age": 1, "\\u0061ge": 2, "city": null, "member": true, "since": null, '
    '"note": ""}]}',
    "in a tensor": '{"inputs": [{"name": "age", "name": "age", "shape": [1], "datatype": "FP64", "data": [1]}]}',
    "in a tensor's parameters": '{"inputs": [{"name": "age", "parameters": {"a": 1, "a": 2}, "shape": [1], "datatype": '
    '"FP64", "data": [1]}]}',
    "in an output": '{"inputs": [], "outputs": [{"name": "probabilities", "name": "probabilities"}]}',
    "in parameters": '{"inputs": [], "parameters": {"clip": true, "clip": false}}',
    "in what nobody reads": '{"inputs": [], "other": [{"a": {"b": 1, "b": 2}}]}',
}


@pytest.mark.parametrize("where", TWICE)
def test_a_member_that_comes_twice_is_refused_wherever_it_is(predictor, where):
    codec = RowsCodec() if "row" in where else OpenInferenceCodec()
    with pytest.raises(Problem) as refused:
        codec.decode(predictor, RequestHeader({}, {}, ""), TWICE[where].encode())
    assert refused.value.kind is ProblemType.INVALID_REQUEST
    assert "twice" in refused.value.detail
