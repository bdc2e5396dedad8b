"""Budgets: how much one account may ever learn, given in the owner's words and kept as a whole number.

Whatever the words, a budget becomes picorho, rounded down, before the first release, and the ledger admits a
release when an integer sum stays within it. That filter (Rogers, Roth, Ullman and Vadhan 2016) is valid when a client
chooses rows, mechanisms and prices by what it has seen so far, and stops when it likes. Let the prices add up to at
most B in every course of events, P and Q the laws of everything the client sees.

zCDP (Feldman and Zrnic 2021, Theorem 3.1; Whitehouse, Ramdas, Rogers and Wu 2023): let L be the logarithm of dP/dQ of
the answers so far, S the prices so far. Given the past, the next answer has E_Q[e^(alpha dL)] <= e^(alpha (alpha-1)
dS), dS being known before it is drawn. So e^(alpha L - alpha (alpha-1) S) never grows in mean and begins at 1; at the
end S <= B, hence E_Q[e^(alpha L)] <= e^(alpha (alpha-1) B): B-zCDP, and the same with P and Q exchanged.

Gaussian charges alone (Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023): given the past, an answer that is
mu-GDP is a post-processing of N(0, mu^2) under Q and N(mu^2, mu^2) under P (Blackwell; Dong, Roth and Su 2022, Theorem
2.10), which are the increments over a time of mu^2 of a Brownian motion without drift and with drift 1. So all that
is seen is a post-processing of its path to the time 2 B, however the times are chosen on the way and wherever one
stops before: sqrt(2 B)-GDP.

Both arguments end at B. Of the amount S spent at a moment that the client chose they say nothing: it is an outcome,
and stopping where L is large for S is a strategy. Nor do they know more of the prices than their sum: the exact
composition of the prices that were in fact paid is that of one branch, and holds for none of the others. So every
figure here is a function of an amount of rho alone. At the limit it holds for every client. At what was spent it holds
if that total was settled beforehand, however the prices in it were chosen.

An account that accepts only Gaussian charges is converted by the exact Gaussian curve with mu^2 = 2 rho, any
other by the zCDP conversion. An account that accepts unproven charges adds up claims: its figures are none of them
bounds, and every report of it says so. The choice is made when the account is opened, never by looking at what was
charged. Every conversion uses delta less the share reserved for the sampler (`accounting.sampling_error`), so
the (epsilon, delta) stated hold for the noise as drawn.
"""

import math
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction
from functools import lru_cache
from typing import Literal, Self, cast, get_args

import numpy as np

from accounting import conversions, domains, identifiability, picorho, sampling_error, tradeoff
from accounting.losses import Cost

Accepts = Literal["gaussian", "any", "unproven"]

_PAYERS: dict[str, tuple[Accepts, ...]] = {
    "gaussian": ("gaussian", "any", "unproven"),
    "proven": ("any", "unproven"),
    "unproven": ("unproven",),
}


Scope = Literal["client", "group", "lineage"]
"""Whose account it is: a client's, that of its group, or its lineage's."""

Period = Literal["day", "week", "month"]

MEASURES = ("epsilon", "rho", "mu", "posterior_belief", "advantage")
"""What an owner may state a budget by, each with a delta."""


