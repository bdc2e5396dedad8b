"""A wrong value of any declared option is refused in our own words, by both front ends, before a record is read."""

import math
import re

import numpy as np
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from dpserve import Lineage, PrivateClassifier, Schema
from dpserve.cli import app
from dpserve.train_options import PlannerOptions, TrainPrice
from dpserve.training.errors import WrongOption
from dpserve.training.feature_choice import Features
from dpserve.training.kinds.registry import kind_for, trainable_kinds
from dpserve.training.options import Options, declared, is_number, is_several, limits, words_of

PYDANTIC = re.compile(r"[Ii]nput should|validation error|[Ff]ield required|valid (integer|number|string|tuple)")
DECLARED = {"schema": Schema(classes=["no", "yes"], bounds=(0, 1)), "lineage": Lineage("people")}
TRAIN = ("--data", "no-such.csv", "--lineage", "people", "--classes", "no,yes", "--bounds", "0:1")
KINDS = [kind.options for kind in trainable_kinds().values()]
FEATURES = list(Features.members().values())
NEEDED = {"image_shape": (1, 1), "encoder": "no-such.onnx"}


def out_of_range(field):
    for word, end in limits(field).items():
        yield {"above": end, "below": end, "at least": end - 1, "at most": end * 2}[word]


def wrong_values(field):
    """Values of a wrong type and out of range; for a file of a command line, too."""
    if is_number(field):
        numbers = ["much", math.nan, math.inf, True, *out_of_range(field)]
        numbers += [] if "float" in str(field.annotation) else [1.5]
        yield from ([(number,) for number in numbers] if is_several(field) else numbers)
    if words_of(field):
        yield from ("unheard-of", 3)
    if declared(field, "form"):
        yield {"no": "sequence"}
        yield (1,)
    if is_several(field):
        yield {"no": "sequence"}


def cases():
    for options in (*FEATURES, TrainPrice, PlannerOptions, *KINDS):
        for name, field in options.model_fields.items():
            for wrong in wrong_values(field):
                yield pytest.param(options, name, wrong, id=f"{options.__name__}-{name}-{wrong!r}")


def needed(options, but):
    """Return values of the fields without which there are no such options, but for one."""
    fields = options.model_fields.items()
    return {name: NEEDED[name] for name, field in fields if field.is_required() and name != but}


def in_words(wrong):
    """Return a value as a command line has it, as one word; None for what no word says."""
    if isinstance(wrong, bool | dict):
        return None
    return str(wrong[0]) if isinstance(wrong, tuple) else str(wrong)


def command_of(options):
    """Return the words that train what takes these options, in vain."""
    if options in FEATURES:
        return ["train", "dpsgd", *TRAIN, "--features", options.word]
    if options not in KINDS:
        return ["train", "auto", *TRAIN]
    return ["train", kind_for(options()).name, *TRAIN]


@pytest.mark.parametrize(("options", "name", "wrong"), list(cases()))
def test_it_names_field_value_and_reason(options: type[Options], name, wrong):
    with pytest.raises(WrongOption) as refused:
        options(**needed(options, name), **{name: wrong})
    assert refused.value.field == name
    assert not PYDANTIC.search(str(refused.value))


def first_of_each(chosen):
    """Return one case of each options: that the front ends say all alike is theirs, the cases are the options' own."""
    found = {each.values[0]: each for each in reversed(list(cases())) if chosen(*each.values)}
    return list(found.values())


@pytest.mark.parametrize(
    ("options", "name", "wrong"), first_of_each(lambda options, *_: options in (*FEATURES, *KINDS))
)
def test_the_estimator_says_it_in_python(options, name, wrong, tmp_path, monkeypatch):
    monkeypatch.setenv("DPSERVE_HOME", str(tmp_path))
    value = "features" if options in FEATURES else "kind"
    model = PrivateClassifier(**DECLARED, **{value: options(**needed(options, None))})
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the cause has the type and the field
        model.set_params(**{f"{value}__{name}": wrong}).fit(np.full((4, 1), 0.5), ["no", "yes"] * 2)
    assert not isinstance(refused.value, ValidationError)
    assert isinstance(refused.value.__cause__, WrongOption)
    assert refused.value.__cause__.field == name
    assert not PYDANTIC.search(str(refused.value))
    assert f"{name}=" in str(refused.value)


@pytest.mark.parametrize(
    ("options", "name", "wrong"),
    first_of_each(lambda _, name, wrong: in_words(wrong) is not None and name != "cross"),  # any word is a cross
)
def test_the_command_line_says_it_in_flags(options, name, wrong, tmp_path):
    words = [*command_of(options), "--out", str(tmp_path / "model")]
    words += ["--encoder=no-such.onnx"] if "encoder" in needed(options, name) else []
    words += ["--image-shape=1,1"] if "image_shape" in needed(options, name) else []
    done = CliRunner().invoke(app, [*words, f"--{name.replace('_', '-')}={in_words(wrong)}"])
    assert done.exit_code == 2, done.output
    assert f"--{name.replace('_', '-')}" in done.output
    assert not PYDANTIC.search(done.output)
