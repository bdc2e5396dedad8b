"""The examples of docs/releases.md do what it says: its commands, and its Python before the model that they made."""

import re
import sys

import pytest

from .walkthrough import DOCS, Walkthrough, matches, steps

PAGE = DOCS / "releases.md"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The page's commands, run in a folder whose home is that of a reader."""
    with Walkthrough(tmp_path_factory.mktemp("page")) as reader:
        shown = [step[1:] for step in steps(PAGE.read_text()) if step[0] == "console"]
        yield reader, [(command, expected, reader.run_shell(command)) for command, expected in shown]


@pytest.mark.slow
def test_every_command_prints_what_the_page_says(ran):
    _, found = ran
    assert len(found) >= 1
    for command, expected, said in found:
        assert matches(expected, said), command + "\n" + "\n".join(said)


@pytest.mark.slow
def test_the_python_of_the_page_pays_once(ran):
    reader, found = ran
    (next_step,) = [
        line.split("Next: ")[1] for *_, said in found for line in said if "Next: dpserve serve once" in line
    ]
    (served,) = reader.start(f"{next_step} --no-admin &", [""])
    assert served.startswith("dpserve: serving")
    keys = {}
    for name, epsilon in (("alice", 1), ("bob", 0.5)):
        said = reader.run_shell(f"dpserve clients add {name} --epsilon {epsilon} --delta 1e-5")
        keys[name] = said[-1].split()[-1]
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    given = f"address, alice, bob = {served.split()[-1]!r}, {keys['alice']!r}, {keys['bob']!r}\n"
    said = reader.run([sys.executable, "-c", reader.here(given + code)])
    assert reader.status == 0, said
    before, _, after, refused = said[:4]
    assert [f"{float(each):.6g}" for each in (before, after)] == re.findall(r"# (0[.\d]*): ", code)
    assert refused.startswith("this request costs")
