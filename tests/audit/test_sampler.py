"""The sampler's audit acquits the sampler and convicts broken ones. No test here measures time."""

import numpy as np
import pytest

from dpserve.audit import sampler
from dpserve.mechanisms.noise import DISTANCE, InversionTable, RoundedGaussian, rounded_gaussian
from dpserve.mechanisms.randomness import KeyedRandomness, NoiseKey, SystemRandomness
from dpserve.mechanisms.seeded import SeededRandomness

FALSE_ALARM = 1e-7
"""The false-alarm rate of one law's test, or of four together: 1e-6 for all tests below."""


def test_the_tables_are_within_the_distance():
    assert 0 < sampler.gaussian_table_distance(2**8) <= DISTANCE
    assert 0 < sampler.laplace_table_distance(2**16) <= DISTANCE


def test_a_table_with_one_wrong_threshold_is_found(monkeypatch):
    honest = rounded_gaussian(2**8)
    high = honest.magnitudes.high.copy()
    high[100] += np.uint64(1 << 12)  # 2^-52 of probability moves from one value to its neighbour
    wrong = RoundedGaussian(honest.scale, InversionTable(high, honest.magnitudes.low))
    monkeypatch.setattr(sampler, "rounded_gaussian", lambda scale: wrong)
    assert sampler.gaussian_table_distance(2**8) == pytest.approx(2.0**-52, rel=1e-6)


@pytest.mark.parametrize(
    ("law", "scale"),
    [
        ("gaussian", 2**8),
        ("gaussian", 2**12),
        ("wide gaussian", 2**24),
        ("laplace", 2**16),
        ("laplace", 2**24),
    ],
)
def test_draws_follow_the_law(law, scale):
    for found in sampler.chi_squares(law, scale, 200_000, SeededRandomness(0, (law, str(scale)))):
        assert found.p > FALSE_ALARM / 4, found


@pytest.mark.parametrize("law", ["exponential", "permute-and-flip"])
def test_selections_follow_their_law(law):
    for classes in (2, 10):
        source = SeededRandomness(0, ("selection", str(classes)))
        found = sampler.selections(law, 1.0, classes, 200_000, source, classes)
        assert found.cells == classes
        assert found.p > FALSE_ALARM / 4, found


@pytest.mark.parametrize("law", ["exponential", "permute-and-flip"])
def test_a_selection_of_another_epsilon_is_found(monkeypatch, law):
    """One that tells 3 % more than it costs."""
    honest = sampler.select_by
    monkeypatch.setattr(sampler, "select_by", lambda by, z, d, epsilon, words: honest(by, z, d, 1.03 * epsilon, words))
    assert sampler.selections(law, 1.0, 10, 200_000, SeededRandomness(0, ("louder",)), 0).p < 1e-9


def test_a_wide_gaussian_that_is_too_narrow_is_found(monkeypatch):
    honest = sampler.wide_gaussian()

    class Narrow:
        def sample(self, size, randomness):
            return np.rint(honest.sample(size, randomness) * 0.95).astype(np.int64)

    monkeypatch.setattr(sampler, "wide_gaussian", Narrow)
    found = {one.what: one.p for one in sampler.chi_squares("wide gaussian", 2**24, 200_000, SeededRandomness(0, ()))}
    assert found["law"] < 1e-9
    with pytest.raises(ValueError, match="the wide Gaussian has the scale"):
        sampler.chi_squares("wide gaussian", 2**8, 200_000, SeededRandomness(0, ()))


def test_times_that_look_odd_are_taken_again(monkeypatch):
    """The second look, with other logits and twice as many releases, is the one that counts."""
    asked = []

    def timed(mechanism, classes, releases, randomness, seed):
        asked.append((releases, seed))
        return sampler.Timings(releases, 1.0, (), [3.6, 0.5][seed])

    monkeypatch.setattr(sampler, "timings", timed)
    found = sampler.timings_that_count(None, 3, 1000, None)
    assert asked == [(1000, 0), (2000, 1)]
    assert (found.t, found.suspicious) == (0.5, False)
    monkeypatch.setattr(sampler, "timings", lambda *_: sampler.Timings(1000, 1.0, (), 2.9))
    assert sampler.timings_that_count(None, 3, 1000, None).releases == 1000


