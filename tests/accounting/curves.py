"""The Gaussian privacy curve in many digits: the oracle of what the package computes in float64."""

import mpmath


def exact_gaussian_delta(mu: float, epsilon: float, digits: int = 140) -> mpmath.mpf:
    """Return the delta of mu-GDP at epsilon: Balle and Wang 2018, Theorem 8."""
    if mu == 0:
        return mpmath.mpf(0)
    with mpmath.workdps(420 if mu < 1e-3 else digits):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)

        def cdf(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.erfc(-x / mpmath.sqrt(2)) / 2

        return cdf(-e / m + m / 2) - mpmath.exp(e) * cdf(-e / m - m / 2)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return it as a float."""
    return float(exact_gaussian_delta(mu, epsilon, digits=40))
