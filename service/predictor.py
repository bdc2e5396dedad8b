"""A prediction without a transport: what every served model has in common.

The way of a request: authenticate, validate, compute public features, charge, and only then look at the model's private
numbers and answer. All rows of a request are answered, or none. Subclasses say how an answer is paid for.
"""

import asyncio
import math
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from accounting.budgets import Budget
from accounting.explanation import AccountExplanation, explain_account
from accounting.ledger import ClientAccount, Idempotency, KeyExpired, Ledger, Quote, Receipt
from accounting.losses import Cost
from accounting.report import AccountReport, account_report
from service.errors import InvalidRows, UnknownModel

Floats = NDArray[np.float64]
Clock = Callable[[], float]


class Bounds(Protocol):
    """A feature map, as far as a service looks at it."""

    @property
    def lower(self) -> tuple[float, ...]:
        """The declared lower bound of each feature."""
        ...

    @property
    def upper(self) -> tuple[float, ...]:
        """The declared upper bound of each feature."""
        ...


class ServedCertificate(Protocol):
    """A certificate, as far as a service looks at it."""

    @property
    def name(self) -> str:
        """The model's public name."""
        ...

    @property
    def lineage(self) -> str:
        """Whose account pays."""
        ...

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The columns of a row."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """What the columns of an answer stand for."""
        ...

    @property
    def feature_map(self) -> Bounds:
        """Where the declared bounds are."""
        ...

    def public(self) -> dict[str, object]:
        """What may be shown to clients."""
        ...


class Caller(Struct, frozen=True):
    """Who asks. key_digest: of the API key that said so, which is checked again with the charge.

    Without a key the client was authenticated by other means, until `expires` (seconds since the epoch); that is
    checked again just before the charge.
    """

    client: str
    key_digest: bytes = b""
    expires: float = math.inf


class Asked(Struct, frozen=True, eq=False):
    """What a request asks for. X: (n, d), validated. deadline: by `time.monotonic`, after which nothing is charged."""

    X: Floats
    tier: str | None = None
    idempotency: Idempotency | None = None
    deadline: float = math.inf


class Prediction(Struct, frozen=True, eq=False):
    """One request's answers. probabilities: (n, C), row by row as asked; receipt: None if nothing was charged."""

    probabilities: Floats
    receipt: Receipt | None
    budget: AccountReport
    """The client's account as it stood once this request was charged, or after that."""
    replayed: int
    """How many of the rows were paid for before and cost nothing now."""
    charged_rows: int
    charged: int
    """What the client paid for this request, in picorho."""
    earlier: int | None = None
    """The number of the receipt that the same request got when it came before, by its idempotency key."""
    tier: str | None = None
    """The precision that answered, of a pay-once model."""


@dataclass(frozen=True)
class AnswerNoise:
    """The law by which some rows' answers differ from those without noise, which is public. scale: one for each row.

    Gaussian noise has standard deviation `scale`; Laplace noise has density e^(-|x|/scale) / (2 scale). By an
    exponential law a class is drawn in proportion to e^(its logit / scale).
    """

    law: Literal["gaussian", "laplace", "exponential"]
    scale: tuple[float, ...]
    on: Literal["logits", "log-odds", "selection"] = "logits"
    """Each logit; the log-odds of the one class that was drawn; or which class is drawn."""


@dataclass(frozen=True)
class TierQuote:
    """What it would cost now to be answered at one tier: `rows` of them, or as many as there are."""

    tier: str
    rows: int
    hold: Quote


