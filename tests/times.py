"""Where the tests' seconds go: a plugin of pytest that `make test-times` loads.

It prints the seconds by the clock and of the processors, by folder and by fixture, and the slowest fifty tests, summed
over all workers. A process is counted where it is waited for.
"""

import os
import time
from collections import defaultdict
from dataclasses import dataclass

import pytest

SLOWEST = 50
FIXTURES = 40
FIXTURE = "seconds of "
"""The start of a property's name, whose rest is a fixture's: xdist carries a test's properties to the reporter."""
TEST = "seconds of the test"


@dataclass
class Seconds:
    """Seconds by the clock and of the processors, and how many tests or fixtures took them."""

    clock: float = 0.0
    cpu: float = 0.0
    count: int = 0

    def add(self, clock: float, cpu: float, count: int = 1) -> None:
        """Add those of others."""
        self.clock, self.cpu, self.count = self.clock + clock, self.cpu + cpu, self.count + count


_tests: defaultdict[str, Seconds] = defaultdict(Seconds)
_fixtures: defaultdict[str, Seconds] = defaultdict(Seconds)
_current: dict[str, tuple[pytest.Item, tuple[float, float]]] = {}


def _now() -> tuple[float, float]:
    spent = os.times()
    return time.perf_counter(), spent.user + spent.system + spent.children_user + spent.children_system


def _since(start: tuple[float, float]) -> list[float]:
    return [now - then for now, then in zip(_now(), start, strict=True)]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    _current["test"] = item, _now()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item):
    try:
        return (yield)
    finally:
        item.user_properties.append((TEST, _since(_current["test"][1])))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef):
    start = _now()
    try:
        return (yield)
    finally:
        name = f"{FIXTURE}{fixturedef.baseid}::{fixturedef.argname}"
        _current["test"][0].user_properties.append((name, _since(start)))


def pytest_runtest_logreport(report):
    if report.when == "teardown":
        for name, seconds in report.user_properties:
            if name == TEST:
                _tests[report.nodeid].add(*seconds)
            elif name.startswith(FIXTURE):
                _fixtures[name.removeprefix(FIXTURE)].add(*seconds)


def pytest_terminal_summary(terminalreporter):
    folders: defaultdict[str, Seconds] = defaultdict(Seconds)
    for name, seconds in _tests.items():
        for folder in ("all", "/".join(name.split("::")[0].split("/")[:3])):
            folders[folder].add(seconds.clock, seconds.cpu)
    for title, rows, most in (
        ("folders", folders, len(folders)),
        ("fixtures", _fixtures, FIXTURES),
        ("the slowest tests", _tests, SLOWEST),
    ):
        terminalreporter.section(title)
        terminalreporter.line("  clock s    CPU s    times")
        for name, seconds in sorted(rows.items(), key=lambda row: -row[1].clock)[:most]:
            terminalreporter.line(f"{seconds.clock:9.1f}{seconds.cpu:9.1f}{seconds.count:9,}  {name}")
