"""The attacker's view: an endpoint that answers rows for a key, until the key's budget is spent.

A running service is reached through the public client (`dpserve.endpoint`, for imports point one way); a bundle is
attacked in this process (`dpserve.audit.in_process`). Both charge, replay and refuse alike.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.accounting.budgets import Scope
from dpserve.accounting.losses import Cost
from dpserve.mechanisms.mechanism import Mechanism
from dpserve.mechanisms.registry import mechanism_with


def row_name(row: Floats) -> str:
    """Return what stands for a row (d,) where the row itself must not: its digest. 0.0 and -0.0 are the same row."""
    return digest_of((np.asarray(row, dtype=np.float64) + 0.0).tobytes())


def digest_of(*contents: bytes) -> str:
    """Return the SHA-256 of several strings of bytes, each with its length, in hexadecimal."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()


def served_mechanism(model: Mapping[str, Any]) -> Mechanism:
    """Return the mechanism that a service says it answers with, from its name and its losses.

    model: as `GET /models/NAME`. Raises ValueError for a mechanism that is not known here.
    """
    cost = Cost.parse(str(model["price_per_row"]["losses"]))
    return mechanism_with(str(model["mechanism"]), cost, len(model["classes"]))


class EndpointError(ValueError):
    """The endpoint cannot be attacked: dead, revoked key, no such model. One line that says what to do."""


class Exhausted(Exception):
    """The batch costs more than is left; nothing of it was charged. scope: whose budget it is."""

    def __init__(self, scope: Scope) -> None:
        """scope: "client" for the key's own, "group" for its group's, "lineage" for the one that all keys share."""
        super().__init__(f"the {scope}'s budget is spent")
        self.scope = scope


class Endpoint(Protocol):
    """One key of one service. Every method raises EndpointError where the endpoint fails."""

    @property
    def account_lasts(self) -> bool:
        """Whether the account outlives this process. If not, an attack that goes on asks again and pays again."""
        ...

    def name(self) -> str:
        """Return what tells this key of this service, or of this bundle, from every other: a digest, no secret."""
        ...

    def model(self) -> Mapping[str, Any]:
        """Return the public part of the model's certificate and how it is served, as `GET /models/NAME`."""
        ...

    def budget(self) -> Mapping[str, Any]:
        """Return what is spent and what is left, as `GET /budget`."""
        ...

    def answers(self, rows: Floats) -> Floats:
        """Return private probabilities (n, C) of rows (n, d), at most the model's `largest_batch`.

        Charged whole or not at all; a question that was asked before gets the same answer, from this key at no cost.
        Raises Exhausted.
        """
        ...
