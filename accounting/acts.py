"""The owner's acts: each declared once, for every way of asking for it.

An act is a model with its name, the accounts that it is about, and its fields, each with a type, a range and one
sentence. `plan` reads the ledger and returns what the act means and how it is done; nothing is changed before `Plan.do`
is awaited. The owner's port makes a request of each act in `ACTS`, the owner's page a form, and the command line a
command: to let the owner do something else, add a class here. `Names` and `Lasting` tell all three what a text names
and in which unit a time is. A JSON Schema of an act says the same: `x-names`, `x-seconds`, `x-about`, `x-opens` and
`x-urgent`, and of a budget `x-measure`.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.config import JsonDict
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from dpserve.accounting.budgets import MEASURES, Accepts, Budget, Scope, accepted_at, currency_of
from dpserve.accounting.ledger import (
    RAISED_AFTER_ANSWERS,
    SCOPES,
    Account,
    ActRefused,
    Acts,
    ApiKey,
    ClientAccount,
    KeyScope,
    Ledger,
    LedgerDamaged,
    LedgerError,
    TooFewDisks,
    UnknownClient,
    UnknownKeyId,
    check_within,
    expiry,
    key_digest,
    new_api_key,
)
from dpserve.accounting.report import AccountState

_DAY = 86400
_LONGEST_NAME = 256
_MEASURE: JsonDict = {"x-measure": True}


@dataclass(frozen=True)
class Names:
    """Marks a field that names a client, a group, a lineage, or a client's API key."""

    scope: Scope | Literal["key"]

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the field's JSON Schema, with what it names."""
        return handler(core) | {"x-names": self.scope}


@dataclass(frozen=True)
class Lasting:
    """Marks a field that holds a time. unit: the seconds of one; suffix: how the field's name ends for it."""

    unit: int
    suffix: str

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the field's JSON Schema, with its unit."""
        return handler(core) | {"x-seconds": self.unit}


Name = Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME)]
Display = Annotated[
    str, Field(max_length=_LONGEST_NAME, description="What lists call it, beside its id; may be changed at will.")
]


def lacking(short: Sequence[TooFewDisks]) -> str:
    """Return what the owner must hear of acts that replicas lack; empty where there are none."""
    return f"{short[-1]}: {_AT_PRIMARY}" if short else ""


_AT_PRIMARY = (
    "it is done at the primary, and a replica that takes over now may not know of it. Bring the replica back, look at "
    "the accounts then, and do again what they lack; an API key that is lost is replaced with rotate-key"
)


@dataclass(frozen=True)
class Plan:
    """The meaning of an act, and the function that does it.

    words: what it will mean. done: what is said once it is done; where there is a new API key, what the key is. raises:
    whether more may be learnt about the records than before. question: what to ask the owner first, where a
    raise is an act's whole point. warning: what it costs. before, after: its account. secret: a new API key. elsewhere:
    the same in other lineages, by their names.
    """

    words: str
    done: str
    do: Callable[[], Awaitable[object]]
    raises: bool = False
    question: str = ""
    warning: str = ""
    before: AccountState | None = None
    after: AccountState | None = None
    secret: str | None = None
    elsewhere: Mapping[str, Callable[[Acts], Awaitable[object]]] = field(default_factory=dict)

    async def carry_out(self, acts: Acts) -> str:
        """Do it; return what the owner must hear beside `done`, empty where that is nothing.

        It is said what is not done in another lineage, and what the store's replicas lack.
        """
        said = []
        with acts.done_at_primary() as short:
            await self.do()
        others = replace(acts, after=None)  # which counts the acts of the one lineage
        with others.done_at_primary() as more:
            for lineage, do in self.elsewhere.items():
                try:
                    await do(others)
                except LedgerError as error:
                    said.append(f"in the lineage {lineage} it is not done: {error}")
        return ". ".join([*said, *filter(None, [lacking([*short, *more])])])

    @property
    def key_id(self) -> str | None:
        """The id of the new API key."""
        return None if self.secret is None else ApiKey(key_digest(self.secret)).id


