"""Digests of encoded columns: they recognise a record that is written otherwise, and tell different ones apart."""

import numpy as np

from training.inputs.feature_digests import KINDS, LABELLED, STEPS, UNLABELLED, feature_digests

N, D = 2000, 12
GENERATOR = np.random.default_rng(0)
UPPER = 10.0 ** np.arange(-5, D - 5)
X = GENERATOR.uniform(size=(N, D)) * UPPER
Y = GENERATOR.integers(3, size=N)
NAMES = [f"column {index}" for index in range(D)]
CLASSES = ("no", "yes", "perhaps")


def digests(X=X, y=Y, names=NAMES, upper=UPPER, classes=CLASSES):
    return feature_digests(X, y, names, np.zeros(len(upper)), upper, classes)


OWN = digests()


def recognised(found, kinds=UNLABELLED):
    """Return the number of records that have a digest in common with their own."""
    return int((found == OWN)[list(kinds)].any(axis=0).sum())


def test_another_unit_of_measure_with_bounds_in_it_is_the_same():
    for factor in (1.609344, 0.45359237, 1e-3):
        assert recognised(digests(X * factor, upper=UPPER * factor)) == N


def test_numbers_of_32_bits_are_the_same():
    """At most 4 d (d - 1) 2^-24 = 3.2e-5 are missed: more than 3 of 2,000 with a probability of 7e-7."""
    assert recognised(digests(X.astype(np.float32).astype(np.float64))) >= N - 3


def test_columns_may_have_another_order_or_other_names():
    order = GENERATOR.permutation(D)
    assert recognised(digests(X[:, order], names=[f"Column_{place}" for place in order], upper=UPPER[order])) == N
    assert recognised(digests(names=[f"another {place}" for place in range(D)])) == N


def test_the_class_counts_apart():
    recoded = digests(classes=("0", "1", "2"))
    assert recognised(recoded) == recognised(recoded, LABELLED) == N
    turned = digests(y=2 - Y, classes=CLASSES[::-1])
    assert recognised(turned, LABELLED) == N
    other = digests(y=(Y + 1) % 3)
    assert (recognised(other), recognised(other, LABELLED)) == (N, 0)


def test_a_single_number_that_moves_by_less_than_a_fifth_of_a_step_is_never_missed():
    values = GENERATOR.uniform(0.001, 0.999, size=100_000)[:, None]
    moved = values + GENERATOR.choice([-0.19, 0.19], size=values.shape) / STEPS
    one, other = (feature_digests(each, np.zeros(len(each), int), ["x"], [0], [1], "ab") for each in (values, moved))
    same = one == other
    assert same[list(UNLABELLED)].any(axis=0).all()
    assert not all(same[kind].all() for kind in range(KINDS))


def test_different_rounded_rows_have_nothing_in_common():
    """Images that differ in one pixel of 784, and all others."""
    images = np.tile(GENERATOR.integers(256, size=784).astype(float), (785, 1))
    images[np.arange(784), np.arange(784)] = (images[np.arange(784), np.arange(784)] + 1) % 256
    found = feature_digests(
        images, np.zeros(785, int), [f"p{index}" for index in range(784)], [0] * 784, [255] * 784, "ab"
    )
    assert len(np.unique(found)) == KINDS * 785


def test_a_row_has_the_same_digests_alone_and_among_others():
    np.testing.assert_array_equal(digests(X[5:6], Y[5:6]), OWN[:, 5:6])


def test_values_of_the_narrowest_ranges_are_told_apart():
    """Where a range has few doubles a step is no double: two records alike have one digest, and others another."""
    values = np.array([[0.0], [5e-324], [5e-324], [1e-320]])
    found = feature_digests(values, np.zeros(4, int), ["x"], [0], [1e-320], "ab")[UNLABELLED[0]]
    assert found[1] == found[2]
    assert len({*found.tolist()}) == 3
