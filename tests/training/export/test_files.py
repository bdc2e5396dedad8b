"""Exported files answer as the service does, without our code, and hold nothing secret."""

import functools
import json
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from safetensors import safe_open
from safetensors.numpy import load

from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.accounting.picorho import to_rho
from dpserve.mechanisms.gaussian_vector import whole_picorho
from dpserve.training.errors import NotExportable
from dpserve.training.export.files import FORMS, exported
from dpserve.training.features.maps import Bins, Fourier, Hog, HogFourier, Identity, Quantiles
from dpserve.training.features.quantiles import QuantileRelease
from dpserve.training.inputs.columns import (
    BooleanColumn,
    LevelsColumn,
    NumberColumn,
    TextColumn,
    TimeColumn,
    coordinates_of,
    encode_rows,
)
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.class_sums.bundle import save_class_sums
from dpserve.training.kinds.class_sums.sums import COUNT_COORDINATE
from dpserve.training.kinds.class_sums.train import train_class_sums
from dpserve.training.kinds.dpsgd.bundle import save_dpsgd
from dpserve.training.kinds.dpsgd.choices import Choices, NetworkChoices
from dpserve.training.kinds.dpsgd.train import DpSgdRecipe, train_dpsgd
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.weights.bundle import save_weights
from dpserve.training.kinds.weights.train import release_weights
from dpserve.training.pay_once.calibration import CALIBRATION
from dpserve.training.pay_once.cuts import CUTS as QUANTILES
from dpserve.training.pay_once.prediction_sets import counts_of, record_parts, release_sets
from tests.seeded import Seeded

WHOLE = whole_picorho("rho:2")
LOWER, UPPER = (-3.0, 0.0, -1e-3, 5.0, 17.0), (1.0, 900.0, 1e-3, 6.0, 90.0)
CUTS = ((1000,), (1, 2, 3, 16000), (8192, 8193), tuple(range(1, 32)), (500, 900, 12000))
MAPS = {
    "identity": Identity(lower=LOWER, upper=UPPER, clip_norm=0.9, bias=0.3),
    "fourier": Fourier(lower=LOWER, upper=UPPER, clip_norm=0.9, bias=0.0, random_features=40, bandwidth=0.5, seed=1),
    "bins": Bins(lower=LOWER, upper=UPPER, bias=0.3),
    "quantiles": Quantiles(lower=LOWER, upper=UPPER, bias=0.3, released=QuantileRelease(mu=0.1, cuts=CUTS)),
}
KINDS = ("class-sums", "weights", "dpsgd", "dpsgd-network")
CASES = [(kind, name, 3) for kind in KINDS for name in MAPS] + [(kind, "fourier", 2) for kind in KINDS]


def some_records(classes):
    generator = np.random.default_rng(classes)
    y = generator.integers(classes, size=300)
    shares = np.clip(0.25 * y[:, None] + 0.3 * generator.uniform(size=(300, 5)), 0, 1)
    X = np.array(LOWER) + shares * (np.array(UPPER) - LOWER)
    # Not in the alphabet's order, which is scikit-learn's.
    declaration = Declaration(("a", "b", "c", "d", "e"), LOWER, UPPER, ("red", "green", "blue")[:classes])
    return Records(X, y, declaration, ())


def before(feature_map):
    return (QUANTILES.bought(Cost(feature_map.losses)),) if feature_map.losses else ()


@functools.cache
def model_of(kind, name, classes):
    records, feature_map = some_records(classes), MAPS[name]
    match kind:
        case "class-sums":
            return train_class_sums(
                records, "m", feature_map, WHOLE, "l-of-tests", Seeded(0), before=before(feature_map)
            )
        case "weights":
            head = train_head(records, Recipe("m", feature_map, 1.0), "l-of-tests")
            return release_weights(head, WHOLE, "l-of-tests", Seeded(0), records, before=before(feature_map))
    beside = NetworkChoices(7, 0.2, 0.5) if kind == "dpsgd-network" else None
    choices = Choices(records_declared=300, sampling_rate=0.2, steps=10, learning_rate=0.5, beside=beside)
    recipe = DpSgdRecipe("m", feature_map, choices, WHOLE, before=before(feature_map))
    return train_dpsgd(records, recipe, "l-of-tests", Seeded(0))


