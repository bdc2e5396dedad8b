"""`dpserve train` and `dpserve train-published`, and what they say comes next."""

import asyncio
from pathlib import Path

import typer

from accounting.ledger import LedgerError, UnknownLineage
from accounting.picorho import to_rho
from dpserve.commands.bundles import print_certificate
from dpserve.commands.command import Options, option
from dpserve.commands.console import stdout_console
from dpserve.commands.options import ledger_location, open_ledger, state_folder
from dpserve.commands.tables import LOCAL
from dpserve.train_options import NewBundle, TrainOptions
from dpserve.trainer import Screen
from dpserve.trainer import train as train_model
from dpserve.wording import as_flag
from mechanisms.gaussian_vector import whole_picorho
from service.errors import CannotServe
from training.bundles.certificate import ProvenCertificate
from training.errors import WrongOption, extra
from training.fit import noted_in_lineage
from training.kinds.published.bundle import save_published
from training.kinds.registry import release_certificate


def train(given: TrainOptions) -> None:
    """Train a model on private records and write a bundle: the weights and what is proved about them.

    Without --release each answer gets noise of its own and is paid for. With it the model is private itself: a
    pay-once model, with unlimited answers. The title of a section says which kinds of models take its options.
    """
    fitted = train_model(given)
    written = fitted.certificate
    warning = None if fitted.warning is None else fitted.warning.worded(as_flag)
    per_answer, opening = None, "--epsilon 3 --delta 1e-6"
    if (release := release_certificate(written)) is not None:
        options = given.of_kinds()
        price = (options.get("tier") or [options.get("price") or given.budget or ""])[-1]
        opening = _opening(price, sum(tier.cost.picorho for tier in release.tiers))
    elif given.budget and given.queries:
        whole = whole_picorho(given.budget)
        per_answer, opening = f"--price rho:{to_rho(whole // given.queries)!r}", _opening(given.budget, whole)
    print_certificate(stdout_console(), written)
    typer.echo(f"Wrote the bundle {given.out}. {next_step(given.out, written, opening, per_answer, warning)}")


def _opening(price: str, total: int) -> str:
    """Return the options that open a lineage with just what is to be paid. total: in picorho."""
    word, _, rest = price.partition("=")[-1 if "=" in price else 0].partition(":")
    amount, at, delta = rest.partition("@")
    if word == "epsilon" and at:
        return f"--epsilon {amount} --delta {delta}"
    return f"--rho {to_rho(total)!r} --delta 1e-5"


class PublishedOptions(Options):
    """Options for training a network as Lu et al. 2022 do."""

    hidden: list[int] | None = option(None, "A hidden layer's width; repeatable.", default_text="128")
    alpha: float = option(1.0, "The strength of the convexified loss.")
    epochs: int = option(100, "Passes over the records.", ge=1)
    seed: int = option(0, "Of the first weights and the order of the records.", ge=0)
    device: str = option("cpu", "Where PyTorch trains: cpu or cuda; auto for cuda where there is one.")


def train_published(new: NewBundle, network: PublishedOptions) -> None:
    """Train a deep network as Lu et al. 2022 do. UNPROVEN: no mechanism with a proof can serve it."""
    for name, given in (("unit", new.unit is not None), ("engine", new.engine != LOCAL)):
        if given:
            raise WrongOption(name, "does not go with a network as Lu et al. train it")
    with extra("torch", "training networks"):
        from training.kinds.published.train import train_published as train_network

    lineage, records = new.read_all()
    if records.declaration.columns:
        raise WrongOption("schema", "does not go with a network as Lu et al. train it: its input is numbers")
    made = network.model_dump() | {"hidden": tuple(network.hidden or [128])}
    with noted_in_lineage(
        records, lineage, state_folder(), accepted=new.overlapping_lineage_is_accepted, watcher=Screen()
    ):
        certificate = save_published(new.out, train_network(records, new.model_name, lineage, **made))
    lines = (f"Wrote the bundle {new.out}: {certificate.status}.", *certificate.objections)
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
    try:
        has_budget, others = asyncio.run(_budgets(certificate))
    except CannotServe as refusal:
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
            f"{', '.join(map(repr, others))}. If any record is also in one of them, train with --lineage and its name "
            "instead."
        )
    return f"Next: {serve} {opening}"


async def _budgets(certificate: ProvenCertificate) -> tuple[bool, list[str]]:
    """Return whether the lineage has an account, and which others have one.

    Raises CannotServe where the lineage's cannot pay for a release.
    """
    location = ledger_location(None)
    if "://" not in location and not Path(location).exists():
        return False, []  # and looking makes none
    async with open_ledger(location, None) as ledger:
        others = [each.lineage for each in await ledger.lineages() if each.lineage != certificate.lineage]
        try:
            account = await ledger.lineage(certificate.lineage)
        except UnknownLineage:
            return False, others
        # Who trains without a ledger should not wait for what serves.
        from service.opening import check_release, check_unit

        check_unit(account, certificate.unit)
        if (release := release_certificate(certificate)) is not None:
            await check_release(ledger, release)
    return True, others


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
