"""Released weights: W + N(0, sigma^2 I), drawn once at training and kept; every answer is computed from them.

In several precisions, if the owner wants: tiers on one noise path. What is drawn are independent releases Y_1, Y_2,
..., of the same W, the i-th of them e_i-GDP with noise of variance v_i (`mechanisms.gaussian_vector`). Tier t is
their average with the precisions 1/v_i as weights,

    T_t = (sum over i <= t of Y_i / v_i) / (sum over i <= t of 1 / v_i).

1. Standalone cost of tier t. It is computed from Y_1..Y_t, whose noises are independent: by composition (Dong, Roth
   and Su 2022, Corollary 3.3) they are mu_t-GDP together with mu_t^2 = e_1^2 + ... + e_t^2, and T_t is
   post-processing. Nothing finer enters it.
2. A coalition holding several tiers. All of them are computed from Y_1..Y_t, t the finest it holds: together they are
   mu_t-GDP, the cost of the finest alone, however the tiers came to be held, and whoever holds which.
3. The difference. Whoever holds tier s moves to t by Y_(s+1)..Y_t, which cost mu_t^2 - mu_s^2, and may decide to by
   what it saw: mu-GDP composes adaptively when the sum of squares is bounded in advance, as an account bounds it.
   The ledger charges the e_i one by one (`accounting.ledger.holdings`), so that its tallies say what was released.
4. It is one Brownian path. N_t = T_t - W has the variance V_t = 1 / (sum over i <= t of 1/v_i), and for s < t

       Cov(N_s, N_t) = sum over i <= s of (V_s / v_i) (V_t / v_i) v_i = V_s V_t / V_s = V_t:

   N_s - N_t is uncorrelated with N_t, hence (Gaussian) independent of it. The noise of a coarser tier is that of the
   finer one plus an independent increment (Koufogiannis, Han and Pappas 2015; Whitehouse, Ramdas, Wu and Rogers 2022).
   So the coarse tiers add nothing to the finest, and the finest has as little noise as one release of mu_t alone.

5. Each tier has a calibration of its own (`training.pay_once.calibration`), computed from Y_1..Y_t and the records and
   c_t-GDP given these. Whoever holds tier t holds the calibrations up to t: mu_t^2 has c_1^2 + ... + c_t^2 besides.

1 to 3 are proved for the noise as it is drawn, on integer grids, since each Y_i is; 4 is a statement about the ideal
continuous noise, on which no guarantee depends. Rounding adds 1/12 of a squared grid step to each v_i.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from accounting.arrays import Floats
from accounting.losses import Cost, GaussianLoss
from mechanisms.answer_noise import AnswerNoise
from mechanisms.elementary import softmax
from mechanisms.gaussian_vector import LARGEST_SIZE, GaussianVector, mu_for
from mechanisms.grid import round_up, square_root_up
from mechanisms.randomness import Randomness
from training.bundles.certificate import SUM_OF_LOSSES, Convexified, HeadObjective, check_convexified, derive
from training.bundles.sealing import checked_tensors, load_sealed, save_sealed, with_public_tensors
from training.devices import NUMPY, Arithmetic, Matrix, matrices, product
from training.errors import TrainingError
from training.exact.quantised import norms, weight_step
from training.fields import NAME, Several
from training.fitting.sensitivity import LARGEST_PARAMETER, SMALLEST_PARAMETER
from training.inputs.records import Records
from training.kinds.head.bundle import CertifiedHead
from training.kinds.weights.tiers import MOST_TIERS, tier_steps
from training.pay_once import calibration
from training.pay_once.calibration import Calibration
from training.pay_once.canaries import (
    CanaryPart,
    CanaryRun,
    Coins,
    labels_of,
    moved_alike,
    tensor_shapes,
)
from training.pay_once.certificate import (
    COMMON_ASSUMPTIONS,
    ReleaseCertificate,
    Tier,
    check_on_grid,
)
from training.pay_once.model import rounded


class WeightsTier(BaseModel):
    """One tier, as the certificate lists it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=f"^{NAME.pattern}$")
    mu_beyond: float
    """e_t: what this tier's own release of the weights costs, beyond the tier before it."""
    mu: float
    """The cost of everything up to this tier, its calibration among it, rounded up."""
    noise_of_release: float
    """The standard deviation of the noise of Y_t on every weight."""
    noise: float
    """The standard deviation of the noise of T_t on every weight."""
    calibration_mu: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The cost of the calibration of T_t, beyond mu_beyond; 0 where there is none."""

    @property
    def cost(self) -> Cost:
        """The cost of holding it, beyond the tier before it."""
        return Cost((GaussianLoss(self.mu_beyond), *calibration.losses(self.calibration_mu)))


class WeightsCertificate(ReleaseCertificate):
    """The certificate of released weights of a certified head (`training.bundles.certificate.Certificate`)."""

    ASSUMPTIONS: ClassVar[tuple[str, ...]] = (
        *COMMON_ASSUMPTIONS,
        "Each tier's noise was drawn once, at training, and the exact weights were not kept.",
    )

    release: Literal["weights"] = "weights"
    assumptions: Several[str] = ASSUMPTIONS
    objective: HeadObjective = SUM_OF_LOSSES
    convexified: Convexified | None = Field(default=None, exclude_if=lambda convexified: convexified is None)
    """The price of the convexified objective, where the head was trained on that."""
    strong_convexity: float = Field(ge=SMALLEST_PARAMETER, le=LARGEST_PARAMETER)
    """Lambda."""
    tolerance: float = Field(ge=SMALLEST_PARAMETER, le=LARGEST_PARAMETER)
    """tau: training returned weights with a gradient norm of at most this."""
    weight_sensitivity: float
    """Delta_W: neighbouring data sets' weights differ by at most this in Frobenius norm."""
    precisions: Several[WeightsTier] = Field(min_length=1, max_length=MOST_TIERS)

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if len({tier.name for tier in self.precisions}) < len(self.precisions):
            raise ValueError("a tier is named twice")
        check_convexified(self)
        if self.chosen_among is not None and len(self.precisions) > 1:
            raise ValueError("weights that were chosen have one precision")
        return self

    @property
    def size(self) -> int:
        """Number of weights."""
        return len(self.classes) * self.feature_map.dimension

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The precisions that can be held, the coarsest first."""
        if self.chosen_among:
            return super().tiers
        first, *others = self.precisions
        with_features = Cost((*self.feature_map.losses, *first.cost.losses))
        return (Tier(first.name, with_features), *(Tier(tier.name, tier.cost) for tier in others))

    def derived_cost(self) -> Cost:
        """Return the composition of what was drawn: the module's statements 1 and 5."""
        return Cost(tuple(loss for tier in self.precisions for loss in tier.cost.losses))

    def canary_parts(self) -> tuple[CanaryPart, ...]:
        """Return the weights of each tier, as they were drawn.

        A canary's features are the unit vector of a column of its own, where no record has anything: the objective is
        a sum of one in the records' columns and one for each canary in its column w,

            CE(w, y) + (Lambda/2) |w|^2,   so that   Lambda w = e_y - softmax(w):

        w_y = t and every other number is -t/(C - 1), with Lambda t = 1 - p_y. That is t < (1 - 1/C)/Lambda, and |w| =
        t sqrt(C/(C - 1)) < sqrt(1 - 1/C)/Lambda, while the claim is for sqrt(2)/Lambda: that is reached by a record of
        which the others are sure that it has another class, and a canary has its column for itself. So canaries show
        at most sqrt((1 - 1/C)/2) of the mu that is claimed, half of it for two classes.
        """
        if self.canaries is None:
            return ()
        if self.convexified is not None:
            raise ValueError("canaries go with the plain sum of losses")
        classes, number = len(self.classes), self.canaries.number
        weight = alone(self.strong_convexity, classes)
        direction = np.full(classes, -weight / (classes - 1))
        direction[0] = weight
        moved = moved_alike(direction, labels_of(number, classes))
        # The solver's error over all columns, and half a step of the grid that weights are rounded to.
        off = self.tolerance / self.strong_convexity
        off += weight_step(number) * math.sqrt(moved.size)
        parts = []
        for tier in self.precisions:
            vector = GaussianVector(tier.mu_beyond, self.size, self.weight_sensitivity)
            parts.append(
                CanaryPart(tier.name, tier.mu_beyond, moved, vector.standard_deviation, vector.step, slack=off)
            )
        return tuple(parts)

    def derived(self) -> Mapping[str, object]:
        """Return the cost, the sensitivity (`training.bundles.certificate.derive`) and every tier's figures."""
        shape = len(self.classes), self.feature_map.dimension
        convexity = None if self.convexified is None else self.convexified.convexity
        figures = derive(self.strong_convexity, self.tolerance, *shape, convexity)
        sensitivity = figures["weight_sensitivity"]
        objective: dict[str, object] = {name: figures[name] for name in ("objective", "convexified") if name in figures}
        steps = {tier.name: (tier.mu_beyond, tier.calibration_mu) for tier in self.precisions}
        precisions = _precisions(steps, self.size, sensitivity)
        return {**super().derived(), **objective, "weight_sensitivity": sensitivity, "precisions": precisions}