@pytest.fixture(scope="module")
def rows():
    """Rows within the bounds, on them, in the middle, and beyond them."""
    generator = np.random.default_rng(0)
    within = generator.uniform(LOWER, UPPER, (400, 5))
    corners = np.where(generator.integers(0, 2, (40, 5)) == 1, LOWER, UPPER)
    middle = (np.array(LOWER) + UPPER)[None, :] / 2
    return np.vstack([within, corners, middle, generator.uniform(-1000, 1000, (20, 5))])


def run_onnx(content, rows):
    return onnxruntime.InferenceSession(content).run(None, {"x": rows})


@pytest.mark.parametrize(("kind", "name", "classes"), CASES)
def test_onnx_answers_as_the_model_does(kind, name, classes, rows):
    model = model_of(kind, name, classes)
    wanted = model.values(rows)
    labels, probabilities = run_onnx(exported(model, "onnx").content, rows)
    np.testing.assert_allclose(probabilities, wanted, rtol=0, atol=1e-6)
    assert labels.tolist() == np.array(model.certificate.classes)[wanted.argmax(axis=1)].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_phi_has_the_same_bits_in_onnx(kind, rows):
    """Else a quantised angle could be another one: an error of the feature map, and not of the last places."""
    model = model_of(kind, "fourier", 3)
    _, probabilities = run_onnx(exported(model, "onnx").content, rows)
    np.testing.assert_allclose(probabilities, model.values(rows), rtol=0, atol=1e-13)


def test_every_edge_of_a_bin_falls_where_it_should():
    feature_map = Bins(lower=(0.0,), upper=(1.0,), bias=0.5)
    declaration = Declaration(("a",), (0.0,), (1.0,), ("n", "y"))
    records = Records(np.array([[0.0], [1.0]] * 20), np.array([0, 1] * 20), declaration, ())
    model = train_class_sums(records, "m", feature_map, WHOLE, "l-of-tests", Seeded(0))
    edges = np.concatenate([np.arange(33) / 32, 2.0 ** -np.arange(40.0), [0.0]])
    rows = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1)])[:, None]
    _, found = run_onnx(exported(model, "onnx").content, rows)
    np.testing.assert_allclose(found, model.values(rows), rtol=0, atol=1e-13)


COLUMNS = (
    LevelsColumn(name="town", levels=("Ayr", "Bern", "Cork"), missing=("", "n/a")),
    NumberColumn(name="income", minimum=0, maximum=5e5),
    NumberColumn(name="children", kind="integer", minimum=-2, maximum=9, required=True),
    BooleanColumn(name="member"),
    LevelsColumn(name="trade", levels=("cook", "", "baker"), unknown="coordinate", missing=("?",)),
    LevelsColumn(name="size", levels=("s", "m"), unknown="coordinate", required=True),
    TimeColumn(
        name="since", kind="date", minimum="1890-01-01", maximum="2100-12-31", parts=("weekday", "time", "month")
    ),
    TimeColumn(name="seen", kind="datetime", minimum="1960-01-01", maximum="2030-01-01", parts=("hour", "month")),
    TimeColumn(name="born", kind="date", minimum="1960-01-01", maximum="2030-01-01", parts=("time",), required=True),
    LevelsColumn(name="region", levels=("north", "south", "east"), missing=("", "none"), if_missing="south"),
    NumberColumn(name="visits", kind="integer", minimum=0, maximum=50, if_missing=3),
    BooleanColumn(name="insured", if_missing=True),
    TimeColumn(
        name="moved",
        kind="datetime",
        minimum="1960-01-01",
        maximum="2030-01-01",
        parts=("time", "hour", "weekday"),
        if_missing="1999-12-31T23:30:00",
    ),
)


