"""Small ONNX models, made here."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FEATURES, WIDTH = 4, 8


def model(nodes, *, shape=("n", FEATURES), kind=TensorProto.FLOAT, inputs=None, constants=()):
    """A model of these nodes, from input x to output y, as the bytes of its file."""
    graph = helper.make_graph(
        nodes,
        "made",
        inputs or [helper.make_tensor_value_info("x", kind, list(shape))],
        [helper.make_tensor_value_info("y", kind if not inputs else TensorProto.FLOAT, None)],
        list(constants),
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return made.SerializeToString()


def layer(*, shape=("n", FEATURES), kind=TensorProto.FLOAT):
    """A model that passes its input on."""
    return model([helper.make_node("Identity", ["x"], ["y"])], shape=shape, kind=kind)


def weights(seed=0):
    return np.random.default_rng(seed).standard_normal((FEATURES, WIDTH)).astype(np.float32)


def perceptron(seed=0):
    """relu(x W)."""
    nodes = [helper.make_node("MatMul", ["x", "W"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    return model(nodes, constants=[numpy_helper.from_array(weights(seed), "W")])
