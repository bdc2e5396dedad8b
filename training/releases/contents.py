"""What the bundles of releases have in common: a certificate's first fields, and the feature map's public tensors."""

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from training.certificate import now
from training.data.records import Declaration
from training.errors import BundleError
from training.feature_maps import FeatureMap
from training.releases.certificate import fresh_ids
from training.sealing import Tensors

Floats = NDArray[np.float64]

_PREFIX = "feature_map."


def one_line(error: ValueError) -> str:
    """Return what is wrong in one line, also if it is a certificate's validation that says so."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the certificate"
    message = first["msg"]
    return f"{where}: {message[:1].lower()}{message[1:]}, not {first['input']!r}"


def common_fields(declaration: Declaration, name: str, feature_map: FeatureMap, lineage: str) -> dict[str, object]:
    """Return the fields of a new certificate that every release has, but for its cost."""
    return {
        "name": name,
        **fresh_ids(),
        "created": now(),
        "classes": declaration.classes,
        "feature_names": declaration.feature_names,
        "feature_map": feature_map.model_dump(),
        "lineage": lineage,
    }


def with_public_tensors(released: dict[str, Floats], public: dict[str, Floats]) -> Tensors:
    """Return a bundle's tensors: what was released, and the feature map's, under names that do not meet."""
    return {**released, **{_PREFIX + name: tensor for name, tensor in public.items()}}


def public_tensors_of(tensors: Tensors, feature_map: FeatureMap) -> dict[str, Floats]:
    """Return the feature map's public tensors, drawn again from their seed. Raises BundleError if a bundle's differ."""
    public = feature_map.public_tensors()
    if {name for name in tensors if name.startswith(_PREFIX)} != {_PREFIX + name for name in public}:
        raise BundleError("the bundle has other tensors of the feature map than its seed draws")
    for name, tensor in public.items():
        if not np.array_equal(tensors[_PREFIX + name], tensor):
            raise BundleError(f"the tensor {_PREFIX + name} is not the one that the public seed draws")
    return public


def check_on_grid(name: str, values: Floats, step: float) -> None:
    """Raise BundleError unless every value is a float64 nearest to a whole multiple of `step`, as drawn ones are.

    A release with exact noise lies on the grid that its certificate's numbers give. Most certificates that were changed
    to cost less have another grid, which the values refute; not all. With half the mu, or a quarter, the noise has
    twice the steps and the grid stays: its scale S is a power of two and g is close to sensitivity / (S mu)
    (`grid.gaussian_scale`). Grids that told powers of two apart would not end it: sensitivity and mu can be changed
    together, and g is a function of their ratio, whatever function it is. So the check finds certificates that belong
    to another release, and one that an owner wrote to cost less is the owner's false word (`COMMON_ASSUMPTIONS`).
    |k| < 2^51, so that the rounded quotient is k itself.
    """
    if not np.array_equal(np.rint(values / step) * step, values):
        raise BundleError(
            f"the tensor {name} does not lie on the grid of noise that the certificate describes: it was drawn with "
            "other numbers, and cost something else"
        )


def checked_tensors(
    tensors: Tensors, shapes: dict[str, tuple[int, ...]], feature_map: FeatureMap
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return what was released, by name, and the feature map's public tensors.

    Raises BundleError unless the released tensors have these shapes and hold finite float64 numbers, and the public
    ones are the seed's.
    """
    public = public_tensors_of(tensors, feature_map)
    released = {name: tensor for name, tensor in tensors.items() if not name.startswith(_PREFIX)}
    found = {name: tensor.shape for name, tensor in released.items()}
    if found != shapes:
        raise BundleError(f"the model's tensors are {found}, and the certificate describes {shapes}")
    for name, tensor in released.items():
        if tensor.dtype != np.float64 or not np.isfinite(tensor.astype(np.float64)).all():
            raise BundleError(f"the tensor {name} must hold finite float64 numbers")
    return {name: tensor.astype(np.float64) for name, tensor in released.items()}, public
