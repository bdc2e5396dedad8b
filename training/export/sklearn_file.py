"""A pay-once model as a fitted scikit-learn pipeline: it needs scikit-learn to be read, and nothing of ours.

Every step is a transformer of scikit-learn, its fitted attributes set to the model's numbers, or a function of NumPy
in a `FunctionTransformer`. A row x is scaled to x / max(radius, ||x||) by appending that maximum, which is at least as
large as any coordinate, as a column: `Normalizer("max")` divides by it, and leaves a column of ones for the bias.

Where phi is rounded to steps the pipeline rounds too. Its factors are rounded in another order than the service's, so
that a coordinate that lies next to a step, about one in 10^8, can be that step away: 2^-24.

The file is a pickle, as scikit-learn's own are: read it where it comes from someone you trust. It names classes and
functions of scikit-learn, NumPy, SciPy and joblib alone.
"""

import io
import math
from dataclasses import replace
from typing import Any

import joblib
import numpy as np
from scipy.sparse import block_diag, csr_matrix, identity
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import KBinsDiscretizer, Normalizer

from accounting.arrays import Floats
from training.errors import NotExportable
from training.export.sklearn_columns import encoding
from training.export.sklearn_steps import function, projection, scaler, sums
from training.features import maps as feature_maps
from training.features.maps import (
    DOUBLING_BINS,
    KEPT_WEIGHT,
    STEP,
    UNIFORM_BINS,
    Bins,
    Block,
    Fourier,
    Identity,
    Quantiles,
    Relu,
)
from training.pay_once.classifier import Classifier
from training.pay_once.model import CLOSEST


def sklearn_file(classifier: Classifier) -> bytes:
    """Return the file for `joblib.load`."""
    written = io.BytesIO()
    joblib.dump(pipeline_of(classifier), written)
    return written.getvalue()


def pipeline_of(classifier: Classifier) -> Pipeline:
    """Return the fitted pipeline, from rows (n, d) to probabilities (n, C), with `Classifier.metadata` as `paid_`."""
    steps = _features(classifier)
    if classifier.centre is None:
        steps.append(scaler(np.zeros(classifier.feature_map.dimension), 1 / STEP))
    else:
        steps += [Normalizer(), scaler(classifier.centre, 1.0), *_divided(CLOSEST)]
        (weights, biases), *others = classifier.layers
        # The column of ones weighs nothing.
        classifier = replace(classifier, layers=((np.vstack([weights, 0 * weights[:1]]), biases), *others))
    steps.append(_network(classifier) if len(classifier.layers) > 1 else _head(classifier))
    pipeline = Pipeline([(f"{index}-{type(step).__name__.lower()}", step) for index, step in enumerate(steps)])
    pipeline.paid_ = classifier.metadata
    return pipeline


def _features(classifier: Classifier) -> list[Any]:
    """phi in steps: see `FeatureMap.__call__`."""
    feature_map, tensors = classifier.feature_map, classifier.tensors
    lower, upper = np.array(feature_map.lower), np.array(feature_map.upper)
    width = len(lower)
    length = feature_maps.LENGTH * math.sqrt(1 - feature_map.bias**2)
    bias = math.trunc(feature_maps.LENGTH * feature_map.bias)
    # Data frames become arrays, for a scaler that was fitted on no names warns of them.
    steps = encoding(classifier.columns) if classifier.columns_inside else [function(np.asarray, dtype=np.float64)]
    steps += [function(np.clip, a_min=lower, a_max=upper), scaler(lower, upper - lower)]
    match feature_map:
        case Bins(cross_buckets=buckets) if buckets:
            raise NotExportable(
                "scikit-learn has no steps for hashed pairs of columns: take the model away as ONNX, or as safetensors"
            )
        case Bins():
            steps += _binned(feature_map)
            steps += _into_ball(feature_map.dimension - 1, feature_map.clip_norm, length, bias)
        case Quantiles():
            steps += _cut(feature_map)
            steps += _into_ball(feature_map.dimension - 1, feature_map.clip_norm, length, bias)
        case Identity():
            steps += _into_ball(width, feature_map.clip_norm, length, bias)
        case Fourier():
            omega = tensors["omega"]
            steps += _into_ball(width, feature_map.clip_norm, feature_maps.LENGTH, 0)
            steps += [_product(omega), *_waves(len(omega), length, bias)]
        case Relu():
            omega = tensors["omega"]
            steps += _into_ball(width, feature_map.clip_norm, feature_maps.LENGTH, 0)
            steps += [_product(omega), function(np.clip, a_min=0.0, a_max=None)]
            steps += _into_ball(len(omega), math.sqrt(len(omega) / 2), length, bias)
        case _:
            raise NotExportable(
                f"scikit-learn has no steps for {feature_map.kind!r}, as histograms of gradients divide by "
                "the sums of parts of a row: take the model away as ONNX, or as safetensors"
            )
    return steps


