"""What was released, explained: the five analyses, what they mean for one person, and a paragraph of plain words.

`dpserve explain` shows this object, for a ledger account or for releases given by hand, and `GET /budget` serves
its `account`, so that the two cannot differ. Every number is finite or absent.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from accounting import analyses, conversions, domains, identifiability, sampling_error
from accounting.analyses import Composition
from accounting.budgets import Budget
from accounting.losses import BoundedRangeLoss, Cost, GaussianLoss, LaplaceLoss, PrivacyLoss, SubsampledGaussianLoss
from accounting.report import AccountReport, account_report


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")


class Release(_Frozen):
    """Releases of one kind."""

    losses: Annotated[str, Field(description="the privacy losses of one release, as kind:parameter")]
    times: Annotated[int, Field(ge=0)]


class AnalysisReading(_Frozen):
    """What one analysis says of all the releases together."""

    name: str
    epsilon: Annotated[float | None, Field(description="at the explanation's delta; null where it does not apply")]
    method: Annotated[str, Field(description="how, or why not")]
    holds_for_adaptive_prices: Annotated[
        bool,
        Field(
            description="whether it stays valid as a filter when later prices depend on earlier answers; the others "
            "hold for prices fixed in advance, whoever chose the rows and however"
        ),
    ]


class Identifiability(_Frozen):
    """What the releases mean for one record. Bounds are rounded up; see `accounting.identifiability`."""

    posterior_belief_bound: Annotated[
        float, Field(description="even odds become a firmer belief than this with probability at most delta")
    ]
    posterior_belief_at_epsilon: Annotated[
        float, Field(description="1/(1 + e^-epsilon) at the tightest epsilon (Bernau et al. 2021, Theorem 1)")
    ]
    membership_advantage_bound: Annotated[float, Field(description="no attack has a larger TPR - FPR")]
    advantage_bound_from_epsilon_delta: Annotated[
        float, Field(description="(e^epsilon - 1 + 2 delta)/(e^epsilon + 1) at the tightest epsilon")
    ]
    advantage_bound_of_erlingsson: Annotated[float, Field(description="1 - e^-epsilon + delta e^-epsilon")]
    advantage_bound_of_yeom: Annotated[float, Field(description="e^epsilon - 1, for pure epsilon; 1 if above")]
    advantage_as_published_by_bernau: Annotated[
        float | None, Field(description="Theorem 2 as printed, for Gaussian noise of the classical size only")
    ]


class Explanation(_Frozen):
    """The explanation of one account, or of releases given by hand."""

    delta: float
    releases: tuple[Release, ...]
    rho: Annotated[float, Field(description="zCDP rho of all releases together, at most 1e12")]
    analyses: tuple[AnalysisReading, ...]
    tightest: Annotated[str, Field(description="the analysis with the least valid epsilon")]
    epsilon: Annotated[float, Field(description="that least epsilon")]
    identifiability: Identifiability
    in_plain_words: str
    account: Annotated[AccountReport | None, Field(description="the account, as GET /budget reports it")] = None


def parse_release(text: str) -> Cost:
    """Read one release as a person writes it, joining several losses by commas.

    `gaussian:S` and `laplace:B`, noise S or B times the sensitivity (mu = 1/S, epsilon = 1/B, rounded up);
    `exponential:EPSILON`; `sgm:S:Q`, a step of DP-SGD with noise multiplier S and sampling rate Q. Raises
    ValueError for anything else.
    """
    losses: list[PrivacyLoss] = []
    for part in text.split(","):
        kind, *numbers = part.strip().split(":")
        match kind, numbers:
            case "gaussian", [noise]:
                losses.append(GaussianLoss(_inverse_up("gaussian", noise)))
            case "laplace", [noise]:
                losses.append(LaplaceLoss(_inverse_up("laplace", noise)))
            case "exponential", [epsilon]:
                losses.append(BoundedRangeLoss(_number("exponential", epsilon)))
            case "sgm", [noise, rate]:
                losses.append(SubsampledGaussianLoss(_number("sgm", noise), _number("sgm", rate)))
            case _:
                raise ValueError(
                    f"a release is written gaussian:NOISE_MULTIPLIER, laplace:SCALE, exponential:EPSILON or "
                    f"sgm:NOISE_MULTIPLIER:SAMPLING_RATE, not {part!r}"
                )
    return Cost(tuple(losses))


def explain(releases: Mapping[Cost, int], delta: float) -> Explanation:
    """Explain releases with ideal noise: how many at each cost, all about the same records."""
    return _explain(releases, delta, delta, account=None)


def explain_account(spent: Mapping[Cost, int], budget: Budget, *, price: Cost | None) -> Explanation:
    """Explain an account after `spent`, the number of releases at each cost.

    The analyses keep the same share of delta for the noise sampler as the account does.
    """
    account = account_report(spent, budget, price=price)
    return _explain(spent, budget.delta, sampling_error.ideal_delta(budget.delta), account=account)


def _explain(
    releases: Mapping[Cost, int], delta: float, ideal_delta: float, account: AccountReport | None
) -> Explanation:
    domains.require_delta(delta)
    side_by_side = analyses.side_by_side(releases, ideal_delta)
    composition = analyses.composition_of(releases)
    rho = min(float(sum(loss.rho * count for loss, count in composition.items())), conversions.LARGEST_RHO)
    meaning = _identifiability(composition, rho, side_by_side.epsilon, delta, ideal_delta)
    return Explanation(
        delta=delta,
        releases=tuple(Release(losses=str(cost), times=times) for cost, times in releases.items()),
        rho=rho,
        analyses=tuple(
            AnalysisReading(
                name=analysis.name,
                epsilon=analysis.epsilon,
                method=analysis.method,
                holds_for_adaptive_prices=analysis.adaptive,
            )
            for analysis in side_by_side.analyses
        ),
        tightest=side_by_side.tightest,
        epsilon=side_by_side.epsilon,
        identifiability=meaning,
        in_plain_words=_in_plain_words(side_by_side, meaning, delta, account),
        account=account,
    )


def _identifiability(
    composition: Composition, rho: float, epsilon: float, delta: float, ideal_delta: float
) -> Identifiability:
    """Return the bounds; those of the ideal noise hold at ideal_delta, with delta - ideal_delta to spare.

    Beyond the largest mu and rho of the conversions every bound is 1 already.
    """
    spare = delta - ideal_delta
    pure = math.fsum(count * loss.pure_epsilon for loss, count in composition.items())
    gaussian = bool(composition) and all(isinstance(loss, GaussianLoss) for loss in composition)
    if gaussian:
        mu = min(conversions.mu_of_rho(math.nextafter(rho, math.inf)), conversions.LARGEST_MU)
        log_odds = identifiability.gaussian_log_odds(mu, ideal_delta)
        advantage = identifiability.gaussian_advantage(mu)
    else:
        log_odds = analyses.log_odds(composition, ideal_delta)
        advantage = identifiability.zcdp_advantage(rho)
    log_odds = min(log_odds + math.log(delta / ideal_delta), pure if spare == 0 else math.inf)
    from_curve = identifiability.advantage(epsilon, delta)
    published = identifiability.published_gaussian_advantage(epsilon, delta) if gaussian and epsilon else None
    return Identifiability(
        posterior_belief_bound=identifiability.posterior_belief(log_odds),
        posterior_belief_at_epsilon=identifiability.posterior_belief(epsilon),
        membership_advantage_bound=min(1.0, advantage + spare, from_curve),
        advantage_bound_from_epsilon_delta=from_curve,
        advantage_bound_of_erlingsson=identifiability.erlingsson_advantage(epsilon, delta),
        advantage_bound_of_yeom=identifiability.yeom_advantage(pure),
        advantage_as_published_by_bernau=published,
    )


def _in_plain_words(
    side_by_side: analyses.SideBySide, meaning: Identifiability, delta: float, account: AccountReport | None
) -> str:
    known = [analysis.epsilon for analysis in side_by_side.analyses if analysis.epsilon is not None]
    if not side_by_side.releases:
        return "Nothing computed from the records has been released, and nothing can be inferred about any of them."
    words = [
        f"{side_by_side.releases:,} noisy results computed from the records have been released.",
        "Imagine someone who knows every record but one, has seen all of them, and held it for even odds that the "
        f"last record is among them: but for a chance of {delta:.2g}, they cannot come to be more than "
        f"{_percent(meaning.posterior_belief_bound)} sure of it.",
        "An attack that tries to tell members from others can catch members more often than it wrongly accuses "
        f"others by at most {_percent(meaning.membership_advantage_bound)}.",
        f"In the language of differential privacy they are together ({side_by_side.epsilon:.4g}, {delta:.2g})"
        "-differentially private for adding or removing one record.",
    ]
    if max(known) > 1.001 * min(known):
        words.append(
            f"Depending on the analysis the epsilon reads from {min(known):.4g} to {max(known):.4g}; what was "
            "released is the same, and every one of these numbers is a valid upper bound."
        )
    if account is not None:
        left = "" if account.queries_left is None else f", which buys {account.queries_left:,} more answers"
        words.append(
            f"The account may spend rho = {account.limit.rho:.6g} (epsilon {account.limit.epsilon:.4g}) in all and "
            f"has {account.remaining.rho:.6g} left{left}; after that it refuses."
        )
    return " ".join(words)


def _percent(share: float) -> str:
    """Return a share as a percentage with one decimal, rounded up; 100 % is said only of 1."""
    tenths = math.ceil(share * 1000)
    return f"{tenths / 10:.1f} %" if tenths < 1000 or share >= 1 else "99.99 %" if share <= 0.9999 else "almost 100 %"


def _number(kind: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise ValueError(f"the parameters of a {kind} release must be numbers, and {text!r} is none") from error
    domains.require_above_zero(f"a parameter of a {kind} release", number)
    return number


def _inverse_up(kind: str, text: str) -> float:
    number = _number(kind, text)
    inverse = 1 / number
    return inverse if Fraction(inverse) * Fraction(number) >= 1 else math.nextafter(inverse, math.inf)
