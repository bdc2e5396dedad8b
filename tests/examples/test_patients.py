"""The example's table is the one that its script makes."""

import runpy
import shutil
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_script_makes_the_table_that_lies_beside_it(tmp_path):
    script = shutil.copy(EXAMPLES / "patients.py", tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    assert (tmp_path / "patients.csv").read_bytes() == (EXAMPLES / "patients.csv").read_bytes()
