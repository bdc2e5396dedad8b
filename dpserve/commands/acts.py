"""The owner's acts as commands: one of each that `dpserve.accounting.acts` declares, for each kind of account it is
about.

An act's required fields are a command's arguments, and its others options, under the fields' names; the help is the
acts' own sentences. What is of the command line alone is here: a time is written 90d, a bundle may stand for its
lineage, a budget has the flags that it has everywhere, and a raise is asked about first.
"""

import inspect
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from dpserve.accounting.acts import (
    ACTS,
    BudgetTerms,
    Lasting,
    Names,
    OwnerAct,
    SetBlockBudget,
    SetBudget,
    keys_elsewhere,
    lacking,
)
from dpserve.accounting.budgets import Scope
from dpserve.accounting.faults_in_words import in_words
from dpserve.accounting.ledger import ActRefused, Acts, Ledger, TooFewDisks, UnknownClient, UnknownGroup, UnknownLineage
from dpserve.commands.command import Group
from dpserve.commands.errors import CommandError
from dpserve.commands.options import (
    ActBudget,
    ActsOnLedger,
    ChargedLedger,
    LedgerOption,
    client_names,
    lineage_names,
    state_folder,
)
from dpserve.kept_fits import KeptFits
from dpserve.training.bundles.sealing import CERTIFICATE_FILE
from dpserve.training.inputs.lineage import RecordRegistry
from dpserve.training.kinds.loading import load_model
from dpserve.training.options import option

clients = Group("Give clients keys and budgets: who may ask, and for how much.")
groups = Group("Limit what the clients of one team may learn together.")
lineages = Group("Limit what all clients of one set of records may learn together.")

_Result = TypeVar("_Result")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = "90d, 12h, 30m or 45s"
_FLAGS = {"display": "--display-name"}
"""Options that are not called after their fields."""
_COMPLETE = {"client": client_names, "lineage": lineage_names}
_GROUPS: Mapping[Scope, Group] = {"client": clients, "group": groups, "lineage": lineages}
_BY_LINEAGE = "here_alone"
"""The field of acts on keys that is true where --lineage is given."""
_YES = option(False, "Do not ask before raising a budget.")
_Mark = TypeVar("_Mark", Names, Lasting)


@dataclass(frozen=True)
class Sought:
    """An account whose lineage is not named: a client's or a group's. by_keys: whether the act is on a client's keys.

    A client who comes in by the same keys in several lineages is one: an act on its keys is done in all of them.
    """

    scope: Scope
    name: str
    by_keys: bool = False

    async def is_in(self, ledger: Ledger, lineage: str) -> bool:
        """Return whether the lineage has it."""
        try:
            await (ledger.group if self.scope == "group" else ledger.client)(lineage, self.name)
        except (UnknownClient, UnknownGroup):
            return False
        return True

    async def is_one(self, ledger: Ledger, lineages: Sequence[str]) -> bool:
        """Return whether an act on it in the first of these lineages is one in all of them."""
        return self.by_keys and {*await keys_elsewhere(ledger, lineages[0], self.name)} >= {*lineages[1:]}


class LineageOption(LedgerOption):
    """A lineage of a ledger."""

    lineage: str | None = option(
        None, "The lineage, or a bundle of it; needed where several would do.", complete=lineage_names
    )

    def run_on(self, act: Callable[[Ledger, str], Awaitable[_Result]], account: Sought | None = None) -> _Result:
        """Open the ledger, act on it and the lineage, and return the result.

        account: of that lineage, which tells it where none is named.
        """

        async def chosen(ledger: Ledger) -> _Result:
            return await act(ledger, await chosen_lineage(ledger, self.lineage, account))

        return self.run(chosen)


class ActOnLineage(LineageOption, ActsOnLedger):
    """A lineage of a ledger that a command changes."""


def lineage_named(given: str) -> str:
    """Return the lineage that a bundle was trained in, or the name itself."""
    return load_model(Path(given)).certificate.lineage if (Path(given) / CERTIFICATE_FILE).exists() else given


async def chosen_lineage(ledger: Ledger, given: str | None, account: Sought | None = None) -> str:
    """Return the lineage given by name or bundle, or else the only one that the ledger has, or that has the account."""
    if given is not None:
        return lineage_named(given)
    names = [account.lineage for account in await ledger.lineages()]
    if not names:
        raise CommandError(
            "the ledger has no lineage yet: open one with 'dpserve lineage set-budget BUNDLE --epsilon E --delta D'"
        )
    if len(names) == 1:
        return names[0]
    if account is not None and (places := [name for name in names if await account.is_in(ledger, name)]):
        if len(places) == 1 or await account.is_one(ledger, places):
            typer.echo(f"in the lineage {places[0]}:", err=True)
            return places[0]
        names = places
    raise CommandError(f"there are several lineages; name one with --lineage: {', '.join(names)}")


