"""The choice of a public feature map: one value of several, and the map that it makes for declared records."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from dpserve.accounting.arrays import Floats, Singles
from dpserve.accounting.faults_in_words import in_words
from dpserve.training.errors import WrongOption, WrongValue
from dpserve.training.features import hog, rules
from dpserve.training.features.crosses import MOST_BUCKETS, MOST_CELLS
from dpserve.training.features.encoder import OnnxEncoder
from dpserve.training.features.feature_map import default_clip_norm
from dpserve.training.features.hog import Shape
from dpserve.training.features.maps import FEATURE_MAPS, Encoder, FeatureMap, Fourier, Quantiles
from dpserve.training.features.quantiles import QUANTILE_SHARE
from dpserve.training.features.whole_steps import UNIT_ROWS
from dpserve.training.inputs.columns import usual_norm
from dpserve.training.inputs.records import Declaration
from dpserve.training.options import OneOf, option, range_of, range_text

ROWS_AT_ONCE = 256
_MOST_SHOWN = 12

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


Sides = Annotated[tuple[Side, Side] | tuple[Side, Side, Side], BeforeValidator(_read_sides)]
"""An image's height, width and perhaps channels."""


def _sides(default: Any) -> Any:
    return option(
        default,
        "The height, the width and perhaps the channels, 1 or 3, of images: a record's columns are its pixels row by "
        "row, each with its channels.",
        unit="pixels",
        form="HEIGHT,WIDTH or HEIGHT,WIDTH,CHANNELS",
    )


_BIAS = option(0.0, "The constant coordinate of phi.", **range_of(FeatureMap.model_fields["bias"]))
_CLIP_NORM = option(
    None,
    "The length that scaled rows, or an encoder's features, are scaled down to.",
    default_text="half the square root of their number; of a schema's columns about their usual length",
    **range_of(FeatureMap.model_fields["clip_norm"]),
)
_RANDOM_FEATURES = option(
    1000, "The number of Fourier features, an even one.", **range_of(Fourier.model_fields["random_features"])
)
_BANDWIDTH = option(
    0.5, "The width of the Fourier kernel, in units of the unit ball.", **range_of(Fourier.model_fields["bandwidth"])
)
_SEED = option(0, "The public seed of the random features.", **range_of(Fourier.model_fields["seed"]))
ENCODER = "An encoder of features"


class Features(OneOf):
    """The choice of the feature map. Everything here is public, and nothing is read off the records.

    goes_with_planner: whether a planner that chooses the kind of model takes the map, which no rule of its own has.
    """

    panel = "Features"
    choice = "features"
    sentence = "The public feature map; auto follows public rules."
    goes_with_planner: ClassVar[bool] = False

    @property
    def share(self) -> float:
        """The share of the price that buys what the map knows of the records; 0 for a map that is public."""
        return 0.0

    @property
    def content(self) -> bytes | None:
        """The content of an encoder's file; None without one. Raises OSError."""
        return None

    def map_for(self, declaration: Declaration, *, head: bool) -> FeatureMap:
        """Return the map for records of a declaration. head: whether for a head, each of whose answers gets noise.

        Raises WrongOption and TrainingError for what does not fit the records.
        """
        kind = FEATURE_MAPS[self.word]
        fields = self._fields(declaration) | ({"centred": head} if "centred" in kind.model_fields else {})
        try:
            return kind.model_validate(fields)
        except ValidationError as error:
            raise self._wrong(error) from error

    def _fields(self, declaration: Declaration) -> dict[str, Any]:
        """Return the fields of the map: the declaration's, and the options of the same names."""
        names = FEATURE_MAPS[self.word].model_fields.keys() & type(self).model_fields.keys()
        fields = {name: getattr(self, name) for name in names} | _declared(declaration)
        if "clip_norm" in names and fields["clip_norm"] is None:
            columns = declaration.columns
            fields["clip_norm"] = usual_norm(columns) if columns else default_clip_norm(declaration.features)
        if "image_shape" in names:
            fields["image_shape"] = shape_of(fields["image_shape"], declaration.features)
        return fields

    def _wrong(self, error: ValidationError) -> WrongOption:
        first = error.errors()[0]
        if not first["loc"]:  # the map as a whole, and not an option of it
            return WrongOption("features", f"{self.word}: {in_words(first)}")
        name = str(first["loc"][0])
        if name == "random_features":
            return WrongValue(name, f"must be even for {self.word}", value=first["input"])
        return WrongValue(name, f"must be {range_text(type(self).model_fields[name])}", value=first["input"])


