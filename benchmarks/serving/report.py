"""The table: for the terminal, and as the Markdown of docs/performance.md. Ratios first.

`python -m benchmarks.serving.report` writes the tables of the page anew from docs/performance.json.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.serving import results
from benchmarks.serving.figures import IN_MEMORY, OURS, OURS_WORKERS, Figures, Goal, Idle, Results, goals, ratio
from benchmarks.serving.results import Document

DOCS = Path(__file__).parents[2] / "docs"
PAGE, FIGURES = DOCS / "performance.md", DOCS / "performance.json"
_PART = r"(<!-- {name} -->\n).*?(<!-- end -->)"


def terminal(by_setting: Results, idle: Mapping[str, Idle]) -> str:
    """Return the whole comparison as text: the goals, then a table for each setting."""
    lines = [f"{'goals, as ratios of this run':66}{'':8}   {'':17}{'but for the disk':>18}{'2 workers':>12}"]
    for goal, others in beside(by_setting, idle):
        no_disk, workers = ("" if other is None else f"{other.value:.2f}" for other in others)
        lines.append(f"{goal!s:95}{no_disk:>16}{workers:>12}")
    for setting, by_name in by_setting.items():
        lines += [
            "",
            f"{setting} a request",
            f"{'':38}{'ours/it':>9}{'req/s':>9}{'p50 ms':>9}{'p99':>9}{'p99.9':>9}{'CPU ms':>9}{'MiB':>7}{'idle':>7}"
            f"{'wrong':>7}{'others':>8}",
        ]
        for name, one in by_name.items():
            lines.append(
                f"{name:38}{_over(by_name, one):>9}{one.per_second:9.0f}{one.p50:9.2f}{one.p99:9.2f}{one.p999:9.2f}"
                f"{one.cpu:9.3f}{one.peak_memory:7.0f}{idle[name].total:7.0f}{one.wrong:7d}"
                f"{one.others:8.2f}"
            )
    return "\n".join(lines)


def with_tables(page: str, document: Document) -> str:
    """Return the page with its tables made from the document."""
    tables = {"machine": _machine(document), "goals": _goals(document), "comparison": _comparison(document)}
    tables |= {"stages": _stages(document), "scaling": _scaling(document)}
    for name, table in tables.items():
        page = re.sub(_PART.format(name=name), lambda found, table=table: found[1] + table + found[2], page, flags=re.S)  # type: ignore[misc]
    return page


def _over(by_name: Mapping[str, Figures], one: Figures) -> str:
    return f"{ratio(by_name[OURS].per_second, one.per_second):.2f}" if OURS in by_name else "-"


def _machine(document: Document) -> str:
    lines = []
    for name in ("comparison", "stages", "scaling"):
        if name in document:
            part = document[name]
            m = part["machine"]
            source = "`wrk`" if part["load"] == "wrk" else "our own generator"
            lines.append(
                f"- {name}: {m['cores']} cores of an {m['processor']}, {m['memory_gib']} GiB, {m['system']}, Python "
                f"{m['python']}; a disk that makes 512 bytes durable in {m['disk_sync_ms']} ms; load from {source} on "
                f"the same machine; {part['date']}, commit {part['commit']}"
            )
    peers = ", ".join(f"{name} {version}" for name, version in sorted(document["comparison"]["peers"].items()))
    part = document["comparison"]
    lines.append(f"- peers: {peers}; medians of {part['rounds']} interleaved rounds of {part['seconds']:g} s each")
    return "\n".join(lines) + "\n"


def beside(by_setting: Results, idle: Mapping[str, Idle]) -> list[tuple[Goal, list[Goal | None]]]:
    """Return the goals, each with the same of our service in other forms: without a disk to wait for, by two workers.

    None where that was not measured.
    """
    others = [{goal.what: goal for goal in goals(by_setting, idle, name)} for name in (IN_MEMORY, OURS_WORKERS)]
    return [(goal, [other.get(goal.what) for other in others]) for goal in goals(by_setting, idle)]


def _goals(document: Document) -> str:
    rows = [
        (
            goal.what,
            f"{goal.value:.2f}",
            f"{'≥' if goal.at_least else '≤'} {goal.bound:g}",
            _verdict(goal),
            *("" if other is None else f"{other.value:.2f}, {_verdict(other)}" for other in others),
        )
        for goal, others in beside(*results.read_comparison(document["comparison"]))
    ]
    return _markdown(("ratio of one run", "measured", "goal", "", "ledger's disk in memory", "by 2 workers"), rows)


def _verdict(goal: Goal) -> str:
    return "met" if goal.met else "**missed**"


def _comparison(document: Document) -> str:
    by_setting, idle = results.read_comparison(document["comparison"])
    text = ""
    for setting, by_name in by_setting.items():
        rows = [
            (
                name, _over(by_name, one), f"{one.per_second:,.0f}", f"{one.p50:.2f}", f"{one.p99:.2f}",
                f"{one.cpu:.3f}", f"{idle[name].total:.0f}",
            )
            for name, one in by_name.items()
        ]  # fmt: skip
        head = (
            f"{setting} a request", "ours / it", "requests/s", "p50 ms", "p99 ms", "CPU ms", "idle MiB",
        )  # fmt: skip
        text += _markdown(head, rows) + "\n"
    return text.rstrip("\n") + "\n"


def _stages(document: Document) -> str:
    settings = {key: value for key, value in document["stages"].items() if isinstance(value, list)}
    found = {key: {one["name"]: one["microseconds"] for one in value} for key, value in settings.items()}
    stages = dict.fromkeys(name for by_name in found.values() for name in by_name)
    rows = [(name, *(f"{by_name.get(name, 0):,.0f}" for by_name in found.values())) for name in stages]
    return _markdown(("CPU µs a request", *found), rows)


def _scaling(document: Document) -> str:
    rows = [
        (
            one["curve"], f"{one['at']:,}", f"{one['rows_per_second']:,.0f}", f"{one['p50']:.2f}", f"{one['cpu']:.3f}",
            f"{one['peak_memory']:.0f}",
        )
        for one in document["scaling"]["points"]
    ]  # fmt: skip
    return _markdown(("curve", "at", "rows/s", "p50 ms", "CPU ms a request", "peak MiB"), rows)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(), json.loads(FIGURES.read_text())))
