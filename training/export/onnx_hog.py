"""Histograms of oriented gradients, and means of pixels, in ONNX: operation by operation, hence the same bits."""

from functools import reduce

import numpy as np

from dpserve.training.export.onnx_graph import Graph
from dpserve.training.features import hog, pooling

LARGEST_EXPONENT = 10
"""An exponent above every described value, all of which are below 2^9: see `hog.described`."""


def described_by(graph: Graph, scaled: str, shape: hog.Shape) -> str:
    """`hog.described` of rows (n, height * width * channels) from 0 to 1."""
    height, width, channels = shape
    pixels = graph("Reshape", _levels(graph, scaled), graph.integers([-1, height, width, channels]))
    gradients = _gradients(graph, pixels, shape)
    if channels == 1:
        return gradients
    scale = hog.colour_scale(shape)
    return graph("Concat", gradients, graph.times(graph("Sqrt", _colours(graph, pixels, shape)), scale), axis=1)


def pooled_by(graph: Graph, scaled: str, shape: hog.Shape) -> str:
    """`pooling.pooled` of rows (n, height * width * channels) from 0 to 1: whole numbers, each divided once."""
    height, width, channels = shape
    down = graph("Reshape", _levels(graph, scaled), graph.integers([-1, height, width * channels]))
    down = graph("MatMul", graph.constant(pooling.members(height)), down)
    across = graph("Reshape", down, graph.integers([-1, pooling.cells(height), width, channels]))
    sums = graph("MatMul", graph.constant(pooling.members(width)), across)
    rows = graph("Reshape", sums, graph.integers([-1, pooling.width_of(shape)]))
    return graph("Div", rows, graph.constant(pooling.counts(shape)))


def _levels(graph: Graph, scaled: str) -> str:
    """`hog.levels`, row by row."""
    return graph("Round", graph.times(scaled, float(hog.LEVELS)))


def _part(graph: Graph, values: str, axes: list[int], starts: list[int], ends: list[int]) -> str:
    return graph("Slice", values, graph.integers(starts), graph.integers(ends), graph.integers(axes))


def _gradients(graph: Graph, pixels: str, shape: hog.Shape) -> str:
    height, width, channels = shape
    axes = [1, 2]
    x = graph(
        "Sub",
        _part(graph, pixels, axes, [1, 2], [height - 1, width]),
        _part(graph, pixels, axes, [1, 0], [height - 1, width - 2]),
    )
    y = graph(
        "Sub",
        _part(graph, pixels, axes, [2, 1], [height, width - 1]),
        _part(graph, pixels, axes, [0, 1], [height - 2, width - 1]),
    )
    if channels > 1:
        squares = graph("Add", graph("Mul", x, x), graph("Mul", y, y))
        longest = graph("ArgMax", squares, axis=3, keepdims=1)
        x, y = (graph("GatherElements", gradient, longest, axis=3) for gradient in (x, y))
    last = graph.integers([3])
    x, y = (graph("Squeeze", gradient, last) for gradient in (x, y))
    right, up, left, down = graph("Abs", x), graph("Abs", y), graph("Neg", x), graph("Neg", y)
    votes = [
        graph("Sub", x, up),
        graph("Min", x, y),
        graph("Sub", y, right),
        graph("Min", left, y),
        graph("Sub", left, up),
        graph("Min", left, down),
        graph("Sub", down, right),
        graph("Min", x, down),
    ]
    each = [graph("Unsqueeze", graph("Relu", vote), graph.integers([1])) for vote in votes]
    summed = _cells(graph, graph("Concat", *each, axis=1), shape)
    down_cells, across = hog.cells(height), hog.cells(width)
    corners = [
        _part(graph, summed, [2, 3], [top, side], [down_cells - 1 + top, across - 1 + side])
        for top, side in ((0, 0), (0, 1), (1, 0), (1, 1))
    ]
    blocks = graph("Concat", *corners, axis=1)
    whole = graph("ReduceSum", blocks, graph.integers([1]), keepdims=1)
    shares = graph("Sqrt", graph("Div", blocks, graph.plus(whole, float(hog.FLOOR))))
    return graph("Reshape", shares, graph.integers([-1, 4 * hog.DIRECTIONS * (down_cells - 1) * (across - 1)]))


def _cells(graph: Graph, votes: str, shape: hog.Shape) -> str:
    """Whole numbers throughout: the order of the products and sums does not matter."""
    across = graph.product(votes, hog.tents(shape[1] - 2).T)
    summed = graph("MatMul", graph.constant(hog.tents(shape[0] - 2)), across)
    return graph("Mul", summed, graph.constant(np.tile(hog.WEIGHTS, hog.DIRECTIONS // 2)[None, :, None, None]))


def _colours(graph: Graph, pixels: str, shape: hog.Shape) -> str:
    height, width, channels = shape
    each = graph("Floor", graph("Div", graph.times(pixels, float(hog.COLOURS)), graph.constant(float(hog.LEVELS))))
    steps = graph("Min", each, graph.constant(hog.COLOURS - 1.0))
    powers = hog.COLOURS ** np.arange(channels, dtype=np.float64)
    codes = graph("Reshape", graph.product(steps, powers[:, None]), graph.integers([-1, height * width, 1]))
    count = hog.COLOURS**channels
    ones = graph.real(graph("Equal", codes, graph.constant(np.arange(float(count))[None, None, :])))
    quarters = hog.quarter_of(height, width).ravel()
    counted = [
        graph(
            "ReduceSum",
            graph("Mul", ones, graph.constant((quarters == quarter)[None, :, None].astype(np.float64))),
            graph.integers([1]),
            keepdims=0,
        )
        for quarter in range(4)
    ]
    return reduce(lambda one, other: graph("Concat", one, other, axis=1), counted)
