"""Parameters of `PrivateClassifier` as scikit-learn sets and copies them, and the values that they stand for.

Some are values with parameters of their own, which searches set, too: `kind__hidden`, `schema__clip`.
"""

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

from sklearn.base import BaseEstimator, clone

from dpserve.accounting.messages import Message, spelled
from dpserve.commands.tables import check_public
from dpserve.described_rows import public_records
from dpserve.lineages import Lineage
from dpserve.owner_warnings import warn_of_privacy
from dpserve.payments import errors_in_python
from dpserve.prices import Price, large_delta
from dpserve.training.block_choice import Blocks
from dpserve.training.errors import ErrorList, WrongOption, WrongValue
from dpserve.training.feature_choice import Features
from dpserve.training.fit import NEEDED_LINEAGE, UNNAMED, Request, check_abilities, check_needs
from dpserve.training.inputs.described import Schema
from dpserve.training.inputs.records import Records
from dpserve.training.inputs.schema import facts_of
from dpserve.training.kinds.registry import kind_named, trainable_kinds
from dpserve.training.options import Options
from dpserve.training.planning.planner import Planner
from dpserve.wording import as_parameter

AUTO = "auto"
WEIGHTS = dict.fromkeys(
    ("sample_weight", "class_weight"),
    ": a record counts once. The price is what one record may change, and a weight would multiply that",
)
"""Arguments that classifiers of scikit-learn take and this one does not, with why."""


