"""The choice of a public feature map: declared options, and the map that they make for declared records."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from dpserve.accounting.arrays import Floats, Singles
from dpserve.accounting.messages import Message
from dpserve.training.errors import WrongOption, WrongValue
from dpserve.training.features import hog, rules
from dpserve.training.features.crosses import MOST_BUCKETS, MOST_CELLS
from dpserve.training.features.encoder import OnnxEncoder
from dpserve.training.features.feature_map import default_clip_norm
from dpserve.training.features.hog import Shape
from dpserve.training.features.maps import FEATURE_MAPS, Bins, Encoder, FeatureMap, Fourier, Quantiles
from dpserve.training.features.quantiles import QUANTILE_SHARE
from dpserve.training.features.whole_steps import UNIT_ROWS
from dpserve.training.inputs.columns import usual_norm
from dpserve.training.inputs.records import Declaration
from dpserve.training.options import Options, option, range_text

ROWS_IN_A_PART = 256
_MOST_SHOWN = 12

Name = Literal["auto", "identity", "fourier", "bins", "quantiles", "hog", "hog-fourier"]


Side = Annotated[int, Field(ge=1)]


def _read_sides(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    sides = [side.strip() for side in given.split(",")]
    if len(sides) not in (2, 3) or not all(side.isascii() and side.isdigit() for side in sides):
        raise WrongValue("image_shape", "must be HEIGHT,WIDTH or HEIGHT,WIDTH,CHANNELS, as 28,28", value=given)
    return tuple(map(int, sides))


def _read_ends(given: Any) -> Any:
    return tuple(given.split(":")) if isinstance(given, str) else given


def _limits(kind: type[FeatureMap], name: str) -> dict[str, Any]:
    """Return the range that a feature map gives to a field, as `option` takes it."""
    ends = ("ge", "gt", "le", "lt")
    metadata = kind.model_fields[name].metadata
    return {end: getattr(each, end) for end in ends for each in metadata if getattr(each, end, None) is not None}


ENCODER = "An encoder of features"


class Features(Options):
    """The declared choices of the feature map. Everything here is public, and nothing is read off the records."""

    panel = "Features"

    features: Name = option("auto", "The public feature map; auto follows public rules.")
    image_shape: Annotated[tuple[Side, Side] | tuple[Side, Side, Side] | None, BeforeValidator(_read_sides)] = option(
        None,
        "The height, the width and perhaps the channels, 1 or 3, of images whose pixels are a record's columns.",
        unit="pixels",
        form="HEIGHT,WIDTH or HEIGHT,WIDTH,CHANNELS",
    )
    cross: tuple[str, ...] = option(
        (), "Two columns that bins describe together, as COLUMN:COLUMN.", form="COLUMN:COLUMN"
    )
    cross_buckets: int = option(
        0,
        "The number of buckets that pairs of columns are hashed to, beside bins; 0 for none.",
        ge=0,
        le=MOST_BUCKETS,
    )
    quantile_share: float | None = option(
        None,
        "The share of the price that buys the records' noisy quantiles, where quantiles cut numbers; 0 for even cuts, "
        "which cost nothing.",
        ge=0,
        le=0.5,
        default_text=f"{QUANTILE_SHARE:g}",
    )
    bias: float = option(0.0, "The constant coordinate of phi.", **_limits(FeatureMap, "bias"))
    clip_norm: float | None = option(
        None,
        "The length that scaled rows, or an encoder's features, are scaled down to.",
        default_text="half the square root of their number; of a schema's columns about their usual length",
        **_limits(FeatureMap, "clip_norm"),
    )
    random_features: int = option(
        1000, "The number of Fourier features, an even one.", **_limits(Fourier, "random_features")
    )
    bandwidth: float = option(
        0.5, "The width of the Fourier kernel, in units of the unit ball.", **_limits(Fourier, "bandwidth")
    )
    seed: int = option(0, "The public seed of the random features.", **_limits(Fourier, "seed"))
    encoder: Path | None = option(
        None,
        "FILE.onnx, a public model made without these records, whose first output is the features, in place of another "
        "map. A row's values are its inputs.",
        panel=ENCODER,
    )
    encoder_range: Annotated[tuple[float, float] | None, BeforeValidator(_read_ends)] = option(
        None,
        "The lowest and the highest value that the encoder takes, as LOW:HIGH.",
        form="LOW:HIGH",
        panel=ENCODER,
        default_text="the range that the model's metadata gives for pixels, or values as they are",
    )
    device: Literal["cpu", "cuda"] | None = option(
        None, "Where an encoder computes.", default_text="cpu", panel=ENCODER
    )

    def __init__(self, features: str = "auto", /, **given: Any) -> None:
        """Take the map's name first. Raises WrongOption."""
        super().__init__(**({} if features == "auto" else {"features": features}) | given)

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        """Raise WrongOption for a range whose ends are not in order."""
        if self.encoder_range is not None and not self.encoder_range[0] < self.encoder_range[1]:
            raise WrongValue("encoder_range", "must be a lower value before a higher one", value=self.encoder_range)
        return self

    @classmethod
    def of_rule(cls, name: rules.Features, declared: Declaration | None) -> Self:
        """Return the features of a public rule as an owner would ask for them. declared: the columns, where known."""
        match name:
            case "fourier":
                return cls(
                    "fourier",
                    random_features=rules.RANDOM_FEATURES,
                    bandwidth=rules.BANDWIDTH,
                    clip_norm=UNIT_ROWS,
                )
            case "crosses":
                return cls("bins", cross_buckets=rules.CROSS_BUCKETS)
            case "hog-fourier":
                waves = rules.IMAGES_RANDOM_FEATURES
                return cls("hog-fourier", random_features=waves, bandwidth=rules.IMAGES_BANDWIDTH)
            case "unit":
                return cls("identity", clip_norm=UNIT_ROWS)
            case "quantiles" | "even":
                if declared is None or isinstance(rules.feature_map(name, declared), Quantiles):
                    return cls("quantiles", **({"quantile_share": 0.0} if name == "even" else {}))
        return cls()

    @property
    def content(self) -> bytes | None:
        """The content of the encoder's file; None without one. Raises OSError."""
        return None if self.encoder is None else self.encoder.read_bytes()

    def map_for(self, declaration: Declaration, *, head: bool) -> FeatureMap:
        """Return the map for records of a declaration. head: whether for the kind that is trained by default.

        Raises WrongOption for what does not go together, TrainingError for what does not fit the records.
        """
        if (encoder := self.content) is not None:
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
        field = type(self).model_fields[str(first["loc"][0])]
        return WrongValue(str(first["loc"][0]), f"must be {range_text(field)}", value=first["input"])

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
