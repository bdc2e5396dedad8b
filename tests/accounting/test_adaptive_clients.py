"""Clients who choose the next price by what they saw, and stop when it suits them, against what accounts are told.

Every answer is cut into finitely many outcomes, which can only tell less, so that a client's whole strategy is a pair
of finite laws and the best test between them is computed and not sampled.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import binom

from dpserve.accounting.attack_bounds import FALSE_POSITIVE_RATES
from dpserve.accounting.budgets import Budget
from dpserve.accounting.explanation import explain_account, parse_release
from dpserve.accounting.losses import Cost, GaussianLoss, LaplaceLoss, PrivacyLoss
from dpserve.accounting.report import AccountState

NOTHING = (np.ones(1), np.ones(1))


def laplace(epsilon, cells=400):
    """Laplace noise on a value of 1 or 0: the laws (cells + 2,) of the cell that the answer falls into."""
    edges = np.linspace(0, 1, cells + 1)

    def law(value):
        below = np.where(
            edges < value, np.exp(epsilon * (edges - value)) / 2, 1 - np.exp(epsilon * (value - edges)) / 2
        )
        return np.diff(below, prepend=0, append=1)

    return law(1.0), law(0.0)


def gaussian(mu, cells=400):
    edges = np.concatenate([[-np.inf], np.linspace(-6, mu + 6, cells + 1), [np.inf]])

    def law(mean):
        left, right = ndtr(edges - mean), ndtr(mean - edges)
        return np.where(edges[:-1] > mean, right[:-1] - right[1:], left[1:] - left[:-1])

    return law(mu), law(0.0)


def then(first, follow):
    """The laws of the answers together. follow: the laws of what comes next, by the first answer's log-likelihood."""
    p, q = first
    nexts = [follow(log_odds) for log_odds in np.log(p / q)]
    return tuple(
        np.concatenate([one * law[side] for one, law in zip(both, nexts, strict=True)])
        for side, both in enumerate((p, q))
    )


def power(laws, rate):
    """The true positive rate of the best test at this false positive rate (Neyman and Pearson)."""
    p, q = laws
    order = np.argsort(-np.log(p / np.maximum(q, 1e-300)))
    caught, accused = np.append(0, np.cumsum(p[order])), np.append(0, np.cumsum(q[order]))
    return float(np.interp(rate, accused, caught))


def hockey_stick(laws, epsilon):
    p, q = laws
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def told(budget, spent):
    explanation = explain_account(AccountState.after_releases(spent, budget), price=None).explanation
    return {one.false_positive_rate: one.true_positive_rate_bound for one in explanation.attack_power}


def test_who_chooses_the_second_price_by_the_first_answer_stays_below_what_the_account_is_told():
    """No composition of either course of events allows more than 0.4413 at a false positive rate of 0.01."""
    second = {True: laplace(3.0), False: gaussian(2.0)}
    attack = power(then(laplace(1.0), lambda log_odds: second[log_odds > 0.5]), 0.01)
    assert attack == pytest.approx(0.480, abs=0.0005)

    budget = Budget.from_rho(5, 1e-6, "any")
    for course in ("laplace:1,laplace:0.33333333333333337", "laplace:1,gaussian:0.5"):
        assert told(budget, {parse_release(course): 1})[0.01] >= attack


def strategies(losses, limit):
    """Two releases, the second one of two by the first's answer, within `limit` of rho in every course of events."""
    kind = st.sampled_from(losses)

    def one(parts):
        first, second, other, share, turn, stops = parts
        left = limit * (1 - share)
        branches = [second(left), NOTHING if stops else other(left)]
        return then(first(limit * share), lambda log_odds: branches[int(log_odds > turn)])

    parts = st.tuples(kind, kind, kind, st.floats(0.05, 0.95), st.floats(-1.5, 1.5), st.booleans())
    return parts.map(one)


def laplace_of(rho):
    return laplace(math.sqrt(2 * rho), cells=60)


def gaussian_of(rho):
    return gaussian(math.sqrt(2 * rho), cells=60)


def selection_of(rho):
    """Randomised response whose loss lies in an interval of length epsilon: rho = epsilon^2/8."""
    epsilon = math.sqrt(8 * rho)
    sure = 1 / (1 + math.exp(-epsilon / 2))
    return np.array([sure, 1 - sure]), np.array([1 - sure, sure])


