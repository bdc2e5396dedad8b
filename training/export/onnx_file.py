"""A pay-once model as one ONNX file: raw rows in, classes and probabilities out, in double precision.

Rows are one input `x` of numbers; or, by a schema, an input for each column (`dpserve.training.export.onnx_columns`).

The graph does what maps of `dpserve.training.features` do, operation by operation, so that phi(x) has the same bits:
rounding to whole numbers, powers of two from a table, single operations that IEEE 754 rounds in one way, and products
of whole numbers that are exact in any order. Only what follows phi can differ, in the last places.
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, cast

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.training.errors import NotExportable, extra
from dpserve.training.export.onnx_columns import ML_DOMAIN, ML_OPSET, columns_of
from dpserve.training.export.onnx_crosses import hashed_pairs
from dpserve.training.export.onnx_graph import Graph
from dpserve.training.export.onnx_hog import LARGEST_EXPONENT, described_by, pooled_by
from dpserve.training.features import hog, pooling, whole_steps
from dpserve.training.features.bins import DOUBLING_BINS, KEPT_WEIGHT, UNIFORM_BINS, Block
from dpserve.training.features.maps import Bins, Fourier, Hog, HogFourier, Identity, Quantiles
from dpserve.training.features.whole_steps import STEP, UNIT_ROWS
from dpserve.training.pay_once.classifier import Layers, ReleasedClassifier
from dpserve.training.pay_once.model import CLOSEST, SHORTEST

if TYPE_CHECKING:
    from onnx import ModelProto


OPSET = 18
_IR_VERSION = 8
"""The oldest that has this opset: what reads one reads the other."""


def onnx_file(classifier: ReleasedClassifier) -> bytes:
    """Return the file: its inputs, and the outputs `label` (rows,) and `probabilities` (rows, classes).

    Raises MissingExtra where the onnx package is not installed, and NotExportable for a column named as an output is.
    """
    with extra("onnx", "writing ONNX files"):
        import onnx
    model = _model(classifier)
    onnx.checker.check_model(model, full_check=True)
    return cast(bytes, model.SerializeToString())


def _model(classifier: ReleasedClassifier) -> "ModelProto":
    from onnx import TensorProto, helper

    certificate, graph, said = classifier.certificate, Graph(), classifier.metadata
    if classifier.columns_inside:
        inputs, rows = columns_of(graph, classifier.columns)
        domains = [helper.make_opsetid("", OPSET), helper.make_opsetid(ML_DOMAIN, ML_OPSET)]
    else:
        features = len(certificate.feature_names)
        inputs, rows = [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["rows", features])], "x"
        domains = [helper.make_opsetid("", OPSET)]
    values = _features(graph, classifier, rows)
    if classifier.centre is not None:
        rest = graph.plus(_unit(graph, values), -classifier.centre)
        values = graph("Div", rest, graph("Max", graph.lengths(rest), graph.constant(CLOSEST)))
    networks = [_network(graph, values, layers) for layers in classifier.networks]
    logits = reduce(lambda one, other: graph("Add", one, other), networks)
    probabilities = graph("Softmax", logits, output="probabilities", axis=1)
    places = graph("ArgMax", probabilities, axis=1, keepdims=0)
    graph("Gather", graph.constant(certificate.classes, object), places, output="label")
    made = helper.make_graph(
        graph.nodes,
        "pay_once",
        inputs,
        [
            helper.make_tensor_value_info("label", TensorProto.STRING, ["rows"]),
            helper.make_tensor_value_info("probabilities", TensorProto.DOUBLE, ["rows", len(certificate.classes)]),
        ],
        graph.constants,
    )
    model = helper.make_model(
        made,
        opset_imports=domains,
        ir_version=_IR_VERSION,
        producer_name="dpserve",
        doc_string=f"{certificate.name}, a private model that was paid for once. Calibration: "
        f"{said['calibration']}. Values beyond the declared bounds: {said['beyond_bounds']}.",
    )
    helper.set_model_props(model, said)
    return model


def _network(graph: Graph, values: str, layers: Layers) -> str:
    """The last layer's values."""
    for index, (weights, biases) in enumerate(layers):
        values = graph.plus(graph.product(graph("Tanh", values) if index else values, weights), biases)
    return values


