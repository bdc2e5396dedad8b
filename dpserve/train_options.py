"""The options of `dpserve train` that all kinds of models have, and what is trained on by them.

A kind's own options are its class of options; the map of features and blocks have theirs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from dpserve.commands import options
from dpserve.commands.tables import LOCAL, SCHEMA, FileOptions, schema_alone
from dpserve.prices import LINEAGE_DELTA, LINEAGE_EPSILON, Price, budget_text
from dpserve.training.block_choice import Blocks
from dpserve.training.errors import DataError, SeveralErrors, TrainingError, WrongOption, WrongValue
from dpserve.training.feature_choice import Features
from dpserve.training.fit import Request
from dpserve.training.inputs.blocks import BlockDeclaration
from dpserve.training.inputs.columns import LevelsColumn
from dpserve.training.inputs.declared import parse_classes
from dpserve.training.inputs.described import ColumnType, Date, Levels, Number, numbers_beside
from dpserve.training.inputs.lineage import DIGITS
from dpserve.training.inputs.records import Records
from dpserve.training.inputs.schema import TableSchema, parse_schema
from dpserve.training.options import Options, option, option_of
from dpserve.training.planning.planner import Planner

_Part = TypeVar("_Part")

WITHOUT_SCHEMA = "A table without a schema"

UNNAMED = "unnamed"
"""The lineage of a request that names none: it is refused before anything is trained."""


class TrainPrice(Price):
    """The price of a model that is paid for once, and the declared number of records."""

    n: int | None = option_of(Request, "n")


class PlannerOptions(Options):
    """The options of the planner, beside the price."""

    panel = "The planner"

    queries: int | None = option_of(Planner, "queries")
    public: str | None = option(None, "FILE of public rows like yours, to simulate on.", default_text="none, a rule")


class TrainedRecords(FileOptions):
    """The records to train on."""

    data: str = option(
        ...,
        "'digits', or your own: a table (CSV, Parquet, Feather, a spreadsheet; a file, a folder or a URL) or FILE.npz.",
        panel="",
    )
    schema_file: Path | None = SCHEMA(panel="")
    unit: str | None = option(
        None,
        "Of a table: the column that names whose each record is. All records of one are then protected together. Not "
        "with --objective convexified. --n then counts people.",
        panel="Who is protected",
    )
    classes: str | None = option(
        None, "The class names, separated by commas, or VALUE=NAME of each.", panel=WITHOUT_SCHEMA
    )
    bounds: tuple[str, ...] = option(
        (),
        "LOW:HIGH for every number, COLUMN=LOW:HIGH for one; public, not read off the records.",
        panel=WITHOUT_SCHEMA,
    )
    levels: tuple[str, ...] = option(
        (), "COLUMN=A,B: a column of levels, which are public.", form="COLUMN=A,B", panel=WITHOUT_SCHEMA
    )
    dates: tuple[str, ...] = option(
        (),
        "COLUMN=2020-01-01:2030-12-31: a column of dates between two public ones.",
        form="COLUMN=EARLIEST:LATEST",
        panel=WITHOUT_SCHEMA,
    )
    missing: tuple[str, ...] = option(
        (),
        "Of a table: COLUMN=VALUE, a public value that a missing one counts as, or COLUMN=level, a level of its own; "
        "without COLUMN= for every column. Repeatable.",
    )
    clip: bool = option(False, "Clip values beyond the bounds instead of refusing them.")
    engine: str = option(
        LOCAL,
        "Where a table's records are read and summed: local, or ray://HOST:PORT, a Ray cluster whose workers can read "
        "its files ('ray' starts one here).",
    )

    def read_all(self, check: Callable[[], object], blocks: BlockDeclaration | None = None) -> Records:
        """Return the records. check: what else may raise TrainingError.

        Raises TrainingError for all that is missing or wrong at once: in the options, in the schema, in the records.
        """
        wrong: list[TrainingError] = []

        def part_or_fault(part: Callable[[], _Part]) -> _Part | None:
            try:
                return part()
            except TrainingError as error:
                wrong.append(error)
            return None

        part_or_fault(self._check_lineage)
        declared = part_or_fault(self._declared)
        for step in (self._check_out, check):
            part_or_fault(step)
        records = None if declared is None else part_or_fault(lambda: self._records(*declared, blocks))
        if records is None or wrong:
            raise wrong[0] if len(wrong) == 1 else SeveralErrors(wrong)
        return records

    def _check_lineage(self) -> None:
        """Raise TrainingError where the lineage needs a name, and WrongOption where it was forgotten."""

    def _check_out(self) -> None:
        """Raise TrainingError where nothing can be written."""

    def declared_classes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the declared names of the classes, and what each is called in the records; two empty ones for none."""
        return parse_classes(self.classes) if self.classes else ((), ())

    def declared_schema(self) -> TableSchema | None:
        """Return the schema, if one is given or declared. Raises WrongOption beside what it takes the place of."""
        if self.data == "digits" and self.schema_file is not None:
            raise WrongOption("schema", "describes a table of your own, not digits")
        schema = schema_alone(
            self.schema_file, classes=self.classes, bounds=self.bounds, levels=self.levels, dates=self.dates
        )
        return self._described() if schema is None and (self.levels or self.dates) else schema

    def _described(self) -> TableSchema:
        """Return the schema of a table whose levels and dates are declared: all its other columns are numbers."""
        # Only who reads a table should wait for Arrow.
        from dpserve.training.inputs.table_records import column_names

        described: dict[str, ColumnType] = {}
        for text in self.levels:
            name, values = _named_value("levels", text)
            with _of_flag("levels", text):
                described[name] = Levels(*values.split(","))
        for text in self.dates:
            name, values = _named_value("dates", text)
            earliest, _, latest = values.partition(":")
            with _of_flag("dates", text):
                described[name] = Date(earliest, latest)
        left_out = {self.label, self.unit, self.id, getattr(self, "block", None), *self.ignore}
        columns_there = column_names(self.data, self.encoding, self.sheet)
        names = [name for name in columns_there if name not in left_out]
        absent = [name for name in self.ignore if name not in columns_there]
        if unknown := absent + [name for name in described if name not in names]:
            raise DataError(f"{self.data} has no column {unknown[0]!r} beside its classes")
        columns = numbers_beside(described, names, self.bounds)
        if self.decimal is not None:
            columns = {
                name: column.replaced(decimal=self.decimal) if isinstance(column, Number) else column
                for name, column in columns.items()
            }
        schema = parse_schema({"fields": [column.field(name) for name, column in columns.items()]})
        class_names, called = self.declared_classes()
        if not class_names:
            raise _no_classes()
        label = LevelsColumn(name=self.label, levels=called)
        return TableSchema((*schema.columns, label), {self.label: class_names})

    def _declared(self) -> tuple[tuple[str, ...], tuple[str, ...], TableSchema | None]:
        names, values = self.declared_classes()
        schema = self.declared_schema()
        if self.data != "digits" and not names and schema is None:
            raise _no_classes()
        return names, values, schema

    def _records(
        self,
        names: tuple[str, ...],
        values: tuple[str, ...],
        schema: TableSchema | None,
        blocks: BlockDeclaration | None,
    ) -> Records:
        declared: dict[str, Any] = {"classes": names, "values": values, "bounds": self.bounds, "schema": schema}
        declared |= {"missing": self.missing, "blocks": blocks}
        form = self.replaced(decimal=None) if self.levels or self.dates else self
        return form.read(self.data, clip=self.clip, unit=self.unit, engine=self.engine, **declared)


