"""The guides, walked from top to bottom; and no block `console` on any page that nobody runs."""

from pathlib import Path

import pytest

from .walkthrough import DOCS, Walkthrough, matches, steps

OTHERS = ("auditors-guide.md", "configuration.md", "data.md", "auditing.md", "mechanisms.md", "from-diffprivlib.md")
WALKED = {"owners-guide.md", "clients-guide.md", *OTHERS}
ELSEWHERE = {"index.md"}
"""`dpserve demo`: tests/dpserve/test_cli.py runs it."""


@pytest.mark.slow
def test_an_owner_and_a_client_get_through_their_guides(tmp_path):
    """The owner's asserts that the model is right on 0.85 of rows that it was not trained on."""
    with Walkthrough(tmp_path) as reader:
        reader.walk("owners-guide.md")
        reader.walk("clients-guide.md")


@pytest.mark.slow
@pytest.mark.parametrize("page", OTHERS)
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


def test_matching_is_strict_but_for_ellipses():
    assert matches(["a...c", "...", "d"], ["abc", "x", "d"])
    assert not matches(["a...c"], ["ab"])
    assert not matches(["a", "d"], ["a", "b", "d"])
    assert matches(["(1+1) = 2"], ["(1+1) = 2   "])
