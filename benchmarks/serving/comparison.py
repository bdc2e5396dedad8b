"""Contenders take turns, one at a time on an otherwise idle machine; a turn of each before the next of any."""

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.serving.contenders import Contender, Endpoint
from benchmarks.serving.figures import MANY, Figures, Idle, Measured, Setting, idle, medians
from benchmarks.serving.load import Round, load
from benchmarks.serving.processes import busy_seconds, children_seconds

_SECONDS_TO_WARM, _SECONDS_TO_END = 1.0, 0.5
_QUIET_CORES = 0.15


def compare(
    chosen: Sequence[Contender],
    settings: Sequence[Setting],
    folder: Path,
    *,
    rounds: int,
    seconds: float,
    times: int = 2,
) -> tuple[dict[str, dict[str, Figures]], dict[str, Idle]]:
    """Return the medians by setting and contender, and idle memory by contender. Raises RuntimeError.

    Each contender is first started alone, for its memory, in a folder of its own. Then all are there, and one runs at a
    time: in a round they take turns in each setting, for `seconds` each, so that what is compared was measured some
    seconds apart, on a machine that changes by the minute. What was measured while something else took the machine is
    measured again, up to `times`.
    """
    measured: dict[str, dict[str, list[Measured]]] = {}
    with ExitStack() as running:
        alone: dict[str, Idle] = {}
        asked: list[tuple[Contender, Endpoint]] = []
        for contender in chosen:
            with contender.start(_new_folder(folder)) as endpoint:
                alone[contender.name] = idle(endpoint.server.use())
        for contender in chosen:
            endpoint = running.enter_context(contender.start(_new_folder(folder)))
            running.callback(endpoint.server.go_on)  # or it would not hear that it is to end
            endpoint.check()
            warm(endpoint)
            _pause(endpoint)
            asked.append((contender, endpoint))
        for number in range(rounds):
            for setting in settings:
                print(f"round {number + 1} of {rounds}: {setting}", file=sys.stderr)
                for contender, endpoint in asked:
                    if setting.npy and not contender.npy:
                        continue
                    seen = measured.setdefault(str(setting), {}).setdefault(contender.name, [])
                    endpoint.server.go_on()
                    seen.append(measure_undisturbed(endpoint, setting, seconds, times))
                    _pause(endpoint)
    return {setting: {name: medians(seen) for name, seen in all_.items()} for setting, all_ in measured.items()}, alone


def _new_folder(within: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=within))


def _pause(endpoint: Endpoint) -> None:
    """Pause a contender, for some poll all the time: once what was asked last is over, or that seems to take long."""
    time.sleep(_SECONDS_TO_END)
    endpoint.server.pause()


def warm(endpoint: Endpoint) -> None:
    """Load a contender that was just started for a moment that is not counted."""
    _load(endpoint, MANY, _SECONDS_TO_WARM)


def measure_undisturbed(endpoint: Endpoint, setting: Setting, seconds: float, times: int = 2) -> Measured:
    """Measure until nothing else takes the machine; after so many times return what was least disturbed."""
    found: list[Measured] = []
    while len(found) < times and not (found and found[-1].others <= _QUIET_CORES):
        found.append(measure(endpoint, setting, seconds))
    return min(found, key=lambda one: one.others)


def measure(endpoint: Endpoint, setting: Setting, seconds: float) -> Measured:
    """Load a running contender for `seconds`."""
    before = endpoint.server.use()
    busy, own = busy_seconds(), children_seconds()
    seen = _load(endpoint, setting, seconds)
    busy, own = busy_seconds() - busy, children_seconds() - own
    measured = Measured(seen, before, endpoint.server.use(), 0.0)
    return replace(measured, others=max(0.0, busy - own - measured.cpu_seconds) / seen.seconds)


def _load(endpoint: Endpoint, setting: Setting, seconds: float) -> Round:
    return load(
        endpoint.url, endpoint.body(setting), connections=setting.connections, seconds=seconds, rows=setting.rows,
        features=endpoint.features, key=endpoint.key,
    )  # fmt: skip
