"""Objective perturbation: minimise the head's objective plus <B, W> for a Gaussian matrix B, and release W once.

The noise enters before the minimum is taken, so that it is damped where the records curve the objective, which noise
on the weights is not. What is released is W_approx + N(0, s^2 I): the solver stops before the exact minimum, and B is
rounded to a grid, so a little noise on the weights hides how far off that is (Iyengar et al. 2019, for its idea).
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from accounting import picorho, sampling_error
from accounting.arrays import Floats
from accounting.losses import Cost, GaussianLoss
from accounting.messages import OptionName
from mechanisms.answer_noise import AnswerNoise
from mechanisms.elementary import softmax
from mechanisms.gaussian_vector import LEAST_PRICE, GaussianNoise, GaussianVector, mu_for
from mechanisms.randomness import Randomness
from training.bundles.sealing import checked_tensors, load_sealed, one_line, save_sealed, with_public_tensors
from training.devices import NUMPY, Arithmetic, Matrix, matrices, product
from training.errors import TrainingError
from training.exact.quantised import LARGEST_WEIGHT_NORM, norms
from training.features.maps import NORM_BOUND, FeatureMap
from training.features.rows import Features
from training.fields import Several
from training.fitting.objective import RegularisedCrossEntropy
from training.fitting.sensitivity import LARGEST_PARAMETER, SMALLEST_PARAMETER
from training.inputs.records import Records
from training.inputs.sums import Rows, check_count
from training.kinds.objective.bound import NO_UNITS, perturbation_bound
from training.pay_once import calibration
from training.pay_once.calibration import Calibration
from training.pay_once.certificate import COMMON_ASSUMPTIONS, ReleaseCertificate, check_on_grid
from training.pay_once.model import rounded

if TYPE_CHECKING:
    from training.fitting.solver import OnNorm

CURVATURE_PER_NOISE = 5.0
"""Lambda over sigma where the owner names no Lambda: less makes the proof dear, more makes the model simple."""

_UNIT_ROUNDOFF = 2.0**-53
_UP = 1 + 2.0**-40


class ObjectiveCertificate(ReleaseCertificate):
    """The certificate of weights that minimise a perturbed objective."""

    ASSUMPTIONS: ClassVar[tuple[str, ...]] = (
        *COMMON_ASSUMPTIONS,
        "Whether the solver reached its tolerance, rather than failed, depends on the records and the noise, and is "
        "not hidden from whoever sees that a model is served.",
    )

    release: Literal["objective"] = "objective"
    assumptions: Several[str] = ASSUMPTIONS
    objective: Literal["sum of cross-entropies + (Lambda/2) ||W||_F^2 + <B, W>"] = (
        "sum of cross-entropies + (Lambda/2) ||W||_F^2 + <B, W>"
    )
    strong_convexity: float = Field(ge=SMALLEST_PARAMETER, le=LARGEST_PARAMETER)
    """Lambda."""
    tolerance: float = Field(ge=SMALLEST_PARAMETER, le=LARGEST_PARAMETER)
    """tau: the solver returned weights with a gradient norm of at most this."""
    noise: float = Field(gt=0, allow_inf_nan=False)
    """sigma: the standard deviation of every value of B."""
    output_mu: float = Field(gt=0, allow_inf_nan=False)
    """The cost of the noise on the weights, given the exact minimum."""
    output_sensitivity: float
    """Largest distance, given the exact minimum, of two weights that the solver returns."""
    calibration_mu: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The cost of the calibration, given the weights: mu-GDP; 0 where there is none."""

    def derived_cost(self) -> Cost:
        """Return the cost of the exact minimum and, given that, of where the solver stopped.

        Proof. B* is ideal noise, N(0, sigma^2 I), and B the same rounded to a grid: ||B - B*||_F <= d
        (`GaussianNoise.rounding`). Let W* minimise the objective with B*. Releasing W* alone costs what
        `perturbation_bound` says. The solver's W has a gradient norm of at most tau with B, so of at most tau + d with
        B*, and the objective is Lambda-strongly convex: ||W - W*|| <= (tau + d) / Lambda, and projecting both onto a
        public ball takes them no further apart (`training.fitting.sensitivity`). That holds for either of two
        neighbours. So given W*, the difference W - W* lies in one ball for both: neighbours' differences are at most 2
        (tau + d) / Lambda apart, plus the projection's rounding, and that is the sensitivity that `GaussianVector` is
        given. The two releases compose adaptively, and their sum is what leaves. The calibration's cost comes on top
        (`training.pay_once.calibration`).

        Raises ValueError where a unit of several records is to be protected: see `NO_UNITS`.
        """
        if self.unit is not None:
            raise ValueError(NO_UNITS)
        bound = perturbation_bound(self.noise, self.strong_convexity, NORM_BOUND, len(self.classes))
        return Cost((bound.loss, GaussianLoss(self.output().mu), *calibration.losses(self.calibration_mu)))

    def derived(self) -> Mapping[str, object]:
        """Return the cost, and the sensitivity of where the solver stops."""
        return {**super().derived(), "output_sensitivity": self.output().sensitivity}

    def perturbing(self) -> GaussianNoise:
        """The law of B. Raises ValueError where it cannot be drawn."""
        return GaussianNoise(self.noise, len(self.classes) * self.feature_map.dimension)

    def output(self) -> GaussianVector:
        """The law of the noise on the weights. Raises ValueError where it cannot be drawn."""
        perturbing = self.perturbing()
        return GaussianVector(
            self.output_mu, perturbing.size, _output_sensitivity(perturbing, self.tolerance, self.strong_convexity)
        )


