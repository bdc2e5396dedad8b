"""The owner's port: a second server, in the process that the owner started. What the owner does is in `acts`.

Every route under /api and /metrics asks for the owner's admin key, `Authorization: Bearer KEY`. The owner's page at
`/` has none of it: it asks these routes with the key that the owner types in.
"""

import asyncio
import hmac
import socket
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import uvicorn
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry

from dpserve.accounting.disclosure import Asked, DisclosedModel
from dpserve.accounting.ledger import (
    Account,
    ClientAccount,
    KeyScope,
    Ledger,
    LineageForgotten,
    UnknownLineage,
    key_digest,
)
from dpserve.accounting.losses import Cost
from dpserve.accounting.report import AccountReport, account_report
from dpserve.service.admin.acts import add_acts
from dpserve.service.admin.charged_models import ReadReceipts
from dpserve.service.http.accounts import AfterReceipt, Count, paged, receipt_out
from dpserve.service.http.app import add_problem_handlers
from dpserve.service.http.authentication import authorization_of, credential, no_credential
from dpserve.service.http.middleware import RequestMiddleware
from dpserve.service.http.problems import Problem, ProblemType
from dpserve.service.http.protocol import BoundedHttp
from dpserve.service.http.requests import check_parameters
from dpserve.service.http.schemas import PROBLEM_RESPONSES, Json
from dpserve.service.models import Models
from dpserve.service.page.assets import add_page
from dpserve.service.predictor import Standing
from dpserve.service.telemetry.exposition import CONTENT_TYPE, exposition
from dpserve.service.telemetry.logs import RequestLog
from dpserve.service.telemetry.metrics import Metrics
from dpserve.service.tls import Tls

_MAX_CONNECTIONS = 256
LONGEST_KEY = 256
ADMIN_KEY = "the owner's admin key"
"""Characters of an admin key at most."""
_ADMIN_KEY = HTTPBearer(auto_error=False, scheme_name="Admin key")


class AccountOut(DisclosedModel):
    """The part that every account has. created: seconds since the epoch."""

    created: Asked[float]
    releases: Asked[int]
    account: Asked[AccountReport]


class LineageOut(AccountOut):
    """One lineage: what all of its clients together may learn. served: whether by a model of this service.

    unit: the column of privacy units, empty for one record; null before the lineage's first model. blocks: how many it
    has with a name, each with a budget of its own; account and releases are those of its other records.
    """

    lineage: Asked[str]
    blocks: Asked[int]
    served: Asked[bool]
    unit: Asked[str | None]
    newest_receipt: Asked[int]


class KeyOut(DisclosedModel):
    """One API key; nothing here opens anything. expires: seconds since the epoch; null for never."""

    id: Asked[str]
    scopes: Asked[tuple[KeyScope, ...]]
    expires: Asked[int | None]


class ModelCostOut(DisclosedModel):
    """The price of a pay-once model for a client that has not paid. admitted: whether the accounts pay for it now.

    shown_cost: by how much the client's account would grow in the currency `shown_in`; null where it never pays for it.
    """

    shown_cost: Asked[float | None]
    admitted: Asked[bool]


class StandingOut(DisclosedModel):
    """A client's share in one served model.

    paid: whether it has paid for a pay-once model; null of another. price: what that costs it, until it has paid.
    answers_left: how many answers its account pays for, of a model whose answers are paid for one by one; null of
    another.
    """

    model: Asked[str]
    paid: Asked[bool | None]
    price: Asked[ModelCostOut | None]
    answers_left: Asked[int | None]


class ClientOut(AccountOut):
    """One client's account. display: how the owner calls it. group: what it belongs to. Both may be empty.

    models: its share in each model of the lineage that is served.
    """

    client: Asked[str]
    display: Asked[str]
    group: Asked[str]
    revoked: Asked[bool]
    keys: Asked[list[KeyOut]]
    models: Asked[list[StandingOut]]


class ClientsOut(DisclosedModel):
    """A page of clients, of `total` that match.

    next_after: ask for the next page with this as `after`; null if there is none.
    """

    clients: Asked[list[ClientOut]]
    next_after: Asked[str | None]
    total: Asked[int]


