"""The public rules that stand for `auto` where prediction sets are made."""

from dpserve.training.pay_once.prediction_sets import LEAST_RECORDS, By, usual_one_in

_LEAST_OF_CLASS = 5_000
"""Declared records of a class, on average: with fewer, a tenth of them was worth more than a seed's spread."""

_ENOUGH = 300
"""Records held back, times mu: see `sets_by_rule`."""


def sets_by_rule(records: int | None, classes: int, mu: float | None) -> By | None:
    """Return how `auto` makes prediction sets; None for none. records: declared. mu: of the price of the model.

    From 20,000 records on, and 5,000 of a class, holding back cost no more than what accuracy varies by from split to
    split: so on Adult, magic and MNIST-60k, by which the numbers were chosen, and on credit-card defaults, diamonds and
    flights, which were looked at afterwards. With 540 to 1,000 of a class it cost more, on letter and MNIST-10k
    (`python -m research.prediction_sets`). The margin for noise is 6/mu records for a coverage of 0.9. Where that is at
    most a fiftieth of those held back, sets are little larger for it: by class, where those of a class are so many.
    """
    if records is None or mu is None or records < max(LEAST_RECORDS, _LEAST_OF_CLASS * classes):
        return None
    held = records / usual_one_in(records)
    if held * mu < _ENOUGH:
        return None
    return "class" if held / classes * mu >= _ENOUGH else "all"
