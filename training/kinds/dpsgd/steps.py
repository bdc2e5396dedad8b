"""The steps of DP-SGD: the centre, and all noisy gradient steps as one release."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self, cast

import numpy as np

from dpserve.accounting import gaussian_envelope, picorho, sampling_error
from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import ApproximateGaussianLoss, Cost
from dpserve.accounting.messages import Message
from dpserve.mechanisms import wide_gaussian
from dpserve.mechanisms.randomness import Randomness
from dpserve.training.errors import TrainingError
from dpserve.training.fitting.around import SparseCentred, around, on_steps
from dpserve.training.fitting.dense_around import DenseCentred
from dpserve.training.fitting.network import Network
from dpserve.training.fitting.unit_rows import phi_of
from dpserve.training.inputs.records import AnyRecords
from dpserve.training.inputs.sums import ROWS, Rows, Sums
from dpserve.training.kinds.dpsgd.centre import centre_release, mean_of, sum_of_rows
from dpserve.training.kinds.dpsgd.descent import Descent, descend, noise_of_weights
from dpserve.training.kinds.dpsgd.model import DpSgdModel
from dpserve.training.kinds.dpsgd.noisy_step import StepCanaries, StepRelease, grid_step, private_step
from dpserve.training.pay_once.canaries import CanaryRun, Coins, included_records, one_hot
from dpserve.training.pay_once.chain import ModelStep, PublicNumbers
from dpserve.training.pay_once.releases import Release

if TYPE_CHECKING:
    from dpserve.training.kinds.dpsgd.certificate import DpSgdCertificate
    from dpserve.training.pay_once.certificate import ReleaseCertificate


LEAST_PART = math.ceil(sampling_error.LEAST_RELEASE_RHO * picorho.PICORHO_PER_RHO * (1 + 1e-6))
"""The least that a release costs, in picorho."""


@dataclass(frozen=True)
class Training:
    """A training by DP-SGD on its way.

    mapped, rows: sums of the records, and how they see their rows' directions, which are kept from step to step. coins:
    of canaries, if there are any. progress: is told how many steps of a release are done.
    """

    records: AnyRecords
    model: DpSgdModel
    mapped: Sums
    rows: Rows
    coins: Coins | None = None
    progress: Callable[[str, int], None] = field(default=lambda _, __: None)

    @property
    def parts(self) -> Rows:
        """The branches' logits beside each other, (m, branches C), of the directions that are kept."""
        model = self.model  # a term takes it along to where the records are
        return Rows(lambda kept: np.hstack(model.parts_of(phi_of(kept))), source=self.rows, at_once=self.rows.at_once)

    def with_parameters(self, place: int, parameters: Floats) -> Self:
        """Return it with the parameters (size,) of the branch at a place."""
        model = self.model
        changed = (*model.parameters[:place], parameters, *model.parameters[place + 1 :])
        return replace(self, model=replace(model, parameters=changed))


@dataclass(frozen=True)
class Branch:
    """A part of a model that is trained by noisy steps of its own. seed: of the weights that it starts from."""

    network: Network
    step: StepRelease
    descent: Descent
    seed: int = 0


class Centre(ModelStep[Training]):
    """The noisy mean that inputs are taken around: `centre.sum_of_rows` has the proof. mu-GDP.

    Given it, a record's input depends on the record alone.
    """

    name = "centre"

    def share(self, price: int, numbers: PublicNumbers) -> int:
        """Return its share, or the least that a release may cost; nothing where that is more than a fifth."""
        part = numbers.choices.centre_share
        centre = max(math.floor(price * part), LEAST_PART)
        return 0 if not part or 5 * centre > price else centre

    def cost(self, mu: float, certificate: "ReleaseCertificate") -> Cost:
        """Return the cost. Raises ValueError for a mu that no centre can have."""
        return centre_release(mu, certificate.feature_map.dimension).cost

    def run(self, state: Training, release: Release, randomness: Randomness) -> Training:
        """Return the state with a centre."""
        certificate = state.model.certificate
        law = centre_release(release.mu, certificate.feature_map.dimension)
        noisy_sum = law.release(sum_of_rows(state.mapped, state.rows), randomness)
        centre = mean_of(noisy_sum, certificate.records_declared, certificate.feature_map)
        return replace(state, model=replace(state.model, centre=centre))


