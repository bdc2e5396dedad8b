"""One step of DP-SGD: which records take part, what they add up to, and the noise on it.

A step's output is the noisy sum of clipped gradients, and everything trained from such sums is post-processing.
`private_step` is the one place that puts the three parts together; an audit replaces one of them to see a planted
fault convicted (`dataclasses.replace`), and nothing else should.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpserve.accounting.arrays import Floats, Labels, Mask
from dpserve.mechanisms import grid
from dpserve.mechanisms.randomness import Randomness
from dpserve.mechanisms.tapes import Law, coins, release
from dpserve.mechanisms.wide_gaussian import SCALE, wide_gaussian
from dpserve.training.fitting.network import SUM_ERROR, Network
from dpserve.training.inputs.sums import Rows, Shard, Sums

LARGEST_PARAMETERS = 2**24
LEAST_NORM, LARGEST_NORM = 1e-30, 1e30
"""The norm that gradients are clipped to lies between these, so that no square overflows or vanishes."""


@dataclass(frozen=True)
class StepRelease:
    """The private step. noise_multiplier: in units of clip_norm, the largest norm of a record's gradient.

    sampling_rate: the probability, independent of all else, that a record takes part.
    """

    noise_multiplier: float
    sampling_rate: float
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is no step."""
        if not 0 < self.sampling_rate <= 1:
            raise ValueError(
                f"the sampling rate is a probability above 0 and at most 1, not {self.sampling_rate}: each record "
                "joins a step independently (Poisson sampling), which is what the privacy of a step rests on"
            )
        for name, value in (("noise multiplier", self.noise_multiplier), ("clipping norm", self.clip_norm)):
            if not LEAST_NORM <= value <= LARGEST_NORM:
                raise ValueError(f"the {name} must lie between {LEAST_NORM:g} and {LARGEST_NORM:g}, not be {value}")


@dataclass(frozen=True, eq=False)
class StepCanaries:
    """Canaries that join steps: those included, as records, in a linear network of their own columns, (N, C) weights.

    rows: makes their inputs. The weights of their columns stay at 0: what is released there is not followed.
    """

    records: Sums
    rows: Rows
    network: Network
    clipped_sum: Callable[..., Floats]
    """As `DpSgdStep.clipped_sum`, of that network."""

    def total(self, taken: Mask) -> Floats:
        """Return the sum of clipped gradients in their columns, (N C,), of those that take part."""
        parameters = np.zeros(self.network.size)
        term = functools.partial(_clipped, clipped_sum=self.clipped_sum, parameters=parameters, rows=self.rows)
        ends = np.cumsum(self.records.lengths)[:-1]
        ((of_weights, _),) = self.network.layers(self.records.total(term, np.split(taken, ends)))
        return of_weights.ravel()


@dataclass(frozen=True)
class DpSgdStep:
    """A step in its three parts. Each may be replaced, by an audit."""

    sample: Callable[[int], Mask]
    """Function of the number of records that returns which of them take part, (n,)."""
    clipped_sum: Callable[..., Floats]
    """Function of parameters (size,), inputs (b, width) and labels (b,): the sum of clipped gradients (size,).

    With weights (b,) behind them where records are weighted.
    """
    add_noise: Callable[[Floats], Floats]
    """Function of the sum that returns the release, (size,)."""

    def noisy_sum(self, parameters: Floats, inputs: Floats, labels: Labels) -> Floats:
        """Return the noisy sum (size,) over a fresh sample of all records, inputs (n, width), labels (n,).

        The sample may be empty: the sum is then noise alone.
        """
        taken = self.sample(len(labels))
        if not taken.all():
            inputs, labels = inputs[taken], labels[taken]
        return self.add_noise(self.clipped_sum(parameters, inputs, labels))

    def noisy_totals(
        self, parameters: Floats, records: Sums, rows: Rows, canaries: StepCanaries | None
    ) -> tuple[Floats, Floats]:
        """Return the noisy sum (size,), and that of canaries (N C,), of one sample and with noise of one draw.

        Canaries leave the step as it is for records: whether a record takes part is a coin of its own, what canaries
        add lies at coordinates where no record adds anything, so that neighbours are no farther apart on the grid, and
        the draws there have one law on both sides.
        """
        taken = self.sample(sum(records.lengths) if records.units is None else records.units)
        joining = self.sample(0 if canaries is None else sum(canaries.records.lengths))
        ends = np.cumsum(records.lengths)[:-1]
        # Of units, each shard has some of the records of perhaps all.
        given = np.split(taken, ends) if records.units is None else [taken] * len(records.lengths)
        term = functools.partial(_clipped, clipped_sum=self.clipped_sum, parameters=parameters, rows=rows)
        total = records.total(term, given)
        beside = np.empty(0) if canaries is None else canaries.total(joining)
        released, released_beside = np.split(self.add_noise(np.concatenate([total, beside])), [len(total)])
        return released, released_beside