class GroupOut(AccountOut):
    """One group's account."""

    group: Asked[str]
    display: Asked[str]
    members: Asked[int]


class ChargedModelOut(DisclosedModel):
    """A lineage's charges for one model by one mechanism, or for a pay-once model.

    model: its random id. name: that of a model that is served here, or null. spent: in what the account counts. first,
    last: seconds since the epoch. blocks: those of the lineage that paid, each all of it.
    """

    model: Asked[str]
    name: Asked[str | None]
    mechanism: Asked[str]
    releases: Asked[int]
    spent: Asked[float]
    first: Asked[float]
    last: Asked[float]
    blocks: Asked[tuple[str, ...]]


class ChargedModelsOut(DisclosedModel):
    """The models that a lineage paid for. complete: whether all receipts were read; if not, ask again."""

    complete: Asked[bool]
    currency: Asked[Literal["rho", "epsilon"]]
    models: Asked[list[ChargedModelOut]]


class BlockOut(AccountOut):
    """One block's account: what all clients together may learn of its records. models: those that it paid for."""

    block: Asked[str]
    models: Asked[list[ChargedModelOut]]


class BlocksOut(DisclosedModel):
    """The blocks of a lineage, by name. complete: whether all receipts were read for their models."""

    complete: Asked[bool]
    blocks: Asked[list[BlockOut]]


@dataclass(frozen=True)
class AdminPort:
    """A listening socket for the owner, and what it needs. digest: `key_digest` of the admin key."""

    listening: socket.socket
    digest: bytes
    metrics_digest: bytes | None = None
    """`key_digest` of a key that is good for /metrics alone, where there is one."""
    folders: Mapping[str, Path] = field(default_factory=dict)
    """Where the service writes, by what it is: the room that is left there is exported."""


Counts = Callable[[], Sequence[CollectorRegistry]]


@asynccontextmanager
async def admin_port(
    admin: AdminPort,
    models: Models,
    ledger: Ledger,
    metrics: Metrics,
    counts: Counts,
    *,
    tls: Tls | None = None,
    log: RequestLog | None = None,
) -> AsyncIterator[None]:
    """Answer the owner for as long as the block lasts. metrics: where requests of this port are counted.

    counts: what the service counted. log: writes a line for each request.
    """
    app = FastAPI(
        title="dpserve admin",
        version=version("dpserve"),
        openapi_url=None,  # a route of FastAPI's own, which has no dependencies
        redirect_slashes=False,
        responses=PROBLEM_RESPONSES,
        dependencies=[Depends(check_parameters)],
    )

    @app.get("/openapi.json", include_in_schema=False)
    async def document() -> dict[str, Any]:
        return app.openapi()

    owner = [Depends(_ADMIN_KEY), Depends(_only_with_key(admin.digest))]
    _add_account_routes(app, models, ledger, owner)
    _add_client_routes(app, models, ledger, owner)
    add_acts(app, ledger, partial(_price, models), owner)
    _add_watching_routes(app, models, owner)
    _add_metrics(app, admin, models, ledger, counts)
    add_page(app, "owner")
    add_problem_handlers(app)
    config = uvicorn.Config(
        RequestMiddleware(app, count=metrics.count_owners, log=log),
        http=BoundedHttp,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=1,
        **(tls.for_uvicorn() if tls is not None else {}),
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[admin.listening]))
    try:
        yield
    finally:
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await serving


def _only_with_key(*digests: bytes) -> Callable[[Request], Awaitable[None]]:
    """Return a dependency that lets those pass who have a key of one of these digests."""

    async def check(request: Request) -> None:
        sent = key_digest(credential(authorization_of(request), LONGEST_KEY, ADMIN_KEY))
        matches = [hmac.compare_digest(sent, digest) for digest in digests]
        if not any(matches):
            raise no_credential(ADMIN_KEY)

    return check


def _price(models: Models, lineage: str) -> Cost | None:
    """Return what the next row of a lineage costs, where all of its models cost the same."""
    prices = {predictor.price_per_row for predictor in models.of_lineage(lineage)}
    return prices.pop() if len(prices) == 1 else None


