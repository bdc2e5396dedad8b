"""The rule for owners without rows: what did best on the public sets most like theirs, as far as it can be had."""

from fractions import Fraction

from accounting import picorho, sampling_error
from accounting.picorho import to_rho
from mechanisms.gaussian_vector import GaussianVector, mu_for
from training.data.records import Declaration
from training.errors import TrainingError
from training.feature_maps import FeatureMap
from training.planning import rules
from training.planning.measured import FAR, LEAST_MEASURED, MANY_CLASSES, Nearest, nearest
from training.planning.options import OPTIONS
from training.planning.recommendation import LARGEST_PRICE, NO_BETTER, Recommendation, check_declared, warnings_of
from training.releases import class_sums
from training.releases.dpsgd.network import Network
from training.sums import check_count

LEAST_PRICE = picorho.charge(Fraction(sampling_error.LEAST_RELEASE_RHO)) + 1
"""What a release costs at least, in picorho."""

LEAST_SIGNAL = 195.0
"""mu n / C below which features beyond the columns themselves did not pay: halfway, in ratios, between MNIST's 142,
where a linear head did best, and its 268, where Fourier features did."""

MOST_SIGNAL = 600.0
"""The mu n / C up to which class sums did best of many classes. At the retail baskets' 595 DP-SGD is as good."""


def by_rule(n: int, classes: int, whole: int, queries: int | None = None) -> tuple[Recommendation, Nearest]:
    """Return what did best on the public sets that have about as many classes, and the set and epsilon most like it.

    n, classes: declared, public numbers. whole: the budget in picorho. queries: None for no end. It plays no part in
    the choice: on every set and at every budget the best release that is paid for once did better than noise on each
    of ten answers. An option that cannot be had for these numbers gives way to the next, and the reason says why.

    With many classes a direction for each is nearly all that can be learnt, and class sums learn it for the least
    noise. With few, what tells the classes apart can be learnt, and DP-SGD does it best. mu n / C says by how many
    standard deviations of the noise the records of a class stand out when they agree.

    Raises ValueError for nonsense and for a budget that buys no release.
    """
    check_declared(n, classes)
    if whole < LEAST_PRICE:
        raise ValueError(
            f"no pay-once model can be trained for {to_rho(whole):g} rho: it costs at least {to_rho(LEAST_PRICE):.4g}. "
            "Raise the budget, or plan noise on each answer, with --lam and --classes"
        )
    preferred = _preferred(classes, mu_for(min(whole, LARGEST_PRICE)) * n / classes)
    refused: list[str] = []
    for option in (preferred, "dpsgd", "weights"):
        why_not = refusal(option, n, classes, whole)
        if why_not is None:
            return _explained(option, n, classes, whole, queries, preferred, tuple(refused))
        refused.append(why_not)
    raise ValueError(f"no release can be had: {'; '.join(dict.fromkeys(refused))}")


def _preferred(classes: int, signal: float) -> str:
    if classes >= MANY_CLASSES:
        return "class-sums" if signal <= MOST_SIGNAL else "dpsgd"
    return "dpsgd" if classes == 2 or signal < LEAST_SIGNAL else "dpsgd-fourier"


def _explained(
    option: str, n: int, classes: int, whole: int, queries: int | None, preferred: str, refused: tuple[str, ...]
) -> tuple[Recommendation, Nearest]:
    spent = min(whole, LARGEST_PRICE)
    similar = nearest(n, classes, spent, queries, lambda count, signal: _preferred(count, signal) == preferred)
    signal = mu_for(spent) * n / classes
    parts = [
        f"{OPTIONS[option].title}: {_standing(option, similar)}, and you have {n:,} records in {classes} classes "
        f"(mu n / C = {signal:.3g})"
    ]
    if refused:
        parts.append(f"{OPTIONS[preferred].title} would come first, but {refused[0]}")
    if whole > spent:
        parts.append(largest_price_words(whole))
    if queries is not None and queries < LEAST_MEASURED:
        parts.append(_few_answers(similar))
    parts.append("paid for once, for any number of queries")
    return Recommendation(option, "; ".join(parts), similar.estimates, _warnings(option, signal, similar)), similar


def _warnings(option: str, signal: float, similar: Nearest) -> tuple[str, ...]:
    """Say what is expected to be worth little: by what was measured, or because nothing so small was."""
    known = next((each for each in similar.estimates if each.option == option), None)
    said = warnings_of(known, similar.constant) if known else ()
    if similar.signal / signal > FAR:
        said = (
            *said,
            f"mu n / C is {similar.signal / signal:.0f} times less than on any set that was measured: expect answers "
            f"{NO_BETTER}, unless a simulation on --public rows shows more",
        )
    return said


def largest_price_words(whole: int) -> str:
    """Say that a release takes less than the whole budget."""
    return f"a release may cost at most {to_rho(LARGEST_PRICE):g} rho, so it takes that of the {to_rho(whole):.4g}"


def _standing(option: str, similar: Nearest) -> str:
    known = {each.option: each for each in similar.estimates if each.mean is not None}
    if option not in known:
        return f"it was not measured on {similar.place}"
    best = max(known.values(), key=lambda each: each.mean or 0.0)
    own = f"{known[option].mean:.3f} on {similar.place}"
    if best.option == option:
        return f"{own}, the best that was measured there"
    return f"{own}, beside {best.mean:.3f} from {OPTIONS[best.option].title}, the best that was measured there"


def _few_answers(similar: Nearest) -> str:
    weights = next((each.mean for each in similar.estimates if each.option == "weights"), None)
    there = "" if weights is None else f", {weights:.3f} there"
    return (
        f"fewer than {LEAST_MEASURED} answers were not measured, but one answer with noise of its own has the law of "
        f"one from released weights{there}, and each of more has more noise"
    )


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
    chosen = OPTIONS[option]
    feature_map = rules.feature_map(chosen.features, declaration)
    match chosen.release:
        case "class-sums":
            check_count(n)
            centre, sums = class_sums.shares(whole)
            GaussianVector(centre, feature_map.dimension + 1, 1.0)
            GaussianVector(sums, classes * feature_map.dimension, 1.0)
        case "dpsgd":
            check_count(n)
            _check_descent(n, whole, declaration, feature_map, tuple(chosen.settings.get("hidden", ())))
        case "weights":
            GaussianVector(mu_for(whole), classes * feature_map.dimension, 1.0)


def _check_descent(
    n: int, whole: int, declaration: Declaration, feature_map: FeatureMap, hidden: tuple[int, ...]
) -> None:
    from training.releases.dpsgd.choices import by_rule
    from training.releases.dpsgd.train import DpSgdRecipe, certify

    widths = (feature_map.dimension, *hidden, len(declaration.classes))
    choices = by_rule(n, mu_for(whole), Network(widths).size, hidden=hidden)
    recipe = DpSgdRecipe("planned", feature_map, choices, whole)
    certify(recipe, declaration.classes, declaration.feature_names, "planned")
