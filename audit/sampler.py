"""The audit of the one sampler that noise is drawn with: its tables, its draws, its forks, and the time that it takes.

Five questions, each with an answer that would be different for a broken sampler:

- Is the table's law within `dpserve.mechanisms.noise.DISTANCE` of the ideal law? Exactly, threshold by threshold.
- Do draws follow the law, from the operating system's randomness and, of questions that differ in one step, from a
  noise key? Chi-square, at a stated false-alarm rate.
- Does every function that draws draw as much as its price promises (`dpserve.audit.scales`)?
- Do processes that fork from one another ever draw the same words, or two questions? And does one question ever draw
  other words, wherever it is asked?
- Does the time of a release depend on the logits? A correlation, and a comparison of two classes of logits.
"""

import math
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, get_args

import numpy as np
import scipy.special
import scipy.stats
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats, Integers, Words
from dpserve.audit.progress import OnStage
from dpserve.audit.scales import ScaleTest, scale_tests
from dpserve.mechanisms.mechanism import Law, Mechanism
from dpserve.mechanisms.noise import DISTANCE, InversionTable, rounded_gaussian, rounded_laplace
from dpserve.mechanisms.randomness import KeyedRandomness, NoiseKey, Randomness, SystemRandomness
from dpserve.mechanisms.registry import all_mechanisms, priced
from dpserve.mechanisms.selection import probabilities, select_by, words_of
from dpserve.mechanisms.wide_gaussian import SCALE as WIDE_SCALE
from dpserve.mechanisms.wide_gaussian import wide_gaussian

LawName = Literal["gaussian", "wide gaussian", "laplace"]

GAUSSIAN_SCALES = (2**8, 2**9, 2**10, 2**12)
"""Some that releases use, and the digits of the wide Gaussian. 2^16 takes minutes."""
LAPLACE_SCALES = (2**16, 2**24)
_BATCH = 1_000_000
_FORKS, _FORKED_WORDS = 8, 100_000
_QUESTIONS = 2_000
_SELECTION_EPSILON, _SELECTED_AMONG = 1.0, 10
_CONTEXT = b"audit sampler"
_BITS = 127
_DIGITS = 60
_CELLS = 200
_RESIDUES = 16
_CROP = 0.95
_SELECTED_AT_ONCE = 100_000
_WIDE_VARIANCE = 2**48 + 2**32 + 2**18 + (2**28 + 2**14) / 12
"""T^2 and the variances of 2^14 U and 2^7 V, as `dpserve.mechanisms.wide_gaussian` states them."""
_AGAIN = 3.0
"""The |t| above which a mechanism is timed once more; chance alone exceeds it once in 370."""
_DUDECT = 4.5
"""The |t| from which the literature on constant time (Reparaz, Balasch and Verbauwhede 2017) speaks of a leak."""


@dataclass(frozen=True)
class ChiSquare:
    """One goodness-of-fit test. p: the probability of a statistic as large for the ideal law."""

    what: str
    cells: int
    statistic: float
    p: float


@dataclass(frozen=True)
class Timing:
    """The correlation of the time of one row's release with its logits.

    correlation: Spearman's, of the time with the named property of the logits; p: of one as large without any.
    """

    property: str
    correlation: float
    p: float


@dataclass(frozen=True)
class Timings:
    """Times of `releases` of random logits, in random order. t: Welch's, of logits that are all 0 against extreme ones.

    t is computed on the fastest 95 % of either class, for the rest tells of the machine.
    """

    releases: int
    median_microseconds: float
    correlations: tuple[Timing, ...]
    t: float

    @property
    def suspicious(self) -> bool:
        """Whether |t| is above the literature's 4.5. A busy machine can be, too: look again before believing it."""
        return abs(self.t) > _DUDECT


