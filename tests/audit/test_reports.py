"""One report in three forms."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image

from dpserve.audit import reports
from dpserve.audit.reports import Picture, Report, ReportTable


@dataclass(frozen=True)
class Rates:
    true_positive: float
    ends: tuple[float, float]


def draw(figure):
    figure.subplots().plot([0, 1], [0, 1])


@pytest.fixture
def report():
    return Report(
        "an <attack>",
        "the claim & the finding differ",
        convicted=True,
        content={"rates": Rates(0.5, (0.25, float("nan"))), "scores": np.array([1.0, np.inf]), "count": np.int64(3)},
        tables=(ReportTable("rates", ("name", "value"), (("<TPR>", "0.5"), ("ends", "[bold]")), note="of 2 records"),),
        picture=Picture(draw, inches=(2, 1)),
        warnings=("a warning",),
        notes=("a note",),
    )


def test_json_holds_everything_and_only_what_json_has(report):
    read = json.loads(reports.as_json(report))
    assert read["convicted"] is True
    assert read["rates"] == {"true_positive": 0.5, "ends": [0.25, None]}
    assert read["scores"] == [1.0, None]
    assert read["count"] == 3


def test_the_picture_is_written_where_asked(report, tmp_path):
    reports.write_picture(report, tmp_path / "roc.png")
    with Image.open(tmp_path / "roc.png") as image:
        assert image.size == (220, 110)
    with pytest.raises(ValueError, match="no picture"):
        reports.write_picture(Report("t", "v", False, {}), tmp_path / "none.png")


def test_a_conviction_and_no_verdict_have_exit_statuses_of_their_own(report):
    assert report.exit_status == 3
    assert Report("t", "v", False, {}).exit_status == 0
    nothing = Report("t", "v", False, {}, inconclusive=True)
    assert nothing.exit_status == 4
    assert json.loads(reports.as_json(nothing))["inconclusive"] is True
    with pytest.raises(ValueError, match="not inconclusive"):
        Report("t", "v", True, {}, inconclusive=True)


def test_a_table_refuses_rows_of_another_width():
    with pytest.raises(ValueError, match="must have 2 texts"):
        ReportTable("t", ("a", "b"), (("one",),))
