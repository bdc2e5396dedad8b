"""The certificate of a model trained by DP-SGD: every public choice, and the cost of the run."""

import math
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field

from dpserve.accounting import gaussian_envelope
from dpserve.accounting.disclosure import Declared, DisclosedModel
from dpserve.mechanisms import wide_gaussian
from dpserve.training.fields import Several
from dpserve.training.fitting.network import Network
from dpserve.training.kinds.dpsgd.descent import Descent
from dpserve.training.kinds.dpsgd.mixture import MIXTURE
from dpserve.training.kinds.dpsgd.noisy_step import StepRelease, grid_step
from dpserve.training.kinds.dpsgd.steps import CENTRE, NETWORK_STEPS, NOISY_STEPS, Branch, canary_length
from dpserve.training.pay_once.canaries import CanaryPart, labels_of, moved_alike
from dpserve.training.pay_once.certificate import COMMON_ASSUMPTIONS, ReleaseCertificate
from dpserve.training.pay_once.chain import Step
from dpserve.training.pay_once.cuts import CUTS
from dpserve.training.pay_once.prediction_sets import COUNTS

Sampling = Literal["poisson"]


class NetworkBeside(DisclosedModel):
    """A network of one layer of tanh units beside the linear head, whose logits are added to the head's.

    It is trained by noisy steps of its own, as many as the head's.
    """

    model_config = ConfigDict(extra="forbid")

    hidden: Declared[int] = Field(ge=1, le=2**16)
    """Its units."""
    first_weights_seed: Declared[int] = Field(ge=0, lt=2**32)
    """Public: the weights that training starts from hold nothing of the records."""
    sampling_rate: Declared[float]
    noise_multiplier: Declared[float]
    learning_rate: Declared[float]


