"""The guides, walked from top to bottom; and no block `console` on any page that nobody runs."""

import json
import re
from pathlib import Path

import pytest

from .walkthrough import DOCS, Walkthrough, matches, steps

WALKED = {"owners-guide.md", "clients-guide.md", "auditors-guide.md", "configuration.md", "data.md"}
ELSEWHERE = {"index.md"}
"""`dpserve demo`: tests/dpserve/test_cli.py runs it."""


def test_an_owner_and_a_client_get_through_their_guides(tmp_path):
    with Walkthrough(tmp_path) as reader:
        reader.walk("owners-guide.md")
        reader.walk("clients-guide.md")


def test_the_page_on_data_trains_on_its_table(tmp_path):
    with Walkthrough(tmp_path) as reader:
        reader.walk("data.md")


def test_the_owners_guide_serves_answers_that_are_worth_asking_for(tmp_path):
    """At the price that the guide serves at, on rows that were not trained on."""
    text = (DOCS / "owners-guide.md").read_text()
    (train,) = re.findall(r"^\$ (dpserve train .*)$", text, re.MULTILINE)
    multiplier = float(re.search(r"^\$ dpserve serve .*--price noise-multiplier:(\d+)", text, re.MULTILINE)[1])
    with Walkthrough(tmp_path) as reader:
        (_, name, program) = next(step for step in steps(text) if step[0] == "file")
        (tmp_path / name).write_text(program)
        reader._run_shell(f"python3 {name} && {train}")
        rho = 2**20 / (2 * multiplier**2)
        plan = (
            f"dpserve plan model --rho {rho} --delta 1e-6 --queries {2**20} --public others.csv --label outcome --json"
        )
        found = json.loads("\n".join(reader._run_shell(plan)))
    (served,) = (each for each in found["options"] if (each["mechanism"], each["enforced"]) == ("gaussian", True))
    assert served["noise_multiplier"] == pytest.approx(multiplier, rel=1e-3)
    assert served["accuracy"] > found["commonest_class"] + 0.2


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


def test_matching_is_strict_but_for_ellipses():
    assert matches(["a...c", "...", "d"], ["abc", "x", "d"])
    assert not matches(["a...c"], ["ab"])
    assert not matches(["a", "d"], ["a", "b", "d"])
    assert matches(["(1+1) = 2"], ["(1+1) = 2   "])
