"""The cost of objective perturbation, proved for the softmax head of any number of classes.

The published analyses (Kifer, Smith and Thakurta 2012; Redberg, Koskela and Wang 2023) are for losses of one scalar
margin. A softmax head's loss depends on C of them, and a record's gradient changes its direction, not only its length,
with the noise. The proof here is another one, by a bound on the gradient of the log-density ratio.
"""

import math
from dataclasses import dataclass

from accounting.losses import LARGEST_COIN, ApproximateGaussianLoss

_UP = 1 + 2.0**-40
_LARGEST_MU = 2.83
_LEAST_OVERLAP = 0.157
"""2 Phi(-mu/2) at _LARGEST_MU, rounded down."""

NO_UNITS = (
    "objective perturbation has no proof for privacy units: its bound holds where the noise along a record's features "
    "is within a limit, which is likely for one record's direction and is not for all the directions of a unit. With "
    "units train weights, class-sums, dpsgd or a head"
)
"""The reason for which units are refused, with what to train instead."""


@dataclass(frozen=True)
class PerturbationBound:
    """The cost of one perturbed minimisation. factor: K, by which mu exceeds sqrt(2) R / sigma.

    oscillation: o, how far apart two of the C components of the noise along one record are allowed to be.
    """

    loss: ApproximateGaussianLoss
    factor: float
    oscillation: float