def some_values(column, generator, count):
    """Values of a column as JSON has them, missing ones among them where they may be, and the bounds."""
    match column:
        case NumberColumn():
            found = generator.uniform(column.minimum, column.maximum, count)
            found = np.round(found) if column.kind == "integer" else found
            values = [column.minimum, column.maximum, *found.tolist()]
        case BooleanColumn():
            values = (generator.uniform(size=count) < 0.5).tolist()
        case LevelsColumn():
            others = ["other", "COOK"] if column.unknown == "coordinate" else []
            values = generator.choice([*column.levels, *others], count).tolist()
        case TimeColumn():
            low, high = (np.datetime64(each, "s") for each in (column.minimum, column.maximum))
            seconds = generator.integers(0, int((high - low).astype(int)) + 1, count)
            days = "D" if column.kind == "date" else "s"
            values = [str(each) for each in (low + seconds).astype(f"datetime64[{days}]")]
            values[:2] = [column.minimum, column.maximum]
    absent = set() if column.required else {count // 3, count // 2}
    return [None if index in absent else value for index, value in enumerate(values[:count])]


def as_onnx(columns, rows):
    """Return the inputs of an ONNX file for rows by name."""
    inputs = {}
    for column in columns:
        values = [row[column.name] for row in rows]
        match column:
            case NumberColumn() | BooleanColumn():
                found = np.array([np.nan if each is None else each for each in values], dtype=np.float64)
            case LevelsColumn():
                found = np.array([column.missing[0] if each is None else each for each in values], dtype=object)
            case TimeColumn():
                found = np.array(values, dtype="datetime64[us]").astype(np.int64)
        inputs[column.name] = found[:, None]
    return inputs


def model_of_columns(kind, name, columns, generator):
    names, lower, upper = coordinates_of(columns)
    shapes = {
        "bins": Bins(lower=lower, upper=upper, bias=0.3, columns=columns),
        "quantiles": Quantiles(lower=lower, upper=upper, bias=0.3, columns=columns),
        "crosses": Bins(
            lower=lower,
            upper=upper,
            bias=0.3,
            columns=columns,
            crosses=tuple((0, place) for place in range(1, 4) if not isinstance(columns[place], TextColumn))
            if len(columns) > 3
            else (),
            cross_cells=512 * (name == "crosses"),
        ),
        "hashed": Bins(lower=lower, upper=upper, bias=0.3, columns=columns, cross_buckets=40 * (name == "hashed")),
        "hashed cells": Bins(
            lower=lower,
            upper=upper,
            bias=0.3,
            columns=columns,
            cross_buckets=40 * (name == "hashed cells"),
            cross_cells=300 * (name == "hashed cells"),
        ),
        "identity": Identity(lower=lower, upper=upper, clip_norm=1.5, bias=0.3, columns=columns),
    }
    shares = generator.uniform(size=(400, len(names))) * (generator.uniform(size=(400, len(names))) < 0.7)
    shares[:9] = np.append(2.0 ** -np.arange(8.0), 0.0)[:, None]
    X = np.array(lower) + shares * (np.array(upper) - np.array(lower))
    records = Records(X, generator.integers(2, size=400), Declaration(names, lower, upper, ("n", "y"), columns), ())
    if kind == "dpsgd":
        choices = Choices(records_declared=400, sampling_rate=0.2, steps=10, learning_rate=0.5)
        recipe = DpSgdRecipe("m", shapes[name], choices, WHOLE)
        return X, train_dpsgd(records, recipe, "l-of-tests", Seeded(0))
    of_features = before(shapes[name])
    return X, train_class_sums(records, "m", shapes[name], WHOLE, "l-of-tests", Seeded(0), before=of_features)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("kind", "name"),
    [("class-sums", "bins"), ("class-sums", "crosses"), ("class-sums", "quantiles"), ("dpsgd", "identity")],
)
def test_a_schemas_encoding_is_in_the_file(kind, name, seed):
    """Rows by name in, what the service answers to them out: of some columns in some order, drawn at random."""
    generator = np.random.default_rng(seed)
    numbers = [column for column in COLUMNS if column.numbers]
    chosen = [numbers[seed % len(numbers)], *generator.permutation(np.array(COLUMNS, dtype=object))[: 3 + 2 * seed]]
    columns = tuple({column.name: column for column in chosen if seed < 3}.values()) or COLUMNS
    _, model = model_of_columns(kind, name, columns, generator)
    values = {column.name: some_values(column, generator, 90) for column in columns}
    rows = [{each: values[each][index] for each in values} for index in range(90)]
    wanted = model.values(encode_rows(columns, rows))
    session = onnxruntime.InferenceSession(exported(model, "onnx").content)
    assert [each.name for each in session.get_inputs()] == list(values)
    _, found = session.run(None, as_onnx(columns, rows))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


