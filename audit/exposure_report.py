"""The part of a report about single records, and the file that has all (`dpserve.audit.membership.exposure`)."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Mask
from dpserve.audit.membership.exposure import Exposure
from dpserve.audit.reports import ReportTable, number

_MOST_EXPOSED = 5
_MOST_GROUPS = 10
_RATE = 0.01


@dataclass(frozen=True, eq=False)
class Groups:
    """A column of the candidates' files: of members and of others, every row's value in the files' order."""

    column: str
    members: NDArray[np.str_]
    others: NDArray[np.str_]

    def of(self, exposure: Exposure) -> NDArray[np.str_]:
        """Return each candidate's value: (c,)."""
        own, other = exposure.row[exposure.member] - 1, exposure.row[~exposure.member] - 1
        return np.concatenate([self.members[own], self.others[other]])


def records_file(exposure: Exposure, groups: Groups | None) -> str:
    """Return the records as CSV, in the order of their files."""
    columns = exposure.columns()
    if groups is not None:
        columns = {"file": columns.pop("file"), "row": columns.pop("row"), "group": groups.of(exposure), **columns}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    return text.getvalue()


def exposure_content(exposure: Exposure, groups: Groups | None) -> dict[str, Any]:
    """Return the same as the tables, for JSON."""
    members, others = exposure.shares(_RATE)
    content: dict[str, Any] = {
        "fpr": _RATE,
        "members_within": members,
        "non_members_within": others,
        "beyond_claim": int(exposure.beyond_claim.sum()),
        "most_exposed": [
            {name: column[place] for name, column in exposure.columns().items()} for place in _first(exposure)
        ],
    }
    if groups is not None:
        content["groups"] = {"column": groups.column, "values": [_counts(*each) for each in _parts(exposure, groups)]}
    return {"records": content}


def exposure_tables(exposure: Exposure, groups: Groups | None) -> tuple[ReportTable, ...]:
    """Return the most exposed records, and a line for each group."""
    columns, claimed = exposure.columns(), exposure.allowed is not None
    members, others = exposure.shares(_RATE)
    note = (
        f"FPR: {exposure.null}; by rank alone no smaller one can be seen. Of all: after Holm's correction for the "
        f"{len(exposure.member)} records that these were picked from. Of the members {members:.1%} "
        f"have an FPR of their own of at most {_RATE:.0%}, and of the others {others:.1%}."
    )
    if claimed:
        beyond = int(exposure.beyond_claim.sum())
        note += (
            f" TPR <=: of a record at this FPR, by the claim; {beyond or 'no'} member{'s' * (beyond != 1)} beyond it, "
            "corrected alike."
        )
    tables = [
        ReportTable.from_rows(
            "the most exposed records",
            ("file", "row", "FPR", "by rank", "of all", *(("TPR <=",) if claimed else ())),
            [
                (
                    *(str(columns[name][place]) for name in ("file", "row")),
                    *(number(columns[name][place], 2) for name in ("fpr", "fpr_by_rank", "fpr_corrected")),
                    *((number(columns["tpr_allowed"][place], 2),) if claimed else ()),
                )
                for place in _first(exposure)
            ],
            note,
        )
    ]
    if groups is not None:
        counts = sorted((_counts(*each) for each in _parts(exposure, groups)), key=lambda each: each["fpr_corrected"])
        shown = counts[:_MOST_GROUPS]
        tables.append(
            ReportTable.from_rows(
                f"by {groups.column}" + (f", the first {len(shown)} of {len(counts)}" if shown != counts else ""),
                (
                    groups.column,
                    "members",
                    f"FPR <= {_RATE:.0%}",
                    "non-members",
                    f"FPR <= {_RATE:.0%}",
                    "least, of all",
                ),
                [
                    (
                        *(str(each[name]) for name in ("value", "members", "members_within")),
                        *(str(each[name]) for name in ("non_members", "non_members_within")),
                        number(each["fpr_corrected"], 2),
                    )
                    for each in shown
                ],
            )
        )
    return tuple(tables)


def _first(exposure: Exposure) -> Sequence[int]:
    order: list[int] = np.argsort(exposure.own.rates, kind="stable")[:_MOST_EXPOSED].tolist()
    return order


def _parts(exposure: Exposure, groups: Groups) -> list[tuple[str, Exposure, Mask]]:
    values = groups.of(exposure)
    return [(str(value), exposure, values == value) for value in np.unique(values)]


def _counts(value: str, exposure: Exposure, inside: Mask) -> dict[str, Any]:
    exposed = exposure.own.rates <= _RATE
    member = exposure.member
    return {
        "value": value,
        "members": int((inside & member).sum()),
        "members_within": int((inside & member & exposed).sum()),
        "non_members": int((inside & ~member).sum()),
        "non_members_within": int((inside & ~member & exposed).sum()),
        "fpr_corrected": float(exposure.corrected[inside].min()),
    }
