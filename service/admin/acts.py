"""The owner's acts over HTTP, at the owner's port: those of `dpserve.accounting.acts`, each with who did it and why.

`POST /api/acts` takes one act as JSON. With `?dry_run=true` it changes nothing and says what the act would mean: in
words, and as the explanation of the account before and after it. The number of the newest act that this reply names
makes what follows safe to send again: sent back as `after_act`, the act is refused where anything was done since.

A page of another origin cannot act, although a browser may be made to send its request. The port takes the admin key
from the header Authorization alone, which no other origin's page can have sent unless the port lets it, and it has no
cookie; beyond that, what a browser says comes from elsewhere is refused.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeVar, Union, cast
from urllib.parse import urlsplit

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from dpserve.accounting.acts import ACTS, OwnerAct
from dpserve.accounting.disclosure import Asked, DisclosedModel
from dpserve.accounting.explanation import AccountExplanation, explain_account
from dpserve.accounting.faults_in_words import in_words
from dpserve.accounting.ledger import (
    ActRefused,
    Acts,
    ClientRevoked,
    Ledger,
    LineageForgotten,
    UnknownClient,
    UnknownGroup,
    UnknownKey,
    UnknownLineage,
    WouldBeDone,
)
from dpserve.accounting.losses import Cost
from dpserve.service.http.problems import Problem, ProblemType
from dpserve.service.http.requests import Bodies
from dpserve.training.fields import repeated

_LARGEST_BODY = 16 * 1024
_Parsed = TypeVar("_Parsed")

Price = Callable[[str], Cost | None]
"""Returns of a lineage what the next row costs."""


class SignedRequest(BaseModel):
    """Who acts on which lineage, and why."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    lineage: str
    by: Annotated[str, Field(min_length=1, max_length=255, description="who does this, for the audit trail")]
    why: Annotated[str, Field(min_length=1, max_length=1000, description="why, for the audit trail")]
    after_act: Annotated[
        int | None, Field(ge=0, description="the newest act that you know of: after another one this is refused")
    ] = None

    def acting_on(self, ledger: Ledger, *, dry: bool = False) -> Acts:
        """Return acts that will say who does this and why; a dry run does none. Raises ValueError."""
        return ledger.acting(self.by, self.why, after=self.after_act, dry=dry)


class ActRequest(SignedRequest, OwnerAct):
    """A request to do one of `ACTS`, whose name is in the field `act`."""


def request_for(act: type[OwnerAct]) -> type[ActRequest]:
    """Return the model of a request for an act."""
    bases: Any = (act, ActRequest)
    name: Any = Literal[act.name]
    return cast(
        type[ActRequest],
        create_model(act.__name__, __base__=bases, __doc__=act.__doc__, act=(name, ...)),
    )


REQUESTS = tuple(map(request_for, ACTS))
_ANY: Any = Annotated[Union[REQUESTS], Field(discriminator="act")]  # noqa: UP007
_ACT: TypeAdapter[ActRequest] = TypeAdapter(_ANY)


class TrailRequest(SignedRequest):
    """Download the audit trail, which is an act itself."""


_TRAIL = TypeAdapter(TrailRequest)


class ActOut(DisclosedModel):
    """The effect of an act; for a dry run, the effect that it would have."""

    done: Asked[bool]
    words: Asked[str]
    """Its meaning, in one or two sentences."""
    warning: Asked[str] = ""
    """The part of what is done that the store's replicas lack, and how to go on; empty where that is nothing."""
    raises: Asked[bool]
    """Whether more may be learnt about the records than before."""
    newest_act: Asked[int]
    """The newest act of the lineage when this was written."""
    before: Asked[AccountExplanation | None] = None
    after: Asked[AccountExplanation | None] = None
    key: Asked[str | None] = None
    """A new API key: it is never shown again."""
    key_id: Asked[str | None] = None


async def _done(given: ActRequest, ledger: Ledger, price_of: Price, *, dry: bool) -> ActOut:
    """Do the act, or say of it what it would mean."""
    whole = await ledger.lineage(given.lineage)
    newest = whole.newest_act  # what is done from here on must be noticed
    acts, warning = given.acting_on(ledger, dry=dry), ""
    plan = await given.plan(acts, given.lineage)
    with suppress(WouldBeDone):
        warning = await plan.carry_out(acts)
    out = ActOut(done=not dry, words=plan.words, warning=warning, raises=plan.raises, newest_act=newest)
    if dry:
        price, unit = price_of(given.lineage), whole.unit or None
        before, after = [
            None if state is None else await asyncio.to_thread(explain_account, state, price=price, unit=unit)
            for state in (plan.before, plan.after)
        ]
        return out.model_copy(update={"before": before, "after": after})
    newest = (await ledger.lineage(given.lineage)).newest_act
    return out.model_copy(update={"newest_act": newest, "key": plan.secret, "key_id": plan.key_id})


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
            raise _invalid(f"{named}: {in_words(first)}") from None
        finally:
            bodies.release(len(body))
        json.loads(body, object_pairs_hook=_fields_once)
        return parsed

    @app.post(
        "/api/acts",
        summary="Do what an act says, or say what it would mean",
        dependencies=owner,
        openapi_extra={"requestBody": _described(*REQUESTS)},
    )
    async def act(
        request: Request,
        response: Response,
        dry_run: Annotated[bool, Query(description="Change nothing; say what it means.")] = False,
    ) -> ActOut:
        given = await read(request, _ACT)
        response.headers["Cache-Control"] = "no-store"
        with refusing():
            return await _done(given, ledger, price_of, dry=dry_run)

    @app.post(
        "/api/trail",
        summary="Download the audit trail",
        dependencies=owner,
        openapi_extra={"requestBody": _described(TrailRequest)},
    )
    async def trail(request: Request) -> StreamingResponse:
        from dpserve.accounting.ledger.export import export

        given = await read(request, _TRAIL)
        with refusing():
            lines = export(given.acting_on(ledger), given.lineage)
            first = await anext(lines)  # what refuses does so before an answer begins

        async def all_lines() -> AsyncIterator[str]:
            yield first
            async for line in lines:
                yield line

        named = f'attachment; filename="{given.lineage}-trail.jsonl"'
        return StreamingResponse(
            all_lines(),
            media_type="application/jsonl",
            headers={"Content-Disposition": named, "Cache-Control": "no-store"},
        )


def _fields_once(fields: list[tuple[str, Any]]) -> None:
    """Raise a 422 problem for an object with a field twice: whoever looked at it before may have read another one."""
    if repeated(name for name, _ in fields) is not None:
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
    except (UnknownClient, UnknownGroup, UnknownLineage, LineageForgotten, UnknownKey) as error:
        raise Problem(ProblemType.NOT_FOUND, str(error)) from error
    except (ActRefused, ClientRevoked) as error:
        raise Problem(ProblemType.ACT_REFUSED, str(error)) from error
    except ValueError as error:
        raise _invalid(str(error)) from error
