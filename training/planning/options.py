"""The options that can be planned for, of every kind, and the public rule that chooses one."""

import math
from collections.abc import Mapping

from dpserve.training.features.rules import Modality
from dpserve.training.kinds.kind import Kind
from dpserve.training.kinds.planned import PlannedOption
from dpserve.training.kinds.registry import all_kinds, kind_named

DELTA = 1e-5


def planned_options() -> Mapping[str, PlannedOption]:
    """Return the options that can be recommended."""
    return {option.name: option for kind in all_kinds().values() for option in kind.planned}


def option_named(name: str) -> PlannedOption:
    """Return an option. Raises KeyError for a name that none has."""
    return planned_options()[name]


def default_option(modality: Modality | None, classes: int) -> str:
    """Return the name of the option that rows of a modality in so many classes get unless rows speak for another.

    It is DP-SGD, on tables with cuts at quantiles; and class sums for many classes of numbers as they are, from 20 on,
    or of presence, from 10 on. At epsilon 0.5 to 8 class sums were right on 0.03 to 0.19 more of Location and retail
    baskets, of 30 and 100 classes. At epsilon 1 and 4 their log loss on newsgroups, as which of 1,000 words are there,
    was .14 and .07 less; with 300 words .13 and .10, in 10 of the 20 classes .04 and .05 less, in two .06 more and the
    same; with 30 to 120 words .07 to .11 more at epsilon 1. On letter, a table of 26 classes, and on images and texts
    DP-SGD was better at each (`research/comparison`), as at epsilon 1 on 300 to 2,000 records of letter, penbased,
    optdigits, texture, segment and satimage, down to ten records times mu for each class.
    """
    options = planned_options().items()
    found = (name for name, option in options if classes >= option.many_classes.get(modality, math.inf))
    return next(found, None) or next(name for name, option in options if modality in option.default_for)


def kind_of_option(option: PlannedOption) -> Kind:
    """Return the kind that an option trains."""
    return kind_named(option.release)
