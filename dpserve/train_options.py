"""The options of `dpserve train`, each declared once, and what is trained on by them.

The command line and `PrivateClassifier` take the same ones, by the same names.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import create_model

from dpserve.commands import options
from dpserve.commands.command import Options, option
from dpserve.commands.tables import LOCAL, READING, SCHEMA, FileOptions, schema_alone
from dpserve.training.block_choice import BlockChoice
from dpserve.training.errors import SeveralErrors, TrainingError, WrongOption
from dpserve.training.feature_choice import FeatureChoice
from dpserve.training.features import rules
from dpserve.training.features.maps import FEATURE_MAPS
from dpserve.training.features.quantiles import QUANTILE_SHARE
from dpserve.training.fit import BudgetPlan, PlanOptions, Request, kind_asked
from dpserve.training.inputs.blocks import BlockDeclaration
from dpserve.training.inputs.declared import parse_classes
from dpserve.training.inputs.lineage import DIGITS, check_lineage_name
from dpserve.training.inputs.records import Records
from dpserve.training.inputs.schema import Schema
from dpserve.training.kinds.options import OptionField, fields_of
from dpserve.training.kinds.registry import option_fields, release_names, takers
from dpserve.training.sets_choice import SetsChoice

_Part = TypeVar("_Part")

FEATURES = "Features"
PLANNER = "--budget, in place of --release"
ENCODER = "--encoder"
BLOCKS = "Blocks of records, each with a budget"
_KINDS = " or ".join(", ".join(("auto", *FEATURE_MAPS)).rsplit(", ", 1))


def takers_panel(name: str) -> str:
    """Return the panel of an option of kinds of models: which of them take it."""
    kinds = takers(name)
    releases = [kind.name for kind in kinds if kind.asked_by == "release"]
    parts = ["a head"] * any(kind.asked_by is None for kind in kinds)
    parts += [f"--release {_either(releases)}"] * bool(releases)
    return f"For {_either(parts)}"


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


_MORE = {"records_declared": " Also needed with --budget."}


def kind_option(name: str) -> tuple[Any, Any]:
    """Return the type and the declaration of an option of `train`, by what the kinds that take it declare."""
    return declared_option(
        option_fields()[name],
        _MORE.get(name, ""),
        panel=takers_panel(name),
        default_text=_defaults(name),
    )


def declared_option(
    field: OptionField,
    more: str = "",
    *,
    text: str | None = None,
    panel: str | None = None,
    default_text: str | None = None,
) -> tuple[Any, Any]:
    """Return the type and the declaration of an option that is declared below the command line.

    What is given stays in a person's words, which `OptionField.value_of` reads and refuses in words of our own.
    text: the help, where the declared sentence is not enough. more: what follows it.
    """
    declared = field.declared
    form = f" Written {declared.form}." if declared.form else ""
    several = field.is_several and declared.lengths is None
    made = option(
        None,
        text or f"{declared.sentence}{form}{' Repeatable.' if several else ''}{more}",
        panel=panel,
        default_text=default_text,
        complete=_completion(field) if field.words else None,
        metavar="|".join(field.words) or ("NUMBER" if _is_number(field) else None),
        words=list[str] if several else str,
    )
    return Any, made


def _completion(field: OptionField) -> Callable[[str], list[str]]:
    """Return what completes a word of a field whose words are listed."""
    return lambda incomplete: [name for name in field.words if name.startswith(incomplete)]


def _is_number(field: OptionField) -> bool:
    one = get_args(field.type)[0] if field.is_several else field.type
    return field.declared.read is None and one in (int, float)


def _defaults(name: str) -> str | None:
    """Return an option's default in words, by kind where the kinds differ; None where nothing stands for it."""
    texts = {kind.name: default_in_words(kind.fields[name]) for kind in takers(name)}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{kind}: {text or 'needed'}" for kind, text in texts.items())


def default_in_words(field: OptionField) -> str | None:
    """Return a field's default for help; None for one that is needed."""
    if field.is_needed:
        return None
    if field.default is None or field.default == ():
        return field.declared.default_text or "none"
    if isinstance(field.default, tuple):
        return ", ".join(map(str, field.default))
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)


def _of_features(name: str, text: str | None = None, *, panel: str = FEATURES, **more: Any) -> Any:
    """Declare an option of the feature map. text: the help, where the declared sentence is not enough."""
    field = fields_of(FeatureChoice)[name]
    more.setdefault("default_text", None if field.default in (None, ()) else str(field.default))
    return declared_option(field, text=text, panel=panel, **more)[1]


def of_blocks(name: str, text: str | None = None, default_text: str | None = None) -> Any:
    """Declare an option of blocks. text: the help, where the declared sentence is not enough."""
    field = fields_of(BlockChoice)[name]
    return declared_option(field, text=text, panel=BLOCKS, default_text=default_text or default_in_words(field))[1]


class BlockOptions(Options):
    """The blocks that records are in."""

    block: Any = of_blocks("block")
    blocks: Any = of_blocks("blocks")
    block_by: Any = of_blocks("block_by")
    block_name: Any = of_blocks("block_name")
    block_budget: Any = of_blocks("block_budget")
    leave_out_other_blocks: Any = of_blocks("leave_out_other_blocks")
    equal_rows_in_blocks_are_others: Any = of_blocks("equal_rows_in_blocks_are_others")

    def block_choice(self) -> BlockChoice:
        """Return what is declared of blocks. Raises WrongOption."""
        given = {name: getattr(self, name) for name in fields_of(BlockChoice)}
        return BlockChoice.from_given({name: value for name, value in given.items() if value is not None})


