"""Each example runs as it stands, from anywhere, and says what it is for."""

import os
import re
import runpy
import shutil
from pathlib import Path

import pytest

from tests.command_line import ran_program

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "tabular": r"left=\{'': 'epsilon = 3 of 3 at delta = 1e-06'\}\)\n.*right: 0\.\d\d to [01]\.\d\d\n\[\[0\.\d",
    "images": r"right: 0\.\d\d\n",
    "texts": r"\['(billing|outage)' '(billing|outage)'\]\n",
    "units": r"protected: all records with one person\n\['(no|yes)' '(no|yes)'\]\n",
    "blocks": r"2026-01: epsilon = 0\.5\d* of 2 .*2026-03: epsilon = 1 of 2 at delta = 1e-06 is left\n",
}
"""A pattern of what each prints, whatever the noise."""


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SAYS, "patients"}


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_as_it_stands(tmp_path, name):
    environment = {**os.environ, "DPSERVE_HOME": str(tmp_path / "home")}
    done = ran_program(EXAMPLES / f"{name}.py", [], tmp_path, environment)
    assert done.returncode == 0, done.stderr
    assert re.search(SAYS[name], done.stdout, re.DOTALL), done.stdout


def test_the_script_makes_the_table_that_lies_beside_it(tmp_path):
    script = shutil.copy(EXAMPLES / "patients.py", tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    assert (tmp_path / "patients.csv").read_bytes() == (EXAMPLES / "patients.csv").read_bytes()
