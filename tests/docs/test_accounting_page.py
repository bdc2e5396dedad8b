"""Every command of docs/accounting.md runs in the order of the page and prints what the page prints."""

import os
import re
import shlex
from pathlib import Path

import pytest

from tests.command_line import ran

PAGE = Path(__file__).parents[2] / "docs" / "accounting.md"


def commands(text):
    """The page's commands with the lines that they print, in order."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def printed(command, folder):
    """Return the lines that a command prints, errors last, without the blanks at their ends."""
    program, *arguments = shlex.split(command)
    assert program == "dpserve"
    environment = os.environ | {"DPSERVE_HOME": str(folder / "home"), "COLUMNS": "100", "NO_COLOR": "1"}
    done = ran(arguments, folder, environment, seconds=300)
    assert "Traceback" not in done.stderr
    return [line.rstrip() for line in (done.stdout + (done.stderr if done.returncode else "")).splitlines()]


def matches(expected, found):
    """Whether the lines agree, `...` standing for any lines."""
    pattern = "".join(r"(?:.*\n)*" if line == "..." else re.escape(line) + r"\n" for line in expected)
    return re.fullmatch(pattern, "".join(line + "\n" for line in found)) is not None


@pytest.fixture(scope="module")
def transcript(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return folder, [(command, expected, printed(command, folder)) for command, expected in commands(PAGE.read_text())]


@pytest.mark.slow
def test_every_command_prints_what_the_page_says(transcript):
    folder, ran = transcript
    assert len(ran) >= 10
    for command, expected, found in ran:
        assert matches(expected, found), command + "\n" + "\n".join(found)
    for image in re.findall(r"\(images/(.*?)\)", PAGE.read_text()):
        assert (PAGE.parent / "images" / image).stat().st_size < 100_000
        assert (folder / image).exists(), f"no command of the page draws {image}"


def test_ellipses_match_only_whole_lines():
    assert matches(["a", "...", "d"], ["a", "b", "c", "d"])
    assert matches(["a", "...", "d"], ["a", "d"])
    assert not matches(["a", "d"], ["a", "b", "d"])
