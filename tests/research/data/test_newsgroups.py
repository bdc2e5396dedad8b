"""The newsgroups' messages, as hashed words and by an encoder."""

import numpy as np
import pytest

from dpserve.training.errors import DataError
from research.data import newsgroups
from tests.training.text_encoders import WIDTH, write_encoder

HEADER = "Category\tText\nd\tstring\nclass\t\n"


GROUPS = [f"group.{index:02}" for index in range(20)]


@pytest.fixture
def messages(tmp_path):
    for part in ("train", "test"):
        lines = "".join(f"{group}\tword{index} said good\n" for index, group in enumerate(GROUPS))
        (tmp_path / f"20newsgroups-{part}.tab").write_text(HEADER + lines)
    return tmp_path


def test_messages_are_read_with_their_groups(messages):
    found = newsgroups.read(messages)
    assert found.X.shape == (40, newsgroups.BUCKETS)
    assert np.array_equal(found.y, np.tile(np.arange(20), 2))
    np.testing.assert_allclose(np.linalg.norm(found.X, axis=1), 1, rtol=1e-6)


def test_messages_are_read_by_an_encoder(messages):
    write_encoder(messages / newsgroups.ENCODER)
    found = newsgroups.read_by_encoder(messages)
    assert found.X.shape == (40, 2 * WIDTH)
    np.testing.assert_allclose(np.linalg.norm(found.X, axis=1), 1, rtol=1e-6)


def test_the_presence_of_words_leaves_out_the_commonest(messages, monkeypatch):
    monkeypatch.setattr(newsgroups, "_COMMONEST", 2)
    found = newsgroups.read_presence(messages)
    assert found.X.shape == (40, len(newsgroups.presence_columns()))
    assert np.array_equal(found.X @ found.X.T, found.y[:, None] == found.y)


def test_missing_and_empty_messages_are_named(tmp_path):
    with pytest.raises(DataError, match="newsgroups"):
        newsgroups.read(tmp_path)
    (tmp_path / "20newsgroups-train.tab").write_text(HEADER)
    with pytest.raises(DataError, match="the file is empty"):
        newsgroups.read(tmp_path)
