"""The options that can be planned for, of every kind, and the public rule that chooses one."""

from collections.abc import Mapping

from dpserve.training.features.rules import Modality
from dpserve.training.kinds.kind import Kind
from dpserve.training.kinds.planned import PlannedOption
from dpserve.training.kinds.registry import all_kinds, kind_named

DELTA = 1e-5

MANY_CLASSES = 20
"""Least number of classes at which each has few records."""


def planned_options() -> Mapping[str, PlannedOption]:
    """Return the options that can be recommended."""
    return {option.name: option for kind in all_kinds().values() for option in kind.planned}


def option_named(name: str) -> PlannedOption:
    """Return an option. Raises KeyError for a name that none has."""
    return planned_options()[name]


def default_option(modality: Modality | None, classes: int) -> str:
    """Return the name of the option that rows of a modality in so many classes get unless rows speak for another.

    It is DP-SGD, on tables with cuts at quantiles; and class sums for many classes of numbers as they are. At epsilon
    0.5 to 8 class sums were right on 0.03 to 0.19 more of Location and retail baskets, of 30 and 100 classes. On
    letter, a table of 26 classes, and on images and texts DP-SGD was better at each (`research/comparison`).
    """
    many = classes >= MANY_CLASSES
    options = planned_options().items()
    found = (name for name, option in options if many and modality in option.default_for_many_classes)
    return next(found, None) or next(name for name, option in options if modality in option.default_for)


def kind_of_option(option: PlannedOption) -> Kind:
    """Return the kind that an option trains."""
    return kind_named(option.release)