def _binned(feature_map: Bins) -> list[Any]:
    """Map scaled rows (n, d) to one-hot bins of each number, and the other coordinates: see `Bins`.

    scikit-learn has all numbers' bins of one kind beside each other, and counts them from the lowest.
    """
    width = len(feature_map.binned)
    uniform, doubling = (
        KBinsDiscretizer(count, encode="onehot-dense", strategy="uniform").fit(np.repeat([[0.0], [1.0]], width, axis=1))
        for count in (UNIFORM_BINS, DOUBLING_BINS)
    )
    edges = np.append(0.0, 2.0 ** np.arange(1.0 - DOUBLING_BINS, 1.0))
    doubling.bin_edges_[:] = [edges] * width
    both = UNIFORM_BINS + DOUBLING_BINS
    features = np.arange(width)[:, None]
    places = np.hstack(
        [
            features * UNIFORM_BINS + np.arange(UNIFORM_BINS),
            width * UNIFORM_BINS + features * DOUBLING_BINS + np.arange(DOUBLING_BINS)[::-1],
        ]
    ).ravel()
    kept = len(feature_map.kept)
    behind = feature_map.dimension - 1 - width * both
    values = np.append(np.ones(width * both), np.full(behind, KEPT_WEIGHT))
    columns = np.append(places, width * both + np.arange(behind))
    matrix = csr_matrix((values, (np.arange(len(columns)), columns)))
    numbers = function(np.take, indices=np.array(feature_map.binned), axis=1)
    kinds: list[Any] = [("uniform", Pipeline([("numbers", numbers), ("bins", uniform)]))]
    kinds.append(("doubling", Pipeline([("numbers", numbers), ("bins", doubling)])))
    if kept:
        kinds.append(("kept", function(np.take, indices=np.array(feature_map.kept), axis=1)))
    kinds += [(f"cross {index}", _crossed(*pair)) for index, pair in enumerate(feature_map.crossed)]
    return [FeatureUnion(kinds), sums(matrix)]


def _cut(feature_map: Quantiles) -> list[Any]:
    """Map scaled rows (n, d) to steps at the cuts of each number, and the rows beside them: see `Quantiles`.

    scikit-learn says in which part of a number's range it lies, and a product says which cuts that part has reached.
    """
    counts = np.array([len(cuts) for cuts in feature_map.cuts])
    ends = np.repeat([[0.0], [1.0]], len(counts), axis=1)
    parts = KBinsDiscretizer(counts + 1, encode="onehot-dense", strategy="uniform").fit(ends)
    for place, cuts in enumerate(feature_map.cuts):
        parts.bin_edges_[place] = np.array([-1.0, *cuts, 2.0])
    blocks = [
        np.where(np.arange(count + 1) > np.arange(count)[:, None], 1.0, -1.0) / math.sqrt(count) for count in counts
    ]
    numbers = function(np.take, indices=np.array(feature_map.numbers), axis=1)
    kinds: list[Any] = [("parts", Pipeline([("numbers", numbers), ("parts", parts)]))]
    kinds.append(("rows", "passthrough"))
    blocks.append(np.eye(len(feature_map.lower)))
    return [FeatureUnion(kinds), sums(block_diag(blocks, format="csr"))]


def _crossed(one: Block, other: Block) -> Pipeline:
    """Map scaled rows (n, d) to max(a + b - 1, 0) for each pair of coordinates of two columns: see `Bins`."""
    kinds: list[Any] = []
    for name, block in (("one", one), ("other", other)):
        if block.numbers:
            numbers = function(np.take, indices=np.array(block.numbers), axis=1)
            ends = np.repeat([[0.0], [1.0]], len(block.numbers), axis=1)
            bins = KBinsDiscretizer(block.parts, encode="onehot-dense", strategy="uniform").fit(ends)
            for place in range(len(block.numbers)):
                bins.bin_edges_[place] = np.array([-1.0, *block.edges, 2.0])
            kinds.append((f"{name}, numbers", Pipeline([("numbers", numbers), ("bins", bins)])))
        if block.others:
            kinds.append((f"{name}, others", function(np.take, indices=np.array(block.others), axis=1)))
    pairs = one.width * other.width
    first, second = np.divmod(np.arange(pairs), other.width)
    places = np.column_stack([first, one.width + second]).ravel()
    matrix = csr_matrix((np.ones(2 * pairs), (np.repeat(np.arange(pairs), 2), places)))
    return Pipeline(
        [
            ("columns", FeatureUnion(kinds)),
            ("pairs", sums(matrix)),
            ("less one", scaler(np.ones(pairs), 1.0)),
            ("both", function(np.clip, a_min=0.0, a_max=None)),
        ]
    )


