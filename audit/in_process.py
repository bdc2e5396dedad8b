"""A bundle as an endpoint in this process: what a service of it would answer, charge and refuse, without HTTP.

With the same words of randomness and the same requests it gives the same answers as the service, because the same
mechanism releases the same logits. It is for the owner, who holds the bundle; nothing is charged to a ledger.

Nothing outlives the process either, so that an attack that was interrupted tells it what it had answered
(`remember`). With `RowNoise` what is answered after that is what would have been answered without the interruption.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from accounting.budgets import Budget, accepts_for
from accounting.losses import Cost
from accounting.picorho import to_rho
from accounting.report import account_report
from audit.endpoint import EndpointError, Exhausted, Remembered, digest_of, row_name
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


@dataclass(frozen=True)
class RowNoise:
    """Noise that follows from a seed, a key's number and the row, whatever was asked before. Never for a service.

    A row's stream starts from SHA-256 of the row, so that two rows share noise with probability 2^-256.
    """

    seed: int
    key: int

    def of(self, row: str) -> Randomness:
        """Return the words for the row with this `row_name`."""
        return _Words(np.random.Philox(np.random.SeedSequence([self.seed, self.key, int(row, 16)])))


@dataclass(frozen=True)
class _Words:
    generator: np.random.Philox

    def words(self, count: int) -> NDArray[np.uint64]:
        return self.generator.random_raw(count).astype(np.uint64, copy=False)


@dataclass(eq=False)
class BundleEndpoint:
    """One key of a bundle. budget: the key's; None for whatever the ledger could hold.

    randomness: one stream for all rows in the order they are asked, as a service has it, or each row's own.
    """

    head: AttackedModel
    mechanism: Mechanism
    randomness: Randomness | RowNoise
    budget_of_key: Budget | None = None
    lineage: Lineage = field(default_factory=Lineage)
    largest_batch: int = 1000
    answered: dict[str, Floats] = field(default_factory=dict)
    """By `row_name`."""
    paid: int = 0
    """Rows charged so far."""
    remembered: Remembered | None = None
    """What was answered before an interruption."""

    def name(self) -> str:
        """Return a digest of the certificate and the noise."""
        noise = repr(self.randomness) if isinstance(self.randomness, RowNoise) else "one stream"
        return _name(self.head.certificate.public(), noise)

    def remember(self, answers: Remembered) -> None:
        """Take back what was answered and paid for before an interruption."""
        self.remembered = answers
        new = len(answers) - sum(answers.get(row) is not None for row in self.answered)
        self.paid += new
        self.lineage.spent += self.mechanism.cost.picorho * new

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
            "price_per_row": {"rho": to_rho(cost.picorho), "losses": str(cost)},
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
        names = [row_name(row) for row in rows]
        new: dict[str, int] = {}
        for position, name in enumerate(names):
            if not self._is_answered(name):
                new.setdefault(name, position)
        self._charge(len(new))
        if new:
            self.answered.update(zip(new, self._released(rows[list(new.values())], list(new)), strict=True))
        return np.stack([self.answered[name] for name in names])

    def _is_answered(self, name: str) -> bool:
        if name not in self.answered and self.remembered is not None:
            known = self.remembered.get(name)
            if known is not None:
                self.answered[name] = known
        return name in self.answered

    def _released(self, rows: Floats, names: list[str]) -> Floats:
        """Draw an answer for each of these rows (n, d): (n, C).

        With noise of each row's own the rows are evaluated alone, too: the last bits of a matrix product depend on how
        many rows it has.
        """
        if not isinstance(self.randomness, RowNoise):
            return self._drawn(rows, self.randomness)
        alone = [self._drawn(row[None], self.randomness.of(name)) for row, name in zip(rows, names, strict=True)]
        return np.concatenate(alone)

    def _drawn(self, rows: Floats, randomness: Randomness) -> Floats:
        phi = self.head.features(rows)
        return self.mechanism.release(self.head.logits(phi), self.head.logit_sensitivity(phi), randomness)

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
    key: int = 0
    """Its number among the keys of this release."""

    def name(self) -> str:
        """Return a digest of the certificate and the key's number."""
        return _name(self.released.certificate.public(), str(self.key))

    def remember(self, answers: Remembered) -> None:
        """Hold the release again, if it answered anything before an interruption."""
        if len(answers):
            self._hold()

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
            self._hold()
        return self.released.probabilities(np.asarray(rows, dtype=np.float64) + 0.0)

    def _hold(self) -> None:
        # Whoever holds it first pays for the lineage; colluding keys hold the same release.
        self.lineage.spent = max(self.lineage.spent, self._price)
        self.held = True

    @property
    def _price(self) -> int:
        return sum(tier.cost.picorho for tier in self.released.certificate.tiers)

    def _refusal(self) -> Literal["client", "lineage"] | None:
        if self._price > self.account.picorho:
            return "client"
        if self.lineage.limit is not None and self._price > self.lineage.limit:
            return "lineage"
        return None


def _name(certificate: Mapping[str, Any], key: str) -> str:
    return digest_of(json.dumps(certificate, sort_keys=True, default=str).encode(), key.encode())


def _largest(cost: Cost) -> Budget:
    return Budget.from_rho(LARGEST_RHO, DELTA, accepts_for(cost))
