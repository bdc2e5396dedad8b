"""The names of options in each front end: flags on the command line, parameters in Python.

A floor below says which option it means (`dpserve.accounting.messages`), and how one is written is said here alone.
"""

from collections.abc import Mapping

from dpserve.accounting.messages import Form, OptionName, message_of
from dpserve.training.errors import SeveralErrors, WrongOption, WrongValue

_PARAMETERS = {
    "out": "path=",
    "price": "epsilon= and delta=",
    "budget": "release='auto'",
    "lineage_budget": "lineage_budget=(EPSILON, DELTA)",
}
"""The options that Python gives otherwise than by a parameter of the same name."""
_TEXTS = frozenset({"decimal", "encoding", "features", "prediction_sets", "unlabelled"})
"""The options whose values are texts, which messages give as they are: Python puts them in quotation marks."""
_FLAGS = {"lineage_budget": "--epsilon E --delta D"}
"""The options that the command line gives by other flags than one of their name."""


def as_flag(option: OptionName) -> str:
    """Return an option as the command line writes it: `--missing COLUMN=VALUE`."""
    flag = _FLAGS.get(option.name, f"--{option.name.replace('_', '-')}")
    return flag if option.form is None else f"{flag} {_after_flag(option.form)}"


def as_parameter(option: OptionName) -> str:
    """Return an option as Python writes it: `missing={COLUMN: VALUE}`."""
    named = _PARAMETERS.get(option.name, f"{option.name}=")
    if option.name in _TEXTS and isinstance(option.form, str):
        return f"{named}{option.form!r}"
    return f"{named}{_after_equals(option.form)}" if option.form is not None and named.endswith("=") else named


def _after_flag(form: Form) -> str:
    if isinstance(form, Mapping):
        return ",".join(f"{name}={_after_flag(each)}" for name, each in form.items())
    return ":".join(form) if isinstance(form, tuple) else str(form)


def _after_equals(form: Form) -> str:
    if isinstance(form, Mapping):
        return "{" + ", ".join(f"{name}: {_after_equals(each)}" for name, each in form.items()) + "}"
    return f"({', '.join(form)})" if isinstance(form, tuple) else str(form)


def in_python(error: BaseException) -> str:
    """Return what an error says in Python's words: `steps=0 must be at least 1`."""
    if isinstance(error, SeveralErrors):
        return "\n".join(map(in_python, error.errors))
    if not isinstance(error, WrongOption) or error.value is None:
        return message_of(error).worded(as_parameter)
    named = as_parameter(OptionName(error.field))
    given = f"{named}{error.value!r}" if named.endswith("=") else named
    reason = error.requirement if isinstance(error, WrongValue) else error.reason
    remedy = "" if error.remedy is None else ": " + error.remedy
    return f"{given} {(reason + remedy).worded(as_parameter)}"