def test_hashed_pairs_of_levels_alone_are_in_the_file():
    columns = tuple(LevelsColumn(name=name, levels=("a", "b", "c")) for name in ("town", "work"))
    names, lower, upper = coordinates_of(columns)
    rows = [{"town": town, "work": work} for town in "abc" for work in "abc"]
    X = encode_rows(columns, rows)
    records = Records(X, np.arange(9) % 2, Declaration(names, lower, upper, ("n", "y"), columns), ())
    hashed = Bins(lower=lower, upper=upper, bias=0.3, columns=columns, cross_buckets=40)
    model = train_class_sums(records, "m", hashed, WHOLE, "l-of-tests", Seeded(0), before=before(hashed))
    session = onnxruntime.InferenceSession(exported(model, "onnx").content)
    _, found = session.run(None, as_onnx(columns, rows))
    np.testing.assert_allclose(found, model.values(X), rtol=0, atol=1e-12)


def beyond(column, values, generator):
    """The values with some beyond the column's bounds, below and above; as they were where a column has none."""
    match column:
        case NumberColumn():
            width = column.maximum - column.minimum
            low, high = column.minimum - (1 + 3 * width), column.maximum + (1 + 3 * width)
        case TimeColumn():
            low, high = "1801-07-04", "2290-08-15"
            if column.kind == "datetime":
                low, high = f"{low}T13:30:00", f"{high}T05:00:01"
        case _:
            return values
    which = generator.uniform(size=len(values))
    return [low if u < 0.2 else high if u > 0.8 else value for u, value in zip(which, values, strict=True)]


def test_values_of_columns_beyond_their_bounds_are_drawn_back_as_the_service_draws_them():
    """Numbers, dates and times, and what is made of these: of a date its month and weekday, of a time its hour."""
    generator = np.random.default_rng(11)
    for kind, name in (("class-sums", "bins"), ("dpsgd", "identity")):
        _, model = model_of_columns(kind, name, COLUMNS, generator)
        values = {column.name: beyond(column, some_values(column, generator, 90), generator) for column in COLUMNS}
        rows = [{each: values[each][index] for each in values} for index in range(90)]
        wanted = model.values(encode_rows(COLUMNS, rows, clip=True))
        session = onnxruntime.InferenceSession(exported(model, "onnx").content)
        _, found = session.run(None, as_onnx(COLUMNS, rows))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_file_says_that_it_clips_and_what_the_service_does(form, clips):
    model = model_of("class-sums", "identity", 3)
    certificate = model.certificate.model_copy(update={"clips": clips})
    content = exported(replace(model, certificate=certificate), form).content
    metadata = metadata_in(form, content)
    assert metadata["beyond_bounds"].startswith("clipped to the declared bounds")
    assert json.loads(metadata["certificate"]).get("clips", False) is clips
    assert ("as the service does" in metadata["beyond_bounds"]) is clips
    assert ("the service refuses them unless asked to" in metadata["beyond_bounds"]) is not clips
    if form == "safetensors":
        assert "clipped to the declared bounds" in metadata["computes"]


