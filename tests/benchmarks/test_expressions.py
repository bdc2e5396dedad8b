"""Every regular expression of what is installed takes no longer than its input, by its automaton, not by a clock."""

import re

import pytest

from benchmarks.expressions import SEARCH, START, WHOLE, Automaton, Expression, NotUnderstood, expressions
from dpserve.training.inputs.column import LONGEST_NUMBER, NUMBER


def test_no_expression_takes_longer_than_its_input():
    installed = expressions()  # not to be read for each worker's list of tests
    hostile = {expression.where: Automaton(expression).hostile() for expression in installed}
    assert {where: repeated for where, repeated in hostile.items() if repeated is not None} == {}
    assert {where.split(":")[0].rpartition(".")[2] for where in hostile} == {"py", "js"}
    assert any(expression.pattern == NUMBER.pattern and expression.how == WHOLE for expression in installed)


@pytest.mark.parametrize(
    ("pattern", "how", "flags"),
    [
        (r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", WHOLE, 0),
        (r"(:/+).*@", SEARCH, re.DOTALL),
        (r"(a+)+b", WHOLE, 0),
        (r"(a|a)*b", WHOLE, 0),
        (r"(a|b?a)*c", START, 0),
        (r"\w*\d*x", WHOLE, 0),
        (r"\d+x", SEARCH, 0),
        (r" +$", SEARCH, 0),
        (r"[a-z]+[\u017f]*x", WHOLE, re.IGNORECASE),
    ],
)
def test_expressions_known_to_be_slow_are_convicted_with_what_to_repeat(pattern, how, flags):
    _, repeated = Automaton(Expression("here", pattern, flags, how)).hostile()
    assert repeated


@pytest.mark.parametrize(
    ("pattern", "how"),
    [(r"[0-9]++\.?[0-9]*+x", WHOLE), (r"\d+x", START), (r"\w+", SEARCH), (r"a*b*c", WHOLE), (r"(?:ab)+c", START)],
)
def test_expressions_known_to_be_linear_are_acquitted(pattern, how):
    assert Automaton(Expression("here", pattern, 0, how)).hostile() is None


@pytest.mark.parametrize("pattern", [r"(a)\1", r"(?=.*a)b", r"(?>ab|a)c", r"(?:ab)++"])
def test_what_is_not_modelled_is_never_passed_over(pattern):
    with pytest.raises(NotUnderstood):
        Automaton(Expression("here", pattern, 0, WHOLE))


@pytest.mark.parametrize(
    "text", ["0", "-1", "+.5", "5.", "1e9", "1E-400", "NaN", "inf", "-Infinity", "1" * LONGEST_NUMBER]
)
def test_a_number_is_a_number(text):
    assert NUMBER.fullmatch(text)
    float(text)


@pytest.mark.parametrize(
    "text", ["", ".", "+", "e5", "1_0", "1\n", "\u0661", "\u0131nf", "nan(1)", "0x1", "1" * (LONGEST_NUMBER + 1)]
)
def test_what_is_no_number_is_none(text):
    assert not NUMBER.fullmatch(text)
