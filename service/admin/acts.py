"""What the owner does at the owner's port: budgets, clients, groups and API keys, each act with who did it and why.

`POST /api/acts` takes one act as JSON. With `?dry_run=true` it changes nothing and says what the act would mean: in
words, and as the explanation of the account before and after it. The number of the newest act that this reply names
makes what follows safe to send again: sent back as `after_act`, the act is refused where anything was done since.

A page of another origin cannot act, although a browser may be made to send its request. The port takes the admin key
from the header Authorization alone, which no other origin's page can have sent unless the port lets it, and it has no
cookie; beyond that, what a browser says comes from elsewhere is refused.
"""

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeVar, get_args
from urllib.parse import urlsplit

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from accounting.budgets import MEASURES, Accepts, Budget, Refill, currency_of
from accounting.explanation import AccountExplanation, explain_account
from accounting.ledger import (
    RAISED_AFTER_ANSWERS,
    SCOPES,
    Account,
    ActRefused,
    ApiKey,
    ClientAccount,
    ClientRevoked,
    KeyScope,
    Ledger,
    Scope,
    UnknownClient,
    UnknownGroup,
    UnknownKey,
    UnknownLineage,
    WouldBeDone,
    check_within,
    expiry,
    key_digest,
    new_api_key,
)
from accounting.ledger.export import export
from accounting.losses import Cost
from accounting.report import AccountState
from service.http.problems import Problem, ProblemType
from service.http.requests import Bodies

_LARGEST_BODY = 16 * 1024
_DAY = 86400
_LONGEST_NAME = 256
_Parsed = TypeVar("_Parsed")

Price = Callable[[str], Cost | None]
"""Returns of a lineage what the next row costs."""

Text = Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME)]


@dataclass(frozen=True)
class _Plan:
    """What an act means, and how it is done. before, after: its account."""

    words: str
    do: Callable[[], Awaitable[object]]
    raises: bool = False
    before: AccountState | None = None
    after: AccountState | None = None
    secret: str | None = None
    """A new API key."""


