"""What the owner does at the owner's port: budgets, clients, groups and API keys, each act with who did it and why.

`POST /api/acts` takes one act as JSON. With `?dry_run=true` it changes nothing and says what the act would mean: in
words, and as the explanation of the account before and after it. The number of the newest act that this reply names
makes what follows safe to send again: sent back as `after_act`, the act is refused where anything was done since.

A page of another origin cannot act, although a browser may be made to send its request. The port takes the admin key
from the header Authorization alone, which no other origin's page can have sent unless the port lets it, and it has no
cookie; beyond that, what a browser says comes from elsewhere is refused.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from accounting.budgets import MEASURES, Accepts, Budget, Refill
from accounting.explanation import AccountExplanation, explain_account
from accounting.ledger import (
    Account,
    ActRefused,
    ApiKey,
    ClientAccount,
    ClientRevoked,
    GroupAccount,
    KeyScope,
    Ledger,
    LineageAccount,
    UnknownClient,
    UnknownGroup,
    UnknownKey,
    UnknownLineage,
    check_within,
    expiry,
    key_digest,
    new_api_key,
)
from accounting.ledger.export import export
from accounting.losses import Cost
from accounting.picorho import to_rho
from service.http.problems import Problem, ProblemType
from service.http.requests import Bodies

_LARGEST_BODY = 16 * 1024
_DAY = 86400
_LONGEST_NAME = 256
_Parsed = TypeVar("_Parsed")

Text = Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME)]


class Act(BaseModel):
    """Who acts on which lineage, and why."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    lineage: str
    by: Annotated[str, Field(min_length=1, max_length=255, description="who does this, for the audit trail")]
    why: Annotated[str, Field(min_length=1, max_length=1000, description="why, for the audit trail")]
    after_act: Annotated[
        int | None, Field(ge=0, description="the newest act that you know of: after another one this is refused")
    ] = None


class _Budgeted(Act):
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

    def budget(self, accepts: Accepts, delta: float, before: Budget | None) -> Budget:
        """Return the budget that is stated, or the one before it with another refill. Raises ValueError."""
        given = {name: value for name in MEASURES if (value := getattr(self, name)) is not None}
        kind = self.accepts or accepts
        if len(given) > 1 or (not given and before is None):
            raise ValueError(f"state a budget by one of {', '.join(MEASURES)}")
        if given:
            ((name, value),) = given.items()
            whole = Budget.stated(name, value, self.delta or delta, kind)
        elif before is not None:
            whole = Budget(before.picorho, kind, self.delta or before.delta)
        refill = None if before is None else before.refill
        if self.refill is not None:
            refill = None if self.refill == "none" else Refill.parse(self.refill, kind)
        return Budget(whole.picorho, whole.accepts, whole.delta, refill)


class _Keyed(Act):
    expires_in_days: Annotated[float | None, Field(gt=0, description="how long the key lasts; by default for ever")] = (
        None
    )
    scopes: Annotated[list[KeyScope], Field(min_length=1)] = ["predict", "budget-read"]

    def made(self, secret: str) -> ApiKey:
        """Return what the ledger keeps of the key. Raises ValueError."""
        life = None if self.expires_in_days is None else self.expires_in_days * _DAY
        kept = ApiKey(key_digest(secret)).scopes
        scopes = tuple(scope for scope in kept if scope in self.scopes)
        return ApiKey(key_digest(secret), expiry(life, now=time.time()), scopes)


class AddClient(_Budgeted, _Keyed):
    """Open a client's account, with its first API key."""

    act: Literal["add-client"]
    client: Text
    group: str = ""
    display: str = ""


class AddGroup(_Budgeted):
    """Open a group's account."""

    act: Literal["add-group"]
    group: Text
    display: str = ""


class SetBudget(_Budgeted):
    """Change the budget of a client, of a group, or with neither of the lineage."""

    act: Literal["set-budget"]
    client: str = ""
    group: str = ""


class Rename(Act):
    """Change how the owner calls a client."""

    act: Literal["rename"]
    client: Text
    display: str


class SetGroup(Act):
    """Put a client that has asked nothing into a group, or with an empty name into none."""

    act: Literal["set-group"]
    client: Text
    group: str


class Revoke(Act):
    """Refuse a client from now on."""

    act: Literal["revoke"]
    client: Text


class AddKey(_Keyed):
    """Give a client a further API key."""

    act: Literal["add-key"]
    client: Text


class RotateKey(_Keyed):
    """Replace a client's API keys, or the one of an id, at once or after some seconds."""

    act: Literal["rotate-key"]
    client: Text
    key: str | None = None
    overlap_seconds: Annotated[int, Field(ge=0, le=365 * _DAY)] = 0


class RemoveKey(Act):
    """Take one API key away from a client."""

    act: Literal["remove-key"]
    client: Text
    key: str


_ACTS = (AddClient, AddGroup, SetBudget, Rename, SetGroup, Revoke, AddKey, RotateKey, RemoveKey)
AnyAct = AddClient | AddGroup | SetBudget | Rename | SetGroup | Revoke | AddKey | RotateKey | RemoveKey
_ACT: TypeAdapter[AnyAct] = TypeAdapter(Annotated[AnyAct, Field(discriminator="act")])


