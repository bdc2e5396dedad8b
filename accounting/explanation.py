"""Explanations of releases: the five analyses, what they mean for one person, and a paragraph of plain words.

`dpserve explain` and `GET /budget` show an account as the one object that `explain_account` returns, so that the two
cannot differ; `explain` does the same for releases given by hand. Every number is finite or absent.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from dpserve.accounting import analyses, domains, sampling_error
from dpserve.accounting.attack_bounds import (
    AttackPower,
    AttackReading,
    Identifiability,
    attack_power,
    attack_power_at_limit,
    composition_and_rho,
    identifiability_at_limit,
    identifiability_of,
    reading_of_attack,
)
from dpserve.accounting.budgets import Accepts, Scope
from dpserve.accounting.disclosure import ASKED, Asked, DisclosedModel
from dpserve.accounting.losses import (
    ApproximateGaussianLoss,
    BoundedRangeLoss,
    Cost,
    GaussianLoss,
    LaplaceLoss,
    PrivacyLoss,
    PureLoss,
    ReplacementGaussianLoss,
    SubsampledGaussianLoss,
    without_coins,
)
from dpserve.accounting.report import (
    AccountReport,
    AccountState,
    RaisedReport,
    account_report,
    shown,
    shown_currency,
)


class _WithInfinities(DisclosedModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")


class Release(_WithInfinities):
    """Releases of one kind."""

    losses: Annotated[str, ASKED, Field(description="the privacy losses of one release, as kind:parameter")]
    times: Annotated[int, ASKED, Field(ge=0)]


class AnalysisReading(_WithInfinities):
    """The result of one analysis of all the releases together."""

    name: Asked[str]
    epsilon: Asked[
        Annotated[float | None, Field(description="at the explanation's delta; null where it does not apply")]
    ]
    method: Annotated[str, ASKED, Field(description="how, or why not")]
    holds_for_adaptive_prices: Asked[
        Annotated[
            bool,
            Field(
                description="whether it stays valid when later prices depend on earlier answers and their total was "
                "settled beforehand; the others hold for prices settled beforehand, whoever chose the rows and however"
            ),
        ]
    ]


class DeltaReading(_WithInfinities):
    """The other way round: a delta that one analysis gives at an epsilon, rounded up."""

    name: Asked[str]
    epsilon: Asked[float]
    delta: Asked[float]


class Explanation(_WithInfinities):
    """The explanation of one account, or of releases given by hand."""

    status: Asked[
        Annotated[
            Literal["proven", "unproven"],
            Field(
                description="unproven: some cost is only claimed, and every figure here holds only if the claim does"
            ),
        ]
    ]
    delta: Asked[float]
    releases: Asked[tuple[Release, ...]]
    rho: Annotated[float, ASKED, Field(description="zCDP rho of all releases together, rounded up, at most 1e12")]
    analyses: Asked[
        Annotated[
            tuple[AnalysisReading, ...],
            Field(description="of the releases, none of which depends on when a client chose to stop"),
        ]
    ]
    tightest: Asked[
        Annotated[
            str,
            Field(
                description="the analysis with the least epsilon, of an account among those that hold for its prices"
            ),
        ]
    ]
    epsilon: Annotated[float, ASKED, Field(description="that least epsilon")]
    identifiability: Asked[
        Annotated[
            Identifiability,
            Field(
                description="of the releases; of an account at its limit, which holds whatever is asked and whenever, "
                "if the limit was settled before the first answer"
            ),
        ]
    ]
    attack_power: Asked[
        Annotated[
            tuple[AttackPower, ...],
            Field(
                description="the greatest true positive rate at some false positive rates, of the releases; of an "
                "account at its limit"
            ),
        ]
    ]
    unit: Asked[
        Annotated[
            str | None,
            Field(
                description="the column whose values name the privacy units, all records of one of which are protected "
                "together; null where it is one record, or where no certificate says"
            ),
        ]
    ] = None
    in_plain_words: Asked[str]


class AccountExplanation(AccountReport):
    """An account: its report, and the explanation of what it paid for. What `GET /budget` answers."""

    explanation: Asked[Explanation]


class AnsweredExplanation(Explanation):
    """An explanation of releases given by hand, with answers to what else was asked."""

    deltas: Asked[
        Annotated[tuple[DeltaReading, ...], Field(description="the delta of each analysis at the epsilon asked about")]
    ] = ()
    attack: Asked[AttackReading | None] = None


def parse_release(text: str) -> Cost:
    """Read one release as a person writes it, joining several losses by commas.

    `gaussian:S` and `laplace:B`, noise S or B times the sensitivity (mu = 1/S, epsilon = 1/B, rounded up);
    `exponential:EPSILON`; `pure:EPSILON`, any pure mechanism; `sgm:S:Q`, a step of DP-SGD with noise multiplier S and
    sampling rate Q; `sgm-replacement:S:BATCH:RECORDS`, one whose batch is drawn with replacement;
    `approximate-gaussian:S:DELTA`, Gaussian except with probability DELTA. Raises ValueError for
    anything else.
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
            case "pure", [epsilon]:
                losses.append(PureLoss(_number("pure", epsilon)))
            case "sgm", [noise, rate]:
                losses.append(SubsampledGaussianLoss(_number("sgm", noise), _number("sgm", rate)))
            case "sgm-replacement", [noise, batch, records]:
                losses.append(ReplacementGaussianLoss(*(_number(kind, text) for text in (noise, batch, records))))
            case "approximate-gaussian", [noise, coin]:
                losses.append(ApproximateGaussianLoss(_inverse_up(kind, noise), _number(kind, coin)))
            case _:
                raise ValueError(
                    "a release is written gaussian:NOISE_MULTIPLIER, laplace:SCALE, exponential:EPSILON, pure:EPSILON, "
                    "sgm:NOISE_MULTIPLIER:SAMPLING_RATE, sgm-replacement:NOISE_MULTIPLIER:BATCH:RECORDS or "
                    f"approximate-gaussian:NOISE_MULTIPLIER:DELTA, not {part!r}"
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
    domains.require_delta(delta)
    side_by_side = analyses.side_by_side(releases, delta)
    composition, rho = composition_and_rho(releases)
    meaning = identifiability_of(composition, rho, side_by_side.epsilon, delta)
    explanation = Explanation(
        status="proven" if _proven(releases) else "unproven",
        delta=delta,
        releases=_listing(releases),
        rho=rho,
        analyses=tuple(_reading(analysis, adaptive=analysis.adaptive) for analysis in side_by_side.analyses),
        tightest=side_by_side.tightest,
        epsilon=side_by_side.epsilon,
        identifiability=meaning,
        attack_power=attack_power(composition, rho, side_by_side.epsilon, delta),
        in_plain_words=("" if _proven(releases) else _UNPROVEN) + _releases_in_words(side_by_side, meaning),
    )
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
        power, complement = attack_power(composition, rho, explanation.epsilon, delta, rates)
        reading = reading_of_attack(*attack, delta, power, complement)
    return AnsweredExplanation(**dict(explanation), deltas=deltas, attack=reading)


def explain_account(
    state: AccountState,
    *,
    price: Cost | None,
    shared_answers: int | None = None,
    unlimited: bool = False,
    unit: str | None = None,
    blocks: Sequence[str] = (),
    limiting_block: str | None = None,
) -> AccountExplanation:
    """Explain an account; see `account_report` for the arguments.

    unit: the column of privacy units, by the certificate of a model that the account pays for; None for one record.
    blocks: those of the records that the model was trained on, which pay for its answers, too.

    What is said about a record is said of the limit, and where that was raised of what is proved all the same: of the
    releases so far, chosen and stopped at by a client that saw them, no analysis holds (`dpserve.accounting.budgets`).
    The five analyses of them are shown as what they are, readings of this composition; the tightest is named among
    those whose argument knows nothing of the prices but their total.

    The analyses keep the same share of delta for the noise sampler, and for coins, as the account does. The same
    account gives the same object, whatever order its releases come in.
    """
    account = account_report(
        state, price=price, shared_answers=shared_answers, unlimited=unlimited, limiting_block=limiting_block
    )
    spent, budget = dict(state.tally), state.budget
    # The analyses take the coins off delta; here the reserve holds them (`sampling_error`), so they are put back first.
    composition, rho = composition_and_rho(spent)
    coins = without_coins(composition)[1]
    ideal_delta = sampling_error.ideal_delta(budget.delta)
    delta = math.nextafter(ideal_delta + coins, 0.0) if coins else ideal_delta
    side_by_side = analyses.side_by_side(spent, delta)
    readings = [_reading(one, adaptive=one.name in _HOLDS_FOR_TOTALS[budget.accepts]) for one in side_by_side.analyses]
    epsilon, tightest = min(
        (one.epsilon, one.name) for one in readings if one.holds_for_adaptive_prices and one.epsilon is not None
    )
    meaning = identifiability_at_limit(state.end)
    proven = _proven(spent) and account.status == "proven"
    explanation = Explanation(
        status="proven" if proven else "unproven",
        delta=budget.delta,
        releases=_listing(spent),
        rho=rho,
        analyses=tuple(readings),
        tightest=tightest,
        epsilon=epsilon,
        identifiability=meaning,
        attack_power=attack_power_at_limit(state.end),
        unit=unit,
        in_plain_words=("" if proven else _UNPROVEN)
        + _account_in_words(side_by_side.releases, meaning, state, account, unit, blocks),
    )
    return AccountExplanation(**dict(account), explanation=explanation)


_HOLDS_FOR_TOTALS: Mapping[Accepts, tuple[str, ...]] = {
    "gaussian": ("zcdp", "exact"),
    "any": ("zcdp",),
    "pure": ("basic",),
    "unproven": ("zcdp",),
    "unproven-pure": ("basic",),
}
"""The analyses that are functions of what an account counts, rho or epsilon, whichever its releases are."""


def _reading(analysis: analyses.Analysis, *, adaptive: bool) -> AnalysisReading:
    return AnalysisReading(
        name=analysis.name, epsilon=analysis.epsilon, method=analysis.method, holds_for_adaptive_prices=adaptive
    )


def _listing(releases: Mapping[Cost, int]) -> tuple[Release, ...]:
    return tuple(Release(losses=str(cost), times=times) for cost, times in releases.items())


def _proven(releases: Mapping[Cost, int]) -> bool:
    return all(cost.is_proven for cost, times in releases.items() if times)


_UNPROVEN = (
    "UNPROVEN: some of these results come from a mechanism whose privacy is claimed and not proven, so that nothing "
    "is promised about any record. What follows would hold if the claim did. "
)


_NOTHING = "Nothing computed from the records has been released, and nothing can be inferred about any of them."


def _count_in_words(releases: int) -> str:
    if releases == 1:
        return "One noisy result computed from the records has been released."
    return f"{releases:,} noisy results computed from the records have been released."


def _meaning_in_words(
    meaning: Identifiability, epsilon: float, delta: float, seen: str, what: str, unit: str | None = None
) -> list[str]:
    others, last, moved = "one", "the last record is", "one record"
    if unit is not None:
        others, last, moved = "those of one unit", "the last unit's records are", "all records of one unit"
    return [
        f"Imagine someone who knows every record but {others}, thinks it as likely as not that {last} among them, "
        f"and {seen}: except with probability {delta:.2g}, they cannot come to be more than "
        f"{percent(meaning.posterior_belief_bound)} sure of it.",
        "An attack that tries to tell members from others can catch members more often than it wrongly accuses "
        f"others by at most {percent(meaning.membership_advantage_bound)[:-2]} percentage points.",
        f"In the language of differential privacy {what} ({epsilon:.4g}, {delta:.2g})-differentially private for "
        f"adding or removing {moved}.",
    ]


def _releases_in_words(side_by_side: analyses.SideBySide, meaning: Identifiability) -> str:
    if not side_by_side.releases:
        return _NOTHING
    epsilons = [analysis.epsilon for analysis in side_by_side.analyses if analysis.epsilon is not None]
    words = [
        _count_in_words(side_by_side.releases),
        *_meaning_in_words(meaning, min(epsilons), side_by_side.delta, "has seen all of them", "they are together"),
    ]
    if max(epsilons) > 1.001 * min(epsilons):
        words.append(
            f"Depending on the analysis the epsilon reads from {min(epsilons):.4g} to {max(epsilons):.4g}; what was "
            "released is the same, and every one of these numbers is a valid upper bound."
        )
    return " ".join([*words, "All of this holds if their number and their prices were settled before the first."])


_SHARING: Mapping[tuple[Scope, bool], str] = {
    ("client", False): "That is one client by itself. Clients who share what they learn are bounded together by their "
    "lineage's account, which pays for every answer, too.",
    ("client", True): "That is one client by itself. Members of its group {!r} who share what they learn are bounded "
    "together by the group's account, and all clients by their lineage's; both pay for every answer, too.",
    ("group", True): "That is all members of the group {!r} together, whatever they share with each other. What they "
    "share with other clients is bounded by their lineage's account.",
    (
        "block",
        False,
    ): "That is all clients and groups together, whatever they share with each other, about the records of "
    "this block. Other blocks have accounts of their own, and no record is in two.",
    ("lineage", False): "That is all clients and groups together, whatever they share with each other.",
}
"""Whom an account bounds: colluding clients learn no more than the account that they share has paid for."""


_UNIT = (
    "A unit is all records with one value of {!r}, so that a person with many records is one; this holds where every "
    "model of the lineage was trained with this unit."
)
"""Whom an account protects where records are weighted by units: models without them promise it of a record alone."""


_NOTHING_PAID = "This account has paid for nothing that was computed from the records."
"""True of one account: others may have learnt something, and everybody together what the lineage has paid for."""


def _account_in_words(
    releases: int,
    meaning: Identifiability,
    state: AccountState,
    account: AccountReport,
    unit: str | None,
    blocks: Sequence[str],
) -> str:
    epsilon, is_pure = state.end.epsilon_at(state.end.limit), account.currency == "epsilon"
    words = [
        f"This account has paid for {releases:,} noisy result{'s' * (releases > 1)} computed from the records."
        if releases
        else _NOTHING_PAID,
        *([] if state.scope == "lineage" else [_SHOWN_TO_ALL]),
        "The rest is about all that the account may ever pay for. It holds whatever a client asks and whenever it "
        + ("stops, also where the limit was raised on the way." if is_pure else _STOPS_IF_SETTLED),
        *_meaning_in_words(meaning, epsilon, account.delta, "sees all of it", "all of it is together", unit),
        *([_PURE] if is_pure else []),
        *([] if account.raised is None else [_raised_in_words(account.raised, account)]),
        *([] if unit is None else [_UNIT.format(unit)]),
        _sharing(state, blocks),
        _HOLDS if account.unlimited else _budget_in_words(account),
    ]
    limiting = account.limiting_block
    if account.queries_left is not None:
        payer = "it" if limiting is None else f"the block {limiting}, which has less left,"
        words.append(f"At the present price {payer} pays for {account.queries_left:,} more answers.")
    elif limiting is not None:
        words.append(f"The block {limiting} has less left, and does not pay for this model.")
    return " ".join(words)


_OF_BLOCKS = (
    "Clients who share what they learn are bounded together about a record by the account of the block that it lies "
    "in. This model was trained on {}, which every answer charges, too; {} nothing more of this model is paid for, "
    "while models of other blocks go on."
)


def _sharing(state: AccountState, blocks: Sequence[str]) -> str:
    """Say whom an account bounds, and who bounds those together who share: a model's blocks, where it has some."""
    if not blocks or state.scope != "client":
        return _SHARING[state.scope, bool(state.group)].format(state.group)
    names = f"the block {blocks[0]}" if len(blocks) == 1 else f"the blocks {', '.join(blocks)}"
    said = _OF_BLOCKS.format(names, "once it is spent" if len(blocks) == 1 else "once one of them is spent")
    group = f"Members of its group {state.group!r} who share are bounded by the group's account. " * bool(state.group)
    return f"That is one client by itself. {group}{said}"


_STOPS_IF_SETTLED = "stops, if the limit was settled before the first answer."
_PURE = "The account counts pure epsilon: with ideal noise delta would be 0, and it is the noise sampler's alone."
_SHOWN_TO_ALL = (
    "What everybody is shown is not counted here, because the lineage alone has paid for it: figures in certificates, "
    "evaluations and audits, where there are any."
)


def _raised_in_words(raised: RaisedReport, account: AccountReport) -> str:
    times = "once" if raised.times == 1 else f"{raised.times:,} times"
    if (account.spent.rho or 0) > (account.limit.rho or 0):  # as in a restored store, which may have lost raises
        times = f"at least {times}"
    return (
        f"But the limit was raised after the first answer, {times}, from {shown(account, raised.settled)}. Where "
        "somebody who had seen answers had a say in that, as by asking for more, none of these figures is proved. What "
        f"is proved then: except with probability {account.delta:.2g}, nobody comes to be more than "
        f"{percent(raised.posterior_belief_bound)} sure, if the records themselves had no say. What is said of another "
        "account that pays for these answers too, as the lineage's, holds if that one was not raised."
    )


_HOLDS = "The account has paid for a pay-once model: answers of that model are unlimited, and cost nothing more."


def _budget_in_words(account: AccountReport) -> str:
    return (
        f"The account may spend {shown(account, account.limit)} in {shown_currency(account)}. It has spent "
        f"{shown(account, account.spent)}, and {shown(account, account.remaining)} is left; after that it refuses."
    )


def percent(share: float) -> str:
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
