"""docs/performance.md: its figures are those that were measured, and nobody was measured while answering wrongly."""

import json
import re

from benchmarks.serving.figures import (
    ARRAYS,
    BATCHES,
    BENTOML,
    LITSERVE,
    MANY,
    METERED,
    MLSERVERS,
    MOSEC,
    ONE,
    OURS,
    OURS_REPLAYED,
    PAY_ONCE,
    PLAIN,
)
from benchmarks.serving.report import DOCS, FIGURES, PAGE, PAGES, with_tables

DOCUMENT = json.loads(FIGURES.read_text())


def test_the_tables_are_made_from_what_was_measured():
    for page in PAGES:
        assert with_tables(page.read_text(), DOCUMENT) == page.read_text()


def test_every_part_was_measured():
    assert {"comparison", "stages", "scaling", "ray data"} <= DOCUMENT.keys()
    assert "Not measured yet" not in PAGE.read_text()


def test_every_answer_was_an_answer():
    found = DOCUMENT["comparison"]["settings"]
    assert found.keys() == {str(setting) for setting in (MANY, ONE, BATCHES, ARRAYS)}
    for setting, by_name in found.items():
        ours = {*PAY_ONCE, *METERED} if setting != str(ARRAYS) else {*PAY_ONCE, OURS, OURS_REPLAYED}
        others = {PLAIN, *MLSERVERS, BENTOML, LITSERVE, MOSEC} if setting != str(ARRAYS) else set()
        assert by_name.keys() == ours | others, setting
        assert all(one["wrong"] == 0 for one in by_name.values()), setting


def test_what_the_page_names_is_there():
    for path in re.findall(r"`(benchmarks/[\w/]+\.py)`", PAGE.read_text()):
        assert (DOCS.parent / path).exists(), path