def alone(strong_convexity: float, classes: int) -> float:
    """Return t = (1 - p)/Lambda, p = e^t/(e^t + (C - 1) e^(-t/(C - 1))): `WeightsCertificate.canary_parts`."""
    low, high = 0.0, 1 / strong_convexity
    for _ in range(100):
        t = (low + high) / 2
        others = math.exp(-t * classes / (classes - 1)) * (classes - 1)
        low, high = (t, high) if others / (1 + others) > strong_convexity * t else (low, t)
    return low


@dataclass(frozen=True, eq=False)
class ReleasedWeights:
    """A linear head on a public feature map, with noisy weights (T, C, D), one for each release that was drawn.

    calibrations: one for each tier.
    """

    certificate: WeightsCertificate
    released: Floats
    tensors: dict[str, Floats]
    calibrations: Several[Calibration]
    level: int = -1
    """Which of the tiers answers: its place among `certificate.precisions`."""
    arithmetic: Arithmetic = NUMPY
    """The library that computes its products."""
    canaries: CanaryRun | None = None
    """Released of canaries in the same run."""

    def at(self, tier: str) -> "ReleasedWeights":
        """Return the model that answers at one tier. Raises KeyError for an unknown name."""
        names = [each.name for each in self.certificate.precisions]
        if tier not in names:
            raise KeyError(tier)
        return replace(self, level=names.index(tier))

    @property
    def calibration(self) -> Calibration:
        """Its tier's."""
        return self.calibrations[self.level]

    @functools.cached_property
    def weights(self) -> Floats:
        """T_t, the weights of its tier, `rounded` for exact products: (C, D)."""
        drawn = self.certificate.precisions[: self.level % len(self.released) + 1]
        precision = np.array([each.noise_of_release for each in drawn]) ** -2.0
        shares = precision / precision.sum()
        return rounded(np.tensordot(shares, self.released[: len(drawn)], axes=1))

    def probabilities(self, X: Floats) -> Floats:
        """See `training.pay_once.model.ReleasedModel`."""
        return self.answers(X)[0]

    def answers(self, X: Floats) -> tuple[Floats, AnswerNoise]:
        """See `training.pay_once.model.ReleasedModel`."""
        phi = self.certificate.feature_map(X, self._public)
        return softmax(self.calibrations[self.level](product(phi, self._placed.T))), AnswerNoise(
            "gaussian", self._noise(phi)
        )

    def logits(self, X: Floats) -> Floats:
        """Return the logits (n, C) of rows (n, d), before calibration."""
        return product(self.certificate.feature_map(X, self._public), self._placed.T)

    @functools.cached_property
    def _placed(self) -> Matrix:
        return self.arithmetic.matrix(np.asfortranarray(self.weights))

    @functools.cached_property
    def _public(self) -> dict[str, Matrix]:
        return matrices(self.arithmetic, self.tensors)

    def _noise(self, phi: Floats) -> Floats:
        """Return the standard deviation of the noise on each logit, (n,).

        Logit c is b <T_c, phi(x)> plus a public number, b the calibration's scale, and its noise b <N_c, phi(x)> with
        N_c ~ N(0, V_t I): Gaussian of variance b^2 V_t ||phi(x)||^2, and independent of the other classes'. One draw of
        it serves all answers. b and the public number were computed after N was drawn, from all records: they are taken
        as if they did not depend on N. With two classes that changes nothing: how far <N, phi(x)> lies from 0, in its
        own standard deviations, is the same for every b.
        """
        spread: Floats = (
            self.calibrations[self.level].scale * self.certificate.precisions[self.level].noise * norms(phi)
        )
        return spread


