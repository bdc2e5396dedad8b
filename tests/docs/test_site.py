"""The site builds without a warning, loads nothing from elsewhere, and leaves no page out."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from .walkthrough import DOCS

ROOT = DOCS.parent
LOADING = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "use": "href"}
"""Attributes whose addresses a browser fetches by itself; a link that a reader may click is another matter."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site, and what the build said."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [Path(sys.executable).parent / "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout + done.stderr


class Loaded(HTMLParser):
    """Collects what a page loads."""

    def __init__(self):
        """Nothing yet."""
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        """Note an address that is fetched."""
        given = dict(attributes)
        if tag in LOADING and given.get(LOADING[tag]) and given.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(given[LOADING[tag]])


def test_it_builds_without_a_warning(site):
    assert "WARNING" not in site[1]
    assert "ERROR" not in site[1]


def test_it_loads_nothing_from_elsewhere(site):
    pages = list(site[0].rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        loaded = Loaded()
        loaded.feed(page.read_text())
        assert loaded.found
        assert [each for each in loaded.found if re.match(r"(https?:)?//", each)] == [], page.name
    for sheet in site[0].rglob("*.css"):
        assert not re.search(r"(url\(|@import )['\"]?(https?:)?//", sheet.read_text()), sheet.name


def test_every_page_can_be_found_from_the_contents():
    text = (ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r": ([\w/-]+\.md)$", text, re.MULTILINE))
    there = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert named == there
    settings = yaml.safe_load(text)
    assert settings["strict"] is True
    assert settings["validation"]["omitted_files"] == "warn"


def test_the_reference_shows_the_proofs(site):
    page = (site[0] / "reference" / "training.html").read_text()
    assert "strongly convex" in page
    assert "weight_sensitivity" in page
