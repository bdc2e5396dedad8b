import numpy as np
import pytest

from research.bernau2021.dissimilarity import MEASURES, dissimilarity, most_unlike_member, most_unlike_pair

IMAGES = np.random.default_rng(1).random((4, 100))


def ssim(x, y):
    """Wang et al. 2004 over every 7 x 7 window, as one would write it down."""
    values = []
    for i in range(4):
        for j in range(4):
            a, b = (image.reshape(10, 10)[i : i + 7, j : j + 7] for image in (x, y))
            covariance = np.cov(a.ravel(), b.ravel())
            means = a.mean(), b.mean()
            top = (2 * means[0] * means[1] + 1e-4) * (2 * covariance[0, 1] + 9e-4)
            bottom = (means[0] ** 2 + means[1] ** 2 + 1e-4) * (covariance[0, 0] + covariance[1, 1] + 9e-4)
            values.append(top / bottom)
    return np.mean(values)


def test_structural_similarity_is_the_mean_over_windows():
    found = dissimilarity("ssim", IMAGES[:2], IMAGES)
    expected = [[1 - ssim(x, y) for y in IMAGES] for x in IMAGES[:2]]
    assert np.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("measure", MEASURES)
def test_nothing_is_unlike_itself_and_unlikeness_is_mutual(measure):
    found = dissimilarity(measure, IMAGES, IMAGES)
    assert np.allclose(np.diag(found), 0, atol=1e-12)
    assert np.allclose(found, found.T)
    assert np.all(found[~np.eye(4, dtype=bool)] > 0)


def test_measures_are_those_of_their_names():
    one, other = np.array([[1.0, 0.0, 2.0]]), np.array([[0.0, 0.0, 4.0]])
    expected = {"hamming": 2 / 3, "euclidean": 5**0.5, "manhattan": 3.0, "cosine": 1 - 8 / (5**0.5 * 4)}
    for measure, value in expected.items():
        assert dissimilarity(measure, one, other)[0, 0] == pytest.approx(value)
    assert dissimilarity("cosine", one, np.zeros((1, 3)))[0, 0] == 1


def test_the_most_unlike():
    records = np.array([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0]])
    assert most_unlike_member("euclidean", records) == 2
    assert most_unlike_pair("manhattan", records, np.array([[4.0, 4.0], [-9.0, -9.0]])) == (2, 1)


def test_what_is_no_measure_and_no_image():
    with pytest.raises(ValueError, match="the measures are"):
        dissimilarity("taste", IMAGES, IMAGES)
    with pytest.raises(ValueError, match="square images"):
        dissimilarity("ssim", IMAGES[:, :99], IMAGES[:, :99])
