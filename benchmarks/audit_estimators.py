"""Tightness and errors of the estimators: python benchmarks/audit_estimators.py [AUDITS]

First, audits of nothing: how many of 95 % bounds are above 0. Then, audits of Gaussian observations, 10,000 with
the record and 10,000 without: the median of the bounds in epsilon at delta = 1e-5 over the truth, and how many are
above it.
"""

import sys

import numpy as np

from dpserve.accounting.conversions import gaussian_mu
from dpserve.audit import estimators
from dpserve.audit.families import LAPLACE
from research.nasr2023 import methods

DELTA = 1e-5
CONFIDENCE = 0.95
OBSERVATIONS = 10_000


def uncorrected(scores_in, scores_out):
    """The literature's rule: the best threshold on the very scores that the bound is from. Not a valid bound."""
    thresholds = np.quantile(np.concatenate([scores_in, scores_out]), np.linspace(0, 1, 100))
    found = (methods.katz(scores_in, scores_out, CONFIDENCE, threshold=float(one)) for one in thresholds)
    return max(found, key=lambda bound: bound.value)


def without_leakage(audits, n):
    found = {}
    for audit in range(audits):
        rng = np.random.default_rng((audit, n))
        scores = rng.normal(size=n), rng.normal(size=n)
        bounds = {
            "(epsilon, delta), Clopper-Pearson": estimators.epsilon_delta(*scores, CONFIDENCE, delta=DELTA),
            "GDP, Clopper-Pearson": estimators.gdp(*scores, CONFIDENCE),
            "GDP, Clopper-Pearson, pooled errors": estimators.pooled_gdp(*scores, CONFIDENCE),
            "Laplace's trade-off, Clopper-Pearson": estimators.tradeoff(*scores, CONFIDENCE, LAPLACE),
            "(epsilon, delta), credible": methods.credible_epsilon_delta(*scores, CONFIDENCE, delta=DELTA),
            "GDP, credible": methods.credible_gdp(*scores, CONFIDENCE),
            "Katz log": methods.katz(*scores, CONFIDENCE),
            "Katz log, uncorrected best threshold": uncorrected(*scores),
        }
        for name, bound in bounds.items():
            found[name] = found.get(name, 0) + (bound.value > 0)
    return {name: count / audits for name, count in found.items()}


def gaussian_audits(epsilon, audits):
    mu = gaussian_mu(epsilon, DELTA)
    shares = {}
    for audit in range(audits):
        rng = np.random.default_rng((audit, epsilon))
        scores = tuple(mu * rng.normal(m, 1, OBSERVATIONS) - mu**2 / 2 for m in (mu, 0))
        bounds = {
            "GDP, Clopper-Pearson": estimators.gdp(*scores, CONFIDENCE, threshold=0.0),
            "GDP, Clopper-Pearson, pooled errors": estimators.pooled_gdp(*scores, CONFIDENCE, threshold=0.0),
            "GDP, credible": methods.credible_gdp(*scores, CONFIDENCE, threshold=0.0),
            "(epsilon, delta), Clopper-Pearson": estimators.epsilon_delta(*scores, CONFIDENCE, delta=DELTA),
        }
        for name, bound in bounds.items():
            shares.setdefault(name, []).append(bound.epsilon(DELTA) / epsilon)
    return shares


def main(audits):
    print(f"without leakage, {audits} audits: share of bounds above 0")
    for name, rate in without_leakage(audits, 2000).items():
        print(f"  {name:45} {rate:.4f}")
    for epsilon in (1, 2, 4, 8):
        print(
            f"epsilon = {epsilon}, {audits} audits: median share of the truth, median of the first 20, above the truth"
        )
        for name, shares in gaussian_audits(epsilon, audits).items():
            found = np.array(shares)
            print(f"  {name:45} {np.median(found):.4f}  {np.median(found[:20]):.4f}  {(found > 1).mean():.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
