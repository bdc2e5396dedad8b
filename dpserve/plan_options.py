"""The options of `dpserve plan`, and the rows that it simulates on."""

from dpserve.commands.options import lineage_names
from dpserve.commands.tables import check_public
from dpserve.declarations import Declarations
from dpserve.training.errors import ErrorList, TrainingError, WrongOption, WrongValue
from dpserve.training.feature_choice import AutoFeatures, Sides, shape_of
from dpserve.training.features.hog import Shape
from dpserve.training.inputs.declared import parse_bounds
from dpserve.training.inputs.lineage import DIGITS
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.inputs.schema import declaration_of
from dpserve.training.inputs.undeclared import shortest_way
from dpserve.training.kinds.kind import declared_count
from dpserve.training.options import option, option_of
from dpserve.training.planning.answers import USUAL_QUERIES

BEFORE = "Before training"
RETRAINING = "Train again as records come"


class PlanOptions(Declarations):
    """Options for the plan, and for the rows that it simulates on: what is declared of a table is as for `train`."""

    data: str | None = option(
        None, "Your table, whose header alone is read: the command that is printed names it.", panel=BEFORE
    )
    lineage: str | None = option(
        None, "The lineage of the records, whose budget is looked up.", complete=lineage_names, panel=BEFORE
    )
    queries: int | None = option(
        None, "How many answers, each paid for, the budget has to pay for.", default_text=str(USUAL_QUERIES)
    )
    n: int | None = option(None, "How many records, or privacy units, about.", "--n", panel=BEFORE)
    classes: str | None = option(
        None, "The class names, separated by commas, or VALUE=NAME of each; or how many there are.", panel=BEFORE
    )
    share: tuple[str, ...] = option(
        (), "CLASS=0.02: about which share of the records is of a class, as public.", form="CLASS=SHARE", panel=BEFORE
    )
    image_shape: Sides | None = option_of(AutoFeatures, "image_shape", panel=BEFORE)
    public: str | None = option(
        None,
        "A table or FILE.npz of labelled rows that you declare public, or 'digits': every option is trained on them.",
        panel=BEFORE,
    )
    retrain: str | None = option(
        None,
        "How often to train again as records come by block: year, quarter, month, week, for as many blocks as a year "
        "has, or their number.",
        panel=RETRAINING,
    )
    window: int | None = option(
        None, "How many of the last blocks each retraining is on.", panel=RETRAINING, default_text="all", ge=1
    )

    @property
    def count(self) -> int | None:
        """The declared number of records."""
        return self.stated_n if self.n is None else self.n

    def declared_classes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the declared names of the classes, numbers where only their count is said, and their values."""
        if self.classes is not None and self.classes.strip().isdecimal():
            numbers = tuple(map(str, range(int(self.classes))))
            return numbers, numbers
        return super().declared_classes()

    def shares(self, classes: tuple[str, ...]) -> dict[str, float]:
        """Return the declared shares of classes. Raises WrongOption."""
        found: dict[str, float] = {}
        for text in self.share:
            name, _, words = text.rpartition("=")
            if name not in classes:
                raise WrongOption("share", f"names one of the classes {', '.join(classes)}", value=text)
            try:
                found[name] = float(words)
            except ValueError:
                raise WrongValue("share", "must be CLASS=SHARE", value=text) from None
            if not 0 < found[name] < 1 or sum(found.values()) > 1:
                raise WrongValue("share", "must be above 0, and all together at most 1", value=text)
        return found

    def lacking(self) -> list[TrainingError]:
        """Return all that a plan without public rows lacks: of the records and, where a table is named, its columns."""
        wrong = ErrorList()
        if self.data is not None and self.is_table:
            undeclared = wrong.attempt(lambda: self.undeclared_of(str(self.data))) or []
            wrong.errors += [*undeclared, *([shortest_way(self.data)] if undeclared else [])]
        elif self.schema_file is None and not self.classes:
            wrong.errors.append(WrongOption("classes", "is needed", remedy="the names of the classes, or their number"))
        wrong.attempt(lambda: declared_count(self.count))
        return wrong.errors

    def declaration(self) -> Declaration | None:
        """Return what is declared of the columns; None where it is not said which there are. Raises TrainingError."""
        if self.schema_file is not None:
            schema = self.file_schema()
            return None if schema is None else declaration_of(schema, self.label)
        names = self._names()
        if not names or (bounds := self._bounds_of(names)) is None:
            return None
        schema = self.column_schema(names)
        if schema is not None:
            return declaration_of(schema, self.label)
        features = tuple(name for name in names if name not in self.no_features)
        return Declaration(features, *bounds, self.declared_classes()[0])

    def _names(self) -> list[str]:
        """Return the names of the columns: of the table, or of those that are declared by name."""
        if self.data not in (None, DIGITS) and not str(self.data).lower().endswith(".npz"):
            # Only who reads a table should wait for Arrow.
            from dpserve.training.inputs.table_records import column_names

            return list(column_names(self.data, self.encoding, self.sheet))
        named = [text.rpartition("=")[0] for text in self.bounds]
        return [] if "" in named else [*named, *self.described()]

    def _bounds_of(self, names: list[str]) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Return the bounds of the columns that are numbers; None where a table's columns are not declared yet."""
        described = {*self.described(), *self.no_features}
        numbers = [name for name in names if name not in described]
        if not self.bounds:
            return None if numbers else ((), ())
        return parse_bounds(self.bounds, numbers)

    def shape_of_rows(self, declared: Declaration | None) -> Shape | None:
        """Return the shape of rows that are images; None for others. declared: the columns, where they are known."""
        if self.image_shape is None:
            return None
        return shape_of(self.image_shape, None if declared is None else declared.features)

    def rows(self) -> Records | None:
        """Read the public rows to simulate on; None for none. Raises TrainingError."""
        if not self.public:
            return None
        names, values = self.declared_classes()
        schema = self.file_schema()
        if self.public != DIGITS and schema is None and (not names or (self.classes or "").isdecimal()):
            raise TrainingError("declare the class names of the rows with --classes a,b,..., or give their --schema")
        form = self.for_public(self.public)
        if schema is None and self.described():
            from dpserve.training.inputs.table_records import column_names

            there = column_names(self.public, self.encoding, self.sheet)
            schema = self.column_schema([name for name in there if name not in form.ignore])
        found = form.read(
            self.public,
            classes=names,
            values=values,
            bounds=self.bounds,
            clip=self.clip,
            schema=schema,
            missing=self.missing,
        )
        if self.public != DIGITS:
            check_public(found, self.public)
        return found
