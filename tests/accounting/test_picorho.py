from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpserve.accounting import picorho


@given(rho=st.floats(0, 9000))
def test_charges_round_up_and_budgets_down(rho: float) -> None:
    exact = Fraction(rho) * picorho.PICORHO_PER_RHO

    assert 0 <= picorho.charge(rho) - exact < 1
    assert 0 <= exact - picorho.budget(rho) < 1


@pytest.mark.parametrize("rho", [-1e-12, float("nan"), float("inf"), 1e4])
def test_what_the_ledger_cannot_hold_is_refused(rho: float) -> None:
    with pytest.raises(ValueError, match="rho must"):
        picorho.charge(rho)
    with pytest.raises(ValueError, match="rho must"):
        picorho.budget(rho)
