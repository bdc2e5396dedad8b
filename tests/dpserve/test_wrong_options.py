"""A wrong value of any declared option is refused in our own words, by both front ends, before a record is read."""

import math
import re
from typing import get_args, get_origin

import numpy as np
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from dpserve import PrivateClassifier
from dpserve.cli import app
from dpserve.training.errors import WrongOption
from dpserve.training.feature_choice import FeatureChoice
from dpserve.training.fit import PlanOptions, Request
from dpserve.training.kinds.kind import Kind
from dpserve.training.kinds.options import Options, fields_of
from dpserve.training.kinds.registry import default_kind, trainable_kinds
from dpserve.training.sets_choice import SetsChoice

PYDANTIC = re.compile(r"[Ii]nput should|validation error|[Ff]ield required|valid (integer|number|string|tuple)")
DECLARED = {"lineage": "people", "classes": ["no", "yes"], "bounds": (0, 1), "epsilon": 1.0, "delta": 1e-6}
TRAIN = ("train", "--data", "no-such.csv", "--lineage", "people", "--classes", "no,yes", "--bounds", "0:1")
ONLY_ON_COMMAND_LINES = {"price", "queries", "cross"}
"""Options that Python gives otherwise, or does not have."""


def out_of_range(declared):
    if declared.least is not None:
        yield declared.least - 1
    if declared.above is not None:
        yield declared.above
    if declared.most is not None:
        yield declared.most * 2
    if declared.below is not None:
        yield declared.below


def wrong_values(field):
    """Values of a wrong type, out of range and of a wrong length; for a file of a command line, too."""
    declared = field.declared
    several = get_origin(field.type) is tuple
    one = get_args(field.type)[0] if several else field.type
    if isinstance(one, type) and issubclass(one, int | float):
        numbers = ["much", math.nan, math.inf, True, *out_of_range(declared)]
        numbers += [1.5] if one is int else []
        length = declared.lengths[0] if declared.lengths else 1
        yield from ([(number,) * length for number in numbers] if several else numbers)
    if field.words:
        yield from ("unheard-of", 3)
    if several:
        yield {"no": "sequence"}
        for length in {0, 1, 2, 3, 4} - set(declared.lengths) if declared.lengths else ():
            yield (1,) * length


def cases():
    sources = [("features", FeatureChoice), ("plan", PlanOptions), ("sets", SetsChoice)]
    sources += [(kind, kind.options) for kind in trainable_kinds().values()]
    for source, options in sources:
        for name, field in fields_of(options).items():
            for wrong in wrong_values(field):
                shown = source.name if isinstance(source, Kind) else source
                yield pytest.param(source, options, name, wrong, id=f"{shown}-{name}-{wrong!r}")


def cases_of_first_takers():
    """Cases without what several kinds declare alike: a front end has one option of a name."""
    seen = set()
    for each in cases():
        key = each.values[2], repr(each.values[3])
        if key not in seen:
            seen.add(key)
            yield each


def asked_for(kind):
    """Return the words that ask for a kind on a command line, but for an option of its own."""
    return ("--release", kind.name) if isinstance(kind, Kind) and kind.asked_by == "release" else ()


def in_words(wrong):
    """Return a value as a command line has it, as one word; None for what no word says."""
    if isinstance(wrong, bool | dict):
        return None
    if isinstance(wrong, tuple):
        return None if len(wrong) != 1 else str(wrong[0])
    return str(wrong)


@pytest.mark.parametrize(("source", "options", "name", "wrong"), list(cases()))
def test_it_names_field_value_and_reason(source, options: type[Options], name, wrong):
    with pytest.raises(WrongOption) as refused:
        options.from_given({name: wrong} | {each: 2 for each in needed(options) if each != name})
    assert refused.value.field == name
    assert not PYDANTIC.search(str(refused.value))
    if isinstance(source, Kind):
        kind = None if source is default_kind() else source.name
        with pytest.raises(WrongOption):
            Request(name="model", lineage="people", kind=kind, options={name: wrong})


def needed(options):
    return [name for name, field in fields_of(options).items() if field.is_needed]


@pytest.mark.parametrize(
    ("source", "options", "name", "wrong"),
    [each for each in cases_of_first_takers() if each.values[2] not in ONLY_ON_COMMAND_LINES],
)
def test_the_estimator_says_it_in_python(source, options, name, wrong, tmp_path, monkeypatch):
    monkeypatch.setenv("DPSERVE_HOME", str(tmp_path))
    given = DECLARED | {"release": "class-sums"}
    if isinstance(source, Kind):
        paid = source.answers == "once"
        given |= {"release": source.name} if paid else {"release": None, "epsilon": None, "delta": None}
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the cause has the type and the field
        PrivateClassifier(**given | {name: wrong}).fit(np.full((4, 1), 0.5), ["no", "yes"] * 2)
    assert not isinstance(refused.value, ValidationError)
    assert isinstance(refused.value.__cause__, WrongOption)
    assert refused.value.__cause__.field == name
    assert not PYDANTIC.search(str(refused.value))
    assert f"{name}=" in str(refused.value)


@pytest.mark.parametrize(
    ("source", "options", "name", "wrong"),
    [each for each in cases_of_first_takers() if in_words(each.values[3]) is not None],
)
def test_the_command_line_says_it_in_flags(source, options, name, wrong, tmp_path):
    words = [*TRAIN, "--out", str(tmp_path / "model"), *asked_for(source)]
    words += ["--budget", "rho:0.1"] if source == "plan" else []
    done = CliRunner().invoke(app, [*words, f"--{name.replace('_', '-')}={in_words(wrong)}"])
    assert done.exit_code == 2, done.output
    assert f"--{name.replace('_', '-')}" in done.output
    assert not PYDANTIC.search(done.output)
