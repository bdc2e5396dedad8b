"""The service's own protocol: rows as JSON or a NumPy array, answers as JSON or an array."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from itertools import compress
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats
from dpserve.accounting.budgets import UNPROVEN
from dpserve.accounting.currency import PER_UNIT
from dpserve.accounting.ledger import BudgetExhausted, MechanismNotAccepted
from dpserve.mechanisms.answer_noise import Uncertainty
from dpserve.mechanisms.laws import COVERAGE
from dpserve.service.errors import InvalidRows
from dpserve.service.http import npy
from dpserve.service.http.numbers import RowsAndMembers, rows_and_members
from dpserve.service.http.predictions import Reply
from dpserve.service.http.problems import Problem, ProblemType
from dpserve.service.http.requests import RequestHeader, invalid
from dpserve.service.http.schemas import (
    AnswerNoiseOut,
    AnswerOptions,
    BudgetOut,
    NoiseHeaderOut,
    PredictionSetsOut,
    PredictOptions,
    PredictRequest,
    PredictResponse,
    QuoteOut,
    QuoteResponse,
    ReceiptOut,
)
from dpserve.service.http.structure import SMALL, Structure, check_structure, structure_of
from dpserve.service.predictor import Prediction, Predictor, RowsQuote, RowsRequest, Value
from dpserve.training.fields import repeated
from dpserve.training.inputs.column import quoted
from dpserve.training.inputs.columns import UnencodedTexts
from dpserve.training.pay_once.coverage import PER_MILLE

RECEIPT, BUDGET, NOISE, SETS = b"dpserve-receipt", b"dpserve-budget", b"dpserve-noise", b"dpserve-prediction-sets"
"""The headers of an answer that is an array alone: what an answer in JSON has beside its predictions."""

_JSON = frozenset({b"application/json", b"text/json", b"", b"application/x-www-form-urlencoded", b"text/plain"})
"""The last three are what a client's own default says, of no body or of any: curl's, urllib's and browsers'."""

_NPY = npy.MEDIA_TYPE.encode()

_AS_JSON: Mapping[bytes, bytes] = {b"content-type": b"application/json"}

_GZIP = b"\x1f\x8b"
"""The first bytes of a gzip file."""

_WEIGHT_0 = re.compile(rb";\s*q\s*=\s*0(?:\.0*)?\s*(?:;|$)", re.IGNORECASE)
_PLACE = re.compile(r" - at `\$\.(\w+)(?:\[(\d+)\])?(?:\[(?:(\d+)|\.\.\.)\])?`$")

_BESIDE = 64
"""Members of a body beside its rows, and what stands between them, with room to spare."""

_decode = msgspec.json.Decoder(PredictRequest).decode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_PLAIN = AnswerOptions()
_NO_TEXTS: tuple[UnencodedTexts, ...] = ()
_Parsed = TypeVar("_Parsed")

Rows = Sequence[list[float] | dict[str, Value]] | NDArray[np.floating[Any]]


def json_of(values: NDArray[Any]) -> Any:
    """Return an array of finite numbers, or of booleans, for msgspec to write where lists of them are declared.

    A number is written in the fewest digits that stand for its float64. None becomes a Python object: that takes less
    than half of the time.
    """
    kind: Any = np.float64 if values.dtype.kind == "f" else None
    return msgspec.Raw(orjson.dumps(np.ascontiguousarray(values, dtype=kind), option=orjson.OPT_SERIALIZE_NUMPY))


def receipt_of(predictor: Predictor, prediction: Prediction) -> ReceiptOut:
    """Return what a request was charged."""
    charge, currency = prediction.charge, prediction.charge.balance.budget.currency
    return ReceiptOut(
        id=charge.receipts[-1].number if charge.receipts else charge.earlier,
        model=predictor.name,
        mechanism=predictor.mechanism_name,
        status=predictor.mechanism_status,
        rows=len(prediction.values),
        charged_rows=prediction.charged_rows,
        replayed_rows=prediction.replayed_rows,
        currency=currency.name,
        price_per_row=(currency.price(predictor.price_per_row) or 0) / PER_UNIT,
        charged=charge.charged / PER_UNIT,
    )


def budget_of(predictor: Predictor, prediction: Prediction) -> BudgetOut:
    """Return the client's account."""
    balance, price = prediction.charge.balance, predictor.price_per_row
    return BudgetOut(
        currency=balance.budget.currency.name,
        limit=balance.budget.limit / PER_UNIT,
        spent=balance.spent / PER_UNIT,
        remaining=balance.remaining / PER_UNIT,
        queries_left=balance.questions_left(price) if price.losses else None,
        unlimited=not price.losses,
        status="unproven" if balance.budget.accepts in UNPROVEN else "proven",
    )