class NewBundle(TrainedRecords):
    """The records to train on, and the bundle to write."""

    lineage: str | None = option(
        None,
        "Your name for the lineage of the records: all models of records that overlap share one, and its budget. "
        "Needed with your own data.",
        default_text="digits: 'digits'",
        complete=options.lineage_names,
        panel="",
    )
    out: Path = option(..., "The bundle: a new folder.", panel="")
    name: str | None = option(
        None, "The model's public name.", default_text="the bundle's folder name", panel="The model"
    )
    overlapping_lineage_is_accepted: bool = option_of(
        Request, "overlapping_lineage_is_accepted", panel="Who is protected"
    )

    @property
    def model_name(self) -> str:
        """The model's public name."""
        return self.name or self.out.resolve().name

    @property
    def lineage_name(self) -> str | None:
        """The lineage's name; None where it is needed and not given, which `read_all` refuses."""
        return self.lineage or (DIGITS if self.data == DIGITS else None)

    def _check_lineage(self) -> None:
        """Raise TrainingError where the lineage needs a name, and WrongOption where it was forgotten."""
        if self.lineage_name is None:
            raise TrainingError(
                "name the lineage of these records with --lineage NAME: all models of records that overlap share one "
                "name, and with it one budget"
            )
        options.refuse_forgotten(self.lineage_name)

    def _check_out(self) -> None:
        if self.out.exists():
            raise TrainingError(
                f"{self.out} exists already; a bundle is never overwritten, so name a new one with --out"
            )


def _named_value(name: str, text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals or not column or not value:
        raise WrongOption(name, "is written COLUMN=...", value=text)
    return column, value


def _no_classes() -> TrainingError:
    return TrainingError(
        "declare the class names with --classes a,b,..., or the table with --schema FILE: a list read off the "
        "private records would say which classes occur in them"
    )


class TrainOptions(Blocks, NewBundle):
    """The options of every kind of model."""

    lineage_epsilon: float | None = LINEAGE_EPSILON(panel=Blocks.panel)
    lineage_delta: float | None = LINEAGE_DELTA(panel=Blocks.panel)
    prediction_sets: Literal["auto", "off", "all", "class"] = option_of(Request, "prediction_sets", panel="The model")

    def request(self, kind: Options, features: Features, price: TrainPrice | None) -> Request:
        """Return what is asked for. Raises WrongOption, OSError."""
        return Request(
            name=self.model_name,
            lineage=self.lineage_name or UNNAMED,
            kind=kind,
            price=None if price is None else price.whole,
            n=None if price is None else price.n,
            features=features,
            prediction_sets=self.prediction_sets,
            blocks=blocks_of(self),
            block_budget=budget_text(self.lineage_epsilon, self.lineage_delta),
            overlapping_lineage_is_accepted=self.overlapping_lineage_is_accepted,
        )


def blocks_of(given: Blocks) -> Blocks:
    """Return the blocks that options declare beside others."""
    return Blocks(**{name: getattr(given, name) for name in Blocks.model_fields})


@contextmanager
def _of_flag(flag: str, text: str) -> Iterator[None]:
    """Say of the flag what is wrong with a field of the column that it describes, which no flag has."""
    try:
        yield
    except WrongValue as error:
        raise WrongOption(flag, f"{error.field}: {error.requirement}", value=text) from error


def options_of_train() -> set[str]:
    """Return the names of the options of every training, which no kind's own may have."""
    return {name for options in (TrainOptions, TrainPrice, Features) for name in options.flags()}
