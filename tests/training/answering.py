"""Prints what bundles answer, for processes with other libraries, processors' features and threads to be compared.

Also the digest of a product of matrices in floats, which does depend on them: else the comparison shows nothing.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np

from dpserve.mechanisms.mechanism import Mechanism
from dpserve.mechanisms.published import Published
from dpserve.training.exact.questions import MeteredModel, noise_of
from dpserve.training.kinds.head.bundle import CertifiedHead
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.published.bundle import PublishedNetwork
from tests.mechanisms.test_keyed_randomness import MECHANISMS


def asked(model: MeteredModel) -> np.ndarray:
    """Rows within and beyond the bounds, some at them."""
    generator = np.random.default_rng(3)
    lower, upper = (
        np.array(bound) for bound in (model.certificate.feature_map.lower, model.certificate.feature_map.upper)
    )
    rows = generator.uniform(lower - (upper - lower) / 4, upper + (upper - lower) / 4, (96, len(lower)))
    rows[::7] = np.clip(rows[::7], lower, upper)
    rows[5], rows[6] = lower, upper
    return rows


def answers(model: MeteredModel, mechanism: Mechanism, X: np.ndarray) -> list[bytes]:
    """Everything about each row, from features to the answer, as bytes."""
    phi = model.features(X)
    sensitivity, logits = model.logit_sensitivity(phi), model.logits(phi)
    noise = noise_of(model, mechanism, phi, sensitivity)
    released = mechanism.release(logits, sensitivity, noise)
    parts = zip(phi + 0.0, sensitivity, logits, released, noise.digests, strict=True)
    return [b"".join([a.tobytes(), b.tobytes(), c.tobytes(), d.tobytes(), e]) for a, b, c, d, e in parts]


def mechanisms_for(model: MeteredModel) -> list[Mechanism]:
    """Those that may serve it."""
    unproven = isinstance(model, PublishedNetwork)
    return [mechanism for mechanism in MECHANISMS if isinstance(mechanism, Published) == unproven]


def main() -> None:
    generator = np.random.default_rng(0)
    floats = generator.standard_normal((50, 301)) @ generator.standard_normal((301, 5))
    print("floats", hashlib.sha256(floats.tobytes()).hexdigest())
    for folder in sys.argv[1:]:
        model = load_model(Path(folder))
        assert isinstance(model, CertifiedHead | PublishedNetwork)
        for mechanism in mechanisms_for(model):
            content = b"".join(answers(model, mechanism, asked(model)))
            print(Path(folder).name, mechanism.name, hashlib.sha256(content).hexdigest())


if __name__ == "__main__":
    main()