class BudgetTerms(BaseModel):
    """A budget as an owner states it: by one of its measures."""

    epsilon: float | None = Field(None, json_schema_extra=_MEASURE, description="The budget as epsilon, at its delta.")
    delta: float | None = Field(
        None,
        description="The budget's delta, as 1e-6: part of an epsilon, and where a budget is reported; 0 for pure "
        "epsilon.",
    )
    rho: float | None = Field(None, json_schema_extra=_MEASURE, description="The budget as zCDP rho.")
    mu: float | None = Field(
        None, json_schema_extra=_MEASURE, description="The budget as mu of mu-GDP, for Gaussian noise only."
    )
    posterior_belief: float | None = Field(
        None,
        json_schema_extra=_MEASURE,
        description="The budget as the surest belief about one record, from 0.5 to below 1, that someone at even odds "
        "may reach, except with probability delta.",
    )
    advantage: float | None = Field(
        None,
        json_schema_extra=_MEASURE,
        description="The budget as the most, between 0 and 1, by which any attack may catch members more often than it "
        "accuses others.",
    )
    accepts: Accepts | None = Field(
        None,
        description="What the account pays for: 'gaussian' noise only, which buys more of it for the same epsilon; "
        "'any' proven mechanism; 'pure' epsilon alone, which adds up; 'unproven' or 'unproven-pure', for claims as "
        "well.",
    )

    def budget(self, accepts: Accepts, delta: float | None = None, before: Budget | None = None) -> Budget:
        """Return the budget, or the one before with other terms. Raises ValueError.

        accepts, delta: where none is stated; a delta of another kind of account asks for that kind. before: the
        account's present budget, whose amount stays unless another is stated.
        """
        given = {name: value for name in MEASURES if (value := getattr(self, name)) is not None}
        kind = self.accepts or (accepts if self.delta == delta else accepted_at(self.delta, accepts))
        currency = currency_of(kind)
        kept = before if before is not None and before.currency is currency else None
        if len(given) > 1 or (not given and kept is None):
            raise ValueError(f"state a budget by one of {', '.join(MEASURES)}")
        if self.delta is not None:
            delta = self.delta
        elif delta is None or currency is not currency_of(accepts):
            delta = 0.0
        stated = [Budget.from_measure(name, value, delta, kind) for name, value in given.items()]
        limit, delta = (stated[0].limit, stated[0].delta) if stated else (kept.limit if kept else 0, delta)
        return Budget(limit, kind, delta)


class OwnerAct(BaseModel, ABC):
    """An act of the owner on a lineage.

    name: the act in requests. about: the accounts that it may be about. opens: whether it makes the account. urgent:
    whether it is done even if another act was done since its owner looked.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    name: ClassVar[str]
    about: ClassVar[tuple[Scope, ...]] = ("client",)
    opens: ClassVar[bool] = False
    urgent: ClassVar[bool] = False

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the act's JSON Schema, with its accounts and whether it opens one."""
        return handler(core) | {"x-about": list(cls.about), "x-opens": cls.opens, "x-urgent": cls.urgent}

    async def plan(self, acts: Acts, lineage: str) -> Plan:
        """Return what the act means and how it is done. Raises ValueError and what the ledger raises.

        acts: of who does it.
        """
        return await self._plan(acts, lineage)

    @abstractmethod
    async def _plan(self, acts: Acts, lineage: str) -> Plan: ...


class _OfClient(OwnerAct):
    client: Annotated[Name, Names("client"), Field(description="The client's id.")]


class _Opening(BudgetTerms, OwnerAct):
    opens = True

    async def opened(self, ledger: Ledger, lineage: str, name: str, group: str = "") -> Budget:
        """Return the budget of a new account. Raises ActRefused for a name that was given before."""
        above = await ledger.above(lineage, group)
        budget = self.budget(above[0].budget.accepts, above[0].budget.delta)
        check_within(name, budget, above)
        _, clients, groups, _ = await ledger.snapshot(lineage)
        if name in {each.client for each in clients} | {each.group for each in groups}:
            raise ActRefused(
                "exists",
                f"the lineage already has a client or group {name!r}, and a name is not given again: set its budget, "
                "or choose another name",
            )
        return budget


