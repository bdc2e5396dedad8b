"""Rows that clients were answered, counted hour by hour in one file for the owner."""

import asyncio
import sqlite3
import subprocess
import sys

import pytest

from dpserve.service.telemetry.usage import DAY, HOUR, MONTH, Answered, Usage


class Clock:
    def __init__(self):
        self.now = 1_700_000_000.0 // HOUR * HOUR

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def counted(usage, lineage="colours"):
    return dict(asyncio.run(usage.of_lineage(lineage)))


def test_rows_of_the_last_day_and_month_are_told_apart(tmp_path, clock):
    usage = Usage(tmp_path / "folder" / "usage.sqlite", clock)
    assert counted(usage) == {}
    usage.count("colours", "ann", 5)
    usage.count("shapes", "ann", 100)
    clock.now += DAY - HOUR
    usage.count("colours", "ann", 2)
    usage.count("colours", "bob", 1)
    assert counted(usage) == {"ann": Answered(7, 7), "bob": Answered(1, 1)}
    clock.now += HOUR
    assert counted(usage)["ann"] == Answered(2, 7)
    clock.now += MONTH - DAY
    assert counted(usage)["ann"] == Answered(0, 2)
    clock.now += DAY
    assert counted(usage) == {}


def test_processes_add_to_one_file_and_the_next_service_goes_on(tmp_path):
    file = tmp_path / "usage.sqlite"
    program = (
        "import asyncio, sys; from pathlib import Path; from dpserve.service.telemetry.usage import Usage; "
        "usage = Usage(Path(sys.argv[1])); "
        "[(usage.count('colours', 'ann', 1), asyncio.run(usage.write())) for _ in range(50)]"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program, str(file)]) for _ in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0] * 3
    assert counted(Usage(file)) == {"ann": Answered(150, 150)}


def test_what_is_older_than_a_month_is_not_kept(tmp_path, clock):
    usage = Usage(tmp_path / "usage.sqlite", clock)
    for _ in range(3):
        usage.count("colours", "ann", 1)
        asyncio.run(usage.write())
        clock.now += MONTH
    with sqlite3.connect(tmp_path / "usage.sqlite") as opened:
        assert opened.execute("SELECT COUNT(*) FROM answered").fetchone() == (1,)
    opened.close()


def test_a_file_that_cannot_be_written_is_said_and_counted_when_it_can_be(tmp_path, clock, caplog):
    file = tmp_path / "usage.sqlite"
    file.mkdir()
    usage = Usage(file, clock)
    usage.count("colours", "ann", 3)
    assert counted(usage) == {}
    assert "could not be counted" in caplog.text
    file.rmdir()
    assert counted(usage) == {"ann": Answered(3, 3)}


def test_what_is_counted_is_written_when_the_service_ends(tmp_path, clock):
    usage = Usage(tmp_path / "usage.sqlite", clock)

    async def serve():
        async with usage.written():
            usage.count("colours", "ann", 4)

    asyncio.run(serve())
    assert counted(Usage(tmp_path / "usage.sqlite", clock)) == {"ann": Answered(4, 4)}
