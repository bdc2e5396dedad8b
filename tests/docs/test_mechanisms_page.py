"""docs/mechanisms.md: its figures are those that were measured, and its prices those of the mechanisms."""

import re
from typing import get_args

from dpserve.mechanisms.mechanism import PriceForm
from dpserve.mechanisms.registry import all_mechanisms
from dpserve.training.kinds.planned import UNLIMITED
from research.comparison import tables
from research.comparison.results import MEASURED, read_cells

from .walkthrough import DOCS

PAGE = DOCS / "mechanisms.md"
MEASURED_PAGE = MEASURED.with_name("README.md")


def test_the_figures_are_those_that_were_measured():
    cells = read_cells(MEASURED)
    _, summary, _ = re.split("<!-- .*summary -->\n", MEASURED_PAGE.read_text())
    assert summary.splitlines() == list(tables.summary(cells))
    for dataset, option, said in (
        ("location", "class-sums", "Location 0.453"),
        ("retail", "class-sums", "retail 0.909"),
        ("mnist-60k", "dpsgd-fourier", "MNIST-60k 0.936"),
        ("mnist-10k", "dpsgd-fourier", "MNIST-10k 0.892"),
        ("adult", "dpsgd", "Adult without bins 0.845"),
        ("mnist-60k-hog", "dpsgd", "MNIST-60k 0.981"),
        ("mnist-10k-hog", "dpsgd", "MNIST-10k 0.967"),
    ):
        assert said in PAGE.read_text()
        assert said.endswith(f" {cells[dataset, option, 1.0, UNLIMITED].mean:.3f}")


def test_the_table_of_prices_is_that_of_the_mechanisms():
    forms = get_args(PriceForm)
    lines = ["| mechanism | " + " | ".join(forms) + " |", "|---" * (1 + len(forms)) + "|"]
    lines += [
        " | ".join([f"| `{name}`", *(mechanism.prices.forms.get(form, "-") for form in forms)]) + " |"
        for name, mechanism in all_mechanisms().items()
    ]
    _, table, _ = re.split("<!-- .*prices -->\n", PAGE.read_text())
    assert table.splitlines() == lines
