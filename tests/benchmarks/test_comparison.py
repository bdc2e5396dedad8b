"""Contenders take turns, and a measurement is taken again while something else takes the machine."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from benchmarks.serving import comparison
from benchmarks.serving.contenders import Contender
from benchmarks.serving.figures import ARRAYS, MANY, Measured
from benchmarks.serving.load import Round
from benchmarks.serving.processes import Use


@pytest.mark.parametrize(
    ("others", "chosen", "times"),
    [([0.01], 0.01, 1), ([0.9, 0.4, 0.1, 0.0], 0.1, 3), ([1.0, 0.5, 0.7, 0.6, 0.0], 0.5, 4)],
)
def test_what_was_disturbed_is_measured_again(others, chosen, times, monkeypatch):
    seen = [Measured(Round(1, 1.0, 0, 1, 1, 1), [], [], each) for each in others]
    left = list(seen)
    monkeypatch.setattr(comparison, "measure", lambda *_: left.pop(0))
    assert comparison.measure_undisturbed(None, MANY, 1.0, times=4).others == chosen
    assert len(seen) - len(left) == times


def test_contenders_are_started_alone_and_then_take_turns_in_each_setting(tmp_path, monkeypatch):
    """One runs at a time."""
    events, running, paused = [], [], set()

    def contender(name, memory, npy):
        @contextmanager
        def start(folder):
            assert not list(folder.iterdir())
            running.append(name)
            use = Use(name, 0.0, 0.0, memory, memory * len(running), memory)
            server = SimpleNamespace(
                use=lambda: [use], pause=lambda: paused.add(name), go_on=lambda: paused.discard(name)
            )
            yield SimpleNamespace(server=server, check=lambda: events.append(f"check {name}"), name=name)
            assert name not in paused
            running.remove(name)

        return Contender(name, start, npy)

    def measure(endpoint, setting, seconds, times):
        assert (running, seconds, times) == (["a", "b"], 0.5, 2)
        assert paused == {"a", "b"} - {endpoint.name}
        events.append(f"{endpoint.name} {setting}")
        return Measured(Round(len(events), 1.0, 0, 1, 1, 1), [], [])

    monkeypatch.setattr(comparison, "warm", lambda endpoint: events.append(f"warm {endpoint.name}"))
    monkeypatch.setattr(comparison, "measure_undisturbed", measure)
    monkeypatch.setattr(comparison, "_SECONDS_TO_END", 0.0)
    chosen = [contender("a", 10.0, npy=True), contender("b", 20.0, npy=False)]
    results, idle = comparison.compare(chosen, (MANY, ARRAYS), tmp_path, rounds=2, seconds=0.5)
    assert {name: one.worker for name, one in idle.items()} == {"a": 10.0, "b": 20.0}
    turns = [f"a {MANY}", f"b {MANY}", f"a {ARRAYS}"]
    assert events == ["check a", "warm a", "check b", "warm b", *turns, *turns]
    assert {setting: list(found) for setting, found in results.items()} == {str(MANY): ["a", "b"], str(ARRAYS): ["a"]}
    assert results[str(MANY)]["a"].per_second == (5 + 8) / 2
    assert not running
