"""What to do with a bundle that was just written, true of the ledger as it is: a lineage's budget is named once."""

import asyncio
import os
from pathlib import Path

import typer

from accounting.ledger import Ledger, LedgerError, UnknownLineage
from dpserve.commands import options
from service.errors import CannotServe
from training.certificate import Certificate
from training.releases.certificate import ReleaseCertificate
from training.teachers.certificate import TeachersCertificate

Written = Certificate | ReleaseCertificate | TeachersCertificate


def next_step(out: Path, certificate: Written, opening: str, price: str | None = None) -> str:
    """Return the command that serves a bundle, with a budget only where the lineage has none yet.

    opening: the options that open the lineage. price: those that price an answer. Where the lineage's budget is
    there and cannot pay for a release, say so instead: whether it may learn more is the owner's to decide.
    """
    serve = " ".join(filter(None, ("dpserve serve", str(out), price)))
    try:
        has_budget = asyncio.run(_has_budget(certificate))
    except CannotServe as refusal:
        return f"Its records' lineage has a budget already, which does not pay for this one. {_capital(str(refusal))}"
    except (LedgerError, OSError, ValueError, typer.BadParameter) as error:
        return (
            f"Next: {serve} {opening}\nThe ledger could not be asked whether the lineage has a budget already; if it "
            f"has, leave {opening} out. ({error})"
        )
    return f"Next: {serve}" if has_budget else f"Next: {serve} {opening}"


async def _has_budget(certificate: Written) -> bool:
    """Return whether the lineage has an account. Raises CannotServe where it cannot pay for a release."""
    location = options.ledger_location(os.environ.get("DPSERVE_LEDGER"))
    if "://" not in location and not Path(location).exists():
        return False  # and looking makes none
    async with Ledger.open(location) as ledger:
        try:
            await ledger.lineage(certificate.lineage)
        except UnknownLineage:
            return False
        if isinstance(certificate, ReleaseCertificate):
            # Who trains without a ledger should not wait for what serves.
            from service.opening import check_release

            await check_release(ledger, certificate)
    return True


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
