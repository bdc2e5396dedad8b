"""What a client may ask about its money without spending any: a quote, its receipts; and the rehearsal's mark."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from accounting.ledger import BudgetExhausted, Ledger, MechanismNotAccepted, Quote
from accounting.picorho import to_rho
from service.data_plane import DataPlane
from service.http.authentication import BEARER, authenticated_client
from service.http.problems import Problem, ProblemType
from service.http.schemas import ClientReceiptOut, QuoteOut, ReceiptsOut

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


def quote_out(data_plane: DataPlane, quote: Quote) -> dict[str, Any]:
    """Return a quote as the client gets it, in rho."""
    refusal = quote.refusal
    kind = None
    if isinstance(refusal, BudgetExhausted):
        kind = ProblemType.BUDGET_EXHAUSTED
    elif isinstance(refusal, MechanismNotAccepted):
        kind = ProblemType.MECHANISM_NOT_ACCEPTED
    out = QuoteOut(
        rows=len(quote.free),
        new_rows=quote.free.count(False),
        free=list(quote.free),
        price_per_row_rho=to_rho(data_plane.mechanism.cost.picorho),
        cost_rho=to_rho(quote.total),
        admitted=refusal is None,
        refusal=kind,
        scope=getattr(refusal, "scope", None),
    )
    return {"quote": out.model_dump(mode="json")} | rehearsal_note(data_plane)


def add_receipt_route(app: FastAPI, data_plane: DataPlane, ledger: Ledger) -> None:
    """Add `GET /budget/receipts`."""

    @app.get("/budget/receipts", summary="Read your receipts, page by page", dependencies=[Depends(BEARER)])
    async def receipts(
        request: Request,
        after: Annotated[int, Query(ge=0, le=2**53, description="Only receipts with a number above this.")] = 0,
        count: Annotated[int, Query(ge=1, le=_LARGEST_PAGE, description="At most so many.")] = 100,
    ) -> ReceiptsOut:
        client = await authenticated_client(request, ledger, data_plane.lineage)
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


def rehearsal_note(data_plane: DataPlane) -> dict[str, object]:
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
