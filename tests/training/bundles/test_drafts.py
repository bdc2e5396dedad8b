"""Drafts of models: only their owner can look at them, and what a killed training left is taken away by the next."""

import signal
import stat
import subprocess
import sys
from pathlib import Path

from dpserve.training.bundles.drafts import draft_folder

KILLED = """
import os, signal, sys
from pathlib import Path
from dpserve.training.bundles.drafts import draft_folder
with draft_folder(Path(sys.argv[1])) as folder:
    (folder / "model").write_text("nobody has paid for this")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def files(state):
    return [path for path in (state / "drafts").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_what_a_killed_training_left_is_its_owners_alone_and_goes_with_the_next(tmp_path):
    script = [sys.executable, "-c", KILLED, str(tmp_path)]
    assert subprocess.run(script, check=False).returncode == -signal.SIGKILL
    (left,) = files(tmp_path)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (left.parent, left.parent.parent)} == {0o700}
    with draft_folder(tmp_path) as folder:
        assert not left.exists()
        (folder / "model").write_text("a draft")
        with draft_folder(tmp_path) as another:
            assert files(tmp_path) == [Path(folder / "model")]
            assert another != folder
    assert list((tmp_path / "drafts").iterdir()) == []