def headers_of(predictor: Predictor, prediction: Prediction) -> dict[bytes, bytes]:
    """Return receipt, budget and, where it is asked for, noise as headers, whose length hardly grows with the rows.

    The scale is the largest of the rows, and a probability p stands for one from p/(p + (1 - p) e^above) to
    p/(p + (1 - p) e^-below). `undecided` has a bit for each row, the first the highest of its byte, in hexadecimal.
    """
    headers = {
        RECEIPT: _encode(receipt_of(predictor, prediction)),
        BUDGET: _encode(budget_of(predictor, prediction)),
    }
    if (noise := prediction.noise) is None:
        return headers
    reach = noise.reach
    above, below = (None, None) if reach is None else reach.max(axis=(0, 2)).tolist()
    said = NoiseHeaderOut(
        law=noise.noise.law_name,
        on=noise.noise.on,
        scale=None if noise.scale is None else float(noise.scale.max()),
        coverage=COVERAGE,
        above=above,
        below=below,
        undecided=None if (undecided := noise.undecided) is None else np.packbits(undecided).tobytes().hex(),
        no_interval=noise.noise.no_interval or None,
    )
    return headers | {NOISE: _encode(said)}


def noise_out(uncertainty: Uncertainty) -> AnswerNoiseOut:
    """Return how far noise may have moved each answer."""
    noise, scale, undecided = uncertainty.noise, uncertainty.scale, uncertainty.undecided
    lower, upper = (None, None) if (ends := uncertainty.intervals) is None else map(json_of, ends)
    return AnswerNoiseOut(
        law=noise.law_name,
        on=noise.on,
        scale=None if scale is None else scale.tolist(),
        coverage=COVERAGE,
        undecided=msgspec.UNSET if undecided is None else undecided.tolist(),
        lower=lower,
        upper=upper,
        no_interval=noise.no_interval or None,
    )


def _with_query(options: AnswerOptions, header: RequestHeader) -> AnswerOptions:
    """Return the options of a body and of a query together. Raises a 400 problem where they differ in one."""
    coverage = header.number("coverage")
    if coverage is not None and options.coverage not in (None, coverage):
        raise invalid("the body and the query name different coverages")
    clip = header.flag("clip") if "clip" in header.query else None
    if clip is not None and options.clip not in (None, clip):
        raise invalid("the body and the query differ in 'clip'")
    return AnswerOptions(
        options.noise or header.flag("noise"),
        options.coverage if coverage is None else coverage,
        options.clip if clip is None else clip,
    )


def sets_out(predictor: Predictor, prediction: Prediction, coverage: int, *, of_rows: bool = True) -> PredictionSetsOut:
    """Return prediction sets. coverage: in thousandths. of_rows: whether to say those of the rows, or only the rule."""
    sets, classes = predictor.prediction_sets, predictor.outputs.classes
    assert sets is not None
    assert classes is not None
    inside = sets.sets_of(prediction.values, coverage) if of_rows else ()
    return PredictionSetsOut(
        coverage=coverage / PER_MILLE,
        by=sets.by,
        least=sets.least(coverage, len(classes)).tolist(),
        classes=[list(compress(classes, row)) for row in inside],
    )


