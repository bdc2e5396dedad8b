"""Hashed pairs of fields in ONNX: the buckets of pairs of parts are a table (`dpserve.training.features.crosses`)."""

import numpy as np

from dpserve.training.errors import NotExportable
from dpserve.training.export.onnx_graph import Graph
from dpserve.training.features.crosses import Field, bucket
from dpserve.training.features.maps import Bins

LARGEST_TABLE = 2**22


def hashed_pairs(graph: Graph, scaled: str, feature_map: Bins) -> str:
    """Add up the pairs in each bucket, (rows, buckets), of scaled rows. Raises NotExportable for too large a table."""
    fields, buckets, (one, other) = feature_map.fields, feature_map.cross_buckets, feature_map.paired
    counts = np.array([field.parts for field in fields])
    starts, widths = np.cumsum(counts) - counts, counts[one] * counts[other]
    if widths.sum() > LARGEST_TABLE:
        raise NotExportable(
            f"the pairs of the columns' parts are {widths.sum():,}, and a file may have {LARGEST_TABLE:,}: take the "
            "model away as safetensors"
        )
    table = []
    for a, b in zip(one, other, strict=True):
        first, second = np.divmod(np.arange(counts[a] * counts[b]), counts[b])
        table.append(bucket(starts[a] + first, starts[b] + second, buckets))
    parts = graph("Concat", *(_part(graph, scaled, field) for field in fields), axis=1)
    firsts = graph("Gather", parts, graph.integers(one), axis=1)
    seconds = graph("Gather", parts, graph.integers(other), axis=1)
    places = graph("Add", graph("Mul", firsts, graph.integers(counts[other])), seconds)
    places = graph("Add", places, graph.integers(np.cumsum(widths) - widths))
    found = graph("Gather", graph.integers(np.concatenate(table)), places)
    # Nothing, as often as there are rows.
    nothing = graph("MatMul", graph.times(graph.row_sums(scaled), 0.0), graph.constant(np.zeros((1, buckets))))
    ones = graph.real(graph("GreaterOrEqual", found, graph.integers(0)))
    return graph("ScatterElements", nothing, found, ones, axis=1, reduction="add")


def _part(graph: Graph, scaled: str, field: Field) -> str:
    """The part of a field, (rows, 1): see `Field.part`."""
    from onnx import TensorProto

    if field.number is None:
        found = graph("Cast", graph.times(graph.row_sums(scaled), 0.0), to=TensorProto.INT64)
    else:
        number = graph("Gather", scaled, graph.integers([field.number]), axis=1)
        inner = graph.constant(np.array(field.edges))
        found = graph("Cast", graph.row_sums(graph.real(graph("GreaterOrEqual", number, inner))), to=TensorProto.INT64)
    if not field.others:
        return found
    others = graph("Gather", scaled, graph.integers(field.others), axis=1)
    largest = graph("ReduceMax", others, graph.integers([1]), keepdims=1)
    first = graph.integers(field.parts - len(field.others))
    part = graph("Add", graph("ArgMax", others, axis=1, keepdims=1), first)
    return graph("Where", graph("GreaterOrEqual", largest, graph.constant(0.5)), part, found)
