"""Every parameter that a user passes has a line in NumPy's form, which agrees with its declaration."""

import dataclasses
import inspect
import re

import pytest

import dpserve
from dpserve.training.feature_choice import FeatureChoice
from dpserve.training.kinds.options import fields_of
from dpserve.training.kinds.registry import option_fields, takers
from dpserve.training.sets_choice import SetsChoice

IN_OTHER_UNITS = {"encoder"}
"""Parameters whose Python value is not the option's: a path for a file's content."""
LINE = re.compile(r"^ *(\w+) : (.+)$", re.MULTILINE)


def _documented():
    for name in dpserve.__all__:
        thing = getattr(dpserve, name)
        methods = {each for each in dir(thing) if not each.startswith("_")} & {
            each for base in thing.__mro__ if base.__module__.startswith("dpserve") for each in vars(base)
        }
        for method in ("__init__", *sorted(methods)):
            function = inspect.unwrap(getattr(thing, method)) if callable(getattr(thing, method)) else None
            if function is not None and getattr(function, "__module__", "").startswith("dpserve"):
                yield pytest.param(thing, function, id=f"{name}.{method}")


@pytest.mark.parametrize(("thing", "function"), list(_documented()))
def test_each_parameter_has_a_line(thing, function):
    if dataclasses.is_dataclass(thing) and function.__name__ == "__init__":
        return  # a field's own docstring says it, and no user makes one
    text = f"{thing.__doc__}\n{function.__doc__}" if function.__name__ == "__init__" else function.__doc__
    lines = dict(LINE.findall(text))
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        assert parameter.name in lines, f"{parameter.name} has no line"
        if parameter.default not in (None, inspect.Parameter.empty):
            assert f"default {parameter.default!r}".replace("'", '"') in lines[parameter.name]


def test_the_lines_of_the_estimator_agree_with_the_declarations():
    text = " ".join(str(dpserve.PrivateClassifier.__doc__).split())
    lines = dict(LINE.findall(str(dpserve.PrivateClassifier.__doc__)))
    parameters = set(inspect.signature(dpserve.PrivateClassifier).parameters) - IN_OTHER_UNITS
    fields = {**fields_of(FeatureChoice), **fields_of(SetsChoice), **option_fields()}
    declared = parameters & set(fields)
    assert len(declared) > 20
    for name in declared:
        field = fields[name]
        assert field.declared.sentence.rstrip(".") in text, name
        assert all(f'"{word}"' in lines[name] for word in field.words), name
        if field.declared.range_text:
            assert field.declared.range_text in text, name
        if name in option_fields():
            assert f"For {', '.join(kind.name for kind in takers(name))}." in text, name


def test_every_option_of_a_kind_is_a_parameter_of_the_estimator():
    parameters = set(inspect.signature(dpserve.PrivateClassifier).parameters)
    assert set(option_fields()) - {"price"} <= parameters
    assert set(fields_of(FeatureChoice)) - {"cross"} <= parameters