class TrailRequest(Act):
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


def add_acts(
    app: FastAPI, ledger: Ledger, known: Callable[[str], tuple[Cost | None, str | None]], owner: list[Any]
) -> None:
    """Add the routes that act.

    known: of a lineage, what the next row costs and the column of privacy units. owner: the dependencies that let the
    owner alone pass.
    """
    bodies = Bodies()

    async def read(request: Request, adapter: TypeAdapter[_Parsed]) -> _Parsed:
        check_same_origin(request)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise _invalid("send JSON, as application/json", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        body = await bodies.read(request.scope, request.receive, _LARGEST_BODY)
        try:
            return adapter.validate_json(body)
        except ValidationError as error:
            # Not what was sent, which may be what somebody took for a field of a key.
            first = error.errors(include_input=False, include_url=False)[0]
            named = ".".join(map(str, first["loc"])) or "body"
            raise _invalid(f"{named}: {first['msg'].lower()}") from None
        finally:
            bodies.release(body)

    @app.post(
        "/api/acts",
        summary="Do what an act says, or say what it would mean",
        dependencies=owner,
        openapi_extra={"requestBody": _described(*_ACTS)},
    )
    async def act(
        request: Request,
        response: Response,
        dry_run: Annotated[bool, Query(description="Change nothing; say what it means.")] = False,
    ) -> ActOut:
        given = await read(request, _ACT)
        response.headers["Cache-Control"] = "no-store"
        with refusing():
            return await _done(ledger, given, known, dry=dry_run)

    @app.post(
        "/api/trail",
        summary="Download the audit trail",
        dependencies=owner,
        openapi_extra={"requestBody": _described(TrailRequest)},
    )
    async def trail(request: Request) -> StreamingResponse:
        given = await read(request, _TRAIL)
        with refusing():
            lines = export(ledger.acting(given.by, given.why, after=given.after_act), given.lineage, given.format)
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


@dataclass(frozen=True)
class _Plan:
    """What an act means, and how it is done. before, after: the account's budget changes from one to the other."""

    words: str
    do: Callable[[], Awaitable[object]]
    account: Account | None = None
    after: Budget | None = None
    raises: bool = False
    key: ApiKey | None = None
    secret: str | None = None


async def _done(
    ledger: Ledger, given: AnyAct, known: Callable[[str], tuple[Cost | None, str | None]], *, dry: bool
) -> ActOut:
    """Do an act, or say of it what it would mean."""
    acting = ledger.acting(given.by, given.why, after=given.after_act)
    plan = await _planned(acting, given)
    lineage = await ledger.lineage(given.lineage)
    before = after = None
    if dry:
        if plan.account is not None:
            before = await asyncio.to_thread(_explained, plan.account, *known(given.lineage))
        if plan.after is not None:
            changed = _with(plan.account or _unused(lineage, given), plan.after)
            after = await asyncio.to_thread(_explained, changed, *known(given.lineage))
    else:
        await plan.do()
        lineage = await ledger.lineage(given.lineage)
    return ActOut(
        done=not dry,
        words=plan.words,
        raises=plan.raises,
        newest_act=lineage.newest_act,
        before=before,
        after=after,
        key=None if dry else plan.secret,
        key_id=None if dry or plan.key is None else plan.key.id,
    )


async def _planned(ledger: Ledger, given: AnyAct) -> _Plan:
    match given:
        case AddClient() | AddGroup():
            return await _opening(ledger, given)
        case SetBudget():
            return await _budget(ledger, given)
        case AddKey() | RotateKey() | RemoveKey():
            return await _keys(ledger, given)
    lineage, client = given.lineage, given.client
    account = await ledger.client(lineage, client)
    match given:
        case Rename():
            called = f"{client} is called {given.display}" if given.display else f"{client} has no other name"
            return _Plan(f"{called}; its id stays.", partial(ledger.rename, lineage, client, given.display))
        case SetGroup():
            if given.group:
                check_within(client, account.budget, [await ledger.group(lineage, given.group)])
            if account.releases:
                raise ActRefused(f"{client} has asked already, and stays where it is: add it under another name")
            words = (
                f"{client} belongs to {given.group or 'no group'}. What the members of a group know together, the "
                "group has paid for: so only a client that has asked nothing moves."
            )
            return _Plan(words, partial(ledger.set_group, lineage, client, given.group))
        case Revoke():
            words = (
                f"{client} is refused from now on, also for what it has paid for. What it spent stays spent, and its "
                "name is not given again."
            )
            return _Plan(words, partial(ledger.revoke, lineage, client))


async def _opening(ledger: Ledger, given: AddClient | AddGroup) -> _Plan:
    above = await ledger.above(given.lineage, given.group if isinstance(given, AddClient) else "")
    budget = given.budget(above[0].budget.accepts, above[0].budget.delta, None)
    name = given.client if isinstance(given, AddClient) else given.group
    check_within(name, budget, above)
    _, clients, groups = await ledger.snapshot(given.lineage)
    if name in {each.client for each in clients} | {each.group for each in groups}:
        raise ActRefused(f"the lineage has a client or group {name!r} already, and a name is not given again")
    now: dict[str, Any] = {"time": time.time(), "display": given.display}
    if isinstance(given, AddGroup):
        do = partial(ledger.add_group, given.lineage, name, budget, **now)
        words = f"The group {name} is opened: what all its members together may learn."
        return _Plan(words, do, after=budget, raises=True)
    secret = new_api_key()
    key = given.made(secret)
    do_add = partial(ledger.add_client, given.lineage, name, budget, key, group=given.group, **now)
    words = f"{name} gets an account, and an API key that is shown once."
    return _Plan(words, do_add, after=budget, raises=True, key=key, secret=secret)


async def _budget(ledger: Ledger, given: SetBudget) -> _Plan:
    lineage, account = given.lineage, await _account(ledger, given)
    do: Callable[[], Awaitable[object]]
    budget = given.budget(account.budget.accepts, account.budget.delta, account.budget)
    match account:
        case ClientAccount():
            above, name = await ledger.above(lineage, account.group), account.client
            do = partial(ledger.set_budget, lineage, budget, client=name)
        case GroupAccount():
            above, name = await ledger.above(lineage), account.group
            do = partial(ledger.set_budget, lineage, budget, group=name)
        case _:
            above, name = [], f"the lineage {lineage}"
            do = partial(ledger.set_budget, lineage, budget)
    check_within(name, budget, above)
    raises = budget.lets_more(account.budget)
    if raises:
        meaning = "More may then be learnt about every record, or sooner."
    elif budget.picorho < account.spent:
        meaning = "It has spent more than that: it is refused every new question, and what it was told stays told."
    else:
        meaning = "What is spent stays spent."
    limits = [to_rho(each.picorho) for each in (account.budget, budget)]
    words = f"The budget of {name} goes from rho = {limits[0]:.6g} to rho = {limits[1]:.6g}{_paced(budget)}. {meaning}"
    return _Plan(words, do, account=account, after=budget, raises=raises)


def _paced(budget: Budget) -> str:
    refill = budget.refill
    return "" if refill is None else f", and rho = {to_rho(refill.picorho):.6g} of it in each {refill.period}"


async def _keys(ledger: Ledger, given: AddKey | RotateKey | RemoveKey) -> _Plan:
    lineage, client = given.lineage, given.client
    known = {key.id: key for key in (await ledger.client(lineage, client)).api_keys}
    named = None if isinstance(given, AddKey) else given.key
    if named is not None and named not in known:
        raise Problem(ProblemType.NOT_FOUND, f"{client} has no API key of this id")
    if isinstance(given, RemoveKey):
        do = partial(ledger.remove_key, lineage, client, known[given.key].digest)
        return _Plan(f"The API key {named} of {client} is refused at once; its others stay valid.", do)
    secret = new_api_key()
    key = given.made(secret)
    if isinstance(given, AddKey):
        words = f"{client} gets a further API key, shown once; those that it has stay valid."
        return _Plan(words, partial(ledger.add_key, lineage, client, key), key=key, secret=secret)
    former = f"its key {named} is" if named is not None else "its former keys are"
    when = f"in {given.overlap_seconds} seconds" if given.overlap_seconds else "from now on"
    replaced = None if named is None else known[named].digest
    do = partial(ledger.rotate_key, lineage, client, key, replaced=replaced, overlap=given.overlap_seconds)
    words = f"{client} gets a new API key, shown once; {former} refused {when}."
    return _Plan(words, do, key=key, secret=secret)


async def _account(ledger: Ledger, given: SetBudget) -> Account:
    if given.client and given.group:
        raise ValueError("name a client, or a group, or neither for the lineage")
    if given.client:
        return await ledger.client(given.lineage, given.client)
    return await (ledger.group(given.lineage, given.group) if given.group else ledger.lineage(given.lineage))


def _unused(lineage: LineageAccount, given: AnyAct) -> ClientAccount | GroupAccount:
    """Return the account that an act opens, before it is opened."""
    nothing: dict[str, Any] = {
        "lineage": lineage.lineage,
        "budget": lineage.budget,
        "spent": 0,
        "highest_limit": 0,
        "coins": 0,
        "coined": 0,
        "tally": {},
        "created": 0.0,
        "newest_receipt": 0,
        "questions": 0,
        "number": 0,
    }
    if isinstance(given, AddClient):
        return ClientAccount(**nothing, client=given.client, group=given.group, revoked=False)
    return GroupAccount(**nothing, group=given.group if isinstance(given, AddGroup) else "")


def _with(account: Account, budget: Budget) -> Account:
    """Return the account as it is with another budget. A refill that it had not begins with the next charge."""
    begun = budget.refill is not None and account.budget.refill == budget.refill
    return replace(account, budget=budget, before=account.before if begun else account.spent)


def _explained(account: Account, price: Cost | None, unit: str | None) -> AccountExplanation:
    return explain_account(account.state, price=price, unit=unit)
