import json

import pytest

from dpserve.training.errors import DataError
from dpserve.training.inputs.columns import BooleanColumn, LevelsColumn, NumberColumn, TextColumn, TimeColumn
from dpserve.training.inputs.schema import TableFacts, parse_schema, read_schema

AGE = {"name": "age", "type": "integer", "constraints": {"minimum": 17, "maximum": 90}}
LABEL = {"name": "ok", "type": "string", "constraints": {"enum": ["no", "yes"]}}


def only(field, **table):
    return parse_schema({"fields": [field], **table}).columns[0]


def test_every_type_becomes_a_column():
    bounds = {"minimum": "2000-01-01", "maximum": "2030-01-01"}
    schema = parse_schema(
        {
            "title": "patients",
            "fields": [
                AGE | {"description": "in years"},
                {"name": "smokes", "type": "boolean", "trueValues": ["y"], "falseValues": ["n"]},
                {"name": "work", "type": "string", "categories": ["a", "b"], "unknownLevels": "coordinate"},
                {"name": "born", "type": "date", "constraints": bounds, "missingValues": ["never"]},
                {"name": "seen", "type": "datetime", "constraints": bounds, "parts": ["hour"]},
                {"name": "note", "type": "string", "text": {"buckets": 64}, "constraints": {"maxLength": 10}},
            ],
            "missingValues": ["", "NA"],
        }
    )
    absent = ("", "NA")
    assert schema.columns == (
        NumberColumn(name="age", kind="integer", minimum=17, maximum=90, missing=absent),
        BooleanColumn(name="smokes", true=("y",), false=("n",), missing=absent),
        LevelsColumn(name="work", levels=("a", "b"), unknown="coordinate", missing=absent),
        TimeColumn(name="born", kind="date", parts=("time", "month", "weekday"), missing=("never",), **bounds),
        TimeColumn(name="seen", kind="datetime", parts=("hour",), missing=absent, **bounds),
        TextColumn(name="note", buckets=64, longest=10, missing=absent),
    )


def test_a_required_value_has_no_coordinate_for_a_missing_one():
    column = only(AGE | {"constraints": {"minimum": 0, "maximum": 1, "required": True}})
    assert [name for name, _, _ in column.coordinates] == ["age"]


def test_a_field_may_declare_what_a_missing_value_counts_as():
    def first(field):
        return parse_schema({"fields": [{"name": "x", **field}]}).columns[0]

    number = {"type": "number", "constraints": {"minimum": 0, "maximum": 9}}
    assert first(number | {"ifMissing": 4}).if_missing == 4.0
    assert first({"type": "string", "constraints": {"enum": ["a", "b"]}, "ifMissing": "b"}).substitute == 1
    for field, said in (
        (number | {"ifMissing": 10}, "for a missing value: 10.0 is above the declared bound 9"),
        (number | {"ifMissing": "much"}, "for a missing value: 'much' is not a number"),
        ({"type": "string", "text": {}, "ifMissing": "none"}, "no value counts as one"),
        (number | {"constraints": number["constraints"] | {"required": True}, "ifMissing": 1}, "a value is required"),
    ):
        with pytest.raises(DataError, match=said):
            first(field)


def test_the_labels_classes_are_its_levels():
    features, label = parse_schema({"fields": [AGE, LABEL]}).split("ok")
    assert [column.name for column in features] == ["age"]
    assert label.classes == label.column.levels == ("no", "yes")


def test_numbers_are_given_the_names_of_classes():
    field = {"name": "ok", "type": "integer", "categories": [{"value": 0, "label": "no"}, {"value": 1, "label": "yes"}]}
    _, label = parse_schema({"fields": [AGE, field]}).split("ok")
    assert (label.classes, label.column.levels) == (("no", "yes"), ("0", "1"))


def test_a_boolean_may_be_the_label():
    _, label = parse_schema({"fields": [AGE, {"name": "ok", "type": "boolean"}]}).split("ok")
    assert label.classes == ("false", "true")


def test_a_boolean_label_may_have_words_of_its_own():
    words = {"name": "ok", "type": "boolean", "trueValues": ["y"], "falseValues": ["n"]}
    _, label = parse_schema({"fields": [AGE, words]}).split("ok")
    assert (label.column.levels, label.classes) == (("n", "y"), ("false", "true"))
    with pytest.raises(DataError, match="one text for true"):
        parse_schema({"fields": [AGE, words | {"trueValues": ["y", "Y"]}]}).split("ok")


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("nope", "has no field 'nope' to be the label; its fields are age, ok"),
        ("age", "the label 'age' needs its classes: at least two"),
    ],
)
def test_a_label_without_classes_is_refused(label, said):
    with pytest.raises(DataError, match=said):
        parse_schema({"fields": [AGE, LABEL]}).split(label)


