"""Functions, parameters and module-level names are nouns or verbs: none is a word that could hold anything."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("accounting", "audit", "dpserve", "mechanisms", "service", "training")
PARTICIPLES = {"found", "heard", "known", "meant", "said", "told"}
PREPOSITIONS = {
    "about",
    "above",
    "at",
    "below",
    "beyond",
    "by",
    "for",
    "from",
    "into",
    "of",
    "on",
    "onto",
    "to",
    "upon",
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def names(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of every function, every parameter, and everything that a module assigns."""
    module = ast.parse(source)
    for node in ast.walk(module):
        if isinstance(node, FUNCTIONS):
            yield node.lineno, node.name
            given = node.args
            for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
                if each is not None:
                    yield each.lineno, each.arg
    for statement in module.body:
        for node in ast.walk(statement) if isinstance(statement, ast.Assign | ast.AnnAssign) else ():
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.lineno, node.id


def refused(source: str) -> list[tuple[int, str]]:
    """Return the names that are a participle, and the private or module's own ones that are a preposition."""
    return [
        (line, name)
        for line, name in names(source)
        if name.strip("_").lower() in PARTICIPLES or (name.startswith("_") and name.strip("_") in PREPOSITIONS)
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_name_is_a_participle_that_could_hold_anything(folder):
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}" for path in paths for line, name in refused(path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    ["def found(): ...", "async def _told(): ...", "def cost(said): ...", "def cost(*, known): ...", "KNOWN = 1"],
)
def test_such_a_name_is_noticed(source):
    assert refused(source)
