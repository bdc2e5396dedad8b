"""The way of a request, without a transport: validate, charge durably, compute, make private, store, answer.

Promises: nothing is computed before it is charged; nothing is answered before it is stored, and what is answered
is what was stored first; a refusal spends nothing; replies are put together by row identity, so one row's answer
cannot be another's; nothing but the mechanism's release ever leaves.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from accounting.budgets import Budget
from accounting.explanation import AccountExplanation, explain_account
from accounting.ledger import Answered, Charge, ChargeRequest, ClientAccount, Idempotency, Ledger, Quote, Receipt
from accounting.losses import Cost
from accounting.report import AccountReport, account_report
from mechanisms.mechanism import Mechanism
from mechanisms.randomness import Randomness
from service.errors import InvalidRows, UnknownModel
from service.fault_points import pass_point
from training.bundle import CertifiedHead
from training.published.bundle import PublishedNetwork

Floats = NDArray[np.float64]
Clock = Callable[[], float]

ServedModel = CertifiedHead | PublishedNetwork
"""What can be served: the second only by a mechanism that is unproven itself."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """One request's answers. probabilities: (n, C), row by row as asked; receipt: None if all were replays."""

    probabilities: Floats
    receipt: Receipt | None
    replayed: int
    """How many of the rows were answered before and cost nothing now."""
    earlier: int | None = None
    """The number of the receipt that the same request got when it came before."""


