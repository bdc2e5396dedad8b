"""Messages below `dpserve` name options without a front end's way of writing them."""

import ast
import inspect
import pickle
import re
from pathlib import Path
from string import Formatter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpserve.accounting.messages import Message, spelled
from dpserve.classifier import PrivateClassifier
from dpserve.settings import ServeSettings
from dpserve.training.errors import DataError, SeveralErrors, WrongOption, WrongValue
from dpserve.wording import PROPERTIES, as_flag, as_parameter
from tests.owners_commands import commands

ROOT = Path(__file__).parents[1]
FLOORS = ("training", "service", "accounting", "mechanisms", "audit")
WRITTEN = re.compile(r"(?<![\w-])--[a-z]|PORT=")
OTHERS_COMMANDS = {
    ("audit/membership/shadow_models.py", "--address"),
    (
        "audit/membership/shadow_models.py",
        "no Ray cluster answers at {}: start one with 'ray start --head', or give its address to {ray}",
    ),
}
"""Arguments that are passed to programs of other people."""


def _texts(path):
    """Yield the strings of a module, without its docstrings."""
    tree = ast.parse(path.read_text())
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


@pytest.mark.parametrize("floor", FLOORS)
def test_no_message_below_the_face_names_a_flag(floor):
    named = {
        (str(path.relative_to(ROOT)), text)
        for path in (ROOT / floor).rglob("*.py")
        for text in _texts(path)
        if WRITTEN.search(text)
    }
    assert named - OTHERS_COMMANDS == set()


def _templates():
    """Yield the templates of the product's messages, each with the place where it stands."""
    for path in [path for folder in (*FLOORS, "dpserve") for path in sorted((ROOT / folder).rglob("*.py"))]:
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Message":
                yield f"{path.relative_to(ROOT)}:{call.lineno}", call.args[0]


def test_a_message_is_written_down_and_never_put_together_of_what_it_says():
    """Its values are given apart, or a brace among them would be taken for an option's."""
    made_there = "accounting/messages.py"
    assert [at for at, text in _templates() if not isinstance(text, ast.Constant) and made_there not in at] == []


def test_every_option_that_a_message_names_is_one_that_a_front_end_has():
    flags = {option.name for _, command in commands() for option in command.params}
    known = flags | set(inspect.signature(PrivateClassifier).parameters) | set(ServeSettings.model_fields)
    known |= {"lineage_budget", *PROPERTIES}  # which both front ends have other names for
    templates = {at: text.value for at, text in _templates() if isinstance(text, ast.Constant)}
    named = {(at, name) for at, text in templates.items() for _, name, _, _ in Formatter().parse(text) if name}
    assert {name for _, name in named} > {"tolerance", "lineage", "ledger_replicas"}
    assert {(at, name) for at, name in named if name not in known} == set()


def test_each_front_end_spells_an_option_in_its_own_way():
    said = Message("give {n} and {missing:COLUMN=VALUE}")
    assert spelled(said, as_flag) == "give --n and --missing COLUMN=VALUE"
    assert spelled(said, as_parameter) == "give n= and Schema(missing={COLUMN: VALUE})"
    assert said == "give `n` and `missing`"
    bounds = Message("{bounds:NAME=LOW:HIGH}, {bounds:LOW:HIGH}, {features:bins}, {lineage_epsilon}")
    assert spelled(bounds, as_flag) == "--bounds NAME=LOW:HIGH, --bounds LOW:HIGH, --features bins, --lineage-epsilon"
    assert (
        spelled(bounds, as_parameter)
        == "Schema(bounds={NAME: (LOW, HIGH)}), Schema(bounds=(LOW, HIGH)), features='bins', "
        "Lineage(epsilon=)"
    )


@given(
    st.text(alphabet="{}:!0ab label", max_size=12) | st.sampled_from(["{label}", "{{label}}", "{}", "{0}", "{label:x}"])
)
def test_braces_that_a_person_wrote_are_shown_as_they_are(text):
    """In a value, in a message within a message, in the form of an option, and in the text of any other error."""
    inner = Message("row {} lacks {label}", text)
    assert spelled(inner, as_flag) == f"row {text} lacks --label"
    assert spelled(Message("{}: leave {device} out", inner), as_flag) == f"row {text} lacks --label: leave --device out"
    assert spelled(Message("\n").join([text, inner]), as_flag) == f"{text}\nrow {text} lacks --label"
    assert spelled(Message("{lineage:{}}", f"x{text}"), as_flag) == f"--lineage x{text}"
    assert spelled(ValueError(f"{text} {{label}}"), as_flag) == f"{text} {{label}}"
    assert spelled(WrongValue("label", "must be known", value=text), as_flag) == f"--label must be known, not {text!r}"
    assert spelled(pickle.loads(pickle.dumps(inner)), as_flag) == f"row {text} lacks --label"


def test_an_error_has_its_field_its_value_the_reason_and_what_would_do():
    wrong = WrongValue("steps", "must be at least 1", value=0)
    assert (wrong.field, wrong.value, wrong.requirement) == ("steps", 0, "must be at least 1")
    needed = WrongOption("steps", "is needed", remedy=Message("how many {steps}"))
    assert (needed.reason, needed.remedy) == ("is needed", "how many `steps`")
    assert spelled(needed, as_flag) == "--steps is needed: how many --steps"
    assert spelled(wrong, as_flag) == "--steps must be at least 1, not 0"
    both = SeveralErrors([wrong, DataError("there are no records")])
    assert both.errors[0] is wrong
    assert spelled(both, as_parameter) == "steps= must be at least 1, not 0\nthere are no records"
