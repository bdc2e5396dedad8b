"""The choice of a public feature map: declared options, and the map that they make for declared records."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ValidationError

from dpserve.accounting.arrays import Floats, Singles
from dpserve.accounting.messages import Message
from dpserve.training.errors import WrongOption, WrongValue
from dpserve.training.features import hog, rules
from dpserve.training.features.crosses import MOST_BUCKETS, MOST_CELLS
from dpserve.training.features.encoder import OnnxEncoder
from dpserve.training.features.feature_map import default_clip_norm
from dpserve.training.features.hog import Shape
from dpserve.training.features.maps import FEATURE_MAPS, Bins, Encoder, FeatureMap, Fourier
from dpserve.training.features.quantiles import QUANTILE_SHARE
from dpserve.training.inputs.columns import usual_norm
from dpserve.training.inputs.records import Declaration
from dpserve.training.kinds.options import Declared, Options, fields_of

ROWS_IN_A_PART = 256
_MOST_SHOWN = 12
_RULES = "by rule"

Name = Literal["auto", "identity", "fourier", "bins", "quantiles", "hog", "hog-fourier"]


def _read_sides(text: str) -> tuple[int, ...]:
    sides = [side.strip() for side in text.split(",")]
    if len(sides) not in (2, 3) or not all(side.isascii() and side.isdigit() for side in sides):
        raise WrongValue("image_shape", "must be HEIGHT,WIDTH or HEIGHT,WIDTH,CHANNELS, as 28,28", value=text)
    return tuple(map(int, sides))


def _read_ends(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(end) for end in text.split(":"))
    except ValueError:
        raise WrongValue("encoder_range", "must be LOW:HIGH, two numbers, as 0:1", value=text) from None


def _limits(kind: type[FeatureMap], name: str) -> dict[str, float]:
    """Return the range that a feature map gives to a field, as `Declared` has it."""
    words = {"ge": "least", "gt": "above", "le": "most", "lt": "below"}
    metadata = kind.model_fields[name].metadata
    return {
        word: end
        for limit, word in words.items()
        for each in metadata
        if (end := getattr(each, limit, None)) is not None
    }


@dataclass(frozen=True, kw_only=True)
class FeatureChoice(Options):
    """The declared choices of the feature map. Everything here is public, and nothing is read off the records.

    encoder: the content of an ONNX file whose first output is the features, in place of another map.
    """

    features: Annotated[Name, Declared("The public feature map; auto follows public rules.")] = "auto"
    image_shape: Annotated[
        tuple[int, ...] | None,
        Declared(
            "The height, the width and perhaps the channels, 1 or 3, of images whose pixels are a record's columns.",
            unit="pixels",
            least=1,
            lengths=(2, 3),
            form="HEIGHT,WIDTH or HEIGHT,WIDTH,CHANNELS",
            read=_read_sides,
        ),
    ] = None
    cross: Annotated[
        tuple[str, ...], Declared("Two columns that bins describe together, as COLUMN:COLUMN.", form="COLUMN:COLUMN")
    ] = ()
    cross_buckets: Annotated[
        int,
        Declared(
            "The number of buckets that pairs of columns are hashed to, beside bins; 0 for none.",
            least=0,
            most=MOST_BUCKETS,
        ),
    ] = 0
    quantile_share: Annotated[
        float | None,
        Declared(
            "The share of the price that buys the records' noisy quantiles, where quantiles cut numbers; 0 for even "
            "cuts, which cost nothing.",
            least=0,
            most=0.5,
            default_text=f"{QUANTILE_SHARE:g}",
        ),
    ] = None
    bias: Annotated[float, Declared("The constant coordinate of phi.", **_limits(FeatureMap, "bias"))] = 0.0
    clip_norm: Annotated[
        float | None,
        Declared(
            "The length that scaled rows, or an encoder's features, are scaled down to.",
            **_limits(FeatureMap, "clip_norm"),
        ),
    ] = None
    random_features: Annotated[
        int,
        Declared(
            "The number of Fourier features, an even one.",
            **_limits(Fourier, "random_features"),
        ),
    ] = 1000
    bandwidth: Annotated[
        float,
        Declared("The width of the Fourier kernel, in units of the unit ball.", **_limits(Fourier, "bandwidth")),
    ] = 0.5
    seed: Annotated[int, Declared("The public seed of the random features.", **_limits(Fourier, "seed"))] = 0
    encoder_range: Annotated[
        tuple[float, ...] | None,
        Declared(
            "The lowest and the highest value that the encoder takes.",
            lengths=(2,),
            form="LOW:HIGH",
            read=_read_ends,
        ),
    ] = None
    device: Annotated[Literal["cpu", "cuda"] | None, Declared("Where an encoder computes.")] = None

    def __post_init__(self) -> None:
        """Raise WrongOption for a wrong value, and for a range whose ends are not in order."""
        super().__post_init__()
        if self.encoder_range is not None and not self.encoder_range[0] < self.encoder_range[1]:
            raise WrongValue("encoder_range", "must be a lower value before a higher one", value=self.encoder_range)

    def map_for(self, declaration: Declaration, encoder: bytes | None = None, *, head: bool) -> FeatureMap:
        """Return the map for records of a declaration. head: whether for the kind that is trained by default.

        Raises WrongOption for what does not go together, TrainingError for what does not fit the records.
        """
        if encoder is not None:
            return self._encoder(declaration, encoder)
        for name in ("encoder_range", "device"):
            if (value := getattr(self, name)) is not None:
                raise WrongOption(name, Message("goes with {encoder}"), value=value)
        if self.quantile_share is not None and self.features != "quantiles":
            raise WrongOption("quantile_share", Message("goes with {features:quantiles}"), value=self.quantile_share)
        shape = None if self.image_shape is None else shape_of(self.image_shape, declaration.features)
        if self.features == "auto" and self.clip_norm is None and not self.bias:
            return self._crossed(rules.feature_map("identity", declaration, shape, head=head), declaration)
        name = "identity" if self.features == "auto" else self.features
        kind = FEATURE_MAPS[name]
        if (shape is None) != ("image_shape" not in kind.model_fields):
            name = "hog" if name == "identity" else name
            reason = Message("{} and {image_shape:HEIGHT,WIDTH or HEIGHT,WIDTH,CHANNELS} go together", name)
            if self.features == "auto":
                reason = Message("{}; {clip_norm} and {bias} go with {features}", reason)
            raise WrongOption("features", reason)
        try:
            made = kind.model_validate(self._parameters(kind, declaration, shape, head=head))
        except ValidationError as error:
            raise self._wrong(name, error) from error
        return self._crossed(made, declaration)

    def _wrong(self, map_name: str, error: ValidationError) -> WrongOption:
        first = error.errors()[0]
        if not first["loc"]:  # the map as a whole, and not an option of it
            return WrongOption("features", f"{map_name}: {first['msg'].removeprefix('Value error, ')}")
        if str(first["loc"][0]) == "random_features":
            return WrongValue("random_features", f"must be even for {map_name}", value=first["input"])
        declared = fields_of(type(self))[str(first["loc"][0])].declared
        return WrongValue(str(first["loc"][0]), f"must be {declared.range_text}", value=first["input"])

    def _parameters(
        self, kind: type[FeatureMap], declaration: Declaration, shape: Shape | None, *, head: bool
    ) -> dict[str, Any]:
        """Return what a map of this kind takes: the declaration's, and the options of the same names."""
        own = ("clip_norm", "bias", "random_features", "bandwidth", "seed")
        given = {name: getattr(self, name) for name in own if name in kind.model_fields} | _declared(declaration)
        if shape is not None:
            given["image_shape"] = shape
            if "centred" in kind.model_fields:  # as the rules do for heads
                given["centred"] = head
        if not kind.model_fields["clip_norm"].is_required():
            del given["clip_norm"]
        elif self.clip_norm is None:
            columns = declaration.columns
            given["clip_norm"] = usual_norm(columns) if columns else default_clip_norm(declaration.features)
        return given

    def _crossed(self, feature_map: FeatureMap, declaration: Declaration) -> FeatureMap:
        """Return a map with the crosses that were declared. Raises TrainingError for what cannot be."""
        if not self.cross and not self.cross_buckets:
            return feature_map
        first = "cross" if self.cross else "cross_buckets"
        if not isinstance(feature_map, Bins):
            raise WrongOption(first, Message("goes with {features:bins}, and these are not"))
        names = [column.name for column in declaration.columns] or [*declaration.feature_names]
        pairs = [_pair(cross, names) for cross in self.cross]
        made = {"crosses": tuple(pairs), "cross_buckets": self.cross_buckets, "cross_cells": MOST_CELLS}
        try:
            return Bins.model_validate(feature_map.model_dump() | made)
        except ValidationError as error:
            raise WrongOption(
                first, f"does not fit: {error.errors()[0]['msg'].removeprefix('Value error, ')}"
            ) from error

    def _encoder(self, declaration: Declaration, content: bytes) -> Encoder:
        """Return the feature map of an ONNX file. Each row is computed apart from all others, and once: it is kept."""
        encoder, scaled = OnnxEncoder(content, declaration.features, self.device or "cpu"), self.encoder_range

        kept: dict[bytes, Singles] = {}

        def compute(rows: Floats) -> Singles:
            digests = [hashlib.blake2b(row.tobytes(), digest_size=32).digest() for row in rows]
            new = [place for place, digest in enumerate(digests) if digest not in kept]
            for place, features in zip(new, encoder.apart(rows[new]), strict=True):
                kept[digests[place]] = features
            return np.array([kept[digest] for digest in digests])

        parameters = {
            "bias": self.bias,
            "input_range": scaled if scaled is not None else encoder.input_range,
            "clip_norm": default_clip_norm(encoder.width) if self.clip_norm is None else self.clip_norm,
            "width": encoder.width,
            "model_sha256": hashlib.sha256(content).hexdigest(),
        }
        try:
            return Encoder.model_validate(_declared(declaration) | parameters).computed_by(compute, content)
        except ValidationError as error:
            raise self._wrong("encoder", error) from error


