"""Where numbers are computed: exact products by NumPy on the processor, or by PyTorch on a CUDA device.

A model asks an `Arithmetic` for its matrices once, and `product` multiplies rows by them. Nothing else of an answer
is computed on a device: the other steps of features, activations, softmax, selection and noise are NumPy's, on every
machine, in operations that IEEE 754 rounds in one way.

Proof that a product has the same bits on every device. For every product that goes through here it is proved where the
matrix is made (`dpserve.training.exact`, `dpserve.training.features`, `dpserve.training.pay_once.model`) that for
rows and matrix in their steps the absolute values of the terms of any element's sum add up to at most 2^53, in units of
the product of both steps, which is no less than 2^-452. So whatever adds up some of an element's terms, in doubles,
finds a whole number of at most 2^53 units at every stage: a double holds it, and no operation rounds. It is enough that
an element is computed from its own terms by multiplications and additions of IEEE 754 doubles, fused or not. Then the
order does not matter: not blocks, threads, split sums over k, atomic additions, nor which kernel a library chooses for
a shape. PyTorch keeps to it for tensors of float64:

- on CUDA it calls cuBLAS for doubles. TF32 and BF16x9 (`torch.backends.cuda.matmul.allow_tf32`, `fp32_precision`,
  `torch.set_float32_matmul_precision`) are ways to multiply float32; `allow_fp16_reduced_precision_reduction`,
  `allow_bf16_reduced_precision_reduction` and `allow_fp16_accumulation` concern half precision. None is read for
  float64, so none is set here.
- FP64 tensor cores (from the A100 on) do multiply-adds of IEEE doubles: PTX's `mma` of type f64 rounds each like
  `fma.rn.f64`. CUDA does not flush denormal doubles, and there are none.
- cuBLAS emulates doubles by slices of 8-bit integers (the Ozaki scheme, from CUDA 13.0 update 2) where it is told to.
  It documents that such results do not conform to IEEE 754. The variable `CUBLAS_EMULATE_DOUBLE_PRECISION` tells it
  to: `TorchArithmetic` refuses where that is set, and sets it to 0 before the first product, so that no later version
  takes emulation for its default. PyTorch's calls ask for no emulation.
- A sum whose terms are all zeros could be 0 or -0, as a kernel begins with 0 or with its first term. `product` adds 0
  to what it returns, which makes both 0.

What is not proved is that the libraries are without faults, and compute each element from its own terms alone, as
Strassen's method would not. (AMD's, whose devices PyTorch calls "cuda" too, were not looked at.) So it is tried:
products of whole numbers whose absolute values add up to 2^53 - 1 when an arithmetic is made (`TorchArithmetic`), and
each model's whole answers beside NumPy's when it is loaded (`dpserve.training.kinds.loading`).
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.accounting.messages import Message
from dpserve.training.errors import TrainingError, extra

Device = Literal["cpu", "cuda"]
DEVICES: tuple[Device, ...] = ("cpu", "cuda")

ROWS_TRIED = (1, 16, 256)
"""Numbers of rows that are tried: libraries have other kernels for one row, a few, and many."""

_EMULATION = "CUBLAS_EMULATE_DOUBLE_PRECISION"
_NO_CUDA = "PyTorch finds no CUDA device here: install its build for CUDA and the device's driver"


class TorchMatrix:
    """A matrix that lies on PyTorch's device."""

    def __init__(self, values: Any) -> None:
        """values: a tensor (k, m) of float64."""
        self._values = values

    @property
    def T(self) -> "TorchMatrix":  # noqa: N802
        """Its transpose, which needs no memory."""
        return TorchMatrix(self._values.T)

    def times(self, rows: Floats) -> Floats:
        """Return rows (n, k) times it, (n, m): from NumPy and to NumPy."""
        on_device = self._values.new_tensor(np.ascontiguousarray(rows))
        values: Floats = (on_device @ self._values).cpu().numpy()
        return values


Matrix: TypeAlias = Floats | TorchMatrix
"""A matrix (k, m) where an `Arithmetic` put it."""


def product(rows: Floats, matrix: Matrix) -> Floats:
    """Return rows (n, k) times a matrix (k, m), of which no sum is rounded: the module's proof. No element is -0."""
    values: Floats = matrix.times(rows) if isinstance(matrix, TorchMatrix) else rows @ matrix
    values += 0.0
    return values


