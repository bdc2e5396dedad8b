"""The README, as a reader pastes it who has just installed it: the command is in .venv/bin and nowhere else."""

import os
import re
import sys
import venv
from pathlib import Path

import pytest

from .walkthrough import DOCS, Walkthrough

SECTION = "Try it"
INSTALLS = ("python3 -m venv", "pip install")
"""The beginnings of lines that are not pasted: what they install is here."""


def blocks(section):
    """The section's blocks in order, each with its language: none, or python."""
    text = (DOCS.parent / "README.md").read_text()
    (found,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## )", text, re.DOTALL | re.MULTILINE)
    return re.findall(r"^```(\w*)\n(.*?)^```$", found, re.DOTALL | re.MULTILINE)


class Reader(Walkthrough):
    """Pastes the lines of a block into a shell, where only what was activated is found by its name."""

    def __init__(self, folder):
        super().__init__(folder)
        venv.create(folder / ".venv")
        (folder / "bin" / "dpserve").rename(folder / ".venv" / "bin" / "dpserve")
        known = self.environment["PATH"].split(os.pathsep)[1:]
        own = str(Path(sys.executable).parent)
        self.environment["PATH"] = os.pathsep.join(each for each in known if each != own)
        self.key = None

    def paste(self, block):
        """Run a block's lines; a service, by the command that was activated, goes on beside them."""
        for line in block.replace("\\\n", " ").splitlines():
            command = re.sub(r"\s+#.*", "", line)
            if " serve " in command:
                self.stop()  # as whoever gives the second service the first one's port
                (said,) = self.start(f"bash -c 'source .venv/bin/activate && exec {command} --no-admin' &", [""])
                assert said.startswith("dpserve: serving"), said
            elif command and not command.startswith(INSTALLS):
                printed = self.run_shell(command)
                assert self.status == 0, "\n".join(printed)
                if "clients add" in command:
                    self.key = printed[-1].split()[-1]

    def stop(self):
        """Stop the services, as Ctrl-C does."""
        for process in self.background:
            process.terminate()
            process.communicate(timeout=60)
        self.background.clear()

    def run_python(self, code):
        """Run a block, with the key that the reader fills in."""
        given = f"key = {self.key!r}\n"
        self.run([sys.executable, "-c", self.here(given + code)])
        assert self.status == 0, code


@pytest.fixture
def reader(tmp_path):
    """A reader in a folder with the examples."""
    (tmp_path / "examples").symlink_to(DOCS.parent / "examples")
    with Reader(tmp_path) as found:
        yield found


def test_it_can_be_pasted_from_top_to_bottom(reader):
    for language, block in blocks(SECTION):
        if language == "python":
            reader.run_python(block)
        else:
            reader.paste(block)
    assert reader.key
