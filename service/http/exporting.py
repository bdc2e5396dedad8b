"""`/models/{name}/export`: a client takes away a model that it has paid for; by POST it pays for one, too.

What a client may ask about without limit it may also have. The ledger is asked as for an answer: the model is charged
by the same function, once. GET charges nothing. A file is made when it is first asked for, and kept: a model has a few.
"""

import asyncio
import time
from http import HTTPStatus
from typing import Annotated, Any
from weakref import WeakKeyDictionary

from fastapi import Depends, FastAPI, Query, Request, Response

from dpserve.accounting.ledger import Ledger
from dpserve.service.http.authentication import BEARER, Authentication
from dpserve.service.http.problems import Problem, ProblemType
from dpserve.service.http.requests import check_parameters
from dpserve.service.models import Models
from dpserve.service.pay_once import PayOncePredictor
from dpserve.service.predictor import Caller
from dpserve.training.errors import MissingExtra, NotExportable
from dpserve.training.export.files import Exported, Form, exported
from dpserve.training.purchases import release_request

MEDIA_TYPE = "application/octet-stream"

_Form = Annotated[Form, Query(description="The form of the file.")]


def add_export(app: FastAPI, models: Models, ledger: Ledger, authentication: Authentication) -> None:
    """Add the route."""

    route: dict[str, Any] = {
        "dependencies": [Depends(BEARER), Depends(check_parameters)],
        "response_class": Response,
        "responses": {200: {"description": "The file", "content": {MEDIA_TYPE: {}}}},
    }
    files = Files()

    @app.get("/models/{name}/export", summary="Take away a pay-once model that you have paid for", **route)
    async def export(request: Request, name: str, to: _Form) -> Response:
        return await answered(request, name, to, pay=False)

    @app.post("/models/{name}/export", summary="Pay for a pay-once model, and take it away", **route)
    async def pay(request: Request, name: str, to: _Form) -> Response:
        return await answered(request, name, to, pay=True)

    async def answered(request: Request, name: str, to: Form, *, pay: bool) -> Response:
        predictor = models.named(name)
        caller = await authentication.caller(request, predictor.lineage, "predict")
        if not isinstance(predictor, PayOncePredictor):
            raise Problem(
                ProblemType.NOT_EXPORTABLE,
                f"{name} is not private itself, its answers are: ask it with POST /predict, or have its owner train a "
                "pay-once model",
            )
        file = await _paid_for(files, predictor, ledger, caller, to, pay=pay)
        disposition = f'attachment; filename="{name}{file.suffix}"'
        return Response(file.content, media_type=MEDIA_TYPE, headers={"Content-Disposition": disposition})


class Files:
    """The files that were asked for: each is made once, in a thread, whoever waits for it."""

    def __init__(self) -> None:
        """Begin with none."""
        self._made: WeakKeyDictionary[PayOncePredictor, dict[Form, Exported]] = WeakKeyDictionary()
        """For as long as the model is served."""
        self._making = asyncio.Lock()

    async def of(self, predictor: PayOncePredictor, form: Form) -> Exported:
        """Return a file. Raises what `exported` raises."""
        async with self._making:
            made = self._made.setdefault(predictor, {})
            if form not in made:
                made[form] = await asyncio.to_thread(exported, predictor.answering, form)
        return made[form]


async def _paid_for(
    files: Files, predictor: PayOncePredictor, ledger: Ledger, caller: Caller, form: Form, *, pay: bool
) -> Exported:
    """Return the file once the client has paid for the model. The file is there before anything is charged."""
    quote = await ledger.quote(release_request(predictor.released, caller.client, time.time()))
    if not all(quote.free) and not pay:
        raise Problem(
            ProblemType.MODEL_NOT_PAID_FOR,
            f"you have not paid for this model; it {quote.words}, once: ask for an answer "
            "with POST /predict, or for this file with POST. Nothing was charged",
            cost=quote.currency.value(quote.total),
            currency=quote.currency.name,
        )
    if quote.refusal is not None:
        raise quote.refusal
    try:
        file = await files.of(predictor, form)
    except NotExportable as error:
        raise Problem(ProblemType.NOT_EXPORTABLE, str(error)) from None
    except MissingExtra:
        raise Problem(
            ProblemType.NOT_EXPORTABLE,
            f"this service cannot write {form} files; ask for another form, or have its owner install dpserve[onnx]",
            status=HTTPStatus.NOT_IMPLEMENTED,
        ) from None
    if (ended := predictor.late(caller)) is not None:
        raise ended
    await ledger.charge(release_request(predictor.released, caller.client, time.time(), None, caller.key_digest))
    return file
