"""Options for the records that an attack decides about: those that were trained on, and others."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpserve.training.inputs.reading import LabelledRows
from dpserve.training.options import option

if TYPE_CHECKING:
    from dpserve.audit.membership.candidates import Candidates


class CandidateOptions(LabelledRows):
    """Whom the attack decides about."""

    data: str | None = option(None, "'digits': its records as members, and those it holds out as non-members.")
    members: Path | None = option(None, "Records that were trained on: a table, FILE.npz or FILE.npz:ARRAY.")
    non_members: Path | None = option(None, "Records of the same distribution that were not trained on.")
    population: Path | None = option(None, "More records of the same distribution, for shadow models.")
    class_names: str | None = option(
        None, "VALUE=NAME of each class, where the files have other values than class names."
    )
    candidates: int | None = option(None, "At most so many members, and as many non-members.", ge=1)
    rows_of_each: int | None = option(
        None, "Of a model that protects units: ask about at most so many rows of each.", default_text="all", ge=1
    )

    def read(self, model: Mapping[str, Any]) -> "Candidates":
        """Read them by the model's certificate. Raises ValueError for files that do not fit it."""
        from dpserve.audit.membership.candidates import Candidates, Labelled, digits, read_labelled

        if self.data is not None:
            if self.data != "digits" or self.members is not None or self.non_members is not None:
                raise ValueError("--data takes 'digits' alone; name your own files with --members and --non-members")
            if model.get("unit") is not None:
                raise ValueError("the model protects units, and digits have no column of units: name tables")
            return digits()
        if self.members is None or self.non_members is None:
            raise ValueError("name records that were trained on with --members, and others with --non-members")

        def read(path: Path) -> Labelled:
            return read_labelled(path, model, label=self.label, ignore=self.ignore or [], class_names=self.class_names)

        more = None if self.population is None else read(self.population)
        return Candidates(read(self.members), read(self.non_members), more)
