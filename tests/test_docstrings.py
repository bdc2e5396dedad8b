"""Docstrings name the thing or say what the function does: none begins with a word that leaves its subject open."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = (
    "accounting",
    "audit",
    "benchmarks",
    "deploy",
    "dpserve",
    "mechanisms",
    "research",
    "service",
    "tests",
    "training",
)
OPENINGS = re.compile(r"\W*(What|How|Of|From|Whose|By)\b")
NAMED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every docstring: of modules, classes, functions, and what is assigned."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):  # a lambda's body, or that of a conditional expression
            continue
        for before, statement in zip([None, *body], body, strict=False):
            documents = isinstance(before, ast.Assign | ast.AnnAssign) or (before is None and isinstance(node, NAMED))
            match statement:
                case ast.Expr(value=ast.Constant(value=str() as text)) if documents:
                    yield statement.lineno, text


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_opens_with_a_word_that_leaves_its_subject_open(folder):
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    open_ones = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in paths
        for line, text in docstrings(path.read_text())
        if OPENINGS.match(text)
    ]
    assert not open_ones, "\n".join(open_ones)


@pytest.mark.parametrize(
    "source",
    [
        '"""What it is for."""',
        'class Charge:\n    """How it is made."""',
        'class Charge:\n    price: int\n    """Of a row."""',
        'def cost():\n    """By row."""',
        'class Charge:\n    async def cost(self):\n        """\n        Whose it is."""',
        'LIMITS = {}\n"""From a name to a limit."""',
    ],
)
def test_every_kind_of_docstring_is_seen(source):
    ((_, text),) = docstrings(source)
    assert OPENINGS.match(text)


def test_a_string_that_documents_nothing_is_no_docstring():
    assert not list(docstrings('def cost():\n    return 1\n    "What is this?"\nprint("How")\n'))
