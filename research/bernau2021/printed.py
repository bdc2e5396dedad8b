"""Table 2 of Bernau et al. 2021, at a posterior belief of 0.9 (epsilon 2.2), 1,000 repetitions."""

from dataclasses import dataclass

from research.bernau2021.games import Neighbours, Sensitivity

BELIEF, EPSILON = 0.9, 2.2


@dataclass(frozen=True)
class Printed:
    """delta and rho_alpha of a data set, and (advantage, delta') of each kind of game."""

    delta: float
    advantage_bound: float
    games: dict[tuple[Sensitivity, Neighbours], tuple[float, float]]


TABLE_2: dict[str, Printed] = {
    "mnist": Printed(
        0.01,
        0.28,
        {
            ("local", "bounded"): (0.24, 0.002),
            ("local", "unbounded"): (0.23, 0.002),
            ("global", "bounded"): (0.18, 0.0),
            ("global", "unbounded"): (0.27, 0.004),
        },
    ),
    "purchase-100": Printed(
        0.001,
        0.23,
        {
            ("local", "bounded"): (0.25, 0.0),
            ("local", "unbounded"): (0.23, 0.0),
            ("global", "bounded"): (0.10, 0.0),
            ("global", "unbounded"): (0.24, 0.001),
        },
    ),
    "adult": Printed(
        0.001,
        0.23,
        {
            ("local", "bounded"): (0.17, 0.0),
            ("local", "unbounded"): (0.22, 0.0),
            ("global", "bounded"): (0.13, 0.0),
            ("global", "unbounded"): (0.18, 0.0),
        },
    ),
}