def release_weights(
    head: CertifiedHead,
    prices: Mapping[str, int],
    lineage: str,
    randomness: Randomness,
    records: Records | None = None,
    canaries: int | None = None,
) -> ReleasedWeights:
    """Draw the released weights of a certified head, at each tier's whole price in picorho, the coarsest first.

    records: those that the head was trained on, to calibrate every tier on; None to leave probabilities as they come,
    surer than they are right. canaries: how many there are. The head's exact weights should then be forgotten: only the
    release was paid for. Raises TrainingError for prices out of order or out of range, saying which tier, and where
    canaries refute the certificate.
    """
    trained = head.certificate
    if records is not None and records.unit != trained.unit:
        raise TrainingError("the head was trained with other privacy units than those of these records")
    steps = {
        name: (mu_for(rest), calibration.mu_of(part))
        for name, (part, rest) in _divided(prices, calibrating=records is not None).items()
    }
    size = head.weights.size
    if size > LARGEST_SIZE:
        raise TrainingError(f"there are {size} weights, and a release has at most {LARGEST_SIZE}; use fewer features")
    try:
        precisions = _precisions(steps, size, trained.weight_sensitivity)
    except ValueError as error:
        raise TrainingError(f"these tiers are not possible with {size} weights: {error}") from error
    coins = None if canaries is None else Coins.drawn(canaries, randomness)
    certificate = WeightsCertificate.fresh(
        trained.name,
        trained,
        trained.feature_map,
        lineage,
        unit=trained.unit,
        choice=trained.choice,
        cost=str(Cost(tuple(loss for tier in precisions for loss in tier.cost.losses))),
        objective=trained.objective,
        convexified=trained.convexified,
        strong_convexity=trained.strong_convexity,
        tolerance=trained.tolerance,
        weight_sensitivity=trained.weight_sensitivity,
        precisions=precisions,
        canaries=None if coins is None else coins.certified(),
    )
    classes = len(trained.classes)
    beside = np.empty((classes, 0))
    if coins is not None:
        # Who loads a model needs no solver.
        from training.kinds.weights.canaries import canary_weights

        beside = canary_weights(coins, trained.strong_convexity, classes, trained.tolerance)
    drawn = [
        GaussianVector(tier.mu_beyond, size, trained.weight_sensitivity).release_beside(
            head.weights, beside, randomness
        )
        for tier in precisions
    ]
    run = None
    if coins is not None:
        run = CanaryRun(coins, {tier.name: each.T for tier, (_, each) in zip(precisions, drawn, strict=True)})
        certificate = certificate.with_canaries(run)
    uncalibrated = (Calibration.none(classes),) * len(precisions)
    released = np.stack([weights for weights, _ in drawn])
    model = ReleasedWeights(certificate, released, head.tensors, uncalibrated, canaries=run)
    if records is None:
        return model
    sums = records.sums

    def calibrated(tier: WeightsTier) -> Calibration:
        return calibration.calibrated(sums, model.at(tier.name).logits, classes, tier.calibration_mu, randomness)

    return replace(model, calibrations=tuple(map(calibrated, precisions)))