@dataclass(frozen=True)
class Refill:
    """What an account may spend in each calendar period, in UTC: at most `picorho`. What is not spent lapses.

    It spreads a budget over time and adds nothing to it: the account's limit bounds all periods together, and no
    figure of privacy here depends on a refill. Epsilon does not add up: one of 1 a month is no promise of 1 for each.
    """

    picorho: int
    period: Period

    def __post_init__(self) -> None:
        """Refuse a refill of nothing, and of a period that the calendar does not have."""
        if self.period not in get_args(Period):
            raise ValueError(f"a refill is for each {', '.join(get_args(Period))}, not {self.period!r}")
        if not 0 < self.picorho <= picorho.LARGEST:
            raise ValueError(f"a refill must lie between 1 and {picorho.LARGEST} picorho, not be {self.picorho}")

    @classmethod
    def parse(cls, text: str, accepts: Accepts) -> Self:
        """Read a refill as the owner writes it, rounded down: `rho:R/PERIOD` or `epsilon:E@DELTA/PERIOD`.

        An epsilon is that of one period by itself, for an account that `accepts` these charges. Raises ValueError.
        """
        amount, _, period = text.rpartition("/")
        kind, _, number = amount.partition(":")
        epsilon, _, delta = number.partition("@")
        try:
            if kind == "rho":
                most = picorho.budget(Fraction(number))
            elif kind == "epsilon":
                most = Budget.from_epsilon_delta(float(epsilon), float(delta), accepts).picorho
            else:
                raise ValueError("it begins with neither rho: nor epsilon:")
            return cls(most, cast(Period, period))
        except ValueError as error:
            raise ValueError(
                "a refill is written epsilon:1@1e-6/month or rho:0.01/week, with day, week or month, and not "
                f"{text!r}: {error}"
            ) from error

    def ends(self, began: int) -> date:
        """Return the day on which the period ends that began on a day, in days since 1970: that of the next refill."""
        first = date(1970, 1, 1) + timedelta(days=began)
        if self.period == "month":
            return date(first.year + first.month // 12, first.month % 12 + 1, 1)
        return first + timedelta(days=7 if self.period == "week" else 1)


def accepts_for(cost: Cost) -> Accepts:
    """Return what the strictest account that pays for `cost` accepts."""
    return _PAYERS[cost.kind][0]


@dataclass(frozen=True)
class Budget:
    """At most `picorho` in total, of the charges that `accepts` names, reported as epsilon at `delta`.

    `refill`: how much of it in each period, if the owner said so.

    Raises ValueError unless the sampler's error over all that the budget can buy fits the reserve of delta.
    """

    picorho: int
    accepts: Accepts
    delta: float
    refill: Refill | None = None

    def __post_init__(self) -> None:
        """Refuse a budget that means nothing or that the sampler's reserve does not cover."""
        domains.require_delta(self.delta)
        if self.accepts not in get_args(Accepts):
            kinds = ", ".join(map(repr, get_args(Accepts)))
            raise ValueError(f"an account accepts {kinds} charges, not {self.accepts!r}")
        if not 0 <= self.picorho <= picorho.LARGEST:
            raise ValueError(f"a budget must lie between 0 and {picorho.LARGEST} picorho, not be {self.picorho}")
        self._check_reserve(self.picorho)

    @classmethod
    def stated(cls, measure: str, value: float, delta: float, accepts: Accepts) -> Self:
        """Return the largest budget that an owner states by one of `MEASURES`. Raises ValueError."""
        match measure:
            case "epsilon":
                return cls.from_epsilon_delta(value, delta, accepts)
            case "rho":
                return cls.from_rho(value, delta, accepts)
            case "mu" if accepts == "gaussian":
                return cls.from_mu(value, delta)
            case "posterior_belief":
                return cls.from_posterior_belief(value, delta, accepts)
            case "advantage":
                return cls.from_advantage(value, delta, accepts)
        raise ValueError("mu is for accounts that accept Gaussian noise only")

    @classmethod
    def from_rho(cls, rho: float | Fraction, delta: float, accepts: Accepts) -> Self:
        """Return the budget of rho-zCDP (of mu-GDP with mu^2 = 2 rho where only Gaussian charges are accepted)."""
        domains.require_delta(delta)
        if not 0 < rho <= picorho.LARGEST / picorho.PICORHO_PER_RHO:
            raise ValueError(
                f"rho must lie above 0 and within {picorho.to_rho(picorho.LARGEST):.6g}, not be {float(rho):.6g}"
            )
        whole = picorho.budget(rho)
        if whole == 0:
            raise ValueError(f"a budget must be at least 1e-12 rho, the ledger's unit, and this one is {float(rho)}")
        return cls(whole, accepts, delta)

    @classmethod
    def from_mu(cls, mu: float, delta: float) -> Self:
        """Return the budget of mu-GDP, on an account that accepts only Gaussian charges: rho = mu^2/2."""
        domains.require_above_zero("mu", mu)
        return cls.from_rho(Fraction(mu) ** 2 / 2, delta, "gaussian")

    @classmethod
    def from_epsilon_delta(cls, epsilon: float, delta: float, accepts: Accepts) -> Self:
        """Return the largest budget under which all answers together are (epsilon, delta)-DP."""
        domains.require_above_zero("epsilon", epsilon, conversions.LARGEST_EPSILON)
        domains.require_delta(delta)
        ideal = sampling_error.ideal_delta(delta)
        if accepts == "gaussian":
            return cls.from_mu(conversions.gaussian_mu(epsilon, ideal), delta)
        return cls.from_rho(conversions.zcdp_rho(epsilon, ideal), delta, accepts)

    @classmethod
    def from_posterior_belief(cls, belief: float, delta: float, accepts: Accepts) -> Self:
        """Return the largest budget under which a belief of 1/2 rises above `belief` with probability <= delta.

        Stricter than the epsilon ln(belief/(1 - belief)) at delta would be, which does not bound the belief:
        see `identifiability.posterior_belief`.
        """
        domains.require_between("the posterior belief", belief, 0.5, 1)
        domains.require_delta(delta)
        log_odds = identifiability.epsilon_of_posterior_belief(belief) * (1 - 2.0**-50) - _LOG_ODDS_OF_RESERVE
        if log_odds <= 0:
            least = identifiability.posterior_belief(_LOG_ODDS_OF_RESERVE)
            raise ValueError(f"the posterior belief must be above {least:.6f}, the sampler's reserve, not {belief}")
        ideal = sampling_error.ideal_delta(delta)
        if accepts == "gaussian":
            return cls.from_mu(identifiability.gaussian_mu_of_log_odds(log_odds, ideal), delta)
        return cls.from_rho(identifiability.zcdp_rho_of_log_odds(log_odds, ideal), delta, accepts)

    @classmethod
    def from_advantage(cls, advantage: float, delta: float, accepts: Accepts) -> Self:
        """Return the largest budget under which no attack has TPR - FPR above `advantage`.

        delta plays no part except for the sampler's reserve and the epsilon reported.
        """
        domains.require_delta(delta)
        reserved = sampling_error.RESERVED_SHARE * delta
        domains.require_between("the membership advantage", advantage, reserved, 1)
        ideal = (advantage - reserved) * (1 - 2.0**-50)
        if accepts == "gaussian":
            return cls.from_mu(identifiability.gaussian_mu_of_advantage(ideal), delta)
        return cls.from_rho(identifiability.zcdp_rho_of_advantage(ideal), delta, accepts)

    def pays_for(self, cost: Cost) -> bool:
        """Return whether an account with this budget accepts charges of this cost."""
        return self.accepts in _PAYERS[cost.kind] and cost.coins <= self.coins_allowed

    def lets_more(self, before: Self) -> bool:
        """Return whether an account may spend more under this budget than under one before it, or sooner."""
        spread = before.refill is None or (
            self.refill is not None
            and self.refill.period == before.refill.period
            and self.refill.picorho <= before.refill.picorho
        )
        return not spread or self.picorho > before.picorho

    @property
    def coins_allowed(self) -> int:
        """How many coins (`Cost.coins`) an account with this budget may pay for in all; counted, as picorho are."""
        return sampling_error.coins_allowed(_rho(self.picorho), self.delta)

    def epsilon_at(self, spent_picorho: int) -> float:
        """Return the tightest valid epsilon at `delta` of that many picorho under `accepts`, rounded up."""
        self._check_reserve(spent_picorho)
        return _epsilon(spent_picorho, self.accepts, self.delta)

    def posterior_belief_at(self, spent_picorho: int) -> float:
        """Return what a belief of 1/2 in one record's presence can rise to, except with probability delta.

        The power bound of `accounting.sampling_error` in the argument of `identifiability.gaussian_log_odds`:
        P(A) - r <= 1 - f(e^-t P(A)) gives the ideal log-odds at delta less the reserve r, and ln(delta/(delta -
        r)) on top.
        """
        if self.accepts == "unproven":
            return 1.0
        self._check_reserve(spent_picorho)
        return _belief(spent_picorho, self.accepts, self.delta)

    def advantage_at(self, spent_picorho: int) -> float:
        """Return the greatest TPR - FPR of any membership attack: that of the ideal noise, and the reserve."""
        if self.accepts == "unproven":
            return 1.0
        self._check_reserve(spent_picorho)
        return _advantage(spent_picorho, self.accepts, self.delta)

    def true_positive_rates_at(self, spent_picorho: int, false_positive_rates: tuple[float, ...]) -> tuple[float, ...]:
        """Return the greatest power of any attack at each false positive rate: of the ideal noise, and the reserve."""
        if self.accepts == "unproven":
            return (1.0,) * len(false_positive_rates)
        self._check_reserve(spent_picorho)
        return _powers(spent_picorho, self.accepts, self.delta, false_positive_rates)

    def _check_reserve(self, amount: int) -> None:
        if not _fits(amount, self.delta):
            rho = _rho(amount)
            raise ValueError(
                f"delta must be at least {sampling_error.least_delta(rho):.3g} for a budget of {rho:.6g} rho, "
                f"not {self.delta:g}: the noise sampler's own error takes a share of it"
            )


_LOG_ODDS_OF_RESERVE = -math.log1p(-sampling_error.RESERVED_SHARE) + 2.0**-40
"""ln(delta/(delta - r)), rounded up past the rounding of delta - r."""


def _rho(amount: int) -> float:
    """Return picorho as rho, rounded up."""
    if amount < 0:
        raise ValueError(f"an amount spent must not be negative, and {amount} picorho is")
    return math.nextafter(amount / picorho.PICORHO_PER_RHO, math.inf) if amount else 0.0


@lru_cache(maxsize=8192)
def _fits(amount: int, delta: float) -> bool:
    return sampling_error.fits(_rho(amount), delta)


@lru_cache(maxsize=8192)
def _epsilon(amount: int, accepts: Accepts, delta: float) -> float:
    rho, ideal = _rho(amount), sampling_error.ideal_delta(delta)
    if accepts == "gaussian":
        return conversions.gaussian_epsilon(conversions.mu_of_rho(rho), ideal)
    return conversions.zcdp_epsilon(rho, ideal)


@lru_cache(maxsize=8192)
def _belief(amount: int, accepts: Accepts, delta: float) -> float:
    rho, ideal = _rho(amount), sampling_error.ideal_delta(delta)
    if not rho:
        return 0.5
    if accepts == "gaussian":
        log_odds = identifiability.gaussian_log_odds(conversions.mu_of_rho(rho), ideal)
    else:
        log_odds = identifiability.zcdp_log_odds(rho, ideal)
    belief = identifiability.posterior_belief(log_odds + _LOG_ODDS_OF_RESERVE)
    return min(1.0, belief * (1 + 2.0**-50))


@lru_cache(maxsize=8192)
def _advantage(amount: int, accepts: Accepts, delta: float) -> float:
    rho = _rho(amount)
    if not rho:
        return 0.0
    if accepts == "gaussian":
        ideal = identifiability.gaussian_advantage(conversions.mu_of_rho(rho))
    else:
        ideal = identifiability.zcdp_advantage(rho)
    return min(1.0, math.nextafter(ideal + sampling_error.RESERVED_SHARE * delta, 1.0))


_EPSILONS = 33
"""How many points of the zCDP curve bound the power of attacks."""


@lru_cache(maxsize=8192)
def _powers(amount: int, accepts: Accepts, delta: float, rates: tuple[float, ...]) -> tuple[float, ...]:
    rho = _rho(amount)
    if not rho:
        return rates
    if accepts == "gaussian":
        misses = tradeoff.gaussian(conversions.mu_of_rho(rho), rates)
    else:
        epsilons = np.linspace(0, conversions.zcdp_epsilon(rho, sampling_error.ideal_delta(delta)), _EPSILONS)
        deltas = np.array([conversions.zcdp_delta(rho, float(epsilon)) for epsilon in epsilons])
        curve = tradeoff.of_curve(lambda _: deltas, epsilons, rates)
        misses = np.maximum(curve, tradeoff.zcdp(rho, rates))
    powers = 1 - misses + sampling_error.RESERVED_SHARE * delta
    return tuple(map(float, np.minimum(np.nextafter(powers, 2), 1)))