@dataclass(frozen=True, eq=False)
class PerturbedHead:
    """A linear head on a public feature map. weights: (C, D), released; tensors: the feature map's public ones."""

    certificate: ObjectiveCertificate
    weights: Floats
    tensors: dict[str, Floats]
    calibration: Calibration
    arithmetic: Arithmetic = NUMPY
    """The library that computes its products."""

    def probabilities(self, X: Floats) -> Floats:
        """See `training.pay_once.model.ReleasedModel`."""
        return self.answers(X)[0]

    def answers(self, X: Floats) -> tuple[Floats, AnswerNoise]:
        """See `training.pay_once.model.ReleasedModel`.

        The gradient of the objective without B is Lambda-strongly monotone and -B at its minimum W(B), so that
        ||W(B) - W(B')|| <= ||B - B'|| / Lambda: W is a Lipschitz function of B, and of the standard Gaussian numbers
        B / sigma with the constant sigma / Lambda. The noise on the weights, of standard deviation s, adds s to that in
        squares. A logit is b <W_c, phi> and a public number, b the calibration's scale: the logits of a row move in L2
        by at most b ||phi|| of what W moves in Frobenius norm. Where the solver stopped and B's rounding put W at most
        e = (tau + d) / Lambda off (`ObjectiveCertificate.derived_cost`): what is shown and the median by so much each,
        which 2 e more of the constant makes up for, as t >= 1. So intervals hold the median
        (`mechanisms.answer_noise`). The answer without noise can be further off than that: all that is proved is that
        logits differ from it by at most b ||phi|| ||B|| / Lambda, which says little. As for released weights, b is
        taken as if it did not depend on the noise.
        """
        phi = self.certificate.feature_map(X, self._public)
        scale = self.calibration.scale * self._movement * norms(phi)
        probabilities = softmax(self.calibration(product(phi, self._placed.T)))
        return probabilities, AnswerNoise("gaussian", scale, "training")

    @functools.cached_property
    def _movement(self) -> float:
        """Distance by which the weights move for each unit of noise: see `answers`."""
        certificate = self.certificate
        output = certificate.output()
        stopped = (certificate.tolerance + certificate.perturbing().rounding) / certificate.strong_convexity
        return math.hypot(certificate.noise / certificate.strong_convexity, output.standard_deviation) + 2 * stopped

    def logits(self, X: Floats) -> Floats:
        """Return the logits (n, C) of rows (n, d), before calibration."""
        return product(self.certificate.feature_map(X, self._public), self._placed.T)

    @functools.cached_property
    def _placed(self) -> Matrix:
        return self.arithmetic.matrix(np.asfortranarray(rounded(self.weights)))

    @functools.cached_property
    def _public(self) -> dict[str, Matrix]:
        return matrices(self.arithmetic, self.tensors)


@dataclass(frozen=True)
class Perturbation:
    """The public numbers of a perturbed objective: see `ObjectiveCertificate`."""

    strong_convexity: float
    noise: float
    output_mu: float
    calibration_mu: float = 0.0