class NoisySteps(ModelStep[Training]):
    """All noisy steps of the descent together: mu-GDP but for a delta of 2^-40, at every epsilon.

    A step is a sampled Gaussian (`noisy_step.private_step`), steps are chosen adaptively, and
    `dpserve.accounting.gaussian_envelope.least_mu` says what covering them means, why the noise sampler's error is
    within the delta, and how it is checked. Everything after the steps is post-processing.

    Every step counts, though clients see the last weights alone. Let a step with all records, at one rate and without
    momentum, bring two vectors of weights closer by a factor c < 1. Then T steps are mu-GDP with
    mu^2 = (1 - c^T)/(1 + c^T) (1 + c)/(1 - c)/noise_multiplier^2 in place of T/noise_multiplier^2 (shifted
    interpolation: Bok, Su and Altschuler 2024, arXiv 2403.00278). With x = T (1 - c) that is sqrt(tanh(x/2)/(x/2))
    times the mu: nine tenths at x = 1.7, where the regularisation that makes c leaves e^-1.7 of the first step. Of more
    than two classes clipped gradients belong to no convex function, and no c is known. Of two, with the best of four T
    and the best scale on pima, german, attrition and wdbc, log loss was .398 at epsilon 1 with next to no
    regularisation, which is composition, and .398, .398, .399 and .411 with more and more of it; at epsilon 4 .371 and
    .374, .380, .395 and .415. So it would gain nothing.

    What is checked is that the numbers follow from one another: a mu below what the noise, the rate and the steps come
    to is refused, however little below. That the training had this noise is the owner's word (`COMMON_ASSUMPTIONS`):
    the weights are averages of what was released, and lie on no grid that could refute a certificate with twice the
    noise and half the mu. Keeping a noisy sum beside them would not change that: its grid follows from noise_multiplier
    times gradient_clip, and one can be doubled in the certificate while the other is halved.
    """

    name = "steps"
    is_needed = True
    place: ClassVar[int] = 0
    """The branch that is trained, by its place among the certificate's."""

    def release(self, mu: float) -> Release:
        """Return the release of all steps together that mu covers."""
        return self.bought(Cost((ApproximateGaussianLoss(mu, gaussian_envelope.DELTA),)))

    def cost(self, mu: float, certificate: "ReleaseCertificate") -> Cost:
        """Return the cost. Raises ValueError unless the mu covers the certificate's steps."""
        branch = cast("DpSgdCertificate", certificate).branches[self.place]
        noise, rate, steps, size = (
            branch.step.noise_multiplier,
            branch.step.sampling_rate,
            branch.descent.steps,
            branch.network.size,
        )
        grid_step(branch.step, size)
        gaussian_envelope.check_sampler(noise, steps, size, wide_gaussian.DISTANCE)
        if not gaussian_envelope.covers(mu, noise, rate, steps):
            raise ValueError(
                f"mu = {mu:.6g} does not cover {steps} steps at sampling rate {rate:.6g} with "
                f"noise multiplier {noise:.6g}"
            )
        return self.release(mu).price

    def run(self, state: Training, release: Release, randomness: Randomness) -> Training:  # noqa: ARG002
        """Return the state after the descent. Its noise is the certificate's, which the release covers."""
        certificate, branch = state.model.certificate, state.model.certificate.branches[self.place]
        network = branch.network
        parameters = network.initial(branch.seed)
        step = private_step(network, branch.step, randomness)
        # Canaries stand in the columns of a linear head, which is alone where there are any.
        centre, coins = on_steps(state.model.centre), state.coins
        inputs = inputs_of(state.rows, centre, certificate)
        joining = None if coins is None else _canaries(coins, certificate)
        seen = np.zeros(0 if joining is None else joining.network.layers(np.empty(joining.network.size))[0][0].size)

        def noisy_step(parameters: Floats) -> Floats:
            released, beside = step.noisy_totals(parameters, state.mapped, inputs, joining)
            seen[:] += beside
            return released

        parameters = descend(
            noisy_step, parameters, branch.descent, lambda done, _, __: state.progress(self.name, done)
        )
        if not np.isfinite(parameters).all():
            raise TrainingError(Message("the weights grew without bound: take a smaller {learning_rate}"))
        run = None if coins is None else CanaryRun(coins, {self.name: seen.reshape(len(coins.included), -1)})
        weights, biases = network.layers(parameters)[-1]
        usual = usual_scale(branch, certificate)
        weights *= usual
        biases *= usual
        state = replace(state, model=replace(state.model, centre=centre, canaries=run))
        return state.with_parameters(self.place, parameters)


