"""The routes that tell a client about its account at no cost: its budget and its receipts."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Query, Request, Response
from msgspec import UNSET

from dpserve.accounting.currency import Currency
from dpserve.accounting.explanation import AccountExplanation
from dpserve.accounting.ledger import Receipt
from dpserve.service.http.authentication import BEARER, Authentication
from dpserve.service.http.requests import check_parameters
from dpserve.service.http.schemas import AccountModelsOut, ClientReceiptOut, Json, ReceiptsOut, answers
from dpserve.service.models import Models
from dpserve.service.pay_once import PayOnceExplanation

Count = Annotated[int, Query(ge=1, le=1000, description="At most so many.")]
"""The largest length of a page of a list."""
AfterReceipt = Annotated[int, Query(ge=0, le=2**52, description="Only receipts with a number above this.")]

_Listed = TypeVar("_Listed")
_Place = TypeVar("_Place")


def paged(
    listed: Sequence[_Listed], count: int, place: Callable[[_Listed], _Place]
) -> tuple[Sequence[_Listed], _Place | None]:
    """Return a page, and the place after which the next one begins; None if there is none.

    listed: what the page begins with, and one more than `count` where there is more.
    """
    return listed[:count], place(listed[count - 1]) if len(listed) > count else None


def add_account_routes(app: FastAPI, models: Models, authentication: Authentication) -> None:
    """Add the account of a model's lineage, and its receipts; of the default model's without a name."""
    security = [Depends(BEARER), Depends(check_parameters)]
    of_receipts: Any = {"dependencies": security, "responses": answers(ReceiptsOut)}
    named: Any = {"openapi_extra": {"parameters": [{"name": "name", "in": "path", "required": True}]}}

    asked_models: Any = {"dependencies": security, "responses": answers(AccountModelsOut)}

    @app.get("/account", summary="See which models your key is good for", **asked_models)
    async def account(request: Request) -> Response:
        callers = await authentication.accounts(request, {each.lineage for each in models}, "budget-read")
        names = [each.name for each in models if each.lineage in callers]
        default = models.default
        first = default.name if default is not None else names[0]
        return Json(AccountModelsOut(names, first if first in names else names[0]))

    @app.get("/models/{name}/budget", summary="See what is spent and left", dependencies=security, **named)
    @app.get("/budget", summary="See what is spent and what is left", dependencies=security)
    async def budget(request: Request) -> PayOnceExplanation | AccountExplanation:
        predictor = models.named(request.path_params.get("name"))
        client = (await authentication.caller(request, predictor.lineage, "budget-read")).client
        return await predictor.explained_budget(client)

    @app.get("/models/{name}/budget/receipts", summary="Read your receipts by page", **of_receipts, **named)
    @app.get("/budget/receipts", summary="Read your receipts, page by page", **of_receipts)
    async def receipts(
        request: Request,
        after: AfterReceipt = 0,
        count: Count = 100,
    ) -> Response:
        predictor = models.named(request.path_params.get("name"))
        client = (await authentication.caller(request, predictor.lineage, "budget-read")).client
        entries = await predictor.receipts(client, after=after, count=count + 1)
        page, next_after = paged(entries, count, lambda receipt: receipt.number)
        currency = await predictor.currency(client)
        names = models.names_by_id(predictor.lineage)
        listed = [receipt_out(each, each.number, each.releases, currency, names.get(each.model)) for each in page]
        return Json(ReceiptsOut(listed, next_after))


def receipt_out(receipt: Receipt, number: int, rows: int, currency: Currency, model: str | None) -> ClientReceiptOut:
    """Return a receipt as an account of this currency, charged for `rows`, has it under its own number.

    model: the name of what was asked, if it is served.
    """
    price = receipt.price_in(currency)
    return ClientReceiptOut(
        id=number,
        model=model,
        model_id=receipt.model,
        mechanism=receipt.mechanism,
        charged_rows=rows,
        currency=currency.name,
        price_per_row=currency.value(price),
        charged=currency.value(price * rows),
        time=receipt.time,
        hash=receipt.hash.hex(),
        blocks=receipt.terms.blocks or UNSET,
    )
