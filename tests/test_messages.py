"""Messages below `dpserve` name options without a front end's way of writing them."""

import ast
import re
from pathlib import Path

import pytest

from dpserve.accounting.messages import Message, OptionName, joined, message, message_of
from dpserve.training.errors import DataError, SeveralErrors, WrongOption, WrongValue
from dpserve.wording import as_flag, as_parameter

ROOT = Path(__file__).parents[1]
FLOORS = ("training", "service", "accounting", "mechanisms", "audit")
WRITTEN = re.compile(r"(?<![\w-])--[a-z]|PORT=")
OTHERS_COMMANDS = {("audit/membership/shadow_models.py", "--address")}
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


def test_each_front_end_words_an_option_in_its_own_way():
    said = "give " + OptionName("records_declared") + " and " + OptionName("missing", {"COLUMN": "VALUE"})
    assert said.worded(as_flag) == "give --records-declared and --missing COLUMN=VALUE"
    assert said.worded(as_parameter) == "give records_declared= and missing={COLUMN: VALUE}"
    bounds = message(OptionName("bounds", {"NAME": ("LOW", "HIGH")}))
    assert bounds.worded(as_flag) == "--bounds NAME=LOW:HIGH"
    assert bounds.worded(as_parameter) == "bounds={NAME: (LOW, HIGH)}"
    assert str(said) == "give `records_declared` and `missing`"


def test_an_error_has_its_field_its_value_the_reason_and_what_would_do():
    wrong = WrongValue("steps", "must be at least 1", value=0)
    assert (wrong.field, wrong.value, str(wrong.requirement)) == ("steps", 0, "must be at least 1")
    needed = WrongOption("steps", "is needed", remedy="how many steps")
    assert (str(needed.reason), str(needed.remedy)) == ("is needed", "how many steps")
    assert message_of(wrong).worded(as_flag).startswith("--steps ")
    both = SeveralErrors([wrong, DataError("there are no records")])
    assert both.errors[0] is wrong
    assert message_of(both).worded(as_parameter).splitlines()[1] == "there are no records"


def test_messages_are_joined_and_added():
    parts = joined(["a", OptionName("b"), message("c")], ", ")
    assert parts == Message(("a", ", ", OptionName("b"), ", ", "c"))
    assert message_of(ValueError("as it is")) == message("as it is")
    assert message_of(WrongOption("unit", "is needed")).parts[0] == OptionName("unit")