class NetworkSteps(NoisySteps):
    """All noisy steps of the network beside the linear head: as those of the head, with noise of their own.

    They sample anew and know nothing of the head's steps, so that the two compose as any two releases do.
    """

    name = "network"
    is_needed = False
    place = 1

    def share(self, price: int, numbers: PublicNumbers) -> int:
        """Return its share; nothing where no network is asked for. Raises ValueError for less than a release costs."""
        beside = numbers.choices.beside
        if beside is None:
            return 0
        part: int = math.floor(price * beside.share)
        if part < LEAST_PART:
            raise ValueError(
                f"the network beside the linear model costs rho = {picorho.to_rho(LEAST_PART):.3g} at least, and its "
                f"share is {picorho.to_rho(part):.3g}: take hidden = 0, or a larger budget"
            )
        return part

    def is_needed_by(self, certificate: "ReleaseCertificate") -> bool:
        """Return whether there is a network."""
        return cast("DpSgdCertificate", certificate).beside is not None

    def cost(self, mu: float, certificate: "ReleaseCertificate") -> Cost:
        """Return the cost. Raises ValueError where there is no network, and as for the head's steps."""
        if not self.is_needed_by(certificate):
            raise ValueError("there is no network beside the linear head")
        return super().cost(mu, certificate)


CENTRE, NOISY_STEPS, NETWORK_STEPS = Centre(), NoisySteps(), NetworkSteps()


def canary_length(input_norm: float) -> float:
    """Return the length of canaries' inputs. input_norm: of records' inputs."""
    return 16.0 * max(1.0, input_norm)


def _canaries(coins: Coins, certificate: "DpSgdCertificate") -> StepCanaries:
    """Return the included canaries as steps take them: each input lies on a coordinate of its own."""
    number, classes, length = len(coins.included), len(certificate.classes), canary_length(certificate.input_norm)
    sparse = certificate.feature_map.has_compact_rows
    rows = one_hot(number, sparse=sparse)
    nothing = np.zeros(number)
    inputs = around(rows, nothing, length, SparseCentred if sparse else DenseCentred)
    network, clip_norm = Network((number, classes)), certificate.gradient_clip
    return StepCanaries(
        included_records(coins, classes, number),
        inputs,
        network,
        lambda parameters, inputs, labels: network.clipped_sum(parameters, inputs, labels, clip_norm),
    )


def inputs_of(rows: Rows, centre: Floats, certificate: "DpSgdCertificate") -> Rows:
    """Return what the first layer sees of rows, around the centre."""
    compact = rows is not ROWS and certificate.feature_map.has_compact_rows
    return around(rows, centre, certificate.input_norm, SparseCentred if compact else DenseCentred)


_HEAD_ALONE, _HEAD_BESIDE, _NETWORK = 0.9, 0.6, 0.3
"""The distance by which noise may move a logit: of a head alone, of a head beside a network, and of the network.

The best scales lie about there, found on 40 tables at epsilon 0.5 to 4: of the head alone .8 to 1.2 times what this
says, whatever the number of classes.
"""


def usual_scale(branch: Branch, certificate: "DpSgdCertificate") -> float:
    """Return what a branch's logits are multiplied by, at most 1, from the certificate's public numbers alone.

    Clipping counts a record on the wrong side as much however far it is there, so that logits grow until noise stops
    them, and every answer is sure of itself. So they are scaled until noise in the last layer's weights moves a logit
    by what usually is best: for a linear head, whose inputs have the length input_norm, and for a network, whose last
    layer's inputs are taken to be as long as tanh allows, the square root of their number. It is post-processing of
    what was released, and where `mixture` starts from. The weights are multiplied by it once, so that whoever reads
    them needs no more.
    """
    each = noise_of_weights(branch.descent, branch.step.noise_multiplier * branch.step.clip_norm)
    _, *hidden, _ = branch.network.widths
    if hidden:
        length, most = math.sqrt(hidden[-1]), _NETWORK
    else:
        length, most = certificate.input_norm, _HEAD_ALONE if certificate.beside is None else _HEAD_BESIDE
    return min(1.0, most / (each * math.hypot(length, 1.0)))
