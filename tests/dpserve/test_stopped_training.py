"""Trainings that a signal ends: they say what was charged, and take back what they noted."""

import os
import signal
import subprocess
import sys
import time

import pytest

from dpserve.interrupts import stopped_by_signals

SLOW = ("dpsgd", "--epsilon", "1", "--delta", "1e-5", "--n", "1400", "--steps", "20000")


def heed_interrupts():
    """Undo what a shell does to programs in its background, which ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_training_that_is_stopped_takes_its_note_back_and_says_that_nothing_was_charged(tmp_path, sent):
    home = tmp_path / "home"
    command = [sys.executable, "-m", "dpserve", "train", "--data", "digits", "--out", str(tmp_path / "bundle"), *SLOW]
    training = subprocess.Popen(
        command,
        env=os.environ | {"DPSERVE_HOME": str(home)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        preexec_fn=heed_interrupts,
    )
    while not list(home.glob("trained/digits/*.records-note")):
        assert training.poll() is None, training.communicate()
        time.sleep(0.05)
    training.send_signal(sent)
    _, said = training.communicate(timeout=120)
    # An interrupt inside an extension's own Python has Python end itself by SIGINT, which shells call 130 as well.
    assert training.returncode in (128 + signal.SIGINT, -signal.SIGINT), said
    assert b"nothing was charged" in said
    assert not (home / "trained").exists()
    assert not (tmp_path / "bundle").exists()


def build_a_type(sent=None):
    """Fail as pydantic does where it is interrupted while it builds a type."""
    try:
        if sent is not None:
            signal.raise_signal(sent)
    except KeyboardInterrupt:
        pass
    raise TypeError


def test_a_signal_of_which_a_library_makes_its_own_error_stops_a_task_and_another_error_does_not(capsys):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for sent in (signal.SIGINT, signal.SIGTERM):
            with pytest.raises(SystemExit) as ended, stopped_by_signals("the training", lambda: "nothing was charged"):
                build_a_type(sent)
            assert ended.value.code == 128 + signal.SIGINT
            assert "nothing was charged" in capsys.readouterr().err
        with pytest.raises(TypeError), stopped_by_signals("the training", lambda: "nothing was charged"):
            build_a_type()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


WAITS_IN_AN_IMPORT = """
import sys

class Waits:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            print("importing", flush=True)
            try:
                sys.stdin.read()
            except BaseException:
                raise ImportError(name) from None

sys.meta_path.insert(0, Waits())
from dpserve.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["dpserve.cli", "typer", "dpserve.commands.training", "dpserve.training.fit"])
def test_an_interrupt_while_a_command_is_imported_is_one_line(tmp_path, module):
    """The import waits for its input, which never comes, and would turn KeyboardInterrupt into an error of its own."""
    training = subprocess.Popen(
        [
            sys.executable,
            "-c",
            WAITS_IN_AN_IMPORT.format(module=module),
            "train",
            "--data",
            "digits",
            "--out",
            str(tmp_path / "bundle"),
            *SLOW,
        ],
        env=os.environ | {"DPSERVE_HOME": str(tmp_path / "home")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_interrupts,
    )
    assert training.stdout.readline() == b"importing\n"
    training.send_signal(signal.SIGINT)
    _, said = training.communicate(timeout=120)
    assert training.returncode == 128 + signal.SIGINT
    assert said.strip() == b"dpserve: stopped before it began; nothing was charged"
    assert not (tmp_path / "home").exists()
