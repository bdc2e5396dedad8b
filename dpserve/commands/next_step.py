"""What to do with a bundle that was just written, true of the ledger as it is: a lineage's budget is named once.

And never a silent invitation to a second budget for the same records: where other lineages are, they are named.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import typer

from accounting.ledger import Ledger, LedgerError, UnknownLineage
from dpserve.commands import options
from service.errors import CannotServe
from training.certificate import Certificate
from training.releases.certificate import ReleaseCertificate
from training.teachers.certificate import TeachersCertificate

Written = Certificate | ReleaseCertificate | TeachersCertificate


def second_budget(lineage: str, known: Mapping[str, int], records: int) -> str | None:
    """Return the warning that records of this lineage are in others. known: how many, by lineage."""
    elsewhere = {other: count for other, count in known.items() if other != lineage}
    if not elsewhere:
        return None
    counted = " and ".join(f"{count:,} are in the lineage {other!r}" for other, count in elsewhere.items())
    return (
        f"WARNING: A SECOND BUDGET FOR THE SAME RECORDS. Of the {records:,} records of the lineage {lineage!r}, "
        f"{counted} as well. Each lineage has a budget of its own, and whoever asks models of both learns what both "
        f"allow together. To keep one budget, train with --lineage {next(iter(elsewhere))}."
    )


def next_step(
    out: Path, certificate: Written, opening: str, price: str | None = None, warning: str | None = None
) -> str:
    """Return the command that serves a bundle, with a budget only where the lineage has none yet.

    opening: the options that open the lineage. price: those that price an answer. warning: what `second_budget` says.
    Where the lineage's budget is there and cannot pay for a release, say so instead: whether it may learn more is the
    owner's to decide. So is whether the same records get a second budget.
    """
    serve = " ".join(filter(None, ("dpserve serve", str(out), price)))
    try:
        has_budget, others = asyncio.run(_budgets(certificate))
    except CannotServe as refusal:
        return f"Its records' lineage has a budget already, which does not pay for this one. {_capital(str(refusal))}"
    except (LedgerError, OSError, ValueError, typer.BadParameter) as error:
        return (
            f"Next: {serve} {opening}\nThe ledger could not be asked whether the lineage has a budget already; if it "
            f"has, leave {opening} out. ({error})"
        )
    if has_budget:
        return f"Next: {serve}"
    if warning:
        return f"{warning}\nOnly if these records shall have a second budget: {serve} {opening}"
    if others:
        return (
            f"Next: {serve} {opening}\nThis opens a budget for {certificate.lineage!r} beside those of "
            f"{', '.join(map(repr, others))}. If any record is also in one of them, train with --lineage and its name "
            "instead."
        )
    return f"Next: {serve} {opening}"


async def _budgets(certificate: Written) -> tuple[bool, list[str]]:
    """Return whether the lineage has an account, and which others have one.

    Raises CannotServe where the lineage's cannot pay for a release.
    """
    location = options.ledger_location(os.environ.get("DPSERVE_LEDGER"))
    if "://" not in location and not Path(location).exists():
        return False, []  # and looking makes none
    async with Ledger.open(location) as ledger:
        others = [each.lineage for each in await ledger.lineages() if each.lineage != certificate.lineage]
        try:
            await ledger.lineage(certificate.lineage)
        except UnknownLineage:
            return False, others
        if isinstance(certificate, ReleaseCertificate):
            # Who trains without a ledger should not wait for what serves.
            from service.opening import check_release

            await check_release(ledger, certificate)
    return True, others


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