@pytest.mark.parametrize("name", ["hashed", "hashed cells"])
def test_hashed_pairs_of_columns_are_in_the_onnx_file_bit_for_bit(name):
    generator = np.random.default_rng(3)
    _, model = model_of_columns("class-sums", name, COLUMNS, generator)
    values = {column.name: some_values(column, generator, 90) for column in COLUMNS}
    rows = [{each: values[each][index] for each in values} for index in range(90)]
    content = exported(model, "onnx").content
    _, found = onnxruntime.InferenceSession(content).run(None, as_onnx(COLUMNS, rows))
    np.testing.assert_allclose(found, model.values(encode_rows(COLUMNS, rows)), rtol=0, atol=1e-12)


def test_a_table_with_a_text_leaves_as_numbers():
    """The hashing of its n-grams stays outside: rows are coordinates, as `columns.encode_rows` returns them."""
    columns = (*COLUMNS[:2], TextColumn(name="note", buckets=8))
    X, model = model_of_columns("class-sums", "bins", columns, np.random.default_rng(7))
    _, found = run_onnx(exported(model, "onnx").content, X)
    np.testing.assert_allclose(found, model.values(X), rtol=0, atol=1e-6)


def test_a_column_in_the_way_of_an_output_is_refused():
    columns = (NumberColumn(name="label", minimum=0, maximum=1),)
    _, model = model_of_columns("dpsgd", "identity", columns, np.random.default_rng(7))
    with pytest.raises(NotExportable, match="'label' is in the way of an output"):
        exported(model, "onnx")


WAVES = {"random_features": 30, "bandwidth": 0.5, "seed": 0}


