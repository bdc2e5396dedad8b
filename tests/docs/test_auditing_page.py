"""The commands of docs/auditing.md print what the page prints: seeded audits, of which one convicts."""

from pathlib import Path

import pytest

from .test_accounting_page import commands, matches, printed

PAGE = Path(__file__).parents[2] / "docs" / "auditing.md"


@pytest.mark.slow
def test_every_command_prints_what_the_page_says(tmp_path):
    ran = [(command, expected, printed(command, tmp_path)) for command, expected in commands(PAGE.read_text())]
    assert len(ran) >= 2
    for command, expected, found in ran:
        assert matches(expected, found), command + "\n" + "\n".join(found)
