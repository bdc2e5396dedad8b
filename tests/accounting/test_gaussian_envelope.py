"""The Gaussian that covers a run, against closed forms of one step and of many, and against dp_accounting."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpserve.accounting import gaussian_envelope
from dpserve.accounting.conversions import gaussian_epsilon, gaussian_mu
from dpserve.accounting.gaussian_envelope import DELTA, check_sampler, covers, least_mu, least_noise
from tests.accounting.curves import gaussian_delta

RUNS = [(3.9, 0.1, 100), (5.5, 0.2, 50), (1.2, 0.01, 500), (0.7, 0.3, 1), (25.0, 0.5, 1000), (4.0, 0.02, 5000)]


def covered(mu: float, epsilon: float) -> float:
    """The delta at epsilon >= 0 of `ApproximateGaussianLoss(mu, DELTA)`."""
    return DELTA + (1 - DELTA) * gaussian_delta(mu, epsilon)


def one_step(s: float, q: float, epsilon: float) -> tuple[float, float]:
    """The exact delta of one step in both directions, as that of a Gaussian at another epsilon."""
    forwards = q * gaussian_delta(1 / s, math.log1p(math.expm1(epsilon) / q))
    left = 1 - math.exp(epsilon) * (1 - q)
    if left <= 0:
        return forwards, 0.0
    # At least 0 in exact arithmetic: e^epsilon q >= 1 - e^epsilon (1 - q).
    shifted = max(0.0, math.log(q) + epsilon - math.log(left))
    return forwards, left * gaussian_delta(1 / s, shifted)


@settings(max_examples=60, deadline=None)
@given(s=st.floats(0.4, 50), q=st.floats(1e-3, 0.996), epsilon=st.floats(0, 8), steps=st.just(1))
def test_one_step_is_covered_at_every_epsilon(s, q, epsilon, steps):
    mu = least_mu(s, q, steps)
    assert max(one_step(s, q, epsilon)) <= covered(mu, epsilon) * (1 + 1e-12)


@pytest.mark.parametrize(("s", "q"), [(0.5, 0.1), (1.0, 0.5), (4.0, 0.9)])
def test_one_step_needs_hardly_less(s, q):
    """A slightly smaller mu is seen not to cover, by the closed form alone."""
    mu = least_mu(s, q, 1) * 0.99
    assert any(max(one_step(s, q, e)) > covered(mu, e) for e in np.linspace(0, 12, 2_000))


@pytest.mark.parametrize("steps", [1, 7, 100, 4096])
def test_without_sampling_it_is_the_gaussian_itself(steps):
    exact = math.sqrt(steps) / 20
    assert exact <= least_mu(20, 1.0, steps) <= exact * (1 + 1e-14)


@pytest.mark.parametrize("steps", [1, 7, 100, 4096])
def test_nearly_every_record_in_a_step_costs_nearly_what_every_record_does(steps):
    """This goes through the grid, the composition and the comparison, and has nearly an exact answer."""
    noise = 2 * math.sqrt(steps)
    assert 0.5 * (1 - 2.0**-7) <= least_mu(noise, 1 - 2.0**-8, steps) <= 0.5 * (1 + 2e-3)


@pytest.mark.parametrize("q", [math.nextafter(1 - 2.0**-8, 1), 0.999, 1 - 1e-9, math.nextafter(1, 0)])
def test_a_rate_so_near_1_that_its_losses_round_too_far_is_refused(q):
    for refused in (lambda: least_mu(4.0, q, 10), lambda: covers(1.0, 4.0, q, 10), lambda: least_noise(1.0, q, 10)):
        with pytest.raises(ValueError, match="or 1, at which every record joins every step"):
            refused()


@pytest.mark.parametrize("s", [0.25, 1.0, 1000.0])
@pytest.mark.parametrize("q", [1 - 2.0**-8, 0.3, 1e-6])
def test_the_edges_of_bins_lie_where_they_are_said_to(s, q):
    """Against 50 digits, at the grids of a step and the many edges next to the least loss, ln(1 - q)."""
    mpmath = pytest.importorskip("mpmath")
    spread = min(1 / s, gaussian_envelope.central_limit(s, q, 1))
    with mpmath.workdps(50):
        rate, noise = mpmath.mpf(q), mpmath.mpf(s)
        for interval in (spread / 20, spread / 2):
            first = math.floor(gaussian_envelope.loss_at(-9.6, s, q) / interval)
            last = math.ceil(gaussian_envelope.loss_at(9.6 + 1 / s, s, q) / interval)
            picked = np.unique(np.concatenate([first + np.arange(40), np.linspace(first, last, 40).astype(int)]))
            losses = picked * np.float64(interval)
            for loss, edge in zip(losses, gaussian_envelope.edges_of(losses, s, q), strict=True):
                if edge > -math.inf:
                    exact = mpmath.log(1 - rate + rate * mpmath.exp(mpmath.mpf(edge) / noise - 1 / (2 * noise**2)))
                    assert abs(exact - mpmath.mpf(loss)) <= gaussian_envelope._LOSS_ERROR / 2


def test_normal_tails_are_as_close_as_the_argument_takes_them_to_be():
    """Against 50 digits, to -14; a tail's own error and that of its argument fit into what is allowed."""
    mpmath = pytest.importorskip("mpmath")
    from scipy.special import ndtr

    points = np.concatenate([np.linspace(-14, 0, 1500), np.random.default_rng(0).uniform(-14, -8, 1500)])
    with mpmath.workdps(50):
        tails = [mpmath.ncdf(mpmath.mpf(point)) for point in points]
        errors = [abs(mpmath.mpf(float(ndtr(x))) / tail - 1) for x, tail in zip(points, tails, strict=True)]
    assert max(errors) <= 2.0**-44.3
    assert gaussian_envelope._TAIL_ERROR > 2.0**-44.3 + 2.0**-45


