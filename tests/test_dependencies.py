"""The project's dependencies: licences that may be shipped with it, and no version with a known hole."""

import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from datetime import UTC, date, datetime
from importlib import util
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
ADVISORIES = ROOT / "tests" / "advisories.csv"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def script(name):
    """Return a script of deploy/ as a module."""
    module = util.module_from_spec(spec := util.spec_from_file_location(name, ROOT / "deploy" / f"{name}.py"))
    spec.loader.exec_module(module)
    return module


advisories, lowest = script("advisories"), script("lowest")
SHIPPED = PROJECT["optional-dependencies"].keys() - {"docs", "test"}
"""The extras that a user may install; what only tests and documentation need is not shipped."""

ALLOWED = re.compile(
    r"^(MIT|MIT-0|MIT-CMU|BSD|[\w ()-]*BSD[\w ()-]*|0BSD|ISC|Apache[\w .,-]*|PSF[\w.-]*|Python[\w .-]*|Zlib|Unlicense|"
    r"MPL-2\.0|Mozilla Public License 2\.0[\w .()]*|HPND|The Unlicense[\w .()]*|CC0-1\.0|BSL-1\.0|LLVM-exception|NCSA|"
    r"[\w ()-]*(MIT|ISC|Apache Software|Python Software Foundation) License[\w ()]*)$",
    re.IGNORECASE,
)

OF_PYTORCH = re.compile(r"^(nvidia-[\w-]+|cuda-(toolkit|bindings|pathfinder)|triton)$")
"""Packages that CUDA builds bring: NVIDIA's runtime under NVIDIA's own terms, and Triton (MIT, not in its metadata).

Only the extras torch and onnx-gpu have it, and no image but one built with one of them.
"""


IN_A_FILE = {"pysimdjson": ["MIT"]}
"""Licences of packages whose metadata name only the file that has them."""


def closure(requirements, leaves=(), **environment):
    """Return the names of all installed distributions that the requirements bring with them.

    leaves: distributions that are asked for nothing more. environment: what markers are told instead of what holds
    here, as python_full_version.
    """
    found, waiting = set(), [Requirement(each) for each in requirements]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        extras = wanted.extras or {""}
        if (name, frozenset(extras)) in found:
            continue
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue
        found.add((name, frozenset(extras)))
        for line in () if name in leaves else installed.requires or ():
            each = Requirement(line)
            if each.marker is None or any(each.marker.evaluate(environment | {"extra": extra}) for extra in extras):
                waiting.append(each)
    return sorted({name for name, _ in found})


def shipped():
    """Every distribution that an installation of the service may have."""
    wanted = [
        *PROJECT["dependencies"],
        *(each for extra in SHIPPED for each in PROJECT["optional-dependencies"][extra]),
    ]
    return closure(wanted)


def licences(name):
    """Return what a distribution's metadata say of its licence, each alternative or part by itself."""
    metadata = distribution(name).metadata
    if expression := metadata.get("License-Expression"):
        return re.split(r" AND | OR | WITH |[()]", expression)
    classifiers = [each.split(" :: ")[-1] for each in metadata.get_all("Classifier", []) if each.startswith("License")]
    classifiers = [each for each in classifiers if each != "OSI Approved"]
    if classifiers:
        return classifiers
    stated = metadata.get("License", "").strip().splitlines()
    return re.split(r" AND ", stated[0]) if stated else IN_A_FILE.get(name, [])


def test_every_licence_may_be_shipped():
    names = shipped()
    assert {"numpy", "torch", "starlette", "pydantic-settings"} <= set(names)
    assert not any(map(OF_PYTORCH.match, closure(PROJECT["dependencies"])))
    ours = [name for name in names if not OF_PYTORCH.match(name)]
    stated = {name: [each.strip() for each in licences(name) if each.strip()] for name in ours}
    refused = {name: said for name, said in stated.items() if not said or not all(map(ALLOWED.match, said))}
    assert refused == {}


@pytest.mark.parametrize("said", ["GPL-3.0", "GNU General Public License v3 (GPLv3)", "AGPL-3.0-only", "Proprietary"])
def test_a_licence_that_binds_its_users_is_refused(said):
    assert not ALLOWED.match(said)