class _Said(BaseModel):
    """Who acts on which lineage, and why."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    lineage: str
    by: Annotated[str, Field(min_length=1, max_length=255, description="who does this, for the audit trail")]
    why: Annotated[str, Field(min_length=1, max_length=1000, description="why, for the audit trail")]
    after_act: Annotated[
        int | None, Field(ge=0, description="the newest act that you know of: after another one this is refused")
    ] = None

    def on(self, ledger: Ledger, *, dry: bool = False) -> Ledger:
        """Return the ledger, whose acts will say who does this and why; a dry run does none. Raises ValueError."""
        return ledger.acting(self.by, self.why, after=self.after_act, dry=dry)


class OwnerAct(_Said, ABC):
    """What the owner does."""

    @abstractmethod
    async def _plan(self, ledger: Ledger) -> _Plan:
        """Return what the act means. Raises what `refusing` knows."""

    async def done(self, ledger: Ledger, price_of: Price, *, dry: bool) -> "ActOut":
        """Do the act, or say of it what it would mean."""
        whole = await ledger.lineage(self.lineage)
        newest = whole.newest_act  # what is done from here on must be noticed
        plan = await self._plan(self.on(ledger, dry=dry))
        before = after = secret = None
        with suppress(WouldBeDone):
            await plan.do()
        if dry:
            price, unit = price_of(self.lineage), whole.unit or None
            before, after = [
                None if state is None else await asyncio.to_thread(explain_account, state, price=price, unit=unit)
                for state in (plan.before, plan.after)
            ]
        else:
            newest, secret = (await ledger.lineage(self.lineage)).newest_act, plan.secret
        return ActOut(
            done=not dry,
            words=plan.words,
            raises=plan.raises,
            newest_act=newest,
            before=before,
            after=after,
            key=secret,
            key_id=None if secret is None else ApiKey(key_digest(secret)).id,
        )


class _Budgeted(OwnerAct):
    epsilon: float | None = None
    rho: float | None = None
    mu: float | None = None
    posterior_belief: float | None = None
    advantage: float | None = None
    delta: Annotated[float | None, Field(description="of the budget; by default the account's, or the lineage's")] = (
        None
    )
    accepts: Annotated[Accepts | None, Field(description="by default as before, or as the lineage's")] = None
    refill: Annotated[
        str | None, Field(description="as epsilon:1@1e-6/month or rho:0.01/week; none ends it; by default as before")
    ] = None

    def budget(self, like: Budget, before: Budget | None = None) -> Budget:
        """Return the budget that is stated, or the one before it with another refill. Raises ValueError.

        like: has the delta and the kind of what states none.
        """
        given = {name: value for name in MEASURES if (value := getattr(self, name)) is not None}
        kind, delta = self.accepts or like.accepts, self.delta
        if delta is None:
            delta = like.delta if currency_of(kind) is currency_of(like.accepts) else 0.0
        if len(given) > 1 or (not given and before is None):
            raise ValueError(f"state a budget by one of {', '.join(MEASURES)}")
        stated = [Budget.stated(name, value, delta, kind) for name, value in given.items()]
        limit = stated[0].limit if stated else before.limit if before is not None else 0
        delta = stated[0].delta if stated else delta
        refill = None if before is None else before.refill
        if self.refill is not None:
            refill = None if self.refill == "none" else Refill.parse(self.refill, kind)
        return Budget(limit, kind, delta, refill)

    async def opened(self, ledger: Ledger, name: str, group: str = "") -> Budget:
        """Return the budget of a new account. Raises ActRefused for a name that was given before."""
        above = await ledger.above(self.lineage, group)
        budget = self.budget(above[0].budget)
        check_within(name, budget, above)
        _, clients, groups = await ledger.snapshot(self.lineage)
        if name in {each.client for each in clients} | {each.group for each in groups}:
            raise ActRefused(f"the lineage has a client or group {name!r} already, and a name is not given again")
        return budget


class _Keyed(OwnerAct):
    expires_in_days: Annotated[float | None, Field(gt=0, description="how long the key lasts; by default for ever")] = (
        None
    )
    scopes: Annotated[list[KeyScope], Field(min_length=1)] = ["predict", "budget-read"]

    def new_key(self) -> tuple[str, ApiKey]:
        """Return a new key, and what the ledger keeps of it. Raises ValueError."""
        secret = new_api_key()
        life = None if self.expires_in_days is None else self.expires_in_days * _DAY
        scopes = tuple(scope for scope in SCOPES if scope in self.scopes)
        return secret, ApiKey(key_digest(secret), expiry(life, now=time.time()), scopes)


class AddClient(_Budgeted, _Keyed):
    """Open a client's account, with its first API key."""

    act: Literal["add-client"]
    client: Text
    group: str = ""
    display: str = ""

    async def _plan(self, ledger: Ledger) -> _Plan:
        budget = await self.opened(ledger, self.client, self.group)
        secret, key = self.new_key()
        add = partial(ledger.add_client, self.lineage, self.client, budget, key, group=self.group, display=self.display)
        words = f"{self.client} gets an account, and an API key that is shown once."
        after = _unused(budget, "client", self.group)
        return _Plan(words, lambda: add(time=time.time()), raises=True, after=after, secret=secret)


class AddGroup(_Budgeted):
    """Open a group's account."""

    act: Literal["add-group"]
    group: Text
    display: str = ""

    async def _plan(self, ledger: Ledger) -> _Plan:
        budget = await self.opened(ledger, self.group)
        add = partial(ledger.add_group, self.lineage, self.group, budget, display=self.display)
        words = f"The group {self.group} is opened: what all its members together may learn."
        return _Plan(words, lambda: add(time=time.time()), raises=True, after=_unused(budget, "group", self.group))


class SetBudget(_Budgeted):
    """Change the budget of a client, of a group, or with neither of the lineage."""

    act: Literal["set-budget"]
    client: str = ""
    group: str = ""

    async def _plan(self, ledger: Ledger) -> _Plan:
        if self.client and self.group:
            raise ValueError("name a client, or a group, or neither for the lineage")
        account: Account
        above: Sequence[Account] = ()
        name = self.client or self.group or f"the lineage {self.lineage}"
        if self.client:
            account = await ledger.client(self.lineage, self.client)
            above = await ledger.above(self.lineage, account.group)
        elif self.group:
            account, above = await ledger.group(self.lineage, self.group), await ledger.above(self.lineage)
        else:
            account = await ledger.lineage(self.lineage)
        before, budget = account.budget, self.budget(account.budget, account.budget)
        check_within(name, budget, above)
        raises = budget.lets_more(before)
        if account.raised_after_answers(budget):
            meaning = f"More may then be learnt about every record. {RAISED_AFTER_ANSWERS}"
        elif raises:
            meaning = "More may then be learnt about every record, or sooner."
        elif budget.limit < account.spent:
            meaning = "It has spent more than that: it is refused every new question, and what it was told stays told."
        else:
            meaning = "What is spent stays spent."
        words = (
            f"The budget of {name} goes from {before.currency.words(before.limit)} to "
            f"{budget.currency.words(budget.limit)}{_paced(budget)}. {meaning}"
        )
        change = partial(ledger.set_budget, self.lineage, budget, client=self.client, group=self.group)
        return _Plan(words, change, raises, account.state, account.changed(budget).state)