def _into_ball(width: int, radius: float, length: float, bias: int) -> list[Any]:
    """Map rows (n, width) to whole numbers (n, width + 1): the rows scaled into a ball, and the bias."""
    return [
        *_rounded(width),
        *_divided(radius),
        *_whole(width, length, bias),
    ]


def _divided(least: float) -> list[Any]:
    """Map rows (n, k) to rows (n, k + 1): divided by max(least, their length), and a column of ones."""
    return [FeatureUnion([("row", "passthrough"), ("longest", _length_within(least, None))]), Normalizer("max")]


def _rounded(width: int) -> list[Any]:
    """Round rows (n, width) as `feature_maps._into_ball` does first: to 2^(e - b), e the largest's exponent.

    Numbers near 1.5 2^52 times that are so far apart: adding one and taking it away rounds. `np.spacing` of the largest
    is 2^(e - 53).
    """
    magic = 1.5 * 2.0 ** (52 + 53 - feature_maps.exact_bits(width))
    largest = Pipeline(
        [
            ("largest", function(np.linalg.norm, ord=np.inf, axis=1, keepdims=True)),
            ("spacing", function(np.spacing)),
            ("magic", scaler(np.zeros(1), 1 / magic)),
        ]
    )
    added, taken = identity(width + 1, format="lil"), identity(width + 1, format="lil")[:width]
    added[:width, width], taken[:, width] = 1.0, -1.0
    return [FeatureUnion([("row", "passthrough"), ("magic", largest)]), sums(added), sums(taken)]


def _length_within(least: float, most: float | None) -> Pipeline:
    """Map rows (n, k) to their lengths, none shorter than `least`: (n, 1)."""
    return Pipeline(
        [
            ("length", function(np.linalg.norm, axis=1, keepdims=True)),
            ("within", function(np.clip, a_min=least, a_max=most)),
        ]
    )


def _whole(width: int, length: float, bias: int) -> list[Any]:
    """Map rows (n, width + 1), the last a column of ones, to `length` times them and the bias, as whole numbers."""
    # Half a step more than the bias, so that it is rounded to the bias.
    return [scaler(np.zeros(width + 1), np.append(np.full(width, 1 / length), 1 / (bias + 0.5))), function(np.trunc)]


def _product(omega: Floats) -> Any:
    """Map whole numbers, the bias behind them, to Omega v."""
    return projection(np.hstack([omega * STEP, np.zeros((len(omega), 1))]))


def _waves(frequencies: int, length: float, bias: int) -> list[Any]:
    """Map turns (n, k) to the cosines, sines and the bias as whole numbers, at the angles that the table has."""
    angles, centre = len(feature_maps.cosines()), np.zeros(frequencies)
    ones = _length_within(1.0, 1.0)
    return [
        scaler(centre, 1 / angles),
        function(np.rint),
        scaler(centre, angles / (2 * math.pi)),
        FeatureUnion([("cosines", function(np.cos)), ("sines", function(np.sin)), ("ones", ones)]),
        *_whole(2 * frequencies, length / math.sqrt(frequencies), bias),
    ]


def _head(classifier: Classifier) -> LogisticRegression:
    (weights, biases), classes = classifier.layers[0], np.array(classifier.certificate.classes)
    if len(classes) == 2:
        weights, biases = np.diff(weights, axis=1), np.diff(biases)
    head = LogisticRegression()
    head.classes_, head.coef_, head.intercept_ = classes, np.ascontiguousarray(weights.T), biases
    head.n_features_in_, head.n_iter_ = weights.shape[0], np.array([0])
    return head


def _network(classifier: Classifier) -> MLPClassifier:
    classes, layers = np.array(classifier.certificate.classes), classifier.layers
    widths = [weights.shape[1] for weights, _ in layers[:-1]]
    network = MLPClassifier(widths, activation=classifier.activation, random_state=0)
    # A step on rows of zeros lays it out; then every number is replaced.
    network.partial_fit(np.zeros((len(classes), layers[0][0].shape[0])), classes, classes=classes)
    places = np.argsort(classes)  # the order that it keeps them in
    *hidden, (weights, biases) = layers
    last = (weights[:, places], biases[places])
    if len(classes) == 2:
        last = np.diff(last[0], axis=1), np.diff(last[1])
    network.coefs_ = [np.ascontiguousarray(each) for each, _ in [*hidden, last]]
    network.intercepts_ = [np.ascontiguousarray(each) for _, each in [*hidden, last]]
    return network
