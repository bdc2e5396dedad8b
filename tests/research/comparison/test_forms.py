"""The form of class sums that is shipped came first where forms were compared, and no row that is asked took part."""

from pathlib import Path

import numpy as np

from research.comparison import forms
from research.comparison.cases import Drawn

CSV = Path(forms.__file__).with_name("forms.csv")


def test_the_shipped_form_is_the_one_that_the_rule_takes():
    figures = forms.read_csv(CSV)
    assert len(figures) == len(forms.FORMS) * len(forms.SETS) * len(forms.EPSILONS)
    assert forms.best(figures)[0][0] == str(forms.SHIPPED)


def test_forms_are_compared_on_training_records_alone():
    case = Drawn.read("digits", Path()).case(0)
    part = forms.validation(case, 1)
    assert len(part.y) + len(part.answers) == len(case.y)
    together = np.vstack([part.X, part.asked])
    assert np.array_equal(np.sort(together, axis=0), np.sort(case.X, axis=0))


def test_every_form_is_measured():
    (figures, again) = (tuple(forms.measure(Path(), ("digits",), 1, (4.0,))) for _ in range(2))
    assert figures == again
    assert {figure.form for figure in figures} == {str(form) for form in forms.FORMS}
    assert {figure.part for figure in figures} == {"validation", "test"}
    assert dict(forms.best(figures))[str(forms.SHIPPED)] > 0.7
