"""Budgets: how much one account may ever learn, given in the owner's words and kept as a whole number.

Whatever the words, a budget becomes a whole number of 1e-12 of rho or of epsilon, rounded down, before the first
release, and the ledger admits a release when an integer sum stays within it. That filter (Rogers, Roth, Ullman and
Vadhan 2016) is valid when a client chooses rows, mechanisms and prices by what it has seen so far, and stops when it
likes. Let the prices add up to at most B in every course of events, P and Q the laws of everything the client sees.

zCDP (Feldman and Zrnic 2021, Theorem 3.1; Whitehouse, Ramdas, Rogers and Wu 2023): let L be the logarithm of dP/dQ of
the answers so far, S the prices so far. Given the past, the next answer has E_Q[e^(alpha dL)] <= e^(alpha (alpha-1)
dS), dS being known before it is drawn. So e^(alpha L - alpha (alpha-1) S) never grows in mean and begins at 1; at the
end S <= B, hence E_Q[e^(alpha L)] <= e^(alpha (alpha-1) B): B-zCDP, and the same with P and Q exchanged.

Gaussian charges alone (Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023): given the past, an answer that is
mu-GDP is a post-processing of N(0, mu^2) under Q and N(mu^2, mu^2) under P (Blackwell; Dong, Roth and Su 2022, Theorem
2.10), which are the increments over a time of mu^2 of a Brownian motion without drift and with drift 1. So all that
is seen is a post-processing of its path to the time 2 B, however the times are chosen on the way and wherever one
stops before: sqrt(2 B)-GDP.

Pure epsilon (basic composition as a filter; Rogers, Roth, Ullman and Vadhan 2016, Section 5): given the past, the next
answer moves L by at most its price, which is known before it is drawn. So |L| <= S <= B in every course of events, and
P(E) <= e^B Q(E) for every event E: B-DP. Prices are whole numbers of 1e-12 of epsilon, rounded up.

All three arguments end at B, which is settled before the first answer. An owner who raises it for clients that saw
answers lets them choose the end: a bound in rho at the limit that came to be can fail then, as at a moment that the
client chose. `Budget.posterior_belief_raised` holds all the same, and so does what is said of another account that pays
for the same answers and was not raised. In pure epsilon nothing is lost: |L| is at most the limit that came to be. An
owner who raises it by the records themselves tells about them: nothing here bounds that.

Of the amount S spent at a moment that the client chose they say nothing: it is an
outcome, and stopping where L is large for S is a strategy. Nor do they know more of the prices than their sum: the
exact composition of the prices that were in fact paid is that of one branch, and holds for none of the others. So every
figure here is a function of one amount alone, of rho or of epsilon. At the limit it holds for every client. At what was
spent it holds if that total was settled beforehand, however the prices in it were chosen.

An account that accepts only Gaussian charges is converted by the exact Gaussian curve with mu^2 = 2 rho, any other by
the zCDP conversion. An account that accepts pure charges counts epsilon itself, and its delta is the sampler's alone
(`sampling_error.PURE_DELTA`). An account that accepts unproven charges adds up claims: its figures are none of them
bounds, and every report of it says so. The choice is made when the account is opened, never by looking at what was
charged. Every conversion of rho uses delta less the share reserved for the sampler
(`dpserve.accounting.sampling_error`), so the (epsilon, delta) stated hold for the noise as drawn.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, Self, get_args

import numpy as np

from dpserve.accounting import conversions, domains, identifiability, picorho, sampling_error, tradeoff
from dpserve.accounting.currency import EPSILON, RHO, Currency
from dpserve.accounting.losses import Cost
from dpserve.accounting.remembered import remembered

Accepts = Literal["gaussian", "any", "pure", "unproven", "unproven-pure"]
"""Which charges an account accepts, and so what it counts: epsilon where the name ends in `pure`, otherwise rho."""

_PAYERS: dict[str, tuple[Accepts, ...]] = {
    "gaussian": ("gaussian", "any", "unproven"),
    "proven": ("any", "pure", "unproven", "unproven-pure"),
    "unproven": ("unproven", "unproven-pure"),
}


def currency_of(accepts: str) -> Currency:
    """Return what an account that accepts these charges counts."""
    return EPSILON if accepts in ("pure", "unproven-pure") else RHO


UNPROVEN: frozenset[str] = frozenset({"unproven", "unproven-pure"})
"""The accounts that may pay for what is only claimed, so that none of their figures is a bound."""


def accepted_at(delta: float | None, accepts: Accepts) -> Accepts:
    """Return what an account accepts whose owner states this delta, and otherwise would accept `accepts`.

    A delta of 0 asks for pure epsilon, and a positive one for what has a delta; with None nothing is asked.
    """
    if delta == 0 and currency_of(accepts) is RHO:
        return "unproven-pure" if accepts in UNPROVEN else "pure"
    if delta and currency_of(accepts) is EPSILON:
        return "unproven" if accepts in UNPROVEN else "any"
    return accepts


Scope = Literal["client", "group", "lineage", "block"]
"""The owner of an account: a client, its group, its lineage, or a block of the lineage."""

_GIVEN_DIGITS, _LEAST_GIVEN = 6, 10**10
"""The most digits of a rho that an owner gives, and the least limit that is told by them."""

READ_AT = 1e-6
"""The delta at which an amount of rho is said as an epsilon where no other was given."""

MEASURES = ("epsilon", "rho", "mu", "posterior_belief", "advantage")
"""The quantities in which an owner may state a budget, each with a delta."""


def accepts_for(cost: Cost) -> Accepts:
    """Return what the strictest account that pays for `cost` accepts."""
    return _PAYERS[cost.kind][0]


@dataclass(frozen=True)
class Budget:
    """At most `limit` in total, of the charges that `accepts` names, reported as epsilon at `delta`.

    limit: in 1e-12 of the `currency`. delta: of an account
    that counts pure epsilon `sampling_error.PURE_DELTA`, or of a longer sum `sampling_error.pure_delta`.

    Raises ValueError unless the sampler's error over all that the budget can buy fits the reserve of delta.
    """

    limit: int
    accepts: Accepts
    delta: float

    def __post_init__(self) -> None:
        """Refuse a budget that means nothing or that the sampler's reserve does not cover."""
        domains.require_delta(self.delta)
        if self.accepts not in get_args(Accepts):
            kinds = ", ".join(map(repr, get_args(Accepts)))
            raise ValueError(f"an account accepts {kinds} charges, not {self.accepts!r}")
        if not 0 <= self.limit <= picorho.LARGEST:
            raise ValueError(f"a budget must lie between 0 and {picorho.LARGEST} units of 1e-12, not be {self.limit}")
        if self.currency is EPSILON and not self._has_pure_delta():
            raise ValueError(
                f"a budget of pure epsilon has delta = {sampling_error.PURE_DELTA:.3g}, not {self.delta:g}"
            )
        self._check_reserve(self.limit)

    @cached_property
    def currency(self) -> Currency:
        """The quantity that the account counts: rho, or pure epsilon."""
        return currency_of(self.accepts)

    @classmethod
    def pure(cls, epsilon: float | Fraction, accepts: Accepts = "pure") -> Self:
        """Return the budget of pure epsilon, rounded down. Raises ValueError."""
        domains.require_above_zero("epsilon", float(epsilon))
        whole = picorho.budget(epsilon if isinstance(epsilon, Fraction) else Fraction(repr(float(epsilon))))
        if whole == 0:
            raise ValueError(f"a budget must be at least 1e-12 of epsilon, the ledger's unit, not {epsilon}")
        return cls(whole, accepts, sampling_error.PURE_DELTA)

    @classmethod
    def parse(cls, text: str, accepts: Accepts) -> Self:
        """Read a budget as an owner writes it in one word: `epsilon:E@DELTA`, or `epsilon:E` in pure epsilon.

        accepts: what the account pays for, of those that have a delta or of those that have none. Raises ValueError.
        """
        kind, _, number = text.partition(":")
        epsilon, _, delta = number.partition("@")
        try:
            if kind != "epsilon":
                raise ValueError("it does not begin with epsilon:")
            return cls.from_epsilon_delta(float(epsilon), float(delta or 0), accepted_at(float(delta or 0), accepts))
        except ValueError as error:
            raise ValueError(f"a budget is written epsilon:3@1e-6, or epsilon:3 in pure epsilon: {error}") from error

    @classmethod
    def from_measure(cls, measure: str, value: float, delta: float, accepts: Accepts) -> Self:
        """Return the largest budget that an owner states by one of `MEASURES`. Raises ValueError.

        delta: 0 for an account that counts pure epsilon, which is stated by epsilon or a posterior belief.
        """
        if currency_of(accepts) is EPSILON and measure not in ("epsilon", "posterior_belief"):
            raise ValueError(f"a budget of pure epsilon is not stated by {measure.replace('_', ' ')}: state epsilon")
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
        raise ValueError(
            "mu is for accounts that accept nothing but Gaussian noise: state epsilon and delta, or rho, for others"
        )

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
        """Return the largest budget under which all answers together are (epsilon, delta)-DP.

        Where pure epsilon is counted, delta must be 0 (or `PURE_DELTA`, which is kept for the sampler).
        """
        if currency_of(accepts) is EPSILON:
            _require_pure_delta(delta)
            return cls.pure(epsilon, accepts)
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
        if currency_of(accepts) is EPSILON:
            _require_pure_delta(delta)
        else:
            domains.require_delta(delta)
        log_odds = identifiability.epsilon_of_posterior_belief(belief) * (1 - 2.0**-50) - _LOG_ODDS_OF_RESERVE
        if log_odds <= 0:
            least = identifiability.posterior_belief(_LOG_ODDS_OF_RESERVE)
            raise ValueError(
                f"the posterior belief must be above {least:.6f}, not {belief}: the noise sampler's own error takes "
                "the rest"
            )
        if currency_of(accepts) is EPSILON:
            return cls.pure(Fraction(log_odds), accepts)
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
        if self.accepts not in _PAYERS[cost.kind] or self.currency.price(cost) is None:
            return False
        return cost.coins <= self.coins_allowed

    @property
    def coins_allowed(self) -> int:
        """The most coins (`Cost.coins`) that an account with this budget may pay for; it counts them like amounts."""
        if self.currency is EPSILON:
            return 0
        return sampling_error.coins_allowed(_units(self.limit), self.delta)

    @cached_property
    def shown_in(self) -> Literal["rho", "epsilon"]:
        """The one currency in which a person reads this account: that in which its owner gave the limit.

        Which that was is not stored. A limit of rho 0.01 or more with at most six digits, rounded down, was given in
        rho: one that an epsilon was turned into has eleven or more, and so few except for two in 100,000. Claims are
        shown as what was added up.
        """
        if self.currency is EPSILON:
            return "epsilon"
        given = min(_digits(self.limit), _digits(self.limit + 1)) <= _GIVEN_DIGITS and self.limit >= _LEAST_GIVEN
        return "rho" if self.accepts in UNPROVEN or given else "epsilon"

    def shown(self, amount: int) -> float:
        """Return the number that a person reads for an amount. Raises ValueError beyond the sampler's reserve."""
        counted = self.shown_in == self.currency.name
        return self.currency.value(amount) if counted else self.epsilon_at(amount)

    def growth(self, spent: int, cost: int) -> float | None:
        """Return by how much the number that a person reads grows where a cost is added to what was spent.

        None beyond what the sampler's reserve is for, where no epsilon is known.
        """
        if self.shown_in == self.currency.name:
            return self.currency.value(cost)
        try:
            return self.shown(spent + cost) - self.shown(spent)
        except ValueError:
            return None

    def words(self, amount: int) -> str:
        """Return an amount in words, as `epsilon = 5.2 at delta = 1e-05`, or `rho = 0.5`."""
        try:
            return f"{self.shown_in} = {self.figure(self.shown(amount))}{self._at_delta}"
        except ValueError:  # more than the sampler's reserve is for
            return self.currency.words(amount)

    def words_of_cost(self, spent: int, cost: int) -> tuple[str, str]:
        """Return what a cost is, with its verb, and what is left, in the currency that a person reads.

        `costs rho = 0.5`; of an epsilon at a delta `costs epsilon = 0.5 by itself and adds 0.2 to the 1.2 that was
        spent`: what it adds is by how much the number shown grows. Left is `0.2 of 3 at delta = 1e-05`.
        """
        limit = self.shown(self.limit)
        left = max(0.0, limit - self.shown(spent))
        whole = f"{self.figure(limit)}{self._at_delta}"
        added = self.growth(spent, cost)
        if added is None:
            return f"costs more than {self.shown_in} = {whole}", f"{left:.4g} of {whole}"
        digits = next((count for count in range(4, 12) if f"{added:.{count}g}" != f"{left:.{count}g}"), 12)
        adds, left_of = f"{added:.{digits}g}", f"{left:.{digits}g} of {whole}"
        if self.shown_in == self.currency.name:
            return f"costs {self.shown_in} = {adds}", left_of
        if not spent:
            return f"costs {self.shown_in} = {adds} by itself", left_of
        alone, before = (self.figure(self.shown(amount)) for amount in (cost, spent))
        return f"costs {self.shown_in} = {alone} by itself and adds {adds} to the {before} that was spent", left_of

    def figure(self, shown: float) -> str:
        """Return a number that a person reads, as text: an epsilon that follows from rho is never exact."""
        return f"{shown:.6g}" if self.shown_in == self.currency.name else f"{shown:.4g}"

    @property
    def _at_delta(self) -> str:
        return f" at delta = {self.delta:g}" if self.shown_in != self.currency.name else ""

    def epsilon_at(self, spent: int) -> float:
        """Return the tightest valid epsilon at `delta` of that amount under `accepts`, rounded up."""
        self._check_reserve(spent)
        return _epsilon(spent, self.accepts, self.delta)

    def posterior_belief_at(self, spent: int) -> float:
        """Return what a belief of 1/2 in one record's presence can rise to, except with probability delta.

        The power bound of `dpserve.accounting.sampling_error` in the argument of `identifiability.gaussian_log_odds`:
        P(A) - r <= 1 - f(e^-t P(A)) gives the ideal log-odds at delta less the reserve r, and ln(delta/(delta -
        r)) on top. Of pure epsilon: P(A) <= e^epsilon Q(A) + r < e^(epsilon - t) P(A) + r, so that P(A) > delta is
        impossible once t reaches epsilon + ln(delta/(delta - r)).
        """
        if self.accepts in UNPROVEN:
            return 1.0
        self._check_reserve(spent)
        return _belief(spent, self.accepts, self.delta)

    def posterior_belief_raised(self, settled: int) -> float:
        """Return what a belief of 1/2 can rise to, except with probability delta, however the limit came to be this.

        settled: the limit before the first answer; by `identifiability.raised_log_odds` it may have been raised since
        by someone who saw the answers. `posterior_belief_at` holds for limits of rho settled beforehand alone.

        The noise as drawn. Let P~ and Q~ be the laws then, and w P, w Q and the reserve r as in
        `dpserve.accounting.sampling_error`: w Q <= Q~ and P~(E) <= w P(E) + r for every E; the mixture's mean is at
        most 1 under w P, too. Let A be the event that log-odds exceed the t below, for an observer who sees the limit.
        Limits under which w P has less than 1 - s of P~'s share of A have at most r/s of P~ together. Under the others
        w P over w Q on A is more than (1 - s) e^t, so that with t = `raised_log_odds` at delta' less ln(1 - s) they
        have at most delta' + r. With s = 2^-5 and r <= 2^-10 delta, delta' = (1 - 2^-4) delta is small enough.

        Pure epsilon: w P <= e^B w Q pointwise, B being the limit that came to be. On the event A that log-odds exceed
        B + c, Q~ < e^(-B-c) P~, so that P~(A) <= w P(A) + r <= e^-c P~(A) + r, as in `posterior_belief_at`.
        """
        if self.accepts in UNPROVEN:
            return 1.0
        self._check_reserve(self.limit)
        if self.currency is EPSILON:
            return self.posterior_belief_at(self.limit)
        rho, settled_rho = _units(self.limit), _units(max(settled, 1))
        log_odds = identifiability.raised_log_odds(rho, settled_rho, self.delta * (1 - 2.0**-4))
        belief = identifiability.posterior_belief(log_odds - math.log1p(-(2.0**-5)) + 2.0**-40)
        return min(1.0, belief * (1 + 2.0**-50))

    def advantage_at(self, spent: int) -> float:
        """Return the greatest TPR - FPR of any membership attack: that of the ideal noise, and the reserve."""
        if self.accepts in UNPROVEN:
            return 1.0
        self._check_reserve(spent)
        return _advantage(spent, self.accepts, self.delta)

    def true_positive_rates_at(self, spent: int, false_positive_rates: tuple[float, ...]) -> tuple[float, ...]:
        """Return the greatest power of any attack at each false positive rate: of the ideal noise, and the reserve."""
        if self.accepts in UNPROVEN:
            return (1.0,) * len(false_positive_rates)
        self._check_reserve(spent)
        return _powers(spent, self.accepts, self.delta, false_positive_rates)

    def _has_pure_delta(self) -> bool:
        """Whether delta is that of a budget of pure epsilon, or of a sum as long as this one."""
        if self.delta == sampling_error.PURE_DELTA:
            return True
        return self.delta == sampling_error.pure_delta(Fraction(self.limit, picorho.PICORHO_PER_RHO))

    def _check_reserve(self, amount: int) -> None:
        if self.currency is EPSILON:
            most = sampling_error.LARGEST_PURE_BUDGET * round(self.delta / sampling_error.PURE_DELTA)
            if self.accepts not in UNPROVEN and amount > most * picorho.PICORHO_PER_RHO:
                raise ValueError(
                    f"a budget of pure epsilon is at most {most}, not {_units(amount):.6g}: the noise sampler's own "
                    "error is bounded up to there"
                )
            return
        if not _fits(amount, self.delta):
            rho = _units(amount)
            raise ValueError(
                f"delta must be at least {sampling_error.least_delta(rho):.3g} for a budget of {rho:.6g} rho, "
                f"not {self.delta:g}: the noise sampler's own error takes a share of it"
            )


