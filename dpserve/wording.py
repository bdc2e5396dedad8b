"""The names of options in each front end: flags on the command line, parameters in Python.

A floor below says which option it means (`dpserve.accounting.messages`), and how one is written is said here alone.
"""

from dpserve.accounting.messages import Message, spelled
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
_BY_NAME = frozenset({"bounds", "classes", "missing"})
"""The options that Python takes as mappings: NAME=LOW:HIGH on the command line, {NAME: (LOW, HIGH)} there."""
_FLAGS = {"lineage_budget": "--epsilon E --delta D"}
"""The options that the command line gives by other flags than one of their name."""


def as_flag(option: str, form: str = "") -> str:
    """Return an option as the command line writes it: `--missing COLUMN=VALUE`."""
    flag = _FLAGS.get(option, f"--{option.replace('_', '-')}")
    return f"{flag} {form}" if form else flag


def as_parameter(option: str, form: str = "") -> str:
    """Return an option as Python writes it: `missing={COLUMN: VALUE}`."""
    written = _PARAMETERS.get(option, f"{option}=")
    if not form or not written.endswith("="):
        return written
    if option in _TEXTS:
        return f"{written}{form!r}"
    return f"{written}{_in_pairs(form) if option in _BY_NAME else form}"


def _in_pairs(form: str) -> str:
    """Return NAME=VALUE and LOW:HIGH as Python has them."""
    name, equals, value = form.partition("=")
    if equals:
        return f"{{{name}: {_in_pairs(value)}}}"
    return f"({form.replace(':', ', ')})" if ":" in form else form


def in_python(error: BaseException) -> str:
    """Return what an error says in Python's words: `steps=0 must be at least 1`."""
    if isinstance(error, SeveralErrors):
        return "\n".join(map(in_python, error.errors))
    if not isinstance(error, WrongOption) or error.value is None:
        return spelled(error, as_parameter)
    written = as_parameter(error.field)
    given = f"{written}{error.value!r}" if written.endswith("=") else written
    reason = error.requirement if isinstance(error, WrongValue) else error.reason
    remedy = "" if error.remedy is None else Message(": {}", error.remedy)
    return spelled(Message("{} {}{}", given, reason, remedy), as_parameter)
