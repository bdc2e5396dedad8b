"""Encoders: what a model's inputs say is honoured, and rows that are private records are computed apart."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from dpserve.training.errors import TrainingError
from dpserve.training.features.encoder import LARGEST_BATCH, OnnxEncoder
from tests.training.onnx_models import FEATURES, WIDTH, layer, model, perceptron, weights


def rows_of(seed, n, features=FEATURES):
    return np.random.default_rng(seed).random((n, features))


ENCODER = OnnxEncoder(perceptron(), FEATURES)


def test_features_are_the_models_first_output():
    rows = rows_of(1, 5)
    expected = np.maximum(rows.astype(np.float32) @ weights(), 0)
    np.testing.assert_allclose(ENCODER.together(rows), expected, rtol=1e-5, atol=1e-6)
    assert ENCODER.width == WIDTH
    assert ENCODER.input_range is None


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 30),
    removed=st.integers(0, 29),
    order=st.integers(0, 2**32 - 1),
)
def test_a_record_that_comes_or_goes_moves_no_other_records_features(seed, n, removed, order):
    rows = rows_of(seed, n)
    whole = ENCODER.apart(rows)
    kept = np.random.default_rng(order).permutation(np.delete(np.arange(n), removed % n))
    assert ENCODER.apart(rows[kept]).tobytes() == whole[kept].tobytes()


def test_rows_of_a_model_that_looks_at_its_batch_are_computed_apart():
    """Batch normalisation that is left in training does so."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    encoder = OnnxEncoder(model(nodes), FEATURES)
    rows = rows_of(2, 9)
    whole = encoder.apart(rows)
    assert encoder.apart(rows[1:]).tobytes() == whole[1:].tobytes()
    assert not np.array_equal(encoder.together(rows[1:]), encoder.together(rows)[1:])


def test_a_model_that_draws_random_numbers_is_refused():
    nodes = [
        helper.make_node("RandomUniformLike", ["x"], ["noise"]),
        helper.make_node("Add", ["x", "noise"], ["y"]),
    ]
    with pytest.raises(TrainingError, match="other features for the same row"):
        OnnxEncoder(model(nodes), FEATURES).apart(rows_of(0, 2))


@pytest.mark.parametrize("n", [0, 1, LARGEST_BATCH, 2 * LARGEST_BATCH + 5])
def test_together_returns_every_row_where_it_was(n):
    rows = rows_of(3, n)
    np.testing.assert_allclose(ENCODER.together(rows), ENCODER.apart(rows), rtol=0, atol=1e-4)


def test_images_have_the_sizes_that_their_values_fill():
    """Height and width are open: 3 x 8 x 8 values are one square image of three colours."""
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["y"])]
    encoder = OnnxEncoder(model(nodes, shape=["n", 3, "h", "w"]), 3 * 8 * 8)
    rows = rows_of(4, 3, 3 * 8 * 8)
    np.testing.assert_allclose(encoder.together(rows), rows.reshape(3, 3, 64).mean(axis=2), rtol=1e-5)


def test_several_inputs_share_a_row_and_whole_numbers_stay_whole():
    """A text model in small: tokens look up vectors, a mask says which of them count."""
    table = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(6, 2), "table")
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["vectors"]),
        helper.make_node("Cast", ["mask"], ["counts"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["counts", "last"], ["column"]),
        helper.make_node("Mul", ["vectors", "column"], ["kept"]),
        helper.make_node("ReduceMean", ["kept"], ["y"], axes=[1], keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "length"]) for name in ("tokens", "mask")]
    last = numpy_helper.from_array(np.array([-1], dtype=np.int64), "last")
    encoder = OnnxEncoder(model(nodes, inputs=inputs, constants=[table, last]), 6)
    tokens = np.array([[5, 0, 2, 1, 1, 0], [1.1, 1.9, 3, 0, 0, 1]])
    np.testing.assert_allclose(encoder.together(tokens), [[10 / 3, 12 / 3], [6 / 3, 7 / 3]])
    # Token 9 is unknown: nothing is known of that row, and its neighbours in the batch are as they were.
    odd = encoder.together(np.vstack([tokens, [9, 9, 9, 1, 1, 1]]))
    np.testing.assert_allclose(odd[:2], encoder.together(tokens))
    assert np.isnan(odd[2]).all()
    with pytest.raises(TrainingError, match="cannot compute these rows"):
        encoder.apart(np.array([[9.0, 9, 9, 1, 1, 1]]))


def test_a_model_for_one_row_at_a_time_answers_many():
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    encoder = OnnxEncoder(model(nodes, shape=[1, FEATURES]), FEATURES)
    rows = rows_of(5, 7)
    np.testing.assert_allclose(encoder.together(rows), rows, rtol=1e-6)


def test_the_pixels_range_is_the_models():
    stated = onnx.load_from_string(perceptron())
    helper.set_model_props(stated, {"Image.NominalPixelRange": "Normalized_1_1"})
    assert OnnxEncoder(stated.SerializeToString(), FEATURES).input_range == (-1.0, 1.0)


@pytest.mark.parametrize(
    ("content", "features", "said"),
    [
        (b"\x80\x04pickle", FEATURES, "no ONNX model"),
        (perceptron(), FEATURES + 1, "takes 4 values, and a row has 5"),
        (layer(shape=[2, FEATURES]), FEATURES, "2 rows at a time"),
        (layer(shape=["n", 3, "h", "w"]), 100, "takes 3 x any x any values, and a row has 100"),
        (layer(kind=TensorProto.STRING), FEATURES, r"takes tensor\(string\)"),
    ],
)
def test_what_does_not_fit_is_refused(content, features, said):
    with pytest.raises(TrainingError, match=said):
        OnnxEncoder(content, features)


def test_no_other_device_is_taken():
    with pytest.raises(TrainingError, match="'cpu' or 'cuda'"):
        OnnxEncoder(perceptron(), FEATURES, "tpu")


def test_cuda_is_refused_where_there_is_none():
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("ONNX Runtime has CUDA here")
    with pytest.raises(TrainingError, match="no CUDA"):
        OnnxEncoder(perceptron(), FEATURES, "cuda")


@pytest.mark.gpu
def test_a_gpu_gives_what_the_cpu_gives_and_keeps_records_apart():
    on_gpu = OnnxEncoder(perceptron(), FEATURES, "cuda")
    rows = rows_of(7, 2 * LARGEST_BATCH + 5)
    np.testing.assert_allclose(on_gpu.together(rows), ENCODER.together(rows), rtol=1e-4, atol=1e-4)
    whole = on_gpu.apart(rows)
    kept = np.random.default_rng(0).permutation(len(rows))[:-1]
    assert on_gpu.apart(rows[kept]).tobytes() == whole[kept].tobytes()
