"""Every parameter that a user passes has a line in NumPy's form, or, of a value, is declared with one sentence."""

import dataclasses
import inspect
import re

import pytest

import dpserve
from dpserve.training.fit import Request
from dpserve.training.options import Options, words_of

LINE = re.compile(r"^ *\**(\w+) : (.+)$", re.MULTILINE)
PUBLIC = [getattr(dpserve, name) for name in dpserve.__all__]


def _documented():
    for thing in PUBLIC:
        if not isinstance(thing, type):
            yield pytest.param(thing, thing, id=thing.__name__)
            continue
        if issubclass(thing, Options):
            continue
        methods = {each for each in dir(thing) if not each.startswith("_")} & {
            each for base in thing.__mro__ if base.__module__.startswith("dpserve") for each in vars(base)
        }
        for method in ("__init__", *sorted(methods)):
            function = inspect.unwrap(getattr(thing, method)) if callable(getattr(thing, method)) else None
            if function is not None and getattr(function, "__module__", "").startswith("dpserve"):
                yield pytest.param(thing, function, id=f"{thing.__name__}.{method}")


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


@pytest.mark.parametrize("options", [each for each in PUBLIC if isinstance(each, type) and issubclass(each, Options)])
def test_each_field_of_a_value_is_declared_with_a_sentence(options):
    assert options.__doc__
    for name, field in options.model_fields.items():
        assert str(field.description).endswith("."), name


def test_the_lines_of_the_estimator_agree_with_the_declarations():
    text = " ".join(str(dpserve.PrivateClassifier.__doc__).split())
    lines = dict(LINE.findall(str(dpserve.PrivateClassifier.__doc__)))
    for name in ("n", "name", "prediction_sets"):
        field = Request.model_fields[name]
        assert str(field.description).rstrip(".") in text, name
        assert all(f'"{word}"' in lines[name] for word in words_of(field)), name


def test_the_estimator_has_few_parameters():
    assert len(inspect.signature(dpserve.PrivateClassifier).parameters) <= 12
