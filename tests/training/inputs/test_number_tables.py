import pytest

from dpserve.training.errors import DataError
from dpserve.training.inputs.table_records import read_numbers

GOOD = "age,income,id,ok\n30,1000.5,7,yes\n\n40,2e3,8,no\n"


def read(tmp_path, text, **changes):
    path = tmp_path / "own.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    options = {"label": "ok", "classes": ("no", "yes"), "bounds": ("age=0:120", "income=0:1e6"), "ignore": ("id",)}
    return read_numbers(path, **options | changes)


def test_it_reads_records(tmp_path):
    records = read(tmp_path, GOOD)
    assert records.X.tolist() == [[30, 1000.5], [40, 2000]]
    assert records.y.tolist() == [1, 0]
    assert records.declaration.feature_names == ("age", "income")
    assert records.declaration.upper == (120, 1e6)


def test_a_byte_order_mark_and_quotes_are_fine(tmp_path):
    assert len(read(tmp_path, b'\xef\xbb\xbf"age",income,id,ok\r\n"3","4",5," yes"\r\n')) == 1


HOLES = "age,income,id,ok\n30,,1,no\nNA,2000,2,yes\n40,nan,3,yes\n"


def test_missing_values_count_as_is_declared(tmp_path):
    records = read(tmp_path, HOLES, missing=["age=50", "income=level"])
    assert records.declaration.feature_names == ("age", "income", "income is missing")
    assert records.X.tolist() == [[30, 0, 1], [50, 2000, 0], [40, 0, 1]]
    assert read(tmp_path, HOLES, missing=["7"]).X.tolist() == [[30, 7], [7, 2000], [40, 7]]
    assert read(tmp_path, GOOD).declaration.columns == ()


def test_a_missing_value_that_is_not_declared_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"(?s)column 'income'.*required.*`missing`"):
        read(tmp_path, HOLES)
    with pytest.raises(DataError, match=r"column 'income': a value is required"):
        read(tmp_path, HOLES, missing=["age=50"])


def test_numbers_name_classes_too(tmp_path):
    records = read(tmp_path, "a,y\n1,1.0\n2,0\n", label="y", classes=("0", "1"), bounds=("0:9",), ignore=())
    assert records.y.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "changes", "said"),
    [
        ("", {}, "is empty"),
        ("age,income,id,ok\n", {}, "a header and no records"),
        ("1,2,3,4\n5,6,7,8\n", {}, "line 1 holds numbers|has no column 'ok'"),
        (GOOD, {"label": "nope"}, "has no column 'nope'; its columns are age, income, id, ok"),
        (GOOD + "50,1\n", {}, "line 5: 2 values, and the header has 4 columns"),
        (GOOD + "50,abc,1,no\n", {}, "line 5, column 'income': 'abc' is not a number"),
        (GOOD + "50,,1,no\n", {}, "line 5, column 'income': a value is required"),
        (GOOD + "150,1,1,no\n", {}, "line 5, column 'age': 150 is above the declared bound 120"),
        (GOOD + '"1\n",1,1,no\n5,x,1,no\n', {}, "line 7, column 'income'"),
        (GOOD + '1,"1,1,no\n', {}, "line 5: 2 values, and the header has 4 columns"),
        (GOOD + "1,1,1,maybe\n", {}, "line 5, column 'ok': 'maybe' is not one of no, yes"),
        (GOOD, {"bounds": ("age=0:120",)}, "declare public bounds for income"),
        (GOOD, {"bounds": ("agee=0:120",)}, "no feature 'agee'"),
        (GOOD, {"bounds": ("age=120",)}, "bounds are written LOW:HIGH"),
        (GOOD, {"bounds": ("age=0:120", "age=0:10", "0:1e6")}, "bounds for age are given twice"),
        (GOOD, {"bounds": ("0:120", "age=0:10", "0:1e6")}, "bounds for every feature are given twice"),
        (GOOD, {"bounds": ("9:1",)}, "must be finite and in order"),
        (GOOD, {"classes": ("no",)}, "at least two classes"),
        ("a,a,ok\n1,2,no\n", {"ignore": ()}, "every column needs a name of its own"),
        (b"\xff\xfe", {}, "is not UTF-8"),
        (GOOD + "1,1,1,\n", {}, "line 5, column 'ok': the label is missing"),
        (GOOD + "1,1,1,no\n\xff", {}, "line 6: 1 values"),
        (GOOD, {"label": "nope", "ignore": ("id", "nor")}, "no column 'nope' or 'nor'; its columns are age"),
        (GOOD, {"classes": ("no", "yes"), "values": ("0", "0")}, "each class needs one value of its own"),
    ],
)
def test_errors_name_the_place(tmp_path, text, changes, said):
    with pytest.raises(DataError, match=said):
        read(tmp_path, text, **changes)


def test_booleans_are_numbers_in_columns_and_labels(tmp_path):
    text = "smoker,age,ok\nTrue,30,False\nfalse,40,TRUE\n1,50,0\n"
    records = read(tmp_path, text, classes=("0", "1"), bounds=("smoker=0:1", "age=0:120"), ignore=())
    assert records.X.tolist() == [[1, 30], [0, 40], [1, 50]]
    assert records.y.tolist() == [0, 1, 0]


def test_records_are_the_same_whether_booleans_are_words_or_numbers(tmp_path):
    options = {"bounds": ("0:120",), "ignore": ()}
    words = read(tmp_path, "smoker,ok\nTrue,yes\nFalse,no\n", **options)
    assert list(words.source) == list(read(tmp_path, "smoker,ok\n1,yes\n0,no\n", **options).source)


def test_values_are_given_the_names_of_classes(tmp_path):
    text = "age,ok\n30,1\n40,0.0\n50,1\n"
    records = read(tmp_path, text, classes=("well", "ill"), values=("0", "1"), bounds=("0:120",), ignore=())
    assert records.y.tolist() == [1, 0, 1]
    assert records.declaration.classes == ("well", "ill")


def test_a_number_among_named_classes_is_told_how_to_get_a_name(tmp_path):
    with pytest.raises(DataError, match=r"'1' is not one of no, yes\. `classes`"):
        read(tmp_path, GOOD.replace("yes", "1"))


def test_clipping_draws_values_back_to_their_bounds(tmp_path):
    assert read(tmp_path, GOOD + "150,-1,1,no\n", clip=True).X[-1].tolist() == [120, 0]
    with pytest.raises(DataError, match="not a finite number"):
        read(tmp_path, GOOD + "inf,-1,1,no\n", clip=True)


def test_an_underscore_makes_no_number_of_a_class(tmp_path):
    with pytest.raises(DataError, match="'1_0' is not one of"):
        read(tmp_path, "a,y\n1,1_0\n", label="y", classes=("10", "0"), bounds=("0:9",), ignore=())


def test_the_source_is_the_same_however_it_is_written(tmp_path):
    first = read(tmp_path, GOOD).source
    second = read(tmp_path, "ok,id,income,age\nyes,7.0,1000.50,3e1\nno, 8,2000,40\n").source
    assert list(first) == list(second)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*nowhere.csv: No such file"):
        read_numbers(tmp_path / "nowhere.csv", label="y", classes=("a", "b"), bounds=("0:1",))
