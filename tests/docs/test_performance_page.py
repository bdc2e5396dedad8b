"""docs/performance.md: its figures are those that were measured, and nobody was measured while answering wrongly."""

import json
import re

from benchmarks.serving.report import DOCS, FIGURES, PAGE, with_tables

DOCUMENT = json.loads(FIGURES.read_text())


def test_the_tables_are_made_from_what_was_measured():
    assert with_tables(PAGE.read_text(), DOCUMENT) == PAGE.read_text()


def test_every_part_was_measured():
    assert {"comparison", "stages", "scaling"} <= DOCUMENT.keys()
    assert "<!-- end -->\n\n<!-- end -->" not in PAGE.read_text()
    for name in re.findall(r"<!-- (\w+) -->\n<!-- end -->", PAGE.read_text()):
        raise AssertionError(f"the table {name} is empty")


def test_every_answer_was_an_answer():
    for setting, by_name in DOCUMENT["comparison"]["settings"].items():
        assert len(by_name) == 11, setting
        assert all(one["wrong"] == 0 for one in by_name.values()), setting


def test_what_the_page_names_is_there():
    for path in re.findall(r"`(benchmarks/[\w/]+\.py)`", PAGE.read_text()):
        assert (DOCS.parent / path).exists(), path
