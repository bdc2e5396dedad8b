"""Operations of an ONNX graph, one after the other."""

from typing import TYPE_CHECKING, Any

import numpy as np

from dpserve.accounting.arrays import Floats

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto


class Graph:
    """Collects operations; each method returns the name of what it computes."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def constant(self, value: object, dtype: type = np.float64) -> str:
        """Keep numbers, or texts where dtype is object."""
        from onnx import numpy_helper

        name = f"dpserve/c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def __call__(self, operation: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add an operation."""
        from onnx import helper

        name = output or f"dpserve/v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, inputs, [name], **attributes))
        return name

    def integers(self, value: object) -> str:
        """Keep whole numbers."""
        return self.constant(value, np.int64)

    def real(self, values: str) -> str:
        """Take numbers in double precision; true and false as 1 and 0."""
        from onnx import TensorProto

        return self("Cast", values, to=TensorProto.DOUBLE)

    def times(self, values: str, factor: object) -> str:
        """Multiply by numbers."""
        return self("Mul", values, self.constant(factor))

    def plus(self, values: str, term: object) -> str:
        """Add numbers."""
        return self("Add", values, self.constant(term))

    def product(self, values: str, matrix: Floats) -> str:
        """Multiply by a matrix from the right."""
        return self("MatMul", values, self.constant(matrix))

    def whole(self, values: str) -> str:
        """Round towards zero, as a cast to integers does."""
        from onnx import TensorProto

        return self.real(self("Cast", values, to=TensorProto.INT64))

    def row_sums(self, values: str) -> str:
        """Add up each row, (n, 1)."""
        return self("ReduceSum", values, self.integers([1]), keepdims=1)

    def lengths(self, values: str) -> str:
        """Return the lengths of rows, (n, 1)."""
        return self("Sqrt", self.row_sums(self("Mul", values, values)))