@pytest.mark.parametrize(("s", "q", "steps"), RUNS)
def test_it_lies_above_what_dp_accounting_knows_the_run_to_leak(s, q, steps):
    """dp_accounting's optimistic estimate lies below the run's curve, so the cover must lie above it; both ways."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    mu = least_mu(s, q, steps)
    spread = q * math.sqrt(math.expm1(s**-2))
    one = pld.from_gaussian_mechanism(
        s,
        sampling_prob=q,
        pessimistic_estimate=False,
        value_discretization_interval=spread / 40,
        use_connect_dots=False,
    )
    composed = one.self_compose(steps)
    epsilons = np.linspace(0, 7 * mu + mu * mu, 400)
    known = np.asarray(composed.get_delta_for_epsilon(epsilons)) - steps * 1e-14
    assert all(delta <= covered(mu, epsilon) for epsilon, delta in zip(epsilons, known, strict=True))
    assert known[0] > 0


@pytest.mark.parametrize(("s", "q", "steps"), RUNS[::3])
def test_it_is_hardly_looser_than_dp_accountings_own_bound(s, q, steps):
    """At delta = 1e-5, by at most an eighth of epsilon, and by a fiftieth where noise is above 3.5 and steps many."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    spread = q * math.sqrt(math.expm1(s**-2))
    one = pld.from_gaussian_mechanism(s, sampling_prob=q, value_discretization_interval=spread / 20)
    direct = one.self_compose(steps).get_epsilon_for_delta(1e-5)
    cover = gaussian_epsilon(least_mu(s, q, steps), 1e-5 - DELTA)
    assert cover <= direct * (1.04 if s > 3.5 else 1.25)


@settings(max_examples=15, deadline=None)
@given(s=st.floats(0.5, 20), q=st.floats(0.001, 0.99), steps=st.integers(1, 300))
def test_the_comparison_on_intervals_holds_between_their_ends(s, q, steps):
    """The run's curve on the grid, joined linearly in e^epsilon, lies below the cover at points between."""
    assume(gaussian_envelope.central_limit(s, q, steps) < 2)
    mu = least_mu(s, q, steps)
    for curve in gaussian_envelope.curves_of(s, q, steps):
        inside = np.sort(np.random.default_rng(0).uniform(0, curve.epsilons[-1], 100))
        chords = np.interp(np.exp(inside), np.exp(curve.epsilons), curve.deltas)
        assert all(chord <= covered(mu, e) for e, chord in zip(inside, chords, strict=True))


@pytest.mark.parametrize(("s", "q", "steps"), RUNS)
def test_the_curve_of_one_step_on_the_grid_lies_closely_above_the_exact_one(s, q, steps):
    for curve, direction in zip(gaussian_envelope.curves_of(s, q, 1), (0, 1), strict=True):
        for epsilon, delta in list(zip(curve.epsilons, curve.deltas, strict=True))[1::7]:
            exact = one_step(s, q, epsilon)[direction]
            assert exact * (1 - 1e-12) <= delta
            assert delta <= exact * 1.1 + 1e-10


HEAVY = (0.5787, 5.57e-5, 203)
"""Losses rarely above zero, and then thousands of times their standard deviation."""


@settings(max_examples=60, deadline=None)
@given(
    s=st.floats(math.log(0.2501), math.log(1e6)).map(math.exp),
    q=st.floats(math.log(1e-6), math.log(0.99)).map(math.exp),
    truncated=st.sampled_from([2.0**-50, 2.0**-70]),
)
def test_no_parameters_make_a_law_longer_than_the_rounding_bound_provides_for(s, q, truncated):
    spread = min(1 / s, gaussian_envelope.central_limit(s, q, 1))
    for law in gaussian_envelope.one_step(s, q, spread / 20, truncated):
        assert len(law.masses) <= gaussian_envelope._MOST_POINTS
        assert len((law @ law).masses) <= gaussian_envelope._MOST_POINTS


