"""What was released, explained: the five analyses, what they mean for one person, and a paragraph of plain words.

`dpserve explain` and `GET /budget` show an account as the one object that `explain_account` returns, so that the two
cannot differ; `explain` does the same for releases given by hand. Every number is finite or absent.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from accounting import analyses, domains, dpsgd, sampling_error
from accounting.attack_bounds import (
    AttackPower,
    AttackReading,
    Identifiability,
    attack_power,
    composition_and_rho,
    identifiability_of,
    reading_of_attack,
)
from accounting.budgets import Budget
from accounting.compositions import Composition, composition_of, without_coins
from accounting.losses import (
    ApproximateGaussianLoss,
    BoundedRangeLoss,
    Cost,
    GaussianLoss,
    LaplaceLoss,
    PrivacyLoss,
    SubsampledGaussianLoss,
)
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


class DeltaReading(_Frozen):
    """The other way round: a delta that one analysis gives at an epsilon, rounded up."""

    name: str
    epsilon: float
    delta: float


class TheoremReading(_Frozen):
    """What one theorem about DP-SGD says as it is taught."""

    name: str
    epsilon: Annotated[float | None, Field(description="at the explanation's delta; null beyond all numbers")]
    premises_hold: Annotated[bool, Field(description="false: its classical noise is proved for epsilon < 1 only")]


class Explanation(_Frozen):
    """The explanation of one account, or of releases given by hand."""

    status: Annotated[
        Literal["proven", "unproven"],
        Field(description="unproven: some cost is only claimed, and every figure here holds only if the claim does"),
    ]
    delta: float
    releases: tuple[Release, ...]
    rho: Annotated[float, Field(description="zCDP rho of all releases together, rounded up, at most 1e12")]
    analyses: tuple[AnalysisReading, ...]
    tightest: Annotated[str, Field(description="the analysis with the least valid epsilon")]
    epsilon: Annotated[float, Field(description="that least epsilon")]
    identifiability: Identifiability
    attack_power: Annotated[
        tuple[AttackPower, ...], Field(description="the greatest true positive rate at some false positive rates")
    ]
    published_theorems: Annotated[
        tuple[TheoremReading, ...], Field(description="for steps of DP-SGD alone: three theorems as taught")
    ]
    in_plain_words: str


class AccountExplanation(AccountReport):
    """An account: its report, and the explanation of what it paid for. What `GET /budget` answers."""

    explanation: Explanation


class AnsweredExplanation(Explanation):
    """An explanation of releases given by hand, with answers to what else was asked."""

    deltas: Annotated[
        tuple[DeltaReading, ...], Field(description="the delta of each analysis at the epsilon asked about")
    ] = ()
    attack: AttackReading | None = None


def parse_release(text: str) -> Cost:
    """Read one release as a person writes it, joining several losses by commas.

    `gaussian:S` and `laplace:B`, noise S or B times the sensitivity (mu = 1/S, epsilon = 1/B, rounded up);
    `exponential:EPSILON`; `sgm:S:Q`, a step of DP-SGD with noise multiplier S and sampling rate Q;
    `approximate-gaussian:S:DELTA`, Gaussian but for a probability of DELTA. Raises ValueError for anything else.
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
            case "approximate-gaussian", [noise, coin]:
                losses.append(ApproximateGaussianLoss(_inverse_up(kind, noise), _number(kind, coin)))
            case _:
                raise ValueError(
                    f"a release is written gaussian:NOISE_MULTIPLIER, laplace:SCALE, exponential:EPSILON, "
                    f"sgm:NOISE_MULTIPLIER:SAMPLING_RATE or approximate-gaussian:NOISE_MULTIPLIER:DELTA, not {part!r}"
                )
    return Cost(tuple(losses))


def explain(
    releases: Mapping[Cost, int],
    delta: float,
    *,
    epsilon: float | None = None,
    attack: tuple[float, float] | None = None,
) -> AnsweredExplanation:
    """Explain releases with ideal noise: how many at each cost, all about the same records.

    epsilon: at which every analysis is also asked for its delta. attack: true and false positive rate of one.
    """
    explanation = _explain(releases, delta, delta, account=None)
    composition, rho = composition_and_rho(releases)
    deltas: tuple[DeltaReading, ...] = ()
    reading = None
    if epsilon is not None:
        deltas = tuple(
            DeltaReading(name=name, epsilon=epsilon, delta=analyses.delta_at(analyse, composition, epsilon))
            for name, analyse in analyses.ALL.items()
        )
    if attack is not None:
        domains.require_up_to("the false positive rate", attack[1], 1)
        rates = (attack[1], 1 - attack[1])
        power, complement = attack_power(composition, rho, explanation.epsilon, delta, delta, rates)
        reading = reading_of_attack(*attack, delta, power, complement)
    return AnsweredExplanation(**dict(explanation), deltas=deltas, attack=reading)


