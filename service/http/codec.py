"""The service's own protocol: rows as JSON, CSV or a NumPy array, answers as JSON or an array."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from accounting.arrays import Floats
from accounting.budgets import is_unproven
from accounting.ledger import BudgetExhausted, MechanismNotAccepted
from mechanisms.answer_noise import COVERAGE, AnyNoise, Uncertainty
from service.errors import InvalidRows
from service.http import npy
from service.http.predictions import Reply
from service.http.problems import Problem, ProblemType
from service.http.requests import RequestHeader, invalid
from service.http.schemas import (
    AnswerNoiseOut,
    BudgetOut,
    NoiseLawOut,
    PredictRequest,
    PredictResponse,
    QuoteOut,
    QuoteResponse,
    ReceiptOut,
)
from service.http.tables import CSV, Rows, as_numbers, rows_of_csv, rows_of_invocation
from service.predictor import Prediction, Predictor, RowsQuote, RowsRequest, Value

RECEIPT, BUDGET, NOISE = "dpserve-receipt", "dpserve-budget", "dpserve-noise"
"""The headers of an answer that is an array alone: what an answer in JSON has beside its predictions."""

_JSON = frozenset({"application/json", "text/json", "", "application/x-www-form-urlencoded", "text/plain"})
"""The last three are what a client's own default says, of no body or of any: curl's, urllib's and browsers'."""

_GZIP = b"\x1f\x8b"
"""The first bytes of a gzip file."""

_WEIGHT_0 = re.compile(r";\s*q\s*=\s*0(?:\.0*)?\s*(?:;|$)", re.IGNORECASE)
_PLACE = re.compile(r" - at `\$\.(\w+)(?:\[(\d+)\])?(?:\[(?:(\d+)|\.\.\.)\])?`$")

_decode = msgspec.json.Decoder(PredictRequest).decode
_encode = msgspec.json.Encoder().encode
_Parsed = TypeVar("_Parsed")


class AnswerFields:
    """Receipts, budgets and noise as every protocol states them."""

    def __init__(self, predictor: Predictor) -> None:
        """Read requests to this predictor, and write its answers."""
        self._model = predictor.certificate.name
        self._mechanism = predictor.mechanism_name
        self._status = predictor.mechanism_status
        self._price = predictor.price_per_row

    def receipt(self, prediction: Prediction) -> ReceiptOut:
        """Return what a request was charged."""
        charge, currency = prediction.charge, prediction.charge.balance.budget.currency
        return ReceiptOut(
            id=charge.receipt.number if charge.receipt else charge.earlier,
            model=self._model,
            mechanism=self._mechanism,
            status=self._status,
            rows=len(prediction.probabilities),
            charged_rows=prediction.charged_rows,
            replayed_rows=prediction.replayed,
            currency=currency.name,
            price_per_row=currency.value(currency.price(self._price) or 0),
            charged=currency.value(charge.charged),
            tier=msgspec.UNSET if prediction.tier is None else prediction.tier,
        )

    def budget(self, prediction: Prediction) -> BudgetOut:
        """Return the client's account."""
        balance, currency = prediction.charge.balance, prediction.charge.balance.budget.currency
        return BudgetOut(
            currency=currency.name,
            limit=currency.value(balance.budget.limit),
            spent=currency.value(balance.spent),
            remaining=currency.value(balance.remaining),
            queries_left=balance.questions_left(self._price) if self._price.losses else None,
            unlimited=not self._price.losses,
            status="unproven" if is_unproven(balance.budget.accepts) else "proven",
        )

    def headers(self, prediction: Prediction) -> dict[str, str]:
        """Return all of it as headers, whose length does not grow much with the rows.

        The scale is the largest of the rows, and a probability p stands for one from p/(p + (1 - p) e^above) to
        p/(p + (1 - p) e^-below). `undecided` has a bit for each row, the first the highest of its byte, in hexadecimal.
        """
        said = {
            RECEIPT: _encode(self.receipt(prediction)).decode(),
            BUDGET: _encode(self.budget(prediction)).decode(),
        }
        noise = prediction.noise
        reach = noise.reach
        above, below = (None, None) if reach is None else reach.max(axis=(0, 2)).tolist()
        said[NOISE] = _encode(
            {
                "law": noise.noise.law,
                "on": noise.noise.on,
                "holds": noise.noise.holds,
                "scale": None if noise.scale is None else float(noise.scale.max()),
                "coverage": COVERAGE,
                "above": above,
                "below": below,
                "undecided": np.packbits(noise.undecided).tobytes().hex(),
                "no_interval": noise.noise.no_interval or None,
            }
        ).decode()
        return said