class _OfClient(OwnerAct):
    client: Text


class Rename(_OfClient):
    """Change how the owner calls a client."""

    act: Literal["rename"]
    display: str

    async def _plan(self, ledger: Ledger) -> _Plan:
        await ledger.client(self.lineage, self.client)
        called = f"is called {self.display}" if self.display else "has no other name"
        rename = partial(ledger.rename, self.lineage, self.client, self.display)
        return _Plan(f"{self.client} {called}; its id stays.", rename)


class SetGroup(_OfClient):
    """Put a client that has asked nothing into a group, or with an empty name into none."""

    act: Literal["set-group"]
    group: str

    async def _plan(self, ledger: Ledger) -> _Plan:
        account = await ledger.client(self.lineage, self.client)
        if self.group:
            check_within(self.client, account.budget, [await ledger.group(self.lineage, self.group)])
        if account.releases:
            raise ActRefused(f"{self.client} has asked already, and stays where it is: add it under another name")
        words = (
            f"{self.client} belongs to {self.group or 'no group'}. What the members of a group know together, the "
            "group has paid for: so only a client that has asked nothing moves."
        )
        return _Plan(words, partial(ledger.set_group, self.lineage, self.client, self.group))


class Revoke(_OfClient):
    """Refuse a client from now on."""

    act: Literal["revoke"]

    async def _plan(self, ledger: Ledger) -> _Plan:
        await ledger.client(self.lineage, self.client)
        words = (
            f"{self.client} is refused from now on, also for what it has paid for. What it spent stays spent, and its "
            "name is not given again."
        )
        return _Plan(words, partial(ledger.revoke, self.lineage, self.client))


class AddKey(_OfClient, _Keyed):
    """Give a client a further API key."""

    act: Literal["add-key"]

    async def _plan(self, ledger: Ledger) -> _Plan:
        await ledger.client(self.lineage, self.client)
        secret, key = self.new_key()
        words = f"{self.client} gets a further API key, shown once; those that it has stay valid."
        return _Plan(words, partial(ledger.add_key, self.lineage, self.client, key), secret=secret)


class RotateKey(_OfClient, _Keyed):
    """Replace a client's API keys, or the one of an id, at once or after some seconds."""

    act: Literal["rotate-key"]
    key: str | None = None
    overlap_seconds: Annotated[int, Field(ge=0, le=365 * _DAY)] = 0

    async def _plan(self, ledger: Ledger) -> _Plan:
        account = await ledger.client(self.lineage, self.client)
        replaced = None if self.key is None else _named(account, self.key)
        secret, key = self.new_key()
        rotate = partial(ledger.rotate_key, self.lineage, self.client, key)
        former = f"its key {self.key} is" if self.key is not None else "its former keys are"
        when = f"in {self.overlap_seconds} seconds" if self.overlap_seconds else "from now on"
        return _Plan(
            f"{self.client} gets a new API key, shown once; {former} refused {when}.",
            partial(rotate, replaced=replaced, overlap=self.overlap_seconds),
            secret=secret,
        )


class RemoveKey(_OfClient):
    """Take one API key away from a client."""

    act: Literal["remove-key"]
    key: str

    async def _plan(self, ledger: Ledger) -> _Plan:
        digest = _named(await ledger.client(self.lineage, self.client), self.key)
        words = f"The API key {self.key} of {self.client} is refused at once; its others stay valid."
        return _Plan(words, partial(ledger.remove_key, self.lineage, self.client, digest))


def _named(account: ClientAccount, key: str) -> bytes:
    """Return the digest of a client's key by its id."""
    for each in account.api_keys:
        if each.id == key:
            return each.digest
    raise Problem(ProblemType.NOT_FOUND, f"{account.client} has no API key of this id")


def _paced(budget: Budget) -> str:
    refill = budget.refill
    return "" if refill is None else f", and {budget.currency.words(refill.amount)} of it in each {refill.period}"


def _unused(budget: Budget, scope: Scope, group: str) -> AccountState:
    """Return the state of an account before it is opened."""
    left = budget.limit if budget.refill is None else min(budget.limit, budget.refill.amount)
    return AccountState((), budget, left=left, scope=scope, group=group)


AnyAct = AddClient | AddGroup | SetBudget | Rename | SetGroup | Revoke | AddKey | RotateKey | RemoveKey
_ACT: TypeAdapter[AnyAct] = TypeAdapter(Annotated[AnyAct, Field(discriminator="act")])


