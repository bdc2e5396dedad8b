"""The one registry of mechanisms of the request path: by name, and the way from an owner's price of one row to one.

A package of someone else's adds one by the entry point group `dpserve.mechanisms`, whose entries are subclasses of
`Mechanism`:

    [project.entry-points."dpserve.mechanisms"]
    geometric = "their_package.geometric:Geometric"
"""

import functools
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from dpserve.accounting.extensions import extensions

if TYPE_CHECKING:
    from dpserve.accounting.losses import Cost
    from dpserve.mechanisms.mechanism import Law, Mechanism, Price

ENTRY_POINTS = "dpserve.mechanisms"
"""The entry points that bring other people's mechanisms."""

DEFAULT = "gaussian"
"""The mechanism that is served where none is asked for."""

_HOMES = (
    "gaussian.Gaussian",
    "laplace.Laplace",
    "selected_neuron.SelectedNeuron",
    "label.Label",
    "published.Published",
)


@functools.cache
def all_mechanisms() -> "Mapping[str, type[Mechanism]]":
    """Return every mechanism by its name. A package's own that cannot be loaded, or has another's name, is left out.

    Python warns of it.
    """
    from dpserve.mechanisms.mechanism import Mechanism

    found: dict[str, type[Mechanism]] = {}
    for home in _HOMES:
        module, _, name = home.partition(".")
        mechanism: type[Mechanism] = getattr(import_module(f"dpserve.mechanisms.{module}"), name)
        found[mechanism.name] = mechanism
    for mechanism in extensions(ENTRY_POINTS, lambda loaded: _check(loaded, found)):
        found[mechanism.name] = mechanism
    return MappingProxyType(found)


def _check(loaded: object, others: "Mapping[str, type[Mechanism]]") -> "type[Mechanism]":
    """Return what an entry point brought. Raises for anything that is no mechanism with a name of its own."""
    from dpserve.mechanisms.mechanism import Mechanism

    if not (isinstance(loaded, type) and issubclass(loaded, Mechanism)):
        raise TypeError(f"it is no subclass of Mechanism, but {loaded!r}")
    if loaded.name in others:
        raise ValueError(f"there is a mechanism {loaded.name!r} already")
    lacks = [name for name in ("status", "prices") if not hasattr(loaded, name)]
    lacks += [
        name
        for name in ("at_price", "from_losses")
        if getattr(loaded, name).__func__ is getattr(Mechanism, name).__func__
    ]
    lacks += sorted(loaded.__abstractmethods__)
    if lacks:
        raise TypeError(f"it lacks {', '.join(lacks)}")
    # Its text is a part of the context of its noise: with a parameter left out one draw would be scaled in two ways.
    if not is_dataclass(loaded) or not loaded.__dataclass_params__.frozen:
        raise TypeError("it is no frozen dataclass")
    if hidden := [field.name for field in fields(loaded) if not field.repr]:
        raise TypeError(f"its text leaves {', '.join(hidden)} out")
    return loaded


def names() -> tuple[str, ...]:
    """Return the names that `priced` knows."""
    return tuple(all_mechanisms())


def mechanism_named(name: str) -> "type[Mechanism]":
    """Return a mechanism. Raises ValueError for an unknown name."""
    if name not in all_mechanisms():
        raise ValueError(f"there is no mechanism {name!r}; there are {', '.join(names())}")
    return all_mechanisms()[name]


def default_price(name: str, *, pure: bool = False) -> str:
    """Return the price of a row where the owner states none: rho = 0.00125, with any mechanism of this package.

    pure: for an account that counts pure epsilon: 0.05, so that a budget of 1 pays for 20 answers. Noise without such a
    price keeps its own, which the account then refuses. Raises ValueError for an unknown name.
    """
    prices = mechanism_named(name).prices
    return prices.pure_default or prices.default if pure else prices.default


def at_price(name: str, price: "str | Price", classes: int, selection: "Law | None" = None) -> "Mechanism":
    """Return what `Mechanism.at_price` does, or `SelectingMechanism.at_price`.

    Raises ValueError for an unknown name, too, a number of classes, and a selection where no class is selected.
    """
    from dpserve.mechanisms.grid import LARGEST_CLASSES
    from dpserve.mechanisms.mechanism import Price, SelectingMechanism

    mechanism = mechanism_named(name)
    if not 2 <= classes <= LARGEST_CLASSES:
        raise ValueError(f"there must be between 2 and {LARGEST_CLASSES} classes, not {classes}")
    if isinstance(price, str):
        price = Price.parse(price)
    try:
        if issubclass(mechanism, SelectingMechanism):
            return mechanism.at_price(price, classes, selection)
        if selection is not None:
            raise ValueError(f"it selects no class, by {selection} or otherwise")
        return mechanism.at_price(price, classes)
    except ValueError as error:
        raise _price_error(name, price, classes, error) from error


def priced(name: str, price: "str | Price", classes: int, selection: "Law | None" = None) -> "Mechanism":
    """Return what `at_price` does, with its noise tables built, so that no first release waits for them.

    Raises ValueError as `at_price` does, and where a table does not fit the number of classes.
    """
    mechanism = at_price(name, price, classes, selection)
    try:
        mechanism.prepare(classes)
    except ValueError as error:
        raise _price_error(name, price, classes, error) from error
    return mechanism


def mechanism_with(name: str, cost: "Cost", classes: int) -> "Mechanism":
    """Return the mechanism that a service says it answers with, from its name and its losses.

    Raises ValueError for a mechanism that is not known here.
    """
    mechanism = all_mechanisms()[name].from_losses(cost.losses, classes) if name in all_mechanisms() else None
    if mechanism is None:
        raise ValueError(f"no mechanism {name!r} with the losses {cost} is known here")
    return mechanism


def _price_error(name: str, price: "str | Price", classes: int, error: ValueError) -> ValueError:
    return ValueError(f"{name} with {classes} classes cannot be priced at {price}: {error}")