def test_a_schema_of_the_label_alone_is_refused():
    with pytest.raises(DataError, match="no field beside the label"):
        parse_schema({"fields": [LABEL]}).split("ok")


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"type": "number"}, "field number 1: needs a name"),
        ({"name": "a"}, "field 'a': needs a type, one of number, integer"),
        ({"name": "a", "type": "geopoint"}, "the type 'geopoint' has no encoding"),
        ({"name": "a", "type": "number"}, "needs constraints.minimum and constraints.maximum: public bounds"),
        ({"name": "a", "type": "number", "constraints": {"minimum": 0}}, "needs constraints.maximum"),
        ({"name": "a", "type": "number", "constraints": {"minimum": 1, "maximum": 0}}, "must be finite and in order"),
        ({"name": "a", "type": "number", "constraints": {"minimum": "x", "maximum": 0}}, "minimum must be a number"),
        ({"name": "a", "type": "string"}, "needs constraints.enum with its levels, or"),
        ({"name": "a", "type": "string"}, "take its field out, and name the column with `unit`, `id` or `ignore`"),
        ({"name": "a", "type": "string", "constraints": {"enum": []}}, "enum must list the levels"),
        ({"name": "a", "type": "string", "constraints": {"enum": ["x", "x"]}}, "a level is named twice"),
        ({"name": "a", "type": "string", "constraints": {"enum": [["x"]]}}, "enum must list texts or numbers"),
        ({"name": "a", "type": "string", "constraints": {"enum": ["x"]}, "categories": ["x"]}, "take one of them"),
        ({"name": "a", "type": "string", "text": {"buckts": 3}}, "text is an object with buckets, of and lengths"),
        ({"name": "a", "type": "string", "text": {"buckets": 0}}, "buckets must be at least 2"),
        ({"name": "a", "type": "string", "text": {"lengths": [3, 1]}}, "lengths must lie between"),
        ({"name": "a", "type": "boolean", "constraints": {"enum": [True]}}, "leave it out of a boolean"),
        ({"name": "a", "type": "date", "constraints": {"minimum": "1.1.", "maximum": "2020-01-01"}}, "is no date"),
        (AGE | {"parts": ["month"]}, "parts belongs to a date"),
        (AGE | {"unknownLevels": "refuse"}, "unknownLevels belongs to a field with enum"),
        (AGE | {"minimun": 3}, "the property 'minimun' is not known here"),
        (AGE | {"format": "any"}, "a format belongs to a date"),
        (AGE | {"constraints": {"pattern": "x"}}, "the constraint 'pattern' is not checked here"),
        (AGE | {"missingValues": "NA"}, "missingValues must be a list of texts"),
        (LABEL | {"unknownLevels": "guess"}, "unknown must be one of 'refuse' or 'coordinate'"),
    ],
)
def test_a_field_that_declares_too_little_or_nonsense_is_refused(field, said):
    with pytest.raises(DataError, match=said):
        only(field)


def test_all_that_is_wrong_is_said_at_once():
    fields = [{"name": "a", "type": "number"}, {"name": "b", "type": "string"}, AGE, AGE]
    with pytest.raises(DataError) as refusal:
        parse_schema({"fields": fields, "primaryKey": "a", "fieldsMatch": "partial"})
    said = str(refusal.value)
    assert all(
        part in said for part in ("'primaryKey'", "fieldsMatch", "field 'a'", "field 'b'", "'age' is there twice")
    )


def test_two_columns_with_one_coordinate_are_refused():
    fields = [LABEL, {"name": "ok=no", "type": "boolean"}]
    with pytest.raises(DataError, match="two columns have a coordinate 'ok=no'"):
        parse_schema({"fields": fields})


@pytest.mark.parametrize("content", [[], {}, {"fields": {}}, {"fields": []}, "x", None])
def test_what_is_no_schema_is_refused(content):
    with pytest.raises(DataError, match="needs a list of fields"):
        parse_schema(content)


def test_toml_says_the_same_as_json(tmp_path):
    (tmp_path / "s.json").write_text(json.dumps({"fields": [AGE, LABEL], "missingValues": ["?"]}))
    (tmp_path / "s.toml").write_text(
        'missingValues = ["?"]\n'
        '[[fields]]\nname = "age"\ntype = "integer"\nconstraints = {minimum = 17, maximum = 90}\n'
        '[[fields]]\nname = "ok"\ntype = "string"\nconstraints.enum = ["no", "yes"]\n'
    )
    assert read_schema(tmp_path / "s.json") == read_schema(tmp_path / "s.toml")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.json", "{"),
        ("s.toml", "= 3"),
        ("s.json", "[" * 100_000),
        ("s.json", '{"fields": [{"name": "age", "constraints": {"minimum": 0, "maximum": 9, "maximum": 99}}]}'),
    ],
)
def test_a_broken_file_is_named(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=f"{name} is not a schema in"):
        read_schema(tmp_path / name)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*s\.json"):
        read_schema(tmp_path / "s.json")


def test_a_file_states_the_roles_of_columns_and_the_number_of_records():
    content = {"fields": [{"name": "age", "type": "boolean"}], "label": "ok", "unit": "who", "ignore": ["x"], "n": 2000}
    assert parse_schema(content).facts == TableFacts(label="ok", unit="who", ignore=["x"], n=2000)
    with pytest.raises(DataError, match="n must be at least 1"):
        parse_schema(content | {"n": 0})