class _Keyed(OwnerAct):
    expires_in_days: Annotated[
        float | None, Lasting(_DAY, "_days"), Field(description="How long the key lasts; for ever by default.")
    ] = None
    scopes: Annotated[
        list[KeyScope] | None,
        Field(min_length=1, description="What the key may do; by default both, or what the key may that it replaces."),
    ] = None

    def new_key(self, scopes: Sequence[KeyScope] = SCOPES) -> tuple[str, ApiKey]:
        """Return a new key, and what the ledger keeps of it. Raises ValueError. scopes: where none are stated."""
        secret = new_api_key()
        life = None if self.expires_in_days is None else round(self.expires_in_days * _DAY, 3)
        asked = scopes if self.scopes is None else self.scopes
        return secret, ApiKey(key_digest(secret), expiry(life, now=time.time()), tuple(s for s in SCOPES if s in asked))


class AddClient(_OfClient, _Keyed, _Opening):
    """Open a client's account with a budget, and make its API key: shown once, for only a digest is kept."""

    name = "add-client"
    group: Annotated[
        str,
        Names("group"),
        Field(description="The group that it belongs to, which pays for its answers, too; none by default."),
    ] = ""
    display: Display = ""
    keys_of: Annotated[
        str | None,
        Names("lineage"),
        Field(description="A lineage where the client has keys: they work here, too, and no new one is made."),
    ] = None

    async def _plan(self, acts: Acts, lineage: str) -> Plan:
        budget = await self.opened(acts.ledger, lineage, self.client, self.group)
        after = _unused(budget, "client", self.group)
        if self.keys_of is None:
            secret, key = self.new_key()
            do = partial(self._add, acts, lineage, budget, [key])
            words = f"{self.client} gets an account, and an API key that is shown once."
            warning = await _too_small(acts.ledger, lineage, budget)
            done = f"The API key of {self.client}"
            return Plan(words, done, do, raises=True, warning=warning, after=after, secret=secret)
        if self.expires_in_days is not None or self.scopes is not None:
            raise ValueError(
                "a client who comes in by keys of another lineage keeps them as they are: leave out how long they "
                "last, and their scopes"
            )
        keys = (await acts.ledger.client(self.keys_of, self.client)).api_keys
        if not keys:
            raise ActRefused("no-keys", f"{self.client} has no API key in {self.keys_of}")
        done = f"{self.client} asks with the keys that it has in {self.keys_of}"
        do = partial(self._add, acts, lineage, budget, keys)
        warning = await _too_small(acts.ledger, lineage, budget)
        return Plan(f"{self.client} gets an account, and {done}.", done, do, raises=True, warning=warning, after=after)

    async def _add(self, acts: Acts, lineage: str, budget: Budget, keys: Sequence[ApiKey]) -> None:
        now, first = time.time(), keys[0]
        await acts.add_client(lineage, self.client, budget, first, time=now, group=self.group, display=self.display)
        for each in keys[1:]:
            await acts.add_key(lineage, self.client, each)


class _OfKeys(_OfClient):
    """An act on keys that a client may have in several lineages of the store."""

    here_alone: Annotated[
        bool, Field(description="In this lineage alone, though the client comes in by the same keys in others, too.")
    ] = False

    def elsewhere(
        self, others: Sequence[str], do: Callable[..., Awaitable[object]]
    ) -> dict[str, Callable[[Acts], Awaitable[object]]]:
        """Return the act in other lineages, unless it is to be done here alone. do: takes who acts, and the lineage."""
        return {} if self.here_alone else {other: partial(do, lineage=other) for other in others}

    def places(self, lineage: str, others: Sequence[str], kept: str) -> str:
        """Say in which lineages the act is done; if here alone, that what is `kept` elsewhere goes on."""
        if not others:
            return ""
        if self.here_alone:
            return f" in {lineage} alone; {kept} in {', '.join(others)}"
        return f" in {', '.join((lineage, *others))}"