@pytest.mark.parametrize(
    ("kind", "shape", "more"),
    [
        (Hog, (12, 13, 1), {}),
        (Hog, (16, 20, 3), {}),
        (HogFourier, (12, 35, 1), WAVES),
        (HogFourier, (16, 20, 3), WAVES),
    ],
)
def test_histograms_of_gradients_are_in_the_onnx_file_bit_for_bit(kind, shape, more):
    size, generator = int(np.prod(shape)), np.random.default_rng(1)
    feature_map = kind(lower=(0.0,) * size, upper=(255.0,) * size, bias=0.3, image_shape=shape, **more)
    X = np.rint(generator.uniform(0, 255, (60, size)))
    X[0], X[1], X[2, : size // 2] = 0.0, 255.0, 0.0
    X[3:9] = np.rint(X[3:9] / 51) * 51  # ties of channels, and edges of colours
    names = tuple(f"p{index}" for index in range(size))
    declaration = Declaration(names, feature_map.lower, feature_map.upper, ("n", "y"))
    records = Records(X, generator.integers(2, size=60), declaration, ())
    head = train_head(records, Recipe("m", feature_map, 1.0), "l-of-tests")
    model = release_weights(head, WHOLE, "l-of-tests", Seeded(0), records)
    graph = onnx.load_from_string(exported(model, "onnx").content)
    head = [node for node in graph.graph.node if node.op_type == "MatMul"][-1]
    graph.graph.output.append(onnx.helper.make_tensor_value_info(head.input[0], onnx.TensorProto.DOUBLE, None))
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    assert np.array_equal(session.run(None, {"x": X})[-1], feature_map(X, feature_map.public_tensors()))
    _, probabilities = run_onnx(exported(model, "onnx").content, X)
    np.testing.assert_allclose(probabilities, model.values(X), rtol=0, atol=1e-13)


def test_centred_histograms_leave_as_safetensors():
    feature_map = Hog(lower=(0.0,) * 144, upper=(1.0,) * 144, bias=0.0, image_shape=(12, 12, 1), centred=True)
    X, names = np.random.default_rng(1).uniform(size=(20, 144)), tuple(f"p{index}" for index in range(144))
    declaration = Declaration(names, feature_map.lower, feature_map.upper, ("n", "y"))
    records = Records(X, np.arange(20) % 2, declaration, ())
    head = train_head(records, Recipe("m", feature_map, 1.0), "l-of-tests")
    model = release_weights(head, WHOLE, "l-of-tests", Seeded(0), records)
    with pytest.raises(NotExportable, match="take the model away as safetensors"):
        exported(model, "onnx")


@pytest.mark.parametrize("name", ["identity", "fourier"])
def test_rows_near_the_centre_and_on_it_have_the_same_answers(name):
    """Where a row's direction from the centre is lost in rounding."""
    trained, middle = model_of("class-sums", name, 3), (np.array(LOWER) + UPPER) / 2
    phi = trained.certificate.feature_map(middle[None], trained.tensors)[0]
    centre = phi / np.linalg.norm(phi) * np.sqrt(1 - COUNT_COORDINATE**2)
    model = replace(trained, centre=100 * np.append(centre, COUNT_COORDINATE))
    away = np.array([0.4, -0.4, 0.2, 0.1, -0.3]) * (np.array(UPPER) - LOWER)
    rows = np.vstack([middle, middle + away * 2.0 ** -np.arange(50.0)[:, None]])
    wanted = model.values(rows)
    _, probabilities = run_onnx(exported(model, "onnx").content, rows)
    np.testing.assert_allclose(probabilities, wanted, rtol=0, atol=1e-6)


def test_rows_longer_than_the_tables_powers_reach_their_ends():
    """One feature, tiny and large: every exponent that a row's largest coordinate can have."""
    feature_map = Identity(lower=(0.0,), upper=(1.0,), clip_norm=2.0**-20, bias=0.5)
    records = Records(
        np.array([[0.0], [1.0]] * 20), np.array([0, 1] * 20), Declaration(("a",), (0.0,), (1.0,), ("n", "y")), ()
    )
    model = train_class_sums(records, "m", feature_map, WHOLE, "l-of-tests", Seeded(0))
    rows = np.append(2.0 ** -np.arange(80.0), 0.0)[:, None]
    _, probabilities = run_onnx(exported(model, "onnx").content, rows)
    np.testing.assert_allclose(probabilities, model.values(rows), rtol=0, atol=1e-13)


def computed_from(arrays, metadata, rows):
    """Compute what the description in a safetensors file says."""
    certificate = json.loads(metadata["certificate"])
    kinds = {"identity": Identity, "bins": Bins, "fourier": Fourier}
    feature_map = kinds[certificate["feature_map"]["kind"]].model_validate(certificate["feature_map"])
    tensors = {name.removeprefix("feature_map."): each for name, each in arrays.items() if name.startswith("feature_")}
    values = feature_map(rows, tensors)
    if "centre" in arrays:
        values = values / np.linalg.norm(values, axis=1, keepdims=True) - arrays["centre"]
        values /= np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 2.0**-12)
    logits, place = np.zeros((len(rows), len(certificate["classes"]))), 0
    while f"weights.{place}.0" in arrays:
        layer, each = 0, values
        while f"weights.{place}.{layer}" in arrays:
            before = np.tanh(each) if layer else each
            each = before @ arrays[f"weights.{place}.{layer}"] + arrays[f"biases.{place}.{layer}"]
            layer += 1
        logits += each
        place += 1
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_arrays_give_the_answers_by_their_description(kind, rows, tmp_path):
    model = model_of(kind, "fourier", 3)
    content = exported(model, "safetensors").content
    (tmp_path / "m.safetensors").write_bytes(content)
    with safe_open(tmp_path / "m.safetensors", framework="numpy") as opened:
        metadata = opened.metadata()
    found = computed_from(load(content), metadata, rows)
    np.testing.assert_allclose(found, model.values(rows), rtol=0, atol=1e-9)


def metadata_in(form, content):
    if form == "onnx":
        return {each.key: each.value for each in onnx.load_from_string(content).metadata_props}
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length])["__metadata__"]


