"""A prediction without a transport: what every served model has in common.

The way of a request: authenticate, validate, compute public features, charge, and only then look at the model's private
numbers and answer. All rows of a request are answered, or none. Subclasses say how an answer is paid for.
"""

import asyncio
import hashlib
import json
import math
import os
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, Literal, TypeVar, cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from pydantic import Field

from dpserve.accounting.arrays import Floats, Mask
from dpserve.accounting.currency import Currency
from dpserve.accounting.disclosure import Declared, DisclosedModel, Reader, shown
from dpserve.accounting.explanation import AccountExplanation, explain_account
from dpserve.accounting.ledger import (
    BlockAccount,
    Charge,
    ClientAccount,
    Idempotency,
    KeyExpired,
    Ledger,
    LedgerRefusal,
    Receipt,
)
from dpserve.accounting.losses import Cost
from dpserve.accounting.remembered import forget_all
from dpserve.accounting.report import AccountState, RowPrice, row_price
from dpserve.mechanisms.answer_noise import AnyNoise, Uncertainty
from dpserve.mechanisms.randomness import frame_parts
from dpserve.service.encoding import Encoding
from dpserve.service.errors import DeadlinePassed, InvalidCoverage, InvalidRows, UnknownModel
from dpserve.service.places import in_thread
from dpserve.training.bundles.certificate import ModelCertificate
from dpserve.training.features.feature_map import FeatureMap, bounds_of
from dpserve.training.fields import repeated
from dpserve.training.inputs.column import NUMBER_BYTES, quoted
from dpserve.training.inputs.columns import (
    CHARACTERS_AT_ONCE,
    MISSING_VALUES,
    RowRefused,
    UnencodedTexts,
    bytes_by_name,
    checked_rows,
    in_row,
    wrong_names,
)
from dpserve.training.kinds.registry import kind_of
from dpserve.training.pay_once.coverage import thousandths
from dpserve.training.pay_once.prediction_sets import PredictionSets

INTERVAL, UNDECIDED, PREDICTION_SET = ("lower", "upper"), "undecided", "prediction_set"
"""The parts of an answer beside its outputs: the ends of intervals, whether noise could have made the winner, and which
classes are in a prediction set."""

LARGEST_BODY = 16 * 2**20
"""Bytes of a body, and of its rows' numbers and of their features in memory, whatever a model's rows take."""
_SHOWN = 8
"""The most columns of the row that is shown to whoever sent a list."""
_BESIDE_ROWS = 16 * 1024
"""Bytes of a body beside its rows."""
_SMALL_ROWS = 2**20
"""Bytes of rows' numbers that are few."""
FEW_ROWS = 64
"""Rows that are computed on the event loop; while more are computed, other requests go on."""
_TEXTS_AT_ONCE = os.cpu_count() or 1
"""Texts that are encoded at a time: as many as there are threads for."""
"""The noise that a quote tells where nothing was encoded for it."""
Encoded = TypeVar("Encoded")
_EXPLAINING = ThreadPoolExecutor(max_workers=1, thread_name_prefix="explaining")

Value = str | float | bool | None
Clock = Callable[[], float]


class Caller(Struct, frozen=True):
    """Who asks. key_digest: of the API key that said so, which is checked again with the charge.

    Without a key the client was authenticated by other means, until `expires` (seconds since the epoch); that is
    checked again just before the charge.
    """

    client: str
    key_digest: bytes = b""
    expires: float = math.inf


class RowsRequest(Struct, frozen=True, eq=False):
    """Rows to be answered. X: (n, d), validated. deadline: by `time.monotonic`, after which nothing is charged.

    noise: whether the answer is to say how far noise may have moved it. coverage: of prediction sets, in thousandths,
    where they are asked for. unencoded: texts that are yet to be computed into X (`Predictor.encode`).
    """

    X: Floats
    idempotency: Idempotency | None = None
    deadline: float = math.inf
    noise: bool = False
    coverage: int | None = None
    unencoded: tuple[UnencodedTexts, ...] = ()

    @property
    def deep(self) -> bool:
        """Whether a deep network has yet to compute some of X."""
        return any(texts.deep for texts in self.unencoded)

    def digests(self) -> tuple[bytes, ...]:
        """Return 16 bytes for each row as it was asked, before anything is encoded: equal rows have the same."""
        said = zip(self.X, *(texts.values for texts in self.unencoded), strict=True)
        return tuple(
            hashlib.blake2b(
                frame_parts(row.tobytes(), *(text.encode("utf-8", "surrogatepass") for text in texts)),
                digest_size=16,
                person=b"dpserve dry run",
            ).digest()
            for row, *texts in said
        )


