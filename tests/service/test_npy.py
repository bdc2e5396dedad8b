"""Arrays as bodies and as answers, and what is refused of them."""

import io
import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpserve.service.http.npy import MEDIA_TYPE, npy_of, parse_npy
from dpserve.service.http.problems import Problem

ROWS = np.array([[0.1, 0.2, 0.3, 0.4], [1.0, 0.0, 0.5, 0.25]])


def saved(array, **options):
    written = io.BytesIO()
    np.save(written, array, **options)
    return written.getvalue()


@given(arrays(st.sampled_from(["<f4", "<f8"]), st.tuples(st.integers(0, 5), st.integers(0, 5))), st.booleans())
def test_what_numpy_writes_is_read(array, fortran):
    asked = np.asfortranarray(array) if fortran else array
    np.testing.assert_array_equal(parse_npy(saved(asked)), array)


@given(arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 5))))
def test_numpy_reads_what_is_written(array):
    np.testing.assert_array_equal(np.load(io.BytesIO(npy_of(array)), allow_pickle=False), array)
    assert npy_of(array) == saved(array)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_format_is_read(version):
    written = io.BytesIO()
    np.lib.format.write_array(written, ROWS, version=version)
    np.testing.assert_array_equal(parse_npy(written.getvalue()), ROWS)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x09\x00\x10\x00",
        pickle.dumps(ROWS),
        saved(np.array([[object()]], dtype=object), allow_pickle=True),
        saved(ROWS)[:-1],
        saved(ROWS) + b"\0",
        saved(ROWS).replace(b"(2, 4)", b"(3, 4)"),
        saved(ROWS).replace(b"'<f8'", b"'>f8'"),
        saved(ROWS).replace(b"'<f8'", b"'|O' "),
        saved(ROWS.astype(np.int64)),
        saved(ROWS.astype(np.float16)),
        saved(ROWS.astype(complex)),
        saved(ROWS[0]),
        saved(ROWS[None]),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b"{" * 100,
    ],
)
def test_what_is_no_array_of_rows_is_refused(body):
    with pytest.raises(Problem):
        parse_npy(body)


@given(st.binary(max_size=200), st.integers(0, 127))
def test_any_bytes_are_an_array_or_refused(noise, place):
    whole = saved(ROWS)
    for body in (noise, whole[:place] + noise + whole[place + len(noise) :]):
        try:
            parse_npy(body)
        except Problem:
            continue


def test_an_array_is_asked_and_answered_like_json(service):
    http = service.http(service.add_client())
    as_json = http.post("/predict?noise=true", json={"instances": ROWS.tolist()}).json()
    headers = {"Content-Type": MEDIA_TYPE, "Accept": MEDIA_TYPE, "Prefer": "wait=60"}
    assert "dpserve-noise" not in http.post("/predict", content=saved(ROWS), headers=headers).headers
    answered = http.post("/predict?noise=true", content=saved(ROWS), headers=headers)
    assert answered.headers["content-type"] == MEDIA_TYPE
    assert answered.headers["preference-applied"] == "wait=60"
    found = np.load(io.BytesIO(answered.content), allow_pickle=False)
    assert found.tolist() == as_json["predictions"]
    assert json.loads(answered.headers["dpserve-receipt"])["replayed_rows"] == 2
    assert json.loads(answered.headers["dpserve-budget"]) == as_json["budget"]
    noise, whole = json.loads(answered.headers["dpserve-noise"]), as_json["noise"]
    assert (noise["law"], noise["scale"]) == (whole["law"], max(whole["scale"]))
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(noise["undecided"]), dtype=np.uint8))
    assert bits[: len(whole["undecided"])].tolist() == whole["undecided"]
    shown = np.array(as_json["predictions"])
    others = shown @ (1 - np.eye(shown.shape[1]))  # where a probability rounds to 1, there is nothing left of 1 - p
    lower = shown / (shown + others * np.exp(noise["above"]))
    assert (lower <= np.array(whole["lower"]) + 2e-5).all()


@pytest.mark.parametrize(
    ("array", "row", "said"),
    [
        (np.zeros((1, 3)), None, "takes (rows, 4)"),
        (np.zeros((0, 4)), None, "empty"),
        (np.zeros((51, 4)), None, "51 rows"),
        (np.array([[0, 0, 0, 0], [0, np.nan, 0, 0]]), 1, "column 1"),
        (np.array([[0, 0, 0, np.inf]]), 0, "column 3"),
        (np.array([[0, 0, 1.5, 0]]), 0, "column 2"),
    ],
)
def test_rows_of_an_array_are_checked_like_json(service, array, row, said):
    http = service.http(service.add_client())
    refused = http.post("/predict", content=saved(array), headers={"Content-Type": MEDIA_TYPE})
    assert refused.status_code == 422
    assert refused.json()["row"] == row
    assert said in refused.json()["detail"]
    assert service.spent() == 0


@pytest.mark.parametrize(
    ("sent", "accept", "answered"),
    [
        ("Application/X-NPY; v=1", "application/json", "application/json"),
        ("application/x-npy", "application/x-npy;q=0, application/json", "application/json"),
        ("application/x-npy", "text/html, Application/X-Npy; q=0.5", "application/x-npy"),
    ],
)
def test_media_types_are_compared_as_http_says(service, sent, accept, answered):
    headers = {"content-type": sent, "accept": accept}
    answer = service.http(service.add_client()).post("/predict", content=saved(np.full((1, 4), 0.5)), headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == answered