class Predictor(ABC):
    """Serves one model of one lineage."""

    mechanism_name: str
    mechanism_status: Literal["proven", "unproven"]
    price_per_row: Cost

    def __init__(
        self, certificate: ServedCertificate, ledger: Ledger, *, largest_batch: int, clock: Clock = time.time
    ) -> None:
        """Serve the model that `certificate` describes. largest_batch: the most rows of one request."""
        self.certificate = certificate
        self.largest_batch = largest_batch
        self._ledger = ledger
        self._clock = clock
        self._explaining = ThreadPoolExecutor(max_workers=1, thread_name_prefix="explaining")
        self._lower = np.asarray(certificate.feature_map.lower)
        self._upper = np.asarray(certificate.feature_map.upper)
        self._packing = struct.Struct(f"{len(self._lower)}d").pack

    @property
    def rehearsal(self) -> bool:
        """Whether the ledger may lose charges, so that nothing here is to be relied upon."""
        return self._ledger.rehearsal

    @property
    def tier_names(self) -> tuple[str, ...]:
        """The precisions that may be asked for, the coarsest first; none where each answer has noise of its own."""
        return ()

    @property
    def lineage(self) -> str:
        """The lineage whose account pays for every answer."""
        return self.certificate.lineage

    def check_model(self, name: str) -> None:
        """Raise UnknownModel unless `name` is the served model's."""
        if name != self.certificate.name:
            raise UnknownModel(f"there is no model {name!r} here; this service has {self.certificate.name!r}")

    def check_rows(self, instances: Sequence[Sequence[float]]) -> Floats:
        """Return the rows as (n, d) float64, or raise InvalidRows naming the first that cannot be asked about."""
        self._check_count(len(instances))
        features = len(self._lower)
        for index, row in enumerate(instances):
            if len(row) != features:
                raise InvalidRows(f"row {index} has {len(row)} values; the model takes {features}", index)
        packed = b"".join([self._packing(*row) for row in instances])  # four times as fast as numpy.array
        return self._within_bounds(np.frombuffer(packed).reshape(len(instances), features))

    def check_array(self, X: NDArray[np.floating[Any]]) -> Floats:
        """Return the array as (n, d) float64, or raise InvalidRows naming the first row that cannot be asked about."""
        features = len(self._lower)
        if X.ndim != 2 or X.shape[1] != features:
            raise InvalidRows(f"the array has the shape {X.shape}; the model takes (rows, {features})")
        self._check_count(len(X))
        return self._within_bounds(X.astype(np.float64))

    def _check_count(self, rows: int) -> None:
        if not rows:
            raise InvalidRows("the batch is empty; send at least one row")
        if rows > self.largest_batch:
            raise InvalidRows(f"the batch has {rows} rows; this service takes at most {self.largest_batch}")

    def _within_bounds(self, X: Floats) -> Floats:
        inside = (self._lower <= X) & (self._upper >= X)
        if not inside.all():
            index, column = (int(place) for place in np.argwhere(~inside)[0])
            name = self.certificate.feature_names[column]
            raise InvalidRows(
                f"row {index}, column {column} ({name!r}) must be a number from {self._lower[column]:g} to "
                f"{self._upper[column]:g}, the declared bounds",
                index,
                column,
            )
        # 0.0 and -0.0 are the same row: they must share one answer.
        return X + 0.0

    @abstractmethod
    def check_tier(self, tier: str | None) -> None:
        """Raise UnknownTier for a precision that this model is not served at."""

    async def confirm(self, caller: Caller) -> Caller:
        """Return whose the caller's key is now. Raises UnknownKey, KeyExpired and ClientRevoked."""
        self.check_not_expired(caller)
        if not caller.key_digest:
            return caller
        return Caller((await self._ledger.authenticate(self.lineage, caller.key_digest)).client, caller.key_digest)

    def check_not_expired(self, caller: Caller) -> None:
        """Raise KeyExpired if the caller's token has ended."""
        if self._clock() >= caller.expires:
            raise KeyExpired("token")

    @abstractmethod
    async def predict(self, caller: Caller, asked: Asked) -> Prediction:
        """Answer all rows, charging the client and the lineage for what is new, or none.

        Raises Overloaded, DeadlinePassed and what the ledger raises; then nothing was charged. A charge that was sent
        to the ledger before the deadline is waited for and answered, however late.
        """

    async def drain(self) -> None:  # noqa: B027 - nothing outlives its request unless a subclass says so
        """Wait until everything that was charged is answered."""

    @abstractmethod
    async def quote(self, client: str, asked: Asked) -> "Quote | TierQuote":
        """Return what `predict` would cost now. Spends nothing and computes no logits.

        Raises what the ledger's quotes raise.
        """

    async def noise(self, X: Floats, tier: str | None = None) -> AnswerNoise | None:
        """Return the noise on answers to rows that `check_rows` returned; None where its law is not known.

        It follows from the certificate, the mechanism and the rows, and from no logit. tier: which would answer.
        """
        del X, tier
        return None

    @abstractmethod
    def model(self) -> dict[str, object]:
        """Return the public part of the certificate, and how the model is served."""

    async def budget(self, client: str) -> AccountReport:
        """Return what the client has spent, what is left, and what that means. Raises UnknownClient.

        `queries_left` is what both accounts can pay for: a release needs the client's and the lineage's.
        """
        account, left = await self._accounts(client)
        return account_report(account.tally, account.budget, price=self.price_per_row, lineage_left=left)

    async def explained_budget(self, client: str, *, unlimited: bool = False) -> AccountExplanation:
        """Return the client's account and its explanation. Raises UnknownClient.

        unlimited: whether the client holds a model that is paid for once.

        A numerical PLD can take seconds: the analyses run in a thread of their own, one explanation at a time, and
        the newest are kept, for only a paid release changes them.
        """
        account, left = await self._accounts(client)
        terms = _Terms(frozenset(account.tally.items()), account.budget, self.price_per_row, left, unlimited)
        return await asyncio.get_running_loop().run_in_executor(self._explaining, _explained, terms)

    async def holds(self, client: str) -> bool:
        """Return whether the client holds a pay-once model, so that its answers are unlimited."""
        del client
        return False

    async def _accounts(self, client: str) -> tuple[ClientAccount, int]:
        """Return the client's account, and the picorho left in the lineage's."""
        account, lineage = await self._ledger.payers(self.lineage, client)
        return account, lineage.remaining

    async def receipts(self, client: str, *, after: int, count: int) -> list[Receipt]:
        """Return at most `count` of the client's receipts with numbers above `after`, oldest first."""
        return await self._ledger.client_receipts(self.lineage, client, after=after, count=count)

    async def check_ready(self) -> None:
        """Raise LedgerError unless the ledger can charge the lineage's account now, journal included."""
        await self._ledger.check(self.lineage)


@dataclass(frozen=True)
class _Terms:
    """What an explanation depends on."""

    tally: frozenset[tuple[Cost, int]]
    budget: Budget
    price: Cost
    lineage_left: int
    unlimited: bool


@lru_cache(maxsize=1024)
def _explained(terms: _Terms) -> AccountExplanation:
    return explain_account(
        dict(terms.tally),
        terms.budget,
        price=terms.price,
        lineage_left=terms.lineage_left,
        unlimited=terms.unlimited,
    )
