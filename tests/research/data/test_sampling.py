"""The paper's sampling: disjoint, of the asked size, deterministic, and uniform."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpserve.training.errors import DataError
from research.data.sampling import two_disjoint_sets


@given(st.integers(1, 200), st.integers(0, 100), st.integers(0, 2**32))
def test_two_disjoint_sets(n: int, more: int, seed: int) -> None:
    first, second = two_disjoint_sets(2 * n + more, n, seed)
    both = np.concatenate([first, second])
    assert len(first) == len(second) == n
    assert len(set(both.tolist())) == 2 * n
    assert both.min() >= 0
    assert both.max() < 2 * n + more
    again = two_disjoint_sets(2 * n + more, n, seed)
    assert np.array_equal(first, again[0])
    assert np.array_equal(second, again[1])


def test_every_record_is_drawn_about_equally_often() -> None:
    """1,000 draws of 10 in 50: each record's count is binomial(1000, 0.2); 6.5 deviations fail once in 1e8."""
    counts = sum(np.bincount(two_disjoint_sets(50, 10, seed)[0], minlength=50) for seed in range(1000))
    assert np.abs(counts - 200).max() < 6.5 * (1000 * 0.2 * 0.8) ** 0.5


def test_too_few_records_are_refused() -> None:
    with pytest.raises(DataError, match="need 6 records, and there are 5"):
        two_disjoint_sets(5, 3, 0)