class Arithmetic(Protocol):
    """A place for matrices that rows are multiplied by."""

    def matrix(self, values: Floats) -> Matrix:
        """Return a matrix (k, m), there.

        One whose transpose rows are multiplied by is given in Fortran's order: OpenBLAS multiplies a few rows by it in
        half of the time.
        """
        ...


class NumPyArithmetic:
    """The processor, and NumPy's library of linear algebra: the matrices are as they come."""

    def matrix(self, values: Floats) -> Floats:
        """Return it."""
        return values


NUMPY = NumPyArithmetic()


class TorchArithmetic:
    """PyTorch's double precision on one device."""

    def __init__(self, device: Device) -> None:
        """Prepare the device, and try products on it.

        Raises MissingExtra without PyTorch, and TrainingError without the device, where products are to be emulated,
        and for a device that gives another bit than NumPy in a product of whole numbers.
        """
        if os.environ.get(_EMULATION, "0") not in ("", "0"):
            raise TrainingError(f"{_EMULATION} is set, and emulated products are not exact: unset it")
        os.environ[_EMULATION] = "0"
        with extra("torch", f"computing on the device {device!r}"):
            import torch
        if device == "cuda" and not torch.cuda.is_available():
            raise TrainingError(Message("{}, or leave {device} out", _NO_CUDA))
        self._device = torch.device(device)
        self._double, self._tensor = torch.float64, torch.tensor
        self._try()

    def matrix(self, values: Floats) -> TorchMatrix:
        """Return a copy of it on the device."""
        return TorchMatrix(self._tensor(np.ascontiguousarray(values), dtype=self._double, device=self._device))

    def _try(self) -> None:
        """Compare products with those of 64-bit integers, the terms' absolute values adding up to 2^53 - 1 in each.

        Random terms of up to 2^42 make at most 2^51 of that, and one term, a whole number times 1, the rest: every
        result lies beyond 2^52, so that a double of one bit less gives others, and so does what drops any term's last.
        """
        generator = np.random.RandomState(0)
        k, m = 512, 64
        for n in ROWS_TRIED:
            rows = generator.randint(1 - 2**22, 2**22, (n, k))
            columns = generator.randint(1 - 2**20, 2**20, (k, m))
            rows[:, -m:], columns[-m:] = 0, np.eye(m, dtype=np.int64)
            sign = np.where(generator.random_sample((n, m)) < 0.5, -1, 1)
            rows[:, -m:] = sign * (2**53 - 1 - abs(rows) @ abs(columns))
            values = product(rows.astype(np.float64), self.matrix(columns.astype(np.float64)))
            if not np.array_equal(values.astype(np.int64), rows @ columns):
                raise TrainingError(
                    Message(
                        "products of {} rows on the device {!r} are not exact in double precision, so that "
                        "answers there would be others than elsewhere: leave {device} out",
                        n,
                        self._device.type,
                    )
                )


def arithmetic_on(device: str | None) -> Arithmetic:
    """Return the arithmetic of a device: NumPy's on the processor, which is the default, and PyTorch's on CUDA.

    Raises TrainingError for another name, and what `TorchArithmetic` raises.
    """
    if device not in (None, *DEVICES):
        raise TrainingError(f"a device is 'cpu' or 'cuda', not {device!r}")
    return TorchArithmetic("cuda") if device == "cuda" else NUMPY


def matrices(arithmetic: Arithmetic, tensors: Mapping[str, Floats]) -> dict[str, Matrix]:
    """Return matrices by name, where an arithmetic puts them."""
    return {name: arithmetic.matrix(values) for name, values in tensors.items()}


def training_device(wanted: str) -> Device:
    """Return where networks and shadow models train: "cpu" or "cuda"; for "auto" CUDA where PyTorch finds a device.

    Raises TrainingError for another name, and for CUDA where there is none.
    """
    if wanted == "cpu" or (wanted == "auto" and find_spec("torch") is None):
        return "cpu"
    if wanted not in ("auto", "cuda"):
        raise TrainingError(f"a device is 'auto', 'cpu' or 'cuda', not {wanted!r}")
    with extra("torch", "training on a device"):
        import torch
    if torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda":
        raise TrainingError(_NO_CUDA)
    return "cpu"
