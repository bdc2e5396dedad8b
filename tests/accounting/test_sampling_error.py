import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpserve.accounting import sampling_error

Law = NDArray[np.float64]


def hockey_stick(p: Law, q: Law, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def concentrated_rho(p: Law, q: Law) -> float:
    """The least rho for which p and q are rho-zCDP, over a wide grid of orders, both ways round."""
    orders = 1 + np.geomspace(1e-3, 1e3, 400)
    worst = 0.0
    for a, b in ((p, q), (q, p)):
        logs = orders[:, None] * np.log(a) + (1 - orders[:, None]) * np.log(b)
        divergences = np.logaddexp.reduce(logs, axis=1) / (orders - 1)
        worst = max(worst, float(np.max(divergences / orders)))
    return worst


def product(laws: list[Law]) -> Law:
    joint = np.ones(1)
    for law in laws:
        joint = np.multiply.outer(joint, law).ravel()
    return joint


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), releases=st.integers(1, 3), shift=st.floats(0.05, 2.0))
def test_no_sampler_breaks_the_bound(seed: int, releases: int, shift: float) -> None:
    """The argument of the module at a distance large enough to see, against samplers built to do harm.

    Each moves its error from where the neighbour is likeliest relative to it, cutting off that tail.
    """
    rng = np.random.default_rng(seed)
    outcomes = 6
    distance = 10 ** rng.uniform(-4, -1.3)
    ideal_p, ideal_q, drawn_p, drawn_q, rhos = [], [], [], [], []
    for _ in range(releases):
        tilt = rng.normal(size=outcomes) * shift
        p, q = rng.dirichlet(np.ones(outcomes)), np.zeros(outcomes)
        q = p * np.exp(tilt)
        q /= q.sum()
        ideal_p.append(p)
        ideal_q.append(q)
        rhos.append(concentrated_rho(p, q))
        drawn_p.append(p)
        drawn_q.append(cut_where_likeliest_elsewhere(q, p, distance))

    r = releases * distance + sum(sampling_error.missed_probability(rho, distance) for rho in rhos)
    for epsilon in (0.0, 0.5, 2.0, 8.0, 20.0):
        ideal = hockey_stick(product(ideal_p), product(ideal_q), epsilon)
        assert hockey_stick(product(drawn_p), product(drawn_q), epsilon) <= ideal + r + 1e-12


def cut_where_likeliest_elsewhere(law: Law, neighbour: Law, distance: float) -> Law:
    drawn, left = law.copy(), distance
    for outcome in np.argsort(law / neighbour):
        taken = min(left, drawn[outcome])
        drawn[outcome] -= taken
        left -= taken
        if left <= 0:
            break
    drawn[np.argmax(law / neighbour)] += distance - left
    return drawn


@given(rho=st.floats(1e-6, 3), level=st.floats(1e-12, 1e-3))
def test_what_is_missed_bounds_the_power_of_a_gaussian_test(rho: float, level: float) -> None:
    from scipy.special import ndtr, ndtri

    power = float(ndtr(ndtri(level) + math.sqrt(2 * rho)))

    assert power <= sampling_error.missed_probability(rho, level) * (1 + 1e-9)


@given(total=st.floats(1e-8, 9007), data=st.data())
def test_no_split_of_a_budget_into_prices_exceeds_the_bound(total: float, data: st.DataObject) -> None:
    kinds = [(sampling_error.DRAWS_PER_ROW, sampling_error.LEAST_ROW_RHO, sampling_error.LARGEST_ROW_RHO)]
    if total >= sampling_error.LEAST_RELEASE_RHO:
        kinds.append(
            (sampling_error.DRAWS_PER_RELEASE, sampling_error.LEAST_RELEASE_RHO, sampling_error.LARGEST_RELEASE_RHO)
        )
    left, spent = total, 0.0
    for draws, low, largest in data.draw(st.permutations(kinds)):
        high = min(left, largest)
        if low < high:
            level = draws * sampling_error.DISTANCE_PER_DRAW
            price = math.exp(data.draw(st.floats(math.log(low), math.log(high))))
            count = math.floor(left / price * data.draw(st.floats(0, 1)))
            spent += count * (level + sampling_error.missed_probability(price, level))
            left -= count * price

    assert spent <= sampling_error.transcript_error(total)


def test_the_error_grows_with_the_budget() -> None:
    errors = [sampling_error.transcript_error(rho) for rho in np.geomspace(1e-9, 9007, 500)]

    assert all(a <= b for a, b in itertools.pairwise(errors))


def test_ordinary_budgets_fit_and_absurd_ones_do_not() -> None:
    assert sampling_error.fits(1.0, 1e-12)
    assert sampling_error.fits(500.0, 1e-6)
    assert not sampling_error.fits(1.0, 1e-16)
    assert sampling_error.fits(1.0, sampling_error.least_delta(1.0))


def test_there_are_no_coins_where_the_sampler_needs_their_half_of_the_reserve() -> None:
    assert sampling_error.COIN_SHARE * 2 == sampling_error.RESERVED_SHARE
    delta = 1.5 * sampling_error.least_delta(100.0)
    assert sampling_error.fits(100.0, delta)
    assert sampling_error.coins_allowed(100.0, delta) == 0
    assert sampling_error.coins_allowed(1.0, delta) == math.floor(delta * 2**29) > 0


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), releases=st.integers(1, 4))
def test_no_coins_break_the_bound_whatever_is_chosen_on_the_way(seed: int, releases: int) -> None:
    """Adaptive releases whose coin, once fallen, shows everything, and after which the client asks as it likes."""
    rng = np.random.default_rng(seed)
    coin = 10 ** rng.uniform(-4, -1)

    def transcripts(depth: int) -> tuple[Law, Law, Law, Law]:
        """The laws of what follows: drawn P~, Q~ with coins, and ideal P, Q without."""
        if depth == 0:
            return np.ones(1), np.ones(1), np.ones(1), np.ones(1)
        p = rng.dirichlet(np.ones(3))
        q = p * np.exp(rng.normal(size=3))
        q /= q.sum()
        parts = [transcripts(depth - 1) for _ in range(3)]
        p_drawn = np.concatenate([(1 - coin) * p[i] * parts[i][0] for i in range(3)])
        q_drawn = np.concatenate([(1 - coin) * q[i] * parts[i][1] for i in range(3)])
        fallen_p, fallen_q = np.array([coin, 0.0]), np.array([0.0, coin])
        return (
            np.concatenate([p_drawn, fallen_p]),
            np.concatenate([q_drawn, fallen_q]),
            np.concatenate([p[i] * parts[i][2] for i in range(3)]),
            np.concatenate([q[i] * parts[i][3] for i in range(3)]),
        )

    p_drawn, q_drawn, p, q = transcripts(releases)
    for epsilon in (0.0, 0.5, 2.0, 8.0):
        assert hockey_stick(p_drawn, q_drawn, epsilon) <= hockey_stick(p, q, epsilon) + releases * coin + 1e-12


@pytest.mark.parametrize("rho", [0.0, 1e-4, 4.1, math.nan])
def test_a_price_once_and_for_all_outside_the_proved_range_is_refused(rho: float) -> None:
    with pytest.raises(ValueError, match=r"pay-once model must lie between 0\.0004 and 4 rho"):
        sampling_error.check_release_rho(rho)


@pytest.mark.parametrize("rho", [0.0, 1e-10, 9.0, math.nan])
def test_a_price_outside_the_proved_range_is_refused(rho: float) -> None:
    with pytest.raises(ValueError, match="the price of one row must lie between 1e-09 and 8 rho"):
        sampling_error.check_row_rho(rho)