def perturbation_for(whole: int, classes: int, strong_convexity: float | None = None) -> Perturbation:
    """Return the least noise whose release costs at most `whole` picorho.

    Calibration gets its share, the noise on the weights the least that a release may cost, B the rest.
    strong_convexity: Lambda, or None for CURVATURE_PER_NOISE sigma. Raises ValueError if no noise does, saying so.
    """
    if whole < 2 * LEAST_PRICE:
        raise ValueError(
            f"objective perturbation is two releases, and costs at least {2 * sampling_error.LEAST_RELEASE_RHO:g} "
            f"rho, not {whole / picorho.PICORHO_PER_RHO:g}"
        )
    for_calibration, rest = calibration.divided(whole)
    output_mu, target = mu_for(LEAST_PRICE), mu_for(rest - LEAST_PRICE)

    def curvature(sigma: float) -> float:
        return CURVATURE_PER_NOISE * sigma if strong_convexity is None else strong_convexity

    def affordable(sigma: float) -> bool:
        try:
            return perturbation_bound(sigma, curvature(sigma), NORM_BOUND, classes).loss.mu <= target
        except ValueError:
            return False

    # More noise is not always cheaper: with a fixed Lambda it also lets a record's gradient turn further.
    least_sigma = math.sqrt(2) * NORM_BOUND / target
    tried = np.geomspace(least_sigma, 100 * least_sigma, 60).tolist()
    first = next((index for index, sigma in enumerate(tried) if affordable(sigma)), None)
    if first is None:
        raise ValueError(
            f"no noise makes the perturbation of this objective cost so little as mu = {target:.4g}: leave "
            + OptionName("lam")
            + " "
            "out, so that it follows the noise, or give a larger one, or a larger price"
        )
    low, high = tried[max(first - 1, 0)], tried[first]
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if affordable(middle) else (middle, high)
    return Perturbation(curvature(high), high, output_mu, calibration.mu_of(for_calibration))


def train_perturbed(
    records: Records,
    name: str,
    feature_map: FeatureMap,
    choices: Perturbation,
    tolerance: float,
    lineage: str,
    randomness: Randomness,
    progress: "OnNorm" = lambda _: None,
) -> PerturbedHead:
    """Minimise a freshly perturbed objective over the records and certify the result.

    Raises NotConverged when the tolerance is not reached, and TrainingError for numbers that have no certificate.
    """
    # SciPy's optimisers, which nobody needs who loads a model.
    from training.fitting.solver import minimise

    check_count(len(records))
    if records.unit is not None:
        raise TrainingError(NO_UNITS)
    tensors, declaration = feature_map.public_tensors(), records.declaration
    classes = len(declaration.classes)
    shape = (classes, feature_map.dimension)
    try:
        perturbing = GaussianNoise(choices.noise, shape[0] * shape[1])
        loss = perturbation_bound(choices.noise, choices.strong_convexity, NORM_BOUND, classes).loss
        certificate = ObjectiveCertificate.fresh(
            name,
            declaration,
            feature_map,
            lineage,
            cost=str(Cost((loss, GaussianLoss(choices.output_mu), *calibration.losses(choices.calibration_mu)))),
            calibration_mu=choices.calibration_mu,
            strong_convexity=choices.strong_convexity,
            tolerance=tolerance,
            noise=choices.noise,
            output_mu=choices.output_mu,
            output_sensitivity=_output_sensitivity(perturbing, tolerance, choices.strong_convexity),
        )
        output = certificate.output()
    except ValueError as error:
        raise TrainingError(f"this objective cannot be perturbed: {one_line(error)}") from error
    objective = RegularisedCrossEntropy(
        records.sums,
        *shape,
        choices.strong_convexity,
        Rows(Features(feature_map, sparse=True)),
        perturbing.draw(randomness).reshape(shape),
    )
    weights = minimise(objective, tolerance, progress)
    model = PerturbedHead(certificate, output.release(weights, randomness), tensors, Calibration.none(classes))
    return replace(
        model,
        calibration=calibration.calibrated(records.sums, model.logits, classes, choices.calibration_mu, randomness),
    )


def _output_sensitivity(perturbing: GaussianNoise, tolerance: float, strong_convexity: float) -> float:
    """Return 2 (tau + d) / Lambda, and the projection's rounding: see `ObjectiveCertificate.derived_cost`."""
    apart = 2 * (tolerance + perturbing.rounding) / strong_convexity
    return (apart + 8 * _UNIT_ROUNDOFF * LARGEST_WEIGHT_NORM) * _UP


def save_perturbed(folder: Path, model: PerturbedHead) -> ObjectiveCertificate:
    """Write the bundle into a new folder; return its certificate with the digest. Raises BundleError."""
    own = {"weights": model.weights, "calibration": model.calibration.numbers}
    return save_sealed(folder, with_public_tensors(own, model.tensors), model.certificate)


def load_perturbed(folder: Path, device: str | None = None) -> PerturbedHead:
    """Read and verify a bundle. device, and what is raised: as for `sealing.load_sealed`."""
    certificate, tensors = load_sealed(folder, ObjectiveCertificate, device)
    shape = (len(certificate.classes), certificate.feature_map.dimension)
    public = certificate.feature_map.public_tensors()
    released = checked_tensors(tensors, {"weights": shape, "calibration": (shape[0] + 1,)}, public)
    check_on_grid("weights", released["weights"], certificate.output().step)
    return PerturbedHead(certificate, released["weights"], public, Calibration.read(released["calibration"]))
