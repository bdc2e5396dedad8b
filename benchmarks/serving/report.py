"""The table: for the terminal, and as the Markdown of docs/performance.md and benchmarks/RESULTS.md. Ratios first.

`python -m benchmarks.serving.report` writes the tables of both pages anew from docs/performance.json.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.serving import results
from benchmarks.serving.figures import (
    ARRAYS,
    BATCHES,
    METERED,
    MLSERVERS,
    PLAIN,
    Figures,
    Goal,
    Idle,
    Results,
    metered_goals,
    pay_once_goals,
    ratio,
)
from benchmarks.serving.results import Document

DOCS = Path(__file__).parents[2] / "docs"
PAGE, FIGURES = DOCS / "performance.md", DOCS / "performance.json"
PAGES = (PAGE, DOCS.parent / "benchmarks" / "RESULTS.md")
_MISSING = "Not measured yet.\n"
_PART = r"(<!-- {name} -->\n).*?(<!-- end -->)"


def terminal(by_setting: Results, idle: Mapping[str, Idle]) -> str:
    """Return the whole comparison as text: the goals, then for each setting ours beside the others."""
    lines = ["pay-once models, as ratios of this run: the one that is furthest from each goal"]
    lines += [str(goal) for goal in pay_once_goals(by_setting, idle)]
    lines += ["", "the metered model"]
    lines += [str(goal) for goal in metered_goals(by_setting, idle)]
    for setting, by_name in by_setting.items():
        lines += [
            "",
            f"{setting} a request",
            f"{'':42}{'/MLServer':>10}{'/plain':>8}{'req/s':>9}{'p50 ms':>9}{'p99':>9}{'p99.9':>9}{'CPU ms':>9}"
            f"{'MiB':>7}{'idle':>7}{'wrong':>7}{'others':>8}",
        ]
        for name, one in by_name.items():
            lines.append(
                f"{name:42}{_over(by_setting, one, *MLSERVERS):>10}{_over(by_setting, one, PLAIN):>8}"
                f"{one.per_second:9.0f}{one.p50:9.2f}{one.p99:9.2f}{one.p999:9.2f}{one.cpu:9.3f}{one.peak_memory:7.0f}"
                f"{idle[name].total:7.0f}{one.wrong:7d}{one.others:8.2f}"
            )
    return "\n".join(lines)


def with_tables(page: str, document: Document) -> str:
    """Return the page with its tables made from the document."""
    tables = {
        "machine": _machine(document),
        "pay-once goals": _goal_table(document, pay_once=True),
        "pay-once": _comparison(document, pay_once=True, settings=1),
        "every setting": _comparison(document, pay_once=True),
        "metered goals": _goal_table(document, pay_once=False),
        "metered": _comparison(document, pay_once=False, settings=1),
        "every metered setting": _comparison(document, pay_once=False),
        "stages": _stages(document),
        "scaling": _scaling(document),
        "ray data": _ray_data(document),
    }
    for name, table in tables.items():
        page = with_table(page, name, table)
    return page


def with_table(page: str, name: str, table: str) -> str:
    """Return the page with another table of this name."""
    return re.sub(_PART.format(name=name), lambda part: part[1] + table + part[2], page, flags=re.S)


def _over(by_setting: Results, one: Figures, *others: str) -> str:
    """Return the requests per second over the others' fastest, in the setting where `one` was measured.

    Files are compared with what the others do in JSON.
    """
    (setting,) = (name for name, by_name in by_setting.items() if any(each is one for each in by_name.values()))
    compared = str(BATCHES) if setting == str(ARRAYS) else setting
    there = [each for name, each in by_setting.get(compared, {}).items() if name in others]
    return f"{min(ratio(one.per_second, each.per_second) for each in there):.2f}" if there else "-"


def _machine(document: Document) -> str:
    parts: dict[str, list[str]] = {}
    for name in ("comparison", "stages", "scaling"):
        if name in document:
            part = document[name]
            m = part["machine"]
            source = "`wrk`" if part["load"] == "wrk" else "our own generator"
            said = (
                f"{m['cores']} cores of an {m['processor']}, {m['memory_gib']} GiB, {m['system']}, Python "
                f"{m['python']}; load from {source} on the same machine; {part['date']}, commit {part['commit']}"
            )
            parts.setdefault(said, []).append(f"{name} (512 bytes are durable in {m['disk_sync_ms']} ms)")
    lines = [f"- {', '.join(names)}: {said}" for said, names in parts.items()]
    if "comparison" not in document:
        return _MISSING
    part = document["comparison"]
    peers = ", ".join(f"{name} {version}" for name, version in sorted(part["peers"].items()))
    lines.append(f"- peers: {peers}; medians of {part['rounds']} interleaved rounds of {part['seconds']:g} s each")
    return "\n".join(lines) + "\n"


def _goal_table(document: Document, *, pay_once: bool) -> str:
    if "comparison" not in document:
        return _MISSING
    by_setting, idle = results.read_comparison(document["comparison"])
    found = pay_once_goals(by_setting, idle) if pay_once else metered_goals(by_setting, idle)
    rows = [
        (goal.what, f"{goal.value:.3g}", f"{'≥' if goal.at_least else '≤'} {goal.bound:g}", _verdict(goal))
        for goal in found
    ]
    return _markdown(("ratio of one run", "measured", "goal", ""), rows)


def _verdict(goal: Goal) -> str:
    return "met" if goal.met else "**missed**"


def _comparison(document: Document, *, pay_once: bool, settings: int | None = None) -> str:
    """Return a table for each of the first so many settings: of pay-once models and peers, or of metered ones."""
    if "comparison" not in document:
        return _MISSING
    by_setting, idle = results.read_comparison(document["comparison"])
    text = ""
    for setting, by_name in list(by_setting.items())[:settings]:
        rows = [
            (
                name, _over(by_setting, one, *MLSERVERS), _over(by_setting, one, PLAIN), f"{one.per_second:,.0f}",
                f"{one.p50:.2f}", f"{one.p99:.2f}", f"{one.cpu:.3f}", f"{idle[name].total:.0f}",
            )
            for name, one in by_name.items()
            if (name in METERED) != pay_once
        ]  # fmt: skip
        head = (
            f"{setting} a request", "/ MLServer", "/ plain", "requests/s", "p50 ms", "p99 ms", "CPU ms", "idle MiB",
        )  # fmt: skip
        text += _markdown(head, rows) + "\n"
    return text.rstrip("\n") + "\n"


def _stages(document: Document) -> str:
    if "stages" not in document:
        return _MISSING
    settings = {key: value for key, value in document["stages"].items() if isinstance(value, list)}
    found = {key: {one["name"]: one["microseconds"] for one in value} for key, value in settings.items()}
    stages = dict.fromkeys(name for by_name in found.values() for name in by_name)
    rows = [(name, *(f"{by_name.get(name, 0):,.0f}" for by_name in found.values())) for name in stages]
    return _markdown(("CPU µs a request", *found), rows)


def _scaling(document: Document) -> str:
    if "scaling" not in document:
        return _MISSING
    rows = [
        (
            one["curve"], f"{one['at']:,}", f"{one['rows_per_second']:,.0f}", f"{one['p50']:.2f}", f"{one['cpu']:.3f}",
            f"{one['peak_memory']:.0f}",
        )
        for one in document["scaling"]["points"]
    ]  # fmt: skip
    return _markdown(("curve", "at", "rows/s", "p50 ms", "CPU ms a request", "peak MiB"), rows)


def _ray_data(document: Document) -> str:
    if "ray data" not in document:
        return _MISSING
    part = document["ray data"]
    rows = [(processes, f"{rate:,.0f}") for processes, rate in part["rows_per_second"].items()]
    return _markdown((f"processes, {part['rows']:,} rows", "rows/s"), rows)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    for written in PAGES:
        written.write_text(with_tables(written.read_text(), json.loads(FIGURES.read_text())))
