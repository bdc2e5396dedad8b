"""The commands of docs/releases.md print what the page prints; tests/service/test_releases.py tries its Python."""

from pathlib import Path

from .test_accounting_page import commands, matches, printed

PAGE = Path(__file__).parents[2] / "docs" / "releases.md"


def test_every_command_prints_what_the_page_says(tmp_path):
    ran = [(command, expected, printed(command, tmp_path)) for command, expected in commands(PAGE.read_text())]
    assert len(ran) >= 2
    for command, expected, found in ran:
        assert matches(expected, found), command + "\n" + "\n".join(found)
