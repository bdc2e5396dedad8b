"""The owner's API: clients, lineages, models, verdicts, throughput and metrics; what the owner does is in `acts`.

Every route under /api and /metrics asks for the owner's admin key, `Authorization: Bearer KEY`. The owner's page at
`/` has none of it: it asks these routes with the key that the owner types in.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from starlette.types import ASGIApp

from accounting.ledger import Account, ClientAccount, KeyScope, Ledger, LineageAccount, key_digest
from accounting.losses import Cost
from accounting.report import AccountReport, account_report
from service.admin import verdicts
from service.admin.acts import add_acts
from service.admin.spending import Spending
from service.http.app import add_problem_handlers
from service.http.authentication import authorization_of, bearer
from service.http.middleware import Requests
from service.http.problems import Problem, ProblemType
from service.http.schemas import PROBLEM_RESPONSES
from service.models import Models
from service.page.assets import add_page
from service.telemetry.exposition import CONTENT_TYPE, exposition
from service.telemetry.logs import RequestLog
from service.telemetry.metrics import Metrics, owners_route_of
from service.telemetry.throughput import Throughput, Totals, totals_by_model

LONGEST_KEY = 256
"""Characters of an admin key at most."""
_ADMIN_KEY = HTTPBearer(auto_error=False, scheme_name="Admin key")


class LineageOut(BaseModel):
    """One lineage: what all of its clients together may learn."""

    lineage: str
    served: bool
    """Whether a model of this service is of this lineage."""
    created: float
    """Seconds since the epoch."""
    releases: int
    newest_receipt: int
    account: AccountReport


class LineagesOut(BaseModel):
    """Every lineage of the ledger, by name."""

    lineages: list[LineageOut]


class KeyOut(BaseModel):
    """One API key; nothing here opens anything."""

    id: str
    scopes: tuple[KeyScope, ...]
    expires: int | None
    """Seconds since the epoch; null for never."""


class ClientOut(BaseModel):
    """One client's account."""

    client: str
    display: str
    """How the owner calls it; may be empty."""
    group: str
    """What it belongs to; may be empty."""
    revoked: bool
    created: float
    releases: int
    keys: list[KeyOut]
    account: AccountReport


class GroupOut(BaseModel):
    """One group's account."""

    group: str
    display: str
    created: float
    releases: int
    members: int
    account: AccountReport


class GroupsOut(BaseModel):
    """Every group of a lineage, by name."""

    groups: list[GroupOut]


class SpendingOut(BaseModel):
    """What was spent over time. Each point: seconds since the epoch, and rho spent until then."""

    complete: bool
    """Whether all receipts were read; if not, ask again."""
    lineage: list[tuple[float, float]]
    clients: dict[str, list[tuple[float, float]]]
    """Those who spent the most."""


class ClientsOut(BaseModel):
    """A page of clients, by name."""

    clients: list[ClientOut]
    next_after: str | None
    """Ask for the next page with this as `after`; null if there is none."""


@dataclass(frozen=True)
class Watched:
    """What the owner watches. digest: `key_digest` of the admin key; verdicts: the folder where they are kept."""

    models: Models
    ledger: Ledger
    metrics: Metrics
    """Where requests of this port are counted."""
    counts: Callable[[], Sequence[CollectorRegistry]]
    """What the service counted."""
    throughput: Throughput
    digest: bytes
    verdicts: Path
    live_audit: Callable[[], dict[str, Any]] | None = None
    metrics_digest: bytes | None = None
    """Of a key that is good for /metrics alone."""


def create_admin_app(watched: Watched, *, log: RequestLog | None = None) -> ASGIApp:
    """Return the ASGI application of the admin port. log: writes a line for each request."""
    app = FastAPI(
        title="dpserve admin",
        version=version("dpserve"),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=PROBLEM_RESPONSES,
    )
    owner = [Depends(_ADMIN_KEY), Depends(_only_with_key(watched.digest))]
    _add_account_routes(app, watched, owner)
    _add_spending(app, watched.ledger, owner)
    add_acts(app, watched.ledger, partial(_known, watched.models), owner)
    _add_watching_routes(app, watched, owner)
    add_page(app, "owner")
    add_problem_handlers(app)
    return Requests(app, count=watched.metrics.count_owners, route=owners_route_of, log=log)


