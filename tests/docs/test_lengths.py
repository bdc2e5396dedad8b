"""A page is read once: it is short, and its first screen has no long sentence."""

import re

import pytest

from .walkthrough import DOCS

PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
MOST_WORDS = 25_000
"""The most words, with a letter or a digit, of all pages of docs/ together, blocks of code included."""
FIRST_SCREEN = 60
"""Lines."""
LONGEST = 30
"""The most words of a sentence."""


def prose(text):
    """The text without blocks of code."""
    return re.sub(r"^( *)```.*?(?:^\1```|\Z)", "\n\n", text, flags=re.DOTALL | re.MULTILINE)


def sentences(text):
    """The sentences of prose, list items and cells; what stands between backquotes is one word."""
    text = re.sub(r"^#+ .*?$|<!--.*?-->", "\n\n", prose(text), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`", "CODE", re.sub(r"\]\([^)]*\)", "]", text))
    parts = re.split(r"\n\s*\n|\n(?= *(?:[-*>|]|\d+\. ))", text)
    cells = [cell for part in parts for cell in (part.split("|") if part.lstrip().startswith("|") else [part])]
    return [sentence.split() for cell in cells for sentence in re.split(r"(?<=[.!?:])[*_)\"]*\s+", cell)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_first_screen_has_no_long_sentence(page):
    text = page.read_text()
    first = text if page.name == "README.md" else "\n".join(text.splitlines()[:FIRST_SCREEN])
    assert [" ".join(words) for words in sentences(first) if len(words) > LONGEST] == []


def test_all_pages_together_are_short():
    words = [word for page in DOCS.glob("*.md") for word in page.read_text().split() if re.search(r"\w", word)]
    assert len(words) <= MOST_WORDS


def test_a_long_sentence_is_found_wherever_it_stands():
    long = " ".join(["word"] * (LONGEST + 1))
    for text in (f"Short. {long}.", f"- an item\n- {long}", f"| a | {long} |", f"## A heading\n{long}"):
        assert max(map(len, sentences(text))) > LONGEST
    for text in (f"```\n{long}\n```", f"`{long}`", "One. " * (LONGEST + 1)):
        assert max(map(len, sentences(text))) <= LONGEST
