"""The public network that every contender computes: 600 features, 128 hidden units, 100 classes.

NumPy alone, and nothing of ours is imported: the peers run it in environments of their own.
"""

import numpy as np

FEATURES, HIDDEN, CLASSES = 600, 128, 100


class Network:
    """softmax(W2 relu(W1 x)), float32, with random weights from a fixed seed."""

    def __init__(self) -> None:
        """Draw the weights."""
        generator = np.random.default_rng(0)
        self.hidden = generator.standard_normal((FEATURES, HIDDEN)).astype(np.float32) / np.float32(FEATURES**0.5)
        self.output = generator.standard_normal((HIDDEN, CLASSES)).astype(np.float32) / np.float32(HIDDEN**0.5)

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Return the probabilities, (n, 100), of rows (n, 600)."""
        logits = np.maximum(X @ self.hidden, 0) @ self.output
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)