class AddGroup(_Opening):
    """Open a group with a budget: what all its members together may learn, each within a budget of its own."""

    name, about = "add-group", ("group",)
    group: Annotated[Name, Names("group"), Field(description="The group's name.")]
    display: Display = ""

    async def _plan(self, acts: Acts, lineage: str) -> Plan:
        budget = await self.opened(acts.ledger, lineage, self.group)
        add = partial(acts.add_group, lineage, self.group, budget, display=self.display)
        words = f"The group {self.group} is opened: what all its members together may learn."
        after = _unused(budget, "group", self.group)
        done, warning = f"the group {self.group} is open", await _too_small(acts.ledger, lineage, budget)
        return Plan(words, done, lambda: add(time=time.time()), raises=True, warning=warning, after=after)


class SetBudget(BudgetTerms, OwnerAct):
    """Change a budget. What is spent stays spent; a budget below it only refuses further questions."""

    name = "set-budget"
    about: ClassVar[tuple[Scope, ...]] = ("client", "group", "lineage")
    # An empty name is refused: it must not be taken for none, which stands for the lineage.
    client: Annotated[Name | None, Names("client"), Field(description="The client's id, if it is a client's.")] = None
    group: Annotated[
        Name | None,
        Names("group"),
        Field(description="The group's name, if it is a group's; with neither, the lineage's."),
    ] = None

    @property
    def _named(self) -> dict[str, str]:
        """The account's name, as the ledger takes it."""
        return {"client": self.client or "", "group": self.group or ""}

    async def _account(self, ledger: Ledger, lineage: str) -> tuple[Account, str, Sequence[Account]]:
        """Return the account, whose it is, and those that bound its budget."""
        if self.client and self.group:
            raise ValueError("name a client or a group, and not both; name neither for the lineage")
        if self.client:
            account = await ledger.client(lineage, self.client)
            return account, self.client, await ledger.above(lineage, account.group)
        if self.group:
            return await ledger.group(lineage, self.group), f"the group {self.group}", await ledger.above(lineage)
        return await ledger.lineage(lineage), f"the lineage {lineage}", ()

    async def _plan(self, acts: Acts, lineage: str) -> Plan:
        account, whose, above = await self._account(acts.ledger, lineage)
        before = account.budget
        budget = self.budget(before.accepts, before.delta, before)
        check_within(whose, budget, above)
        raises, late = budget.limit > before.limit, account.raised_after_answers(budget)
        if late:
            meaning = f"More may then be learnt about every record. {RAISED_AFTER_ANSWERS}"
        elif raises:
            meaning = "More may then be learnt about every record."
        elif budget.limit < account.spent:
            meaning = "It has spent more than that: it is refused every new question, and what it was told stays told."
        else:
            meaning = "What is spent stays spent."
        # One reads both in the currency of the new one, where the accounts count the same.
        alike = before.currency is budget.currency and before.limit != budget.limit
        former, new = (budget if alike else before).words(before.limit), budget.words(budget.limit)
        warnings = [f"{whose} has asked already. {RAISED_AFTER_ANSWERS}"] if late else []
        if small := await _too_small(acts.ledger, lineage, budget, account.spent):
            warnings.append(small)
        question = ""
        if raises:
            question = f"Raise the budget of {whose} from {former} to {new}? More may then be learnt about every record"
        return Plan(
            f"The budget of {whose} goes from {former} to {new}. {meaning}",
            f"{whose} may now spend {new}",
            partial(acts.set_budget, lineage, budget, **self._named),
            raises=raises,
            question=question,
            warning=" ".join(warnings),
            before=account.state,
            after=account.with_budget(budget).state,
        )


