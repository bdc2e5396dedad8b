"""Numbers are written as what they are."""

import json

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from dpserve.service.http.codec import json_of


@given(
    arrays(np.float64, array_shapes(max_dims=3, min_side=0), elements=st.floats(allow_nan=False, allow_infinity=False)),
    st.integers(1, 3),
)
def test_what_is_written_is_read_as_the_same_numbers(values, step):
    for each in (values, values.T, values[::step]):  # not all of them one behind the other in memory
        read = np.array(json.loads(msgspec.json.encode({"data": json_of(each)}))["data"], dtype=float)
        assert np.array_equal(read.reshape(each.shape), each)
        assert np.array_equal(np.signbit(read.reshape(each.shape)), np.signbit(each))
    assert json.loads(msgspec.json.encode(json_of(values > 0))) == (values > 0).tolist()


def test_every_kind_of_array_is_written_as_its_float64():
    for dtype in ("<f4", ">f8", "<f8", "<i8", "?"):
        values = np.array([[0.1, 1e30], [1.0, 0.0]]).clip(0, 9).astype(dtype)
        assert json.loads(msgspec.json.encode(json_of(values))) == values.astype(np.float64).tolist()