def _only_with_key(*digests: bytes) -> Callable[[Request], Awaitable[None]]:
    """Return a dependency that lets those pass who have a key of one of these digests."""

    async def check(request: Request) -> None:
        key = bearer(authorization_of(request), LONGEST_KEY)
        # The empty key is nobody's, whatever was configured.
        sent = b"" if key is None else key_digest(key)
        known = [hmac.compare_digest(sent, digest) for digest in digests]
        if key is None or not any(known):
            raise Problem(
                HTTPStatus.UNAUTHORIZED,
                ProblemType.UNAUTHENTICATED,
                "send the owner's admin key in the header 'Authorization: Bearer KEY'",
            )

    return check


def _convicted(watched: Watched) -> list[tuple[str, bool]]:
    """Return of each verdict its name and whether it convicts, the service's own audit included."""
    found = [(verdict["name"], verdict["report"]["convicted"]) for verdict in verdicts.newest(watched.verdicts)]
    if watched.live_audit is not None:
        found.append(("self-audit", bool(watched.live_audit().get("refuted"))))
    return sorted(found)


def _looks(watched: Watched) -> int | None:
    """Return how many looks the service's own audit has taken, or None where it has none."""
    return None if watched.live_audit is None else int(watched.live_audit().get("looks", 0))


def _price(models: Models, lineage: str) -> Cost | None:
    """Return what the next row of a lineage costs, where all of its models cost the same."""
    prices = {predictor.price_per_row for predictor in models.of_lineage(lineage)}
    return prices.pop() if len(prices) == 1 else None


def _known(models: Models, lineage: str) -> tuple[Cost | None, str | None]:
    """Return what the next row of a lineage costs, and the column of privacy units, where all of its models agree."""
    units = {predictor.unit for predictor in models.of_lineage(lineage)}
    return _price(models, lineage), units.pop() if len(units) == 1 else None


def _report(models: Models, account: Account, *, unlimited: bool = False) -> AccountReport:
    return account_report(
        account.tally,
        account.budget,
        price=_price(models, account.lineage),
        highest_limit=account.highest_limit,
        unlimited=unlimited,
        left=account.remaining,
        refilled=account.refilled,
    )


async def _check_known(ledger: Ledger, lineage: str) -> None:
    if lineage not in await ledger.lineage_names():
        raise Problem(HTTPStatus.NOT_FOUND, ProblemType.NOT_FOUND, "the ledger has no lineage of this name")


def _add_account_routes(app: FastAPI, watched: Watched, owner: list[Any]) -> None:
    models, ledger = watched.models, watched.ledger

    async def holds(client: ClientAccount) -> bool:
        held = [await predictor.holds(client.client) for predictor in models.of_lineage(client.lineage)]
        return any(held)

    def lineage_out(account: LineageAccount) -> LineageOut:
        return LineageOut(
            lineage=account.lineage,
            served=bool(models.of_lineage(account.lineage)),
            created=account.created,
            releases=account.releases,
            newest_receipt=account.newest_receipt,
            account=_report(models, account),
        )

    def client_out(account: ClientAccount, *, unlimited: bool) -> ClientOut:
        return ClientOut(
            client=account.client,
            display=account.display,
            group=account.group,
            revoked=account.revoked,
            keys=[KeyOut(id=key.id, scopes=key.scopes, expires=key.expires) for key in account.api_keys],
            created=account.created,
            releases=account.releases,
            account=_report(models, account, unlimited=unlimited),
        )

    @app.get("/api/lineages", summary="List the lineages with their budgets", dependencies=owner)
    async def lineages() -> LineagesOut:
        return LineagesOut(lineages=[lineage_out(account) for account in await ledger.lineages()])

    @app.get("/api/lineages/{lineage}/clients", summary="List a lineage's clients, page by page", dependencies=owner)
    async def clients(
        lineage: str,
        after: Annotated[str, Query(max_length=256, description="Only clients whose names sort after this.")] = "",
        count: Annotated[int, Query(ge=1, le=1000, description="At most so many.")] = 100,
    ) -> ClientsOut:
        await _check_known(ledger, lineage)
        listed = [account for account in await ledger.clients(lineage) if account.client > after]
        page = listed[:count]
        held = await asyncio.gather(*(holds(account) for account in page))
        return ClientsOut(
            clients=[client_out(account, unlimited=held[place]) for place, account in enumerate(page)],
            next_after=page[-1].client if len(listed) > count else None,
        )

    @app.get("/api/lineages/{lineage}/groups", summary="List a lineage's groups", dependencies=owner)
    async def groups(lineage: str) -> GroupsOut:
        await _check_known(ledger, lineage)
        _, clients, found = await ledger.snapshot(lineage)
        return GroupsOut(
            groups=[
                GroupOut(
                    group=account.group,
                    display=account.display,
                    created=account.created,
                    releases=account.releases,
                    members=sum(client.group == account.group for client in clients),
                    account=_report(models, account),
                )
                for account in found
            ]
        )


