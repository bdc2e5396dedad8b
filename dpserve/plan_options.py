"""The options of `dpserve plan`, and the rows that it simulates on."""

from pathlib import Path

from dpserve.commands.tables import READING, SCHEMA, FileOptions, check_public, schema_alone
from dpserve.training.errors import TrainingError
from dpserve.training.feature_choice import AutoFeatures, Sides, shape_of
from dpserve.training.features.hog import Shape
from dpserve.training.inputs.declared import parse_classes
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.inputs.schema import TableSchema
from dpserve.training.options import option, option_of
from dpserve.training.planning.answers import USUAL_QUERIES

BEFORE = "Before training"
RETRAINING = "Train again as records come"


class PlanOptions(FileOptions):
    """Options for the plan, and for the rows that it simulates on."""

    queries: int | None = option(
        None, "How many answers, each paid for, the budget has to pay for.", default_text=str(USUAL_QUERIES)
    )
    n: int | None = option(None, "How many records, or privacy units, about.", "--n", panel=BEFORE)
    classes: int | None = option(None, "C, how many classes.", panel=BEFORE)
    schema_file: Path | None = SCHEMA(panel=BEFORE)
    image_shape: Sides | None = option_of(AutoFeatures, "image_shape", panel=BEFORE)
    public: str | None = option(
        None,
        "A table or FILE.npz of labelled rows that you declare public, or 'digits': every option is trained on them.",
        panel=BEFORE,
    )
    class_names: str | None = option(None, "The classes, separated by commas, or VALUE=NAME of each.", panel=READING)
    bounds: list[str] | None = option(None, "LOW:HIGH or NAME=LOW:HIGH, as for train.", panel=READING)
    clip: bool = option(False, "Clip values beyond the bounds, as for train.", panel=READING)
    retrain: str | None = option(
        None,
        "How often to train again as records come by block: year, quarter, month, week, for as many blocks as a year "
        "has, or their number.",
        panel=RETRAINING,
    )
    window: int | None = option(
        None, "How many of the last blocks each retraining is on.", panel=RETRAINING, default_text="all", ge=1
    )

    def declared_schema(self) -> TableSchema | None:
        """Return the schema, if there is one. Raises WrongOption beside what it takes the place of."""
        return schema_alone(self.schema_file, class_names=self.class_names, bounds=self.bounds, classes=self.classes)

    def shape_of_rows(self, declared: Declaration | None) -> Shape | None:
        """Return the shape of rows that are images; None for others. declared: the columns, where they are known."""
        if self.image_shape is None:
            return None
        return shape_of(self.image_shape, None if declared is None else declared.features)

    def rows(self, schema: TableSchema | None) -> Records | None:
        """Read the public rows to simulate on; None for none."""
        if not self.public:
            return None
        names, values = parse_classes(self.class_names) if self.class_names else ((), ())
        if self.public != "digits" and not names and schema is None:
            raise TrainingError(
                "declare the class names of the rows with --class-names a,b,..., or give their --schema"
            )
        found = self.read(
            self.public, classes=names, values=values, bounds=self.bounds or (), clip=self.clip, schema=schema
        )
        if self.public != "digits":
            check_public(found, self.public)
        return found
