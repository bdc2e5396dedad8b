"""Workers of one supervisor: apart in their noise, ready together, replaced when they die, ended with it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Each line of the file is a number of a worker and what it did; lines are whole, for they are appended in one write.
PROGRAM = """
import asyncio, os, signal, sys, time
from pathlib import Path
import numpy as np
from mechanisms.gaussian import Gaussian
from mechanisms.randomness import SystemRandomness
from service import workers
from service.open_connections import OpenConnections
from service.workers import Supervisor, Worker

workers._SHORTEST_PAUSE = 0.001
workers._LONGEST_PAUSE = 0.05
workers.BEAT_SECONDS = 0.1
workers.MARGIN_SECONDS = 0.5
workers.SILENCE_SECONDS = workers.LONGEST_START_SECONDS = 4.0
LOOKS = 0
counts = OpenConnections(3)
events, behaviour = Path(sys.argv[1]), sys.argv[2]
randomness, mechanism = SystemRandomness(), Gaussian(5.0)
mechanism.prepare(3)
mechanism.release(np.zeros((1, 3)), np.ones(1), randomness)

def note(worker, what):
    with events.open("a") as file:
        file.write(f"{worker.number} {what}\\n")

def happened(what):
    return events.read_text().count(what)

def work(worker):
    note(worker, f"starts {os.getpid()} {worker.again}")
    words = " ".join(map(str, randomness.words(2048)))
    noise = mechanism.release(np.zeros((1, 3)), np.ones(1), randomness).tobytes().hex()
    note(worker, f"drew {words} {noise} {np.random.default_rng().integers(2**63)}")
    if behaviour == "fails":
        raise SystemExit(3)
    if behaviour == "cannot start again" and worker.again and not Path(sys.argv[3]).exists():
        raise SystemExit(1)
    if behaviour == "hangs again" and worker.again and happened("hangs") == 0:
        note(worker, "hangs")
        time.sleep(3600)
    if behaviour == "starts long":
        note(worker, "starting")
        time.sleep(3600)
    if behaviour == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "hangs up":
        worker.line.close()
        note(worker, "mute")
        while not Path(sys.argv[3]).exists():
            time.sleep(0.01)
        raise SystemExit(3)
    if behaviour == "dies unseen" and worker.again and happened("unseen") == 0:
        os.kill(os.getppid(), signal.SIGSTOP)
        while Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
        worker.line.send(b"r")
        note(worker, "unseen")
        os.kill(os.getpid(), signal.SIGKILL)
    asyncio.run(until_told(worker))
    if behaviour == "dies at the end" and worker.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    note(worker, "ends")

async def until_told(worker):
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    counts.of(worker.number).has(worker.number)
    async with worker.supervised() as all_ready:
        note(worker, "ready")
        await all_ready()
        note(worker, "answers")
        if behaviour == "hangs" and worker.number == 1 and not worker.again:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
            note(worker, "hangs")
            while True:
                time.sleep(0.01)  # and the event loop does not turn
        if behaviour == "dies":
            os.kill(os.getpid(), 9)
        await told.wait()

class Counting(Supervisor):
    def _look(self):
        global LOOKS
        LOOKS += 1
        super()._look()

    def _bury(self, running):
        super()._bury(running)
        note(Worker(running.number), f"buried {counts.of(2).fewest_elsewhere()}")

status = Counting(3, work, [], drain_seconds=0.5, open_connections=counts).run()
print(LOOKS)
raise SystemExit(status)
"""


class Supervised:
    """A supervisor of three workers, and what they did."""

    def __init__(self, folder, behaviour):
        (folder / "program.py").write_text(PROGRAM)
        self.events = folder / "events"
        self.process = subprocess.Popen(
            [sys.executable, folder / "program.py", self.events, behaviour, folder / "end"],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def lines(self):
        return [line.split() for line in self.events.read_text().splitlines()] if self.events.exists() else []

    def wait_for(self, what, count):
        deadline = time.monotonic() + 60
        while sum(line[1] == what for line in self.lines()) < count:
            assert time.monotonic() < deadline
            assert self.process.poll() is None, self.process.stderr.read()
            time.sleep(0.01)

    def pids(self):
        return [int(line[2]) for line in self.lines() if line[1] == "starts"]

    def pid(self, number):
        """The newest process in that worker's place."""
        return [int(line[2]) for line in self.lines() if line[:2] == [str(number), "starts"]][-1]

    def end(self):
        self.process.terminate()
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@pytest.fixture
def supervised(tmp_path):
    started = []

    def start(behaviour):
        started.append(Supervised(tmp_path, behaviour))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        for pid in each.pids():
            with suppress(OSError):
                if str(each.events) in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)
        each.process.stdout.close()
        each.process.stderr.close()


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return state(pid) != "Z"


