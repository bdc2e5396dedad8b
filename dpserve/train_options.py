"""The options of `dpserve train`, each declared once, and what is trained on by them.

The command line and `PrivateClassifier` take the same ones, by the same names.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import typer
from pydantic import ValidationError

from accounting.arrays import Floats, Singles
from dpserve.commands import options
from dpserve.commands.command import option
from dpserve.commands.tables import IMAGE_SHAPE, LOCAL, READING, SCHEMA, FileOptions, image_shape, schema_alone
from training.bundles.sealing import one_line
from training.errors import TrainingError, WrongOption
from training.features import rules
from training.features.encoder import OnnxEncoder
from training.features.hog import Shape
from training.features.maps import FEATURE_MAPS, Bins, Encoder, FeatureMap, default_clip_norm
from training.inputs import preprocessing
from training.inputs.columns import usual_norm
from training.inputs.declared import parse_classes
from training.inputs.lineage import DIGITS, check_lineage_name
from training.inputs.records import Declaration, Records
from training.inputs.schema import Schema
from training.inputs.word_vectors import read_word_vectors
from training.kinds.head.recipe import DEFAULT_TOLERANCE
from training.kinds.registry import option_fields, release_names

_Part = TypeVar("_Part")

FEATURES = "Features"
SOLVER = "The solver"
CONVEXIFIED = "--objective convexified"
PLANNER = "--budget, in place of --release"
ENCODER = "--encoder"
CHOICE = "--choose, in place of an option"
DPSGD = "--release dpsgd"
TEACHERS = "--teachers, in place of --release"
_KINDS = " or ".join(", ".join(("auto", *FEATURE_MAPS)).rsplit(", ", 1))
_MOST_SHOWN = 12


class NewBundle(FileOptions):
    """The records to train on, and the bundle to write."""

    data: str = option(
        ..., "'digits', or your own: a table (CSV, Parquet, Feather; a file, a folder or a URL) or FILE.npz."
    )
    schema_file: Path | None = SCHEMA()
    out: Path = option(..., "The bundle: a new folder.")
    lineage: str | None = option(
        None,
        "Your name for the lineage of the records: all models of records that overlap share one, and its budget. "
        "Needed with your own data.",
        default_text="digits: 'digits'",
        complete=options.lineage_names,
    )
    classes: str | None = option(
        None, "The class names, separated by commas, or VALUE=NAME of each; for your own data."
    )
    bounds: list[str] | None = option(
        None, "LOW:HIGH for every feature, NAME=LOW:HIGH for one; public, not read off the records."
    )
    unit: str | None = option(
        None,
        "Of a table: the column that names whose each record is. All records of one are then protected together. Not "
        "with --release objective, --objective convexified, nor with --budget.",
    )
    engine: str = option(
        LOCAL,
        "Where a table's records are read and summed: local, or ray://HOST:PORT, a Ray cluster whose workers can read "
        "its files ('ray' starts one here). For a head and for --release class-sums, weights, objective and dpsgd.",
    )
    overlapping_lineage_is_accepted: bool = option(
        False, "Train although records are in another lineage: they then have a second budget."
    )
    name: str | None = option(None, "The model's public name.", default_text="the bundle's folder name")
    missing: list[str] | None = option(
        None,
        "Of a table: COLUMN=VALUE, a public value that a missing one counts as, or COLUMN=level, a level of its own; "
        "without COLUMN= for every column. Repeatable.",
        panel=READING,
    )
    clip: bool = option(False, "Clip values beyond the bounds instead of refusing them.", panel=READING)

    @property
    def model_name(self) -> str:
        """The model's public name."""
        return self.name or self.out.resolve().name

    def read_all(self, *checks: Callable[[], object]) -> tuple[str, Records]:
        """Return the lineage's name, and the records. checks: what else may raise TrainingError.

        Raises TrainingError for all that is missing or wrong at once: in the options, in the schema, in the records.
        """
        wrong: list[TrainingError] = []

        def told(part: Callable[[], _Part]) -> _Part | None:
            try:
                return part()
            except TrainingError as error:
                wrong.append(error)
            return None

        lineage, declared = told(self.lineage_name), told(self._declared)
        for check in (self._check_out, *checks):
            told(check)
        records = None if declared is None else told(lambda: self._records(*declared))
        if lineage is None or records is None or wrong:
            raise wrong[0] if len(wrong) == 1 else TrainingError("\n".join(map(str, wrong)))
        for sign in preprocessing.signs(self.numbers(records)) if isinstance(records, Records) else ():
            self.warn(f"{sign}. {preprocessing.ADVICE}")
        return lineage, records

    def numbers(self, records: Records) -> preprocessing.Numbers:
        """Return the numbers that may show what was fitted on the records before they came."""
        return preprocessing.numbers_of(records)

    def warn(self, what: str) -> None:
        """Tell the owner, and nobody else, what no budget covers."""
        typer.echo(f"Warning: {what}", err=True)

    def declared_classes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the declared names of the classes, and what each is called in the records; two empty ones for none."""
        return parse_classes(self.classes) if self.classes else ((), ())

    def declared_schema(self) -> Schema | None:
        """Return the schema, if there is one. Raises WrongOption beside what it takes the place of."""
        if self.data == "digits" and self.schema_file is not None:
            raise WrongOption("schema", "describes a table of your own, not digits")
        return schema_alone(self.schema_file, classes=self.classes, bounds=self.bounds)

    def lineage_name(self) -> str:
        """Return the lineage's name. Raises TrainingError where it is needed and not given."""
        if self.lineage is not None:
            return check_lineage_name(self.lineage)
        if self.data == DIGITS:
            return DIGITS
        raise TrainingError(
            "name the lineage of these records with --lineage NAME: all models of records that overlap share one name, "
            "and with it one budget"
        )

    def _declared(self) -> tuple[tuple[str, ...], tuple[str, ...], Schema | None]:
        names, values = self.declared_classes()
        schema = self.declared_schema()
        if self.data != "digits" and not names and schema is None:
            raise TrainingError(
                "declare the class names with --classes a,b,..., or the table with --schema FILE: a list read off the "
                "private records would say which classes occur in them"
            )
        return names, values, schema

    def _check_out(self) -> None:
        if self.out.exists():
            raise TrainingError(
                f"{self.out} exists already; a bundle is never overwritten, so name a new one with --out"
            )

    def _records(self, names: tuple[str, ...], values: tuple[str, ...], schema: Schema | None) -> Records:
        declared: dict[str, Any] = {"classes": names, "values": values, "bounds": self.bounds or (), "schema": schema}
        declared["missing"] = self.missing or ()
        return self.read(self.data, "--data", clip=self.clip, unit=self.unit, engine=self.engine, **declared)


