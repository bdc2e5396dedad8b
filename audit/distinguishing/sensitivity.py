"""How far one record really moves a model: measured on neighbours that were trained again, beside what is claimed.

A measurement is a lower bound of the sensitivity. Above a claim it refutes the claim; below it proves nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.distinguishing.neighbours import KINDS, neighbours, random_rows, strongest_row, without
from training.bundle import CertifiedHead
from training.data.records import Records
from training.published import bounds
from training.published.bundle import PublishedNetwork

Floats = NDArray[np.float64]
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Measurement:
    """One quantity. measured: the largest of the neighbours; claimed: the bound; source: where it comes from."""

    quantity: str
    source: str
    measured: float
    claimed: float

    @property
    def share(self) -> float:
        """How much of the claim was reached; above 1 the claim is refuted."""
        return self.measured / self.claimed


def of_certified_head(
    records: Records, train: Callable[[Records], CertifiedHead], seed: int, progress: Progress = lambda _: None
) -> tuple[Measurement, ...]:
    """Return the weights' and the logits' movement for a natural, an outlying and a searched mislabelled record.

    The claims are the certificate's (training.sensitivity). The logits' is at the strongest row that was found, for
    rows of feature norm 1, as is the claim.
    """
    weights = logits = claimed_weights = claimed_logits = 0.0
    for kind in KINDS:
        rng = np.random.default_rng(seed)
        pair = neighbours(kind, records, train, rng)
        head_in, head_out = pair.head_in, pair.head_out
        assert isinstance(head_in, CertifiedHead)
        assert isinstance(head_out, CertifiedHead)
        weights = max(weights, float(np.linalg.norm(head_in.weights - head_out.weights)))
        row = strongest_row(pair, records.declaration, records.X, rng)
        phi = head_in.features(row)
        moved = np.linalg.norm(head_in.logits(phi) - head_out.logits(phi)) / np.linalg.norm(phi)
        logits = max(logits, float(moved))
        claimed_weights = head_in.certificate.weight_sensitivity
        claimed_logits = head_in.certificate.logit_sensitivity_per_norm
        progress(1)
    return (
        Measurement("weights, L2", "certificate", weights, claimed_weights),
        Measurement("logits of a row of norm 1, L2", "certificate", logits, claimed_logits),
    )


def of_published_network(
    records: Records,
    train: Callable[[Records], PublishedNetwork],
    count: int,
    seed: int,
    *,
    replaced: bool,
    progress: Progress = lambda _: None,
) -> tuple[Measurement, ...]:
    """Return the movement of a published network's weights and logits over `count` random neighbours.

    replaced: a record is replaced by another one of the set, so that the order of the batches stays as it is and the
    record alone makes the difference; else it is left out, as the definition says, and the batches fall otherwise.
    The claims are Equations 15, 18 and 19 of Lu et al. 2022, with biases left aside, as there.
    """
    rng = np.random.default_rng(seed)
    whole = train(records)
    certificate = whole.certificate
    rows = np.concatenate([records.X, random_rows(records.declaration, len(records), rng)])
    exact = whole.logits(whole.features(rows))
    weights = single = neuron = 0.0
    for index in rng.choice(len(records), count, replace=False):
        other = train(_with_another(records, int(index), rng) if replaced else without(records, int(index)))
        differences = [a - b for (a, _), (b, _) in zip(whole.layers, other.layers, strict=True)]
        weights = max(weights, math.sqrt(sum(float((difference**2).sum()) for difference in differences)))
        single = max(single, max(float(np.abs(difference).max()) for difference in differences))
        neuron = max(neuron, float(np.abs(exact - other.logits(other.features(rows))).max()))
        progress(1)
    claimed_weight = bounds.weight(
        certificate.claimed_lipschitz,
        bounds.strong_convexity(certificate.l2_regulariser),
        certificate.records,
        certificate.topology.weights,
    )
    return (
        Measurement("weights, L2", "Theorem 4 (Eq. 15)", weights, certificate.claimed_weight_sensitivity),
        Measurement("one weight", "Eq. 18", single, claimed_weight),
        Measurement("one neuron's logit", "Corollary 1 (Eq. 19)", neuron, certificate.claimed_neuron_sensitivity),
    )


def _with_another(records: Records, index: int, rng: np.random.Generator) -> Records:
    other = (index + int(rng.integers(1, len(records)))) % len(records)
    X, y = records.X.copy(), records.y.copy()
    X[index], y[index] = X[other], y[other]
    return Records(X, y, records.declaration, records.source)
