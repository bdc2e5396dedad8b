"""A folder with `model.safetensors` and `certificate.json`, neither of which can be changed without the other.

The certificate holds the digest of the model file, and the model file a copy of the certificate. Someone who may
write both can forge the folder whole: that is whoever runs the service. No pickle anywhere.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from mechanisms.randomness import NoiseKey
from training.errors import BundleError, TrainingError

MODEL_FILE = "model.safetensors"
CERTIFICATE_FILE = "certificate.json"
_SEALED = "certificate"

_NOISE_KEY = "noise_key"
_PUBLIC = "feature_map."

Floats = NDArray[np.float64]
Tensors = dict[str, NDArray[np.generic]]


class SealedCertificate(BaseModel):
    """What a certificate needs to be sealed into the weights that it speaks of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weights_sha256: str = Field(default="0" * 64, pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of model.safetensors; zero until that is written. Private."""

    def sealed(self) -> str:
        """Return everything in it but the digest, to be kept inside the weights' file that the digest covers."""
        return self.model_dump_json(exclude={"weights_sha256"})

    def with_digest_of(self, model: bytes) -> Self:
        """Return the certificate with the digest of the model file's content."""
        return self.model_copy(update={"weights_sha256": hashlib.sha256(model).hexdigest()})

    def verify(self) -> None:
        """Derive every number again. Returns nothing, or raises BundleError saying all that differs."""
        raise NotImplementedError

    def public_files(self) -> Mapping[str, bytes]:
        """Return what lies beside the model, by name: public files whose digests the certificate has."""
        return {}

    def open_files(self, folder: Path, device: str | None) -> None:
        """Open these files. device, and what is raised: as for `load_sealed`."""
        del folder
        if device is not None:
            raise TrainingError("this model has no encoder to compute on a device: leave --device out")


AnyCertificate = TypeVar("AnyCertificate", bound=SealedCertificate)


def save_sealed(folder: Path, tensors: Tensors, certificate: AnyCertificate) -> AnyCertificate:
    """Write both files into a new folder that its owner alone can read; return the certificate with the digest.

    The public files that it names lie beside them. The folder appears whole or not at all. Raises BundleError if it
    exists already, and for a public file that is another.
    """
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    model = save(contiguous, metadata={_SEALED: certificate.sealed()})
    certificate = certificate.with_digest_of(model)
    written = {MODEL_FILE: model, CERTIFICATE_FILE: certificate.model_dump_json(indent=2).encode()}
    write_folder(folder, {**written, **certificate.public_files()})
    return certificate


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a bundle's files into a new folder that its owner alone can read, which appears whole or not at all.

    Raises BundleError if it exists already.
    """
    if folder.exists():
        raise BundleError(f"{folder} exists already; a bundle is never overwritten, so name a new one with --out")
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        draft.mkdir(parents=True, mode=0o700)
        for name, content in files.items():
            (draft / name).touch(mode=0o600)
            (draft / name).write_bytes(content)
        draft.rename(folder)
    except OSError as error:
        raise BundleError(f"cannot write the bundle {folder}: {error.strerror}") from error


def load_sealed(folder: Path, kind: type[AnyCertificate], device: str | None = None) -> tuple[AnyCertificate, Tensors]:
    """Read both files, verify them, and open the public files. Raises BundleError saying what is missing or different.

    device: where an encoder computes, "cpu" (the default) or "cuda". Raises TrainingError for one that is not there, or
    if one is named and the model has no encoder.
    """
    try:
        text = (folder / CERTIFICATE_FILE).read_text(encoding="utf-8")
        model = (folder / MODEL_FILE).read_bytes()
    except OSError as error:
        raise BundleError(f"{folder} is not a bundle: cannot read {error.filename}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BundleError(f"{folder / CERTIFICATE_FILE} is not text") from error
    _check_version(folder, kind, text)
    try:
        certificate = kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise BundleError(f"{folder / CERTIFICATE_FILE} is not a certificate: {where}: {first['msg']}") from error
    certificate.verify()
    if certificate.with_digest_of(model) != certificate:
        raise BundleError(f"{folder / MODEL_FILE} was changed after it was certified: its SHA-256 is another")
    try:
        tensors = load(model)
        with safe_open(folder / MODEL_FILE, framework="numpy") as opened:
            sealed = (opened.metadata() or {}).get(_SEALED)
    except SafetensorError as error:
        raise BundleError(f"{folder / MODEL_FILE} is damaged: {error}") from error
    if sealed != certificate.sealed():
        raise BundleError(f"{folder / CERTIFICATE_FILE} is not the certificate that these weights were given")
    certificate.open_files(folder, device)
    return certificate, tensors


def _check_version(folder: Path, kind: type[SealedCertificate], text: str) -> None:
    """Refuse a bundle of another format, with what to do. What is no certificate at all is left to its validation."""
    try:
        found = json.loads(text)["format_version"]
    except (ValueError, TypeError, KeyError):
        return
    known = kind.model_fields["format_version"].default
    if found != known:
        raise BundleError(
            f"{folder} is a bundle of format {found}, and this version of dpserve reads format {known}. Serve it with "
            "the version that wrote it, or train again: the lineage and what was spent on it stay as they are, and a "
            "model that is paid for once is paid for again"
        )


def with_noise_key(noise_key: NoiseKey) -> Tensors:
    """Return the key as a tensor, to lie with the weights under their seal."""
    return {_NOISE_KEY: np.frombuffer(noise_key.secret, dtype=np.uint8)}


def noise_key_of(tensors: Tensors) -> NoiseKey:
    """Take the key out of a bundle's tensors. Raises BundleError if there is none."""
    octets = tensors.pop(_NOISE_KEY, np.empty(0, dtype=np.uint8))
    try:
        return NoiseKey(octets.tobytes())
    except ValueError as error:
        raise BundleError(f"the bundle holds no noise key: {error}") from error


def with_public_tensors(released: Mapping[str, NDArray[np.generic]], public: Mapping[str, Floats]) -> Tensors:
    """Return a bundle's tensors: the model's, and the feature map's public ones under names that do not meet."""
    return {**released, **{_PUBLIC + name: tensor for name, tensor in public.items()}}


def checked_tensors(
    tensors: Tensors, shapes: Mapping[str, tuple[int, ...]], public: Mapping[str, Floats] = MappingProxyType({})
) -> dict[str, Floats]:
    """Return the model's own tensors by name.

    public: what the feature map's seed draws. Raises BundleError unless the bundle holds tensors of these shapes, of
    finite float64 numbers, and the public ones as drawn, and no others.
    """
    found = {name: tensor.shape for name, tensor in tensors.items()}
    expected = dict(shapes) | {_PUBLIC + name: tensor.shape for name, tensor in public.items()}
    if found != expected:
        raise BundleError(f"the model's tensors are {found}, and the certificate describes {expected}")
    for name, tensor in public.items():
        if not np.array_equal(tensors[_PUBLIC + name], tensor):
            raise BundleError(f"the tensor {_PUBLIC + name} is not the one that the public seed draws")
    checked = {name: tensors[name].astype(np.float64) for name in shapes}
    for name, numbers in checked.items():
        if tensors[name].dtype != np.float64 or not np.isfinite(numbers).all():
            raise BundleError(f"the tensor {name} must hold finite float64 numbers")
    return checked


def layer_shapes(widths: Sequence[int], *stack: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a fully connected network's weights and biases by name; `stack` of such networks."""
    shapes: dict[str, tuple[int, ...]] = {}
    for index, (width, following) in enumerate(pairwise(widths)):
        shapes |= {f"weights.{index}": (*stack, width, following), f"biases.{index}": (*stack, following)}
    return shapes


def layer_tensors(layers: Iterable[tuple[Floats, Floats]]) -> dict[str, Floats]:
    """Return the weights and biases of every layer by name."""
    return {
        f"{what}.{index}": tensor
        for index, layer in enumerate(layers)
        for what, tensor in zip(("weights", "biases"), layer, strict=True)
    }


def layers_in(tensors: Mapping[str, Floats], widths: Sequence[int]) -> tuple[tuple[Floats, Floats], ...]:
    """Return the weights and biases of every layer, as `layer_tensors` named them."""
    return tuple((tensors[f"weights.{index}"], tensors[f"biases.{index}"]) for index in range(len(widths) - 1))


def one_line(error: ValueError) -> str:
    """Return what is wrong in one line, also if it is a certificate's validation that says so."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the certificate"
    message = first["msg"]
    return f"{where}: {message[:1].lower()}{message[1:]}, not {first['input']!r}"


def kind_of(folder: Path) -> str:
    """Return the kind of bundle in a folder, by its certificate: "head", "published", or what its `release` says.

    "head" for anything unreadable, whose loading then says what is wrong.
    """
    try:
        content = json.loads((folder / CERTIFICATE_FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return "head"
    if not isinstance(content, dict):
        return "head"
    if content.get("status") == "unproven":
        return "published"
    return str(content.get("release", "head"))