class SetBlockBudget(SetBudget):
    """Change the budget of a lineage's block."""

    about = ("block",)
    block: Annotated[Name, Field(description="The block's name.")]

    @property
    def _named(self) -> dict[str, str]:
        return {"block": self.block}

    async def _account(self, ledger: Ledger, lineage: str) -> tuple[Account, str, Sequence[Account]]:
        return await ledger.block(lineage, self.block), f"the block {self.block} of {lineage}", ()


class Rename(_OfClient):
    """Change what a client is called. Its id stays, as do its account and its keys."""

    name = "rename"
    display: Annotated[str, Field(description="What lists call the client from now on; empty for nothing.")]

    async def _plan(self, acts: Acts, lineage: str) -> Plan:
        await acts.ledger.client(lineage, self.client)
        done = f"{self.client} " + (f"is called {self.display}" if self.display else "has no other name")
        return Plan(f"{done}; its id stays.", done, partial(acts.rename, lineage, self.client, self.display))


class SetGroup(_OfClient):
    """Put a client that has asked nothing yet into a group. What members know together, the group has paid for."""

    name = "set-group"
    group: Annotated[str, Names("group"), Field(description="The group; empty for none.")]

    async def _plan(self, acts: Acts, lineage: str) -> Plan:
        account = await acts.ledger.client(lineage, self.client)
        if self.group:
            check_within(self.client, account.budget, [await acts.ledger.group(lineage, self.group)])
        if account.releases:
            raise ActRefused(
                "has-asked", f"{self.client} has asked already, and stays where it is: add it under another name"
            )
        done = f"{self.client} belongs to {self.group or 'no group'}"
        words = (
            f"{done}. What the members of a group know together, the group has paid for: so only a client that has "
            "asked nothing moves."
        )
        return Plan(words, done, partial(acts.set_group, lineage, self.client, self.group))


class Revoke(_OfKeys):
    """Refuse a client from now on, wherever it comes in by the same keys. What it spent stays spent."""

    name = "revoke"
    # Whoever must be refused now must be refused whatever else was done meanwhile.
    urgent = True

    async def _plan(self, acts: Acts, lineage: str) -> Plan:
        others: list[str] = []
        with suppress(LedgerDamaged, UnknownClient):  # the right ends also where the account is damaged
            others = await keys_elsewhere(acts.ledger, lineage, self.client)
        places = self.places(lineage, others, "its keys go on")
        words = (
            f"{self.client} is refused from now on{places}, also for what it has paid for. What it spent stays spent, "
            "and its name is not given again."
        )
        return Plan(
            words,
            f"{self.client} is revoked{places}",
            partial(acts.revoke, lineage, self.client),
            elsewhere=self.elsewhere(others, partial(Acts.revoke, client=self.client)),
        )


class AddKey(_OfClient, _Keyed):
    """Give a client a further API key, as for a dashboard that only reads the budget."""

    name = "add-key"

    async def _plan(self, acts: Acts, lineage: str) -> Plan:
        await acts.ledger.client(lineage, self.client)
        secret, key = self.new_key()
        words = f"{self.client} gets a further API key, shown once; those that it has stay valid."
        done = f"A further API key of {self.client}, {key.id}"
        return Plan(words, done, partial(acts.add_key, lineage, self.client, key), secret=secret)


