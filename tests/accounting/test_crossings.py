import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpserve.accounting.crossings import crossing


@given(root=st.floats(1e-9, 1e9), power=st.sampled_from([0.2, 1, 3, 9]), spread=st.floats(1.001, 1e6))
def test_both_ends_are_what_they_say_and_close(root: float, power: float, spread: float) -> None:
    def function(x: float) -> float:
        return (x / root) ** power - 1

    bracket = crossing(function, root / spread, root * spread)

    assert function(bracket.met) <= 0 < function(bracket.unmet)
    assert abs(bracket.met - root) <= 2.0**-45 * root


@given(step=st.floats(-1, 1))
def test_a_jump_is_bracketed(step: float) -> None:
    def function(x: float) -> float:
        return -1.0 if x <= step else 1.0

    bracket = crossing(function, -2.0, 2.0)

    assert bracket.met <= step < bracket.unmet
    assert bracket.unmet - bracket.met <= 1e-12


def test_the_met_end_may_be_the_upper_one() -> None:
    bracket = crossing(lambda x: 2 - x * x, 3.0, 0.0)

    assert bracket.unmet < math.sqrt(2) * (1 + 1e-15)
    assert bracket.met == pytest.approx(math.sqrt(2), rel=1e-14)


@pytest.mark.parametrize("ends", [(1.0, 2.0), (-2.0, -1.0)])
def test_a_bracket_without_a_crossing_is_refused(ends: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="no crossing"):
        crossing(lambda x: x, *ends)