class NewBundle(FileOptions):
    """The records to train on, and the bundle to write."""

    data: str = option(
        ...,
        "'digits', or your own: a table (CSV, Parquet, Feather, a spreadsheet; a file, a folder or a URL) or FILE.npz.",
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
        "with --objective convexified. --records-declared then counts people.",
    )
    engine: str = option(
        LOCAL,
        "Where a table's records are read and summed: local, or ray://HOST:PORT, a Ray cluster whose workers can read "
        "its files ('ray' starts one here). For a head and for --release class-sums, weights and dpsgd.",
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

        def part_or_fault(part: Callable[[], _Part]) -> _Part | None:
            try:
                return part()
            except TrainingError as error:
                wrong.append(error)
            return None

        lineage, declared = part_or_fault(self.lineage_name), part_or_fault(self._declared)
        for check in (self._check_out, *checks):
            part_or_fault(check)
        records = None if declared is None else part_or_fault(lambda: self._records(*declared))
        if lineage is None or records is None or wrong:
            raise wrong[0] if len(wrong) == 1 else SeveralErrors(wrong)
        return lineage, records

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
        declared["blocks"] = self._blocks()
        return self.read(self.data, clip=self.clip, unit=self.unit, engine=self.engine, **declared)

    def _blocks(self) -> BlockDeclaration | None:
        """Return the declared blocks; none for models that have none."""
        return None


class CommonOptions(BlockOptions, NewBundle):
    """The options of `dpserve train` that are no kind of model's own: the feature map and the plan."""

    features: Any = _of_features(
        "features",
        f"The public feature map: {_KINDS}. auto: hog with --image-shape, otherwise "
        f"bins of each number for tables of up to {rules.MOST_BINNED} numbers and rows of length 1 for others; "
        "with --clip-norm or --bias, identity.",
    )
    image_shape: Any = _of_features("image_shape")
    cross: Any = _of_features(
        "cross",
        "COLUMN:COLUMN, bins: what two columns say together, by levels and 8ths of a number's range; repeatable. "
        "Yours to declare, not read off the records.",
    )
    cross_buckets: Any = _of_features("cross_buckets")
    quantile_share: Any = _of_features("quantile_share", default_text=f"{QUANTILE_SHARE:g}")
    bias: Any = _of_features("bias")
    clip_norm: Any = _of_features(
        "clip_norm",
        default_text="half the square root of their number; of a schema's columns about their usual length",
    )
    random_features: Any = _of_features("random_features")
    bandwidth: Any = _of_features("bandwidth")
    seed: Any = _of_features("seed")

    release: str | None = option(
        None,
        f"Train a pay-once model, private itself and with unlimited answers: {', '.join(release_names())}.",
        default_text="none, a head, each of whose answers is paid for",
        complete=options.release_names,
    )
    budget: str | None = option(
        None,
        "Let the planner choose the mechanism, or with --release its options: what all answers together may cost, as "
        "--price, with --records-declared.",
        panel=PLANNER,
    )
    queries: Any = declared_option(fields_of(PlanOptions)["queries"], panel=PLANNER, default_text="no end")[1]
    public: str | None = option(
        None, "FILE of public rows like yours, to simulate on.", panel=PLANNER, default_text="none, a rule"
    )

    prediction_sets: Any = declared_option(fields_of(SetsChoice)["prediction_sets"], default_text="auto")[1]

    encoder: Path | None = option(
        None,
        "FILE.onnx, a public model made without these records, whose first output is the features, in place of "
        "--features. A row's values are its inputs.",
        panel=ENCODER,
    )
    encoder_range: Any = _of_features(
        "encoder_range",
        "LOW:HIGH, what --bounds are scaled to for the encoder, as 0:1.",
        panel=ENCODER,
        default_text="the range that the model's metadata gives for pixels, or values as they are",
    )
    device: Any = _of_features("device", "Where it computes: cpu or cuda.", panel=ENCODER, default_text="cpu")

    def _blocks(self) -> BlockDeclaration | None:
        return self.block_choice().declaration

    def of_kinds(self) -> dict[str, Any]:
        """Return the options that one kind of model or another takes, as far as they were given."""
        return {name: value for name in sorted(option_fields()) if (value := getattr(self, name)) not in (None, [])}

    def encoder_content(self) -> bytes | None:
        """Return the encoder's file, or None. Raises OSError."""
        return None if self.encoder is None else self.encoder.read_bytes()

    def feature_choice(self) -> FeatureChoice:
        """Return what is declared of the feature map. Raises WrongOption."""
        given = {name: getattr(self, name) for name in fields_of(FeatureChoice)}
        return FeatureChoice.from_given({name: value for name, value in given.items() if value not in (None, [])})

    def request(self, lineage: str, public: Callable[[], Records] | None) -> Request:
        """Return what is asked for. public: reads the rows of --public. Raises WrongOption, OSError."""
        if self.budget is None and (self.queries is not None or self.public is not None):
            raise WrongOption("public" if self.queries is None else "queries", "goes with --budget")
        options = self.of_kinds()
        plan = None if self.budget is None else BudgetPlan(budget=self.budget, queries=self.queries, public=public)
        return Request(
            name=self.model_name,
            lineage=lineage,
            kind=kind_asked(self.release),
            options=options,
            features=self.feature_choice(),
            encoder=self.encoder_content(),
            plan=plan,
            sets=SetsChoice.from_given(
                {} if self.prediction_sets is None else {"prediction_sets": self.prediction_sets}
            ),
            blocks=self.block_choice(),
            overlapping_lineage_is_accepted=self.overlapping_lineage_is_accepted,
        )


_kind_options: dict[str, Any] = {name: kind_option(name) for name in option_fields()}
_OfKinds = create_model("_OfKinds", __base__=CommonOptions, **_kind_options)


class TrainOptions(_OfKinds):
    """The options of `dpserve train`: the common ones, and those of every kind of model."""