def test_rare_large_losses_are_covered_at_every_epsilon():
    mu = least_mu(*HEAVY)
    assert covers(mu, *HEAVY)
    assert not covers(mu * (1 - 1e-6), *HEAVY)
    for epsilon in np.linspace(0, 8, 200):
        assert max(one_step(*HEAVY[:2], epsilon)) <= covered(mu, epsilon)

    # Whether any step was above a threshold can be told from the run, and shows that nine tenths of mu would not do.
    s, q, steps = HEAVY
    beyond = norm.sf(np.linspace(4, 12, 400)), norm.sf(np.linspace(4, 12, 400) - 1 / s)
    absent, present = (-np.expm1(steps * np.log1p(-p)) for p in (beyond[0], (1 - q) * beyond[0] + q * beyond[1]))
    epsilons = np.linspace(0, 6, 100)
    told = np.max(present - np.exp(epsilons)[:, None] * absent, axis=1)
    assert any(delta > covered(0.9 * mu, e) for delta, e in zip(told, epsilons, strict=True))


def deltas(law, epsilons):
    gaps = np.maximum(-np.expm1(np.subtract.outer(epsilons, law.points)), 0)
    return gaps @ law.masses + law.infinite


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), first=st.integers(-9, 9), count=st.integers(1, 12), h=st.floats(1e-6, 3))
def test_a_coarser_law_has_no_smaller_delta_anywhere(seed, first, count, h):
    """Every event of either law stays at least as likely, and what both tell only grows; on its own and composed."""
    masses = np.random.default_rng(seed).dirichlet(np.ones(count))
    fine = gaussian_envelope._Law(masses, first, h, 0.0, 0.0)
    coarse = fine.coarser()
    epsilons = np.linspace(fine.points[0] - 3 * h, fine.points[-1] + 3 * h, 200)

    assert coarse.interval == 2 * h
    assert np.all(deltas(coarse, epsilons) >= deltas(fine, epsilons) * (1 - 2.0**-50))
    assert coarse.masses.sum() == pytest.approx(1, rel=1e-12)
    assert (coarse.masses * np.exp(-coarse.points)).sum() == pytest.approx(
        (fine.masses * np.exp(-fine.points)).sum(), rel=1e-12
    )
    exact = gaussian_envelope._Law(np.convolve(masses, masses), 2 * first, h, 0.0, 0.0)
    assert np.all(deltas(coarse @ fine, 2 * epsilons) >= deltas(exact, 2 * epsilons) * (1 - 2.0**-50))


def test_rounding_in_a_composition_is_as_small_as_it_is_taken_to_be():
    """Against whole numbers: 16 losses of 60 values each, by squaring."""
    whole = [int(x) for x in np.random.default_rng(5).integers(1, 2**20, 60)]
    exact = whole
    for _ in range(4):
        exact = [
            sum(exact[i] * exact[k - i] for i in range(max(0, k - len(exact) + 1), min(k + 1, len(exact))))
            for k in range(2 * len(exact) - 1)
        ]
    law = gaussian_envelope._Law(np.array(whole) * 2.0**-30, 0, 1.0, 0.0, 0.0)
    found = gaussian_envelope.composed_law(law, 16).masses

    for mass, number in zip(found, exact, strict=True):
        assert abs(Fraction(float(mass)) * 2**480 / number - 1) <= 16 * len(exact) * Fraction(1, 2**52)


@pytest.mark.parametrize(("s", "q", "steps"), [*RUNS[::2], (10.0, 1.0, 20)])
def test_what_is_covered_is_covered_and_what_is_less_is_not(s, q, steps):
    mu = least_mu(s, q, steps)
    assert covers(mu, s, q, steps)
    assert covers(mu * 1.1, s, q, steps)
    assert not covers(mu * (1 - 1e-6), s, q, steps)
    assert not covers(0.0, s, q, steps)


@pytest.mark.parametrize(("q", "steps"), [(1.0, 40), (0.3, 100), (0.05, 400), (0.5, 1)])
def test_the_least_noise_for_a_budget_costs_it_and_not_less(q, steps):
    mu = gaussian_mu(1.0, 1e-5)
    noise = least_noise(mu, q, steps)
    assert covers(mu, noise, q, steps)
    assert not covers(mu, noise * 0.9995, q, steps)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, 1.5, 10), "sampling rate"),
        ((1.0, 0.0, 10), "sampling rate"),
        ((0.1, 0.5, 10), "noise multiplier"),
        ((float("nan"), 0.5, 10), "noise multiplier"),
        ((1.0, 0.5, 0), "number of steps"),
        ((0.5, 0.5, 5000), "costs more than mu = 4"),
        ((0.5, 1.0, 5000), "costs more than mu = 4"),
    ],
)
def test_nonsense_and_too_little_noise_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        least_mu(*arguments)


def test_the_sampler_has_room_where_noise_is_not_small_and_not_where_it_is():
    check_sampler(0.7, 1000, 100_000, 2.0**-104)
    check_sampler(20.0, 100_000, 10**6, 2.0**-104)
    with pytest.raises(ValueError, match="add more noise"):
        check_sampler(0.25, 1000, 100_000, 2.0**-104)
    with pytest.raises(ValueError, match="add more noise"):
        check_sampler(5.0, 1000, 100_000, 2.0**-60)
