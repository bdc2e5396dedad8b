"""Questions: a model's inputs as its noise and a ledger see them."""

from typing import Any, Protocol

from dpserve.accounting.arrays import Floats
from dpserve.mechanisms.mechanism import Mechanism, noise_context
from dpserve.mechanisms.randomness import KeyedRandomness, NoiseKey
from dpserve.training.exact.quantised import question_bytes


class MeteredModel(Protocol):
    """A model whose answers are paid for one by one.

    One whose features take their time, as an encoder's do, says so by a property `on_encoder` besides.
    """

    @property
    def certificate(self) -> Any:
        """Its certificate."""
        ...

    @property
    def noise_key(self) -> NoiseKey:
        """The key of the noise of its answers."""
        ...

    def features(self, X: Floats) -> Floats:
        """Return the questions that rows (n, d) ask: phi, (n, D). Public, and nothing private enters them."""
        ...

    def logits(self, phi: Floats) -> Floats:
        """Return the exact logits (n, C): a function of the weights and of each question alone, to the bit."""
        ...

    def logit_sensitivity(self, phi: Floats) -> Floats:
        """Return how far one record moves each row's logits, or is claimed to, (n,): a function of the question."""
        ...


def noise_of(model: MeteredModel, mechanism: Mechanism, phi: Floats, sensitivity: Floats) -> KeyedRandomness:
    """Return the noise of questions phi (n, D) with these sensitivities (n,), and their digests for a ledger.

    phi and sensitivity are what the model's `features` and `logit_sensitivity` return. A question is the model, the
    mechanism with its price, phi and the sensitivity: with any other of them words and digest are others.
    """
    certificate = model.certificate
    context = noise_context(certificate.model_id, mechanism, certificate.blocks)
    return KeyedRandomness(model.noise_key, context, question_bytes(phi, sensitivity))