def _open_lineage(ledger: Ledger) -> Callable[[str], Awaitable[str]]:
    """Return a dependency that gives the lineage of a path, if the ledger has it."""

    async def open_lineage(lineage: str) -> str:
        try:
            await ledger.lineage(lineage)
        except (UnknownLineage, LineageForgotten, ValueError):  # the latter of what can be no name
            raise Problem(ProblemType.NOT_FOUND, "the ledger has no lineage of this name") from None
        return lineage

    return open_lineage


def _account_out(models: Models, account: Account, *, unlimited: bool = False) -> dict[str, Any]:
    """Return the part that every account has."""
    report = account_report(account.state, price=_price(models, account.lineage), unlimited=unlimited)
    return {"created": account.created, "releases": account.releases, "account": report}


def _standing_out(standing: Standing, *, revoked: bool) -> StandingOut:
    price = None
    if standing.paid is False and not revoked:
        price = ModelCostOut(shown_cost=standing.shown_cost, admitted=standing.admitted)
    return StandingOut(model=standing.model, paid=standing.paid, price=price, answers_left=standing.answers_left)


def _spent_share(account: ClientAccount) -> tuple[float, str]:
    """Return what puts clients in order: those first who spent most of what they may, and then by name."""
    return -account.spent / max(account.budget.limit, 1), account.client


def _add_client_routes(app: FastAPI, models: Models, ledger: Ledger, owner: list[Any]) -> None:
    Lineage = Annotated[str, Depends(_open_lineage(ledger))]

    async def client_out(client: ClientAccount) -> ClientOut:
        standings = [await predictor.standing(client) for predictor in models.of_lineage(client.lineage)]
        holds = any(each.paid for each in standings)
        return ClientOut(
            client=client.client,
            display=client.display,
            group=client.group,
            revoked=client.revoked,
            keys=[KeyOut(id=key.id, scopes=key.scopes, expires=key.expires) for key in client.api_keys],
            models=[_standing_out(each, revoked=client.revoked) for each in standings],
            **_account_out(models, client, unlimited=holds),
        )

    @app.get("/api/lineages/{lineage}/clients", summary="List a lineage's clients, page by page", dependencies=owner)
    async def clients(
        lineage: Lineage,
        after: Annotated[str, Query(max_length=256, description="Only clients that are listed after this one.")] = "",
        count: Count = 100,
        order: Annotated[
            Literal["name", "spent"], Query(description="By name, or those first who spent most of what they may.")
        ] = "name",
        match: Annotated[
            str, Query(max_length=256, description="Only clients that have this in their name, id or group.")
        ] = "",
    ) -> ClientsOut:
        listed = [each for each in await ledger.clients(lineage) if _matches(each, match.casefold())]
        listed.sort(key=_spent_share if order == "spent" else _name_of)
        total = len(listed)
        if after:
            place = next((place for place, each in enumerate(listed) if each.client == after), None)
            # Whoever is gone meanwhile had a place by its name alone.
            listed = [each for each in listed if each.client > after] if place is None else listed[place + 1 :]
        page, next_after = paged(listed, count, _name_of)
        return ClientsOut(
            clients=list(await asyncio.gather(*(client_out(account) for account in page))),
            next_after=next_after,
            total=total,
        )


def _name_of(account: ClientAccount) -> str:
    return account.client


def _matches(account: ClientAccount, part: str) -> bool:
    return any(part in each.casefold() for each in (account.client, account.display, account.group))


