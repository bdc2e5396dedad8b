"""The published network's shape and training choices, and its sensitivity bounds, with the paper's equation numbers.

The bounds reproduce what the paper *claims*. They are no worst-case bounds for the networks they are applied to:

- Theorem 4 is proved for the minimiser of a mean of convex losses plus a strongly convex regulariser. The paper
  trains a log-mean-exp (Eq. 22), in which one record can weigh far more than 1/n, of a network, whose loss is not
  convex in its weights, by 100 epochs of Adam, which do not end at a minimiser.
- Equation 18 spreads an L2 bound evenly over the weights; a single weight can move by the whole of it.
- Corollary 1 keeps the hidden layer fixed while the records change.
- Proposition 1 divides by the width of the last hidden layer, after Lemma 5; the gradient of the cross-entropy at the
  output layer, (p - e_y) a^T, has norm up to sqrt(2) ||a||, without that division.

So every value computed here is labelled unproven wherever it is used. Nothing here reads records.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from dpserve.training.exact.network import Activation


@dataclass(frozen=True)
class Topology:
    """A fully connected network as the bounds see it: m inputs, hidden layers, C outputs; biases are not counted.

    The printed figures come out without biases, both in the layers' widths |V_t| and in the weights' number |W|.
    """

    features: int
    hidden: tuple[int, ...]
    classes: int

    def __post_init__(self) -> None:
        """Refuse what is no such network."""
        if self.features < 1 or not self.hidden or min(self.hidden) < 1 or self.classes < 2:
            raise ValueError(
                "a topology needs at least one feature, one hidden layer, one neuron in each and two classes, "
                f"not {self.features} - {self.hidden} - {self.classes}"
            )

    @property
    def widths(self) -> tuple[int, ...]:
        """|V_0|, ..., |V_T|."""
        return (self.features, *self.hidden, self.classes)

    @property
    def weights(self) -> int:
        """|W|: how many edges the network has."""
        return sum(width * following for width, following in pairwise(self.widths))


@dataclass(frozen=True)
class ClaimedSensitivities:
    """A row of Table VI with Table V's last column: what the published bounds say about one data set.

    lipschitz: rho. weights_l2: Delta_2 W. weight: Delta omega. neuron: Delta z_T. probability: Delta p.
    oaro: the bound on on-average-remove-one stability.
    """

    lipschitz: float
    weights_l2: float
    weight: float
    neuron: float
    probability: float
    oaro: float


def strong_convexity(l2_regulariser: float) -> float:
    """The lambda that the paper's figures use for its regularisation constant: half of it.

    Keras' convention behind the constant 0.001 is a penalty 0.001 ||W||^2 (no half), added to the loss. Equation 23
    prints the regulariser as 2 lambda ||W||^2, which makes lambda = 0.0005, and Table V's stability column and
    Table VI come out to the printed digits under it. The regulariser of Lemma 1's source is lambda/2 ||W||^2;
    under that reading the penalty is 2 * 0.001 = 0.002-strongly convex, and every figure would be a quarter.
    """
    _positive("the L2 regulariser", l2_regulariser)
    return l2_regulariser / 2


def lipschitz(topology: Topology, largest_values: tuple[float, ...] | None = None) -> float:
    """Proposition 1 (Eq. 21): rho <= (C - 1) prod_{t < T} sqrt(|V_t|) x_t / (C |V_{T-1}|).

    largest_values: x_0, ..., x_{T-1}, the largest absolute value of a neuron in each layer; 1 each if left out,
    which is right for inputs scaled to [0, 1] and tanh or sigmoid layers, and gives the printed figures.
    """
    before_output = topology.widths[:-1]
    values = largest_values if largest_values is not None else (1.0,) * len(before_output)
    if len(values) != len(before_output):
        raise ValueError(f"{len(before_output)} layers feed the output, but {len(values)} largest values are given")
    for value in values:
        _positive("a layer's largest value", value)
    product = math.prod(math.sqrt(width) * value for width, value in zip(before_output, values, strict=True))
    return (topology.classes - 1) * product / (topology.classes * before_output[-1])


def weights_l2(rho: float, lam: float, n: int) -> float:
    """Theorem 4 (Eq. 15): Delta_2 W <= 2 rho / (lambda n)."""
    _check(rho, lam, n)
    return 2 * rho / (lam * n)


def oaro_stability(rho: float, lam: float, n: int) -> float:
    """Theorem 4 (Eq. 17, 30): the loss of a removed record rises by at most 2 rho^2 / (lambda n) on average."""
    _check(rho, lam, n)
    return 2 * rho**2 / (lam * n)


def weight(rho: float, lam: float, n: int, weights: int) -> float:
    """Equation 18: Delta omega <= 2 rho / (lambda n sqrt(|W|))."""
    if weights < 1:
        raise ValueError(f"a network has at least one weight, not {weights}")
    return weights_l2(rho, lam, n) / math.sqrt(weights)


def neuron(weight_sensitivity: float, last_hidden_width: int, activation_bound: float = 1.0) -> float:
    """Corollary 1 (Eq. 19): Delta z_T <= a_u |V_{T-1}| Delta omega. a_u is 1 for tanh and sigmoid."""
    _positive("the sensitivity of a weight", weight_sensitivity)
    _positive("the bound of the activation", activation_bound)
    return activation_bound * last_hidden_width * weight_sensitivity


def probability(neuron_sensitivity: float) -> float:
    """Corollary 2 (Eq. 20): Delta p <= min(exp(2 Delta z_T) - 1, 1)."""
    _positive("the sensitivity of a neuron", neuron_sensitivity)
    return min(untruncated_probability(neuron_sensitivity), 1.0)


def untruncated_probability(neuron_sensitivity: float) -> float:
    """exp(2 Delta z_T) - 1, which Table VI prints in brackets; infinity where no float holds it."""
    try:
        return math.expm1(2 * neuron_sensitivity)
    except OverflowError:
        return math.inf


def claimed_sensitivities(
    topology: Topology,
    n: int,
    *,
    l2_regulariser: float = 0.001,
    activation_bound: float = 1.0,
    largest_values: tuple[float, ...] | None = None,
) -> ClaimedSensitivities:
    """Every published bound for a network trained on n records, in the paper's order of deduction."""
    lam = strong_convexity(l2_regulariser)
    rho = lipschitz(topology, largest_values)
    each_weight = weight(rho, lam, n, topology.weights)
    each_neuron = neuron(each_weight, topology.hidden[-1], activation_bound)
    return ClaimedSensitivities(
        lipschitz=rho,
        weights_l2=weights_l2(rho, lam, n),
        weight=each_weight,
        neuron=each_neuron,
        probability=probability(each_neuron),
        oaro=oaro_stability(rho, lam, n),
    )


def _check(rho: float, lam: float, n: int) -> None:
    _positive("rho", rho)
    _positive("lambda", lam)
    if n < 1:
        raise ValueError(f"a training set has at least one record, not {n}")


def _positive(what: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{what} must be positive and finite, not {value}")


Objective = Literal["cross-entropy", "per-record", "per-record-and-class"]
"""The training losses: the original, and the two readings of the convexified one
(`dpserve.training.kinds.published.train`)."""

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


@dataclass(frozen=True)
class PublishedRecipe:
    """The training configuration of a stack's models: Table IV's, without alpha, which each model has itself."""

    topology: Topology
    objective: Objective
    epochs: int = 100
    batch_size: int = 100
    learning_rate: float = 0.001
    l2_regulariser: float = 0.001
    activation: Activation = "tanh"

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(f"epochs and batch size are at least 1, not {self.epochs} and {self.batch_size}")
        if not (self.learning_rate > 0 and self.l2_regulariser >= 0):
            raise ValueError("the learning rate must be positive and the L2 regulariser must not be negative")
