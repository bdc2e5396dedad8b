"""One table: private, charged, durable answers beside public ones, in ratios of one run.

Contenders take turns, one at a time on an otherwise idle machine, and every figure is the median of the rounds. The
load generator runs on the same machine. Peers live in environments of their own (`--peers`), made at the first run.

Run: python -m benchmarks.serving [--quick] [--rounds N] [--seconds S] [--out benchmarks/results.json]
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.serving import contenders
from benchmarks.serving.contenders import Contender
from benchmarks.serving.load import Round, load

_PEERS = Path(__file__).with_name("peers")


@dataclass(frozen=True)
class Setting:
    """A kind of load: so many connections, so many rows in a request."""

    connections: int
    rows: int

    def __str__(self) -> str:
        """Return the words that head its column."""
        return f"{self.connections} connection{'s' * (self.connections > 1)}, {self.rows} row{'s' * (self.rows > 1)}"


@dataclass(frozen=True)
class Figures:
    """Medians of a contender's rounds in one setting. Latencies in ms, CPU in ms a request, memory in MiB."""

    per_second: float
    p50: float
    p99: float
    p999: float
    cpu: float
    peak_memory: float
    wrong: int


FULL = (Setting(32, 1), Setting(1, 1), Setting(4, 256))
QUICK = (Setting(32, 1), Setting(1, 1))


def main() -> None:
    """Measure, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ours only, in under a minute")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--peers", type=Path, default=Path(".bench"), help="where the peers' environments are kept")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results.json")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("the load comes from wrk; install it (apt install wrk)")
    if options.quick:
        options.rounds, options.seconds = 2, 2.0
    else:
        _set_up(options.peers)
    with tempfile.TemporaryDirectory() as folder:
        bundle = contenders.train_bundle(Path(folder))
        chosen = _ours(bundle) + ([] if options.quick else _theirs(options.peers.resolve()))
        results = _measure(chosen, QUICK if options.quick else FULL, Path(folder), options)
    print(_table(results))
    if not options.quick:
        options.out.write_text(json.dumps(_document(results, options), indent=2) + "\n")


def _ours(bundle: Path) -> list[Contender]:
    return [
        contenders.ours(bundle),
        contenders.plain(),
    ]


def _theirs(environments: Path) -> list[Contender]:
    return [
        contenders.mlserver(environments, in_process=True),
        contenders.mlserver(environments, in_process=False),
        contenders.bentoml(environments),
        contenders.litserve(environments),
    ]


def _set_up(environments: Path) -> None:
    """Make an environment for each peer that has none yet."""
    for requirements in sorted(_PEERS.glob("*/requirements.txt")):
        home = environments / requirements.parent.name
        done = home / ".installed"
        if done.exists() and done.read_text() == requirements.read_text():
            continue
        print(f"installing {requirements.parent.name} into {home} ...", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        # One after the other, so that a pinned torch is there before anything asks for a newer one.
        for requirement in sorted(requirements.read_text().split(), key=lambda line: not line.startswith("torch")):
            subprocess.run([home / "bin/pip", "install", "--quiet", requirement], check=True)
        done.write_text(requirements.read_text())


def _measure(
    chosen: Sequence[Contender], settings: Sequence[Setting], folder: Path, options: argparse.Namespace
) -> dict[str, dict[str, Figures]]:
    rounds: dict[tuple[str, str], list[tuple[Round, float, float]]] = {}
    for number in range(options.rounds):
        for position, contender in enumerate(chosen):
            print(f"round {number + 1} of {options.rounds}: {contender.name}", file=sys.stderr)
            home = folder / f"{number}-{position}"
            home.mkdir()
            with contender.start(home) as endpoint:
                for setting in settings:
                    body = endpoint.body(setting.rows)
                    asked = {"connections": setting.connections, "rows": setting.rows, "key": endpoint.key}
                    load(endpoint.url, body, seconds=0.5, **asked)
                    before = endpoint.server.use()
                    seen = load(endpoint.url, body, seconds=options.seconds, **asked)
                    after = endpoint.server.use()
                    cpu = (after.cpu_seconds - before.cpu_seconds) / max(seen.requests, 1) * 1e3
                    rounds.setdefault((contender.name, str(setting)), []).append((seen, cpu, after.peak_mebibytes))
    results: dict[str, dict[str, Figures]] = {}
    for (name, setting_name), seen_rounds in rounds.items():
        results.setdefault(setting_name, {})[name] = _medians(seen_rounds)
    return results


def _medians(rounds: Sequence[tuple[Round, float, float]]) -> Figures:
    seen = [one for one, _, _ in rounds]
    return Figures(
        per_second=statistics.median(one.per_second for one in seen),
        p50=statistics.median(one.p50 for one in seen),
        p99=statistics.median(one.p99 for one in seen),
        p999=statistics.median(one.p999 for one in seen),
        cpu=statistics.median(cpu for _, cpu, _ in rounds),
        peak_memory=statistics.median(memory for _, _, memory in rounds),
        wrong=sum(one.wrong for one in seen),
    )


def _table(results: dict[str, dict[str, Figures]]) -> str:
    lines = []
    for setting, by_name in results.items():
        ours = next(iter(by_name.values()))
        lines += [
            "",
            f"{setting} a request",
            f"{'':38}{'ours/it':>9}{'req/s':>9}{'p50 ms':>9}{'p99':>9}{'p99.9':>9}{'CPU ms':>9}{'MiB':>7}{'wrong':>7}",
        ]
        for name, one in by_name.items():
            ratio = ours.per_second / one.per_second if one.per_second else float("inf")
            lines.append(
                f"{name:38}{ratio:9.2f}{one.per_second:9.0f}{one.p50:9.2f}{one.p99:9.2f}{one.p999:9.2f}"
                f"{one.cpu:9.3f}{one.peak_memory:7.0f}{one.wrong:7d}"
            )
    return "\n".join(lines)


def _document(results: dict[str, dict[str, Figures]], options: argparse.Namespace) -> dict[str, object]:
    return {
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "rounds": options.rounds,
        "seconds": options.seconds,
        "results": {
            setting: {name: asdict(one) for name, one in by_name.items()} for setting, by_name in results.items()
        },
    }


if __name__ == "__main__":
    main()
