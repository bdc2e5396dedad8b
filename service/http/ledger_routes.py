"""What a client may ask about its money without spending any: a quote, its receipts; and the rehearsal's mark."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from accounting.ledger import BudgetExhausted, MechanismNotAccepted, Quote
from accounting.picorho import to_rho
from service.http.authentication import BEARER, Authentication
from service.http.problems import Problem, ProblemType
from service.http.schemas import AnswerNoiseOut, ClientReceiptOut, QuoteOut, ReceiptsOut
from service.plane import AnswerNoise, Plane, TierQuote

DRY_RUN_PARAMETER: dict[str, object] = {
    "name": "dry_run",
    "in": "query",
    "required": False,
    "schema": {"type": "boolean", "default": False},
    "description": "true: say what the request would cost and whether it would be admitted; answer and spend nothing.",
}

_LARGEST_PAGE = 1000


def wants_dry_run(request: Request) -> bool:
    """Return whether a quote is asked for. Raises a 400 problem for a word that is neither true nor false."""
    asked = request.query_params.get("dry_run", "false").lower()
    if asked not in ("true", "false"):
        raise Problem(HTTPStatus.BAD_REQUEST, ProblemType.INVALID_REQUEST, "dry_run is 'true' or 'false'")
    return asked == "true"


def quote_out(data_plane: Plane, asked: Quote | TierQuote, noise: AnswerNoise | None) -> dict[str, Any]:
    """Return a quote as the client gets it, in rho."""
    quote = asked.hold if isinstance(asked, TierQuote) else asked
    # What is held answers every row: only the holding costs anything.
    free = (True,) * asked.rows if isinstance(asked, TierQuote) else asked.free
    refusal = quote.refusal
    kind = None
    if isinstance(refusal, BudgetExhausted):
        kind = ProblemType.BUDGET_EXHAUSTED
    elif isinstance(refusal, MechanismNotAccepted):
        kind = ProblemType.MECHANISM_NOT_ACCEPTED
    out = QuoteOut(
        rows=len(free),
        new_rows=free.count(False),
        free=list(free),
        price_per_row_rho=to_rho(data_plane.price_per_row.picorho),
        cost_rho=to_rho(quote.total),
        admitted=refusal is None,
        refusal=kind,
        scope=getattr(refusal, "scope", None),
        noise=AnswerNoiseOut(law=noise.law, on=noise.on, scale=list(noise.scale)) if noise else None,
        tier=asked.tier if isinstance(asked, TierQuote) else None,
    )
    return {"quote": out.model_dump(mode="json", exclude=without_tier(out.tier))} | rehearsal_note(data_plane)


def without_tier(tier: str | None) -> set[str]:
    """Return what to leave out of an answer of a model without tiers."""
    return {"tier"} if tier is None else set()


def add_receipt_route(app: FastAPI, data_plane: Plane, authentication: Authentication) -> None:
    """Add `GET /budget/receipts`."""

    @app.get("/budget/receipts", summary="Read your receipts, page by page", dependencies=[Depends(BEARER)])
    async def receipts(
        request: Request,
        after: Annotated[int, Query(ge=0, le=2**53, description="Only receipts with a number above this.")] = 0,
        count: Annotated[int, Query(ge=1, le=_LARGEST_PAGE, description="At most so many.")] = 100,
    ) -> ReceiptsOut:
        client = (await authentication.caller(request, "budget-read")).client
        page = await data_plane.receipts(client, after=after, count=count)
        return ReceiptsOut(
            receipts=[
                ClientReceiptOut(
                    id=receipt.sequence,
                    model=receipt.model,
                    mechanism=receipt.mechanism,
                    charged_rows=receipt.rows,
                    price_per_row_rho=to_rho(receipt.price),
                    charged_rho=to_rho(receipt.total),
                    time=receipt.time,
                    hash=receipt.hash.hex(),
                )
                for receipt in page
            ],
            next_after=page[-1].sequence if len(page) == count else None,
        )


def rehearsal_note(data_plane: Plane) -> dict[str, object]:
    """Return what a rehearsal's answers say beside the rest: nothing where it is none."""
    return {"rehearsal": True} if data_plane.rehearsal else {}


class SaysRehearsal:
    """Middleware: every response of a rehearsal says that it is one."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the header."""

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"dpserve-rehearsal", b"true")]
            await send(message)

        await self._app(scope, receive, marked)
