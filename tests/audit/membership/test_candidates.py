"""Reading candidates by a model's declaration, and telling when they were not drawn alike."""

from pathlib import Path

import numpy as np
import pytest

from dpserve.audit.membership.candidates import Candidates, Labelled, difference, digits, read_labelled
from dpserve.training.errors import DataError

MODEL = {
    "feature_names": ["a", "b"],
    "classes": ["no", "yes"],
    "feature_map": {"lower": [0.0, -1.0], "upper": [1.0, 1.0]},
}


def drawn(n, seed, shift=0.0):
    generator = np.random.default_rng(seed)
    return Labelled(generator.standard_normal((n, 6)) + shift, generator.integers(3, size=n))


def test_columns_are_put_in_the_models_order(tmp_path):
    path = tmp_path / "members.csv"
    path.write_text("b,label,id,a\n0.5,yes,1,0.25\n-0.5,no,2,1\n")
    read = read_labelled(path, MODEL, label="label", ignore=["id"])
    np.testing.assert_array_equal(read.X, [[0.25, 0.5], [1.0, -0.5]])
    assert read.y.tolist() == [1, 0]


def test_arrays_pick_rows_of_an_archive(tmp_path):
    np.savez(tmp_path / "all.npz", X=np.array([[0.0, 0], [1, 1]]), y=np.array(["no", "yes"]), inside=[False, True])
    read = read_labelled(Path(f"{tmp_path}/all.npz:inside"), MODEL, label="")
    np.testing.assert_array_equal(read.X, [[1.0, 1.0]])
    assert len(read_labelled(tmp_path / "all.npz", MODEL, label="")) == 2


def test_what_the_model_does_not_take_is_refused(tmp_path):
    for header, said in (
        ("a,label", "wrong.csv lacks the column b; the model takes a, b"),
        ("a,c,label", "wrong.csv lacks the column b; the model takes a, b"),
        ("a,b,c,label", "the model does not take the column c of wrong.csv: `ignore` leaves it out"),
        ("a,b,class", "wrong.csv has no column 'label' of class names: say which it is with `label`"),
    ):
        (tmp_path / "wrong.csv").write_text(f"{header}\n{','.join(['0.5'] * header.count(','))},yes\n")
        with pytest.raises(ValueError, match=said):
            read_labelled(tmp_path / "wrong.csv", MODEL, label="label")
    (tmp_path / "wrong.csv").write_text("a,b,label\n0.5,two,yes\n")
    with pytest.raises(DataError, match="line 2"):
        read_labelled(tmp_path / "wrong.csv", MODEL, label="label")
    np.savez(tmp_path / "wide.npz", X=np.zeros((2, 3)), y=np.array(["no", "yes"]))
    with pytest.raises(ValueError, match="rows of 3 values, and the model takes 2"):
        read_labelled(tmp_path / "wide.npz", MODEL, label="")
    with pytest.raises(DataError, match="is no table that can be read"):
        read_labelled(tmp_path / "x.txt", MODEL, label="")


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (Labelled(np.zeros((2, 3)), np.array([0, 1])), "members have rows of 3 values, and the model takes 2"),
        (Labelled(np.zeros((2, 2)), np.array([0, 2])), "a label outside the model's 2 classes"),
        (
            Labelled(np.array([[0.0, 2.0]]), np.array([0])),
            "row 0, column 1: 2 is not within the model's bounds -1 to 1",
        ),
    ],
)
def test_records_of_another_shape_are_named(members, said):
    with pytest.raises(ValueError, match=said):
        Candidates(members, Labelled(np.zeros((1, 2)), np.array([0]))).check(MODEL)


def test_the_same_distribution_raises_no_warning():
    """Ten comparisons at a false-alarm rate of 0.001 each warn thrice or more with probability below 1.2e-7."""
    warned = sum(bool(difference(drawn(200, 2 * seed), drawn(200, 2 * seed + 1)).warnings()) for seed in range(10))
    assert warned <= 2


@pytest.mark.parametrize("of", ["records", "labels", "first value"])
def test_a_difference_is_found_and_said(of):
    members, others = drawn(400, 1), drawn(400, 2)
    if of == "records":
        others = drawn(400, 2, shift=0.5)
    elif of == "labels":
        others = Labelled(others.X, np.where(others.y == 0, 1, others.y))
    else:  # Erlingsson et al. 2019, Section 5.4: "all train images start with a 0 pixel, all test images with a 1"
        members.X[:, 0], others.X[:, 0] = 0.0, 1.0
    (warning,) = difference(members, others).warnings()
    assert "differ by themselves" in warning


def test_a_non_member_that_is_a_member_is_counted():
    members = drawn(50, 1)
    others = members[:3] + drawn(50, 2)
    found = difference(members, others)
    (warning,) = found.warnings()
    assert "3 non-members (5.7%) are equal to a member" in warning
    assert not found.uninformative
    assert difference(members, members[:6] + drawn(50, 2)).uninformative


def test_rows_that_come_again_on_one_side_are_counted_and_compared_with_nobody():
    """Whatever their labels: the answer is to the row. A row that each side has once is another matter."""
    members, others = drawn(50, 1), drawn(50, 2)
    again = Labelled(np.tile(members.X[:1], (30, 1)), np.arange(30) % 2)
    found = difference(
        members + again, members[1:4] + others + others[:2] + Labelled(-0.0 * others.X[:1], others.y[:1])
    )
    assert found.repeated == (31, 4)
    assert (found.duplicates, found.overlap) == (3, pytest.approx(3 / 52))
    assert not found.distinguishable
    assert "31 members and 4 non-members share every row with others" in found.warnings()[-1]
    assert difference(again, others).repeated == (30, 0)


def test_too_few_are_not_compared():
    assert difference(drawn(5, 1), drawn(5, 2, shift=9.0)).p_value == 1.0


def test_the_digits_are_those_of_the_demonstration():
    found = digits()
    assert (len(found.members), len(found.others)) == (1437, 360)
    assert not difference(found.members, found.others).warnings()
