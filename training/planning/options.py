"""The options that can be planned for, of every kind."""

from collections.abc import Mapping

from training.features.rules import Modality
from training.kinds.kind import Kind
from training.kinds.planned import PlannedOption
from training.kinds.registry import all_kinds, default_kind, kind_named

DELTA = 1e-5


def planned_options() -> Mapping[str, PlannedOption]:
    """Return the options that can be recommended."""
    return {option.name: option for kind in all_kinds().values() for option in kind.planned}


def option_named(name: str) -> PlannedOption:
    """Return an option. Raises KeyError for a name that none has."""
    return planned_options()[name]


def default_option(modality: Modality | None) -> str:
    """Return the name of the option that rows of a modality get unless measurements speak for another."""
    return next(name for name, option in planned_options().items() if modality in option.default_for)


def kind_of_option(option: PlannedOption) -> Kind:
    """Return the kind that an option trains."""
    return default_kind() if option.release is None else kind_named(option.release)
