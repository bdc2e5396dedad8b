"""The noise of a question is a function of the question: of all of it, and of nothing else."""

import hashlib
import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpserve.accounting.losses import GaussianLoss, LaplaceLoss
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.label import Label
from dpserve.mechanisms.laplace import Laplace
from dpserve.mechanisms.mechanism import noise_context
from dpserve.mechanisms.published import Published
from dpserve.mechanisms.randomness import KeyedRandomness, NoiseKey, frame_parts
from dpserve.mechanisms.selected_neuron import SelectedNeuron

KEY = NoiseKey(bytes(range(32)))
MECHANISMS = [
    Gaussian(5.0),
    Laplace(0.2),
    Label(0.2),
    SelectedNeuron(0.1, LaplaceLoss(0.1)),
    SelectedNeuron(0.1, GaussianLoss(0.1)),
    Label(0.2, "permute-and-flip"),
    Published(3, 1.0, "laplace"),
    Published(3, 1.0, "gaussian"),
]


def questions(count, start=0):
    """Questions that differ in a single step of phi."""
    return [np.array([start + number, 7], dtype="<i4").tobytes() for number in range(count)]


def words_of(key, context, question, count=50):
    return KeyedRandomness(key, context, [question]).words(count)


def test_words_are_what_the_module_says():
    """Derived again from BLAKE2b and ChaCha20, so that what was answered once is answered again by later versions."""
    context, question = b"context", b"question"
    written = len(context).to_bytes(8, "little") + context + question
    derived = hashlib.blake2b(written, key=KEY.secret, person=b"dpserve question", digest_size=64).digest()
    stream = Cipher(algorithms.ChaCha20(derived[:32], bytes(16)), mode=None).encryptor().update(bytes(80))
    randomness = KeyedRandomness(KEY, context, [question])
    np.testing.assert_array_equal(randomness.words(10), np.frombuffer(stream, dtype="<u8"))
    assert randomness.digests == (derived[48:],)


@given(seed=st.integers(0, 2**32 - 1), each=st.integers(0, 40))
def test_a_questions_words_depend_neither_on_the_others_nor_on_its_place(seed, each):
    generator = np.random.default_rng(seed)
    asked = questions(12)
    alone = {question: words_of(KEY, b"c", question, each) for question in asked}
    some = [asked[index] for index in generator.integers(12, size=generator.integers(1, 30))]
    together = KeyedRandomness(KEY, b"c", some)
    found = together.words(each * len(some)).reshape(len(some), each)
    np.testing.assert_array_equal(found, np.stack([alone[question] for question in some]))
    assert together.digests == tuple(KeyedRandomness(KEY, b"c", [question]).digests[0] for question in some)


def test_each_call_goes_on_where_the_last_one_ended():
    randomness = KeyedRandomness(KEY, b"c", questions(3))
    parts = [randomness.words(3 * count).reshape(3, count) for count in (1, 0, 7, 30)]
    whole = KeyedRandomness(KEY, b"c", questions(3)).words(3 * 38).reshape(3, 38)
    np.testing.assert_array_equal(np.hstack(parts), whole)


def test_some_of_the_questions_have_their_words_from_the_beginning():
    randomness = KeyedRandomness(KEY, b"c", questions(5))
    words = randomness.words(50).reshape(5, 10)
    some = randomness.for_rows([4, 1, 1])
    assert some.digests == tuple(randomness.digests[row] for row in (4, 1, 1))
    np.testing.assert_array_equal(some.words(30).reshape(3, 10), words[[4, 1, 1]])
    assert randomness.for_rows([]).words(0).shape == (0,)


@pytest.mark.parametrize("count", [-3, 1, 4])
def test_words_that_cannot_be_shared_are_refused(count):
    with pytest.raises(ValueError, match="cannot be shared evenly among 3"):
        KeyedRandomness(KEY, b"c", questions(3)).words(count)


def test_any_change_of_key_context_or_question_changes_all_words():
    """Equal words among 5,900 independent ones: a chance below 1e-12."""
    keys = [KEY] + [NoiseKey(bytes(byte ^ (bit == index) for index, byte in enumerate(KEY.secret))) for bit in (0, 31)]
    contexts = [
        noise_context(model, mechanism)
        for model in ("0" * 32, "0" * 31 + "1")
        for mechanism in [
            *MECHANISMS,
            Gaussian(np.nextafter(5.0, 6.0)),
            Label(0.1),
            SelectedNeuron(0.2, LaplaceLoss(0.1)),
        ]
    ]
    found = [
        (words_of(key, context, question, 30), KeyedRandomness(key, context, [question]).digests[0])
        for key, context, question in itertools.product(keys, contexts, [*questions(3), questions(1)[0] + b"\0"])
    ]
    words = np.concatenate([words for words, _ in found])
    assert len(np.unique(words)) == len(words)
    assert len({digest for _, digest in found}) == len(found) == 264


