"""Options for the records that an attack decides about: those that were trained on, and others."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpserve.training.errors import WrongOption
from dpserve.training.inputs.reading import LabelledRows
from dpserve.training.options import option

if TYPE_CHECKING:
    from dpserve.audit.exposure_report import Groups
    from dpserve.audit.membership.candidates import Candidates
    from dpserve.audit.membership.exposure import Exposure


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

    group: str | None = option(None, "A column of both tables: count exposed records by its values, too.")

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

    def groups(self, candidates: "Candidates") -> "Groups | None":
        """Return the column of groups of the candidates. Raises DataError and WrongOption where there is none."""
        if self.group is None:
            return None
        from dpserve.audit.exposure_report import Groups
        from dpserve.audit.membership.candidates import read_column

        if self.members is None or self.non_members is None:
            raise WrongOption("group", "names a column of the tables of members and non-members")
        of_members, of_others = (read_column(path, self.group) for path in (self.members, self.non_members))
        assert (len(of_members), len(of_others)) == (len(candidates.members), len(candidates.others))
        return Groups(self.group, of_members, of_others)


def write_records(file: Path | None, exposure: "Exposure", groups: "Groups | None") -> None:
    """Write the records' file, for its owner's eyes alone. None is no file."""
    if file is not None:
        from dpserve.accounting.whole_files import write_whole
        from dpserve.audit.exposure_report import records_file

        write_whole(file, records_file(exposure, groups))
