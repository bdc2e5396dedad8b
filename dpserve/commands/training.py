"""`dpserve train` and `dpserve train-published`, and what they say comes next."""

import asyncio
import shlex
import warnings
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from dpserve.accounting.budgets import READ_AT
from dpserve.accounting.ledger import LedgerError, NotPaidFor, OtherUnit, UnknownLineage
from dpserve.accounting.ledger.purchases import check_purchases
from dpserve.accounting.messages import spelled
from dpserve.accounting.picorho import to_rho
from dpserve.commands.certificates import print_certificate
from dpserve.commands.command import Group
from dpserve.commands.console import stdout_console
from dpserve.commands.options import ledger_location, open_ledger, state_folder
from dpserve.commands.tables import LOCAL
from dpserve.prices import flags_of_budget
from dpserve.train_options import NewBundle, PlannerOptions, TrainOptions, TrainPrice, options_of_train
from dpserve.trainer import Screen, run_training
from dpserve.training.bundles.certificate import ProvenCertificate
from dpserve.training.errors import WrongOption
from dpserve.training.feature_choice import Features
from dpserve.training.fit import UNNAMED, Request, check_abilities, check_needs, fit
from dpserve.training.kinds.kind import Kind
from dpserve.training.kinds.registry import all_kinds, release_certificate, trainable_kinds
from dpserve.training.options import Options
from dpserve.training.purchases import model_purchase
from dpserve.wording import as_flag


def _train(
    given: TrainOptions,
    features: Features,
    kind: Options,
    price: TrainPrice | None = None,
) -> None:
    fitted = run_training(given, features, kind, price)
    written = fitted.certificate
    warning = None if fitted.warning is None else spelled(fitted.warning, as_flag)
    per_answer, opening = None, "--epsilon 3 --delta 1e-6"
    if price is not None and (release := release_certificate(written)) is not None:
        opening = _opening(price, release.price.picorho)
    elif price is not None and price.whole is not None and isinstance(kind, PlannerOptions) and kind.queries:
        per_answer, opening = f"--price rho:{to_rho(price.whole // kind.queries)!r}", _opening(price, price.whole)
    print_certificate(stdout_console(), written, READ_AT if price is None else price.read_at)
    typer.echo(f"Wrote the bundle {given.out}. {next_step(given.out, written, opening, per_answer, warning)}")


def _opening(price: TrainPrice, total: int) -> str:
    """Return the options that open a lineage with just what is to be paid. total: in picorho."""
    if price.epsilon is not None and price.delta is not None:
        return flags_of_budget(price.epsilon, price.delta)
    return f"--rho {to_rho(total)!r} --delta 1e-5"


class _Kinds(TyperGroup):
    """The kinds of models, of which the planner chooses one where none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the name of a kind, which may stand anywhere among the options, or else the planner's."""
        if args and args != ["--help"]:
            place = self._place_of_kind(args)
            kind = AUTO if place is None else args[place]
            if kind not in self.commands:
                close = get_close_matches(kind.lower(), self.commands, 1)
                question = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(self.commands)}."
                ctx.fail(f"No kind of model is called {kind!r}. {question}")
            others = [word for index, word in enumerate(args) if index != place]
            self._check_taken(ctx, kind, others)
            args = [kind, *others]
        return super().parse_args(ctx, args)

    def _place_of_kind(self, args: list[str]) -> int | None:
        """Return where the first word is that is neither an option nor an option's value; None where there is none."""
        takes_value = {
            flag: not getattr(parameter, "is_flag", False)
            for command in self.commands.values()
            for parameter in command.params
            for flag in parameter.opts
        }
        is_value = False
        for place, word in enumerate(args):
            if is_value:
                is_value = False
            elif not word.startswith("-"):
                return place
            elif "=" not in word:
                if word not in takes_value:
                    return None  # which is refused as no option
                is_value = takes_value[word]
        return None

    def _check_taken(self, ctx: Any, kind: str, args: list[str]) -> None:
        """Refuse an option that other kinds take, naming them."""
        flags = {
            name: {flag for parameter in command.params for flag in parameter.opts}
            for name, command in self.commands.items()
        }
        for word in (argument.partition("=")[0] for argument in args):
            takers = [name for name in flags if word in flags[name]]
            if takers and kind not in takers:
                ctx.fail(f"{word} goes with {' or '.join(f'{ctx.command_path} {name}' for name in takers)}, not {kind}")

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Write that the kind may be left out."""
        formatter.write_usage(ctx.command_path, "[KIND] OPTIONS")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options that people need first, the kinds, and the names of the other options."""
        shown: dict[str, list[str]] = {}
        first = []
        parameters: list[Any] = self.commands[AUTO].params
        for parameter in parameters:
            if (record := parameter.get_help_record(ctx)) is not None:
                if parameter.name in _FIRST:
                    first.append((_FIRST.index(parameter.name), record))
                elif parameter.name != "help":
                    shown.setdefault(parameter.rich_help_panel or "The price", []).append(parameter.opts[-1])
        with formatter.section("What a training needs"):
            formatter.write_dl([record for _, record in sorted(first)])
        with formatter.section("Kinds of models"):
            formatter.write_dl([(name, command.short_help or "") for name, command in self.commands.items()])
        with formatter.section("Other options, which 'dpserve train KIND --help' describes"):
            formatter.write_dl([(title, ", ".join(names)) for title, names in shown.items()])


