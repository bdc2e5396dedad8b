"""A service's own auditor: a client with the owner's canary key, and `GET /audit`, where the newest finding stands.

It asks over HTTP as every client does, is charged as every client is, and stops when its key's budget is spent. The
rows are public: next to the middle of the declared bounds, and never the same twice. A finding is kept in memory; a
service that is started again begins again.
"""

import logging
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fastapi import FastAPI

from audit.distinguishing.live import LiveAudit, TooMuchNoise, auditable
from audit.distinguishing.service import nearby_rows
from dpserve.client import BudgetExhausted, Client, ServiceError
from mechanisms.mechanism import Mechanism
from service.data_plane import ServedModel

_DELTA = 1e-5
_log = logging.getLogger("dpserve.self_audit")


@dataclass(eq=False)
class SelfAudit:
    """Asks `rows` canary rows every `seconds` with the client `key`. Raises ValueError for other mechanisms."""

    head: ServedModel
    mechanism: Mechanism
    key: str
    seconds: float
    rows: int
    _stopped: threading.Event = field(default_factory=threading.Event)
    _state: str = "waiting"

    def __post_init__(self) -> None:
        """Find out first whether the mechanism can be audited this way."""
        delta = 0.0 if self.mechanism.cost.pure_epsilon < float("inf") else _DELTA
        self._audit = LiveAudit(auditable(self.mechanism), len(self.head.certificate.classes), delta)

    def published(self) -> dict[str, Any]:
        """Return what `GET /audit` returns."""
        return self._audit.latest | {"state": self._state}

    def add_route(self, app: FastAPI) -> None:
        """Serve `GET /audit`, to everybody: it holds nothing that was not charged."""

        @app.get("/audit", summary="See what the service's own audit has found")
        async def audit() -> dict[str, Any]:
            return self.published()

    def start(self, address: str) -> None:
        """Begin, in a thread of its own."""
        threading.Thread(target=self._run, args=(address,), name="self-audit", daemon=True).start()

    def stop(self) -> None:
        """End at the next opportunity; a request under way is not waited for."""
        self._stopped.set()

    def _run(self, address: str) -> None:
        # The operating system's entropy: an answer's world must not be predictable.
        rng = np.random.default_rng()
        with Client(address, self.key, attempts=1) as client:
            self._state = "asking"
            while not self._stopped.is_set():
                if not self._look(client, rng):
                    return
                self._stopped.wait(self.seconds)

    def _look(self, client: Client, rng: np.random.Generator) -> bool:
        """Return whether to go on."""
        feature_map = self.head.certificate.feature_map
        lower, upper = np.asarray(feature_map.lower), np.asarray(feature_map.upper)
        try:
            rows = nearby_rows((lower + upper)[None] / 2, self.rows, lower, upper, rng)
            answers = client.predict_proba(rows)
        except ValueError as error:
            self._state = "there are no rows to ask"
            _log.warning("the service's own audit stops: %s", error)
            return False
        except BudgetExhausted as refusal:
            self._state = f"the {refusal.scope}'s budget is spent"
            return False
        except ServiceError as error:
            if error.status in (401, 403):
                self._state = "the key is refused"
                _log.warning("the service's own audit stops: %s", error)
                return False
            return True  # a service that drains, or a store that comes back
        before = self._audit.latest["refuted"]
        try:
            found = self._audit.look(answers, self.head.logit_sensitivity(self.head.features(rows)), rng)
        except TooMuchNoise as error:
            self._state = str(error)
            _log.warning("the service's own audit stops: %s", error)
            return False
        if found["refuted"] and not before:
            _log.error("the service's own audit refutes the claim %s: stop the service", found["claim"]["losses"])
        return True