def explain_account(
    spent: Mapping[Cost, int], budget: Budget, *, price: Cost | None, lineage_left: int | None = None
) -> AccountExplanation:
    """Explain an account after `spent`, the number of releases at each cost; see `account_report` for the rest.

    The analyses keep the same share of delta for the noise sampler, and for coins, as the account does. The same
    account gives the same object, whatever order its releases come in.
    """
    spent = dict(sorted(spent.items(), key=lambda entry: str(entry[0])))
    account = account_report(spent, budget, price=price, lineage_left=lineage_left)
    # The analyses take the coins off delta; here the reserve holds them (`sampling_error`), so they are put back first.
    coins = without_coins(composition_of(spent))[1]
    ideal_delta = sampling_error.ideal_delta(budget.delta)
    left = math.nextafter(ideal_delta + coins, 0.0) if coins else ideal_delta
    explanation = _explain(spent, budget.delta, left, account=account)
    return AccountExplanation(**dict(account), explanation=explanation)


def _explain(
    releases: Mapping[Cost, int], delta: float, ideal_delta: float, account: AccountReport | None
) -> Explanation:
    domains.require_delta(delta)
    side_by_side = analyses.side_by_side(releases, ideal_delta)
    composition, rho = composition_and_rho(releases)
    # An account's prices may have been chosen on the way: only what holds then may be said of it.
    valid = [a for a in side_by_side.analyses if a.epsilon is not None and (account is None or a.adaptive)]
    tightest = min(valid, key=lambda analysis: analysis.epsilon or 0.0)
    epsilon = tightest.epsilon or 0.0
    meaning = identifiability_of(composition, rho, epsilon, delta, ideal_delta)
    if account is not None:
        meaning = meaning.model_copy(
            update={
                "posterior_belief_bound": account.posterior_belief_bound.now,
                "membership_advantage_bound": account.membership_advantage_bound.now,
            }
        )
    proven = all(cost.is_proven for cost, times in releases.items() if times)
    return Explanation(
        status="proven" if proven else "unproven",
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
        tightest=tightest.name,
        epsilon=epsilon,
        identifiability=meaning,
        attack_power=attack_power(composition, rho, epsilon, delta, ideal_delta),
        published_theorems=_theorems(composition, ideal_delta),
        in_plain_words=("" if proven else _UNPROVEN) + _in_plain_words(side_by_side, epsilon, meaning, delta, account),
    )


_UNPROVEN = (
    "UNPROVEN: some of these results come from a mechanism whose privacy is claimed and not proven, so that nothing "
    "is promised about any record. What follows would hold if the claim did. "
)


def _theorems(composition: Composition, delta: float) -> tuple[TheoremReading, ...]:
    if len(composition) != 1:
        return ()
    ((loss, steps),) = composition.items()
    if not isinstance(loss, SubsampledGaussianLoss):
        return ()
    found = dpsgd.theorems(loss.noise_multiplier, loss.sampling_rate, steps, delta)
    return tuple(
        TheoremReading(
            name=theorem.name,
            epsilon=theorem.epsilon if math.isfinite(theorem.epsilon) else None,
            premises_hold=theorem.proven,
        )
        for theorem in found
    )


def _in_plain_words(
    side_by_side: analyses.SideBySide,
    epsilon: float,
    meaning: Identifiability,
    delta: float,
    account: AccountReport | None,
) -> str:
    known = [a.epsilon for a in side_by_side.analyses if a.epsilon is not None and a.epsilon >= epsilon]
    if not side_by_side.releases:
        nothing = "Nothing computed from the records has been released, and nothing can be inferred about any of them."
        return " ".join([nothing, *_of_the_account(account)])
    words = [
        f"{side_by_side.releases:,} noisy results computed from the records have been released."
        if side_by_side.releases > 1
        else "One noisy result computed from the records has been released.",
        "Imagine someone who knows every record but one, has seen all of them, and held it for even odds that the "
        f"last record is among them: but for a chance of {delta:.2g}, they cannot come to be more than "
        f"{_percent(meaning.posterior_belief_bound)} sure of it.",
        "An attack that tries to tell members from others can catch members more often than it wrongly accuses "
        f"others by at most {_percent(meaning.membership_advantage_bound)[:-2]} percentage points.",
        f"In the language of differential privacy they are together ({epsilon:.4g}, {delta:.2g})"
        "-differentially private for adding or removing one record.",
    ]
    if max(known) > 1.001 * min(known):
        words.append(
            f"Depending on the analysis the epsilon reads from {min(known):.4g} to {max(known):.4g}; what was "
            "released is the same, and every one of these numbers is a valid upper bound."
        )
    return " ".join([*words, *_of_the_account(account)])


def _of_the_account(account: AccountReport | None) -> list[str]:
    if account is None:
        return []
    words = [
        f"The account may spend rho = {account.limit.rho:.6g} (epsilon {account.limit.epsilon:.4g}) in all and has "
        f"{account.remaining.rho:.6g} left; after that it refuses."
    ]
    if account.queries_left is not None:
        words.append(f"At the present price {account.queries_left:,} more answers can be had.")
    return words


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
