"""A service's own auditor: a client with the owner's canary key, and `GET /audit`, where the newest finding stands.

It asks over HTTP as every client does, is charged as every client is, and stops when its key's budget is spent. The
rows are public: next to a point that is drawn anew at every start, and never the same question twice, which would get
the same answer. What was found is kept in the
owner's state folder, bound to the model and the price: a service that is started again goes on, and what refuted the
claim once is not forgotten.
"""

import fcntl
import hashlib
import json
import logging
import os
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from accounting.arrays import Floats
from audit.distinguishing.service import LiveAudit, TooMuchNoise, auditable, nearby_rows
from dpserve.client import BudgetExhausted, Client, ServiceError
from mechanisms.mechanism import Mechanism
from service.tls import Tls
from training.exact.questions import MeteredModel
from training.private_files import write_whole

_DELTA = 1e-5
_ENDED_BY_NOISE = "ended: answers hold probabilities too small to tell the noisy logits behind them"
_SUSPICIOUS = (
    "its budget is spent, and what it found is suspicious: the lower bound exceeds the claim, or the noise looks too "
    "small, and there were too few answers to refute it; give the key a larger budget"
)
_log = logging.getLogger("dpserve.self_audit")


@dataclass(frozen=True, eq=False)
class KeptFindings:
    """Counts of one model at one price in a file that appears whole or not at all. path: None keeps nothing."""

    path: Path | None
    bound_to: Mapping[str, str]

    @classmethod
    def for_model(cls, folder: Path, model_id: str, losses: str) -> "KeptFindings":
        """Return the file's place. A second service of the same model and price keeps nothing, and says so."""
        bound_to = {"model_id": model_id, "losses": losses}
        name = hashlib.sha256(json.dumps(bound_to, sort_keys=True).encode()).hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Held until the process ends.
        lock = os.open(folder / f"{name}.lock", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            _log.warning("another service of this model and price keeps its own audit; this one's is not kept")
            return cls(None, bound_to)
        return cls(folder / f"{name}.json", bound_to)

    def read(self) -> dict[str, Any] | None:
        """Return what was kept, or None for nothing. Raises ValueError for a file that is not whole or not of these."""
        if self.path is None or not self.path.exists():
            return None
        try:
            state = json.loads(self.path.read_text("utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(self.damaged()) from error
        if not isinstance(state, dict) or state.get("bound_to") != self.bound_to or "found" not in state:
            raise ValueError(self.damaged())
        kept: dict[str, Any] = state["found"]
        return kept

    def write(self, state: Mapping[str, Any]) -> None:
        """Keep this instead of what was kept before. Raises OSError."""
        if self.path is None:
            return
        write_whole(self.path, json.dumps({"bound_to": dict(self.bound_to), "found": dict(state)}))

    def damaged(self) -> str:
        """Return what to say of a file that cannot be used, and what to do."""
        return f"what the service's own audit found before is damaged: move {self.path} away to begin again"


@dataclass(eq=False)
class SelfAudit:
    """Asks `rows` canary rows every `seconds` with the client `key`, and keeps what it found in `folder`.

    shown: the file where other workers of the service find what `published` returns; None for a service of one process.
    Raises ValueError for other mechanisms, and where what was kept before cannot be read.
    """

    head: MeteredModel
    mechanism: Mechanism
    key: str
    seconds: float
    rows: int
    folder: Path
    shown: Path | None = None
    _stopped: threading.Event = field(default_factory=threading.Event)
    _state: str = "waiting"
    _around: Floats | None = None
    """The point next to which rows lie, from 0 to 1 of the bounds. Rows of another start are not asked again."""
    _asked: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Find out first whether the mechanism can be audited this way."""
        delta = 0.0 if self.mechanism.cost.pure_epsilon < float("inf") else _DELTA
        self._audit = LiveAudit(auditable(self.mechanism), len(self.head.certificate.classes), delta)
        self.kept = KeptFindings.for_model(self.folder, self.head.certificate.model_id, str(self.mechanism.cost))
        state = self.kept.read()
        if state is not None:
            try:
                self._audit.go_on(state)
            except ValueError as error:
                raise ValueError(f"{self.kept.damaged()} ({error})") from error
        self._set_state(_ENDED_BY_NOISE if self._audit.counts.stopped_by_noise else self._state)

    def published(self) -> dict[str, Any]:
        """Return what `GET /audit` returns."""
        return self._audit.latest | {"state": self._state}

    def _set_state(self, state: str) -> None:
        self._state = state
        self._show()

    def _show(self) -> None:
        if self.shown is None:
            return
        try:
            write_whole(self.shown, json.dumps(self.published()))
        except OSError as error:
            _log.warning("what the service's own audit found is not shown by the other workers: %s", error)
            with suppress(OSError):
                self.shown.unlink()  # what is there is no longer so

    def start(self, address: str, tls: Tls | None = None) -> None:
        """Begin, in a thread of its own, unless noise ended this audit before: to go on would choose looks by it.

        tls: what the service speaks HTTPS with; the audit trusts this certificate, and no other.
        """
        if self._audit.counts.stopped_by_noise:
            _log.warning("the service's own audit has %s", self._state)
            return
        threading.Thread(target=self.run, args=(address, tls and tls.pinned()), name="self-audit", daemon=True).start()

    def stop(self) -> None:
        """End at the next opportunity; a request under way is not waited for."""
        self._stopped.set()

    def run(self, address: str, trusting: ssl.SSLContext | None = None) -> None:
        """Audit the service at an address, in this thread, until there is nothing more to ask or `stop` is called."""
        # The operating system's entropy: an answer's world must not be predictable.
        rng = np.random.default_rng()
        try:
            with Client(address, self.key, attempts=1, trusting=trusting) as client:
                self._set_state("asking")
                while not self._stopped.is_set():
                    if not self._look(client, rng):
                        return
                    self._stopped.wait(self.seconds)
            self._set_state("stopped")
        except Exception:  # noqa: BLE001 - whatever ends the thread, GET /audit says so
            self._set_state("ended by an error, which is in the service's log")
            _log.exception("the service's own audit ends")

    def _look(self, client: Client, rng: np.random.Generator) -> bool:
        """Return whether to go on."""
        feature_map = self.head.certificate.feature_map
        lower, upper = np.asarray(feature_map.lower), np.asarray(feature_map.upper)
        try:
            if self._around is None:
                self._around = rng.random((1, len(lower)))
            around = lower + (upper - lower) * self._around
            rows = nearby_rows(around, self.rows, lower, upper, rng, self.head.features, self._asked)
            answers = client.predict_proba(rows)
        except ValueError as error:
            self._set_state("there are no rows to ask")
            _log.warning("the service's own audit stops: %s", error)
            return False
        except BudgetExhausted as refusal:
            # Whose budget it is concerns the owner: everybody reads the state, and what others spent is theirs to know.
            _log.warning("the service's own audit stops: the %s's budget is spent", refusal.scope)
            self._set_state("its budget is spent")
            if self._audit.suspicious:
                self._set_state(_SUSPICIOUS)
                _log.error("the service's own audit: %s", _SUSPICIOUS)
            return False
        except ServiceError as error:
            if error.status in (401, 403):
                self._set_state("the key is refused")
                _log.warning("the service's own audit stops: %s", error)
                return False
            self._ask_in_vain(error)
            return True  # a service that drains, or a store that comes back
        self._set_state("asking")
        before = self._audit.latest["refuted"]
        try:
            look = self._audit.look(answers, self.head.logit_sensitivity(self.head.features(rows)), rng)
        except TooMuchNoise as error:
            self._keep()
            self._set_state(_ENDED_BY_NOISE)
            _log.warning("the service's own audit stops: %s", error)
            return False
        self._keep()
        if look["refuted"] and not before:
            _log.error("the service's own audit refutes the claim %s: stop the service", look["claim"]["losses"])
        return True

    def _ask_in_vain(self, error: ServiceError) -> None:
        """Say that a look got no answer, and why: in the log once for each reason, not at every look."""
        state = f"asking in vain: {error.kind or 'no connection'}"
        if state != self._state:
            _log.warning("the service's own audit gets no answer, and asks on: %s", error)
        self._set_state(state)

    def _keep(self) -> None:
        try:
            self.kept.write(self._audit.kept())
        except OSError as error:
            _log.warning("what the service's own audit found is not kept: %s", error)
        self._show()


def shown_in(path: Path) -> dict[str, Any]:
    """Return what `SelfAudit.published` returned when it was last written to `path`."""
    try:
        state: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {"state": "not known to this worker: the service's log says why"}
    return state
