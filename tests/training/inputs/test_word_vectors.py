"""Public word vectors: what files are read, what a text becomes, and what bad files are told."""

import gzip
import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.errors import BundleError, DataError
from training.inputs import word_vectors
from training.inputs.columns import TextColumn, Vectors, encode_rows
from training.inputs.word_vectors import FILE, open_bundled, read_word_vectors

WORDS = {"the": [0.1, 0.2, -3.0], "Cat": [1.0, -2.0, 0.5], "dog": [1.5, -1.0, 0.0], ".": [9.0, 9.0, 9.0]}
GLOVE = "".join(f"{word} {' '.join(map(str, numbers))}\n" for word, numbers in WORDS.items())


@pytest.fixture
def written(tmp_path):
    def write(content, name="vectors.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def vectors(written):
    return read_word_vectors(written(GLOVE))


def column_of(vectors, **more):
    return TextColumn(name="t", buckets=8, vectors=Vectors(sha256=vectors.sha256, width=vectors.width), **more)


def encoded(vectors, *texts):
    return encode_rows((column_of(vectors, required=True, missing=()),), [{"t": text} for text in texts])[:, 8:]


def test_every_form_of_a_file_is_the_same_table(written, tmp_path, vectors):
    arrays = tmp_path / "vectors.npz"
    np.savez(arrays, words=np.array(list(WORDS)), vectors=np.array(list(WORDS.values())))
    for path in (
        written("4 3\n" + GLOVE, "word2vec.txt"),
        written(GLOVE.replace("\n", " \r\n"), "fasttext.vec"),
        written(gzip.compress(GLOVE.encode()), "glove.txt.gz"),
        written(vectors.content(), "bundled.npy"),
        arrays,
    ):
        assert read_word_vectors(path).sha256 == vectors.sha256, path


def test_the_digest_is_that_of_the_file_that_a_bundle_holds(vectors):
    assert hashlib.sha256(vectors.content()).hexdigest() == vectors.sha256


def test_a_text_is_the_direction_of_its_words_weighted_by_their_ranks(vectors):
    (block,) = encoded(vectors, "The CAT, the cat. A unicorn!")
    expected = np.zeros(3)
    for rank, numbers in ((1, WORDS["the"]), (2, WORDS["Cat"])):
        expected += 2 * np.array(numbers) / math.hypot(*numbers) * rank / (rank + 80)
    np.testing.assert_allclose(block[:3] - block[3:], expected / math.hypot(*expected), atol=2e-3)
    assert (block >= 0).all()
    assert (np.minimum(block[:3], block[3:]) == 0).all()


def test_unknown_words_add_nothing(vectors):
    both = encoded(vectors, "dog", "dog unicorn", "unicorn", "", ".")
    np.testing.assert_array_equal(both[0], both[1])
    assert not both[2:].any()


def test_of_words_that_are_the_same_the_first_counts(written, vectors):
    again = read_word_vectors(written(GLOVE + "cat 7 7 7\nCAT 5 5 5\ndog 4 4 4\n"))
    assert again.sha256 == vectors.sha256


def test_a_word_may_hold_spaces_and_is_none_of_a_text_then(written, vectors):
    assert read_word_vectors(written(GLOVE + "at name@domain.com 1 2 3\n")).sha256 == vectors.sha256


def test_only_the_first_words_of_a_huge_file_are_read(written, vectors, monkeypatch):
    monkeypatch.setattr(word_vectors, "MOST_WORDS", 4)
    assert read_word_vectors(written(GLOVE + "bird 1 2\n")).sha256 == vectors.sha256


def test_a_row_has_the_same_bits_alone_and_among_others(vectors):
    texts = ["the cat", "the dog and the cat", "dog " * 5000, "the the dog"]
    together = encoded(vectors, *texts)
    for index, text in enumerate(texts):
        np.testing.assert_array_equal(encoded(vectors, text)[0], together[index])


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    table=st.lists(st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=3).filter(any), min_size=1, max_size=6),
    said=st.lists(st.integers(0, 7), max_size=40),
)
def test_no_text_is_longer_than_its_bound(tmp_path_factory, table, said):
    path = tmp_path_factory.mktemp("words") / "vectors.txt"
    path.write_text("".join(f"w{index} {' '.join(map(repr, vector))}\n" for index, vector in enumerate(table)))
    column = column_of(read_word_vectors(path), required=True, missing=())
    (row,) = encode_rows((column,), [{"t": " ".join(f"w{index}" for index in said)}])
    assert ((row >= 0) & (row <= 1)).all()
    squared = sum(Fraction(each) ** 2 for each in row.tolist())
    assert squared <= (1 + Fraction(1, 9)) * (1 + Fraction(1, 2**45))
    assert squared <= column.groups


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no line has a word"),
        (b"just some text\n", "could not convert"),
        (b"the 1 2 3\ncat 1 2\n", "line 2 has 2 numbers, and others have 3"),
        (b"the 1 2 3\ncat 1 2 3 4\n", "line 2 has 4 numbers, and others have 3"),
        (b"the 1 2 3\n\ncat 1 2 3\n", "line 2 has 0 numbers"),
        (b"2 3\nthe 1 2\n", "line 2 has 2 numbers, and others have 3"),
        (b"the\n", "1 to 1,024 numbers, not 0"),
        (b"1 5000\nthe 1\n", "1 to 1,024 numbers, not 5,000"),
        (b"the 1 nan 3\n", "line 1 has numbers that are not finite"),
        (b"the 1 2\ncat 1 1e400\n", "line 2 has numbers that are not finite"),
        (b"the 1 2 3\nca\xfft 1 2 3\n", "line 2: 'utf-8' codec"),
        (b", 1 2 3\n. 4 5 6\n", "no line has a word that a text could have"),
        (b"the 0 0 0\n", "no line has a word that a text could have"),
        (b"x" * 2**17, "line 1 has 65,536 bytes or more"),
        (gzip.compress(b"the 1 2 3\n" * 99, mtime=0)[:-9], "is damaged"),
        (b"PK\x03\x04 no archive", "is damaged"),
        (b"\x93NUMPY\x01\x00", "no table of word vectors"),
    ],
    ids=lambda each: each if isinstance(each, str) else str(each[:20]),
)
def test_what_is_no_such_file_is_refused_with_its_line(written, content, said):
    with pytest.raises(DataError, match=r"vectors\.txt") as refused:
        read_word_vectors(written(content))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"vectors": np.ones((2, 3))}, "the arrays words and vectors, not vectors"),
        ({"words": np.array(["a", "b"]), "vectors": np.ones((3, 3))}, "words must be texts"),
        ({"words": np.array(["a"]), "vectors": np.array([[np.inf]])}, "row 0 has numbers that are not finite"),
        ({"words": np.array(["a"], dtype=object), "vectors": np.ones((1, 1))}, "allow_pickle"),
    ],
)
def test_arrays_that_hold_no_vectors_are_refused(tmp_path, arrays, said):
    np.savez(tmp_path / "vectors.npz", **arrays)
    with pytest.raises(DataError) as refused:
        read_word_vectors(tmp_path / "vectors.npz")
    assert said in str(refused.value)


def test_arrays_that_are_too_large_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(word_vectors, "LARGEST_ARRAYS", 1000)
    np.savez_compressed(tmp_path / "vectors.npz", words=np.array(["a"]), vectors=np.zeros((1, 1000)))
    with pytest.raises(DataError, match="may have 1,000"):
        read_word_vectors(tmp_path / "vectors.npz")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot read"):
        read_word_vectors(tmp_path / "none.txt")


def test_a_bundle_without_its_table_or_with_another_is_refused(tmp_path, vectors):
    with pytest.raises(BundleError, match="lacks its word vectors"):
        open_bundled(tmp_path, vectors.sha256)
    (tmp_path / FILE).write_bytes(vectors.content()[:-2] + b"\x01\x01")
    with pytest.raises(BundleError, match="the certificate says"):
        open_bundled(tmp_path, vectors.sha256)


def test_a_column_whose_table_was_not_read_says_what_to_read():
    column = TextColumn(name="t", vectors=Vectors(sha256="0" * 64, width=3))
    with pytest.raises(DataError, match=r"'t' needs the public word vectors with the SHA-256 0000"):
        encode_rows((column,), [{"t": "cat"}])