class Faulty:
    """Words of a seeded source with a fault."""

    def __init__(self, fault):
        self.source, self.fault = SeededRandomness(0, ("faulty",)), fault

    def words(self, count):
        return self.fault(self.source.words(count))


def unfair_sign(words):
    return words | (np.arange(len(words)) % 40 == 1).astype(np.uint64)


def repeating(words):
    return np.repeat(words[: len(words) // 2 + 2].reshape(-1, 2), 2, axis=0).ravel()[: len(words)]


def narrower(words):
    return words - (words >> np.uint64(6))


@pytest.mark.parametrize(
    ("fault", "seen_by"), [(unfair_sign, "sign"), (repeating, "pairs in sequence"), (narrower, "law")]
)
def test_faulty_randomness_is_found(fault, seen_by):
    found = {test.what: test.p for test in sampler.chi_squares("gaussian", 2**8, 200_000, Faulty(fault))}
    assert found[seen_by] < 1e-9, found


@pytest.mark.fresh_noise
def test_forks_never_share_words_and_a_source_that_keeps_its_state_is_found():
    assert sampler.repeated_words(SystemRandomness(), 3, 2000) == 0
    assert sampler.repeated_words(SeededRandomness(0, ("forked",)), 3, 2000) >= 3 * 2000


KEY = NoiseKey(bytes(range(32)))


def test_the_noise_of_questions_follows_the_law_and_stays_what_it_is():
    """Two-sided false-alarm rates of 1e-7 for each of four tests."""
    questions = sampler.Questions(KEY, b"a test", 20)
    assert all(test.p > 1e-7 for test in sampler.chi_squares("gaussian", 2**8, 100_000, questions))
    assert sampler.changed_words(KEY, b"a test", 100, 20, 0) == 0


def test_a_source_that_keeps_its_state_changes_the_noise_of_questions(monkeypatch):
    class Stateful:
        drawn = 0

        def __init__(self, noise_key, context, questions):
            self.sound = KeyedRandomness(noise_key, context, questions)
            self.digests = self.sound.digests

        def words(self, count):
            Stateful.drawn += 1
            return self.sound.words(count) + np.uint64(Stateful.drawn)

    monkeypatch.setattr(sampler, "KeyedRandomness", Stateful)
    assert sampler.changed_words(KEY, b"a test", 100, 20, 0) == 100


def test_questions_that_share_words_are_found():
    class Short(sampler.Questions):
        def words(self, count):
            return np.tile(super().words(count // 2), 2)

    found = {test.what: test.p for test in sampler.chi_squares("gaussian", 2**8, 100_000, Short(KEY, b"a test", 20))}
    assert min(found.values()) < 1e-9


def test_too_little_is_refused():
    with pytest.raises(ValueError, match="at least 2000 draws"):
        sampler.chi_squares("gaussian", 2**8, 100, SeededRandomness(0, ()))
    with pytest.raises(ValueError, match="at least 100"):
        sampler.timings(None, 3, 10, SeededRandomness(0, ()), 0)


def test_times_that_follow_the_logits_are_found(monkeypatch):
    """A clock that the logits advance: the statistics see it, and see nothing where it advances evenly at random."""
    rng = np.random.default_rng(0)
    clock = [0]

    class Slow:
        def __init__(self, follows):
            self.follows = follows

        def release(self, logits, sensitivity, randomness):
            clock[0] += int(10_000 + rng.integers(1000) + self.follows * 10 * min(np.ptp(logits), 100))

    monkeypatch.setattr(sampler.time, "perf_counter_ns", lambda: clock[0])
    even = sampler.timings(Slow(0), 3, 4000, None, 0)
    assert not even.suspicious
    assert all(found.p > FALSE_ALARM for found in even.correlations)
    uneven = sampler.timings(Slow(1), 3, 4000, None, 0)
    assert uneven.suspicious
    assert min(found.p for found in uneven.correlations) < 1e-9
    assert uneven.median_microseconds > 10