class DpSgdCertificate(ReleaseCertificate):
    """The certificate of a linear head, and perhaps a network beside it, trained by DP-SGD."""

    ASSUMPTIONS: ClassVar[tuple[str, ...]] = (
        *COMMON_ASSUMPTIONS,
        "The number of records was declared without counting them: the sampling rate, the number of steps, the "
        "learning rate and the batch size that sums are divided by follow from the declared number alone.",
        "Sampling and noise were drawn from the operating system's randomness stretched by ChaCha20, which is taken "
        "to be indistinguishable from uniform bits. The noise lies on a grid of integers and its law is exact but for "
        "what the delta of the cost covers.",
        "What rounding adds to a sum of clipped gradients in 64-bit floating point is covered. A record's features and "
        "input are computed from that record and released numbers alone, number by number or by sums that are exact, "
        "and the same arithmetic on the same numbers gives the same bits. Its gradient comes of products that "
        "round nothing, in any order, and exp and tanh give the same bits for the same number wherever it stands in "
        "an array.",
        "Noise multiplier, sampling and clipping were those stated here: that is the owner's word, which the weights "
        "do not refute.",
        "The sums before noise, intermediate or not, and the times that steps took were seen by nobody.",
    )

    STEPS: ClassVar[tuple[Step, ...]] = (CUTS, CENTRE, NOISY_STEPS, NETWORK_STEPS, MIXTURE, COUNTS)

    release: Declared[Literal["dpsgd"]] = "dpsgd"
    assumptions: Declared[Several[str]] = ASSUMPTIONS
    objective: Declared[Literal["sum of cross-entropies, gradients clipped record by record"]] = (
        "sum of cross-entropies, gradients clipped record by record"
    )
    input_norm: Declared[float] = Field(ge=2.0**-20, le=2.0**20, allow_inf_nan=False)
    """Every row's features are scaled to this length, around the centre, before the first layer."""
    sampling: Declared[Sampling] = "poisson"
    """Each record joins each step with probability sampling_rate, independently of all others."""
    sampling_rate: Declared[float]
    steps: Declared[int]
    gradient_clip: Declared[float]
    """No record's gradient, over all layers, is longer than this."""
    noise_multiplier: Declared[float]
    """The standard deviation of the noise on every coordinate of a sum, in units of gradient_clip, or a little less."""
    records_declared: Declared[int] = Field(ge=1)
    """A public number, near the number of records if training is to go well. Privacy does not rest on it."""
    learning_rate: Declared[float]
    momentum: Declared[float]
    averaged: Declared[float]
    """The share of the last steps whose weights are averaged."""
    beside: Declared[NetworkBeside | None] = None
    """The network beside the linear head, if there is one."""

    @property
    def branches(self) -> tuple[Branch, ...]:
        """The linear head, and the network beside it. Raises ValueError for numbers that describe none."""
        head = Branch(self.network, self.step_release, self.descent)
        if self.beside is None:
            return (head,)
        inputs, classes = self.network.widths
        network = Network((inputs, self.beside.hidden, classes))
        rate = self.beside.sampling_rate
        step = StepRelease(self.beside.noise_multiplier, rate, self.gradient_clip)
        descent = replace(
            self.descent, learning_rate=self.beside.learning_rate, expected_batch=rate * self.records_declared
        )
        return (head, Branch(network, step, descent, self.beside.first_weights_seed))

    @property
    def network(self) -> Network:
        """The linear head, as a network of one layer."""
        return Network((self.feature_map.dimension, len(self.classes)))

    @property
    def step_release(self) -> StepRelease:
        """The private step of the head. Raises ValueError for numbers that describe none."""
        return StepRelease(self.noise_multiplier, self.sampling_rate, self.gradient_clip)

    @property
    def descent(self) -> Descent:
        """The head's descent along the noisy sums. Raises ValueError for numbers that describe none."""
        return Descent(
            steps=self.steps,
            learning_rate=self.learning_rate,
            expected_batch=self.sampling_rate * self.records_declared,
            momentum=self.momentum,
            averaged=self.averaged,
        )

    def canary_parts(self) -> tuple[CanaryPart, ...]:
        """Return all steps together, as whoever sees each step's sum sees them; canaries join after the centre.

        A canary's input is l = `canary_length` times the unit vector of a column of its own, whose weights stay at 0:
        what is released there is not followed. Its probabilities are 1/C, its gradient in these weights l (1/C - e_y),
        and over all layers, the bias among them, sqrt(l^2 + 1) times as long as 1/C - e_y is. So clipping scales it by
        the same s in every step that it joins. It is longer than records' inputs are, as the worst record would be if
        it could: the promise is of whatever clipping lets through, and that is nearly gradient_clip of its own weights.
        """
        if self.canaries is None:
            return ()
        if self.beside is not None:
            raise ValueError("canaries go with a linear head alone")
        classes, network, release = len(self.classes), self.network, self.step_release
        length = canary_length(self.input_norm)
        whole = math.hypot(length, 1.0) * math.sqrt(1 - 1 / classes)
        scale = length * min(1.0, self.gradient_clip / whole)
        direction = np.full(classes, scale / classes)
        direction[0] -= scale
        moved = moved_alike(direction, labels_of(self.canaries.number, classes))
        step, root = grid_step(release, network.size), math.sqrt(self.steps)
        deviation = root * wide_gaussian.SCALE * step
        rate = math.floor(self.sampling_rate * 2**64) / 2**64
        slack = _CANARY_ERROR * self.steps * float(np.linalg.norm(moved))
        slack += _DEVIATION_ERROR * deviation * math.sqrt(moved.size)
        return (
            CanaryPart(
                NOISY_STEPS.name,
                self.mu_of(NOISY_STEPS),
                moved,
                deviation,
                step,
                self.steps,
                rate,
                slack,
                draws=self.steps,
                coin=gaussian_envelope.DELTA,
                distance=wide_gaussian.distance_from_normal(self.steps),
            ),
        )


_CANARY_ERROR = 1e-6
"""More than a canary's clipped gradient is off by, relatively: its factors are on grids."""
_DEVIATION_ERROR = 2.0**-15
"""More than the deviation of the noise exceeds SCALE steps by, relatively (`dpserve.mechanisms.wide_gaussian`)."""
