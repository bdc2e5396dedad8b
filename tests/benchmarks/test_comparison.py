"""A measurement is taken again while something else takes the machine."""

import pytest

from benchmarks.serving import comparison
from benchmarks.serving.figures import MANY, Measured
from benchmarks.serving.load import Round


@pytest.mark.parametrize(
    ("others", "chosen", "times"),
    [([0.01], 0.01, 1), ([0.9, 0.4, 0.1, 0.0], 0.1, 3), ([1.0, 0.5, 0.7, 0.6, 0.0], 0.5, 4)],
)
def test_what_was_disturbed_is_measured_again(others, chosen, times, monkeypatch):
    seen = [Measured(Round(1, 1.0, 0, 1, 1, 1), [], [], each) for each in others]
    left = list(seen)
    monkeypatch.setattr(comparison, "measure", lambda *_: left.pop(0))
    assert comparison.measure_undisturbed(None, MANY, 1.0, times=4).others == chosen
    assert len(seen) - len(left) == times