class RowsCodec:
    """`POST /predict`."""

    parameters = frozenset({"clip", "coverage", "dry_run", "noise"})

    def decode(self, predictor: Predictor, header: RequestHeader, body: bytes) -> RowsRequest:
        """Return what is asked for. Raises Problem and the refusals of a predictor's checks."""
        kind = header.fields.get(b"content-type", b"")
        if kind not in _JSON:
            kind = _media_type(kind)
        rows: Rows
        options = _PLAIN
        if kind.endswith(b"+json") or kind in _JSON:
            if body.startswith(_GZIP):
                raise invalid("send the body without compression")
            read = rows_and_members(body, "instances", predictor.width, predictor.largest_batch)
            if read is not None and not read[1]:
                rows = read[0]
            else:
                rows, options = _rows_and_options(predictor, body, read)
        elif kind == _NPY:
            rows = npy.parse_npy(body)
        else:
            detail = f"the body's Content-Type is not known here: send application/json or {npy.MEDIA_TYPE}"
            raise Problem(ProblemType.INVALID_REQUEST, detail, status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        if header.query:
            options = _with_query(options, header)
        coverage = None if options.coverage is None else predictor.check_coverage(options.coverage)
        idempotency = header.idempotency(body) if b"idempotency-key" in header.fields else None
        if isinstance(rows, np.ndarray):
            X, unencoded = predictor.check_array(rows, clip=options.clip), _NO_TEXTS
        else:
            X, unencoded = _checked(predictor, rows, options.clip)
        return RowsRequest(X, idempotency, header.deadline, options.noise, coverage, unencoded)

    def encode(
        self, predictor: Predictor, header: RequestHeader, request: RowsRequest, prediction: Prediction
    ) -> Reply:
        """Return the answer as JSON; as an array where the client accepts one."""
        accept = header.fields.get(b"accept", b"").lower()
        if _NPY in accept and _accepts_npy(accept):
            headers = {b"content-type": _NPY} | headers_of(predictor, prediction)
            if request.coverage is not None:
                headers[SETS] = _encode(sets_out(predictor, prediction, request.coverage, of_rows=False))
            return npy.npy_of(prediction.values), headers
        values = prediction.values
        predictions: Any = json_of(values) if predictor.outputs.classes else predictor.outputs.objects(values)
        response = PredictResponse(
            predictions,
            receipt_of(predictor, prediction),
            budget_of(predictor, prediction),
            msgspec.UNSET if prediction.noise is None else noise_out(prediction.noise),
            msgspec.UNSET if request.coverage is None else sets_out(predictor, prediction, request.coverage),
            True if predictor.rehearsal else msgspec.UNSET,
        )
        return _encode(response), _AS_JSON

    def encode_quote(self, predictor: Predictor, quote: RowsQuote) -> Reply:
        """Return a quote."""
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
            price_per_row=quote.currency.value(quote.currency.price(predictor.price_per_row) or 0),
            cost=quote.currency.value(quote.total),
            shown_cost=quote.shown_cost,
            admitted=refusal is None,
            refusal=kind,
            scope=getattr(refusal, "scope", None),
        )
        return _encode(QuoteResponse(out, True if predictor.rehearsal else msgspec.UNSET)), _AS_JSON


def _rows_and_options(predictor: Predictor, body: bytes, read: RowsAndMembers | None) -> tuple[Rows, AnswerOptions]:
    """Return what a body in JSON asks that is more than a list of numbers. read: what simdjson reads of it."""
    try:
        if read is None:
            if len(body) >= SMALL:
                check_structure(body, _most_in(predictor), predictor.largest_batch)
            parsed = parsed_json(_decode, body)
            check_members(body, members_around(body) + sum(len(row) for row in parsed.instances if type(row) is dict))
            rows, options = cast(Rows, parsed.instances), cast(PredictOptions, parsed)
        else:
            rows, options = read[0], msgspec.convert(read[1], PredictOptions)
    except msgspec.ValidationError as error:
        problem = _not_rows(str(error))
        if problem.members.get("column") is not None:
            predictor.check_unnamed(problem.members["row"])
        raise problem from None
    if options.model is not None:
        predictor.check_model(options.model)
    return rows, options