def words_at(amount: int, delta: float | None = READ_AT) -> str:
    """Return an amount of rho of Gaussian noise in words, as an epsilon at delta.

    delta: None for an amount that was given in rho. It is said in rho, too, where the sampler's error takes a larger
    delta.
    """
    if delta is not None and _fits(amount, delta):
        return f"epsilon = {_epsilon(amount, 'gaussian', delta):.4g} at delta = {delta:g}"
    return RHO.words(amount)


def _require_pure_delta(delta: float) -> None:
    if delta not in (0, sampling_error.PURE_DELTA):
        raise ValueError(f"a budget of pure epsilon has delta = 0, not {delta:g}; state no delta, or 0")


_LOG_ODDS_OF_RESERVE = -math.log1p(-sampling_error.RESERVED_SHARE) + 2.0**-40
"""ln(delta/(delta - r)), rounded up past the rounding of delta - r."""


def _units(amount: int) -> float:
    """Return an amount of 1e-12 as rho, or epsilon, rounded up."""
    if amount < 0:
        raise ValueError(f"an amount spent must not be negative, and {amount} of 1e-12 is")
    nearest = amount / picorho.PICORHO_PER_RHO
    is_enough = Fraction(nearest) >= Fraction(amount, picorho.PICORHO_PER_RHO)
    return nearest if is_enough else math.nextafter(nearest, math.inf)


