"""`dpserve attack --predict-url`: a server of any kind, which answers probabilities in JSON of its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpserve.commands.candidates import CandidateOptions, write_records
from dpserve.commands.console import shares
from dpserve.training.errors import WrongOption
from dpserve.training.options import Options, option

if TYPE_CHECKING:
    from dpserve.audit.reports import Report

PANEL = "Any other server"
_LARGEST_VALUE = 1e12


class PredictUrlOptions(Options):
    """Options for asking a server that is not dpserve."""

    predict_url: str | None = option(
        None, "Where it takes rows by POST, in place of TARGET.", panel=PANEL, metavar="URL"
    )
    answer_classes: str | None = option(
        None, "CLASS,CLASS,...: the classes in the order of its probabilities.", panel=PANEL, metavar="TEXT"
    )
    request_json: str = option(
        '{"instances": "ROWS"}',
        'What it takes, with "ROWS" (lists), "FLAT" (one list), "NAMED" (an object a row), "COUNT" and "WIDTH".',
        panel=PANEL,
    )
    answer_path: str | None = option(
        None, "Where the probabilities are, as outputs.0.data.", panel=PANEL, default_text="looked for"
    )
    rows_a_request: int = option(100, "At most so many rows in a request.", panel=PANEL, ge=1)

    def measure(
        self, of: CandidateOptions, key_files: Sequence[Path], records: Path | None, *, confidence: float, seed: int
    ) -> "Report":
        """Ask about candidates, write the records' file, and return the report.

        Raises EndpointError, DataError and WrongOption.
        """
        from dpserve.audit.leakage_report import leakage_report
        from dpserve.audit.membership.leakage import measure_leakage
        from dpserve.probability_url import ProbabilityUrl

        assert self.predict_url is not None
        if self.answer_classes is None:
            raise WrongOption("answer_classes", "says which class each of the answer's probabilities is of")
        if len(key_files) > 1:
            raise WrongOption("key_file", "is one file at most with such a server")
        classes = tuple(self.answer_classes.split(","))
        if len(set(classes)) < len(classes) or len(classes) < 2:
            raise WrongOption("answer_classes", "names two classes or more, each once", value=self.answer_classes)
        columns = _columns(of)
        candidates = of.read(_declaration(columns, classes))
        groups = of.groups(candidates)
        key = key_files[0].read_text("utf-8").strip() if key_files else None
        server = ProbabilityUrl(
            self.predict_url,
            columns=columns,
            classes=classes,
            template=self.request_json,
            answer_path=self.answer_path,
            key=key,
        )
        with server, shares("attack") as progress:
            leakage = measure_leakage(
                server.answers,
                candidates,
                confidence=confidence,
                most=of.candidates,
                at_once=self.rows_a_request,
                seed=seed,
                progress=progress,
            )
        write_records(records, leakage.exposure, groups)
        return leakage_report(leakage, self.predict_url, groups)


def _columns(of: CandidateOptions) -> tuple[str, ...]:
    """Return the names of the rows' values, in the file's order. Raises WrongOption without members."""
    from dpserve.training.inputs.table_records import column_names

    if of.data is not None:
        from dpserve.training.inputs.digits import load_digits

        return tuple(f"x{place}" for place in range(load_digits().train.X.shape[1]))
    if of.members is None:
        raise WrongOption("members", "says who was trained on")
    file, archive, _ = str(of.members).partition(".npz")
    if not archive:
        return tuple(name for name in column_names(of.members) if name not in (of.label, *(of.ignore or ())))
    with np.load(f"{file}.npz", allow_pickle=False) as arrays:
        width = int(arrays["n_features"]) if "n_features" in arrays.files else int(np.prod(arrays["X"].shape[1:]))
    return tuple(f"x{place}" for place in range(width))


def _declaration(columns: Sequence[str], classes: Sequence[str]) -> dict[str, Any]:
    """Return what `read_labelled` reads files by: any finite numbers of a usual size."""
    ends = {"lower": [-_LARGEST_VALUE] * len(columns), "upper": [_LARGEST_VALUE] * len(columns)}
    return {"feature_names": list(columns), "classes": list(classes), "feature_map": ends}
