"""The guides, walked from top to bottom; and no command on any page that nobody runs, or that no parser takes."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

from dpserve.cli import app

from .walkthrough import DOCS, Walkthrough, matches, steps

WALKED = {"owners-guide.md", "clients-guide.md", "auditors-guide.md", "configuration.md"}
ELSEWHERE = {"index.md"}
"""`dpserve demo`: tests/dpserve/test_cli.py runs it."""


def test_an_owner_and_a_client_get_through_their_guides(tmp_path):
    with Walkthrough(tmp_path) as reader:
        reader.walk("owners-guide.md")
        reader.walk("clients-guide.md")


@pytest.mark.parametrize("page", ["auditors-guide.md", "configuration.md"])
def test_other_guides(tmp_path, page):
    with Walkthrough(tmp_path) as reader:
        reader.walk(page)


def test_every_command_on_every_page_is_run_by_some_test():
    here = Path(__file__).parent
    for page in DOCS.rglob("*.md"):
        if any(step[0] == "console" for step in steps(page.read_text())):
            own_test = here / f"test_{page.stem.replace('-', '_')}_page.py"
            run = page.name in WALKED | ELSEWHERE or own_test.exists()
            assert run, f"nobody runs the commands of {page.name}: walk through it here, or in {own_test.name}"


COMMAND = r"(?:(?:^ *|-- |CONTAINER )dpserve|dpserve:[\d.]+) ([a-z].*)"
UsageError = typer.BadParameter.__base__
SHOWN = {
    "README.md": "test_readme_page.py pastes them",
    "attacks.md": "shadow models take minutes and need PyTorch: tests/dpserve/test_attacking.py runs smaller ones",
    "auditing.md": "trains models and starts services: tests/dpserve/test_auditing.py and test_self_audit.py do",
    "backbones.md": "needs a published network's weights: tests/service/test_backbones.py serves small ones",
    "deploying.md": "needs a container engine or a cluster; the block that writes secrets is run by tests/deployment",
    "mechanisms.md": "takes hours, or the reader's own rows: tests/dpserve/test_planning.py and test_reproducing.py",
    "releases.md": "needs the reader's own records: tests/dpserve/test_dpsgd_command.py trains on others",
    "reproduction-lu2022.md": "takes hours, and data that is not ours to give: tests/dpserve/test_reproducing.py",
}
"""Pages with blocks that show `dpserve` commands and are not run, and why."""


def shown_commands(page):
    """Every `dpserve` command in the blocks without a language, as words."""
    for language, block in re.findall(r"^ *```([^\n]*)\n(.*?)^ *```$", page.read_text(), re.DOTALL | re.MULTILINE):
        if language:
            continue
        for command in re.findall(COMMAND, block.replace("\\\n", " "), re.MULTILINE):
            yield [word for word in shlex.split(command, comments=True) if word != "..."]


def parsed(words):
    """Read a command with the parser that reads it in earnest, and do not carry it out."""
    command, context = get_command(app), None
    while True:
        context = command.make_context(words[0] if words else "dpserve", list(words), parent=context)
        if not isinstance(command, TyperGroup):
            return
        _, command, words = command.resolve_command(context, context._protected_args + context.args)


def test_commands_that_are_not_run_are_ones_that_the_parser_takes():
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md")]
    found = {page.relative_to(DOCS.parent).as_posix(): list(shown_commands(page)) for page in pages}
    found = {name.removeprefix("docs/"): commands for name, commands in found.items()}
    assert {name for name, commands in found.items() if commands} == SHOWN.keys()
    assert sum(map(len, found.values())) >= 25
    for name, commands in found.items():
        for words in commands:
            try:
                parsed(words)
            except UsageError as error:
                pytest.fail(f"{name}: dpserve {' '.join(words)}: {error.format_message()}")


def test_the_parser_finds_what_is_wrong():
    for words in (["serve", "model", "--epsilonn", "3"], ["serve", "model", "--port", "many"], ["clients", "ad", "a"]):
        with pytest.raises(UsageError):
            parsed(words)


def test_matching_is_strict_but_for_ellipses():
    assert matches(["a...c", "...", "d"], ["abc", "x", "d"])
    assert not matches(["a...c"], ["ab"])
    assert not matches(["a", "d"], ["a", "b", "d"])
    assert matches(["(1+1) = 2"], ["(1+1) = 2   "])
