"""Our own service with privacy and ledger switched off, for comparison: nothing of dpserve can start this.

The same HTTP, the same ticks, the same forward pass; the ledger lets everything pass and forgets it, and the mechanism
adds nothing. It listens on 127.0.0.1 alone.

Run: python -m benchmarks.serving.unprotected BUNDLE PORT [WORKERS]
"""

import asyncio
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any, Literal

import numpy as np
import uvloop
from service.run import ServiceSettings, bind, serve
from service.stopping import stopping_on_signals
from service.workers import Supervisor, Worker

from accounting.budgets import Budget
from accounting.ledger import Charge, ChargeRequest, ClientAccount, LineageAccount, Standing, Unanswered
from accounting.losses import Cost, GaussianLoss
from training.bundle import CertifiedHead, load_bundle
from training.objective import softmax

COST = Cost((GaussianLoss(1e-4),))
_BUDGET = Budget.from_rho(1.0, 1e-6, "gaussian")


@dataclass(frozen=True)
class NoNoise:
    """A mechanism that shows the exact answer."""

    name: str = "none"
    status: Literal["proven", "unproven"] = "unproven"
    cost: Cost = COST

    def release(self, logits: np.ndarray, sensitivity: np.ndarray, randomness: object) -> np.ndarray:
        """Return softmax(logits)."""
        del sensitivity, randomness
        return softmax(logits)


class NoLedger:
    """Answers like a ledger in which every row is new and every account untouched, and keeps nothing."""

    rehearsal = False

    def __init__(self, lineage: str) -> None:
        """Have one client."""
        self._numbers = itertools.count()
        self._client = ClientAccount(
            lineage=lineage, budget=_BUDGET, spent=0, tally={}, created=0.0, client="anybody", revoked=False
        )
        self._lineage = LineageAccount(
            lineage=lineage, budget=_BUDGET, spent=0, tally={}, created=0.0,
            newest_receipt=0, head=b"", newest_act=0, acts_head=b"", epoch=0,
        )  # fmt: skip

    async def authenticate(self, lineage: str, digest: bytes, scope: str = "predict") -> ClientAccount:
        """Let everyone in."""
        del lineage, digest, scope
        return self._client

    def remembered(self, lineage: str, digest: bytes) -> str:
        """Know everyone."""
        del lineage, digest
        return self._client.client

    def standing(self, request: ChargeRequest, charge: Charge) -> Standing:
        """Return how the account stands: untouched."""
        del request, charge
        return Standing(_BUDGET, 0, _BUDGET.picorho)

    async def payers(self, lineage: str, client: str) -> tuple[ClientAccount, LineageAccount]:
        """Return the two accounts."""
        del lineage, client
        return self._client, self._lineage

    async def lineage(self, lineage: str) -> LineageAccount:
        """Return the lineage's account."""
        del lineage
        return self._lineage

    async def charge_batch(self, requests: Sequence[ChargeRequest]) -> list[Charge]:
        """Charge nothing for rows that are all new."""
        return [
            Charge(None, tuple(Unanswered(next(self._numbers).to_bytes(8, "big")) for _ in request.rows))
            for request in requests
        ]

    async def settle_batch(self, lineage: str, settlements: Sequence[Any]) -> list[list[bytes]]:
        """Return the answers that were given."""
        del lineage
        return [[answer for _, answer in settlement] for settlement in settlements]


def _serve(bundle: Path, port: int, workers: int) -> None:
    head = load_bundle(bundle)
    settings = ServiceSettings(port=port)
    with bind(settings) as listening:

        def work(worker: Worker) -> None:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_answer(head, listening, settings, worker))

        if workers == 1:
            work(Worker())
        else:
            Supervisor(workers, work, [listening]).run()


async def _answer(head: CertifiedHead, listening: socket, settings: ServiceSettings, worker: Worker) -> None:
    async with stopping_on_signals(), worker.supervised() as all_ready:
        ledger: Any = NoLedger(head.certificate.lineage)
        await serve(head, NoNoise(), ledger, listening, settings, before_answering=all_ready)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1)
