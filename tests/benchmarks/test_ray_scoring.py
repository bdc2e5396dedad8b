"""A table is scored on real Ray, and each row gets its own answer: the benchmark itself checks that."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow  # half a minute of starting Ray's processes
def test_a_small_table_is_scored_by_one_process_and_by_two(tmp_path):
    command = [sys.executable, "-m", "benchmarks.ray_scoring", "--rows", "3000", "--out", tmp_path / "found.json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())["ray data"]
    assert found["rows"] == 3000
    assert set(found["rows_per_second"]) == {"1", "2"}
    assert all(rate > 0 for rate in found["rows_per_second"].values())
