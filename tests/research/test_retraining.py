"""Months of records: each row is in one month, and no record pays more than its budget, whichever way is taken."""

from fractions import Fraction
from itertools import islice

import numpy as np
import pytest

from dpserve.mechanisms.gaussian_vector import whole_picorho
from dpserve.training.features.rules import feature_map
from research.comparison.cases import Drawn
from research.retraining import WAYS, split, ways

pytestmark = pytest.mark.research

MONTHS, WINDOW = 3, 2
WHOLE = whole_picorho("rho:0.3")


def test_each_row_is_in_one_month_and_months_are_of_one_size():
    parts = split(103, 12, 0)
    assert sorted(np.concatenate(parts).tolist()) == list(range(103))
    assert {len(part) for part in parts} == {8, 9}


def test_no_record_loses_more_than_its_months_budget_in_any_way(tmp_path):
    """The oracle adds, for each month, the own costs of all models that its records trained."""
    case = Drawn.read("digits", tmp_path).case(0)
    chosen = feature_map("modality", case.records.declaration)
    parts = split(len(case.y), MONTHS, 0)
    widths = {"all": MONTHS, "window": WINDOW}
    for way, models in ways(case, parts, chosen, WHOLE, WINDOW).items():
        spent = [Fraction(0)] * MONTHS
        for month, model in enumerate(islice(models, MONTHS)):
            own = model.certificate.whole_cost()
            for trained in range(max(0, month - widths.get(way, 1) + 1), month + 1):
                spent[trained] += own.rho
        assert max(spent) <= Fraction(WHOLE, 10**12), way
    assert set(ways(case, parts, chosen, WHOLE, WINDOW)) == set(WAYS)