class TrainOptions(NewBundle):
    """The options of `dpserve train`: the feature map, the kind of model and what it is made by."""

    features: str = option(
        "auto",
        f"The public feature map: {_KINDS}. auto: hog with --image-shape, otherwise "
        f"bins of each number for tables of up to {rules.MOST_BINNED} numbers and rows of length 1 for others; "
        "with --clip-norm or --bias, identity.",
        panel=FEATURES,
        complete=options.feature_names,
    )
    image_shape: str | None = IMAGE_SHAPE(panel=FEATURES)
    word_vectors: Path | None = option(
        None,
        "FILE of public word vectors, made without these records, for the free texts of --schema: text as word2vec, "
        "GloVe and fastText write it, .gz or not, or .npz.",
        panel=FEATURES,
    )
    cross: list[str] | None = option(
        None,
        "COLUMN:COLUMN, bins: what two columns say together, by levels and 8ths of a number's range; repeatable. "
        "Yours to declare, not read off the records.",
        panel=FEATURES,
    )
    bias: float = option(0.0, "The constant coordinate of phi, from 0 to below 1.", panel=FEATURES)
    clip_norm: float | None = option(
        None,
        "Scaled rows, or an encoder's features, longer than this are scaled down to it.",
        panel=FEATURES,
        default_text="half the square root of their number; of a schema's columns about their usual length",
    )
    random_features: int = option(1000, "fourier, relu: how many.", panel=FEATURES)
    bandwidth: float = option(0.5, "fourier: the kernel's width, in units of the unit ball.", panel=FEATURES)
    seed: int = option(0, "Of the random features: public.", panel=FEATURES, ge=0)

    lam: float | None = option(None, "Lambda: a larger one means less noise and a simpler model.")
    objective: str | None = option(
        None,
        "What a head, or that of --release weights, is trained on: sum, of the losses, or convexified, n_min times "
        "their log-mean-exp, which large losses count more in.",
        default_text="sum",
        panel=CONVEXIFIED,
        complete=options.objective_names,
    )
    alpha: float | None = option(
        None, "How much more large losses count: 0.01 costs little, 1 a great deal.", panel=CONVEXIFIED
    )
    least_records: int | None = option(
        None,
        "n_min, a public number that there are no fewer records than: with fewer nothing is trained. Not "
        "--records-declared, which may be too high.",
        panel=CONVEXIFIED,
        ge=2,
    )
    release: str | None = option(
        None,
        "Train a pay-once model, private itself and with unlimited answers: weights, class-sums, objective or dpsgd.",
        default_text="none, a head, each of whose answers is paid for",
        complete=options.release_names,
    )
    price: str | None = option(
        None, "--release: what all answers together cost: rho:R, noise-multiplier:M or epsilon:E@DELTA."
    )
    tolerance: float | None = option(
        None,
        "tau: the gradient norm that is reached, or training fails.",
        default_text=f"{DEFAULT_TOLERANCE:g}",
        panel=SOLVER,
    )
    tier: list[str] | None = option(
        None,
        "NAME=PRICE of one precision, from the coarsest to the finest, in place of --price.",
        panel="--release weights",
    )
    records_declared: int | None = option(
        None,
        "About how many records there are, as a number that may be public: not counted.",
        panel=DPSGD,
        ge=1,
    )
    hidden: list[int] | None = option(
        None, "A hidden layer's width; repeatable.", default_text="none, a linear head", panel=DPSGD, ge_each=0
    )
    activation: str | None = option(None, "tanh or relu.", default_text="tanh", panel=DPSGD)
    steps: int | None = option(None, "How many steps.", default_text="by rule", panel=DPSGD, ge=1)
    sampling_rate: float | None = option(
        None, "The probability with which a record joins a step.", default_text="by rule", panel=DPSGD
    )
    sampling: str | None = option(
        None, "How records join a step. Only 'poisson', each by itself, is covered.", panel=DPSGD
    )
    step_noise: float | None = option(
        None, "The noise multiplier of a step.", default_text="the least that costs the price", panel=DPSGD
    )
    gradient_clip: float | None = option(
        None, "The largest norm of a record's gradient.", default_text="by rule", panel=DPSGD
    )
    learning_rate: float | None = option(
        None, "The learning rate.", default_text="by rule from public numbers", panel=DPSGD
    )
    teachers: int | None = option(
        None,
        "Train so many teachers, each on a part of the records; each of their answers is paid for. They also take "
        "--hidden (default: none), --activation, --steps (400) and --learning-rate (0.003).",
        panel=TEACHERS,
        ge=2,
    )
    rule: str | None = option(
        None, "What a teacher says of a row: votes or probabilities.", default_text="votes", panel=TEACHERS
    )

    budget: str | None = option(
        None,
        "Let the planner choose the mechanism, or with --release its options: what all answers together may cost, as "
        "--price, with --records-declared.",
        panel=PLANNER,
    )
    queries: int | None = option(None, "How many answers it is for.", panel=PLANNER, default_text="no end", ge=1)
    public: str | None = option(
        None, "FILE of public rows like yours, to simulate on.", panel=PLANNER, default_text="none, a rule"
    )

    choose: str | None = option(
        None,
        "OPTION=V1,V2,...: values to try on a sixth of the records, kept back by a keyed hash. For a head lam, with "
        "--records-declared and --choose-price. For --release weights and objective lam, for dpsgd hidden, activation, "
        "steps, learning-rate, sampling-rate or gradient-clip: up to 16 models share --price, and the best one stays.",
        panel=CHOICE,
    )
    choose_price: str | None = option(
        None,
        "Among heads, or of the head that --release weights starts from: what the choice costs the lineage, beside the "
        "model: rho:R, noise-multiplier:M or epsilon:E@DELTA.",
        panel=CHOICE,
    )
    choose_budget: str | None = option(
        None, "E@DELTA: the lineage's budget, where it has no account yet.", panel=CHOICE
    )
    choose_ledger: str | None = option(
        None, options.LEDGER, panel=CHOICE, variable="DPSERVE_LEDGER", default_text=options.LEDGER_DEFAULT
    )
    choose_ledger_replicas: int | None = options.REPLICAS(panel=CHOICE, variable="DPSERVE_LEDGER_REPLICAS")

    encoder: Path | None = option(
        None,
        "FILE.onnx, a public model made without these records, whose first output is the features, in place of "
        "--features. A row's values are its inputs.",
        panel=ENCODER,
    )
    encoder_range: str | None = option(
        None,
        "LOW:HIGH, what --bounds are scaled to for the encoder, as 0:1.",
        panel=ENCODER,
        default_text="the range that the model's metadata gives for pixels, or values as they are",
    )
    device: str | None = option(None, "Where it computes: cpu or cuda.", panel=ENCODER, default_text="cpu")

    def _declared(self) -> tuple[tuple[str, ...], tuple[str, ...], Schema | None]:
        names, values, schema = super()._declared()
        if self.word_vectors is not None:
            if schema is None or self.engine != LOCAL:
                raise WrongOption("word_vectors", "goes with --schema, and not with --engine")
            schema = schema.with_word_vectors(read_word_vectors(self.word_vectors))
        return names, values, schema

    @property
    def kind(self) -> str | None:
        """Which of `training.kinds.registry` is trained; None for a head. Raises WrongOption for an unknown one."""
        names = release_names()
        if self.release is not None and self.release not in names:
            advice = "; teachers are asked for by --teachers N" if self.release == "teachers" else ""
            raise WrongOption("release", f"must be one of {', '.join(names)}, not {self.release!r}{advice}")
        if self.teachers is not None and self.release is not None:
            raise WrongOption("teachers", "takes the place of --release: leave that out")
        return self.release if self.teachers is None else "teachers"

    def of_kinds(self) -> dict[str, Any]:
        """Return the options that one kind of model or another takes, as far as they were given."""
        return {name: value for name in sorted(option_fields()) if (value := getattr(self, name)) not in (None, [])}

    def encoder_content(self) -> bytes | None:
        """Return the encoder's file, or None. Raises WrongOption for options of one that is not named, OSError."""
        if self.encoder is not None:
            return self.encoder.read_bytes()
        for name in ("encoder_range", "device"):
            if getattr(self, name) is not None:
                raise WrongOption(name, "goes with --encoder")
        return None

    def feature_map(self, declaration: Declaration, encoder: bytes | None = None) -> FeatureMap:
        """Return the map. Raises TrainingError for a kind or a parameter that is unknown, or that does not fit.

        encoder: the content of an ONNX file whose first output is the features, in place of another map.
        """
        if encoder is not None:
            return self._encoder(declaration, encoder)
        shape = None if self.image_shape is None else image_shape(self.image_shape, declaration.features)
        if self.features == "auto" and self.clip_norm is None and not self.bias:
            chosen = rules.feature_map("identity", declaration, shape, head=self.kind is None)
            return self._crossed(chosen, declaration)
        kind = "identity" if self.features == "auto" else self.features
        if kind not in FEATURE_MAPS:
            raise TrainingError(f"--features takes {_KINDS}, not {kind!r}")
        if (shape is None) != ("image_shape" not in FEATURE_MAPS[kind].model_fields):
            raise TrainingError(
                "--features hog and --image-shape HEIGHT,WIDTH or HEIGHT,WIDTH,CHANNELS go together"
                + ("; --clip-norm and --bias go with --features" if self.features == "auto" else "")
            )
        try:
            made = FEATURE_MAPS[kind].model_validate(self._parameters(FEATURE_MAPS[kind], declaration, shape))
            return self._crossed(made, declaration)
        except ValidationError as error:
            first = error.errors()[0]
            if not first["loc"]:  # the map as a whole, and not an option of it
                raise TrainingError(f"--features {kind}: {first['msg'].removeprefix('Value error, ')}") from error
            flag = str(first["loc"][0]).replace("_", "-")
            raise TrainingError(f"--{flag}: {first['msg'].lower()}, not {first['input']!r}") from error

    def _parameters(self, kind: type[FeatureMap], declaration: Declaration, shape: Shape | None) -> dict[str, Any]:
        """Return what a map of this kind takes: the declaration's, and the options of the same names."""
        given = self.model_dump(include=set(kind.model_fields)) | _declared(declaration)
        if shape is not None:
            # As the rules do for heads.
            given |= {"image_shape": shape, "centred": self.kind is None}
        if not kind.model_fields["clip_norm"].is_required():
            del given["clip_norm"]
        elif self.clip_norm is None:
            columns = declaration.columns
            given["clip_norm"] = usual_norm(columns) if columns else default_clip_norm(declaration.features)
        return given

    def _crossed(self, feature_map: FeatureMap, declaration: Declaration) -> FeatureMap:
        """Return a map with the crosses that were declared. Raises TrainingError for what cannot be."""
        if not self.cross:
            return feature_map
        if not isinstance(feature_map, Bins):
            raise TrainingError("--cross goes with --features bins, and these are not")
        names = [column.name for column in declaration.columns] or [*declaration.feature_names]
        pairs = [_pair(cross, names) for cross in self.cross]
        try:
            return Bins.model_validate(feature_map.model_dump() | {"crosses": tuple(pairs)})
        except ValidationError as error:
            raise TrainingError(f"--cross: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error

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

        try:
            parameters = {
                "bias": self.bias,
                "input_range": tuple(map(float, scaled.split(":"))) if scaled is not None else encoder.input_range,
                "clip_norm": default_clip_norm(encoder.width) if self.clip_norm is None else self.clip_norm,
                "width": encoder.width,
                "model_sha256": hashlib.sha256(content).hexdigest(),
            }
            return Encoder.model_validate(_declared(declaration) | parameters).computed_by(compute, content)
        except ValueError as error:
            raise TrainingError(f"--encoder-range or --clip-norm: {one_line(error)}") from error


def _declared(declaration: Declaration) -> dict[str, Any]:
    return {"lower": declaration.lower, "upper": declaration.upper, "columns": declaration.columns}


def _pair(cross: str, names: Sequence[str]) -> tuple[int, int]:
    """Return the places of two columns, written COLUMN:COLUMN. A name may have a colon."""
    parts = cross.split(":")
    splits = [(":".join(parts[:at]), ":".join(parts[at:])) for at in range(1, len(parts))]
    found = [(names.index(one), names.index(other)) for one, other in splits if one in names and other in names]
    if not splits or not all(splits[0]):
        raise TrainingError(f"--cross takes COLUMN:COLUMN, not {cross!r}")
    if len(found) != 1:
        unknown = next((each for each in splits[0] if each not in names), cross)
        shown = ", ".join(names[:_MOST_SHOWN]) + (", ..." if len(names) > _MOST_SHOWN else "")
        raise TrainingError(f"--cross {cross}: there is no column {unknown!r}; there are {shown}")
    return found[0]
