"""Plans in Python: what a budget buys, before any record is read, as `dpserve plan` says it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpserve.accounting.disclosure import Declared, Disclosed
from dpserve.commands.console import shares
from dpserve.commands.tables import check_public
from dpserve.described_rows import bounds_of, public_records
from dpserve.labels import schema_with_label
from dpserve.mechanisms.gaussian_vector import picorho_for
from dpserve.training.errors import WrongOption
from dpserve.training.feature_choice import Features, features_of_rule, shape_of
from dpserve.training.inputs.declared import parse_bounds
from dpserve.training.inputs.described import Schema
from dpserve.training.inputs.records import Declaration
from dpserve.training.inputs.schema import TableSchema, declaration_of, facts_of
from dpserve.training.kinds.cases import Estimate
from dpserve.training.options import Options, option
from dpserve.training.planning.recommendation import recommend


@dataclass(frozen=True)
class Plan(Disclosed):
    """A recommendation: `PrivateClassifier(schema, kind=plan.kind, features=plan.features, ...)` follows it.

    reason, warnings: sentences for the owner. estimates: of a simulation on public rows, what each option reached.
    """

    kind: Declared[Options]
    features: Declared[Features]
    reason: Declared[str]
    warnings: Declared[tuple[str, ...]]
    estimates: Declared[tuple[Estimate, ...]] = ()


class _Asked(Options):
    """The numbers of a plan."""

    n: int = option(..., "About how many records there are.", ge=1)
    epsilon: float = option(..., "What all answers together may cost.", gt=0)
    delta: float = option(..., "Its delta.", gt=0, lt=1)
    queries: int | None = option(None, "How many answers the plan is for.", ge=1)


def plan(
    schema: Schema | str | Path,
    *,
    n: int | None = None,
    epsilon: float,
    delta: float,
    queries: int | None = None,
    public: Any = None,
    image_shape: tuple[int, ...] | None = None,
) -> Plan:
    """Return what a budget buys: the kind of model and its features, by public numbers or on public rows.

    Parameters
    ----------
    schema : Schema, str or Path
        The records, as `PrivateClassifier` takes them: columns and classes, or bounds by column and classes; or a file.
    n : int, optional
        About how many records there are, or privacy units, as a number that may be public. Needed, if no file has it.
    epsilon : float
        What all answers together may cost, at `delta`.
    delta : float
        The delta of `epsilon`, above 0 and below 1.
    queries : int, optional
        How many answers the plan is for; no end by default.
    public : data frame, optional
        Public rows like the records, with their classes, to simulate on.
    image_shape : sequence of int, optional
        The height, the width and perhaps the channels of rows that are images.

    Raises ValueError for a budget that buys no release, and for numbers that do not go together.
    """
    if isinstance(schema, str | Path):
        schema = Schema(columns=schema)
    if not isinstance(schema, Schema):
        raise WrongOption("schema", f"must be a Schema or a file, not {type(schema).__name__}")
    stated = facts_of(schema.columns).n if n is None else n
    numbers = {"epsilon": epsilon, "delta": delta, "queries": queries} | ({} if stated is None else {"n": stated})
    asked = _Asked(**numbers)
    n, queries, whole = asked.n, asked.queries, picorho_for(asked.epsilon, asked.delta)
    rows = None if public is None else public_records(schema, public)
    if rows is not None:
        check_public(rows, "public=")
    declared = _declaration(schema) if rows is None else rows.declaration
    classes = len(schema.classes if declared is None else declared.classes)
    shape = None if image_shape is None else shape_of(image_shape, None if declared is None else declared.features)
    with shares("simulating") as progress:
        found = recommend(
            classes,
            declared,
            rows,
            n=n,
            whole=whole,
            queries=queries,
            image_shape=shape,
            progress=progress,
            delta=asked.delta,
        )
    kind, _ = found.training_options(n, whole, queries)
    features = features_of_rule(found.chosen.features, declared, image_shape)
    return Plan(kind, features, found.reason, found.warnings, found.estimates)


def _declaration(schema: Schema) -> Declaration | None:
    """Return what a schema declares of records; None where its bounds are for columns of any number.

    Raises WrongOption where it declares too little.
    """
    table: TableSchema | None = schema.table
    if table is not None:
        label = schema.label
        if schema.classes is not None:
            table = schema_with_label(table, label, schema.classes, None)
        return declaration_of(table, label)
    if schema.bounds is None or schema.classes is None:
        raise WrongOption("schema", "needs columns and classes, or bounds and classes, to plan for")
    if not isinstance(schema.bounds, Mapping):
        return None
    names = tuple(map(str, schema.bounds))
    lower, upper = parse_bounds(bounds_of(schema.bounds), names)
    named = schema.classes.values() if isinstance(schema.classes, Mapping) else schema.classes
    return Declaration(names, lower, upper, tuple(map(str, named)))