@dataclass(frozen=True)
class SamplerFinding:
    """The findings on the sampler. All but times convict, and those warn: a busy machine moves them.

    distances: of tables. tests: with the law that each is of. scales: of how much is drawn. false_alarm: of all tests
    together. repeated: words that came twice in forks. changed: questions that had other noise in another process.
    times: by mechanism.
    """

    distances: Mapping[str, float]
    tests: Sequence[tuple[str, ChiSquare]]
    scales: Sequence[ScaleTest]
    false_alarm: float
    repeated: int
    changed: int
    times: Mapping[str, Timings]

    @property
    def least_p(self) -> float:
        """Below which a test convicts."""
        return self.false_alarm / (len(self.tests) + len(self.scales))

    @property
    def faults(self) -> tuple[str, ...]:
        """The findings that convict the sampler."""
        return (
            *(name for name, distance in self.distances.items() if distance > DISTANCE),
            *(f"chi-square of {law}: {test.what}" for law, test in self.tests if test.p < self.least_p),
            *(f"{test.what}: not as much as is promised" for test in self.scales if test.p < self.least_p),
            *["forks share words"] * (self.repeated > 0),
            *["a question's noise changes"] * (self.changed > 0),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on the tests behind `repeated` and `changed`."""
        return (
            f"{_FORKS} processes forked from this one drew {_FORKED_WORDS} words each from one source: "
            f"{self.repeated} came twice.",
            f"{_QUESTIONS} questions were asked under one noise key together, and each alone in another process: "
            f"{self.changed} had other noise there.",
        )


def audit_sampler(
    scale: int | None, draws: int, releases: int, classes: int, false_alarm: float, progress: OnStage
) -> SamplerFinding:
    """Audit the sampler that releases use, with the operating system's randomness and a fresh noise key.

    scale: of one Gaussian table, or None for GAUSSIAN_SCALES. draws: for each law's tests. releases: timed of each
    mechanism, of C = `classes`. Raises ValueError for too few of them, or a false-alarm rate outside (0, 1).
    """
    if not 0 < false_alarm < 1:
        raise ValueError(f"the false-alarm rate lies between 0 and 1, not {false_alarm}")
    randomness, noise_key = SystemRandomness(), NoiseKey.fresh()
    # What is not proved does not promise to take the same time, either.
    timed = [mechanism for mechanism in all_mechanisms().values() if mechanism.status == "proven"]
    words_of_question = 2 * classes  # as many as a row's answer takes
    scales = GAUSSIAN_SCALES if scale is None else (scale,)
    laws: list[tuple[LawName, int]] = [("gaussian", table_scale) for table_scale in scales]
    laws += [("wide gaussian", WIDE_SCALE), *(("laplace", table_scale) for table_scale in LAPLACE_SCALES)]
    drawn: list[tuple[str, LawName, int, Randomness]]
    drawn = [(f"{law}, scale {of}", law, of, randomness) for law, of in laws]
    drawn.append(
        (f"gaussian, scale {scales[0]}, of questions", *laws[0], Questions(noise_key, _CONTEXT, words_of_question))
    )
    batches, size = max(1, draws // _BATCH), min(draws, _BATCH)
    steps = len(scales) + len(LAPLACE_SCALES) + (len(drawn) + len(get_args(Law))) * batches + len(timed) + 3
    done = count()

    def now(what: str) -> str:
        progress(what, next(done) / steps)
        return what

    distances = {now(f"gaussian, scale {table_scale}"): gaussian_table_distance(table_scale) for table_scale in scales}
    distances |= {
        now(f"laplace, scale {table_scale}"): laplace_table_distance(table_scale) for table_scale in LAPLACE_SCALES
    }
    tests: list[tuple[str, ChiSquare]] = []
    for batch in range(batches):
        for name, law, of, source in drawn:
            now(name)
            tests += [(name, test) for test in chi_squares(law, of, size, source)]
        for by in get_args(Law):
            selected = selections(by, _SELECTION_EPSILON, _SELECTED_AMONG, max(size, 10_000), randomness, batch)
            tests.append((now(f"selection: {by}"), selected))
    now("how much is drawn")
    scales_drawn = tuple(scale_tests(size, randomness))
    now("forks")
    repeated = repeated_words(randomness, _FORKS, _FORKED_WORDS)
    now("questions")
    changed = changed_words(noise_key, _CONTEXT, _QUESTIONS, words_of_question, 0)
    times = {
        now(mechanism.name): timings_that_count(
            priced(mechanism.name, mechanism.prices.audited[-1], classes), classes, releases, randomness
        )
        for mechanism in timed
    }
    return SamplerFinding(distances, tests, scales_drawn, false_alarm, repeated, changed, times)


def gaussian_table_distance(scale: int) -> float:
    """Return the total variation distance of the Gaussian table's law from that of rint(Y), Y from N(0, scale^2).

    Every threshold of 127 bits is read as an integer, every ideal mass computed to 60 digits; the mass beyond the
    table counts in full. Takes some 30 microseconds for each of 12 scale thresholds.
    """
    import mpmath  # a tenth of a second that nothing else should wait for

    law = rounded_gaussian(scale)
    with mpmath.workdps(_DIGITS):
        root = scale * mpmath.sqrt(2)
        half = mpmath.mpf(1) / 2
        distance = previous = mpmath.mpf(0)
        masses = _masses(law.magnitudes)
        for k, mass in enumerate(masses):
            within = mpmath.erf((k + half) / root)
            distance += abs(mpmath.mpf(mass) / 2**_BITS - (within - previous))
            previous = within
        return float((distance + 1 - previous) / 2)


def laplace_table_distance(scale: int) -> float:
    """Return a bound of the total variation distance of the Laplace draw's law from rint(Y), Y from Laplace(scale).

    The distance of a product of independent digits is at most the sum of theirs.
    """
    import mpmath

    with mpmath.workdps(_DIGITS):
        total = mpmath.mpf(0)
        step = mpmath.mpf(1) / (2 * scale)
        for table in rounded_laplace(scale).digits:
            masses = _masses(table)
            ratio = mpmath.exp(-step)
            total_mass = (1 - ratio ** len(masses)) / (1 - ratio)
            ideal = 1 / total_mass
            distance = mpmath.mpf(0)
            for mass in masses:
                distance += abs(mpmath.mpf(mass) / 2**_BITS - ideal)
                ideal *= ratio
            total += distance / 2
            step *= len(masses)
        return float(total + mpmath.exp(-step))


def _masses(table: InversionTable) -> list[int]:
    """Return the exact masses of the values 0, ..., K, in units of 2^-127."""
    thresholds = [(int(high) << 63) | int(low) for high, low in zip(table.high, table.low, strict=True)]
    return [after - before for before, after in zip([0, *thresholds], [*thresholds, 1 << _BITS], strict=True)]


def chi_squares(law_name: LawName, scale: int, draws: int, randomness: Randomness) -> tuple[ChiSquare, ...]:
    """Return four tests of `draws` draws: of their law, their signs, their last digits, and neighbours in sequence.

    Every expected count is at least draws/_CELLS; more than 5 are needed of it. Raises ValueError for fewer draws.
    """
    if draws < 10 * _CELLS:
        raise ValueError(f"a chi-square test with {_CELLS} cells needs at least {10 * _CELLS} draws, not {draws}")
    drawn = _test_draws(law_name, scale, draws, randomness)
    cdf = _distribution(law_name, scale)
    edges = _edges(cdf, scale)
    probabilities = np.diff(np.concatenate([[0.0], cdf(edges), [1.0]]))
    cells = np.searchsorted(edges, drawn, side="left")
    coarse = cells * 8 // len(probabilities)
    groups = np.arange(len(probabilities)) * 8 // len(probabilities)
    shares = np.array([probabilities[groups == group].sum() for group in range(8)], dtype=np.float64)
    # Pairs that do not overlap are independent.
    pairs = coarse[0 : draws // 2 * 2 : 2] * 8 + coarse[1 : draws // 2 * 2 : 2]
    signs = drawn[drawn != 0] > 0
    return (
        _chi_square("law", np.bincount(cells, minlength=len(probabilities)), probabilities),
        _chi_square("sign", np.bincount(signs.astype(np.int64), minlength=2), np.full(2, 0.5)),
        # The masses of all k with one remainder differ by less than exp(-2 pi^2 scale^2 / 16^2): 0, for these scales.
        _chi_square(
            "last digit", np.bincount(drawn % _RESIDUES, minlength=_RESIDUES), np.full(_RESIDUES, 1.0) / _RESIDUES
        ),
        _chi_square("pairs in sequence", np.bincount(pairs, minlength=64), (shares[:, None] * shares).ravel()),
    )


def _test_draws(law_name: LawName, scale: int, draws: int, randomness: Randomness) -> Integers:
    if law_name == "wide gaussian":
        if scale != WIDE_SCALE:
            raise ValueError(f"the wide Gaussian has the scale {WIDE_SCALE}, not {scale}")
        return wide_gaussian().sample(draws, randomness)
    law = rounded_gaussian(scale) if law_name == "gaussian" else rounded_laplace(scale)
    return law.draw(randomness.words(draws * law.words_per_draw).reshape(draws, law.words_per_draw))


def selections(by: Law, epsilon: float, classes: int, draws: int, randomness: Randomness, seed: int) -> ChiSquare:
    """Return a test of the selection of a class, on one row of random logits.

    Class v is expected as `selection.probabilities` has it, from which the real law is within 2^-18 of every
    probability, too little to be seen in a million draws. The logits spread over 6 sensitivities over epsilon, so that
    no class is too rare. Raises ValueError for few draws.
    """
    if draws < 1000 * classes:
        raise ValueError(f"a test of {classes} classes needs at least {1000 * classes} draws, not {draws}")
    logits = np.random.default_rng(seed).uniform(0, 6 / epsilon, classes)
    counts = np.zeros(classes, dtype=np.int64)
    words_of_row = words_of(by, classes)
    for start in range(0, draws, _SELECTED_AT_ONCE):
        count = min(_SELECTED_AT_ONCE, draws - start)
        words = randomness.words(count * words_of_row).reshape(count, words_of_row)
        selected = select_by(by, np.tile(logits, (count, 1)), np.ones(count), epsilon, words)
        counts += np.bincount(selected, minlength=classes)
    return _chi_square("selection", counts, probabilities(by, logits[None], np.ones(1), epsilon)[0])


def _distribution(law_name: LawName, scale: int) -> Callable[[Integers], Floats]:
    """Return P(rint(Y) <= k) = P(Y <= k + 1/2)."""
    if law_name == "laplace":
        return lambda k: np.asarray(scipy.stats.laplace.cdf(k + 0.5, scale=scale))
    # The uniform parts of the wide law (`dpserve.mechanisms.wide_gaussian`) add to the variance, and to nothing else
    # that could be seen: their fourth cumulant is 2^-46 of its square.
    deviation = math.sqrt(_WIDE_VARIANCE) if law_name == "wide gaussian" else float(scale)
    return lambda k: np.asarray(scipy.special.ndtr((k + 0.5) / deviation))


def _edges(cdf: Callable[[Integers], Floats], scale: int) -> Integers:
    """Return the integers at which the distribution function passes 1/_CELLS, 2/_CELLS, ..."""
    reach = np.arange(-8 * _CELLS, 8 * _CELLS + 1, dtype=np.int64) * scale // _CELLS
    return np.unique(reach[np.searchsorted(cdf(reach), np.arange(1, _CELLS) / _CELLS)])


def _chi_square(what: str, counts: NDArray[Any], probabilities: Floats) -> ChiSquare:
    test = scipy.stats.chisquare(counts, probabilities * counts.sum())
    return ChiSquare(what, len(counts), float(test.statistic), float(test.pvalue))


def repeated_words(randomness: Randomness, processes: int, words: int) -> int:
    """Return how many words came twice among those that this process and as many forked ones drew from one source.

    The source is used before the forks, so that whatever it might keep is inherited. Of honest words none repeats,
    except with probability (processes words)^2 / 2^65. Raises ValueError where the platform cannot fork.
    """
    before = randomness.words(words)
    drawn = [before, *_run_in_forks(lambda: randomness.words(words), processes), randomness.words(words)]
    together = np.concatenate(drawn)
    return len(together) - len(np.unique(together))


def _run_in_forks(work: Callable[[], Any], processes: int) -> list[Any]:
    """Return what `work` returns in so many processes forked from this one. Raises ValueError where none can be."""
    if "fork" not in multiprocessing.get_all_start_methods():
        raise ValueError("this platform cannot fork, so there is nothing to test")
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(processes)]

    def answer(place: int) -> None:
        for reader, _ in pipes:
            reader.close()  # or it would wait for ever for a reader that was killed, being one itself
        pipes[place][1].send(work())

    children = [context.Process(target=answer, args=(place,)) for place in range(processes)]
    for child in children:
        child.start()
    for _, writer in pipes:
        writer.close()
    replies = [reader.recv() for reader, _ in pipes]
    for child in children:
        child.join()
    return replies


class Questions:
    """Words for one question after another under one key, each `size` words: the noise of answers, as a stream."""

    def __init__(self, noise_key: NoiseKey, context: bytes, size: int) -> None:
        """context: as `dpserve.mechanisms.mechanism.noise_context` returns it."""
        self._key, self._context, self._size, self._asked = noise_key, context, size, 0

    def words(self, count: int) -> Words:
        """Return the words of the next count / size questions, rounded up. Shape (count,)."""
        questions = -(-count // self._size)
        start, self._asked = self._asked, self._asked + questions
        asked = [number.to_bytes(8, "little") for number in range(start, self._asked)]
        return KeyedRandomness(self._key, self._context, asked).words(questions * self._size)[:count]


def changed_words(noise_key: NoiseKey, context: bytes, questions: int, size: int, seed: int) -> int:
    """Return how many of so many questions have other words, or another digest, in a forked process and other batches.

    seed: of the order in which the other process asks. Raises ValueError where the platform cannot fork.
    """
    asked = [number.to_bytes(8, "little") for number in range(questions)]
    together = KeyedRandomness(noise_key, context, asked)
    words, digests = together.words(questions * size).reshape(questions, size), together.digests
    order = np.random.default_rng(seed).permutation(questions).tolist()

    def alone() -> list[tuple[bytes, bytes]]:
        sources = (KeyedRandomness(noise_key, context, [asked[place]]) for place in order)
        return [(source.digests[0], source.words(size).tobytes()) for source in sources]

    (changes,) = _run_in_forks(alone, 1)
    return sum((digests[place], words[place].tobytes()) != other for place, other in zip(order, changes, strict=True))


def timings(mechanism: Mechanism, classes: int, releases: int, randomness: Randomness, seed: int) -> Timings:
    """Time `releases` releases of one row each. seed: of the logits and of their order.

    Half of the rows have random logits of many sizes, whose times are correlated with properties of theirs. The other
    half are all 0, or extreme (one logit of 1000, or of 1e-300 and of either sign), in random order.
    """
    if releases < 100:
        raise ValueError(f"timing needs at least 100 releases, not {releases}")
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(releases, classes)) * 10.0 ** rng.uniform(-3, 2.5, (releases, 1))
    kinds = rng.integers(4, size=releases)  # 0, 1: random; 2: zeros; 3: extreme
    rows[kinds >= 2] = 0.0
    extreme = np.flatnonzero(kinds == 3)
    rows[extreme, rng.integers(classes, size=len(extreme))] = rng.choice([1e3, -1e3, 1e-300], len(extreme))
    sensitivity = np.ones(1)
    for row in rows[: releases // 10]:
        mechanism.release(row[None], sensitivity, randomness)
    taken = np.empty(releases)
    for index, row in enumerate(rows):
        logits = row[None].copy()
        start = time.perf_counter_ns()
        mechanism.release(logits, sensitivity, randomness)
        taken[index] = time.perf_counter_ns() - start
    spread, ordered = kinds < 2, np.sort(rows, axis=1)
    properties = {
        "largest logit": ordered[:, -1],
        "spread": ordered[:, -1] - ordered[:, 0],
        "margin": ordered[:, -1] - ordered[:, -2],
        "predicted class": rows.argmax(axis=1).astype(np.float64),
    }
    correlations = []
    for name, values in properties.items():
        correlation = scipy.stats.spearmanr(values[spread], taken[spread])
        correlations.append(Timing(name, float(correlation.statistic), float(correlation.pvalue)))
    fastest = (scipy.stats.trim1(taken[kinds == kind], 1 - _CROP) for kind in (2, 3))
    t = scipy.stats.ttest_ind(*fastest, equal_var=False).statistic
    return Timings(releases, float(np.median(taken)) / 1e3, tuple(correlations), float(t))


def timings_that_count(mechanism: Mechanism, classes: int, releases: int, randomness: Randomness) -> Timings:
    """Time a mechanism, and once more where |t| is above 3, with twice as many releases: the second look counts."""
    timing = timings(mechanism, classes, releases, randomness, 0)
    return timings(mechanism, classes, 2 * releases, randomness, 1) if abs(timing.t) > _AGAIN else timing
