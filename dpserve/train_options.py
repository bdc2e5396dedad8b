"""The options of `dpserve train` that all kinds of models have, and what is trained on by them.

A kind's own options are its class of options; the map of features and blocks have theirs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from dpserve.commands import options
from dpserve.commands.tables import LOCAL
from dpserve.declarations import Declarations
from dpserve.prices import LINEAGE_DELTA, LINEAGE_EPSILON, Price, budget_text
from dpserve.training.block_choice import Blocks
from dpserve.training.errors import ErrorList, TrainingError, WrongOption
from dpserve.training.feature_choice import Features
from dpserve.training.fit import NEEDED_LINEAGE, UNNAMED, Request
from dpserve.training.inputs.blocks import BlockDeclaration
from dpserve.training.inputs.lineage import DIGITS
from dpserve.training.inputs.records import Records
from dpserve.training.inputs.schema import TableSchema
from dpserve.training.inputs.undeclared import shortest_way
from dpserve.training.options import Options, option, option_of
from dpserve.training.planning.planner import Planner


class TrainPrice(Price):
    """The price of a model that is paid for once, and the declared number of records."""

    n: int | None = option_of(Request, "n")


class PlannerOptions(Options):
    """The options of the planner, beside the price."""

    panel = "The planner"

    queries: int | None = option_of(Planner, "queries")
    public: str | None = option(None, "FILE of public rows like yours, to simulate on.", default_text="none, a rule")


class TrainedRecords(Declarations):
    """The records to train on."""

    data: str = option(
        ...,
        "'digits', or your own: a table (CSV, Parquet, Feather, a spreadsheet; a file, a folder or a URL) or FILE.npz.",
        panel="",
    )
    engine: str = option(
        LOCAL,
        "Where a table's records are read and summed: local, or ray://HOST:PORT, a Ray cluster whose workers can read "
        "its files ('ray' starts one here).",
    )

    def read_all(self, check: Callable[[], object], blocks: BlockDeclaration | None = None) -> Records:
        """Return the records. check: what else may raise TrainingError.

        Raises TrainingError for all that is missing or wrong at once: in the options, in the schema, in the records.
        """
        wrong = ErrorList()
        wrong.attempt(self._check_lineage)
        undeclared = wrong.attempt(self._undeclared)
        wrong.errors += undeclared or []
        for step in (self._check_out, check):
            wrong.attempt(step)
        records = None
        if undeclared == []:
            records = wrong.attempt(lambda: self._records(blocks))
        elif undeclared:
            wrong.errors.append(shortest_way(self.data))
        wrong.check()
        assert records is not None
        return records

    def _undeclared(self) -> list[TrainingError]:
        """Return what is to be declared of a table without a schema."""
        return self.undeclared_of(self.data) if self.is_table and self.engine == LOCAL else []

    def _check_lineage(self) -> None:
        """Raise TrainingError where the lineage needs a name, and WrongOption where it was forgotten."""

    def _check_out(self) -> None:
        """Raise TrainingError where nothing can be written."""

    def count_declared(self, price: TrainPrice | None) -> int | None:
        """Return the number of records as it is given, or as the schema's file states it, for a kind with a price."""
        return None if price is None else self.stated_n if price.n is None else price.n

    def declared_schema(self) -> TableSchema | None:
        """Return the schema, if one is given or declared. Raises WrongOption beside what it takes the place of."""
        if self.data == DIGITS and self.schema_file is not None:
            raise WrongOption("schema", "describes a table of your own, not digits")
        if self.schema_file is not None or not self.described():
            return self.file_schema()
        # Only who reads a table should wait for Arrow.
        from dpserve.training.inputs.table_records import column_names

        return self.column_schema(column_names(self.data, self.encoding, self.sheet))

    def _records(self, blocks: BlockDeclaration | None) -> Records:
        """Read the records. Raises TrainingError."""
        schema = self.declared_schema()
        names, values = self.declared_classes()
        if self.data != DIGITS and not names and schema is None:
            raise WrongOption("classes", "is needed", remedy="the names of the classes")
        declared: dict[str, Any] = {"classes": names, "values": values, "bounds": self.bounds, "schema": schema}
        declared |= {"missing": self.missing, "blocks": blocks}
        # The columns of a schema have their own sign.
        form = self.replaced(decimal=None) if schema is not None and self.schema_file is None else self
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
    out: Path = option(Path("model"), "The bundle: a new folder.", panel="")
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
            raise WrongOption("lineage", "is needed", remedy=NEEDED_LINEAGE)
        options.refuse_forgotten(self.lineage_name)

    def _check_out(self) -> None:
        if self.out.exists():
            raise TrainingError(
                f"{self.out} exists already; a bundle is never overwritten, so name a new one with --out"
            )


class TrainOptions(Blocks, NewBundle):
    """The options of every kind of model."""

    lineage_epsilon: float | None = LINEAGE_EPSILON(panel=Blocks.panel)
    lineage_delta: float | None = LINEAGE_DELTA(panel=Blocks.panel)
    prediction_sets: Literal["auto", "off", "all", "class"] = option_of(Request, "prediction_sets", panel="The model")

    def request(self, kind: Options, features: Features, price: TrainPrice | None, whole: int | None) -> Request:
        """Return what is asked for. whole: the price in picorho. Raises WrongOption, OSError."""
        return Request(
            name=self.model_name,
            lineage=self.lineage_name or UNNAMED,
            kind=kind,
            price=whole,
            n=self.count_declared(price),
            features=features,
            prediction_sets=self.prediction_sets,
            blocks=blocks_of(self),
            block_budget=budget_text(self.lineage_epsilon, self.lineage_delta),
            overlapping_lineage_is_accepted=self.overlapping_lineage_is_accepted,
        )


def blocks_of(given: Blocks) -> Blocks:
    """Return the blocks that options declare beside others."""
    return Blocks(**{name: getattr(given, name) for name in Blocks.model_fields})


def options_of_train() -> set[str]:
    """Return the names of the options of every training, which no kind's own may have."""
    return {name for options in (TrainOptions, TrainPrice, Features) for name in options.flags()}
