"""docs/architecture.md and CONTRIBUTING.md name files and folders that are there, in every folder of ours."""

import re

import pytest

from .walkthrough import DOCS

ROOT = DOCS.parent
PAGES = {page: page.read_text() for page in (DOCS / "architecture.md", ROOT / "CONTRIBUTING.md")}
PACKAGES = ("accounting", "audit", "dpserve", "mechanisms", "research", "service", "training")


def named(text):
    """The paths that a page names: between backquotes, or in a block, with NAME and * for anything."""
    return re.findall(r"(?<![\w/.])((?:[a-z_]+/)+(?:[\w.-]+|\*\.\w+)?)(?![\w/])", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_is_there(page):
    paths = set(named(PAGES[page]))
    assert len(paths) > 20
    missing = [path for path in paths if not list(ROOT.glob(path.replace("NAME", "*").rstrip("/")))]
    assert missing == []


def test_the_page_on_the_architecture_names_every_package():
    page = PAGES[DOCS / "architecture.md"]
    assert all(f"| `{package}/` |" in page for package in PACKAGES)