def test_a_price_is_part_of_the_question_even_with_the_same_noise():
    class Dearer(Gaussian):
        @property
        def cost(self):
            return Gaussian(1.0).cost

        def __repr__(self):
            return repr(Gaussian(self.noise_multiplier))

    assert repr(Dearer(5.0)) == repr(Gaussian(5.0))
    assert noise_context("m", Dearer(5.0)) != noise_context("m", Gaussian(5.0))


@given(st.lists(st.binary(max_size=5), max_size=4), st.lists(st.binary(max_size=5), max_size=4))
def test_no_two_lists_of_parts_are_framed_alike(some, others):
    assert (frame_parts(*some) == frame_parts(*others)) == (some == others)


def test_words_of_neighbouring_questions_are_independent_and_fair():
    """Tests at a false-alarm rate of 1e-7 each: bits of each place, equal bits of neighbours, and the words' ranks."""
    words = KeyedRandomness(KEY, b"c", questions(20_000)).words(20_000)
    bits = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).astype(bool)
    for counted in (bits.sum(axis=0), (bits[1:] == bits[:-1]).sum(axis=0)):
        z = (counted - 10_000) / np.sqrt(5_000)
        assert stats.chi2.sf((z**2).sum(), 64) > 1e-7
    uniform = words / 2.0**64
    assert stats.kstest(uniform, "uniform").pvalue > 1e-7
    assert abs(stats.spearmanr(uniform[1:], uniform[:-1]).statistic) < 5.4 / np.sqrt(20_000)


class Recorded:
    """Counts the calls for words."""

    def __init__(self, source):
        self.source, self.calls = source, []

    def words(self, count):
        self.calls.append(count)
        return self.source.words(count)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: f"{mechanism.name}")
def test_a_rows_answer_is_the_same_beside_any_others(mechanism):
    generator = np.random.default_rng(4)
    logits, sensitivity = generator.normal(size=(64, 3)) * 4, generator.uniform(0.01, 1, 64)
    context = noise_context("0" * 32, mechanism)
    recorded = Recorded(KeyedRandomness(KEY, context, questions(64)))
    together = mechanism.release(logits, sensitivity, recorded)
    assert len(recorded.calls) == 1, "words are row after row only if a row takes its own at once"
    assert recorded.calls[0] % 64 == 0
    for size in (1, 2, 7, 32):
        for _ in range(64 // size):
            rows = generator.permutation(64)[:size]
            noise = KeyedRandomness(KEY, context, questions(64)).for_rows(rows.tolist())
            alone = mechanism.release(logits[rows], sensitivity[rows], noise)
            np.testing.assert_array_equal(alone, together[rows])


def test_answers_are_those_of_this_noise_version():
    """Paid questions are answered with the same bytes for ever: a change here needs another `NOISE_VERSION`."""
    logits, sensitivity = np.array([[1.5, -0.25, 0.125], [0.0, 3.0, -1.0]]), np.array([0.25, 0.5])
    found = []
    for mechanism in MECHANISMS[:6]:
        noise = KeyedRandomness(KEY, noise_context("0" * 32, mechanism), questions(2))
        answers = mechanism.release(logits, sensitivity, noise)
        found.append(hashlib.sha256(answers.astype("<f8").tobytes()).hexdigest()[:16])
    assert found == [
        "53b745c2377efe96",
        "381535f8acfdc5a6",
        "6cdc628fb753ec8c",
        "14dda7f680cbd614",
        "58dbddd3ce91bd4b",
        "b76a51d51658b896",
    ]


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_key_of_another_length_is_refused(length):
    with pytest.raises(ValueError, match="has 32 bytes"):
        NoiseKey(bytes(length))


def test_keys_are_fresh_and_never_printed():
    keys = [NoiseKey.fresh() for _ in range(100)]
    assert len({key.secret for key in keys}) == 100
    assert repr(keys[0]) == str(keys[0]) == "NoiseKey()"