class AutoFeatures(Features):
    """Features by public rules: histograms of images' gradients, bins of few numbers, otherwise scaled rows."""

    word = "auto"
    image_shape: Sides | None = _sides(None)

    def map_for(self, declaration: Declaration, *, head: bool) -> FeatureMap:
        """Return the map of the rows' modality."""
        shape = None if self.image_shape is None else shape_of(self.image_shape, declaration.features)
        return rules.feature_map("modality", declaration, shape, head=head)


class IdentityFeatures(Features):
    """The scaled row itself."""

    word = "identity"
    bias: float = _BIAS
    clip_norm: float | None = _CLIP_NORM


class FourierFeatures(Features):
    """Random Fourier features of the scaled row."""

    word = "fourier"
    random_features: int = _RANDOM_FEATURES
    bandwidth: float = _BANDWIDTH
    seed: int = _SEED
    bias: float = _BIAS
    clip_norm: float | None = _CLIP_NORM


class BinFeatures(Features):
    """Bins of each number, and crosses: what two columns say together."""

    word = "bins"
    goes_with_planner = True
    cross: tuple[str, ...] = option(
        (), "Two columns that bins describe together, as COLUMN:COLUMN.", form="COLUMN:COLUMN"
    )
    cross_buckets: int = option(
        0,
        "The number of buckets that pairs of columns are hashed to, beside bins; 0 for none.",
        ge=0,
        le=MOST_BUCKETS,
    )
    bias: float = _BIAS

    def _fields(self, declaration: Declaration) -> dict[str, Any]:
        fields = super()._fields(declaration)
        if self._crossed is not None:
            names = [column.name for column in declaration.columns] or [*declaration.feature_names]
            fields |= {"crosses": tuple(_pair(cross, names) for cross in self.cross), "cross_cells": MOST_CELLS}
        return fields

    def _wrong(self, error: ValidationError) -> WrongOption:
        wrong = super()._wrong(error)
        return wrong if self._crossed is None else WrongOption(self._crossed, f"does not fit: {wrong.reason}")

    @property
    def _crossed(self) -> str | None:
        """The option by which columns are crossed; None where they are not."""
        return "cross" if self.cross else "cross_buckets" if self.cross_buckets else None


class QuantileFeatures(Features):
    """Numbers cut at the records' noisy quantiles, or evenly."""

    word = "quantiles"
    quantile_share: float = option(
        QUANTILE_SHARE,
        "The share of the price that buys the records' noisy quantiles, where quantiles cut numbers; 0 for even cuts, "
        "which cost nothing.",
        ge=0,
        le=0.5,
    )
    bias: float = _BIAS

    @property
    def share(self) -> float:
        """The share of the price that buys the quantiles."""
        return self.quantile_share

    def map_for(self, declaration: Declaration, *, head: bool) -> FeatureMap:
        """Return the map with even cuts, until quantiles are bought. Raises TrainingError where none can be."""
        made = super().map_for(declaration, head=head)
        if self.quantile_share and isinstance(made, Quantiles):
            made.check_ranges(declaration.feature_names)
        return made


class HogFeatures(Features):
    """Histograms of images' gradients."""

    word = "hog"
    image_shape: Sides = _sides(...)
    bias: float = _BIAS


class HogFourierFeatures(Features):
    """Histograms of images' gradients, coarse pixels, and random Fourier features of the histograms."""

    word = "hog-fourier"
    goes_with_planner = True
    random_features: int = _RANDOM_FEATURES
    bandwidth: float = _BANDWIDTH
    seed: int = _SEED
    bias: float = _BIAS
    image_shape: Sides = _sides(...)