@pytest.mark.parametrize("form", FORMS)
def test_a_file_says_whose_model_it_is_and_what_it_cost(form):
    model = model_of("weights", "identity", 3)
    said = metadata_in(form, exported(model, form).content)
    assert said["model_id"] == model.certificate.model_id
    assert json.loads(said["certificate"]) == model.certificate.public()
    assert json.loads(said["classes"]) == ["red", "green", "blue"]
    assert json.loads(said["feature_names"]) == ["a", "b", "c", "d", "e"]
    assert Cost.parse(said["price"]) == model.certificate.price
    assert float(said["price_rho"]) == pytest.approx(to_rho(WHOLE))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_says_that_its_answers_are_calibrated_and_for_what(kind, form):
    model = model_of(kind, "identity", 3)
    certificate = model.certificate
    said = metadata_in(form, exported(model, form).content)["calibration"]
    assert said == f"in the last layer; it is {GaussianLoss(certificate.mu_of(CALIBRATION))} of the price"
    assert certificate.mu_of(CALIBRATION) > 0


@pytest.mark.parametrize("by", ["all", "class"])
@pytest.mark.parametrize("form", FORMS)
def test_a_files_sets_hold_the_classes_of_the_models_sets(form, by, rows):
    model = model_of("class-sums", "identity", 3)
    held = np.random.default_rng(5)
    own, y = held.beta(3, 1.3, 4000), held.integers(3, size=4000)
    counts = counts_of(own, y, record_parts(None, 4000), 1 if by == "all" else 3)
    sets = release_sets(counts, 0.05, 10, Seeded(2))
    model = replace(model, certificate=model.certificate.with_prediction_sets(sets))
    by_coverage = json.loads(metadata_in(form, exported(model, form).content)["prediction_sets"])
    answers, differences = model.values(rows), np.random.default_rng(6).uniform(-1e-6, 1e-6, (len(rows), 3))
    sizes = []
    for coverage, least in by_coverage.items():
        inside = sets.sets_of(answers, round(float(coverage) * 1000))
        of_file = answers + differences >= np.array(least)
        assert (of_file >= inside).all()
        assert (of_file > inside).sum() <= 3
        sizes.append(of_file.mean())
    assert sizes == sorted(sizes)
    assert sizes[0] < 1


def test_a_file_of_a_model_without_a_calibration_says_so():
    """A price near the least one leaves nothing for it."""
    records = some_records(3)
    model = train_class_sums(records, "m", MAPS["identity"], whole_picorho("rho:0.001"), "l-of-tests", Seeded(0))
    assert metadata_in("onnx", exported(model, "onnx").content)["calibration"] == "none"


def test_the_onnx_file_names_its_opset_and_needs_no_other_domain():
    content = exported(model_of("class-sums", "fourier", 3), "onnx").content
    model = onnx.load_from_string(content)
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 18)]
    assert {node.domain for node in model.graph.node} == {""}


def save(kind, model, folder):
    return {"class-sums": save_class_sums, "weights": save_weights}.get(kind, save_dpsgd)(folder, model)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_no_secret_is_in_a_file(kind, form, tmp_path):
    save(kind, model_of(kind, "identity", 3), tmp_path / "bundle")
    model = load_model(tmp_path / "bundle")
    certificate = model.certificate
    secrets = [
        certificate.binding_key,
        certificate.weights_sha256,
        certificate.lineage,
        certificate.created.isoformat(),
    ]
    hidden = [each.encode() for each in secrets] + [bytes.fromhex(each) for each in secrets[:2]] + [certificate.drawn]
    content = exported(model, form).content
    assert certificate.model_id.encode() in content, "what is in it can be found in it"
    assert [each for each in hidden if each in content] == []


def test_what_is_not_private_is_refused_with_what_to_do():
    records, feature_map = some_records(3), MAPS["identity"]
    head = train_head(records, Recipe("the-head", feature_map, 1.0), "l-of-tests")
    with pytest.raises(NotExportable, match=r"the-head .* not private.*train a pay-once model"):
        exported(head, "onnx")


def test_a_form_that_there_is_not_is_refused():
    model = model_of("weights", "identity", 3)
    with pytest.raises(NotExportable, match=r"no form 'pickle' .*; there are onnx, safetensors"):
        exported(model, "pickle")
