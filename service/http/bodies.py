"""Reading a request's body once, within a limit, into validated rows."""

import asyncio
from http import HTTPStatus

import msgspec
from fastapi import Request
from pydantic import ValidationError

from service.http.problems import Problem, ProblemType
from service.http.schemas import PredictRequest

SECONDS_FOR_BODY = 30.0
SMALL_BODY = 64 * 1024
"""Bytes of a body that is read and parsed in one go."""

_GZIP = b"\x1f\x8b"
"""How what gzip made begins."""


async def read_body(request: Request, largest: int) -> bytes:
    """Return the body, or raise a 413 problem as soon as it is longer than `largest` bytes."""
    too_large = Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        ProblemType.BODY_TOO_LARGE,
        f"the body is longer than {largest} bytes; send fewer rows at a time",
        limit_bytes=largest,
    )
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > largest:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(SECONDS_FOR_BODY):
            async for chunk in request.stream():
                body += chunk
                if len(body) > largest:
                    raise too_large
    except TimeoutError:
        raise body_too_late() from None
    return bytes(body)


def body_too_late() -> Problem:
    """Return the problem that a body which does not arrive is answered with."""
    return Problem(
        HTTPStatus.REQUEST_TIMEOUT,
        ProblemType.INVALID_REQUEST,
        f"the body did not arrive within {SECONDS_FOR_BODY:g} seconds",
    )


class Rows(msgspec.Struct, forbid_unknown_fields=True):
    """What a JSON body says, as `PredictRequest` describes it."""

    instances: list[list[float]]
    model: str | None = None
    tier: str | None = None


_decode = msgspec.json.Decoder(Rows).decode


async def parse_off_the_loop(body: bytes) -> Rows:
    """Return the parsed body as `parse_rows` does; other requests go on while a large one is parsed."""
    if len(body) < SMALL_BODY:
        return parse_rows(body)
    return await asyncio.to_thread(parse_rows, body)


def parse_rows(body: bytes) -> Rows:
    """Return the parsed body, or raise a 400 or 422 problem that says where it goes wrong."""
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        parsed = parse_predict_request(body)  # which finds out where
    return Rows(parsed.instances, parsed.model, parsed.tier)


def parse_predict_request(body: bytes) -> PredictRequest:
    """Return the parsed body, or raise a 400 or 422 problem that says where it goes wrong."""
    try:
        return PredictRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if first["type"] == "json_invalid" and body.startswith(_GZIP):
        raise Problem(HTTPStatus.BAD_REQUEST, ProblemType.INVALID_REQUEST, "send the body without compression")
    if first["type"] == "json_invalid":
        raise Problem(
            HTTPStatus.BAD_REQUEST, ProblemType.MALFORMED_JSON, f"the body is not JSON: {first['msg'].lower()}"
        )
    where = first["loc"]
    if where and where[0] == "instances":
        row, column = (*where[1:3], None, None)[:2]
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            ProblemType.INVALID_ROWS,
            _rows_sentence(where, first["msg"]),
            row=row,
            column=column,
        )
    name = ".".join(str(part) for part in where) or "the body"
    raise Problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        ProblemType.INVALID_REQUEST,
        f'{name}: {first["msg"].lower()}; expected {{"instances": [[number, ...], ...]}}',
    )


def _rows_sentence(where: tuple[int | str, ...], message: str) -> str:
    match where:
        case ("instances",) if message.startswith("Field required"):
            return "'instances' is missing; send {\"instances\": [[number, ...], ...]}"
        case ("instances",):
            return "'instances' must be a list of rows, each a list of numbers"
        case ("instances", row):
            return f"row {row} must be a list of numbers"
        case ("instances", row, column, *_):
            return f"row {row}, column {column} must be a finite number"
    return message