class EncoderFeatures(Features):
    """The output of a public model, in an ONNX file."""

    word = "encoder"
    goes_with_planner = True
    encoder: Path = option(
        ...,
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
    device: Literal["cpu", "cuda"] = option("cpu", "Where an encoder computes.", panel=ENCODER)
    bias: float = _BIAS
    clip_norm: float | None = _CLIP_NORM

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        """Raise WrongOption for a range whose ends are not in order."""
        if self.encoder_range is not None and not self.encoder_range[0] < self.encoder_range[1]:
            raise WrongValue("encoder_range", "must be a lower value before a higher one", value=self.encoder_range)
        return self

    @property
    def content(self) -> bytes:
        """The content of the encoder's file. Raises OSError."""
        return self.encoder.read_bytes()

    def map_for(self, declaration: Declaration, *, head: bool) -> Encoder:  # noqa: ARG002 - as of any features
        """Return the feature map of the file. Each row is computed apart from all others, and once: it is kept."""
        content = self.content
        encoder, scaled = OnnxEncoder(content, declaration.features, self.device), self.encoder_range

        kept: dict[bytes, Singles] = {}

        def compute(rows: Floats) -> Singles:
            digests = [hashlib.blake2b(row.tobytes(), digest_size=32).digest() for row in rows]
            new = [place for place, digest in enumerate(digests) if digest not in kept]
            for place, features in zip(new, encoder.apart(rows[new]), strict=True):
                kept[digests[place]] = features
            return np.array([kept[digest] for digest in digests])

        fields = {
            "bias": self.bias,
            "input_range": scaled if scaled is not None else encoder.input_range,
            "clip_norm": default_clip_norm(encoder.width) if self.clip_norm is None else self.clip_norm,
            "width": encoder.width,
            "model_sha256": hashlib.sha256(content).hexdigest(),
        }
        try:
            return Encoder.model_validate(_declared(declaration) | fields).computed_by(compute, content)
        except ValidationError as error:
            raise self._wrong(error) from error


def features_of_rule(
    rule: rules.FeatureRule, declared: Declaration | None, sides: Sequence[int] | None = None
) -> Features:
    """Return the features of a public rule as an owner would ask for them.

    declared: the columns, where known. sides: of rows that are images.
    """
    images: dict[str, Any] = {} if sides is None else {"image_shape": sides}
    match rule:
        case "hog-fourier":
            waves, bandwidth = rules.IMAGES_RANDOM_FEATURES, rules.IMAGES_BANDWIDTH
            return HogFourierFeatures(random_features=waves, bandwidth=bandwidth, **images)
        case "fourier":
            waves, bandwidth = rules.RANDOM_FEATURES, rules.BANDWIDTH
            return FourierFeatures(random_features=waves, bandwidth=bandwidth, clip_norm=UNIT_ROWS)
        case "crosses":
            return BinFeatures(cross_buckets=rules.CROSS_BUCKETS)
        case "unit":
            return IdentityFeatures(clip_norm=UNIT_ROWS)
        case "quantiles" | "even":
            if declared is None or isinstance(rules.feature_map(rule, declared), Quantiles):
                return QuantileFeatures(**({"quantile_share": 0.0} if rule == "even" else {}))
    return AutoFeatures(**images)


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
    for start in range(0, len(rows), ROWS_AT_ONCE):
        feature_map(rows[start : start + ROWS_AT_ONCE], {})
        done(min(start + ROWS_AT_ONCE, len(rows)))


def _declared(declaration: Declaration) -> dict[str, Any]:
    return {"lower": declaration.lower, "upper": declaration.upper, "columns": declaration.columns}


def _pair(cross: str, names: Sequence[str]) -> tuple[int, int]:
    """Return the places of two columns, written COLUMN:COLUMN. A name may have a colon."""
    words = cross.split(":")
    splits = [(":".join(words[:place]), ":".join(words[place:])) for place in range(1, len(words))]
    places = [(names.index(left), names.index(right)) for left, right in splits if left in names and right in names]
    if not splits or not all(splits[0]):
        raise WrongValue("cross", "must be COLUMN:COLUMN", value=cross)
    if len(places) != 1:
        unknown = next((name for name in splits[0] if name not in names), cross)
        shown = ", ".join(names[:_MOST_SHOWN]) + (", ..." if len(names) > _MOST_SHOWN else "")
        raise WrongOption("cross", f"{cross}: there is no column {unknown!r}; there are {shown}")
    return places[0]