def holes(versions):
    """Return which advisories of tests/advisories.csv apply to these versions, by package."""
    return [
        f"{package} {versions[package]}: {advisory}, fixed in {fixed or 'no version'}"
        for package, fixed, advisory in advisories.read(ADVISORIES)
        if package in versions and (not fixed or Version(versions[package]) < Version(fixed))
    ]


def test_no_version_has_a_known_hole():
    """The list is in the repository: tests without a network cannot ask an advisory database."""
    assert holes({name: distribution(name).version for name in shipped()}) == []
    lines = (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    assert holes({canonicalize_name(name): version for name, version in pinned.items()}) == []
    (found,) = holes({"h11": "0.14.0"})
    assert "CVE-2025-43859" in found


@pytest.mark.parametrize("more", ["", ",torch", ",onnx", ",texts"])
def test_whatever_extras_an_image_is_built_with_are_pinned(more):
    """The requirements are those installed here, where torch may be another build, without NVIDIA's libraries.

    The markers are told the image's Python: redis brings async-timeout into those before 3.11.3. A version that is
    older than the image's is asked for nothing: it may bring what newer ones do without.
    """
    dockerfile = (ROOT / "Dockerfile").read_text()
    default = re.search(r'^ARG EXTRAS="(.*)"$', dockerfile, re.MULTILINE)[1]
    python = re.search(r"^ARG PYTHON_IMAGE=python:((\d+\.\d+)\.\d+)-", dockerfile, re.MULTILINE)
    of_image = {"python_full_version": python[1], "python_version": python[2]}
    extras = (default + more).split(",")
    assert {"jwt", "otel"} <= set(extras)
    assert "torch" not in default  # the slim image is for certified heads
    assert f"EXTRAS={default},torch" in (ROOT / "docs" / "deploying.md").read_text()
    wanted = [*PROJECT["dependencies"], *(each for extra in extras for each in PROJECT["optional-dependencies"][extra])]
    lines = (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(name): Version(pin) for name, _, pin in (line.partition("==") for line in lines) if pin}
    older = {each for each in closure(wanted, **of_image) if each in pins and Version(version(each)) < pins[each]}
    brought = closure(wanted, older, **of_image)
    assert "redis" in brought
    assert [name for name in brought if name not in pins and not OF_PYTORCH.match(name)] == []
    (setuptools,) = [line for line in lines if line.startswith("setuptools==")]
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"] == [setuptools]


def test_the_lowest_versions_are_the_bounds_that_are_declared():
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    declared = [(canonicalize_name(each.name), each.specifier) for group in groups for each in map(Requirement, group)]
    given = lowest.lowest(line for group in groups for line in group)
    operators = {(name, part.operator) for name, specifier in declared for part in specifier}
    assert given.keys() == {name for name, operator in operators if operator == ">=" and (name, "==") not in operators}
    assert all(specifier.contains(given[name]) for name, specifier in declared if name in given)
    assert {"numpy", "fastapi", "pytest"} <= given.keys()


@pytest.mark.parametrize(
    ("requirements", "constraints"),
    [
        (["a>=2", "a>=1.10,<3"], {"a": "2"}),
        (["a>=1.9", "a[x]>=1.10; python_version < '3.14'"], {"a": "1.10"}),
        (["A.b[x,y]<3,>=2.1"], {"a-b": "2.1"}),
        (["a>=1", "a==2"], {}),
        (["a; python_version >= '3.12'", "b<2"], {}),
    ],
)
def test_of_several_bounds_the_highest_is_the_lowest_version_and_a_pin_stays(requirements, constraints):
    assert lowest.lowest(requirements) == constraints


def test_every_python_that_is_declared_is_tried():
    classifiers = "\n".join(PROJECT["classifiers"])
    declared = re.findall(r"^Programming Language :: Python :: (3\.\d+)$", classifiers, re.MULTILINE)
    assert PROJECT["requires-python"] == f">={declared[0]}"
    tried = re.search(r"^PYTHONS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert tried.split() == [f"python{version}" for version in declared]
    assert (
        re.search(r"^ARG PYTHON_IMAGE=python:(3\.\d+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[1] in declared
    )


@pytest.mark.parametrize(
    ("make", "pythons", "status", "said"),
    [
        ("true", [sys.executable, "nowhere"], 0, "passed: {here}; failed: none; not on this machine: nowhere"),
        ("false", [sys.executable], 2, "passed: none; failed: {here}; not on this machine: none"),
        ("true", ["nowhere"], 2, "passed: none; failed: none; not on this machine: nowhere"),
    ],
)
def test_the_whole_is_tried_on_each_python_that_is_there(make, pythons, status, said):
    """MAKE is what the target calls for each of them."""
    words = ["make", "--old-file=lint", "test-all", f"MAKE={make}", f"PYTHONS={' '.join(pythons)}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status, done.stderr
    assert done.stdout.splitlines()[-1] == said.format(here=platform.python_version())


AUDIT = {
    "dependencies": [
        {"name": "H11", "version": "0.13.0", "vulns": [
            {"id": "PYSEC-1", "fix_versions": ["0.12.9", "0.17.1", "0.16.0"], "aliases": ["GHSA-x", "CVE-2025-43859"]},
            {"id": "GHSA-open", "fix_versions": [], "aliases": []},
        ]},
        {"name": "numpy", "version": "2.0.0", "vulns": []},
        {"name": "dpserve", "skip_reason": "not on an index"},
    ],
    "fixes": [],
}  # fmt: skip
"""As pip-audit 2.10 writes it."""


def refresh(audit, listed):
    """Refresh a list from a file, as `make advisories AUDIT=...` does."""
    program = (
        f"import advisories, pathlib; advisories.main(pathlib.Path({str(audit)!r}), pathlib.Path({str(listed)!r}))"
    )
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "deploy", capture_output=True, text=True, check=False, timeout=60
    )


def test_the_list_says_of_which_day_it_is():
    day = date.fromisoformat(re.match(r"# As of (\d{4}-\d\d-\d\d): ", ADVISORIES.read_text())[1])
    assert day >= date(2026, 11, 21)
    assert "make advisories" in " ".join((ROOT / "docs" / "deploying.md").read_text().split())


def test_the_list_is_refreshed_from_what_pip_audit_found(tmp_path):
    audit, listed = tmp_path / "audit.json", tmp_path / "advisories.csv"
    audit.write_text(json.dumps(AUDIT))
    os.utime(audit, (0, datetime(2027, 1, 2, 12, tzinfo=UTC).timestamp()))
    listed.write_text(ADVISORIES.read_text())
    before = advisories.read(listed)
    done = refresh(audit, listed)
    assert done.returncode == 0, done.stderr
    assert "h11: GHSA-open, which no version closes" in done.stdout
    assert listed.read_text().startswith("# As of 2027-01-02: pip-audit looked at 2 packages")
    assert set(advisories.read(listed)) == {*before, ("h11", "", "GHSA-open")}  # and the other one stood there
    written = listed.read_text()
    assert refresh(audit, listed).returncode == 0
    assert listed.read_text() == written
    for wrong in ("", "[]", '{"dependencies": [{"name": "x"}, {"vulns": [1]}]}', '{"dependencies": []}'):
        audit.write_text(wrong)
        refused = refresh(audit, listed)
        assert refused.returncode == 1
        assert "Traceback" not in refused.stderr
        assert listed.read_text() == written


def test_the_nearest_version_that_closes_a_hole_is_the_one_that_is_wanted():
    assert advisories.found(AUDIT)[0] == ("h11", "0.16.0", "CVE-2025-43859")


def test_no_scikit_learn_is_admitted_that_lacks_the_tags_of_estimators():
    (declared,) = (each for each in map(Requirement, PROJECT["dependencies"]) if each.name == "scikit-learn")
    assert "1.5.2" not in declared.specifier
    assert "1.6.0" in declared.specifier


def test_the_security_rules_of_the_linter_are_on():
    ruff = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "S" in ruff["select"]
    assert [each for each in ruff["ignore"] if each.startswith("S")] == ["S101"]  # asserts, which mypy needs
    code = {
        pattern for pattern, rules in ruff["per-file-ignores"].items() if any(each.startswith("S") for each in rules)
    }
    assert code <= {"tests/**", "benchmarks/**", "deploy/**"}
