"""Files of labelled rows: an owner's private records, or rows that are declared public."""

from dataclasses import dataclass
from pathlib import Path

from training.data.csv_file import read_csv
from training.data.digits import load_digits
from training.data.npz_file import read_npz
from training.data.records import Records
from training.errors import TrainingError


@dataclass(frozen=True)
class RowFile:
    """Where rows are and how to read them. `source`: 'digits', or a path ending in .csv or .npz.

    classes: the declared names. values: what each class is called in the file, if not by its name. label, ignore: of a
    CSV file. where: of an NPZ file. option: the command's option that names the file, for messages.
    """

    source: str
    option: str
    label: str = "label"
    classes: tuple[str, ...] = ()
    values: tuple[str, ...] | None = None
    bounds: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    where: str | None = None
    clip: bool = False

    def read(self) -> Records:
        """Read the rows. Raises TrainingError for a file of another kind and for rows that break the declaration."""
        if self.source == "digits":
            return load_digits().train
        path = Path(self.source)
        match path.suffix.lower():
            case ".csv":
                return read_csv(
                    path,
                    label=self.label,
                    classes=self.classes,
                    values=self.values,
                    bounds=self.bounds,
                    ignore=self.ignore,
                    clip=self.clip,
                )
            case ".npz":
                return read_npz(
                    path,
                    classes=self.classes,
                    values=self.values,
                    bounds=self.bounds,
                    where=self.where,
                    clip=self.clip,
                )
        raise TrainingError(f"{self.option} takes 'digits', a .csv or an .npz file, not {self.source!r}")
