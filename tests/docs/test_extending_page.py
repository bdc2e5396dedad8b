"""The page for authors of kinds and mechanisms: its list of imports is what the examples need, and it exists."""

import ast
import re
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()


def listed() -> set[str]:
    table = PAGE.split("## What you may import")[1]
    return {
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`(dpserve[\w.]*)`", row.split("|")[1])
    }


def imported() -> set[str]:
    names = set()
    for path in (ROOT / "tests" / "another_package").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dpserve"):
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                names |= {name if name in listed() else str(node.module) for name in inside}
    return names


def test_the_examples_import_what_the_page_lists_alone():
    assert imported() - listed() == set()


def test_every_module_that_the_page_lists_is_there_with_what_is_named_of_it():
    for name in listed():
        import_module(name)


def test_the_page_shows_the_file_that_installs_the_examples():
    assert f"```toml\n{(ROOT / 'tests' / 'another_package' / 'pyproject.toml').read_text()}```" in PAGE