AUTO = "auto"
_FIRST = ("data", "schema_file", "epsilon", "delta", "n", "lineage", "out")

train = Group(
    "Train a model on private records and write a bundle: the weights and what is proved about them.",
    cls=_Kinds,
    no_args_is_help=True,
)


@train.command(AUTO, short_help="what suits the records, by public rules or on public rows; paid for once")
def _auto(given: TrainOptions, price: TrainPrice, planner: PlannerOptions, features: Features) -> None:
    """Train the kind of model that the planner chooses by public numbers, or on public rows.

    It is a pay-once model: private itself and with unlimited answers. With --queries it may be a head.
    """
    _train(given, features, planner, price)


def _add(kind: Kind) -> None:
    """Add the command that trains a kind, unless an option of it is one of train's own."""
    options_of_kind: Any = kind.options
    if both := sorted(options_of_train() & set(options_of_kind.model_fields)):
        said = f"the kind of model {kind.name!r} of another package is left out of 'train', which has its own"
        warnings.warn(f"{said} {', '.join(map(as_flag, both))}", stacklevel=2)
        return

    def paid_once(given: TrainOptions, price: TrainPrice, features: Features, own: options_of_kind) -> None:
        _train(given, features, own, price)

    def metered(given: TrainOptions, features: Features, own: options_of_kind) -> None:
        _train(given, features, own)

    command = paid_once if kind.answers == "once" else metered
    command.__doc__ = f"Train {kind.sentence}.\n\n{_PAID[kind.answers]}"
    train.command(kind.name, short_help=f"{kind.sentence}; {_SHORT[kind.answers]}")(command)


_PAID = {
    "once": "It is a pay-once model: private itself and with unlimited answers.",
    "metered": "Each answer gets noise of its own and is paid for when a service gives it.",
}
_SHORT = {"once": "paid for once", "metered": "each answer is paid for"}
for _kind in trainable_kinds().values():
    _add(_kind)


_OWN = next(kind for kind in all_kinds().values() if kind.command == "train-published")
"""The kind that has a command of its own."""


def train_published(new: NewBundle, network: _OWN.options) -> None:  # type: ignore[name-defined]
    """Train a deep network as Lu et al. 2022 do. UNPROVEN: no mechanism with a proof can serve it."""
    request = Request(
        name=new.model_name,
        lineage=new.lineage_name or UNNAMED,
        kind=network,
        overlapping_lineage_is_accepted=new.overlapping_lineage_is_accepted,
    )
    check_abilities(request, unit=new.unit, on_ray=new.engine != LOCAL)
    records = new.read_all(lambda: check_needs(request))
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
    serve = " ".join(filter(None, ("dpserve serve", shlex.quote(str(out)), price)))
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
        others = [account.lineage for account in await ledger.lineages() if account.lineage != certificate.lineage]
        try:
            await ledger.lineage(certificate.lineage)
        except UnknownLineage:
            return False, others
        await check_purchases(ledger, [model_purchase(certificate)])
    return True, others


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