def noise_out(uncertainty: Uncertainty) -> AnswerNoiseOut:
    """Return how far noise may have moved each answer."""
    noise, scale = uncertainty.noise, uncertainty.scale
    ends = uncertainty.for_rows("texts of ends", lambda probabilities: _texts_of(noise.ends(probabilities)))
    lower, upper = (None, None) if ends is None else map(_array_of, zip(*ends, strict=True))
    return AnswerNoiseOut(
        law=noise.law,
        on=noise.on,
        holds=noise.holds,
        scale=None if scale is None else scale.tolist(),
        coverage=COVERAGE,
        lower=lower,
        upper=upper,
        undecided=uncertainty.undecided.tolist(),
        no_interval=noise.no_interval or None,
    )


def _law_out(noise: AnyNoise) -> NoiseLawOut:
    scale = None if noise.largest is None else noise.largest.tolist()
    return NoiseLawOut(law=noise.law, on=noise.on, scale=scale, no_interval=noise.no_interval or None)


def _words(texts: Sequence[str]) -> NDArray[np.uint32]:
    """Return texts of four characters as whole numbers of the same bytes."""
    return np.frombuffer("".join(texts).encode(), dtype=np.uint32)


_BEFORE = _words([f"{number // 100}.{number % 100:02}" for number in range(101)])
_BEHIND = _words([f"{number:03}," for number in range(1000)])


def _array_of(rows: Sequence[bytes]) -> Any:
    """Return rows of JSON as the value of a field."""
    return msgspec.Raw(b"[%b]" % b",".join(rows))


def _texts_of(ends: Floats | None) -> list[tuple[bytes, bytes]] | None:
    """Return both ends of each row's intervals, (n, 2, C), as JSON: eight characters for each number."""
    if ends is None:
        return None
    before, behind = np.divmod(ends.astype(np.int32), 1000)
    text = np.empty((*ends.shape, 2), dtype=np.uint32)
    text[..., 0], text[..., 1] = _BEFORE[before], _BEHIND[behind]
    flat, width = text.tobytes(), 8 * ends.shape[2]
    rows = [b"[%b]" % flat[at : at + width - 1] for at in range(0, len(flat), width)]
    return list(zip(rows[::2], rows[1::2], strict=True))


