"""Options that several commands share, what they turn into, and what the shell offers as values."""

import asyncio
import getpass
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, cast, get_args

import typer
from platformdirs import user_state_path

from dpserve.accounting import sampling_error
from dpserve.accounting.acts import BudgetTerms
from dpserve.accounting.budgets import Accepts, Budget, accepted_at, currency_of
from dpserve.accounting.currency import EPSILON
from dpserve.accounting.ledger import Acts, Ledger
from dpserve.accounting.ledger.journal import is_forgotten
from dpserve.accounting.messages import Message, named
from dpserve.training.errors import WrongOption
from dpserve.training.options import Options, option

_Result = TypeVar("_Result")

OTHER_TERMS = "The budget in other terms"
LEDGER = (
    "redis://host:port/db of a Redis or Valkey, redis+sentinel://host:port/service, each "
    "with rediss for TLS, or the folder of the embedded ledger."
)
LEDGER_DEFAULT = "the embedded one in your state folder"
REPLICAS = partial(
    option,
    None,
    "On how many of the store's replicas a write must be on disk, too, before it counts.",
    default_text="0",
    ge=0,
)
SELECTION = partial(
    option,
    None,
    "The law by which a class is selected, where the mechanism selects one.",
    default_text="permute-and-flip for a pure epsilon, else exponential",
)
_TERMS = {name: str(field.description) for name, field in BudgetTerms.model_fields.items()}
_ONE_BUDGET = Message(
    "a budget is given by one of {epsilon}, {rho}, {mu}, {posterior_belief} or {advantage}, and always with {delta}, "
    "or with {delta:0} for pure epsilon"
)
_PATIENCE = 5.0
"""Seconds that a shell waits for the ledger."""


class LedgerOption(Options):
    """Which ledger a command works on, and how many replicas of its store a write waits for."""

    ledger: str | None = option(None, LEDGER, variable="DPSERVE_LEDGER", default_text=LEDGER_DEFAULT)
    ledger_replicas: int | None = REPLICAS(variable="DPSERVE_LEDGER_REPLICAS")

    def opened(self) -> AbstractAsyncContextManager[Ledger]:
        """Return the ledger, opened for as long as its context lasts."""
        return open_ledger(self.ledger, self.ledger_replicas)

    def run(self, act: Callable[[Ledger], Awaitable[_Result]]) -> _Result:
        """Open the ledger, act on it, close it, and return the result."""

        async def opened() -> _Result:
            async with self.opened() as ledger:
                return await act(ledger)

        return asyncio.run(opened())


class ActsOnLedger(LedgerOption):
    """Which ledger a command changes, and what its audit trail says of it."""

    by: str | None = option(
        None, "Who does this, for the audit trail.", variable="DPSERVE_BY", default_text="your user name"
    )
    why: str = option("", "Why, for the audit trail.", default_text="not said")

    def acting(self, ledger: Ledger) -> Acts:
        """Return acts on the ledger that say who does this, and why."""
        return ledger.acting(self.by or operating_systems_user(), self.why)


class ChargedLedger(ActsOnLedger):
    """The ledger that a charge is made in."""

    def opened(self) -> AbstractAsyncContextManager[Ledger]:
        """Return the ledger, opened for as long as its context lasts, as a service opens it."""
        return open_ledger(self.ledger, self.ledger_replicas, journals=journals_folder())