class TrailRequest(_Said):
    """Download the audit trail, which is an act itself."""

    format: Literal["jsonl", "csv"] = "jsonl"


_TRAIL = TypeAdapter(TrailRequest)


class ActOut(BaseModel):
    """What an act did, or of a dry run what it would do."""

    done: bool
    words: str
    """What it means, in one or two sentences."""
    raises: bool
    """Whether more may be learnt about the records than before, or sooner."""
    newest_act: int
    """The newest act of the lineage when this was written."""
    before: AccountExplanation | None = None
    after: AccountExplanation | None = None
    key: str | None = None
    """A new API key: it is never shown again."""
    key_id: str | None = None


def add_acts(app: FastAPI, ledger: Ledger, price_of: Price, owner: list[Any]) -> None:
    """Add the routes that act. owner: the dependencies that let the owner alone pass."""
    bodies = Bodies()

    async def read(request: Request, adapter: TypeAdapter[_Parsed]) -> _Parsed:
        check_same_origin(request)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise _invalid("send JSON, as application/json", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        body = await bodies.read(dict(request.scope["headers"]), request.receive, _LARGEST_BODY)
        try:
            parsed = adapter.validate_json(body)
        except ValidationError as error:
            # Not what was sent, which may be what somebody took for a field of a key.
            first = error.errors(include_input=False, include_url=False)[0]
            named = ".".join(map(str, first["loc"])) or "body"
            raise _invalid(f"{named}: {first['msg'].lower()}") from None
        finally:
            bodies.release(body)
        json.loads(body, object_pairs_hook=_fields_once)
        return parsed

    @app.post(
        "/api/acts",
        summary="Do what an act says, or say what it would mean",
        dependencies=owner,
        openapi_extra={"requestBody": _described(*get_args(AnyAct))},
    )
    async def act(
        request: Request,
        response: Response,
        dry_run: Annotated[bool, Query(description="Change nothing; say what it means.")] = False,
    ) -> ActOut:
        given = await read(request, _ACT)
        response.headers["Cache-Control"] = "no-store"
        with refusing():
            return await given.done(ledger, price_of, dry=dry_run)

    @app.post(
        "/api/trail",
        summary="Download the audit trail",
        dependencies=owner,
        openapi_extra={"requestBody": _described(TrailRequest)},
    )
    async def trail(request: Request) -> StreamingResponse:
        given = await read(request, _TRAIL)
        with refusing():
            lines = export(given.on(ledger), given.lineage, given.format)
            first = await anext(lines)  # what refuses does so before an answer begins

        async def all_lines() -> AsyncIterator[str]:
            yield first
            async for line in lines:
                yield line

        kind = "text/csv" if given.format == "csv" else "application/jsonl"
        named = f'attachment; filename="{given.lineage}-trail.{given.format}"'
        return StreamingResponse(
            all_lines(), media_type=kind, headers={"Content-Disposition": named, "Cache-Control": "no-store"}
        )


def _fields_once(fields: list[tuple[str, Any]]) -> None:
    """Raise a 422 problem for an object with a field twice: whoever looked at it before may have read another one."""
    if len({name for name, _ in fields}) != len(fields):
        raise _invalid("the body has a field more than once")


def _described(*models: type[BaseModel]) -> dict[str, Any]:
    schemas = [model.model_json_schema() for model in models]
    return {"required": True, "content": {"application/json": {"schema": {"oneOf": schemas}}}}


def _invalid(detail: str, status: HTTPStatus = HTTPStatus.UNPROCESSABLE_ENTITY) -> Problem:
    return Problem(ProblemType.INVALID_REQUEST, detail, status=status)


def check_same_origin(request: Request) -> None:
    """Raise a 403 problem for what a browser says a page of another origin sends.

    `Sec-Fetch-Site` is the browser's own word and needs no knowledge of the address under which a proxy serves this
    port. A browser without it says `Origin` with every POST; what says neither is no browser.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        foreign = site not in ("same-origin", "none")
    else:
        foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if foreign:
        raise Problem(ProblemType.CROSS_ORIGIN, "a page of another origin cannot act here")


@contextmanager
def refusing() -> Iterator[None]:
    """Have what the ledger refuses of an act answered as problems."""
    try:
        yield
    except (UnknownClient, UnknownGroup, UnknownLineage, UnknownKey) as error:
        raise Problem(ProblemType.NOT_FOUND, str(error)) from error
    except (ActRefused, ClientRevoked) as error:
        raise Problem(ProblemType.ACT_REFUSED, str(error)) from error
    except ValueError as error:
        raise _invalid(str(error)) from error