@remembered(8192)
def _fits(amount: int, delta: float) -> bool:
    return sampling_error.fits(_units(amount), delta)


@remembered(8192)
def _epsilon(amount: int, accepts: Accepts, delta: float) -> float:
    if currency_of(accepts) is EPSILON:
        return _units(amount)
    rho, ideal = _units(amount), sampling_error.ideal_delta(delta)
    if accepts == "gaussian":
        return conversions.gaussian_epsilon(conversions.mu_of_rho(rho), ideal)
    return conversions.zcdp_epsilon(rho, ideal)


@remembered(8192)
def _belief(amount: int, accepts: Accepts, delta: float) -> float:
    rho, ideal = _units(amount), sampling_error.ideal_delta(delta)
    if not rho:
        return 0.5
    if currency_of(accepts) is EPSILON:
        log_odds = rho
    elif accepts == "gaussian":
        log_odds = identifiability.gaussian_log_odds(conversions.mu_of_rho(rho), ideal)
    else:
        log_odds = identifiability.zcdp_log_odds(rho, ideal)
    belief = identifiability.posterior_belief(log_odds + _LOG_ODDS_OF_RESERVE)
    return min(1.0, belief * (1 + 2.0**-50))


@remembered(8192)
def _advantage(amount: int, accepts: Accepts, delta: float) -> float:
    rho = _units(amount)
    if not rho:
        return 0.0
    if currency_of(accepts) is EPSILON:
        ideal = identifiability.advantage(rho, 0.0)
    elif accepts == "gaussian":
        ideal = identifiability.gaussian_advantage(conversions.mu_of_rho(rho))
    else:
        ideal = identifiability.zcdp_advantage(rho)
    return min(1.0, math.nextafter(ideal + sampling_error.RESERVED_SHARE * delta, 1.0))


