"""The two readers of lists of numbers agree on every body, and the faster one reads what clients send."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpserve.service.http.codec import check_members
from dpserve.service.http.numbers import numbers, rows_and_members
from dpserve.service.http.problems import Problem
from dpserve.service.http.schemas import PredictOptions, PredictRequest

WIDTH, MOST = 3, 10_000

members = st.sampled_from(["instances", "instances", "instances", "model", "noise", "inst\\u0061nces", "é"])
number = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.integers(2**53 - 2, 2**53 + 4).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=25).map(lambda value: f"{value:f}"),
    st.from_regex(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?", fullmatch=True),
    st.sampled_from(["-0", "-0.0", "1e308", "1e309", "-1e400", "1e-400", "4.9e-324", "2.5e-324", "0e999999", "1E+2"]),
)
wrong = st.sampled_from([
    "true", "false", "null", "NaN", "Infinity", "nan", '"1"', "01", "+1", ".5", "1.", "1e", "--1", "-", "", "{}", "[]",
    "[1]", "[[1]]", '{"a": 1}', "0x1", "1_000", '"\\ud800"', '"[["', "1 2", "'1'", "1,",
])  # fmt: skip
cell = st.one_of(number, number, number, number, number, wrong)
space = st.sampled_from(["", "", "", " ", "\n\t\r ", "\f", "\u00a0", " " * 70])


@st.composite
def listed(draw, item, length):
    items = draw(st.lists(item, min_size=length[0], max_size=length[1]))
    start = draw(st.sampled_from(["", "", "", "", ","]))
    return draw(space) + "[" + draw(space) + start + ",".join(items) + "]" + draw(space)


row = st.one_of(listed(number, (WIDTH, WIDTH)), listed(number, (WIDTH, WIDTH)), listed(cell, (0, 4)), cell)
rows = st.one_of(listed(listed(number, (WIDTH, WIDTH)), (1, 4)), listed(row, (0, 4)), cell)
value = st.one_of(rows, rows, st.sampled_from(["null", "true", "false", '"fine"', "1", '"[["', '"\\u005b"', "[1]"]))


@st.composite
def bodies(draw):
    named = draw(st.lists(st.tuples(members, value), max_size=3)) or [("instances", draw(rows))]
    text = "{" + draw(space) + ",".join(f'"{name}":{each}' for name, each in named) + draw(space) + "}"
    before, behind = (
        draw(st.sampled_from(["", "", "", "\ufeff", " ", "["])),
        draw(st.sampled_from(["", "", " ", "x", "{}", "\0"])),
    )
    whole = (before + text + behind).encode()
    cut = draw(st.integers(0, len(whole)))
    return draw(st.sampled_from([whole, whole, whole, whole[:cut], whole[:cut] + b"\xff" + whole[cut:]]))


def same(X, lists):
    """Whether both hold the same numbers, to the bit but for the sign of 0."""
    return X.dtype == np.float64 and (X + 0.0).tobytes() == (np.array(lists, dtype=np.float64) + 0.0).tobytes()


@settings(max_examples=200)
@given(bodies(), st.sampled_from([40, 60, 2**16]))
@example(b'{"instances":[[1,2,3]],"instances":[[4,5,6]]}', 2**16)
@example(b'{"instances":[[[],[1,2],3]]}', 2**16)
@example(b'{"instances":[[1,2,3],[4,5],[6,7,8,9]]}', 2**16)
@example(b'{"instances":[[1,2,3]]} {}', 2**16)
@example(b'{"instances":[[1,2,' + b"[" * 3000 + b"]" * 3000 + b"]]}", 2**16)
@example(b'{"instances":[[18446744073709551615,9223372036854775808,-9223372036854775808]]}', 2**16)
@example(b'{"instances":[[1,2,3]],"model":"\xff"}', 2**16)
@example(b'{"instances":[[1,2,3]],"model":"\\ud800"}', 2**16)
@example(b'{"instances":[[1,2,3]],"noise":1}', 2**16)
@example(b"", 2**16)
@example(b'{"instances":[[1,2,3],[1,2,3],[1,2,3] , [1,2,3],[1,2,3],[1,2,3]],"model":"fine"}', 40)
@example(b'{"instances":[[1,2,3],[1,2,3],[1,2,3]   [1,2,3],[1,2,3],[1,2,3]]}', 40)
@example(b'{"instances":[[1,2,3],[1,2,3],[1,2,3],,[1,2,3],[1,2,3],[1,2,3]]}', 40)
@example(b'{"instances":[[1,2,3],[1,2,3],[1,2,3],[1,2,3],[1,2,3],]}', 40)
@example(b'{"instances":[[1,2,3],[1,2,3],[1,2,3],[1,"[",3],[1,2,3],[1,2,3]]}', 40)
@example(b'{"instances":[[1,2,3],[1,2,3]],"model":"],[1,2,3]"}', 40)
@example(b'{"instances":[' + b" " * 40 + b",[1,2,3],[1,2,3],[1,2,3]]}", 40)
@example(b'{"instances":[,[1,2.0000000000000000000000000000000,3],[1,2,3]]}', 40)
@example(b'{"instances":[[1,2,3],[1,2,3],' + b" " * 40 + b"]}", 40)
@example(b'{"model":"[","instances":[[1,2,3],[1,2,3]]}', 40)
@example(b'{"model":"]","instances":[', 40)
def test_what_is_read_is_what_msgspec_reads(body, at_once):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("dpserve.service.http.numbers._SMALL", at_once)
        read = rows_and_members(body, "instances", WIDTH, MOST)
    if read is None:
        return
    try:
        options = msgspec.convert(read[1], PredictOptions)
    except msgspec.ValidationError:
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(body, type=PredictRequest)
        return
    expected = msgspec.json.decode(body, type=PredictRequest)
    assert read[0].shape == (len(expected.instances), WIDTH)
    assert same(read[0], expected.instances)
    assert (options.model, options.noise) == (expected.model, expected.noise)


@given(st.one_of(rows, listed(cell, (0, 6))).map(str.encode))
def test_numbers_alone_are_what_msgspec_reads(text):
    read = numbers(text, WIDTH, MOST)
    if read is None:
        return
    try:
        expected = msgspec.json.decode(text, type=list[float])
    except msgspec.ValidationError:
        nested = msgspec.json.decode(text, type=list[list[float]])
        assert {len(each) for each in nested} == {WIDTH}
        expected = [each for row in nested for each in row]
    assert same(read, expected)


@given(st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=WIDTH, max_size=WIDTH), min_size=1))
def test_what_json_writes_is_read_without_msgspec(lists):
    """A reader that gave up on everything would pass the tests above."""
    pytest.importorskip("simdjson")
    read = rows_and_members(json.dumps({"instances": lists, "model": "fine"}).encode(), "instances", WIDTH, MOST)
    assert read is not None
    assert same(read[0], lists)
    assert read[1] == {"model": "fine"}
    flat = [each for row in lists for each in row]
    assert same(numbers(json.dumps(lists).encode(), WIDTH, MOST), flat)
    assert same(numbers(json.dumps(flat).encode(), WIDTH, MOST), flat)


def test_a_large_body_is_read_without_msgspec():
    pytest.importorskip("simdjson")
    lists = np.random.default_rng(0).random((3000, WIDTH)).tolist()
    for between in (",", ", ", " ,\n"):
        read = rows_and_members(
            json.dumps({"instances": lists}, separators=(between, ":")).encode(), "instances", WIDTH, MOST
        )
        assert read is not None
        assert same(read[0], lists)
    assert same(numbers(json.dumps(lists).encode(), WIDTH, MOST), np.ravel(lists))


def test_more_rows_than_a_request_has_are_left_to_who_counts_them():
    pytest.importorskip("simdjson")
    text = json.dumps([[1, 2, 3]] * 10_000).encode()
    for most, expected in ((10_000, 30_000), (9_999, None)):
        found = numbers(text, WIDTH, most), rows_and_members(b'{"instances":' + text + b"}", "instances", WIDTH, most)
        sizes = found[0], None if found[1] is None else found[1][0]
        assert [None if each is None else each.size for each in sizes] == [expected, expected]


def test_each_member_of_a_body_comes_once():
    check_members(b'{"a": 1, "b": [{"a": 1}, ":"]}', 3)
    check_members(b'{"a": {"a": {"a": ":"}}}', 1)  # where the reader has not looked into what it does not know
    for again in ("a", r"\u0061"):
        for body in (f'{{"a": 1, "{again}": 2}}', f'[{{"b": [{{"a": ":", "{again}": 2}}]}}]'):
            with pytest.raises(Problem):
                check_members(body.encode(), 1)