def _features(graph: Graph, classifier: ReleasedClassifier, rows: str) -> str:
    """phi of the rows: see `FeatureMap.__call__`."""
    feature_map, tensors = classifier.feature_map, classifier.tensors
    lower, upper = np.array(feature_map.lower), np.array(feature_map.upper)
    within = graph("Min", graph("Max", rows, graph.constant(lower)), graph.constant(upper))
    scaled = graph("Div", graph.plus(within, -lower), graph.constant(upper - lower))
    length = whole_steps.LENGTH * math.sqrt(1 - feature_map.bias**2)
    width = len(lower)
    match feature_map:
        case Bins():
            hidden = _binned(graph, scaled, feature_map, length)
        case Quantiles():
            hidden = _cut(graph, scaled, feature_map, length)
        case Identity():
            hidden = _into_ball(graph, scaled, width, 0, feature_map.clip_norm, length)
        case Hog(centred=False):
            described = described_by(graph, scaled, feature_map.image_shape)
            hidden = _into_ball(graph, described, feature_map.dimension - 1, LARGEST_EXPONENT, UNIT_ROWS, length)
        case HogFourier():
            hidden = _gradients_and_waves(graph, scaled, feature_map, tensors["omega"], length)
        case Fourier():
            whole = _into_ball(graph, scaled, width, 0, feature_map.clip_norm, whole_steps.LENGTH)
            turns = _products(graph, whole, tensors["omega"])
            hidden = _waves(graph, turns, length / math.sqrt(len(tensors["omega"])))
        case _:
            raise NotExportable(
                f"the features {feature_map.kind!r} have no form in ONNX: take the model away as safetensors"
            )
    bias = graph.constant([[math.trunc(whole_steps.LENGTH * feature_map.bias)]])
    # One for each row: 0 of what the row has, and the bias.
    biases = graph("Add", graph.times(graph.row_sums(scaled), 0.0), bias)
    return graph.times(graph("Concat", hidden, biases, axis=1), STEP)


def _binned(graph: Graph, scaled: str, feature_map: Bins, length: float) -> str:
    """One-hot bins of each number, and the other coordinates: see `Bins`. A bin has its lower edge, not its upper."""
    from onnx import TensorProto

    parts = []
    if feature_map.binned:
        inner = np.arange(1, UNIFORM_BINS) / UNIFORM_BINS
        doubling = 2.0 ** -np.arange(1.0, DOUBLING_BINS)
        lower = np.concatenate([[-np.inf], inner, doubling, [-np.inf]])
        upper = np.concatenate([inner, [np.inf], [np.inf], doubling])
        numbers = graph("Gather", scaled, graph.constant(feature_map.binned, np.int64), axis=1)
        each = graph("Unsqueeze", numbers, graph.constant([2], np.int64))
        reached = graph("GreaterOrEqual", each, graph.constant(lower))
        within = graph("And", reached, graph("Less", each, graph.constant(upper)))
        ones = graph("Cast", within, to=TensorProto.DOUBLE)
        shape = graph.constant([-1, len(feature_map.binned) * len(lower)], np.int64)
        parts.append(graph("Reshape", ones, shape))
    if feature_map.kept:
        kept = graph("Gather", scaled, graph.constant(feature_map.kept, np.int64), axis=1)
        parts.append(graph.times(kept, KEPT_WEIGHT))
    weight = feature_map.pair_weight if feature_map.cross_buckets else 0.0
    for one, other in feature_map.crossed:
        a = graph("Unsqueeze", _coarse(graph, scaled, one), graph.constant([2], np.int64))
        b = graph("Unsqueeze", _coarse(graph, scaled, other), graph.constant([1], np.int64))
        both = graph("Relu", graph.plus(graph("Add", a, b), -1.0))
        pairs = graph("Reshape", both, graph.constant([-1, one.width * other.width], np.int64))
        parts.append(graph.times(pairs, KEPT_WEIGHT))
    exponent = 1
    if feature_map.cross_buckets:
        parts.append(graph.times(hashed_pairs(graph, scaled, feature_map), weight))
        exponent = max(exponent, math.frexp(weight * len(feature_map.paired[0]))[1])
    rows = graph("Concat", *parts, axis=1)
    return _into_ball(graph, rows, feature_map.dimension - 1, exponent, feature_map.clip_norm, length)


def _cut(graph: Graph, scaled: str, feature_map: Quantiles, length: float) -> str:
    """Steps at the cuts of each number, and the scaled rows beside them: see `Quantiles`."""
    features, cuts, weights = feature_map.steps
    numbers = graph("Gather", scaled, graph.constant(features, np.int64), axis=1)
    reached = graph("GreaterOrEqual", numbers, graph.constant(cuts))
    rows = graph("Where", reached, graph.constant(weights), graph.constant(-weights))
    rows = graph("Concat", rows, scaled, axis=1)
    return _into_ball(graph, rows, feature_map.dimension - 1, 0, feature_map.clip_norm, length)