def seconds_in(text: str, flag: str) -> int:
    """Return the seconds of a duration, as 90d, 12h, 30m or 45s. Raises BadParameter, naming the flag."""
    matched = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if matched is None:
        raise typer.BadParameter(f"{text!r} is no duration: say {_DURATION}", param_hint=flag)
    return int(matched[1]) * _UNITS[matched[2]]


def _mark(field: FieldInfo, kind: type[_Mark]) -> _Mark | None:
    return next((each for each in field.metadata if isinstance(each, kind)), None)


def _flag(name: str, field: FieldInfo) -> str:
    lasting = _mark(field, Lasting)
    if lasting is not None:
        name = name.removesuffix(lasting.suffix)
    if _is_list(field):
        name = name.removesuffix("s")  # one of them is given at a time
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def _is_list(field: FieldInfo) -> bool:
    return "list[" in str(field.annotation)


def _parameter(name: str, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _parameters(act: type[OwnerAct], subject: Scope) -> Iterator[inspect.Parameter]:
    """Yield the parameters of an act's command, as a command declares them. subject: whose account it is about."""
    own = {name: field for name, field in act.model_fields.items() if name not in BudgetTerms.model_fields}
    own.pop(_BY_LINEAGE, None)
    yield _argument("name", str, own.pop(subject), subject)
    for other in set(act.about) - {subject}:
        own.pop(other, None)
    required = [name for name, field in own.items() if field.is_required()]
    for name in required:
        yield _argument(name, own[name].annotation, own.pop(name))
    if issubclass(act, BudgetTerms):
        yield _parameter("given", ActBudget)
    yield _parameter("lineage", ActOnLineage)
    for name, field in own.items():
        help_text, kind, default, shown = str(field.description), field.annotation, field.get_default(), None
        if _mark(field, Lasting) is not None:
            help_text, kind, default = f"{help_text} As {_DURATION}.", str | None, None
        elif _is_list(field):
            help_text, kind = f"{help_text} Repeatable.", list[str] | None
            shown = "|".join(_words_in(field.annotation))
        names = _mark(field, Names)
        complete = _COMPLETE.get(names.scope) if names is not None else None
        if names is not None and names.scope == "lineage":
            help_text = f"{help_text} A bundle stands for its lineage."
        yield _parameter(name, kind, option(default, help_text, _flag(name, field), complete=complete, metavar=shown))
    if act is SetBudget:
        yield _parameter("yes", bool, _YES)


def _words_in(kind: Any) -> list[str]:
    """Return the texts that a type admits."""
    return [kind] if isinstance(kind, str) else [word for each in get_args(kind) for word in _words_in(each)]


def _argument(name: str, kind: Any, field: FieldInfo, subject: Scope | None = None) -> inspect.Parameter:
    complete = _COMPLETE.get(subject) if subject is not None else None
    return _parameter(name, kind, option(..., str(field.description), argument=True, complete=complete))


def command_of(act: type[OwnerAct], subject: Scope) -> Callable[..., None]:
    """Return the function of an act's command, as `with_options` takes it."""

    def run(
        *, name: str, lineage: ActOnLineage, given: ActBudget | None = None, yes: bool = True, **fields: Any
    ) -> None:
        terms = {} if given is None else given.terms.model_dump(exclude_none=True)
        by_keys = _BY_LINEAGE in act.model_fields
        if by_keys:
            terms[_BY_LINEAGE] = lineage.lineage is not None
        made = _made(
            act, {subject: name} | terms | {each: value for each, value in fields.items() if value is not None}
        )

        async def apply(ledger: Ledger, chosen: str) -> None:
            await _do(made, lineage.acting(ledger), chosen, yes=yes)

        lineage.run_on(apply, None if act.opens else Sought(subject, name, by_keys))

    run.__name__, run.__doc__ = act.name.replace("-", "_"), act.__doc__
    run.__signature__ = inspect.Signature(list(_parameters(act, subject)))  # type: ignore[attr-defined]
    return run


def _made(act: type[OwnerAct], given: Mapping[str, Any]) -> OwnerAct:
    """Return an act with these values, of which times are durations. Raises BadParameter for one out of range."""
    values = dict(given)
    for name, value in given.items():
        field = act.model_fields[name]
        lasting, names = _mark(field, Lasting), _mark(field, Names)
        if lasting is not None:
            seconds = seconds_in(value, _flag(name, field))
            values[name] = seconds if lasting.unit == 1 else seconds / lasting.unit
        elif names is not None and names.scope == "lineage":
            values[name] = lineage_named(value)
    try:
        return act(**values)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        wrong = str(first["loc"][0]) if first["loc"] else ""
        refused = act.model_fields.get(wrong)
        is_argument = refused is not None and (refused.is_required() or wrong in act.about)
        hint = None if refused is None else wrong if is_argument else _flag(wrong, refused)
        raise typer.BadParameter(in_words(first), param_hint=hint) from None


async def _do(act: OwnerAct, acts: Acts, lineage: str, *, yes: bool) -> None:
    """Do an act, once the owner agrees to a raise, and say so; a new key goes to stdout alone.

    Raises CommandError once it is done where a replica lacks it.
    """
    plan = await act.plan(acts, lineage)
    if plan.warning:
        typer.echo(f"Warning: {plan.warning}", err=True)
    if plan.question and not yes and not typer.confirm(plan.question):
        typer.echo("nothing was changed")
        return
    lacking = await plan.carry_out(acts)
    if plan.secret is None:
        typer.echo(plan.done)
    else:
        typer.echo(f"{plan.done}, shown this once:", err=True)
        typer.echo(plan.secret)
    if lacking:
        raise CommandError(lacking)


@lineages.command("set-budget")
def set_lineage_budget(
    *,
    lineage: str = option(..., "The lineage's name, or a bundle of it.", argument=True, complete=lineage_names),
    given: ActBudget,
    block: str | None = option(None, "The block whose budget it is, of a lineage that has blocks."),
    ledger: ActsOnLedger,
    yes: bool = _YES,
) -> None:
    """Open a lineage's account, or change its budget, or a block's. What is spent stays spent."""
    name, terms = lineage_named(lineage), given.terms.model_dump(exclude_none=True)

    async def apply(opened: Ledger) -> None:
        owner = ledger.acting(opened)
        if block is not None:
            await _do(_made(SetBlockBudget, terms | {"block": block}), owner, name, yes=yes)
            return
        try:
            await _do(_made(SetBudget, terms), owner, name, yes=yes)
        except UnknownLineage:
            if not (Path(lineage) / CERTIFICATE_FILE).exists():
                raise CommandError(
                    f"the ledger has no lineage {name!r}, and there is no bundle of that name to open one for"
                ) from None
            with owner.done_at_primary() as short:
                await owner.open_lineage(name, given.terms.budget("gaussian"), time=time.time())
            typer.echo(f"opened the lineage {name}")
            if short:
                raise CommandError(lacking(short)) from None

    ledger.run(apply)


@lineages.command("forget")
def forget_lineage(
    *,
    lineage: str = option(..., "The lineage's name, or a bundle of it.", argument=True, complete=lineage_names),
    ledger: ChargedLedger,
    yes: bool = option(False, "Do not ask before the name is used up."),
) -> None:
    """Undo a lineage that was a mistake: one that charged nothing, and whose models nobody was given.

    Its name is refused for good, so that no copy of a bundle opens it again; then its records are forgotten here, and
    can be trained on in another lineage. After a crash, say it again.
    """
    name, known = lineage_named(lineage), RecordRegistry(state_folder())

    async def apply(opened: Ledger) -> None:
        account = None
        with suppress(UnknownLineage):
            account = await opened.lineage_or_forgotten(name)
        if account is None and not known.is_noted(name):
            raise CommandError(f"neither the ledger nor a training of yours knows the lineage {name!r}")
        known.check_ended(name)
        asks = account is None or not (account.newest_receipt or account.is_forgotten)
        question = f"Forget the lineage {name}? Its models can never be served or exported from this ledger"
        if asks and not yes and not typer.confirm(question):
            typer.echo("nothing was changed")
            return
        try:
            await ledger.acting(opened).forget_lineage(name, time=time.time())
        except TooFewDisks as short:
            raise CommandError(
                f"{short}: at the primary the name is refused now, and the records are not forgotten yet. Say this "
                "again once the replica is back"
            ) from None
        except ActRefused as refused:
            raise CommandError(f"{refused}; 'dpserve lineage show {name}' lists what it paid for here") from None
        # Only now: the digests are all that keeps these records from a second budget.
        known.forget(name)
        KeptFits(state_folder()).forget(name)
        typer.echo(f"the lineage {name} is forgotten: its bundles are of no use, and it keeps no record from others")

    ledger.run(apply)


def _add_commands() -> None:
    for act in ACTS:
        for subject in act.about:
            if subject != "lineage":
                _GROUPS[subject].command(act.name.removesuffix(f"-{subject}"))(command_of(act, subject))


_add_commands()