@settings(max_examples=150, deadline=None)
@given(rho=st.floats(0.01, 5), gaussian_only=st.booleans(), data=st.data())
def test_no_strategy_of_two_releases_beats_the_limit(rho, gaussian_only, data):
    budget = Budget.from_rho(rho, 1e-4, "gaussian" if gaussian_only else "any")
    kinds = [gaussian_of] if gaussian_only else [laplace_of, gaussian_of, selection_of]
    laws = data.draw(strategies(kinds, rho))
    limit = explain_account(AccountState.after_releases({}, budget), price=None)
    bounds = told(budget, {})

    for one in (laws, laws[::-1]):
        for rate in FALSE_POSITIVE_RATES:
            assert power(one, rate) <= bounds[rate] + 1e-9
        assert hockey_stick(one, limit.limit.epsilon) <= 1e-4
        assert hockey_stick(one, 0.0) <= limit.membership_advantage_bound.when_spent + 1e-9
        belief = one[0] / (one[0] + one[1])
        assert one[0][belief > limit.posterior_belief_bound.when_spent].sum() <= 1e-4


@pytest.mark.parametrize(
    ("accepts", "loss", "survives"),
    [
        ("any", GaussianLoss(0.3), {"zcdp"}),
        ("any", LaplaceLoss(0.3), {"zcdp"}),
        ("gaussian", GaussianLoss(0.3), {"zcdp", "exact"}),
    ],
)
def test_an_account_names_as_tightest_only_what_depends_on_the_total_alone(accepts, loss: PrivacyLoss, survives):
    """The client's purchases do not show what another answer would have made it buy."""
    budget = Budget.from_rho(5, 1e-6, accepts)
    found = explain_account(AccountState.after_releases({Cost((loss,)): 1}, budget), price=None).explanation

    assert {one.name for one in found.analyses if one.holds_for_adaptive_prices} == survives
    assert found.tightest in survives
    assert len(found.analyses) == 5


def test_a_limit_lowered_below_what_was_spent_takes_nothing_back():
    cost = Cost((GaussianLoss(0.5),))
    lowered, kept = (
        explain_account(
            AccountState.after_releases({cost: 10}, Budget(answers * cost.picorho, "gaussian", 1e-6)), price=cost
        )
        for answers in (4, 10)
    )

    assert lowered.posterior_belief_bound == kept.posterior_belief_bound
    assert lowered.membership_advantage_bound == kept.membership_advantage_bound
    assert lowered.explanation.identifiability == kept.explanation.identifiability
    assert lowered.explanation.attack_power == kept.explanation.attack_power
    assert lowered.queries_left == 0


def test_a_client_that_has_its_limit_raised_passes_the_bound_of_the_limit_and_not_what_it_is_told_then():
    """The limit grows by one answer at a time for a client that asks until it is surer than the present limit allows.

    20,000 runs with the record there, of at most 64 Gaussian answers, at delta = 0.05. A share that is truly 0.05 is
    above 0.0585 with a probability below 1e-7, P(Binomial(20000, 0.05) > 1170) < 1e-7: with the bound of the limit the
    share is nearly three times 0.05, and with the bound that the account states once it was raised below it.
    """
    delta, first, most, runs = 0.05, 4, 64, 20_000
    cost = Cost((GaussianLoss(0.1),))
    assert binom.sf(1170, runs, delta) < 1e-7

    def bounds(answers):
        limit = Budget(answers * cost.picorho, "gaussian", delta)
        settled = {"raises": answers - first, "settled_limit": first * cost.picorho} if answers > first else {}
        found = explain_account(AccountState.after_releases({cost: answers}, limit, **settled), price=cost)
        assert (found.raised is None) == (answers == first)
        of_limit = found.posterior_belief_bound.when_spent
        stated = of_limit if found.raised is None else found.raised.posterior_belief_bound
        assert f"{math.ceil(stated * 1000) / 10} % sure" in found.explanation.in_plain_words
        return of_limit, stated

    answers = range(first, most + 1)
    of_limit, stated = np.array([bounds(each) for each in answers]).T
    mu = 0.1
    path = np.cumsum(np.random.default_rng(28).normal(mu * mu / 2, mu, (runs, most)), axis=1)[:, first - 1 :]
    belief = 1 / (1 + np.exp(-path))
    assert (belief > of_limit).any(axis=1).mean() > 0.1
    assert (belief > stated).any(axis=1).mean() <= 0.0585
    # Settled beforehand, each of these limits keeps its bound.
    assert (belief > of_limit).mean(axis=0).max() <= 0.0585