class RotateKey(_OfKeys, _Keyed):
    """Give a client a new API key wherever it has the former ones; these, or the one of an id, are refused at once or
    a while later."""

    name = "rotate-key"
    key: Annotated[
        str | None,
        Names("key"),
        Field(description="Replace only the key of this id, whose scopes the new one gets by default."),
    ] = None
    overlap_seconds: Annotated[
        int,
        Lasting(1, "_seconds"),
        Field(ge=0, le=365 * _DAY, description="How long what is replaced stays valid; not at all by default."),
    ] = 0

    async def _plan(self, acts: Acts, lineage: str) -> Plan:
        account = await acts.ledger.client(lineage, self.client)
        former = None if self.key is None else _named(account, self.key)
        secret, new = self.new_key(SCOPES if former is None else former.scopes)
        replaced = None if former is None else former.digest
        others = await keys_elsewhere(acts.ledger, lineage, self.client, former)
        places = self.places(lineage, others, "what it has goes on")
        ending = "its former keys are" if former is None else f"its key {former.id} is"
        when = f"in {self.overlap_seconds} seconds" if self.overlap_seconds else "from now on"
        rotate = partial(Acts.rotate_key, client=self.client, key=new, overlap=self.overlap_seconds, replaced=replaced)
        return Plan(
            f"{self.client} gets a new API key{places}, shown once; {ending} refused {when}.",
            f"The new API key of {self.client}{places}, {new.id}",
            partial(rotate, acts, lineage=lineage),
            secret=secret,
            elsewhere=self.elsewhere(others, rotate),
        )


class RemoveKey(_OfKeys):
    """Take one API key away from a client, at once, wherever it has it; its others stay."""

    name = "remove-key"
    key: Annotated[str, Names("key"), Field(description="The key's id, as it stands in the client's list of keys.")]

    async def _plan(self, acts: Acts, lineage: str) -> Plan:
        key = _named(await acts.ledger.client(lineage, self.client), self.key)
        others = await keys_elsewhere(acts.ledger, lineage, self.client, key)
        places = self.places(lineage, others, "it goes on")
        words = f"The API key {key.id} of {self.client} is refused at once{places}; its others stay valid."
        remove = partial(Acts.remove_key, client=self.client, digest=key.digest)
        done = f"the key {key.id} of {self.client} is removed{places}"
        return Plan(words, done, partial(remove, acts, lineage=lineage), elsewhere=self.elsewhere(others, remove))


ACTS: tuple[type[OwnerAct], ...] = (
    AddClient,
    AddGroup,
    SetBudget,
    Rename,
    SetGroup,
    Revoke,
    AddKey,
    RotateKey,
    RemoveKey,
)


async def keys_elsewhere(ledger: Ledger, lineage: str, client: str, key: ApiKey | None = None) -> list[str]:
    """Return the other lineages where a client has this key; by default, where it has any that it has in this one.

    Lineages that cannot be read are left out. Raises UnknownClient.
    """
    keys = (await ledger.client(lineage, client)).api_keys if key is None else (key,)
    digests, found = {each.digest for each in keys}, []
    for other in await ledger.lineage_names():
        with suppress(LedgerError):
            account = await ledger.client(other, client)
            if other != lineage and not account.revoked and digests & {each.digest for each in account.api_keys}:
                found.append(other)
    return found


def _named(account: ClientAccount, key: str) -> ApiKey:
    """Return a client's key by its id. Raises UnknownKeyId."""
    for each in account.api_keys:
        if each.id == key:
            return each
    # Without what was given: it may be a key itself.
    raise UnknownKeyId(account.client, ", ".join(each.id for each in account.api_keys) or "none")


async def _too_small(ledger: Ledger, lineage: str, budget: Budget, spent: int = 0) -> str:
    """Say that a budget buys nothing at the newest price that its lineage paid, as of what is served now.

    What it paid before may be of models that nobody serves any more. Empty where the budget buys something, and where
    nothing was paid for yet.
    """
    newest = (await ledger.lineage(lineage)).newest_receipt
    receipts = await ledger.receipts(lineage, after=newest - 1, count=1) if newest else []
    price = max((budget.currency.price(receipt.cost) or 0 for receipt in receipts), default=0)
    if budget.limit - spent >= price:
        return ""
    return (
        f"This account cannot pay for what the lineage {lineage} paid for last, which costs {budget.words(price)}: "
        "unless something cheaper is served, it is refused whatever it asks."
    )


def _unused(budget: Budget, scope: Scope, group: str) -> AccountState:
    """Return the state of an account before it is opened."""
    return AccountState((), budget, scope=scope, group=group)