def _add_spending(app: FastAPI, ledger: Ledger, owner: list[Any]) -> None:
    read: dict[str, Spending] = {}
    reading = asyncio.Lock()

    @app.get("/api/lineages/{lineage}/spending", summary="See who spent what over time", dependencies=owner)
    async def spending(
        lineage: str,
        count: Annotated[int, Query(ge=0, le=100, description="Of so many clients at most.")] = 8,
    ) -> SpendingOut:
        await _check_known(ledger, lineage)
        async with reading:
            known = read.setdefault(lineage, Spending())
            complete = await known.read_on(ledger, lineage)
        most = sorted(known.clients, key=lambda client: (-known.clients[client].total, client))[:count]
        return SpendingOut(
            complete=complete,
            lineage=known.lineage.listed,
            clients={client: known.clients[client].listed for client in most},
        )


def _add_watching_routes(app: FastAPI, watched: Watched, owner: list[Any]) -> None:
    served = watched.models

    @app.get("/api/models", summary="Read the models' certificates and how they are served", dependencies=owner)
    async def models() -> dict[str, list[dict[str, Any]]]:
        counted = await asyncio.to_thread(totals_by_model, watched.counts())
        return {
            "models": [
                predictor.model()
                | {"lineage": predictor.lineage, "statistics": counted.get(predictor.certificate.name, Totals())}
                for predictor in served
            ]
        }

    # In a thread: these read files.
    @app.get("/api/verdicts", summary="Read the newest verdict of each attack and audit", dependencies=owner)
    def kept() -> dict[str, Any]:
        live = watched.live_audit() if watched.live_audit is not None else None
        return {"verdicts": verdicts.newest(watched.verdicts), "live": live}

    @app.get("/api/throughput", summary="See what was answered in each of the last seconds", dependencies=owner)
    async def throughput() -> dict[str, Any]:
        return watched.throughput.report()

    scraper = [] if watched.metrics_digest is None else [watched.metrics_digest]
    readers = [Depends(_ADMIN_KEY), Depends(_only_with_key(watched.digest, *scraper))]

    @app.get("/metrics", summary="Read the metrics, as Prometheus does", dependencies=readers, response_class=Response)
    async def metrics() -> Response:
        convicted = await asyncio.to_thread(_convicted, watched)
        text = await exposition(served, watched.ledger, watched.counts, convicted, _looks(watched))
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    @app.get("/livez", summary="Whether the process answers")
    async def livez() -> dict[str, str]:
        return {"status": "live"}

    @app.get("/readyz", summary="Whether the service can charge and answer")
    async def readyz(response: Response) -> dict[str, str]:
        response.headers["Cache-Control"] = "no-store"
        await served.check_ready()
        return {"status": "ready"}