def operating_systems_user() -> str:
    """Return who runs this, as the operating system calls them: by name, or else by number."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"user {os.getuid()}"


class BudgetOptions(Options):
    """A budget as an owner may state it: by one of its parameters, with a delta."""

    epsilon: float | None = option(None, _TERMS["epsilon"])
    delta: float | None = option(None, _TERMS["delta"])
    rho: float | None = option(None, _TERMS["rho"])
    mu: float | None = option(None, _TERMS["mu"], panel=OTHER_TERMS)
    posterior_belief: float | None = option(None, _TERMS["posterior_belief"], panel=OTHER_TERMS)
    advantage: float | None = option(None, _TERMS["advantage"], panel=OTHER_TERMS)

    @property
    def is_given(self) -> bool:
        """Whether any option of a budget was given."""
        return any(getattr(self, name) is not None for name in BudgetOptions.model_fields)

    def budget(self, accepts: str) -> Budget:
        """Return the budget, rounded down. Raises WrongOption unless exactly one of its parameters is given, with a
        delta, and ValueError for a number outside the valid range, which it names.
        """
        if accepts not in get_args(Accepts):
            raise WrongOption("accepts", f"must be one of {', '.join(map(repr, get_args(Accepts)))}")
        kind = cast(Accepts, accepts)
        is_pure = currency_of(kind) is EPSILON
        given = {name: getattr(self, name) for name in BUDGET_PARAMETERS if getattr(self, name) is not None}
        delta = 0.0 if self.delta is None and is_pure else self.delta
        if len(given) != 1:
            reason = "takes the place of the other budgets that are given" if given else "is needed"
            raise WrongOption("epsilon", reason, remedy=_ONE_BUDGET)
        if delta is None:
            raise WrongOption("delta", Message("is needed beside {}", named(*given)), remedy=_ONE_BUDGET)
        ((name, value),) = given.items()
        if name == "mu" and kind != "gaussian":
            raise WrongOption("mu", "is for accounts that accept Gaussian noise only")
        return Budget.from_measure(name, value, delta, kind)

    def accepting(self, given: str | None, default: str) -> str:
        """Return what an account of this budget accepts: as given, else as delta says, else the default.

        A delta of 0 asks for pure epsilon, and a positive one for what has a delta.
        """
        if given is not None:
            return given
        return accepted_at(self.delta, cast(Accepts, default))

    def budgets(self) -> dict[Accepts, Budget]:
        """Return the same budget as each kind of account would hold it; mu has a meaning for one kind only.

        An account that counts pure epsilon holds an epsilon as it is, where it may be so large: that promises more than
        the same epsilon with a delta.
        """
        if self.delta == 0:
            return {"pure": self.budget("pure")}
        kinds: tuple[Accepts, ...] = ("gaussian",) if self.mu is not None else ("gaussian", "any")
        budgets = {kind: self.budget(kind) for kind in kinds}
        if self.epsilon is not None and self.epsilon <= sampling_error.LARGEST_PURE_BUDGET:
            budgets["pure"] = Budget.pure(self.epsilon)
        return budgets


BUDGET_PARAMETERS = frozenset(BudgetOptions.model_fields) - {"delta"}
"""One of these states a budget; given in one place, it replaces any other of them that is given further down."""


def without_other_budgets(settings: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """Return the settings less every parameter of a budget, where one is given already."""
    drop = BUDGET_PARAMETERS if BUDGET_PARAMETERS & set(given) else frozenset[str]()
    return {name: value for name, value in settings.items() if name not in drop}


class AccountBudget(BudgetOptions):
    """The budget of an account, and which noise it pays for."""

    accepts: str | None = option(
        None,
        _TERMS["accepts"],
        default_text="what the account, the lineage or the mechanism needs",
        panel=OTHER_TERMS,
    )


class ActBudget(AccountBudget):
    """The budget that an act gives an account."""

    @classmethod
    def of_words(cls, given: Mapping[str, Any]) -> Self:
        """Return the options. Raises WrongOption and ValueError for nonsense, before a ledger is opened."""
        options = super().of_words(given)
        options.budget(options.accepting(options.accepts, "gaussian"))
        options.terms.budget("gaussian")
        return options

    @property
    def terms(self) -> BudgetTerms:
        """The same budget, as acts have it."""
        return BudgetTerms.model_validate(self.model_dump())


def state_folder() -> Path:
    """Return where an owner's ledger and lineage key live: DPSERVE_HOME, or the user's state folder."""
    return Path(os.environ["DPSERVE_HOME"]) if "DPSERVE_HOME" in os.environ else user_state_path("dpserve")


def journals_folder() -> Path:
    """Return where the services of this machine write down what the ledger acknowledged to them."""
    return state_folder() / "journals"


def refuse_forgotten(lineage: str) -> None:
    """Raise WrongOption, before anything is trained, for a lineage that was forgotten on this machine."""
    if is_forgotten(journals_folder(), lineage):
        raise forgotten_lineage(lineage)


def forgotten_lineage(lineage: str) -> WrongOption:
    """Return the refusal of a training in a lineage that was forgotten."""
    reason = "was forgotten, and its name is not given again"
    return WrongOption("lineage", reason, value=lineage, remedy="take another name")


def open_ledger(
    ledger: str | None,
    replicas: int | None,
    *,
    journals: Path | None = None,
    rehearsal: bool = False,
) -> AbstractAsyncContextManager[Ledger]:
    """Return the ledger, opened for as long as its context lasts; whatever opens an owner's ledger calls this.

    ledger, replicas: None for what the environment says, or else the configuration's file.
    """
    location = ledger_location(ledger)
    if "://" not in location:
        if replicas:
            raise WrongOption("ledger_replicas", f"is 0 for the embedded ledger, which has no replicas, not {replicas}")
        replicas = 0
    elif replicas is None:
        # Most commands run without reading a file.
        from dpserve.configuration import stated_replicas

        replicas = stated_replicas()
    return Ledger.open(location, replicas=replicas, journals=journals, rehearsal=rehearsal)


def ledger_location(given: str | None) -> str:
    """Return the URL or folder to open the ledger at: as given, else as the environment or the file says."""
    if given is None:
        from dpserve.configuration import stated_ledger

        given = stated_ledger()
    if given is None:
        return str(state_folder() / "ledger")
    if not given or (":" in given and "://" not in given):
        raise WrongOption(
            "ledger",
            f"{given!r} is neither a URL, as redis://host:6379/0, nor a folder: it would become a new "
            "ledger, with nothing spent",
        )
    return given


def bundle_names(incomplete: str) -> list[str]:
    """Return the folders that hold a bundle, and those that may lead to one."""
    from dpserve.training.bundles.sealing import CERTIFICATE_FILE

    folder, _, start = incomplete.rpartition("/")
    within = Path(folder + "/" if incomplete.startswith("/") or folder else ".").expanduser()
    folders = []
    with suppress(OSError):
        for path in sorted(within.iterdir()):
            if path.is_dir() and path.name.startswith(start) and not path.name.startswith("."):
                whole = f"{folder}/{path.name}" if folder or incomplete.startswith("/") else path.name
                folders.append(whole if (path / CERTIFICATE_FILE).exists() else f"{whole}/")
    return folders


def mechanism_names(incomplete: str) -> list[str]:
    """Return the names of the mechanisms."""
    from dpserve.mechanisms.registry import names

    return [name for name in names() if name.startswith(incomplete)]


def form_names(incomplete: str) -> list[str]:
    """Return the forms that `export` writes."""
    from dpserve.training.export.files import FORMS

    return [name for name in FORMS if name.startswith(incomplete)]


def lineage_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the ledger's lineages."""
    return [name for name in _from_ledger(ctx, lambda ledger: ledger.lineage_names()) if name.startswith(incomplete)]


def client_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the clients of the lineage that was named, or of all."""

    async def names(ledger: Ledger) -> list[str]:
        named = ctx.params.get("lineage")
        lineages = [named] if named else await ledger.lineage_names()
        return sorted({account.client for each in lineages for account in await ledger.clients(each)})

    return [name for name in _from_ledger(ctx, names) if name.startswith(incomplete)]


def _from_ledger(ctx: typer.Context, read: Callable[[Ledger], Awaitable[list[str]]]) -> list[str]:
    async def ask(location: str) -> list[str]:
        async with asyncio.timeout(_PATIENCE), open_ledger(location, ctx.params.get("ledger_replicas")) as ledger:
            return await read(ledger)

    try:
        location = ledger_location(ctx.params.get("ledger") or None)
        if "://" not in location and not Path(location).exists():
            return []  # and looking makes none
        return asyncio.run(ask(location))
    except Exception:  # noqa: BLE001 - whatever it is, the shell has no place to say it
        return []


JSON = option(False, "Print JSON.", "--json")
BUNDLE = option(..., "The bundle's folder.", argument=True, complete=bundle_names)