def shape_of(sides: Sequence[int], columns: int | None) -> Shape:
    """Return the shape of images, of records with so many columns. Raises WrongOption."""
    height, width, channels = (*sides, 1)[:3]
    try:
        hog.check_shape((height, width, channels), height * width * channels if columns is None else columns)
    except ValueError as error:
        raise WrongOption("image_shape", f"does not fit: {error}") from error
    return height, width, channels


def compute_features(feature_map: FeatureMap, rows: Floats, done: Callable[[int], None]) -> None:
    """Have an encoder compute the features of all rows, which takes its time; it keeps them. done: how many it has."""
    for start in range(0, len(rows), ROWS_IN_A_PART):
        feature_map(rows[start : start + ROWS_IN_A_PART], {})
        done(min(start + ROWS_IN_A_PART, len(rows)))


def _declared(declaration: Declaration) -> dict[str, Any]:
    return {"lower": declaration.lower, "upper": declaration.upper, "columns": declaration.columns}


def _pair(cross: str, names: Sequence[str]) -> tuple[int, int]:
    """Return the places of two columns, written COLUMN:COLUMN. A name may have a colon."""
    parts = cross.split(":")
    splits = [(":".join(parts[:place]), ":".join(parts[place:])) for place in range(1, len(parts))]
    places = [(names.index(one), names.index(other)) for one, other in splits if one in names and other in names]
    if not splits or not all(splits[0]):
        raise WrongValue("cross", "must be COLUMN:COLUMN", value=cross)
    if len(places) != 1:
        unknown = next((each for each in splits[0] if each not in names), cross)
        shown = ", ".join(names[:_MOST_SHOWN]) + (", ..." if len(names) > _MOST_SHOWN else "")
        raise WrongOption("cross", f"{cross}: there is no column {unknown!r}; there are {shown}")
    return places[0]
