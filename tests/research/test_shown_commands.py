"""Every `python -m research...` command of the pages is one that its own parser takes."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "research").rglob("*.md"))]
COMMANDS_OF = (r"^ *(?:\$ )?python -m (research\.\w+)(.*)$", r"`python -m (research\.\w+)([^`]*)`")
"""Lines of blocks, and what stands between backquotes."""


def shown(page):
    """The modules that a page's commands run, and their words, from blocks and from lines of text."""
    text = page.read_text().replace("\\\n", " ")
    for pattern in COMMANDS_OF:
        for module, rest in re.findall(pattern, text, re.MULTILINE):
            yield module, shlex.split(rest, comments=True)


COMMANDS = [(page.name, module, words) for page in PAGES for module, words in shown(page)]


def test_the_pages_show_every_program_of_research():
    programs = {f"research.{path.parent.name}" for path in (ROOT / "research").glob("*/__main__.py")}
    programs |= {f"research.{path.stem}" for path in (ROOT / "research").glob("*.py") if "__main__" in path.read_text()}
    assert {module for _, module, _ in COMMANDS} == programs


@pytest.mark.parametrize(("page", "module", "words"), [command for command in COMMANDS if command[2]])
def test_the_parser_takes_the_command(page, module, words):
    del page
    found = module if (ROOT / f"{module.replace('.', '/')}.py").exists() else f"{module}.__main__"
    get_command(import_module(found).app).make_context(module, words)
