"""A bundle as an endpoint in this process: what a service of it would answer, charge and refuse, without HTTP.

With the bundle's own noise key it gives the same answers as a service of it, because the same mechanism releases the
same logits with the same noise. It is for the owner, who holds the bundle; nothing is charged to a ledger, so that a
rehearsal has a noise key of its own (`rehearsal_key`) and gives away nothing of what the service answers.

Accounts do not outlive the process. An attack that goes on after an interruption asks about everything again: it gets
the same answers for the same charges.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.accounting.budgets import Budget, accepts_for
from dpserve.accounting.losses import Cost
from dpserve.accounting.report import AccountState, account_report, row_price
from dpserve.audit.endpoint import EndpointError, Exhausted, digest_of
from dpserve.mechanisms.mechanism import Mechanism, noise_context
from dpserve.mechanisms.randomness import KeyedRandomness, NoiseKey
from dpserve.training.exact.quantised import question_bytes
from dpserve.training.exact.questions import MeteredModel
from dpserve.training.kinds.registry import kind_of
from dpserve.training.pay_once.model import ReleasedModel

DELTA = 1e-6
LARGEST_RHO = 1000.0
"""The limit of an account without a stated budget."""


@dataclass(eq=False)
class Lineage:
    """The account that all keys of one model share, in picorho. limit: None for no limit of its own.

    asked: the digests of the questions that were paid for, by any key.
    """

    limit: int | None = None
    spent: int = 0
    asked: set[bytes] = field(default_factory=set)


def rehearsal_key(seed: int) -> NoiseKey:
    """Return a noise key that follows from a seed, so that a rehearsal can be repeated. Never for a service."""
    return NoiseKey(hashlib.sha256(b"dpserve: the noise of a rehearsal\0%d" % seed).digest())


@dataclass(eq=False)
class BundleEndpoint:
    """One key of a bundle. budget_of_key: None for whatever the ledger could hold.

    noise_key: the bundle's own, or another for a rehearsal. key: its number among the keys of this bundle. asked:
    digests of the questions that it paid for; paid: how many it was charged for.
    """

    head: MeteredModel
    mechanism: Mechanism
    noise_key: NoiseKey
    budget_of_key: Budget | None = None
    lineage: Lineage = field(default_factory=Lineage)
    largest_batch: int = 1000
    key: int = 0
    asked: set[bytes] = field(default_factory=set)
    paid: int = 0
    account_lasts: ClassVar[bool] = False

    def name(self) -> str:
        """Return a digest of the certificate, the noise and the key's number."""
        return _name(self.head.certificate.public(), f"{digest_of(self.noise_key.secret)} {self.key}")

    def model(self) -> Mapping[str, Any]:
        """Return what `GET /models/NAME` returns."""
        cost = self.mechanism.cost
        public: dict[str, Any] = self.head.certificate.public()
        return public | {
            "mechanism": self.mechanism.name,
            "mechanism_status": self.mechanism.status,
            "price_per_row": row_price(cost).model_dump(),
            "largest_batch": self.largest_batch,
            "outputs": kind_of(self.head).outputs(self.head.certificate).described(),
        }

    def budget(self) -> Mapping[str, Any]:
        """Return the key's account, as `GET /budget` except for the explanation."""
        cost, limit = self.mechanism.cost, self.lineage.limit
        answers = None if limit is None else (limit - self.lineage.spent) // cost.picorho
        spent = {self.mechanism.cost: self.paid} if self.paid else {}
        return account_report(
            AccountState.after_releases(spent, self._account), price=self.mechanism.cost, shared_answers=answers
        ).model_dump(mode="json")

    def answers(self, rows: Floats) -> Floats:
        """Return one private answer for each row: (n, C)."""
        rows = np.asarray(rows, dtype=np.float64)
        if len(rows) > self.largest_batch:
            raise EndpointError(f"a request takes at most {self.largest_batch} rows, and this one has {len(rows)}")
        phi = self.head.features(rows)
        sensitivity = self.head.logit_sensitivity(phi)
        context = noise_context(self.head.certificate.model_id, self.mechanism, self.head.certificate.blocks)
        noise = KeyedRandomness(self.noise_key, context, question_bytes(phi, sensitivity))
        self.charge(set(noise.digests))
        return self.mechanism.release(self.head.logits(phi), sensitivity, noise)

    @property
    def _account(self) -> Budget:
        return self.budget_of_key or _largest(self.mechanism.cost)

    def charge(self, questions: set[bytes]) -> None:
        """Charge the key for questions that are new to it, and the lineage for those new to all: both or neither.

        The lineage refuses by what is new to the key, as the ledger does: a key learns nothing of what others asked.
        """
        price = self.mechanism.cost.picorho
        new_to_key, new_to_all = len(questions - self.asked), len(questions - self.lineage.asked)
        if price * (self.paid + new_to_key) > self._account.limit:
            raise Exhausted("client")
        if self.lineage.limit is not None and self.lineage.spent + price * new_to_key > self.lineage.limit:
            raise Exhausted("lineage")
        self.asked |= questions
        self.lineage.asked |= questions
        self.paid += new_to_key
        self.lineage.spent += price * new_to_all


