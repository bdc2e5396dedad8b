"""A bundle as an endpoint in this process: what a service of it would answer, charge and refuse, without HTTP.

With the same words of randomness and the same requests it gives the same answers as the service, because the same
mechanism releases the same logits. It is for the owner, who holds the bundle; nothing is charged to a ledger.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from accounting.budgets import Budget, accepts_for
from accounting.losses import Cost
from accounting.report import account_report
from audit.endpoint import EndpointError, Exhausted
from mechanisms.mechanism import Mechanism
from mechanisms.randomness import Randomness
from training.releases.model import ReleasedModel

Floats = NDArray[np.float64]

DELTA = 1e-6
LARGEST_RHO = 1000.0
"""Of an account without a stated budget."""


class AttackedModel(Protocol):
    """A certified head or a published network, as loaded from its bundle."""

    @property
    def certificate(self) -> Any:
        """Its certificate."""
        ...

    def features(self, X: Floats) -> Floats:
        """The public features of rows."""
        ...

    def logits(self, phi: Floats) -> Floats:
        """The exact logits."""
        ...

    def logit_sensitivity(self, phi: Floats) -> Floats:
        """How far one record moves each row's logits, or is claimed to."""
        ...


@dataclass(eq=False)
class Lineage:
    """What all keys of one model may spend together, in picorho. limit: None for no limit of its own."""

    limit: int | None = None
    spent: int = 0


@dataclass(eq=False)
class BundleEndpoint:
    """One key of a bundle. budget: the key's; None for whatever the ledger could hold."""

    head: AttackedModel
    mechanism: Mechanism
    randomness: Randomness
    budget_of_key: Budget | None = None
    lineage: Lineage = field(default_factory=Lineage)
    largest_batch: int = 1000
    answered: dict[bytes, Floats] = field(default_factory=dict)
    paid: int = 0
    """Rows charged so far."""

    @property
    def account(self) -> Budget:
        """The key's budget, or the largest."""
        return self.budget_of_key or _largest(self.mechanism.cost)

    def model(self) -> Mapping[str, Any]:
        """Return what `GET /models/NAME` returns."""
        cost = self.mechanism.cost
        public: dict[str, Any] = self.head.certificate.public()
        return public | {
            "mechanism": self.mechanism.name,
            "mechanism_status": self.mechanism.status,
            "price_per_row": {"rho": float(cost.rho), "losses": str(cost)},
            "largest_batch": self.largest_batch,
        }

    def budget(self) -> Mapping[str, Any]:
        """Return the key's account, as `GET /budget` does but for the explanation."""
        left = None if self.lineage.limit is None else self.lineage.limit - self.lineage.spent
        spent = {self.mechanism.cost: self.paid} if self.paid else {}
        return account_report(spent, self.account, price=self.mechanism.cost, lineage_left=left).model_dump(mode="json")

    def answers(self, rows: Floats) -> Floats:
        """Return one private answer for each row: (n, C)."""
        # 0.0 and -0.0 are the same row, as they are for the service.
        rows = np.asarray(rows, dtype=np.float64) + 0.0
        if len(rows) > self.largest_batch:
            raise EndpointError(f"a request takes at most {self.largest_batch} rows, and this one has {len(rows)}")
        phi = self.head.features(rows)
        sensitivity = self.head.logit_sensitivity(phi)
        new: dict[bytes, int] = {}
        for position, row in enumerate(rows):
            if row.tobytes() not in self.answered:
                new.setdefault(row.tobytes(), position)
        self._charge(len(new))
        if new:
            asked = list(new.values())
            released = self.mechanism.release(self.head.logits(phi[asked]), sensitivity[asked], self.randomness)
            self.answered.update(zip(new, released, strict=True))
        return np.stack([self.answered[row.tobytes()] for row in rows])

    def _charge(self, rows: int) -> None:
        price = self.mechanism.cost.picorho
        if price * (self.paid + rows) > self.account.picorho:
            raise Exhausted("client")
        if self.lineage.limit is not None and self.lineage.spent + price * rows > self.lineage.limit:
            raise Exhausted("lineage")
        self.paid += rows
        self.lineage.spent += price * rows


@dataclass(eq=False)
class ReleaseEndpoint:
    """One key of a release that is paid for once, at its finest tier: the first answer costs, the others nothing."""

    released: ReleasedModel
    budget_of_key: Budget | None = None
    lineage: Lineage = field(default_factory=Lineage)
    largest_batch: int = 1000
    held: bool = False

    @property
    def account(self) -> Budget:
        """The key's budget, or the largest."""
        return self.budget_of_key or _largest(Cost.parse(self.released.certificate.cost))

    def model(self) -> Mapping[str, Any]:
        """Return what `GET /models/NAME` returns, but for the tiers' prices."""
        certificate = self.released.certificate
        return certificate.public() | {
            "mechanism": certificate.release,
            "mechanism_status": certificate.status,
            "price_per_row": {"rho": 0.0, "losses": ""},
            "largest_batch": self.largest_batch,
        }

    def budget(self) -> Mapping[str, Any]:
        """Return the key's account: without a limit on answers, unless not even the first is affordable."""
        spent = dict.fromkeys((tier.cost for tier in self.released.certificate.tiers), 1) if self.held else {}
        report = account_report(spent, self.account, price=None).model_dump(mode="json")
        return report | {"queries_left": None if self.held or self._refusal() is None else 0}

    def answers(self, rows: Floats) -> Floats:
        """Return the release's answer to each row: (n, C)."""
        if not self.held:
            refusal = self._refusal()
            if refusal is not None:
                raise Exhausted(refusal)
            # Whoever holds it first pays for the lineage; colluding keys hold the same release.
            self.lineage.spent = max(self.lineage.spent, self._price)
            self.held = True
        return self.released.probabilities(np.asarray(rows, dtype=np.float64) + 0.0)

    @property
    def _price(self) -> int:
        return sum(tier.cost.picorho for tier in self.released.certificate.tiers)

    def _refusal(self) -> Literal["client", "lineage"] | None:
        if self._price > self.account.picorho:
            return "client"
        if self.lineage.limit is not None and self._price > self.lineage.limit:
            return "lineage"
        return None


def _largest(cost: Cost) -> Budget:
    return Budget.from_rho(LARGEST_RHO, DELTA, accepts_for(cost))
