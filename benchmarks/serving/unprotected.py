"""Our own service with privacy and ledger switched off, for comparison: nothing of dpserve can start this.

The same HTTP, the same batches, the same forward pass; the ledger lets everything pass and forgets it, and the
mechanism adds nothing. It listens on 127.0.0.1 alone.

Run: python -m benchmarks.serving.unprotected BUNDLE PORT
"""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import numpy as np
from starlette.types import ASGIApp

from dpserve.accounting.budgets import Budget
from dpserve.accounting.currency import RHO
from dpserve.accounting.ledger import Balance, Charge, ChargeRequest
from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.mechanism import Mechanism
from dpserve.service.http.app import create_app
from dpserve.service.listener import Application, ServiceSettings, bind, run
from dpserve.service.metered import MeteredPredictor
from dpserve.service.models import Models
from dpserve.training.kinds.head.bundle import load_bundle

COST = Cost((GaussianLoss(1e-4),))
_BALANCE = Balance(Budget.from_rho(1.0, 1e-6, "gaussian"), 0, 10**12, ((RHO, 10**12),))


class NoNoise(Mechanism):
    """A mechanism that shows the exact answer."""

    name: ClassVar[str] = "none"
    status: ClassVar[Literal["proven", "unproven"]] = "unproven"
    cost = COST

    def release(self, logits: np.ndarray, sensitivity: np.ndarray, randomness: object) -> np.ndarray:
        """Return softmax(logits)."""
        del sensitivity, randomness
        return softmax(logits)


class _Everybody(dict[tuple[str, bytes], str]):
    """Knows everyone."""

    def get(self, key: object, default: object = None) -> str:  # type: ignore[override]
        """Return the client of any key."""
        del key, default
        return "anybody"


class NoLedger:
    """Answers like a ledger in which everything was paid for, by a client that everybody is, and keeps nothing."""

    rehearsal = False
    api_keys = SimpleNamespace(clients=_Everybody())

    async def check(self, lineage: str) -> None:
        """Say that there is one."""
        del lineage

    async def charge_batch(self, requests: Sequence[ChargeRequest]) -> list[Charge]:
        """Charge nothing."""
        return [Charge((), (True,) * len(request.questions), None, _BALANCE) for request in requests]


def _application(bundle: Path, settings: ServiceSettings) -> Application:
    return Application(_open_service(bundle, settings))


@asynccontextmanager
async def _open_service(bundle: Path, settings: ServiceSettings) -> AsyncIterator[ASGIApp]:
    head, ledger = load_bundle(bundle), NoLedger()
    unrestricted: Any = ledger
    predictor = MeteredPredictor(head, NoNoise(), unrestricted, largest_batch=settings.largest_batch)
    yield create_app(Models([predictor]), unrestricted)
    await predictor.drain()


def main(bundle: str, port: str) -> None:
    """Answer until told to stop."""
    settings = ServiceSettings()
    with bind(port=int(port)) as listening:
        sys.exit(run(partial(_application, Path(bundle), settings), settings, listening))


if __name__ == "__main__":
    main(*sys.argv[1:])
