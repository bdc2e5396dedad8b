"""A release stops for a known advisory and for a package that nobody looked up, and its last line says which."""

import json
import os
import subprocess

import pytest

from .conftest import ROOT
from .test_image import program

CONSTRAINTS = ROOT / "deploy" / "constraints.txt"
PINS = dict(line.split("==") for line in CONSTRAINTS.read_text().splitlines() if "==" in line)
HOLES = [{"id": "PYSEC-1", "fix_versions": ["99.0.0"], "aliases": ["CVE-2027-1"]}]
NOT_FOUND = "Dependency not found on PyPI and could not be audited: absl-py (2.5.1)"
"""The words of pip-audit 2.10 where an index answers 404."""


def looked_up(**others):
    """pip-audit's output about every pin; `others` replaces a package's entry, and None leaves it out."""
    entries = {name: {"name": name, "version": version, "vulns": []} for name, version in PINS.items()}
    entries |= {name.replace("_", "-"): entry for name, entry in others.items()}
    return {"dependencies": [each for each in entries.values() if each], "fixes": []}


@pytest.fixture
def judge(tmp_path, monkeypatch, capsys):
    """Return a function that returns the program's status and its lines."""
    monkeypatch.syspath_prepend(ROOT / "deploy")
    path, audited = tmp_path / "audit.json", program("release_audit")

    def judged(audit):
        path.write_text(audit if isinstance(audit, str) else json.dumps(audit))
        return audited.main(CONSTRAINTS, path), capsys.readouterr().out.splitlines()

    return judged


ABSL = {"name": "absl-py", "skip_reason": NOT_FOUND}
H11 = {"name": "H11", "version": PINS["h11"], "vulns": HOLES}


def test_a_release_goes_on_where_all_were_looked_up_and_nothing_is_known(judge):
    status, lines = judge(looked_up())
    assert status == 0
    assert lines == [f"all {len(PINS)} packages were looked up: no advisory is known against any"]


def test_a_package_that_the_index_does_not_know_is_not_one_without_advisories(judge):
    status, lines = judge(looked_up(absl_py=ABSL))
    assert status == 3
    assert lines[0] == f"not looked up: absl-py {PINS['absl-py']}: {NOT_FOUND}"
    assert any("make release AUDIT=audit.json" in line for line in lines)
    said = f"1 of {len(PINS)} packages could not be looked up, and no advisory is known against the others"
    assert lines[-1] == f"stopped: {said}"


def test_an_advisory_is_said_with_what_closes_it(judge):
    status, lines = judge(looked_up(h11=H11))
    assert status == 1
    assert lines == [
        "advisory: h11: CVE-2027-1, closed in 99.0.0",
        f"stopped: 1 of {len(PINS)} packages have a known advisory",
    ]


@pytest.mark.parametrize("entry", [None, {"name": "h11", "version": "0.1.0", "vulns": []}])
def test_an_output_of_other_packages_or_versions_says_nothing_of_the_pinned_ones(judge, entry):
    status, lines = judge(looked_up(h11=entry))
    assert status == 3
    assert lines[0].startswith(f"not looked up: h11 {PINS['h11']}: ")


def test_an_index_that_answered_for_none_is_not_passed(judge):
    """pip-audit 2.10.1 itself says "No known vulnerabilities found" of this, and ends with 0."""
    audit = {"dependencies": [{"name": name, "skip_reason": "not found"} for name in PINS]}
    status, lines = judge(audit)
    assert status == 3
    assert len(lines) < 20
    assert f"not looked up: {len(PINS) - 10} more" in lines
    assert lines[-1] == f"stopped: {len(PINS)} of {len(PINS)} packages could not be looked up"


@pytest.mark.parametrize("wrong", ["", "[]", "{}", '{"dependencies": [{"version": "1"}]}', '{"dependencies": [1]}'])
def test_what_is_no_output_of_pip_audit_stops_a_release(judge, wrong):
    status, lines = judge(wrong)
    assert status == 3
    assert lines[-1] == f"stopped: none of {len(PINS)} packages could be looked up"


@pytest.mark.parametrize(("given", "read"), [([], "build/release/audit.json"), (["AUDIT=other.json"], "other.json")])
def test_make_release_ends_with_this_verdict(given, read):
    words = ["make", "-n", "release", *given]
    # The tests may be run by make, which tells those below it so.
    apart = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(words, cwd=ROOT, env=apart, capture_output=True, text=True, check=True, timeout=60)
    *before, last = done.stdout.splitlines()
    assert last == f"build/release/bin/python deploy/release_audit.py deploy/constraints.txt {read}"
    asked = [line for line in before if "bin/pip-audit" in line]
    assert len(asked) == (0 if given else 1)
