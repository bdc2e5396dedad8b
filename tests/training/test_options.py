"""Options: each value is held to its declaration, whoever gives it."""

from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
from pydantic import Field, ValidationError

from dpserve import DPSGD, ClassSums, Head, Levels, Number, Weights
from dpserve.training.block_choice import Blocks
from dpserve.training.errors import TrainingError, WrongOption
from dpserve.training.feature_choice import (
    AutoFeatures,
    BinFeatures,
    EncoderFeatures,
    Features,
    FourierFeatures,
    HogFourierFeatures,
    QuantileFeatures,
)
from dpserve.training.fit import Request
from dpserve.training.kinds.class_sums.kind import ClassSumsKind
from dpserve.training.kinds.published.kind import Published
from dpserve.training.kinds.registry import all_kinds, kind_for, kind_named, register, trainable_kinds
from dpserve.training.options import Options, default_text, is_several, limits, option, range_text, words_of

ALL = [Blocks, Request, *Features.members().values(), *(kind.options for kind in all_kinds().values())]
NEEDED = {"name": "m", "lineage": "l", "image_shape": (2, 2), "encoder": "a.onnx"}


def needed(options):
    return {name: NEEDED[name] for name, field in options.model_fields.items() if field.is_required()}


@pytest.mark.parametrize("options", ALL)
def test_what_is_declared_is_whole(options):
    for name, field in options.model_fields.items():
        assert str(field.description).endswith("."), name
        assert field.is_required() or field.get_default() is None or default_text(field) is not None or is_flag(field)


def is_flag(field):
    return field.annotation is bool


@pytest.mark.parametrize("options", ALL)
def test_each_number_beyond_its_range_is_refused_by_name(options):
    for name, field in options.model_fields.items():
        for word, end in limits(field).items():
            beyond = end - 1 if word in ("above", "at least") else end * 2 if end else 1
            value = (beyond,) if is_several(field) else (beyond, beyond) if name == "image_shape" else beyond
            with pytest.raises(WrongOption) as refused:
                options(**needed(options) | {name: value})
            assert refused.value.field == name
            assert str(range_text(field)) in str(refused.value)


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        (Head, "lam", "x"),
        (Head, "lam", float("nan")),
        (Head, "lam", float("inf")),
        (Head, "lam", True),
        (Head, "objective", "product"),
        (DPSGD, "steps", 0),
        (DPSGD, "steps", 2.5),
        (DPSGD, "hidden", "x"),
        (DPSGD, "hidden", -1),
        (Published, "hidden", [2, -1]),
        (DPSGD, "sampling_rate", 1.5),
        (ClassSums, "width", 3),
        (AutoFeatures, "image_shape", (28,)),
        (AutoFeatures, "image_shape", "28x28"),
        (EncoderFeatures, "encoder_range", "1:0"),
        (EncoderFeatures, "encoder_range", "1"),
    ],
)
def test_a_wrong_value_is_refused_by_name(options, field, value):
    with pytest.raises(WrongOption) as refused:
        options(**needed(options) | {field: value})
    assert refused.value.field == field
    assert isinstance(refused.value, ValueError)
    assert not isinstance(refused.value, ValidationError)


def test_words_and_numbers_of_numpy_are_read():
    assert DPSGD(hidden="64") == DPSGD(hidden=np.int64(64)) == DPSGD(hidden=64)
    assert Published(hidden=["3", "4"]).hidden == (3, 4)
    assert Head(lam=np.float32(2)) == Head(lam="2") == Head(lam=2)
    assert AutoFeatures(image_shape="28,28").image_shape == (28, 28)
    assert EncoderFeatures(encoder=Path("a.onnx"), encoder_range="0:1").encoder_range == (0.0, 1.0)
    assert DPSGD.of_words({"hidden": "3", "steps": None}) == DPSGD(hidden=3)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(WrongOption, match="is no option of DPSGD: did you mean `hidden`"):
        DPSGD(hiden=3)
    with pytest.raises(WrongOption, match=r"is no option of Number$"):
        Number(0, 1, xyzzy=2)


def test_choices_of_the_convexified_objective_go_together():
    assert Head(lam=1, alpha=0.5, least_records=9, objective="convexified").convexity
    for given, field in (
        ({"alpha": 0.5}, "alpha"),
        ({"least_records": 5}, "least_records"),
        ({"objective": "convexified", "least_records": 5}, "alpha"),
        ({"objective": "convexified", "alpha": 0.5}, "least_records"),
    ):
        with pytest.raises(WrongOption) as refused:
            Head(lam=1, **given)
        assert refused.value.field == field
    convexified = Head(objective="convexified", alpha=0.5, least_records=9)
    assert kind_named("head").limitation("units", convexified) is not None
    assert kind_named("head").limitation("units", Head()) is None