class Parameters(BaseEstimator):  # type: ignore[misc]
    """The parameters of an estimator, whose constructor keeps them as they were given."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name.

        Parameters
        ----------
        deep : bool, default True
            Whether to return those of the values among them, too, as kind__hidden.
        """
        parameters: dict[str, Any] = super().get_params(deep=False)
        if deep:
            for name, value in list(parameters.items()):
                if isinstance(value, Options):
                    parameters |= {f"{name}__{field}": getattr(value, field) for field in type(value).model_fields}
        return parameters

    def set_params(self, **params: Any) -> Self:
        """Set parameters, and those of the values among them, which are replaced; return the estimator.

        Parameters
        ----------
        **params : object
            Parameters by name; kind__hidden is one of the kind.
        """
        nested: dict[str, dict[str, Any]] = {}
        for key, value in params.items():
            name, _, field = key.partition("__")
            if name not in self.get_params(deep=False):
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}{self._suggestion(name)}")
            if field:
                nested.setdefault(name, {})[field] = value
            else:
                setattr(self, name, value)
        for name, fields in nested.items():
            value = getattr(self, name)
            if not isinstance(value, Options):
                raise ValueError(f"{name}={value!r} has no parameters of its own: give it as an object")  # noqa: TRY004
            with errors_in_python():
                setattr(self, name, value.replaced(**fields))
        return self

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy that knows to be one: see `again`."""
        copy = type(self)(**{name: clone(value, safe=False) for name, value in self.get_params(deep=False).items()})
        copy._is_clone = True
        return copy

    @classmethod
    def _suggestion(cls, name: str) -> str:
        """Return what was probably meant by an unknown parameter, or where it is now."""
        if name in WEIGHTS:
            return WEIGHTS[name]
        owners: list[tuple[str, type[Options]]] = [("schema", Schema), ("lineage", Lineage), ("features", Features)]
        owners += [("kind", kind.options) for kind in trainable_kinds().values()]
        if name in Blocks.model_fields:
            return f": it is one of lineage=Lineage(blocks=Blocks({name}=...))"
        for parameter, options in owners:
            if name in options.flags():
                return f": it is one of {parameter}={options.flags()[name][1].__name__}({name}=...)"
        parameters = inspect.signature(cls).parameters
        close = get_close_matches(name, parameters, 1)
        return f": did you mean {close[0]!r}?" if close else f": there are {', '.join(parameters)}"

    @property
    def _described(self) -> Schema:
        """The schema as a value. Raises WrongOption."""
        if isinstance(self.schema, Schema):
            return self.schema
        if isinstance(self.schema, str | Path | Mapping):
            return Schema(columns=self.schema)
        if self.schema is None:
            return Schema()  # a loaded model has what was declared, and `fit` says what is not
        raise WrongValue("schema", "must be a Schema, or a file's path", value=self.schema)

    @property
    def _lineage(self) -> Lineage:
        """The lineage as a value. Raises WrongOption."""
        given = self.lineage if self.lineage is not None else facts_of(self._described.columns).lineage
        if given is None:
            remedy = f"Lineage(NAME, epsilon=E, delta=D), {NEEDED_LINEAGE}"
            raise WrongOption("lineage", "is needed", remedy=remedy)
        return lineage_of(given)

    def _request(self) -> Request:
        """Return the parameters as a request that goes together. Raises TrainingError for all that is missing."""
        wrong, wrong_price, kind = ErrorList(), ErrorList(), kind_of_parameter(self.kind)
        lineage = wrong.attempt(lambda: self._lineage) or Lineage(UNNAMED)
        if self.public is not None:
            if not isinstance(kind, Planner):
                raise WrongOption("public", Message("goes with {kind:auto}, where the planner chooses"))
            kind = Planner(public=self._public_rows)
        request = Request(
            name=self.name,
            lineage=lineage.name,
            kind=kind,
            price=wrong_price.attempt(lambda: Price(epsilon=self.epsilon, delta=self.delta).whole),
            n=self.n if self.n is not None else facts_of(self._described.columns).n,
            features=features_of(self.features),
            prediction_sets=self.prediction_sets,
            blocks=lineage.blocks,
            block_budget=lineage.budget_text,
            overlapping_lineage_is_accepted=lineage.overlapping_lineage_is_accepted,
        )
        wrong.attempt(lambda: check_needs(request, wrong_price.errors))
        wrong.check()
        check_abilities(request, unit=self._described.unit)
        if (warning := large_delta(self.delta, request.n)) is not None:
            warn_of_privacy(spelled(warning, as_parameter))
        return request

    def _public_rows(self) -> Records:
        """Return the public rows to simulate on, by the schema. Raises TrainingError."""
        rows = public_records(self._described, self.public)
        check_public(rows, "public=")
        return rows


def lineage_of(given: Lineage | str) -> Lineage:
    """Return a lineage that may be given by its name."""
    return given if isinstance(given, Lineage) else Lineage(given)


def features_of(given: Features | str) -> Features:
    """Return features that may be given by their name. Raises WrongOption."""
    return given if isinstance(given, Features) else Features.of_words({"features": given})


def kind_of_parameter(given: Options | str) -> Options:
    """Return the options of a kind that is asked for, or the planner. Raises WrongOption."""
    if isinstance(given, Options):
        return given
    if given == AUTO:
        return Planner()
    if isinstance(given, type) and issubclass(given, Options):
        raise WrongOption("kind", f"takes a value, and {given.__name__} is a class: give {given.__name__}()")
    names = (AUTO, *trainable_kinds())
    if given not in names:
        raise WrongValue("kind", f"must be one of {', '.join(names)}, or the options of one", value=given)
    return kind_named(given).options()


def takes_missing(described: Schema) -> bool:
    """Tell whether a schema declares what becomes of missing values."""
    columns = described.columns
    return (
        described.missing is not None
        or not isinstance(columns, Mapping | None)
        or "fields" in (columns or {})
        or any(getattr(column, "missing", None) is not None for column in (columns or {}).values())
    )


def check_no_weights(arguments: Mapping[str, Any]) -> None:
    """Refuse what `fit` does not take: weights with why, unless they are None."""
    for name, value in arguments.items():
        if name not in WEIGHTS:
            raise TypeError(f"fit() got an unexpected keyword argument {name!r}")
        if value is not None:
            raise ValueError(f"there is no {name}{WEIGHTS[name]}")
