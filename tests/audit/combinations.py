"""Combinations of what a training can be asked for: cases that hold every pair of values of its options.

Kinds, their options and feature maps are those of the registries, so that a new one is in the cases by itself.
"""

from dataclasses import replace
from itertools import combinations, product

import numpy as np

from dpserve.audit.replay import neighbours_to_try
from dpserve.training.block_choice import Blocks
from dpserve.training.errors import WrongOption
from dpserve.training.feature_choice import Features
from dpserve.training.features.hog import LEAST_SIDE
from dpserve.training.fit import Request, check_abilities
from dpserve.training.kinds.kind import Kind
from dpserve.training.options import is_number, limits, words_of
from research.planted_faults import RECORDS, made_records

PRICE = 10**12
EXAMPLES = {
    "hidden": 4,
    "steps": 20,
    "learning_rate": 0.5,
    "sampling_rate": 0.5,
    "noise_multiplier": 200.0,
    "gradient_clip": 0.5,
    "lam": 2.0,
    "tolerance": 1e-6,
    "alpha": 0.01,
    "least_records": 2,
}
"""Values of options beside their default, where the least that is allowed is none that trains in a moment."""
NEIGHBOURS = tuple(range(10))
"""Places in `neighbours_to_try`: five records or units that are left out, and five that are added."""


def values_of(name, field):
    """Return the values of an option that are tried: all words, or its default and another number."""
    default = field.get_default()
    if words := words_of(field):
        return words
    if field.annotation is bool:
        return (default, not default)
    ends = limits(field)
    least = ends.get("at least", ends.get("at most"))
    return (default, EXAMPLES.get(name, least)) if is_number(field) else (default,)


def factors_of(kind: Kind, encoder):
    """Return what a training of a kind can be asked for, by name. encoder: a file."""
    needed = {"image_shape": (LEAST_SIDE, LEAST_SIDE), "encoder": encoder}
    maps = []
    for member in Features.members().values():
        given = {name: needed[name] for name, field in member.model_fields.items() if field.is_required()}
        few = {"random_features": 64} if "random_features" in member.model_fields else {}
        maps.append(member(**given, **few))
    own = {f"{kind.name} {name}": values_of(name, field) for name, field in kind.options.model_fields.items()}
    return {
        **own,  # first, for most of what does not go together is among them
        "features": maps,
        "sets": ("off", "all", "class"),
        "people": (0, 30),
        "blocks": ("", "one", "one,two"),
        "records": ("many", "one is alone", "all alike"),
        "n": (RECORDS, 2000),
        "neighbour": NEIGHBOURS,
    }


def requested(kind: Kind, case) -> Request:
    """Return the request of a case, of which values may be missing. Raises WrongOption where nothing is so trained."""
    own = {name: case[f"{kind.name} {name}"] for name in kind.options.model_fields if f"{kind.name} {name}" in case}
    whole = len(own) == len(kind.options.model_fields)
    blocks = {
        "": {},
        "one": {"block_name": "one"},
        "one,two": {"block": "month", "blocks": "one,two"},
    }[case.get("blocks", "")]
    request = Request(
        name="audited",
        lineage="audited",
        kind=kind.options(**own if whole else {}),
        **({"price": PRICE, "n": case.get("n", RECORDS)} if kind.answers == "once" else {}),
        features=case.get("features", Features.members()["auto"]()),
        prediction_sets=case.get("sets", "off"),
        blocks=Blocks(**blocks),
        block_budget="epsilon:3@1e-6" if blocks else "",
    )
    check_abilities(request, unit="person" if case.get("people") else None)
    return request


def is_possible(kind, case):
    """Return whether a training can be asked for with these values."""
    try:
        requested(kind, case)
    except WrongOption:
        return False
    return True


def records_of(case):
    """Return the records of a case; of two blocks the last has one record, or one unit."""
    images = "image_shape" in type(case["features"]).model_fields and case["features"].image_shape
    made = made_records(people=case["people"], features=LEAST_SIDE**2 if images else 4)
    if case["records"] == "one is alone":
        made = replace(made, y=np.where(np.arange(len(made)) == 7, 1, 0))
    if case["records"] == "all alike":
        made = replace(made, X=np.tile(made.X[:1], (len(made), 1)))
    if names := tuple(filter(None, case["blocks"].split(","))):
        declaration = replace(made.declaration, blocks=names, block_budget="epsilon:3@1e-6")
        of = np.arange(len(made)) if made.units is None else made.units.of
        places = np.where(of == of.max(), 1, 0) if len(names) > 1 else None
        made = replace(made, declaration=declaration, block_places=places)
    return made


def neighbours_of(case):
    """Return the neighbours of a case."""
    return neighbours_to_try(records_of(case), len(NEIGHBOURS))[case["neighbour"]]


def covering(factors, is_possible, strength, seen=None):
    """Yield cases, a value for each factor by name, that together hold every possible combination of `strength` values.

    is_possible: of a case, or of some values of one. seen: combinations that others hold; those of these are added.
    """
    seen = set() if seen is None else seen

    def held(case):
        return {frozenset(each) for each in combinations(case.items(), strength)}

    def completed(case, number):
        """Return a whole case with these values, which holds many combinations that no other does; None for none."""
        if len(case) == len(factors):
            return case
        name = next(name for name in factors if name not in case)
        values = factors[name]
        trials = [case | {name: values[(number + place) % len(values)]} for place in range(len(values))]
        for trial in sorted(trials, key=lambda trial: -len(held(trial) - seen)):
            if is_possible(trial) and (whole := completed(trial, number)):
                return whole
        return None

    number = 0
    for names in combinations(factors, strength):
        for values in product(*(factors[name] for name in names)):
            wanted = dict(zip(names, values, strict=True))
            if not held(wanted) <= seen and (case := completed(wanted, number)):
                seen |= held(case)
                number += 1
                yield {name: case[name] for name in factors}