def perturbation_bound(sigma: float, strong_convexity: float, norm_bound: float, classes: int) -> PerturbationBound:
    """Return the loss of releasing the exact W minimising sum_i CE(W phi_i, y_i) + (Lambda/2) ||W||^2 + <B, W>.

    sigma: B (C, D) has independent N(0, sigma^2) entries. strong_convexity: Lambda. norm_bound: R.

    Proof. D' is D and one record (x, y) more; r = ||phi(x)|| <= R. L is D's sum, H = Hessian of L + Lambda >= Lambda,
    h the record's Hessian, g = q phi^T its gradient, q = p - e_y, p = softmax(W phi). U(W) = -(grad L(W) + Lambda W)
    is a bijection that D defines, so releasing W is releasing u = U(W). Under D, u is B: its law is gamma = N(0,
    sigma^2 I). Under D', u = B' + g(W): its law nu has the density F with respect to gamma, with
        ln F(u) = (||u||^2 - ||u - g||^2) / (2 sigma^2) + ln det(I + H^-1 h).

    1. A Lipschitz log-density is Gaussian DP. If ln F is L-Lipschitz, the pair (gamma, nu) is mu-GDP, both ways round,
       with mu = sigma L. Let X be Brownian motion with X_1 ~ gamma under P. M_t = E[F(X_1) | X_t] is a function
       h(t, X_t), and grad h = E[grad F(X_1) | X_t] has norm at most L h, so that dM = M v dX with ||v|| <= L: M is
       the exponential of the martingale N = int v dX, whose clock <N> ends at T <= sigma^2 L^2 = mu^2. N is a
       Brownian motion run by that clock (Dambis; Dubins and Schwarz), M_1 = exp(b_T - T/2), T a stopping time. That is
       the likelihood ratio of b against b with unit drift, seen until T, and whoever sees them until mu^2 >= T sees
       N(0, mu^2) against N(mu^2, mu^2) and can forget the rest. A pair's trade-off is that of its likelihood ratio.
    2. The gradient. dW = -H^-1 du and dg = h dW, so grad ln F = (g - H^-1 h B') / sigma^2 + grad ln det(I + H^-1 h).
       Let V = 1 - sum p_j^2, A = diag(p) - p p^T, z = B' phi / r (C numbers), O >= max z - min z.
       a. ||g|| = r sqrt(2 - V - 2 p_y).
       b. ||H^-1 h B'|| <= (r^2 / Lambda) ||A z||, and ||A z|| <= sqrt(2) O min(V/2, 1/4): the norm is convex in z, so
          the worst z is O on a set S of classes and 0 elsewhere; with P = p(S), ||A z||^2 = O^2 ((1-P)^2 sum_S p_j^2 +
          P^2 sum_not-S p_j^2) <= 2 O^2 P^2 (1-P)^2, and V >= 1 - P^2 - (1-P)^2 = 2 P (1-P).
       c. Along dW every logit vector moves by xi with max xi - min xi <= w = sqrt(2) R ||dW|| <= sqrt(2) R ||du|| /
          Lambda, and a softmax Hessian X changes by at most w X either way (its derivative is a third cumulant:
          z^T dA z = E[(z_J - E z)^2 (xi_J - E xi)]). With N = H^-1 - (H+h)^-1 >= 0, d ln det(I + H^-1 h) =
          tr((H+h)^-1 dh) - tr(N dH), each at most w tr((H+h)^-1 h) in size, as tr(N H) = tr((H+h)^-1 h), and that
          is at most w r^2 V / Lambda. So sigma^2 times its gradient is at most 2 sqrt(2) R r^2 sigma^2 V / Lambda^2.
       With v = V/2, a = O R / Lambda and c = 4 sigma^2 R^2 / Lambda^2, all together
          sigma^2 ||grad ln F|| <= sqrt(2) R (sqrt(1 - v - p_y) + a min(v, 1/4) + c v) <= sqrt(2) R K,
       K from `growth_factor`. For two classes v = s (1-s) with s = 1 - p_y, and a. is sqrt(2) r s: s + (a + c) s (1-s).
    3. Where z is not bounded. E = {u: the C components of u phi / r are at most o apart} is convex; there z, which
       differs by r q, has O = o + 2 R. Let F~ be F on E and F at the nearest point of E elsewhere: ln F~ is
       Lipschitz as 2. says, everywhere. Z = int F~ dgamma. By 1., nu~ = F~ gamma / Z is mu-GDP against gamma.
       gamma(S) - e^eps nu(S) <= gamma(S and E) - e^eps Z nu~(S and E) + gamma(not E) <= delta_mu(eps) + (1-Z)+ +
       gamma(not E), and nu(S) - e^eps gamma(S) <= delta_mu(eps) + (Z-1)+ + nu(not E). Now gamma(not E) <= t(o) = C
       (C-1) Phi(-o / (sqrt(2) sigma)); nu(not E) <= t(o - 2R), since u phi / r is Gaussian plus r q; Z >= nu(E); and
       Z <= 1 + sup_E F gamma(not E), ln sup_E F <= R o / sigma^2 + R^2 / Lambda (<u, g> = r <u phi / r, q> <= R o
       and ln det(I + H^-1 h) <= tr h / Lambda). All in all both are at most delta_mu(eps) + eta with
          eta = t(o) + t(o - 2R) + exp(R o / sigma^2 + R^2 / Lambda) t(o).
       For eps >= 0, delta_mu(eps) <= 1 - 2 Phi(-mu/2), so delta_mu + eta <= delta + (1 - delta) delta_mu with delta =
       eta / (2 Phi(-mu/2)); for eps < 0 the bound for one order follows from that for the other.

    Raises ValueError for numbers that mean nothing, and for a mu above 2.83.
    """
    for name, value in (("sigma", sigma), ("Lambda", strong_convexity), ("R", norm_bound)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, not {value}")
    if classes < 2:
        raise ValueError(f"there are at least two classes, not {classes}")
    oscillation = oscillation_bound(sigma, strong_convexity, norm_bound, classes)
    spread = (oscillation + 2 * norm_bound) * norm_bound / strong_convexity * _UP
    curvature = 4 * (sigma * norm_bound / strong_convexity) ** 2 * _UP
    factor = growth_factor(spread, curvature, classes)
    mu = math.sqrt(2) * norm_bound / sigma * factor * _UP
    if mu > _LARGEST_MU:
        raise ValueError(
            f"perturbing this objective costs mu = {mu:.4g}, above the largest that is proved, {_LARGEST_MU}: take "
            "more noise or a larger Lambda"
        )
    return PerturbationBound(ApproximateGaussianLoss(mu, LARGEST_COIN), factor, oscillation)


def growth_factor(spread: float, curvature: float, classes: int) -> float:
    """Return K: the largest sqrt(1 - v) + a min(v, 1/4) + c v over 0 <= v <= 1/2, or what two classes have.

    Each part is concave in v: its largest value lies where the derivative vanishes, or at an end.
    """
    if classes == 2:
        both = spread + curvature
        return max(1.0, (1 + both) ** 2 / (4 * both)) * _UP if both > 1 else 1.0
    low = _largest(spread + curvature, 0.0, 0.25)
    high = spread / 4 + _largest(curvature, 0.25, 0.5)
    return max(low, high) * _UP


def _largest(slope: float, start: float, end: float) -> float:
    """Return the largest sqrt(1 - v) + slope v for v between start and end."""
    stationary = 1 - 1 / (4 * slope * slope) if slope > 0 else 0.0
    v = min(max(stationary, start), end)
    return max(math.sqrt(1 - at) + slope * at for at in (start, v, end))


def oscillation_bound(sigma: float, strong_convexity: float, norm_bound: float, classes: int) -> float:
    """Return the least o, to 1e-6 of sigma and rounded up, whose eta (3.) gives a coin of at most LARGEST_COIN."""
    allowed = LARGEST_COIN * _LEAST_OVERLAP / (1 + 2.0**-20)

    def eta(oscillation: float) -> float:
        def outside(at: float) -> float:
            return classes * (classes - 1) * math.erfc(at / (2 * sigma)) / 2

        largest = norm_bound * oscillation / sigma**2 + norm_bound**2 / strong_convexity
        if largest > 500:
            return math.inf
        return outside(oscillation) * (1 + math.exp(largest)) + outside(oscillation - 2 * norm_bound)

    low, high = 0.0, sigma
    while eta(high) > allowed:
        high *= 2
        if high > 2.0**20 * sigma:
            raise ValueError("there is too little noise for a bound: take more noise or a larger Lambda")
    while high - low > 1e-6 * sigma:
        middle = (low + high) / 2
        low, high = (low, middle) if eta(middle) <= allowed else (middle, high)
    return high
