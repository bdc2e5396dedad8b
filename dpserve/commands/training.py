"""`dpserve train` and `dpserve train-published`, and what they say comes next."""

import asyncio
from pathlib import Path
from typing import Any

import typer
from pydantic import create_model

from dpserve.accounting.ledger import LedgerError, NotPaidFor, OtherUnit, UnknownLineage
from dpserve.accounting.ledger.purchases import check_purchases
from dpserve.accounting.messages import spelled
from dpserve.accounting.picorho import to_rho
from dpserve.commands.bundles import print_certificate
from dpserve.commands.command import Options
from dpserve.commands.console import stdout_console
from dpserve.commands.options import ledger_location, open_ledger, refuse_forgotten, state_folder
from dpserve.commands.tables import LOCAL
from dpserve.mechanisms.gaussian_vector import whole_picorho
from dpserve.train_options import NewBundle, TrainOptions, declared_option, default_in_words
from dpserve.trainer import Screen, run_training
from dpserve.training.bundles.certificate import ProvenCertificate
from dpserve.training.errors import WrongOption
from dpserve.training.fit import Request, check_options, check_together, fit
from dpserve.training.inputs.lineage import DIGITS
from dpserve.training.kinds.registry import all_kinds, release_certificate
from dpserve.training.purchases import model_purchase
from dpserve.wording import as_flag


def train(given: TrainOptions) -> None:
    """Train a model on private records and write a bundle: the weights and what is proved about them.

    Without --release each answer gets noise of its own and is paid for. With it the model is private itself: a
    pay-once model, with unlimited answers. The title of a section says which kinds of models take its options.
    """
    fitted = run_training(given)
    written = fitted.certificate
    warning = None if fitted.warning is None else spelled(fitted.warning, as_flag)
    per_answer, opening = None, "--epsilon 3 --delta 1e-6"
    if (release := release_certificate(written)) is not None:
        options = given.of_kinds()
        opening = _opening(options.get("price") or given.budget or "", release.price.picorho)
    elif given.budget and given.queries:
        whole = whole_picorho(given.budget)
        per_answer, opening = f"--price rho:{to_rho(whole // int(given.queries))!r}", _opening(given.budget, whole)
    print_certificate(stdout_console(), written)
    typer.echo(f"Wrote the bundle {given.out}. {next_step(given.out, written, opening, per_answer, warning)}")


def _opening(price: str, total: int) -> str:
    """Return the options that open a lineage with just what is to be paid. total: in picorho."""
    word, _, rest = price.partition(":")
    amount, at, delta = rest.partition("@")
    if word == "epsilon" and at:
        return f"--epsilon {amount} --delta {delta}"
    return f"--rho {to_rho(total)!r} --delta 1e-5"


_OWN = next(kind for kind in all_kinds().values() if kind.asked_by == "train-published")
"""The kind that this command trains."""
_own_options: dict[str, Any] = {
    name: declared_option(field, default_text=default_in_words(field)) for name, field in _OWN.fields.items()
}
_OfOwnKind = create_model("_OfOwnKind", __base__=Options, **_own_options)


class OwnOptions(_OfOwnKind):
    """The options of a kind with a command of its own."""


def train_published(new: NewBundle, network: OwnOptions) -> None:
    """Train a deep network as Lu et al. 2022 do. UNPROVEN: no mechanism with a proof can serve it."""
    given = {name: value for name, value in network.model_dump().items() if value not in (None, [])}
    request = Request(
        name=new.model_name,
        lineage=new.lineage or DIGITS,
        kind=_OWN.name,
        options=given,
        overlapping_lineage_is_accepted=new.overlapping_lineage_is_accepted,
    )
    check_together(request, unit=new.unit, on_ray=new.engine != LOCAL)
    refuse_forgotten(request.lineage)
    _, records = new.read_all(lambda: check_options(request))
    certificate = fit(records, request, new.out, state=state_folder(), watcher=Screen()).certificate
    lines = (f"Wrote the bundle {new.out}: {certificate.status}.", *getattr(certificate, "objections", ()))
    stdout_console().print("\n - ".join(lines), highlight=False)


def next_step(
    out: Path, certificate: ProvenCertificate, opening: str, price: str | None = None, warning: str | None = None
) -> str:
    """Return the command that serves a bundle, with a budget only where the lineage has none yet.

    opening: the options that open the lineage. price: those that price an answer. warning: of a second budget.
    Where the lineage's budget is there and cannot pay for a release, say so instead: whether it may learn more is the
    owner's to decide. So is whether the same records get a second budget.
    """
    serve = " ".join(filter(None, ("dpserve serve", str(out), price)))
    if certificate.blocks:  # which bring their budgets
        return f"Next: {serve}"
    try:
        has_budget, others = asyncio.run(_budgets(certificate))
    except (NotPaidFor, OtherUnit) as refusal:
        return f"The lineage's budget does not pay for this model. {_capital(str(refusal))}"
    except (LedgerError, OSError, ValueError, WrongOption) as error:
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
            f"Next: {serve} {opening}\nThis opens a budget for {certificate.lineage!r} in addition to those of "
            f"{_few(others)}. If any record is also in one of them, train with --lineage and its name "
            "instead."
        )
    return f"Next: {serve} {opening}"


_NAMED = 3
"""Lineages that are named; after a year of months nobody reads the others."""


def _few(names: list[str]) -> str:
    """Return the names in words, or the first of them and how many more there are."""
    if len(names) <= _NAMED + 1:
        return ", ".join(map(repr, names))
    return f"{', '.join(map(repr, names[:_NAMED]))} and {len(names) - _NAMED} more"


async def _budgets(certificate: ProvenCertificate) -> tuple[bool, list[str]]:
    """Return whether the lineage has an account, and which others have one.

    Raises NotPaidFor where the lineage's cannot pay for a release, and OtherUnit.
    """
    location = ledger_location(None)
    if "://" not in location and not Path(location).exists():
        return False, []  # and looking makes none
    async with open_ledger(location, None) as ledger:
        others = [each.lineage for each in await ledger.lineages() if each.lineage != certificate.lineage]
        try:
            await ledger.lineage(certificate.lineage)
        except UnknownLineage:
            return False, others
        await check_purchases(ledger, [model_purchase(certificate)])
    return True, others


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