def _add_account_routes(app: FastAPI, models: Models, ledger: Ledger, owner: list[Any]) -> None:
    Lineage = Annotated[str, Depends(_open_lineage(ledger))]
    account_out = partial(_account_out, models)

    @app.get("/api/lineages", summary="List the lineages with their budgets", dependencies=owner)
    async def lineages() -> dict[Literal["lineages"], list[LineageOut]]:
        return {
            "lineages": [
                LineageOut(
                    lineage=each.lineage,
                    blocks=each.blocks,
                    served=bool(models.of_lineage(each.lineage)),
                    unit=each.unit,
                    newest_receipt=each.newest_receipt,
                    **account_out(each),
                )
                for each in await ledger.lineages()
            ]
        }

    @app.get("/api/lineages/{lineage}/groups", summary="List a lineage's groups", dependencies=owner)
    async def groups(lineage: Lineage) -> dict[Literal["groups"], list[GroupOut]]:
        _, clients, accounts, _ = await ledger.snapshot(lineage)
        members = Counter(client.group for client in clients)
        return {
            "groups": [
                GroupOut(group=each.group, display=each.display, members=members[each.group], **account_out(each))
                for each in accounts
            ]
        }

    @app.get("/api/lineages/{lineage}/receipts", summary="Read a lineage's receipts, page by page", dependencies=owner)
    async def receipts(lineage: Lineage, after: AfterReceipt = 0, count: Count = 100) -> Response:
        """Each with whose request it was for, and what the lineage was charged for it."""
        receipts_read = await ledger.lineage_page(lineage, after=after, count=count + 1)
        currency = (await ledger.lineage(lineage)).budget.currency
        page, next_after = paged(receipts_read, count, lambda receipt: receipt.sequence)
        names = models.names_by_id(lineage)
        listed = []
        for each in page:
            shown = receipt_out(each, each.sequence, each.lineage_releases, currency, names.get(each.model))
            fields = msgspec.structs.asdict(shown) | {"client": each.client}
            listed.append({name: value for name, value in fields.items() if value is not msgspec.UNSET})
        return Json({"receipts": listed, "next_after": next_after})

    read: defaultdict[str, ReadReceipts] = defaultdict(ReadReceipts)
    reading = asyncio.Lock()

    def listed_models(lineage: str, receipts: ReadReceipts) -> list[ChargedModelOut]:
        currency = receipts.models.currency
        names = models.names_by_id(lineage)
        return [
            ChargedModelOut(**asdict(each) | {"name": names.get(each.model), "spent": currency.value(each.spent)})
            for each in receipts.models.listed
        ]

    @app.get("/api/lineages/{lineage}/models", summary="List the models that a lineage paid for", dependencies=owner)
    async def charged(lineage: Lineage) -> ChargedModelsOut:
        receipts = read[lineage]
        async with reading:
            complete = await receipts.read_on(ledger, lineage)
        listed = listed_models(lineage, receipts)
        return ChargedModelsOut(complete=complete, currency=receipts.models.currency.name, models=listed)

    @app.get("/api/lineages/{lineage}/blocks", summary="List a lineage's blocks with their budgets", dependencies=owner)
    async def blocks(lineage: Lineage) -> BlocksOut:
        accounts = await ledger.blocks(lineage)
        if not accounts:
            return BlocksOut(complete=True, blocks=[])
        receipts = read[lineage]
        async with reading:
            complete = await receipts.read_on(ledger, lineage)
        listed = listed_models(lineage, receipts)
        return BlocksOut(
            complete=complete,
            blocks=[
                BlockOut(
                    block=each.block, models=[one for one in listed if each.block in one.blocks], **account_out(each)
                )
                for each in accounts
            ],
        )


def _add_watching_routes(app: FastAPI, models: Models, owner: list[Any]) -> None:
    @app.get("/api/models", summary="Read the models' certificates and how they are served", dependencies=owner)
    async def served() -> dict[str, list[dict[str, Any]]]:
        return {"models": [model.public_model | {"lineage": model.lineage} for model in models]}

    @app.get("/livez", summary="Whether the process answers")
    async def livez() -> dict[str, str]:
        return {"status": "live"}

    @app.get("/readyz", summary="Whether the service can charge and answer")
    async def readyz(response: Response) -> dict[str, str]:
        response.headers["Cache-Control"] = "no-store"
        await models.check_ready()
        return {"status": "ready"}


def _add_metrics(app: FastAPI, admin: AdminPort, models: Models, ledger: Ledger, counts: Counts) -> None:
    keys = [admin.digest] if admin.metrics_digest is None else [admin.digest, admin.metrics_digest]
    readers = [Depends(_ADMIN_KEY), Depends(_only_with_key(*keys))]

    @app.get("/metrics", summary="Read the metrics, as Prometheus does", dependencies=readers, response_class=Response)
    async def metrics() -> Response:
        text = await exposition(models, ledger, counts, admin.folders)
        return Response(text, headers={"Content-Type": CONTENT_TYPE})