def _coarse(graph: Graph, scaled: str, block: Block) -> str:
    """The coordinates that a column has in a cross: see `Block.coarse`."""
    from onnx import TensorProto

    parts = []
    if block.numbers:
        edges = np.array(block.edges)
        numbers = graph("Gather", scaled, graph.constant(block.numbers, np.int64), axis=1)
        each = graph("Unsqueeze", numbers, graph.constant([2], np.int64))
        reached = graph("GreaterOrEqual", each, graph.constant(np.append(-np.inf, edges)))
        within = graph("And", reached, graph("Less", each, graph.constant(np.append(edges, np.inf))))
        ones = graph("Cast", within, to=TensorProto.DOUBLE)
        parts.append(graph("Reshape", ones, graph.constant([-1, len(block.numbers) * block.parts], np.int64)))
    if block.others:
        parts.append(graph("Gather", scaled, graph.constant(block.others, np.int64), axis=1))
    return parts[0] if len(parts) == 1 else graph("Concat", *parts, axis=1)


def _gradients_and_waves(graph: Graph, scaled: str, feature_map: HogFourier, omega: Floats, length: float) -> str:
    """Histograms of gradients, means of pixels, and waves of the histograms: see `HogFourier`."""
    shape, longest = feature_map.image_shape, whole_steps.LENGTH
    described = described_by(graph, scaled, shape)
    directions = _into_ball(graph, described, hog.width_of(shape), LARGEST_EXPONENT, UNIT_ROWS, longest)
    means = pooled_by(graph, scaled, shape)
    means = _into_ball(graph, means, pooling.width_of(shape), LARGEST_EXPONENT, UNIT_ROWS, longest)
    waves = _waves(graph, _products(graph, directions, omega), longest / math.sqrt(len(omega)))
    rows = graph.times(graph("Concat", directions, means, waves, axis=1), STEP)
    return _into_ball(graph, rows, feature_map.dimension - 1, 0, UNIT_ROWS, length)


def _products(graph: Graph, whole: str, omega: Floats) -> str:
    return graph.product(graph.times(whole, STEP), omega.T)


def _waves(graph: Graph, turns: str, length: float) -> str:
    """Cosines and sines of `turns`, from the table, times `length`, as whole numbers: see `Fourier`."""
    from onnx import TensorProto

    table = whole_steps.cosines()
    angles = graph("Cast", graph("Round", graph.times(turns, float(len(table)))), to=TensorProto.INT64)
    quarter_before = graph("Sub", angles, graph.constant(len(table) // 4, np.int64))
    places = graph("Concat", angles, quarter_before, axis=1)
    places = graph("Mod", places, graph.constant(len(table), np.int64))
    return graph.whole(graph.times(graph("Gather", graph.constant(table), places), length))


def _into_ball(graph: Graph, vectors: str, width: int, exponent: int, radius: float, length: float) -> str:
    """`whole_steps.into_ball` of vectors (n, width) whose coordinates are at most 2^exponent in absolute value."""
    from onnx import TensorProto

    bits, least = whole_steps.exact_bits(width), whole_steps.LEAST_EXPONENT
    largest = graph("ReduceMax", graph("Abs", vectors), graph.constant([1], np.int64), keepdims=1)
    # frexp: the exponent counts the powers of two that the largest coordinate reaches.
    powers = graph.constant([[2.0**power for power in range(least, exponent + 1)]])
    reached = graph("Cast", graph("GreaterOrEqual", largest, powers), to=TensorProto.INT64)
    place = graph("ReduceSum", reached, graph.constant([1], np.int64), keepdims=1)
    exponents: Sequence[int] = range(least, exponent + 2)
    units = graph("Gather", graph.constant([2.0 ** (exponent - bits) for exponent in exponents]), place)
    scales = graph("Gather", graph.constant([2.0 ** (bits - exponent) for exponent in exponents]), place)
    whole = graph("Round", graph("Mul", vectors, scales))
    norms = graph("Mul", graph.lengths(whole), units)
    factors = graph("Div", graph.times(units, length), graph("Max", graph.constant(radius), norms))
    return graph.whole(graph("Mul", whole, factors))


def _unit(graph: Graph, values: str) -> str:
    """Each row scaled to length 1, or zero where it has no direction: `shrinkage.unit_rows`."""
    lengths, shortest = graph.lengths(values), graph.constant(SHORTEST)
    scaled = graph("Div", values, graph("Max", lengths, shortest))
    return graph("Where", graph("Greater", lengths, shortest), scaled, graph.constant(0.0))