class DataPlane:
    """Serves one certified head of one lineage through one mechanism at one price."""

    def __init__(
        self,
        head: ServedModel,
        mechanism: Mechanism,
        ledger: Ledger,
        randomness: Randomness,
        *,
        largest_batch: int,
        clock: Clock = time.time,
    ) -> None:
        """Serve `head`. largest_batch: the most rows of one request."""
        self.head = head
        self.mechanism = mechanism
        self.cost = mechanism.cost
        self.largest_batch = largest_batch
        self._ledger = ledger
        self._randomness = randomness
        self._clock = clock
        self._explaining = ThreadPoolExecutor(max_workers=1, thread_name_prefix="explaining")
        self._lower = np.asarray(head.certificate.feature_map.lower)
        self._upper = np.asarray(head.certificate.feature_map.upper)

    @property
    def rehearsal(self) -> bool:
        """Whether the ledger may lose charges, so that nothing here is to be relied upon."""
        return self._ledger.rehearsal

    @property
    def lineage(self) -> str:
        """The lineage whose account pays for every answer."""
        return self.head.certificate.lineage

    def check_model(self, name: str) -> None:
        """Raise UnknownModel unless `name` is the served model's."""
        if name != self.head.certificate.name:
            raise UnknownModel(f"there is no model {name!r} here; this service has {self.head.certificate.name!r}")

    def check_rows(self, instances: list[list[float]]) -> Floats:
        """Return the rows as (n, d) float64, or raise InvalidRows naming the first that cannot be asked about."""
        if not instances:
            raise InvalidRows("the batch is empty; send at least one row")
        if len(instances) > self.largest_batch:
            raise InvalidRows(f"the batch has {len(instances)} rows; this service takes at most {self.largest_batch}")
        features = len(self._lower)
        for index, row in enumerate(instances):
            if len(row) != features:
                raise InvalidRows(f"row {index} has {len(row)} values; the model takes {features}", index)
        X = np.array(instances, dtype=np.float64)
        outside = ~((self._lower <= X) & (self._upper >= X))
        if outside.any():
            index, column = (int(place) for place in np.argwhere(outside)[0])
            name = self.head.certificate.feature_names[column]
            raise InvalidRows(
                f"row {index}, column {column} ({name!r}) must be a number from {self._lower[column]:g} to "
                f"{self._upper[column]:g}, the declared bounds",
                index,
                column,
            )
        # 0.0 and -0.0 are the same row: they must share one answer.
        return X + 0.0

    async def predict(self, client: str, X: Floats, idempotency: Idempotency | None = None) -> Prediction:
        """Answer rows that `check_rows` returned, charging the client and the lineage for those that are new.

        Raises what `Ledger.charge` raises; then nothing was charged.
        """
        # Features and sensitivities are public, and computed first: what they fail on is never charged.
        phi = self.head.features(X)
        sensitivity = self.head.logit_sensitivity(phi)
        charge = await self._ledger.charge(self._request(client, X, idempotency))
        pass_point("charged")
        answers = await self._answers(charge, phi, sensitivity)
        probabilities = np.stack([np.frombuffer(answers[row.row_id], dtype="<f8") for row in charge.rows])
        replayed = len(charge.rows) - (charge.receipt.rows if charge.receipt else 0)
        return Prediction(probabilities, charge.receipt, replayed, charge.earlier)

    async def quote(self, client: str, X: Floats, idempotency: Idempotency | None = None) -> Quote:
        """Return what rows that `check_rows` returned would cost now. Spends nothing and computes no logits.

        Raises what `Ledger.quote` raises.
        """
        return await self._ledger.quote(self._request(client, X, idempotency))

    def _request(self, client: str, X: Floats, idempotency: Idempotency | None) -> ChargeRequest:
        return ChargeRequest(
            lineage=self.lineage,
            client=client,
            model=self.head.certificate.model_id,
            mechanism=self.mechanism.name,
            cost=self.cost,
            rows=tuple(row.tobytes() for row in X),
            time=self._clock(),
            idempotency=idempotency,
        )

    async def _answers(self, charge: Charge, phi: Floats, sensitivity: Floats) -> dict[bytes, bytes]:
        """Return every row's stored answer by the row's id, computing and storing those that have none."""
        answers: dict[bytes, bytes] = {}
        unanswered: dict[bytes, int] = {}
        for position, row in enumerate(charge.rows):
            if isinstance(row, Answered):
                answers[row.row_id] = row.answer
            else:
                unanswered.setdefault(row.row_id, position)
        if unanswered:
            rows = list(unanswered.values())
            released = self.mechanism.release(self.head.logits(phi[rows]), sensitivity[rows], self._randomness)
            drawn = [(row_id, row.astype("<f8").tobytes()) for row_id, row in zip(unanswered, released, strict=True)]
            pass_point("released")
            stored = await self._ledger.settle(self.lineage, drawn)
            pass_point("settled")
            answers.update(zip(unanswered, stored, strict=True))
        return answers

    async def budget(self, client: str) -> AccountReport:
        """Return what the client has spent, what is left, and what that means. Raises UnknownClient.

        `queries_left` is what both accounts can pay for: a release needs the client's and the lineage's.
        """
        account, left = await self._accounts(client)
        return account_report(account.tally, account.budget, price=self.cost, lineage_left=left)

    async def explained_budget(self, client: str) -> AccountExplanation:
        """Return the client's account and its explanation. Raises UnknownClient.

        A numerical PLD can take seconds: the analyses run in a thread of their own, one explanation at a time, and
        the newest are kept, for only a paid release changes them.
        """
        account, left = await self._accounts(client)
        asked = _Asked(frozenset(account.tally.items()), account.budget, self.cost, left)
        return await asyncio.get_running_loop().run_in_executor(self._explaining, _explained, asked)

    async def _accounts(self, client: str) -> tuple[ClientAccount, int]:
        """Return the client's account, and the picorho left in the lineage's."""
        account, lineage = await asyncio.gather(
            self._ledger.client(self.lineage, client), self._ledger.lineage(self.lineage)
        )
        return account, lineage.remaining

    async def receipts(self, client: str, *, after: int, count: int) -> list[Receipt]:
        """Return at most `count` of the client's receipts with numbers above `after`, oldest first."""
        return await self._ledger.receipts(self.lineage, client=client, after=after, count=count)

    async def check_ready(self) -> None:
        """Raise LedgerError unless the ledger answers and holds the lineage's account."""
        await self._ledger.lineage(self.lineage)

    def model(self) -> dict[str, object]:
        """Return the public part of the certificate, and how the model is served."""
        return self.head.certificate.public() | {
            "mechanism": self.mechanism.name,
            "mechanism_status": self.mechanism.status,
            "price_per_row": {"rho": float(self.cost.rho), "losses": str(self.cost)},
            "largest_batch": self.largest_batch,
        }


@dataclass(frozen=True)
class _Asked:
    """What an explanation depends on."""

    tally: frozenset[tuple[Cost, int]]
    budget: Budget
    price: Cost
    lineage_left: int


@lru_cache(maxsize=1024)
def _explained(asked: _Asked) -> AccountExplanation:
    return explain_account(dict(asked.tally), asked.budget, price=asked.price, lineage_left=asked.lineage_left)