def save_weights(folder: Path, model: ReleasedWeights) -> WeightsCertificate:
    """Write the bundle into a new folder; return its certificate with the digest. Raises BundleError."""
    numbers = np.stack([each.numbers for each in model.calibrations])
    own = {"released": model.released, "calibrations": numbers}
    if model.canaries is not None:
        own |= model.canaries.tensors()
    return save_sealed(folder, with_public_tensors(own, model.tensors), model.certificate)


def load_weights(folder: Path, device: str | None = None) -> ReleasedWeights:
    """Read and verify a bundle. device, and what is raised: as for `sealing.load_sealed`."""
    certificate, tensors = load_sealed(folder, WeightsCertificate, device)
    public = certificate.feature_map.public_tensors()
    shape = (len(certificate.precisions), len(certificate.classes), certificate.feature_map.dimension)
    shapes: dict[str, tuple[int, ...]] = {"released": shape, "calibrations": (shape[0], shape[1] + 1)}
    shapes |= tensor_shapes(certificate.canaries, certificate.canary_parts())
    own = checked_tensors(tensors, shapes, public)
    released = own["released"]
    for tier, values in zip(certificate.precisions, released, strict=True):
        vector = GaussianVector(tier.mu_beyond, certificate.size, certificate.weight_sensitivity)
        check_on_grid(f"released, tier {tier.name}", values, vector.step)
    calibrations = tuple(map(Calibration.read, own["calibrations"]))
    return ReleasedWeights(certificate, released, public, calibrations, canaries=certificate.checked_canaries(own))


def _divided(prices: Mapping[str, int], *, calibrating: bool) -> dict[str, tuple[int, int]]:
    """Return what a tier's calibration and its weights may cost, in picorho."""
    return {name: calibration.divided(step) if calibrating else (0, step) for name, step in tier_steps(prices).items()}


def _precisions(steps: Mapping[str, tuple[float, float]], size: int, sensitivity: float) -> tuple[WeightsTier, ...]:
    tiers: list[WeightsTier] = []
    precision = 0.0
    square = Fraction(0)
    for name, (mu, calibration_mu) in steps.items():
        try:
            noise = GaussianVector(mu, size, sensitivity).standard_deviation
        except ValueError as error:
            raise ValueError(f"tier {name!r}: {error}") from error
        precision += 1 / (noise * noise)
        square += Fraction(mu) ** 2 + Fraction(calibration_mu) ** 2
        tiers.append(
            WeightsTier(
                name=name,
                mu_beyond=mu,
                mu=round_up(square_root_up(square)),
                noise_of_release=noise,
                noise=1 / math.sqrt(precision),
                calibration_mu=calibration_mu,
            )
        )
    return tuple(tiers)