def _checked(
    predictor: Predictor, rows: Sequence[object], clip: bool | None
) -> tuple[Floats, tuple[UnencodedTexts, ...]]:
    """Return rows as numbers: lists, or all name the model's columns. clip: as the predictor takes it.

    With them texts that are yet to be computed into them.
    """
    kinds = set(map(type, rows))
    if kinds <= {list}:
        return predictor.check_rows(cast(Sequence[list[float]], rows), clip=clip), ()
    if kinds == {dict}:
        return predictor.check_named(cast(Sequence[dict[str, Value]], rows), clip=clip)
    raise InvalidRows("either every row is a list of numbers, or every row names the model's columns")


def parsed_json(decode: Callable[[bytes], _Parsed], body: bytes) -> _Parsed:
    """Return what `decode` makes of the body, or raise the 400 problem of one that is no JSON."""
    try:
        return decode(body)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed_json(error) from None


def check_members(body: bytes, members: int) -> None:
    """Raise a 400 problem for a body of JSON with a member twice: readers differ in which of the two they take.

    members: how many different ones its objects have, as far as the reader has looked.
    """
    if body.count(b":") == members or structure_of(body).members == members:
        return
    try:
        json.JSONDecoder(object_pairs_hook=_names_once, parse_int=float, parse_constant=float).decode(body.decode())
    except (ValueError, RecursionError) as error:  # in what the reader skipped
        raise malformed_json(error) from None


def members_around(body: bytes) -> int:
    """Return how many different members the object has that a body is. Raises what msgspec does."""
    return len(_members(body))


def _names_once(pairs: list[tuple[str, object]]) -> None:
    if (twice := repeated(name for name, _ in pairs)) is not None:
        raise invalid(f"the body has the member {quoted(twice)} twice")


def _most_in(predictor: Predictor) -> Structure:
    """Return the most that a body may have: its rows are lists, or objects with a member for each column."""
    rows, named = predictor.largest_batch, len(predictor.column_names)
    return Structure(
        commas=rows * max(predictor.width, named) + _BESIDE,
        members=rows * named + _BESIDE,
        lists=rows + _BESIDE,
        objects=rows + _BESIDE,
    )


def malformed_json(error: Exception) -> Problem:
    """Return the problem of a body that is no JSON."""
    why = {RecursionError: "it nests too deeply", UnicodeDecodeError: "it is not UTF-8"}.get(type(error), str(error))
    return Problem(ProblemType.MALFORMED_JSON, f"the body is not JSON: {why}")


def _not_rows(message: str) -> Problem:
    """Return the problem of JSON that is not what is asked for, by msgspec's message and its path in the body."""
    location = _PLACE.search(message)
    named = location[1] if location else None
    if named != "instances" and "`instances`" not in message:
        reason = message.partition(" - at ")[0]
        detail = f'{named or "the body"}: {reason}; expected {{"instances": [[number, ...], ...]}}'
        return Problem(ProblemType.INVALID_REQUEST, detail, status=HTTPStatus.UNPROCESSABLE_ENTITY)
    row, column = (
        (None if place is None else int(place) for place in location.groups()[1:]) if location else (None, None)
    )
    if location is None:
        detail = "'instances' is missing; send {\"instances\": [[number, ...], ...]}"
    elif row is None:
        detail = "'instances' must be a list of rows, each a list of numbers or an object"
    elif column is None:
        detail = f"row {row} must be a list of numbers, or an object with a value for each column"
    else:
        detail = f"row {row}, column {column} must be a finite number"
    return Problem(ProblemType.INVALID_ROWS, detail, row=row, column=column)


def _media_type(content_type: bytes) -> bytes:
    return content_type.partition(b";")[0].strip().lower()


def _accepts_npy(accept: bytes) -> bool:
    """Return whether an array is named in `Accept`, and not with the weight 0, which refuses it (RFC 9110)."""
    named = [part for part in accept.split(b",") if _media_type(part) == _NPY]
    return any(not _WEIGHT_0.search(part) for part in named)
