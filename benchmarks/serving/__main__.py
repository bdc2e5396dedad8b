"""Private answers beside public ones, in ratios of one run: pay-once models first, then the metered one.

Contenders take turns, one at a time on an otherwise idle machine, and every figure but idle memory is the median of the
rounds. The load generator runs on the same machine. Peers live in environments of their own (`--peers`), made at the
first run.

Run: python -m benchmarks.serving [--quick] [--rounds N] [--seconds S] [--part pay-once|metered|stages|scaling ...]
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.serving import contenders, environments, report, results, scaling, stages
from benchmarks.serving.comparison import compare
from benchmarks.serving.contenders import Contender
from benchmarks.serving.figures import ARRAYS, BATCHES, MANY, ONE, OURS_REPLAYED, PAY_ONCE
from benchmarks.serving.load import available_generator

_REPLAYED = 1000
"""Questions that are asked in turn where they were asked before."""

PARTS = ("pay-once", "metered", "stages", "scaling")
_PROFILED = "dpserve: class-sums, fourier"


def main() -> None:
    """Measure, print the tables, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ours and plain only, a short round; writes nothing")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.0, help="of load for a contender in a setting and a round")
    parser.add_argument("--part", action="append", choices=PARTS, help="measure this part; repeatable [default: all]")
    parser.add_argument("--peers", type=Path, default=Path(".bench"), help="where the peers' environments are kept")
    parser.add_argument("--no-peers", action="store_true", help="leave other people's servers out")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results.json")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.no_peers = 1, True
    parts = options.part or (PARTS[:2] if options.quick else PARTS)
    print(f"load from {available_generator()}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        head = contenders.train_bundle(folder / "head")
        if {"pay-once", "metered"} & set(parts):
            _keep(options, {"comparison": _compare(head, folder, parts, options)})
        if "stages" in parts:
            _keep(options, {"stages": _profile(head, folder, 2 * options.seconds)})
        if "scaling" in parts:
            _keep(options, {"scaling": results.scaling(scaling.curves(head, folder / "scaling", options.seconds))})


def _keep(options: argparse.Namespace, found: results.Document) -> None:
    if not options.quick:
        results.merge(options.out, found)


def _compare(head: Path, folder: Path, parts: list[str], options: argparse.Namespace) -> results.Document:
    chosen: list[Contender] = []
    if "pay-once" in parts:
        for name, (kind, features) in PAY_ONCE.items():
            bundle = contenders.train_pay_once(folder / f"{kind}-{features}", kind, features)
            chosen.append(contenders.pay_once(bundle, name))
    if "metered" in parts:
        chosen += [
            contenders.ours(head),
            contenders.ours(head, name=OURS_REPLAYED, distinct=_REPLAYED),
            contenders.unprotected(head),
        ]
    chosen.append(contenders.plain())
    if not options.no_peers:
        environments.install(options.peers)
        chosen += contenders.peers(options.peers.resolve())
    settings = (MANY, ONE, BATCHES, ARRAYS)
    by_setting, idle = compare(
        chosen, settings, folder, rounds=options.rounds, seconds=options.seconds, times=1 if options.quick else 2
    )
    print(report.terminal(by_setting, idle))
    return results.comparison(by_setting, idle, options.rounds, options.seconds)


def _profile(head: Path, folder: Path, seconds: float) -> results.Document:
    bundle = contenders.train_pay_once(folder / "profiled", *PAY_ONCE[_PROFILED])
    found = {}
    for name, served, setting in (
        ("pay-once", bundle, MANY), ("pay-once", bundle, ONE), ("pay-once", bundle, BATCHES), ("metered", head, MANY),
    ):  # fmt: skip
        said = f"{name}, {setting}"
        found[said] = stages.profile(served, folder / f"stages-{said}", setting, seconds)
        print(f"\nCPU by stage, {said} a request")
        for stage in found[said]:
            print(f"{stage.name:38}{stage.microseconds:9.0f} us{100 * stage.share:6.1f} %")
    return results.stages(found)


if __name__ == "__main__":
    main()
