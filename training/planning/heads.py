"""The basis of plans for noise on a head's answers: its logits' sensitivity, and the source of an expected accuracy."""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from accounting.arrays import Floats
from training.exact.questions import MeteredModel
from training.features.maps import NORM_BOUND
from training.fitting.sensitivity import (
    Convexity,
    convexified_sensitivity,
    largest_convexified_margin,
    largest_margin,
    usual_margin,
    weight_sensitivity,
)
from training.kinds.registry import default_kind, kind_of
from training.planning.answers import PublicSample

MOST_ROWS = 2000
"""An accuracy on so many is within 0.04 of that on all, and is computed in seconds."""

_MARGIN_POINTS = 201


@dataclass(frozen=True)
class PlannedHead:
    """A head as planning sees it. sensitivity: L2, of a typical row's logits; sample: what accuracy comes from.

    margin: see `usual_margin`. price_of_alpha: of the convexified objective, as its certificate states it.
    """

    classes: int
    sensitivity: float
    margin: float
    sample: PublicSample | None = None
    price_of_alpha: float | None = None

    @classmethod
    def of(cls, head: MeteredModel) -> "PlannedHead":
        """Return one that is trained. Raises TrainingError for a kind that no noise is planned for."""
        basis, classes = kind_of(head).noise_basis(head.certificate), len(head.certificate.classes)
        margin = usual_margin(None, basis.strong_convexity, NORM_BOUND, classes)
        return cls(classes, basis.sensitivity, margin, price_of_alpha=basis.price_of_alpha)

    @classmethod
    def of_numbers(
        cls, n: int | None, lam: float, norm: float, classes: int, convexity: Convexity | None = None
    ) -> "PlannedHead":
        """Return one that may be trained on n records, by Lambda and the bound of the features' norm.

        Where n is known its accuracy has an upper end. convexity: as for a recipe. Raises ValueError.
        """
        numbers, price = (lam, default_kind().fields["tolerance"].default, norm), None
        sensitivity = weight_sensitivity(*numbers)
        if convexity is not None:
            plain, sensitivity = sensitivity, convexified_sensitivity(convexity, *numbers, classes).weights
            price = sensitivity / plain
        sample = None
        if n is not None and convexity is not None and n < convexity.least_records:
            raise ValueError(f"no head is trained on {n} records, if there are at least {convexity.least_records}")
        if n is not None:
            margin = (
                largest_margin(n, *numbers, classes)
                if convexity is None
                else largest_convexified_margin(convexity, *numbers, classes)
            )
            origin = (
                f"rows of the largest margin that {n} records allow, {margin:.4g}: an upper end, not an expectation"
            )
            sample = PublicSample.of_margins(np.array([margin]), classes, sensitivity, origin)
        # The convexified objective weighs all records together as much as n_min.
        weight = n if convexity is None else convexity.least_records
        return cls(classes, sensitivity, usual_margin(weight, lam, norm, classes), sample, price)

    def with_margins(self, text: str) -> PublicSample:
        """Return rows whose true class's logit exceeds the others by MEAN:SD. Raises ValueError for other text."""
        mean, _, deviation = text.partition(":")
        try:
            margins = NormalDist(float(mean), float(deviation))
            points = np.array([margins.inv_cdf((i + 0.5) / _MARGIN_POINTS) for i in range(_MARGIN_POINTS)])
            if not np.isfinite(points).all():
                raise ArithmeticError
        except (ValueError, ArithmeticError) as error:
            raise ValueError(f"margins are written MEAN:SD with a finite mean and SD > 0, not {text!r}") from error
        origin = f"margins given as normal with mean {margins.mean:g} and standard deviation {margins.stdev:g}"
        return PublicSample.of_margins(points, self.classes, self.sensitivity, origin)


def sample_of(head: MeteredModel, X: Floats, y: NDArray[np.int64], source: str) -> PublicSample:
    """Return a head's exact logits on rows X (n, d), with their sensitivities: at most `MOST_ROWS`, spread evenly.

    They are private, though the rows are public, and so is all that is planned by them. y: the rows' classes (n,).
    source: where they are from.
    """
    used = np.unique(np.linspace(0, len(y) - 1, min(len(y), MOST_ROWS)).astype(int))
    phi = head.features(X[used])
    origin = f"{len(used)} rows of {source}, declared public, by exact private answers: outside the guarantee"
    commonest = float(np.bincount(y[used]).max() / len(used))
    return PublicSample(head.logits(phi), y[used], head.logit_sensitivity(phi), origin, commonest, exact=True)