@dataclass(eq=False)
class ReleaseEndpoint:
    """One key of a release that is paid for once: the first answer costs, the others nothing.

    budget_of_key: None for the release's price. key: its number among the keys of this release.
    """

    released: ReleasedModel
    budget_of_key: Budget | None = None
    lineage: Lineage = field(default_factory=Lineage)
    largest_batch: int = 1000
    held: bool = False
    key: int = 0
    account_lasts: ClassVar[bool] = False

    def name(self) -> str:
        """Return a digest of the certificate and the key's number."""
        return _name(self.released.certificate.public(), str(self.key))

    def model(self) -> Mapping[str, Any]:
        """Return what `GET /models/NAME` returns, except for its price."""
        certificate = self.released.certificate
        return certificate.public() | {
            "mechanism": certificate.release,
            "mechanism_status": certificate.status,
            "price_per_row": {"rho": 0.0, "losses": ""},
            "largest_batch": self.largest_batch,
            "outputs": kind_of(certificate).outputs(certificate).described(),
        }

    def budget(self) -> Mapping[str, Any]:
        """Return the key's account: without a limit on answers, unless not even the first is affordable."""
        spent = {self.released.certificate.price: 1} if self.held else {}
        report = account_report(AccountState.after_releases(spent, self._account), price=None).model_dump(mode="json")
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
        return self.released.values(np.asarray(rows, dtype=np.float64) + 0.0)

    @property
    def _account(self) -> Budget:
        return self.budget_of_key or price_of_release(self.released, DELTA)

    @property
    def _price(self) -> int:
        return _price_of_release(self.released)

    def _refusal(self) -> Literal["client", "lineage"] | None:
        if self._price > self._account.limit:
            return "client"
        if self.lineage.limit is not None and self._price > self.lineage.limit:
            return "lineage"
        return None


def price_of_release(released: ReleasedModel, delta: float) -> Budget:
    """Return the account that pays for a release, and for nothing else.

    A larger one leaves less of its delta for what a release's cost keeps back of it
    (`dpserve.accounting.sampling_error`)."""
    return Budget(_price_of_release(released), accepts_for(Cost.parse(released.certificate.cost)), delta)


def _price_of_release(released: ReleasedModel) -> int:
    return released.certificate.price.picorho


def _name(certificate: Mapping[str, Any], key: str) -> str:
    return digest_of(json.dumps(certificate, sort_keys=True, default=str).encode(), key.encode())


def _largest(cost: Cost) -> Budget:
    return Budget.from_rho(LARGEST_RHO, DELTA, accepts_for(cost))
