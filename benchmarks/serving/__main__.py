"""One table: private, charged, durable answers beside public ones, in ratios of one run.

Contenders take turns, one at a time on an otherwise idle machine, and every figure is the median of the rounds. The
load generator runs on the same machine. Peers live in environments of their own (`--peers`), made at the first run.

Run: python -m benchmarks.serving [--quick] [--rounds N] [--seconds S] [--part comparison|stages|scaling ...]
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.serving import contenders, environments, report, results, scaling, stages
from benchmarks.serving.comparison import compare
from benchmarks.serving.figures import (
    BATCHES,
    IN_MEMORY,
    MANY,
    ONE,
    OURS_ARRAYS,
    OURS_REPLAYED,
    OURS_WORKERS,
    UNPROTECTED_WORKERS,
)
from benchmarks.serving.load import available_generator

_REPLAYED = 1000
"""Questions that are asked in turn where they were asked before."""

PARTS = ("comparison", "stages", "scaling")


def main() -> None:
    """Measure, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ours only, in under a minute; writes nothing")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of load for a contender in a setting and a round")
    parser.add_argument("--part", action="append", choices=PARTS, help="measure this part alone; repeatable")
    parser.add_argument("--peers", type=Path, default=Path(".bench"), help="where the peers' environments are kept")
    parser.add_argument("--no-peers", action="store_true", help="leave other people's servers out")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results.json")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.no_peers, options.part = 2, 1.0, True, ["comparison"]
    print(f"load from {available_generator()}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle = contenders.train_bundle(folder)
        for part in options.part or PARTS:
            document = {"comparison": _compare, "stages": _profile, "scaling": _scale}[part](bundle, folder, options)
            if not options.quick:
                results.merge(options.out, {part: document})


def _compare(bundle: Path, folder: Path, options: argparse.Namespace) -> results.Document:
    chosen = [contenders.ours(bundle), contenders.unprotected(bundle), contenders.plain()]
    if not options.quick:
        chosen.insert(1, contenders.ours(bundle, "--workers", "2", name=OURS_WORKERS))
        chosen.append(contenders.unprotected(bundle, name=UNPROTECTED_WORKERS, workers=2))
        chosen.insert(1, contenders.ours(bundle, name=OURS_ARRAYS, arrays=True))
        chosen.insert(1, contenders.ours(bundle, name=OURS_REPLAYED, distinct=_REPLAYED))
        if contenders.memory_is_there():
            chosen.insert(1, contenders.ours(bundle, name=IN_MEMORY, in_memory=True))
    if not options.no_peers:
        environments.install(options.peers)
        chosen += contenders.peers(options.peers.resolve())
    settings = (MANY, ONE) if options.quick else (MANY, ONE, BATCHES)
    by_setting, idle = compare(
        chosen, settings, folder, rounds=options.rounds, seconds=options.seconds, times=1 if options.quick else 4
    )
    print(report.terminal(by_setting, idle))
    return results.comparison(by_setting, idle, options.rounds, options.seconds)


def _profile(bundle: Path, folder: Path, options: argparse.Namespace) -> results.Document:
    by_setting = {}
    for setting in (MANY, ONE, BATCHES):
        found = stages.profile(bundle, folder / f"stages-{setting}", setting, 2 * options.seconds)
        by_setting[str(setting)] = found
        print(f"\nCPU by stage, {setting} a request")
        for stage in found:
            print(f"{stage.name:38}{stage.microseconds:9.0f} us{100 * stage.share:6.1f} %")
    return results.stages(by_setting)


def _scale(bundle: Path, folder: Path, options: argparse.Namespace) -> results.Document:
    return results.scaling(scaling.curves(bundle, folder / "scaling", options.seconds))


if __name__ == "__main__":
    main()
