"""A folder with `model.safetensors` and `certificate.json`, neither of which can be changed without the other.

The certificate holds the digest of the model file, and the model file a copy of the certificate. An evaluation that
lies with them has a seal, made of both by a key that the certificate keeps. Someone who may
write both can forge the folder whole: that is whoever runs the service. No pickle anywhere.
"""

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dpserve.accounting.arrays import Floats
from dpserve.accounting.disclosure import DisclosedModel, Private
from dpserve.accounting.faults_in_words import in_words
from dpserve.accounting.messages import Message
from dpserve.accounting.whole_files import write_new_folder
from dpserve.mechanisms.randomness import NoiseKey
from dpserve.training.errors import BundleError
from dpserve.training.regular_files import read_regular, sha256_of

EVALUATION_FILE = "evaluation.json"
MODEL_FILE = "model.safetensors"
CERTIFICATE_FILE = "certificate.json"
LARGEST_CERTIFICATE = 2**26
"""Bytes of a certificate. With a million named and bounded features it has 46 MB."""
MOST_OBJECTS = 2**18
"""Objects and lists in a certificate: 100,000 columns of numbers have 200,000. Brackets in names count as well."""
MOST_VALUES = 2**22
"""Values in a certificate: a million features have three million, a name and two bounds each. Commas in names count."""
_COPY_AGAIN = "Copy the bundle again from where it was trained"
_MOST_BESIDE = 2**16
"""Bytes, and also objects and values, of a file's parts whose number no certificate says."""
_SEALED = "certificate"

_NOISE_KEY = "noise_key"
_PUBLIC = "feature_map."

_Word = Annotated[str, msgspec.Meta(max_length=64)]

Tensors = dict[str, NDArray[np.generic]]


class SealedCertificate(DisclosedModel):
    """The fields that seal a certificate into the weights that it describes."""

    model_config = ConfigDict(extra="forbid")

    weights_sha256: Private[str] = Field(default="0" * 64, pattern=r"^[0-9a-f]{64}$")
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

    def seal(self, content: Mapping[str, object]) -> str | None:
        """Return what an evaluation of this model with that content is sealed with; None if there can be none."""
        del content
        return None

    def public_files(self) -> Mapping[str, bytes]:
        """Return what lies beside the model, by name: public files whose digests the certificate has."""
        return {}

    def open_files(self, folder: Path, device: str | None) -> None:
        """Open these files. device, and what is raised: as for `load_sealed`."""
        del folder, device


AnyCertificate = TypeVar("AnyCertificate", bound=SealedCertificate)


def save_sealed(folder: Path, tensors: Tensors, certificate: AnyCertificate) -> AnyCertificate:
    """Write both files into a new folder that its owner alone can read; return the certificate with the digest.

    The public files that it names lie beside them. The folder appears whole or not at all. Raises BundleError if it
    exists already, for a public file that is another, and for a certificate that loading would refuse for its size.
    """
    _check_counts(folder / CERTIFICATE_FILE, certificate.sealed().encode())
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    model = save(contiguous, metadata={_SEALED: certificate.sealed()})
    certificate = certificate.with_digest_of(model)
    written = {MODEL_FILE: model, CERTIFICATE_FILE: certificate.model_dump_json(indent=2).encode()}
    write_folder(folder, {**written, **certificate.public_files()})
    return certificate


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a new folder that its owner alone can read, which appears whole or not at all.

    Raises BundleError if it exists already.
    """
    if folder.exists():
        raise BundleError(Message("{} exists already, and is never overwritten: name a new one with {out}", folder))
    try:
        write_new_folder(folder, files)
    except OSError as error:
        raise BundleError(f"cannot write the folder {folder}: {error.strerror}") from error


def load_sealed(folder: Path, kind: type[AnyCertificate], device: str | None = None) -> tuple[AnyCertificate, Tensors]:
    """Read both files, verify them, and open the public files. Raises BundleError saying what is missing or different.

    device: where an encoder computes, "cpu" (the default) or "cuda". Raises TrainingError for one that is not there.
    All else is put on a device by `dpserve.training.kinds.loading`.
    """
    try:
        text = read_regular(folder / CERTIFICATE_FILE, LARGEST_CERTIFICATE)
    except OSError as error:
        raise _unreadable(folder, error) from error
    _check_counts(folder / CERTIFICATE_FILE, text)
    _check_version(folder, kind, text)
    try:
        certificate = kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise BundleError(f"{folder / CERTIFICATE_FILE} is not a certificate: {where} {in_words(first)}") from error
    certificate.verify()
    sealed = certificate.sealed()
    try:
        # Before it is read: a file that is not the certified one may be large, and hold nothing.
        digest = sha256_of(folder / MODEL_FILE)
        model = read_regular(folder / MODEL_FILE) if digest == certificate.weights_sha256 else b""
    except OSError as error:
        raise _unreadable(folder, error) from error
    if certificate.with_digest_of(model) != certificate:
        raise BundleError(
            f"{folder / MODEL_FILE} was changed after it was certified: its SHA-256 is another. {_COPY_AGAIN}"
        )
    _check_header(folder / MODEL_FILE, model, sealed.encode())
    try:
        tensors = load(model)
    except SafetensorError as error:
        raise BundleError(f"{folder / MODEL_FILE} is damaged: {error}. {_COPY_AGAIN}") from error
    if _sealed_in(model) != sealed:
        raise BundleError(
            f"{folder / CERTIFICATE_FILE} is not the certificate that these weights were given: the files of two "
            f"bundles were mixed, or it was edited. {_COPY_AGAIN}"
        )
    read_evaluation(folder, certificate)
    certificate.open_files(folder, device)
    return certificate, tensors


def read_evaluation(folder: Path, certificate: SealedCertificate) -> dict[str, Any] | None:
    """Return the content of the evaluation that lies with a bundle, without its seal; None if there is none.

    Raises BundleError for one that is none of this model, or was altered.
    """
    path = folder / EVALUATION_FILE
    if not path.exists():
        return None
    try:
        text = read_regular(path, LARGEST_CERTIFICATE)
        cells = len(getattr(certificate, "classes", ())) ** 2
        # A count of the confusion matrix has an estimate, its error and an interval, and what was released for it.
        _check_counts(path, text, cells + _MOST_BESIDE, 6 * cells + _MOST_BESIDE)
        content = json.loads(text)
        seal = content.pop("seal")
        own = certificate.seal(content)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise BundleError(f"{path} holds no sealed evaluation: {error}") from error
    if own is None or not hmac.compare_digest(own.encode(), str(seal).encode()):
        raise BundleError(
            f"{path} was altered, or is the evaluation of another model: take it away, and evaluate again if you must"
        )
    return dict(content)


def _unreadable(folder: Path, error: OSError) -> BundleError:
    return BundleError(f"{folder} is not a bundle: cannot read {error.filename}: {error.strerror}")


def _sealed_in(model: bytes) -> str | None:
    """Return the certificate's copy in the header of a model file, which was loaded before."""
    length = int.from_bytes(model[:8], "little")
    sealed: str | None = json.loads(model[8 : 8 + length]).get("__metadata__", {}).get(_SEALED)
    return sealed