class RowsCodec:
    """`POST /predict`."""

    parameters = frozenset({"dry_run", "tier"})

    def __init__(self, predictor: Predictor) -> None:
        """Validate for `predictor`."""
        self._predictor = predictor
        self._answers = AnswerFields(predictor)
        self._price = predictor.price_per_row
        self._rehearsal = True if predictor.rehearsal else msgspec.UNSET

    def check_path(self, parameters: Mapping[str, str]) -> None:
        """Refuse nothing: the path has no version."""

    def decode(self, header: RequestHeader, body: bytes) -> RowsRequest:
        """Return what is asked for. Raises Problem and the refusals of a predictor's checks."""
        tier, kind = header.query.get("tier"), _media_type(header.field(b"content-type") or "")
        rows: Rows | NDArray[np.floating[Any]]
        if kind == npy.MEDIA_TYPE:
            rows = npy.parse_npy(body)
        elif kind == CSV:
            texts = rows_of_csv(body, self._predictor)
            rows = texts if self._predictor.certificate.columns else as_numbers(texts)
        elif kind.endswith("+json") or kind in _JSON:
            rows, named = self.instances(body)
            tier = _one_of(tier, named)
        else:
            detail = f"the body's Content-Type is not known here: send application/json, {CSV} or {npy.MEDIA_TYPE}"
            raise Problem(ProblemType.INVALID_REQUEST, detail, status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        self._predictor.check_tier(tier)
        # A tier in the query decides what the answer is as much as the body does.
        said = body if "tier" not in header.query else body + b"\0tier=" + header.query["tier"].encode()
        return RowsRequest(self._checked(rows), tier, header.idempotency(said), header.deadline)

    def instances(self, body: bytes) -> tuple[Rows, str | None]:
        """Return the rows of a body in JSON, and the tier that it names."""
        parsed = parse_request(body)
        if parsed.model is not None:
            self._predictor.check_model(parsed.model)
        return parsed.instances, parsed.tier

    def _checked(self, rows: Rows | NDArray[np.floating[Any]]) -> Floats:
        """Return the rows as numbers: an array, or all are lists, or all name the model's columns."""
        if isinstance(rows, np.ndarray):
            return self._predictor.check_array(rows)
        kinds = set(map(type, rows))
        if kinds <= {list}:
            return self._predictor.check_rows(cast(Sequence[list[float]], rows))
        if kinds == {dict}:
            return self._predictor.check_named(cast(Sequence[dict[str, Value]], rows))
        raise InvalidRows("either every row is a list of numbers, or every row names the model's columns")

    def encode(self, header: RequestHeader, request: RowsRequest, prediction: Prediction) -> Reply:
        """Return the answer as JSON; as an array where the client accepts one."""
        del request
        if _accepts_npy(header.field(b"accept")):
            headers = {"content-type": npy.MEDIA_TYPE} | self._answers.headers(prediction)
            return npy.npy_of(prediction.probabilities), headers
        return _json(
            PredictResponse(
                prediction.probabilities.tolist(),
                self._answers.receipt(prediction),
                self._answers.budget(prediction),
                noise_out(prediction.noise),
                self._rehearsal,
            )
        )

    def encode_quote(self, quote: RowsQuote) -> Reply:
        """Return a quote in rho."""
        refusal = quote.refusal
        kind = None
        if isinstance(refusal, BudgetExhausted):
            kind = ProblemType.BUDGET_EXHAUSTED
        elif isinstance(refusal, MechanismNotAccepted):
            kind = ProblemType.MECHANISM_NOT_ACCEPTED
        out = QuoteOut(
            rows=len(quote.free),
            new_rows=quote.free.count(False),
            free=quote.free,
            currency=quote.currency.name,
            price_per_row=quote.currency.value(quote.currency.price(self._price) or 0),
            cost=quote.currency.value(quote.total),
            admitted=refusal is None,
            refusal=kind,
            scope=getattr(refusal, "scope", None),
            noise=_law_out(quote.noise),
            tier=msgspec.UNSET if quote.tier is None else quote.tier,
        )
        return _json(QuoteResponse(out, self._rehearsal))


class InvocationsCodec(RowsCodec):
    """`POST /invocations`, as MLflow's clients and SageMaker ask."""

    def instances(self, body: bytes) -> tuple[Rows, str | None]:
        """Return the rows of a body in JSON, and the tier that it names."""
        return parsed_json(partial(rows_of_invocation, table=self._predictor), body)


def _json(content: Any) -> Reply:
    return _encode(content), {"content-type": "application/json"}


def parse_request(body: bytes) -> PredictRequest:
    """Return the parsed body, or raise a 400 or 422 problem that says where it goes wrong."""
    try:
        return parsed_json(_decode, body)
    except msgspec.ValidationError as error:
        raise _not_rows(str(error)) from None


def parsed_json(decode: Callable[[bytes], _Parsed], body: bytes) -> _Parsed:
    """Return what `decode` makes of the body, or raise the 400 problem of one that is no JSON."""
    try:
        return decode(body)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if body.startswith(_GZIP):
            raise invalid("send the body without compression") from None
        raise malformed_json(error) from None


def malformed_json(error: Exception) -> Problem:
    """Return the problem of a body that is no JSON."""
    why = {RecursionError: "it nests too deeply", UnicodeDecodeError: "it is not UTF-8"}.get(type(error), str(error))
    return Problem(ProblemType.MALFORMED_JSON, f"the body is not JSON: {why}")


def _not_rows(message: str) -> Problem:
    """Return the problem of JSON that is not what is asked for, by msgspec's message and its path in the body."""
    found = _PLACE.search(message)
    named = found[1] if found else None
    if named != "instances" and "`instances`" not in message:
        said = message.partition(" - at ")[0]
        detail = f'{named or "the body"}: {said}; expected {{"instances": [[number, ...], ...]}}'
        return Problem(ProblemType.INVALID_REQUEST, detail, status=HTTPStatus.UNPROCESSABLE_ENTITY)
    row, column = (None if place is None else int(place) for place in found.groups()[1:]) if found else (None, None)
    if found is None:
        detail = "'instances' is missing; send {\"instances\": [[number, ...], ...]}"
    elif row is None:
        detail = "'instances' must be a list of rows, each a list of numbers or an object"
    elif column is None:
        detail = f"row {row} must be a list of numbers, or an object with a value for each column"
    else:
        detail = f"row {row}, column {column} must be a finite number"
    return Problem(ProblemType.INVALID_ROWS, detail, row=row, column=column)


def _media_type(said: str) -> str:
    return said.partition(";")[0].strip().lower()


def _accepts_npy(accept: str | None) -> bool:
    """Return whether an array is named in `Accept`, and not with the weight 0, which refuses it (RFC 9110)."""
    named = [said for said in accept.split(",") if _media_type(said) == npy.MEDIA_TYPE] if accept else []
    return any(not _WEIGHT_0.search(said) for said in named)


def _one_of(in_query: str | None, in_body: str | None) -> str | None:
    if in_query is not None and in_body not in (None, in_query):
        raise invalid("the body and the query name different tiers")
    return in_query if in_body is None else in_body
