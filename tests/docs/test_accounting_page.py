"""The commands of docs/accounting.md print what the page prints, and draw its pictures."""

import re

import pytest

from .walkthrough import DOCS, Walkthrough


@pytest.mark.slow
def test_every_command_prints_what_the_page_says(tmp_path):
    with Walkthrough(tmp_path) as reader:
        reader.walk("accounting.md")
    for image in re.findall(r"\(images/(.*?)\)", (DOCS / "accounting.md").read_text()):
        assert (DOCS / "images" / image).stat().st_size < 100_000
        assert (tmp_path / image).exists(), f"no command of the page draws {image}"
