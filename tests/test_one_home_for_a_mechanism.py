"""A mechanism has one home, `mechanisms/NAME.py`: nothing else imports it, or says its name.

What still does is listed here with its reason: the list may shrink. `accounting/` is below the mechanisms: its accounts
and losses have names of their own.
"""

import ast
import re
from pathlib import Path

from dpserve.mechanisms import registry

ROOT = Path(__file__).parent.parent
PACKAGES = ("audit", "dpserve", "mechanisms", "service", "training")
HOMES = {f"dpserve.mechanisms.{home.partition('.')[0]}" for home in registry._HOMES}

DISTINCT = re.compile(r"\b(?:selected-neuron|laplace)\b")
"""Names of mechanisms that are hardly ever words for something else: refused in any text."""

SAID = {
    ("mechanisms/registry.py", "gaussian"),  # the mechanism where none is asked for
    ("mechanisms/registry.py", "laplace"),  # the list of homes
    ("mechanisms/laws.py", "laplace"),  # a law's name
    ("audit/sampler.py", "gaussian"),  # a noise table
    ("audit/sampler.py", "laplace"),
    ("dpserve/commands/explaining.py", "laplace"),  # a loss
    ("dpserve/commands/metered_demonstration.py", "selected-neuron"),
    ("dpserve/commands/options.py", "gaussian"),  # a kind of account
    ("dpserve/commands/schema.py", "label"),  # a column
    ("audit/membership/claims.py", "gaussian"),  # a kind of account
    ("training/inputs/reading.py", "label"),
    ("training/inputs/schema_files.py", "label"),
    ("training/kinds/head/bundle.py", "published"),  # a kind of model
}


def sources():
    """Every module but the homes, by its path."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if f"dpserve.{name.removesuffix('.py').replace('/', '.')}" not in HOMES:
                yield name, ast.parse(path.read_text())


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def strings(*nodes):
    parts = [part for node in nodes for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return [part.value for part in parts if isinstance(part.value, str)]


def chosen(node):
    """The texts that a node compares with something, or gives to something that is called a mechanism or a default."""
    match node:
        case ast.Compare() | ast.MatchValue():
            return strings(node)
        case ast.Dict(keys=keys):
            return strings(*(key for key in keys if isinstance(key, ast.Constant)))
        case ast.keyword(arg=str(name), value=value):
            target, values = name, [value]
        case ast.Assign(targets=[first, *_], value=value) | ast.AnnAssign(target=first, value=ast.AST() as value):
            target, values = ast.unparse(first), [value]
        case ast.For(target=first, iter=value):
            target, values = ast.unparse(first), [value]
        case ast.arguments():
            target = " ".join(argument.arg for argument in (*node.posonlyargs, *node.args, *node.kwonlyargs))
            values = [default for default in (*node.defaults, *node.kw_defaults) if default is not None]
        case _:
            return []
    return strings(*values) if re.search("mechanism|default", target, re.IGNORECASE) else []


def said(tree):
    """The names of mechanisms that a module chooses, and the distinct ones in any text but its documentation."""
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        yield from (text for text in chosen(node) if text in registry.names())
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield from DISTINCT.findall(node.value)


def test_no_module_imports_a_mechanism():
    found = {name: set(imported(tree)) & HOMES for name, tree in sources()}
    assert not {name: homes for name, homes in found.items() if homes}


def test_no_module_says_the_name_of_a_mechanism():
    assert {(name, word) for name, tree in sources() for word in said(tree)} == SAID


def test_such_a_word_is_noticed():
    for line in (
        "if name == 'label': pass",
        "mechanism: str = option('gaussian', 'How')",
        "serve(mechanism='published')",
        "x = {'gaussian': 1}",
        "def f(mechanism='label'): pass",
    ):
        assert list(said(ast.parse(line))), line
    assert list(said(ast.parse("f('as laplace does')"))) == ["laplace"]
    assert not list(said(ast.parse("account('gaussian')\nread(label='label')")))
