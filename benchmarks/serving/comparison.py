"""Contenders take turns, one at a time on an otherwise idle machine; a round of each before the next of any."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.serving.contenders import Contender, Endpoint
from benchmarks.serving.figures import MANY, Figures, Idle, Measured, Setting, idle, medians
from benchmarks.serving.load import Round, load
from benchmarks.serving.processes import Use, busy_seconds, children_seconds

_SECONDS_TO_WARM = 1.0
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

    Each round starts each contender anew in a folder of its own, checks that it answers rightly, and loads it in each
    setting for `seconds`. What was measured while something else took the machine is measured again, up to `times`.
    """
    measured: dict[tuple[str, str], list[Measured]] = {}
    starts: dict[str, list[list[Use]]] = {}
    for number in range(rounds):
        for position, contender in enumerate(chosen):
            print(f"round {number + 1} of {rounds}: {contender.name}", file=sys.stderr)
            home = folder / f"{number}-{position}"
            home.mkdir()
            with contender.start(home) as endpoint:
                starts.setdefault(contender.name, []).append(endpoint.server.use())
                endpoint.check()
                warm(endpoint)
                for setting in settings:
                    if setting.npy and not contender.npy:
                        continue
                    measured.setdefault((contender.name, str(setting)), []).append(
                        measure_undisturbed(endpoint, setting, seconds, times)
                    )
    results: dict[str, dict[str, Figures]] = {}
    for (name, setting_name), seen in measured.items():
        results.setdefault(setting_name, {})[name] = medians(seen)
    return results, {name: idle(uses) for name, uses in starts.items()}


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