DEFAULT_KIND = "head"
"""The kind of a certificate that names none."""

UNPROVEN_KIND = "published"
"""The kind of a certificate whose status is unproven."""


class _Kind(msgspec.Struct):
    """The kind that a certificate names. All other fields are ignored."""

    format_version: int | float | str | None = None
    status: _Word = ""
    release: _Word = DEFAULT_KIND


def _check_counts(path: Path, text: bytes, objects: int = MOST_OBJECTS, values: int = MOST_VALUES) -> None:
    """Refuse JSON of more parts than such a file has, before any parser makes something of each of them.

    A pair of brackets takes two bytes, and what a parser makes of it a hundred times as many.
    """
    if text.count(b"{") + text.count(b"[") > objects or text.count(b",") > values or len(text) > LARGEST_CERTIFICATE:
        raise BundleError(
            f"{path} is too large: it may have {objects:,} objects and lists, {values:,} values and "
            f"{LARGEST_CERTIFICATE:,} bytes, brackets and commas in names included"
        )


def _check_header(path: Path, model: bytes, sealed: bytes) -> None:
    """Refuse a model file whose header has more in it than the sealed certificate and the places of tensors."""
    length = int.from_bytes(model[:8], "little")
    if length > 2 * len(sealed) + _MOST_BESIDE:
        raise BundleError(
            f"{path} is damaged: its header has {length:,} bytes, and its certificate {len(sealed):,}. {_COPY_AGAIN}"
        )
    objects, values = sealed.count(b"{") + sealed.count(b"["), sealed.count(b",")
    _check_counts(path, model[8 : 8 + length], objects + _MOST_BESIDE, values + _MOST_BESIDE)


def _check_version(folder: Path, kind: type[SealedCertificate], text: bytes) -> None:
    """Refuse a bundle of another format, with what to do. What is no certificate at all is left to its validation."""
    try:
        version = msgspec.json.decode(text, type=_Kind).format_version
    except (msgspec.DecodeError, RecursionError):
        return
    own_version = kind.model_fields["format_version"].default
    if version is not None and version != own_version:
        raise BundleError(
            f"{folder} is a bundle of format {str(version)[:32]}, and this version of dpserve reads format "
            f"{own_version}. Serve it with the version that wrote it, or train again: the lineage and what was spent "
            "on it stay as they are, and a model that is paid for once is paid for again"
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
    actual = {name: tensor.shape for name, tensor in tensors.items()}
    expected = dict(shapes) | {_PUBLIC + name: tensor.shape for name, tensor in public.items()}
    if actual != expected:
        raise BundleError(f"the model's tensors are {actual}, and the certificate describes {expected}")
    for name, tensor in public.items():
        if not np.array_equal(tensors[_PUBLIC + name], tensor):
            raise BundleError(f"the tensor {_PUBLIC + name} is not the one that the public seed draws")
    checked = {name: tensors[name].astype(np.float64) for name in shapes}
    for name, numbers in checked.items():
        if tensors[name].dtype != np.float64 or not np.isfinite(numbers).all():
            raise BundleError(f"the tensor {name} must hold finite float64 numbers")
    return checked


def layer_shapes(widths: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a fully connected network's weights and biases by name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for index, (width, following) in enumerate(pairwise(widths)):
        shapes |= {f"weights.{index}": (width, following), f"biases.{index}": (following,)}
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
    return f"{where}: {in_words(first)}, not {first['input']!r}"


def kind_of(folder: Path) -> str:
    """Return the kind of bundle in a folder, by its certificate: "head", "published", or what its `release` says.

    "head" for anything unreadable, whose loading then says what is wrong.
    """
    path = folder / CERTIFICATE_FILE
    try:
        text = read_regular(path, LARGEST_CERTIFICATE)
        _check_counts(path, text)
        kind = msgspec.json.decode(text, type=_Kind)
    except (OSError, BundleError, msgspec.DecodeError, RecursionError):
        return DEFAULT_KIND
    return UNPROVEN_KIND if kind.status == "unproven" else kind.release