def stop(pid):
    """Stop the process, and wait for that: until it is stopped, another signal may overtake this one."""
    os.kill(pid, signal.SIGSTOP)
    when(lambda: state(pid) == "T")


def when(true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return True


def gone(pids):
    return when(lambda: not any(lives(pid) for pid in pids))


def test_workers_are_ready_together_apart_in_their_noise_and_replaced_when_they_die(supervised):
    service = supervised("")
    service.wait_for("answers", 3)
    happened = [line[1] for line in service.lines()]
    assert happened.index("answers") > max(place for place, what in enumerate(happened) if what == "ready")
    alone = [line[:2] for line in service.lines()].index(["0", "ready"])
    assert all(line[0] == "0" for line in service.lines()[:alone]), "the first finds alone what is wrong"

    first, *others = service.pids()
    os.kill(first, signal.SIGKILL)
    service.wait_for("answers", 4)
    assert [line[0] for line in service.lines() if line[1:] == ["starts", str(service.pids()[-1]), "True"]] == ["0"]
    assert all(lives(pid) for pid in others)

    # All were forked from a process that had drawn before; a false alarm takes 64 bits that agree by chance.
    drawn = [line[2:] for line in service.lines() if line[1] == "drew"]
    assert [len(words) for words in drawn] == [2050] * 4
    assert len({word for words in drawn for word in words}) == 4 * 2050

    status, said = service.end()
    assert status == 0
    assert said.count("\n") == said.count("ended by SIGKILL") == 1
    assert [line[1] for line in service.lines()].count("ends") == 3
    assert gone(service.pids())


def test_nobody_leaves_connections_to_a_worker_that_died(supervised):
    service = supervised("")
    service.wait_for("answers", 3)
    os.kill(service.pid(0), signal.SIGKILL)
    service.wait_for("answers", 4)
    assert [line[2] for line in service.lines() if line[:2] == ["0", "buried"]] == ["1"], "what worker 1 has"
    assert service.end()[0] == 0


def test_workers_that_die_again_and_again_end_the_service(supervised):
    service = supervised("dies")
    _, said = service.process.communicate(timeout=60)
    assert service.process.returncode == 1
    assert "the last of too many: the service ends" in said
    assert max(said.count(f"worker {number} ended by SIGKILL; another") for number in range(3)) == 5
    assert gone(service.pids())


def test_the_deaths_of_different_workers_are_not_added_up(supervised):
    service = supervised("")
    service.wait_for("answers", 3)
    for death in range(9):
        os.kill(service.pid(death % 3), signal.SIGKILL)
        service.wait_for("answers", 4 + death)
    status, said = service.end()
    assert status == 0
    assert said.count("another takes its place") == 9


def test_a_worker_that_cannot_be_replaced_yet_is_tried_again_while_others_answer(supervised, tmp_path):
    service = supervised("cannot start again")
    service.wait_for("answers", 3)
    os.kill(service.pid(1), signal.SIGKILL)
    service.wait_for("starts", 3 + 12)
    assert all(lives(service.pid(number)) for number in (0, 2))
    (tmp_path / "end").touch()
    service.wait_for("answers", 4)
    status, said = service.end()
    assert status == 0
    assert said.count("worker 1 ended by status 1; another takes its place") >= 11


def test_a_service_that_cannot_replace_any_of_its_workers_ends(supervised):
    service = supervised("cannot start again")
    service.wait_for("answers", 3)
    for pid in service.pids():
        os.kill(pid, signal.SIGKILL)
    _, said = service.process.communicate(timeout=60)
    assert service.process.returncode == 1
    assert "the last of too many: the service ends" in said


def test_a_service_whose_first_worker_cannot_start_does_not_try_again(supervised):
    service = supervised("fails")
    service.process.communicate(timeout=60)
    assert service.process.returncode == 1
    assert len(service.pids()) == 1


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_a_service_that_is_told_to_end_while_it_starts_ends_as_it_was_told(supervised, told):
    service = supervised("starts long")
    service.wait_for("starting", 1)
    service.process.send_signal(told)
    _, said = service.process.communicate(timeout=60)
    assert (service.process.returncode, said) == (0, "")


def test_a_worker_that_is_killed_before_it_answers_is_named(supervised):
    service = supervised("is killed")
    _, said = service.process.communicate(timeout=60)
    assert service.process.returncode == 1
    assert said == "worker 0 ended by SIGKILL before it answered: the service ends\n"


def test_a_worker_that_is_killed_while_it_drains_is_named(supervised):
    service = supervised("dies at the end")
    service.wait_for("answers", 3)
    assert service.end() == (1, "worker 1 ended by SIGKILL after it was told to end\n")


def test_workers_end_when_their_supervisor_was_killed(supervised):
    service = supervised("")
    service.wait_for("answers", 3)
    service.process.kill()
    assert gone(service.pids())
    assert [line[1] for line in service.lines()].count("ends") == 3


def test_a_worker_that_dies_just_when_it_is_ready_is_replaced(supervised):
    service = supervised("dies unseen")
    service.wait_for("answers", 3)
    os.kill(service.pid(1), signal.SIGKILL)
    service.wait_for("unseen", 1)
    when(lambda: not lives(service.pids()[-1]))
    os.kill(service.process.pid, signal.SIGCONT)
    service.wait_for("answers", 4)
    status, said = service.end()
    assert status == 0
    assert said.count("worker 1 ended by SIGKILL") == 2


def test_a_supervisor_waits_quietly_for_a_worker_that_hung_up(supervised, tmp_path):
    service = supervised("hangs up")
    service.wait_for("mute", 1)
    time.sleep(0.5)  # however short, one that does not wait looks thousands of times
    (tmp_path / "end").touch()
    looks, _ = service.process.communicate(timeout=60)
    assert service.process.returncode == 1
    assert int(looks) < 100


def test_a_worker_that_was_stopped_is_killed_and_replaced(supervised):
    service = supervised("")
    service.wait_for("answers", 3)
    stop(service.pid(1))
    service.wait_for("answers", 4)
    status, said = service.end()
    assert status == 0
    assert "worker 1 said nothing for 4 s: it is killed" in said
    assert said.count("it is killed") == 1


def test_a_replacement_that_hangs_in_its_start_is_killed_and_tried_again(supervised):
    service = supervised("hangs again")
    service.wait_for("answers", 3)
    os.kill(service.pid(1), signal.SIGKILL)
    service.wait_for("answers", 4)
    status, said = service.end()
    assert status == 0
    assert "worker 1 was not ready in 4 s: it is killed" in said


def test_a_supervisor_that_stood_still_itself_kills_nobody(supervised):
    service = supervised("")
    service.wait_for("answers", 3)
    everybody = [service.process.pid, *service.pids()]
    for pid in everybody:
        stop(pid)
    time.sleep(4.5)  # longer than a worker may say nothing
    for pid in everybody:
        os.kill(pid, signal.SIGCONT)
    time.sleep(0.5)  # several looks
    status, said = service.end()
    assert (status, said) == (0, "")


@pytest.mark.parametrize("told", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]])
def test_a_worker_that_was_stopped_does_not_keep_the_service_from_ending(supervised, told):
    service = supervised("")
    service.wait_for("answers", 3)
    stop(service.pid(1))
    for each in told:
        service.process.send_signal(each)
    _, said = service.process.communicate(timeout=60)
    assert service.process.returncode == 1
    assert "worker 1 has not ended in time: it is killed" in said
    assert gone(service.pids())


@pytest.mark.parametrize("behaviour", ["hangs", "stopped"])
def test_a_worker_that_hangs_does_not_outlive_a_supervisor_that_was_killed(supervised, behaviour):
    service = supervised(behaviour)
    service.wait_for("hangs" if behaviour == "hangs" else "answers", 1 if behaviour == "hangs" else 3)
    if behaviour == "stopped":
        stop(service.pid(1))
    service.process.kill()
    assert gone(service.pids())