_EPSILONS = 33
"""Number of points of the zCDP curve that bound the power of attacks."""


@remembered(8192)
def _powers(amount: int, accepts: Accepts, delta: float, rates: tuple[float, ...]) -> tuple[float, ...]:
    rho = _units(amount)
    if not rho:
        return rates
    if currency_of(accepts) is EPSILON:
        misses = tradeoff.epsilon_delta(rho, 0.0, np.asarray(rates, dtype=np.float64))
    elif accepts == "gaussian":
        misses = tradeoff.gaussian(conversions.mu_of_rho(rho), rates)
    else:
        epsilons = np.linspace(0, conversions.zcdp_epsilon(rho, sampling_error.ideal_delta(delta)), _EPSILONS)
        deltas = np.array([conversions.zcdp_delta(rho, float(epsilon)) for epsilon in epsilons])
        curve = tradeoff.curve_bound(lambda _: deltas, epsilons, rates)
        misses = np.maximum(curve, tradeoff.zcdp(rho, rates))
    powers = 1 - misses + sampling_error.RESERVED_SHARE * delta
    return tuple(map(float, np.minimum(np.nextafter(powers, 2), 1)))


def _digits(whole: int) -> int:
    """Return how many digits a whole number has, without the zeros at its end."""
    return len(str(whole).rstrip("0"))
