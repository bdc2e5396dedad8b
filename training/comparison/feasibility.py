"""Whether an option can be had for a budget: what its trainer would refuse, from public numbers and before training."""

from fractions import Fraction

from accounting import picorho, sampling_error
from mechanisms.gaussian_vector import GaussianVector, mu_for
from training.comparison import rules
from training.comparison.recommendation import CANDIDATES
from training.data.records import Declaration
from training.errors import TrainingError
from training.feature_maps import FeatureMap
from training.releases import class_sums
from training.releases.dpsgd import network as dpsgd_network

LARGEST_PRICE = picorho.budget(sampling_error.LARGEST_RELEASE_RHO)
"""What a release may cost at most, in picorho. A larger budget buys no better one."""

LEAST_PRICE = picorho.charge(Fraction(sampling_error.LEAST_RELEASE_RHO)) + 1
"""What a release costs at least, in picorho."""


def refusal(option: str, n: int, classes: int, whole: int, features: int = 1) -> str | None:
    """Return why an option that is paid for once cannot be had, or None if it can.

    n, classes: declared. whole: in picorho, of which no more than LARGEST_PRICE is spent. features: how many columns;
    the fewest where it is not known.
    """
    try:
        sampling_error.check_release_rho(Fraction(min(whole, LARGEST_PRICE), picorho.PICORHO_PER_RHO))
        _check(option, n, classes, min(whole, LARGEST_PRICE), features)
    except (ValueError, TrainingError) as error:
        return str(error)
    return None


def _check(option: str, n: int, classes: int, whole: int, features: int) -> None:
    names = tuple(str(label) for label in range(classes))
    columns = tuple(f"x{index}" for index in range(features))
    declaration = Declaration(columns, (0.0,) * features, (1.0,) * features, names)
    choice = CANDIDATES[option]
    feature_map = rules.identity(declaration) if choice.features == "identity" else rules.fourier(declaration)
    match choice.release:
        case "class-sums":
            _check_records(n, class_sums.MOST_RECORDS, "class sums are exact")
            centre, sums = class_sums.shares(whole)
            GaussianVector(centre, feature_map.dimension + 1, 1.0)
            GaussianVector(sums, classes * feature_map.dimension, 1.0)
        case "dpsgd":
            _check_records(n, dpsgd_network.MOST_RECORDS, "DP-SGD is covered")
            _check_descent(n, whole, declaration, feature_map, tuple(choice.options.get("hidden", ())))
        case "weights":
            GaussianVector(mu_for(whole), classes * feature_map.dimension, 1.0)


def _check_records(n: int, most: int, what: str) -> None:
    if n > most:
        raise TrainingError(f"{what} for at most {most:,} records, so train it on a sample of them, chosen at random")


def _check_descent(
    n: int, whole: int, declaration: Declaration, feature_map: FeatureMap, hidden: tuple[int, ...]
) -> None:
    from training.releases.dpsgd.choices import by_rule
    from training.releases.dpsgd.train import DpSgdRecipe, certify

    widths = (feature_map.dimension, *hidden, len(declaration.classes))
    choices = by_rule(n, mu_for(whole), dpsgd_network.Network(widths).size, hidden=hidden)
    recipe = DpSgdRecipe("planned", feature_map, choices, whole)
    certify(recipe, declaration.classes, declaration.feature_names, "planned")