def _clipped(
    shard: Shard, taken: Mask, *, clipped_sum: Callable[..., Floats], parameters: Floats, rows: Rows
) -> Floats:
    """Return the sum over a shard's records that take part."""
    total = np.zeros_like(parameters)
    for inputs, y, weights in shard.blocks(rows, taken if shard.units is None else taken[shard.units]):
        total += clipped_sum(parameters, inputs, y, *([] if weights is None else [weights]))
    return total


def private_step(network: Network, step: StepRelease, randomness: Randomness) -> DpSgdStep:
    """Return the step that is private as `SubsampledGaussianLoss(noise_multiplier, sampling_rate)` says.

    The proof. Let neighbours differ by one record, added or removed. It takes part with probability q, independently
    of the others; given the others that do, the sums differ by the record's clipped gradient, of norm at most
    clip_norm, or not at all, and by rounding, at most SUM_ERROR clip_norm (`Network.clipped_sum`). On a grid of
    step g they are at most clip_norm (1 + SUM_ERROR)/g + ROUNDING sqrt(size) steps apart (`dpserve.mechanisms.grid`),
    and g is chosen so that this is at most SCALE / noise_multiplier. The noise is that of N(0, SCALE^2), with
    post-processing (`dpserve.mechanisms.wide_gaussian`). So the output is a mixture, with weights 1 - q and q, of
    Gaussians at most 1/noise_multiplier standard deviations apart, against the first of them: the sampled Gaussian
    mechanism, of which one dimension with that distance is the worst case (Mironov, Talwar and Zhang 2019, Section
    3; Zhu, Dong and Wang 2022, Theorem 11). A sample's 64-bit threshold rounds q down, and less sampling tells less:
    (1 - q') Q + q' P mixes (1 - q) Q + q P with Q.

    Privacy units. Let neighbours differ by all records of one unit. The unit takes part with probability q, as a whole,
    and adds the mean of its records' clipped gradients, each with the weight 1/n of
    `dpserve.training.inputs.records.Units`: a function of the unit and the parameters, and by the triangle inequality
    at most clip_norm long. From there on the proof is the same. (The mean of gradients could be clipped instead of the
    mean be taken of clipped ones: that is no longer either, but a unit's records would have to meet in one place, and
    its norm has no closed form.)

    Raises ValueError as `grid_step` does.
    """
    steps = grid_step(step, network.size)
    return DpSgdStep(
        sample=lambda records: poisson_sample(records, step.sampling_rate, randomness),
        clipped_sum=lambda parameters, inputs, labels, weights=None: network.clipped_sum(
            parameters, inputs, labels, step.clip_norm, weights
        ),
        add_noise=lambda total: released(step, total, steps, randomness),
    )


def poisson_sample(records: int, sampling_rate: float, randomness: Randomness) -> Mask:
    """Return which of `records` records take part, (n,), each with probability `sampling_rate`, rounded down."""
    if sampling_rate == 1:
        return np.ones(records, dtype=np.bool_)
    return coins(records, math.floor(Fraction(sampling_rate) * 2**64), randomness)


def grid_step(release: StepRelease, size: int) -> float:
    """Return the step g of the grid on which `size` coordinates are released, rounded up; see `private_step`.

    Raises ValueError for more of them than LARGEST_PARAMETERS, and for more noise than the grid holds.
    """
    if size > LARGEST_PARAMETERS:
        raise ValueError(f"a network may have up to {LARGEST_PARAMETERS} parameters, not {size}")
    rounding = grid.ROUNDING * grid.square_root(size)
    movement = Fraction(release.clip_norm) * (1 + Fraction(SUM_ERROR))
    allowed = SCALE / Fraction(release.noise_multiplier)
    if allowed < 2 * rounding:
        raise ValueError(
            f"so much noise does not fit the grid: the noise multiplier must be at most "
            f"{float(SCALE / (2 * rounding)):.4g} for {size} parameters, not {release.noise_multiplier:.4g}"
        )
    return grid.round_up(movement / (allowed - rounding))


def released(step: StepRelease, total: Floats, spacing: float, randomness: Randomness) -> Floats:
    """Return `total` (size,) with the step's noise, on a grid of this spacing."""
    law = Law("sampled gaussian", step.clip_norm * (1 + SUM_ERROR), (step.noise_multiplier, step.sampling_rate))
    return release(law, total, randomness, functools.partial(with_noise, total, spacing))


def with_noise(total: Floats, step: float, randomness: Randomness) -> Floats:
    """Return `total` (size,) rounded to multiples of `step`, with Gaussian noise of SCALE steps on each."""
    noisy = grid.on_grid(total, np.array(step))
    noisy += wide_gaussian().sample(total.size, randomness)
    released: Floats = np.multiply(noisy, step)
    return released