class Prediction(Struct, frozen=True, eq=False, kw_only=True):
    """One request's answers. values: (n, numbers), row by row as asked, by the model's outputs: (n, C) of classes."""

    values: Floats
    noise: Uncertainty | None
    """Bounds on how far noise may have moved them; None where nobody asks for them."""
    charge: Charge
    """Its balance is of half a second before, where nothing had to be asked of the ledger."""
    charged_rows: int = 0
    """The number of rows that the client paid for now."""
    replayed_rows: int = 0
    """The number of rows that were paid for before and cost nothing now."""


@dataclass(frozen=True)
class RowsQuote:
    """The cost of an answer now, in 1e-12 of `currency`, and as a person reads it, as in the ledger's `Quote`.

    free: of each row whether it would cost nothing.

    refusal: what charging it would raise. Of a pay-once model only the model costs, and its rows are free.
    """

    total: int
    free: tuple[bool, ...]
    refusal: LedgerRefusal | None
    currency: Currency
    shown_cost: float | None


@dataclass(frozen=True)
class Standing:
    """The share of a client in one model. paid: whether it has paid for a pay-once model; None of another.

    shown_cost: by how much its account would grow with it, as a `Quote` has it; None where it has paid, where its
    account never pays for it, and where each answer is paid for. admitted: whether it would be admitted. answers_left:
    how many of these its account pays for; None of a pay-once model.
    """

    model: str
    paid: bool | None = None
    shown_cost: float | None = None
    admitted: bool = False
    answers_left: int | None = None


class ServedModel(DisclosedModel):
    """The members of `GET /models/NAME` beside the certificate. price: of a pay-once model."""

    name: Declared[str]
    mechanism: Declared[str]
    mechanism_status: Declared[Literal["proven", "unproven"]]
    price_per_row: Declared[RowPrice]
    price: Declared[RowPrice | None] = Field(default=None, exclude_if=lambda price: price is None)
    largest_batch: Declared[int]
    outputs: Declared[tuple[Mapping[str, Any], ...]]