def test_options_cannot_be_changed_and_are_shown_by_what_they_are():
    made = Weights(lam=30)
    assert made.lam == 30.0
    with pytest.raises(ValidationError, match="frozen"):
        made.lam = 2
    assert repr(made) == "Weights(lam=30.0)"
    assert made.replaced(canaries=64) == Weights(lam=30, canaries=64)
    assert Number(0, 1).replaced(missing="level") == Number(0, 1, missing="level")
    assert Levels("a", "b").replaced(unknown="coordinate") == Levels("a", "b", unknown="coordinate")
    assert FourierFeatures(bias=0.1).replaced(seed=3) == FourierFeatures(bias=0.1, seed=3)
    with pytest.raises(WrongOption):
        made.replaced(lam=-1)


def test_help_and_errors_are_made_of_a_declaration():
    class Cake(Options):
        flour: int = option(..., "Grams of it.", unit="grams", ge=1, le=500, needed="how much of it")
        layers: tuple[Annotated[int, Field(gt=0)], ...] = option((), "How many.", default_text="one")
        glaze: bool = option(False, "Whether it shines.")
        kind: str = option("plain", "Which.")

    fields = Cake.model_fields
    assert range_text(fields["flour"]) == "at least 1 and at most 500"
    assert [default_text(each) for each in fields.values()] == [None, "one", None, "plain"]
    assert range_text(fields["layers"]) == "above 0"
    assert (is_several(fields["layers"]), is_several(fields["flour"])) == (True, False)
    assert words_of(Head.model_fields["objective"]) == ("sum", "convexified")
    with pytest.raises(WrongOption, match="`flour` is needed: how much of it"):
        Cake()
    with pytest.raises(WrongOption, match="`layers` must be above 0, not 0"):
        Cake(flour=1, layers=[1, 0])
    with pytest.raises(WrongOption, match="`glaze` must be true or false"):
        Cake(flour=1, glaze="glossy")


@pytest.mark.parametrize(
    ("words", "made"),
    [
        ({}, AutoFeatures()),
        ({"features": "fourier"}, FourierFeatures()),
        ({"image_shape": "2,2"}, AutoFeatures(image_shape=(2, 2))),
        ({"image_shape": "2,2", "seed": "3"}, HogFourierFeatures(image_shape=(2, 2), seed=3)),
        ({"features": "bins", "cross": ["a:b"]}, BinFeatures(cross=("a:b",))),
        ({"cross_buckets": "4"}, BinFeatures(cross_buckets=4)),
        ({"quantile_share": "0"}, QuantileFeatures(quantile_share=0.0)),
        ({"encoder": "a.onnx", "clip_norm": "2"}, EncoderFeatures(encoder="a.onnx", clip_norm=2)),
    ],
)
def test_words_choose_the_one_of_several_values_that_takes_them(words, made):
    assert Features.of_words(words) == made


@pytest.mark.parametrize(
    ("words", "field", "said"),
    [
        ({"features": "magic"}, "features", "must be one of auto, identity"),
        ({"features": ["bins"]}, "features", "must be one of auto, identity"),
        ({"features": "fourier", "cross": ["a:b"]}, "cross", "goes with `features`, not fourier"),
        ({"encoder": "a.onnx", "cross": ["a:b"], "device": "cpu"}, "cross", "goes with `features`, not encoder"),
        ({"features": "hog"}, "image_shape", "is needed"),
        ({"device": "cpu"}, "encoder", "is needed"),
    ],
)
def test_a_field_of_another_value_is_refused_by_name(words, field, said):
    with pytest.raises(WrongOption, match=said) as refused:
        Features.of_words(words)
    assert refused.value.field == field


def test_one_name_has_one_kind():
    register(kind_named("class-sums"))
    with pytest.raises(TrainingError, match="rename one"):
        register(ClassSumsKind())


def test_kinds_are_found_by_their_options():
    assert kind_for(Head()).name == "head"
    assert kind_for(Weights(lam=1)).name == "weights"
    assert set(trainable_kinds()) == set(all_kinds()) - {"published"}
    with pytest.raises(TrainingError, match="no kind of model has options like"):
        kind_for(AutoFeatures())