class Predictor(ABC):
    """Serves one model of one lineage."""

    mechanism_name: str
    mechanism_status: Literal["proven", "unproven"]
    price_per_row: Cost
    _noise: AnyNoise
    """As the answer to one row has it: of which kind noise is here."""

    def __init__(
        self,
        certificate: ModelCertificate,
        ledger: Ledger,
        *,
        largest_batch: int,
        name: str | None = None,
        clock: Clock = time.time,
    ) -> None:
        """Serve the model that `certificate` describes. largest_batch: the most rows of one request.

        Fewer where their numbers or features take more than the largest body. name: under which it is asked; None for
        the certificate's.
        """
        self.certificate = certificate
        self.name = certificate.name if name is None else name
        self.outputs = kind_of(certificate).outputs(certificate)
        self._ledger = ledger
        self._clock = clock
        features = certificate.feature_map
        self._lower, self._upper, _ = bounds_of(features.lower, features.upper)
        self.width = len(features.lower)
        """Number of the features of a row."""
        # Strangers are told the largest batch: so it follows from the coordinates that were declared.
        mapped = features.declared.dimension if isinstance(features, FeatureMap) else 0
        self._numbers = self.width + mapped
        """Number of a row's numbers and of its features together, at most."""
        self.largest_batch = max(1, min(largest_batch, LARGEST_BODY // (8 * max(self.width, mapped))))
        columns = certificate.columns
        self.column_names = tuple(column.name for column in columns) if columns else certificate.feature_names
        """The names that a row by name has."""
        # A value of a column takes two bytes of a body at least, and may become thousands of numbers.
        least_row = 2 * len(self.column_names)
        self.small_body = _SMALL_ROWS // (8 * self.width) * least_row
        """Bytes of a body whose rows are small whatever it says."""
        longest_row = max(self.width * NUMBER_BYTES + len("[], "), bytes_by_name(columns, self.column_names))
        self.largest_body = min(_BESIDE_ROWS + self.largest_batch * longest_row, LARGEST_BODY)
        """Bytes of a request's body: what the largest batch takes in full precision, or less."""
        self._packing = struct.Struct(f"{self.width}d").pack
        self._encoding = Encoding()
        self._encoded_rows = 0

    @cached_property
    def rehearsal(self) -> bool:
        """Whether the ledger may lose charges, so that nothing here is to be relied upon."""
        return self._ledger.rehearsal

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that an answer may have, its outputs first.

        Draws, and noise of which nothing is known, have no intervals, and do not say what is undecided.
        """
        reaches = not self._noise.no_interval
        ends = INTERVAL if reaches else ()
        undecided = (UNDECIDED,) if reaches and self.outputs.classes is not None else ()
        sets = (PREDICTION_SET,) if self.prediction_sets is not None else ()
        return (*(each.name for each in self.outputs.fields), *ends, *undecided, *sets)

    @property
    def prediction_sets(self) -> PredictionSets | None:
        """Prediction sets of the model, if it has any."""
        return None

    @property
    def lineage(self) -> str:
        """The lineage whose account pays for every answer."""
        return self.certificate.lineage

    @property
    def unit(self) -> str | None:
        """The column of privacy units; None where the certificate protects one record, or promises nothing."""
        return getattr(self.certificate, "unit", None)

    def check_model(self, name: str) -> None:
        """Raise UnknownModel unless `name` is the served model's."""
        if name != self.name:
            raise UnknownModel(f"{quoted(name)} is not {self.name!r}, which is asked here; ask /models/{name}/predict")

    def check_rows(self, instances: Sequence[Sequence[float]], *, clip: bool | None = None) -> Floats:
        """Return the rows as (n, d) float64, or raise InvalidRows naming the first that cannot be asked about.

        clip: whether to clip finite values to their bounds instead of refusing them; None: as in training.
        """
        self.check_count(len(instances))
        features = self.width
        for index, row in enumerate(instances):
            if len(row) != features:
                self.check_unnamed(index)
                raise InvalidRows(f"row {index} has {len(row)} values; the model takes {features}", index)
        packed = b"".join([self._packing(*row) for row in instances])  # four times as fast as numpy.array
        return self._within_bounds(np.frombuffer(packed).reshape(len(instances), features), clip)

    def check_unnamed(self, row: int) -> None:
        """Raise InvalidRows for a list that is no row, where the model has named columns: it shows an object."""
        if columns := self.certificate.columns:
            shown = json.dumps({column.name: column.example for column in columns[:_SHOWN]}, ensure_ascii=False)
            if len(columns) > _SHOWN:
                shown = f"{shown[:-1]}, ...}}"
            raise InvalidRows(f"row {row} is a list, and the model has named columns: send an object, as {shown}", row)

    def check_named(
        self, instances: Sequence[Mapping[str, Value]], *, clip: bool | None = None
    ) -> tuple[Floats, tuple[UnencodedTexts, ...]]:
        """Return rows by the names of their columns as (n, d) float64, encoded as the model's schema says.

        With them what is yet to be computed into them (`encode`). clip: as for `check_rows`. Raises InvalidRows with
        all that is wrong with the first row that cannot be asked about.
        """
        self.check_count(len(instances))
        if self.certificate.columns:
            try:
                X, unencoded = checked_rows(self.certificate.columns, instances, clip=self._clips(clip))
            except RowRefused as refused:
                raise InvalidRows(str(refused), refused.row, refused.column) from None
            # The same array: what is yet to be encoded is written into it.
            self._check_inside((self._lower <= X) & (self._upper >= X))
            return X, unencoded
        names = self.certificate.feature_names
        column_names = set(names)
        for index, row in enumerate(instances):
            wrong = [] if row.keys() == column_names else wrong_names(names, row)
            others = [column for column, name in enumerate(names) if name in row and type(row[name]) is not float]
            wrong += [f"column {column} ({names[column]!r}) must be a number" for column in others]
            if wrong:
                raise InvalidRows(in_row(index, wrong), index, others[0] if others else None)
        return self.check_rows([[cast(float, row[name]) for name in names] for row in instances], clip=clip), ()

    def check_array(self, X: NDArray[np.floating[Any]], *, clip: bool | None = None) -> Floats:
        """Return the array as (n, d) float64, or raise InvalidRows naming the first row that cannot be asked about.

        clip: as for `check_rows`.
        """
        features = self.width
        if X.ndim != 2 or X.shape[1] != features:
            raise InvalidRows(f"the array has the shape {X.shape}; the model takes (rows, {features})")
        if not 0 < len(X) <= self.largest_batch:
            self.check_count(len(X))
        return self._within_bounds(X.astype(np.float64, copy=False), clip)

    def check_names(self, names: Sequence[str]) -> None:
        """Raise InvalidRows unless these name the model's columns, each once, in whatever order."""
        if (twice := repeated(names)) is not None:
            raise InvalidRows(f"the column {twice!r} is there more than once")
        if set(names) != set(self.column_names):
            advice = MISSING_VALUES if self.certificate.columns else ""
            raise InvalidRows(in_row(0, wrong_names(self.column_names, dict.fromkeys(names), advice)), 0)

    def check_count(self, rows: int) -> None:
        """Raise InvalidRows for no row, and for more than may be asked about at once."""
        if not rows:
            raise InvalidRows("the batch is empty; send at least one row")
        if rows > self.largest_batch:
            raise InvalidRows(f"the batch has {rows} rows; this service takes at most {self.largest_batch}")

    def _clips(self, clip: bool | None) -> bool:
        return self.certificate.clips if clip is None else clip

    def _within_bounds(self, X: Floats, clip: bool | None) -> Floats:
        inside = (self._lower <= X) & (self._upper >= X)
        if np.count_nonzero(inside) < inside.size:
            if self._clips(clip):
                X = np.where(np.isfinite(X), np.clip(X, self._lower, self._upper), X)
                inside = np.isfinite(X)
            self._check_inside(inside)
        # 0.0 and -0.0 are the same row: they must share one answer.
        return X + 0.0

    def _check_inside(self, inside: Mask) -> None:
        """Raise InvalidRows for the first row with values that are not inside (n, d)."""
        if not inside.all():
            index = int(np.argmin(inside.all(axis=1)))
            columns = [int(column) for column in np.flatnonzero(~inside[index])]
            names, declared = self.certificate.feature_names, self.certificate.feature_map
            wrong = [
                f"column {column} ({names[column]!r}) must be a number from {declared.lower[column]:g} to "
                f"{declared.upper[column]:g}, the declared bounds"
                for column in columns
            ]
            raise InvalidRows(in_row(index, wrong), index, columns[0])

    async def encode(self, client: str, request: RowsRequest) -> None:
        """Compute a request's texts into its rows, which nothing is charged for.

        Clients take turns, some texts at a time, and nothing is done for one who is gone. Raises Overloaded,
        DeadlinePassed, and InvalidRows for more than a deep network computes in time.
        """
        rows = len(request.X)
        parts = [
            (texts, start, start + at_once)
            for texts in request.unencoded
            for at_once in (_at_once(texts, rows),)
            for start in range(0, rows, at_once)
        ]

        async def compute(place: int) -> None:
            texts, start, stop = parts[place]
            await in_thread(texts.encode, start, stop)

        sizes = [texts.characters(start, stop) for texts, start, stop in parts]
        await self._encoded(client, request, sizes, compute, limited=request.deep)

    async def _encoded(
        self,
        client: str,
        request: RowsRequest,
        sizes: Sequence[int],
        compute: Callable[[int], Awaitable[Encoded]],
        *,
        limited: bool = True,
    ) -> list[Encoded]:
        """Return what `Encoding.in_parts` does, and count the request's rows meanwhile."""
        rows = len(request.X)
        self._encoded_rows += rows
        try:
            return await self._encoding.in_parts(client, rows, sizes, compute, request.deadline, limited=limited)
        finally:
            self._encoded_rows -= rows

    def check_coverage(self, coverage: float) -> int:
        """Return the coverage of prediction sets that is asked for, in thousandths.

        Raises InvalidCoverage for one that cannot be asked for, and where the model has no prediction sets.
        """
        if self.prediction_sets is None:
            raise InvalidCoverage("this model has no prediction sets: no records were held back for them")
        try:
            return thousandths(coverage)
        except ValueError as error:
            raise InvalidCoverage(str(error)) from None

    async def confirm(self, caller: Caller) -> Caller:
        """Return whose the caller's key is now. Raises UnknownKey, KeyExpired and ClientRevoked."""
        if (ended := self.late(caller)) is not None:
            raise ended
        if not caller.key_digest:
            return caller
        return Caller(
            (await self._ledger.api_keys.authenticate(self.lineage, caller.key_digest)).client, caller.key_digest
        )

    def late(self, caller: Caller, deadline: float = math.inf) -> DeadlinePassed | KeyExpired | None:
        """Return why a request must not be charged any more, or answered: its deadline, or the caller's token."""
        if time.monotonic() >= deadline:
            return DeadlinePassed()
        return KeyExpired("token") if self._clock() >= caller.expires else None

    @abstractmethod
    async def predict(self, caller: Caller, request: RowsRequest) -> Prediction:
        """Answer all rows, charging the client and the lineage for what is new, or none.

        Raises Overloaded, DeadlinePassed and what the ledger raises; then nothing was charged. A charge that was sent
        to the ledger before the deadline is waited for and answered, however late. Cancelling the caller withdraws what
        is not charged yet; what is charged stays so, and asking again is free.
        """

    def forget(self, caller: Caller) -> None:
        """Forget whose the caller's key was: it is refused."""
        self._ledger.api_keys.forget(self.lineage, caller.key_digest)

    @property
    def waiting_rows(self) -> int:
        """Rows of the requests that wait for a batch, of any kind."""
        return self._encoded_rows

    @abstractmethod
    async def drain(self) -> None:
        """Wait until every charge that was sent to the ledger is decided."""

    @abstractmethod
    async def quote(self, client: str, request: RowsRequest) -> RowsQuote:
        """Return what `predict` would cost now. Spends nothing and computes no logits.

        Raises what `Ledger.quote` raises.
        """

    @cached_property
    def public_model(self) -> dict[str, Any]:
        """The part of the certificate that anybody may see, and how the model is served.

        Made once, before the first request: a stranger's request takes no time that depends on what was released.
        """
        served = ServedModel(
            name=self.name,
            mechanism=self.mechanism_name,
            mechanism_status=self.mechanism_status,
            price_per_row=row_price(self.price_per_row),
            price=self._price,
            largest_batch=self.largest_batch,
            outputs=tuple(self.outputs.described()),
        )
        return self.certificate.shown_to_strangers() | shown(served, Reader.STRANGER)

    @property
    def _price(self) -> RowPrice | None:
        """The price of a pay-once model; None of another."""
        return None

    async def explained_budget(
        self, client: str, *, unlimited: bool = False, limiting_block: str | None = None
    ) -> AccountExplanation:
        """Return the client's account and its explanation. Raises UnknownClient.

        unlimited: whether the client holds a model that is paid for once. limiting_block: the block that does not pay
        for it, if one is why not.

        A numerical PLD can take seconds: the analyses run in a thread of their own, one explanation at a time, and
        the newest are kept, for only a paid release changes them.
        """
        account, shared, whole = await self._ledger.payers(self.lineage, client, self.certificate.blocks)
        payers = [account, *shared]
        price = self.price_per_row
        answers = [each.answers_left(price) for each in payers] if price.losses else []
        least = min(zip(answers, payers, strict=True), key=lambda each: each[0])[1] if answers else None
        explained = partial(
            _explained,
            client,
            account.state,
            price=price,
            shared_answers=min(answers, default=None),
            unlimited=unlimited,
            limiting_block=least.block if isinstance(least, BlockAccount) else limiting_block,
            unit=whole.unit or None,
            blocks=tuple(self.certificate.blocks),
        )
        return await asyncio.get_running_loop().run_in_executor(_EXPLAINING, explained)

    @abstractmethod
    async def standing(self, account: ClientAccount) -> "Standing":
        """Return what a client has of the model, and may still buy of it. Spends nothing."""

    async def currency(self, client: str) -> Currency:
        """Return what the client's account counts. Raises UnknownClient."""
        return (await self._ledger.client(self.lineage, client)).budget.currency

    async def receipts(self, client: str, *, after: int, count: int) -> list[Receipt]:
        """Return at most `count` of the client's receipts above `after`."""
        return await self._ledger.client_page(self.lineage, client, after=after, count=count)

    async def check_ready(self) -> None:
        """Raise LedgerError unless the ledger can charge the lineage's account now, journal included."""
        await self._ledger.check(self.lineage)


def _at_once(texts: UnencodedTexts, rows: int) -> int:
    """Return how many of the texts of so many rows are encoded at a time."""
    return _TEXTS_AT_ONCE if texts.deep else max(1, rows * CHARACTERS_AT_ONCE // texts.characters(0, rows))


@lru_cache(maxsize=1024)
def _explained(client: str, state: AccountState, **asked: Any) -> AccountExplanation:
    """Return what `explain_account` does. A kept explanation is answered sooner.

    So nothing that others ask or are told may decide whether it is kept: what is left of the lineage's budget counts
    only where it is less than the client's own, and no client gets what was kept for another, nor a part of it.
    """
    del client
    forget_all()
    return explain_account(state, **asked)
