"""Training in Python: what `dpserve train` does, as a scikit-learn classifier, through the same function.

from dpserve import Lineage, Number, PrivateClassifier, Schema

model = PrivateClassifier(
    Schema(label="outcome", classes=["ill", "well"], columns={"age": Number(0, 120), "pressure": Number(50, 250)}),
    epsilon=1, delta=1e-6, lineage=Lineage("patients", epsilon=3, delta=1e-6), n=20_000,
).fit(table)
model.predict_proba(rows)
model.save("bundle")

Promises: nothing that is declared (bounds, levels, classes, the number of records) is read off the records. A model
that is private itself is paid for when it is fitted, in the ledger that the service charges: its lineage's account is
charged durably before anything of it can be seen, and a fit that the account does not pay for leaves nothing. Saving,
loading and serving such a model then cost nothing more.

Each fit is a release with noise of its own. The same fit again, of the same records with the same options, is the model
that was paid for (`dpserve.kept_fits`). Another fit of such records, and one of a clone, as a grid search or
cross-validation makes them without a word, needs `again=True`. Even then the
lineage's account holds, and choosing among fits by their scores on private records is covered by no budget. What can
be seen of that, and of steps of a pipeline that are fitted on the records before, is said by `PrivacyWarning`.
"""

import asyncio
import inspect
import warnings
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self, SupportsFloat, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.metrics import accuracy_score
from sklearn.pipeline import Pipeline
from sklearn.utils import assert_all_finite, check_array, check_consistent_length, column_or_1d, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from dpserve.accounting import ledger as accounts
from dpserve.accounting.arrays import Floats
from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger.purchases import buy, check_purchases, picorho_charged
from dpserve.accounting.losses import Cost
from dpserve.accounting.messages import Message, spelled
from dpserve.accounting.picorho import to_rho
from dpserve.client import BudgetExhausted
from dpserve.commands.console import Terminal, counting, shares
from dpserve.commands.options import (
    journals_folder,
    open_ledger,
    operating_systems_user,
    refuse_forgotten,
    state_folder,
)
from dpserve.commands.tables import check_public
from dpserve.described_rows import public_records, read_described, rows_form
from dpserve.frames import check_rows, names_of, rows_for, without
from dpserve.kept_fits import KeptFits
from dpserve.labels import classes_of, label_beside, own_values, schema_with_label
from dpserve.lineages import Lineage
from dpserve.mechanisms.gaussian_vector import picorho_for
from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.prices import one_alone
from dpserve.training.block_choice import Blocks
from dpserve.training.bundles.certificate import ProvenCertificate
from dpserve.training.bundles.sealing import EVALUATION_FILE, write_folder
from dpserve.training.drafts import draft_folder
from dpserve.training.errors import PrivacyWarning, TrainingError, WrongOption, WrongValue
from dpserve.training.evaluation import Evaluation, Law, evaluate
from dpserve.training.feature_choice import Features
from dpserve.training.fit import Request, check_abilities, check_needs, fit
from dpserve.training.inputs.blocks import BlockDeclaration
from dpserve.training.inputs.described import Schema
from dpserve.training.inputs.lineage import KnownRecords
from dpserve.training.inputs.records import Records
from dpserve.training.inputs.schema import TableSchema
from dpserve.training.kinds.kind import needed_price
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.registry import kind_named, kind_of, pay_once, release_certificate, trainable_kinds
from dpserve.training.options import Options
from dpserve.training.pay_once.coverage import thousandths
from dpserve.training.purchases import model_purchase, planned_purchase
from dpserve.training.watchers import Event, Planned, Warned
from dpserve.wording import as_parameter, in_python

_Result = TypeVar("_Result")
AUTO = "auto"
_WEIGHTS = dict.fromkeys(
    ("sample_weight", "class_weight"),
    ": a record counts once. The price is what one record may change, and a weight would multiply that",
)
"""Arguments that classifiers of scikit-learn take and this one does not, with why."""
_IMPUTED = (
    "Schema(missing=...) declares what a missing value counts as. An imputer that is fitted on the records holds exact "
    "figures of them, which no budget covers"
)

_FITTED_STEPS_ADVICE = (
    "Such a step holds exact figures of the records, and hides records from the lineages that have them. Give the "
    "columns as they are, with bounds known without the records, by which the model scales them; Schema(missing="
    "{COLUMN: VALUE}) declares what a missing value counts as."
)


class PrivateClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that is trained with differential privacy.

    Give it the columns as they are. A step that is fitted on the records before it, in a `Pipeline` or a
    `ColumnTransformer`, is outside the guarantee: a scaler or an imputer holds exact means, every column then depends
    on every record, and records are no longer recognised in another lineage. What people need is inside: numbers are
    scaled by their declared bounds, and `Schema` says what a missing value counts as, and declares levels, dates and
    texts. Fitted steps of a pipeline raise `PrivacyWarning`; what was fitted elsewhere cannot be seen.

    Exact scores on private records are outside, too: `score`, and what searches, cross-validation, calibration,
    `permutation_importance` and MLflow's autologging compute. There is no `sample_weight` or `class_weight`: a record
    counts once. Whoever repeats records (bagging, oversampling) protects each copy alone.

    Nothing is checked before `fit`. Parameters of the values that it takes are its own, too, for `set_params` and
    searches: `kind__hidden`, `schema__clip`.

    Parameters
    ----------
    schema : Schema, str, Path or mapping, optional
        The records: their columns and classes, what identifies one, and how they are read. A file, or its content,
        is a Table Schema. Needed.
    epsilon : float, optional
        What all answers together cost, at `delta`. Needed for a model that is paid for once.
    delta : float, optional
        The delta of `epsilon`, above 0 and below 1.
    lineage : Lineage or str, optional
        The lineage of the records, by its name, with the budget that it opens with: all models of records that
        overlap share one. Needed.
    n : int, optional
        About how many records there are, or privacy units, as a number that may be public: not counted. Needed for
        "auto" and DPSGD.
    kind : "auto", str or options of a kind, default "auto"
        "auto" for the kind that the planner chooses; or DPSGD(hidden=64), ClassSums(), Weights(lam=30), all paid for
        once; or Head(), each of whose answers is paid for when a service gives it; or a kind's name.
    features : str or Features, default "auto"
        The public feature map: "auto" follows public rules; or FourierFeatures(bandwidth=0.5), BinFeatures(),
        QuantileFeatures(), HogFeatures(image_shape=(28, 28)), EncoderFeatures(encoder="FILE.onnx") and so on, or a
        map's name.
    public : data frame or ndarray, optional
        Public rows like the records, with their classes, which the planner simulates on for "auto".
    prediction_sets : {"auto", "off", "all", "class"}, default "auto"
        Hold records back, which train nothing, for prediction sets: sets of classes that hold the true one with a
        coverage that each client chooses. all: for all records together; class: for those of each class, too; auto:
        by public rules.
    name : str, default "model"
        The model's public name: letters, digits, '.', '_' and '-', at most 64.
    again : bool, default False
        Allow another fit of records that a paid fit had, and fits of clones: each costs `epsilon` again.

    Attributes
    ----------
    classes_ : ndarray (C,)
        The classes as y has them (booleans, numbers or texts), sorted; of a loaded model their names.
    n_features_in_ : int
        The number of columns.
    feature_names_in_ : ndarray (n_features_in_,)
        The names of the columns, where they have names.
    certificate_ : ProvenCertificate
        What is proved about the model, with its lineage, its price and its assumptions.
    charged_rho_ : float
        What this fit cost the lineage, in zCDP rho.
    """

    def __init__(
        self,
        schema: Any = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        lineage: Lineage | str | None = None,
        n: int | None = None,
        kind: Options | str = AUTO,
        features: Features | str = "auto",
        public: Any = None,
        prediction_sets: str = "auto",
        name: str = "model",
        again: bool = False,
        **unknown: Any,
    ) -> None:
        """Take the parameters; `fit` checks them. Raises TypeError for one that there is not."""
        for each in unknown:
            raise TypeError(f"PrivateClassifier has no parameter {each!r}{_suggestion(each)}")
        self.schema = schema
        self.epsilon = epsilon
        self.delta = delta
        self.lineage = lineage
        self.n = n
        self.kind = kind
        self.features = features
        self.public = public
        self.prediction_sets = prediction_sets
        self.name = name
        self.again = again

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
                raise ValueError(f"PrivateClassifier has no parameter {name!r}{_suggestion(name)}")
            if field:
                nested.setdefault(name, {})[field] = value
            else:
                setattr(self, name, value)
        for name, fields in nested.items():
            value = getattr(self, name)
            if not isinstance(value, Options):
                raise ValueError(f"{name}={value!r} has no parameters of its own: give it as an object")  # noqa: TRY004
            with _in_python():
                setattr(self, name, value.replaced(**fields))
        return self

    def cost(self) -> "FitCost":
        """Return what a fit will cost, and what the lineage has left. No record is looked at, and nothing is charged.

        Raises ValueError for parameters that are wrong or do not go together.
        """
        with _in_python():
            request = self._request()
            check_needs(request)
            check_abilities(request, unit=self._described.unit)
            return _run(self._cost(request))

    def fit(self, X: Any, y: Any = None, **not_offered: Any) -> Self:
        """Train on private records, charge the lineage, and return the estimator; or take the same fit's model.

        Parameters
        ----------
        X : data frame, Arrow table, path, URL or ndarray (n, d)
            A data frame of pandas or Polars, a table, or numbers, whose columns are called x0, x1, ...
        y : str or array (n,), optional
            The name of the column of classes, by default the schema's label; or the classes, beside a data frame or an
            array. They are declared by the schema; booleans need no declaration.
        not_offered : object
            Refused: a `sample_weight` would change how much one record may weigh, which the price is computed from.

        Raises TypeError for other arguments, ValueError for what is not declared, does not fit, or does not go
        together, and for a fit that was not allowed (`again`); BudgetExhausted if the lineage's account
        does not pay, when nothing was charged; `LedgerError` where the ledger cannot be asked.
        """
        _check_no_weights(not_offered)
        if before := _steps_before(self):
            _warn(
                f"the steps {', '.join(map(repr, before))} of the pipeline are fitted on the records: what they learn "
                f"is exact, and no budget covers it. {_FITTED_STEPS_ADVICE}"
            )
        table, label, columns = self._table(X, y)
        label_type = None if isinstance(table, str) else _plain_type(table.schema.field(label).type)
        with _in_python(), draft_folder(state_folder()) as folder:
            described = self._described
            schema = self._described.table
            if schema is not None:
                schema = schema_with_label(schema, label, described.classes, label_type)
            classes = described.classes if schema is not None else classes_of(described.classes, label_type)
            _check_described(described, schema, classes)
            request = self._request()
            check_needs(request)
            check_abilities(request, unit=described.unit)
            refuse_forgotten(request.lineage)
            records = self._records(table, label, schema, classes, request)
            if request.made_kind.outputs(records.declaration).classes is None:
                raise WrongValue("kind", "must be a kind that answers with probabilities", value=self.kind)
            self._levels = _levels(schema, label, classes)
            if request.price is None:
                fitted = fit(records, request, folder / "bundle", state=state_folder(), watcher=_Owner())
                self._take(fitted.folder, fitted.certificate, 0, label_type)
            else:
                self._take_paid(records, request, folder / "bundle", label_type)
        self.n_features_in_ = len(columns or self.certificate_.feature_map.columns or self.certificate_.feature_names)
        if columns is not None:
            self.feature_names_in_ = np.asarray(columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def _take_paid(self, records: Records, request: Request, draft: Path, label_type: Any) -> None:
        """Train, keep and charge a model that is paid for once, or take the one of the same fit."""
        kept, lineage = KeptFits(state_folder()), self._lineage
        place = kept.place(records, request, None if request.public is None else request.public())
        if self.again or not place.exists():
            self._check_is_allowed()
            if not self.again:
                kept.check_new(records, request.lineage)
            # The charge follows the training: what the account could not pay for should not be trained.
            _run(self._check_account(request))
            fitted = fit(records, request, draft, state=state_folder(), watcher=_Owner())
            kept.keep(place, {path.name: path.read_bytes() for path in fitted.folder.iterdir()})
        certificate = load_model(place).certificate
        try:
            with kept.charging(records, request.lineage):
                charged = _run(self._charged(certificate, lineage.budget))
        except BaseException:
            kept.drop(place)  # nobody has paid for it
            raise
        self._take(place, certificate, charged, label_type)

    def predict_proba(self, X: Any) -> Floats:
        """Return private class probabilities, (n, C), for rows X, in the order of `classes_`.

        Parameters
        ----------
        X : data frame, list of mappings or ndarray (n, d)
            As for `fit`, without the column of classes; columns are matched by name, in any order.

        Costs nothing: the model is private itself. Raises ValueError for rows that do not fit, naming the first, and
        for a model each of whose answers is paid for.
        """
        check_is_fitted(self, "certificate_")
        if self._model is None:
            raise ValueError(
                "each answer of this model is paid for by itself: save it, serve the bundle with 'dpserve serve', and "
                "ask with dpserve.Client"
            )
        rows = rows_for(self.certificate_.public(), self._checked(X), clip=self._clips)
        answers, _ = self._model.answers(rows)
        return np.ascontiguousarray(answers[:, self._order])

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the likeliest class of each private answer, (n,).

        Parameters
        ----------
        X : data frame, list of mappings or ndarray (n, d)
            As for `predict_proba`.
        """
        answers = self.predict_proba(X)
        labels: NDArray[Any] = self.classes_[np.argmax(answers, axis=1)]
        return labels

    def predict_set(self, X: Any, coverage: float = 0.9) -> NDArray[np.bool_]:
        """Return the prediction set of each row, (n, C): which classes are in it, in the order of `classes_`.

        Parameters
        ----------
        X : data frame, list of mappings or ndarray (n, d)
            As for `predict_proba`.
        coverage : float, default 0.9
            The share of further records, like those of the training, whose class is in their sets, at least: 0.5 to
            0.999, in thousandths, chosen without looking at the sets.

        Costs nothing. A set may be empty: then no class is as likely as the true ones of the records held back mostly
        were. Raises ValueError for another coverage, and for a model without prediction sets.
        """
        answers = self.predict_proba(X)
        sets = getattr(self.certificate_, "prediction_sets", None)
        if sets is None:
            raise ValueError(
                "this model has no prediction sets: no records were held back for them. "
                "Fit it with prediction_sets='all'"
            )
        inside: NDArray[np.bool_] = answers >= sets.least(thousandths(coverage), answers.shape[1])[self._order]
        return inside

    def score(self, X: Any, y: ArrayLike) -> float:
        """Return the exact accuracy of `predict` on rows whose classes are known.

        Parameters
        ----------
        X : data frame, list of mappings or ndarray (n, d)
            The rows, as for `predict_proba`.
        y : array (n,)
            Their classes.

        The predictions are private, and this number is not: it is computed from y without noise. Take public rows, or
        keep it to yourself. No budget covers what is told or chosen by it where X and y are private records.
        """
        answers = self.predict(X)
        if (overlap := self._private_among(X, y)) is not None:
            _warn(
                f"{overlap}: their exact accuracy is not private, and no budget covers what is told or chosen by it. "
                "Take public rows"
            )
        return float(accuracy_score(y, answers))

    def evaluate(
        self,
        X: Any,
        y: Any = None,
        *,
        epsilon: float,
        delta: float,
        report: Sequence[str] | None = None,
        lineage: Lineage | str | None = None,
    ) -> Evaluation:
        """Release how good the model is on private held-out records, with noise and intervals; it may be published.

        Parameters
        ----------
        X : data frame, Arrow table, path, URL or ndarray (n, d)
            The held-out records, as for `fit`; for a model of privacy units with their column.
        y : str or array (n,), optional
            As for `fit`.
        epsilon : float
            What the evaluation costs, at `delta`; evaluating again draws new noise, and costs again.
        delta : float
            The delta of `epsilon`, above 0 and below 1.
        report : sequence of str, optional
            The parts to report, "accuracy" among them: fewer are more precise. All that such a model has by default.
        lineage : Lineage or str, optional
            The lineage of the held-out records, where none of them was trained on: it pays, and opens with the budget
            that is stated where it has none. By default the model's, which is right whether they were or not. With
            blocks, those that the records lie in pay, and no others.

        Returns the figures (`accuracy`, `log_loss`, `calibration`, `confusion`, `roc`, `coverage`), each with its
        standard error and interval; `save` writes them beside the model, as `dpserve evaluate` does. Nothing exact is
        seen or kept. Raises ValueError for rows that do not fit or lie in another lineage or block, and for a model
        each of whose answers is paid for; BudgetExhausted where an account does not pay, when nothing was charged.
        """
        check_is_fitted(self, "certificate_")
        # Only who evaluates should wait for it.
        from dpserve.evaluating import Payer, charge, evaluable, noted_rows, parts_named, published

        with _in_python():
            asked = evaluable(self.certificate_, self._model)
            certificate, parts, whole = asked.certificate, parts_named(report), _picorho(epsilon, delta)
            held = _lineage(certificate.lineage if lineage is None else lineage)
            choice = held.blocks
            payer = Payer.chosen(certificate, held.name, choice, held.budget_text)
            refuse_forgotten(payer.lineage)
            records = self._held_out(X, y, certificate.unit, choice.declared(None))

            async def charged(law: Law, evaluation_id: str) -> None:
                async with self._opened() as ledger:
                    await charge(ledger, certificate, payer, law, evaluation_id, by=operating_systems_user())

            others = choice.equal_rows_in_blocks_are_others == "yes"
            noting = noted_rows(records, "X", payer.lineage, state_folder(), equal_rows_are_others=others)
            with noting, counting("asking", len(records)) as more:
                found = evaluate(
                    asked,
                    records.in_order(certificate.feature_names),
                    records.y,
                    whole,
                    SystemRandomness(),
                    parts,
                    units=records.units,
                    in_blocks=bool(payer.blocks),
                    pay=lambda law, evaluation_id: _run(charged(law, evaluation_id)),
                    progress=lambda _: more(1),
                )
        self._files[EVALUATION_FILE] = published(certificate, found)
        return found

    def save(self, path: str | Path) -> Path:
        """Write the bundle, which `dpserve serve` takes, into a new folder; return its path. Raises ValueError.

        Parameters
        ----------
        path : str or Path
            The new folder.
        """
        check_is_fitted(self, "certificate_")
        with _in_python():
            write_folder(Path(path), self._files)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path, *, ledger: str | Path | None = None, ledger_replicas: int | None = None) -> Self:
        """Return the fitted estimator of a bundle. Its classes are the certificate's names, and it is not fitted again.

        Parameters
        ----------
        path : str or Path
            The bundle's folder.
        ledger : str or Path, optional
            As for the constructor.
        ledger_replicas : int, optional
            As for the constructor.

        A model that is private itself is charged to its lineage unless
        it was before. Raises what `fit` raises.
        """
        with _in_python():
            certificate = load_model(Path(path)).certificate
            if certificate.status == "unproven":
                raise TrainingError(f"nothing is proved about the model in {path}: serve it with 'dpserve serve'")
            lineage = Lineage(certificate.lineage, ledger=ledger, ledger_replicas=ledger_replicas)
            made = cls(lineage=lineage, name=certificate.name, kind=certificate.kind_name)
            import pyarrow as pa

            made._levels = list(certificate.classes)
            made._take(Path(path), certificate, _run(made._charged(certificate, None)), pa.string())
        columns = certificate.feature_map.columns
        names = [column.name for column in columns] or list(certificate.feature_names)
        made.n_features_in_, made.feature_names_in_ = len(names), np.asarray(names, dtype=object)
        return made

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Return the parameters that are not defaults; of a fitted one also what it is and what it cost."""
        text: str = super().__repr__(N_CHAR_MAX=N_CHAR_MAX)
        if not hasattr(self, "certificate_"):
            return text
        kind = kind_of(self.certificate_).name
        price = getattr(self.certificate_, "cost", None)
        paid = "each answer is paid for" if price is None else f"rho = {float(Cost.parse(price).rho):.4g}, paid once"
        return f"{text}  # fitted: {kind}, {paid}, lineage {self.certificate_.lineage!r}"

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy that knows to be one: see `again`."""
        made = type(self)(**{name: clone(value, safe=False) for name, value in self.get_params(deep=False).items()})
        made._is_clone = True
        return made

    def __sklearn_tags__(self) -> Any:
        """Say to scikit-learn that noise decides, and that accuracy is not promised."""
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.classifier_tags.poor_score = True
        tags.input_tags.allow_nan = isinstance(self.schema, Schema) and _takes_missing(self.schema)
        return tags

    def _check_is_allowed(self) -> None:
        """Raise ValueError for a clone, unless each fit may be charged; then warn of it."""
        if not getattr(self, "_is_clone", False):
            return
        if not self.again:
            raise ValueError(
                "this would train another model on the records and charge the lineage again: it is a clone, as a "
                "search makes them. Make the estimator with again=True if it shall"
            )
        _warn(
            "a clone is fitted, as searches, cross-validation, calibration and ensembles make them. Its fit is "
            "charged, and no budget covers what these do with the records beside it: they choose by exact scores, "
            "fit calibrators to exact labels, or draw a record several times"
        )

    @property
    def _described(self) -> Schema:
        """The schema as a value. Raises WrongOption."""
        if isinstance(self.schema, Schema):
            return self.schema
        if isinstance(self.schema, str | Path | Mapping):
            return Schema(columns=self.schema)
        if self.schema is None and hasattr(self, "certificate_"):
            return Schema()  # a loaded model has what was declared
        raise WrongOption(
            "schema", "is needed", remedy="Schema(classes=[NAME, ...], columns={COLUMN: Number(LOW, HIGH)})"
        )

    @property
    def _lineage(self) -> Lineage:
        """The lineage as a value. Raises TrainingError."""
        if self.lineage is None:
            raise TrainingError(
                Message(
                    "name the lineage of these records with {lineage:NAME}: all models of records that "
                    "overlap share one name, and with it one budget"
                )
            )
        return _lineage(self.lineage)

    def _table(self, X: Any, y: Any) -> tuple[Any, str, list[str] | None]:
        """Return a table with a column of classes, that column's name, and the others' where they have names."""
        if y is None:
            y = self._described.label
            if names_of(X) is None and not isinstance(X, str | Path):
                raise ValueError(
                    "PrivateClassifier requires y to be passed, but the target y is None: the column's name, or the "
                    "classes"
                )
        if (isinstance(X, Mapping) and not hasattr(X, "shape")) or _are_mappings(X):
            raise ValueError(
                "records come as a data frame of pandas or Polars, as an Arrow table, as numbers or as a file: of "
                "mappings make one, as pandas.DataFrame(X)"
            )
        return self._with_column(X, y) if isinstance(y, str) else self._beside(X, y)

    def _with_column(self, X: Any, y: str) -> tuple[Any, str, list[str] | None]:
        """Return a table whose column of classes has the name y."""
        if isinstance(X, str | Path):
            # Only who reads a file should wait for Arrow.
            from dpserve.training.inputs.table_records import column_names

            with _in_python():
                described = self._described
                schema = self._described.table
                encoding = described.encoding or (None if schema is None else schema.encoding)
                return str(X), y, self._features_among(column_names(str(X), encoding, described.sheet), y)
        names = names_of(X)
        if names is None:
            raise ValueError(f"{y!r} names a column, and X is no table whose columns have names")
        if y not in names:
            raise ValueError(f"X has no column {y!r}; pass the name of the column of classes, or the classes")
        return _arrow(X, names), y, self._features_among(names, y)

    def _beside(self, X: Any, y: Any) -> tuple[Any, str, list[str] | None]:
        """Return a table with the classes y as one more column."""
        # Only who trains should wait for Arrow.
        import pyarrow as pa

        names = names_of(X)
        if names is None:
            X = self._array(X, self._described.missing is not None)
            table = pa.table({f"x{index}": np.ascontiguousarray(column) for index, column in enumerate(X.T)})
        else:
            table = _arrow(X, names)
        check_consistent_length(X, column_or_1d(y, warn=True))
        described = self._described
        with _in_python():
            schema = self._described.table
        of_y = _labels(y, leave_out=described.unlabelled == "leave-out")
        declared = described.classes is not None or schema is None
        label = label_beside(table.column_names, schema, y, classes_declared=declared)
        return table.append_column(label, of_y), label, self._features_among(names, label)

    def _private_among(self, X: Any, y: Any) -> str | None:
        """Say of rows and their classes that at least half of them are records; None of others.

        Records are known by their digests in the owner's state folder, from every training there.
        """
        if not (state_folder() / "trained").is_dir():
            return None
        if isinstance(self.schema, Schema) and isinstance(self.schema.classes, Mapping):
            values = {name: value for value, name in self.schema.classes.items()}
            y = [values.get(name, name) for name in np.asarray(y).tolist()]
        try:
            records = self._rows_like(X, y)
            known = KnownRecords(state_folder())
            digests = known.digests(records)
            for lineage, shared in known.among(digests).items():
                if 2 * shared.records >= (total := len(digests.records)):
                    return f"{shared.records:,} of the {total:,} rows are records of the lineage {lineage!r}"
                if shared.units and 2 * shared.units >= len(digests.units):
                    return (
                        f"{shared.units:,} of the {len(digests.units):,} keys or units are in the lineage {lineage!r}"
                    )
        except (TrainingError, ValueError, OSError):
            return None  # rows of another form are no records that were trained on
        return None

    def _held_out(self, X: Any, y: Any, unit: str | None, blocks: BlockDeclaration | None) -> Records:
        """Return held-out records, which are the model's in form, with their units and blocks. Raises TrainingError."""
        beside = {unit, None if blocks is None else blocks.column}
        return self._rows_like(X, y, kept=beside, unit=unit, blocks=blocks)

    def _rows_like(self, X: Any, y: Any, kept: Collection[str | None] = (), **more: Any) -> Records:
        """Return rows by the fitted model's declaration, without what `fit` has as a name or leaves out.

        kept: columns that are read all the same. more: as for `RowsForm.read`.
        """
        table, label, _ = self._table(X, y)
        if names_of(X) is None and not isinstance(table, str):  # an array has the columns of the model, in its order
            table = table.rename_columns([*self._columns_asked(), label])
        # A path's columns are known to who reads it: there, all that is named must be there.
        there = None if isinstance(table, str) else table.column_names
        described = self._described
        blocks = Blocks() if self.lineage is None else self._lineage.blocks
        own_id = described.id if there is None or described.id in there else None
        beside = dict.fromkeys((*described.ignore, *filter(None, (described.unit, blocks.block))))
        ignore = tuple(name for name in beside if name not in kept and (there is None or name in there))
        certificate, given = self.certificate_, self._levels
        limits = certificate.feature_map
        form = rows_form(described, label).replaced(ignore=ignore, id=own_id)
        return form.read_like(
            table,
            certificate.feature_names,
            limits.lower,
            limits.upper,
            certificate.classes,
            given,
            limits.columns,
            clip=described.clip or certificate.clips,
            **more,
        )

    def _columns_asked(self) -> list[str]:
        """Return the names of the columns that the model takes."""
        return [each.name for each in self.certificate_.feature_map.columns] or list(self.certificate_.feature_names)

    def _features_among(self, names: Sequence[str] | None, label: str) -> list[str] | None:
        left_out = {label, *self._beside_features}
        with _in_python():
            schema = self._described.table
        if names is not None and schema is not None and schema.subset:
            left_out |= set(names) - {column.name for column in schema.columns}
        return None if names is None else [name for name in names if name not in left_out]

    @property
    def _beside_features(self) -> set[str]:
        """The columns that `fit` takes and that are no features: keys, units, blocks, labels, and what is ignored."""
        described = self._described
        block = None if self.lineage is None else self._lineage.blocks.block
        named = (described.label, described.unit, described.id, block)
        return {*filter(None, named), *described.ignore}

    @property
    def _clips(self) -> bool | None:
        """Whether values of rows beyond their bounds are clipped; None for what the model's training did."""
        return True if isinstance(self.schema, Schema) and self.schema.clip else None

    def _request(self) -> Request:
        """Return the parameters as a request. Raises WrongOption and TrainingError."""
        lineage, kind = self._lineage, _kind(self.kind)
        return Request(
            name=self.name,
            lineage=lineage.name,
            kind=kind,
            price=_price(self.epsilon, self.delta),
            n=self.n,
            features=_features(self.features),
            public=None if self.public is None else self._public_rows,
            prediction_sets=self.prediction_sets,
            blocks=lineage.blocks,
            block_budget=lineage.budget_text,
            overlapping_lineage_is_accepted=lineage.overlapping_lineage_is_accepted,
        )

    def _public_rows(self) -> Records:
        """Return the public rows to simulate on, by the schema. Raises TrainingError."""
        rows = public_records(self._described, self.public)
        check_public(rows, "public=")
        return rows

    def _records(self, table: Any, label: str, schema: TableSchema | None, classes: Any, request: Request) -> Records:
        """Return the records of a table. Raises TrainingError."""
        with shares("reading") as show:
            return read_described(
                self._described,
                table,
                label,
                schema,
                classes,
                blocks=request.declared_blocks,
                progress=lambda count, share: show(f"{count:,} records", share),
            )

    async def _cost(self, request: Request) -> "FitCost":
        """Return the cost of a fit, as the ledger stands. Raises CannotServe for a lineage that is not there."""
        if request.price is None:
            return FitCost(0.0, None, None, {})
        async with self._opened() as ledger:
            return FitCost(to_rho(request.price), self.epsilon, self.delta, await self._left(ledger, request))

    async def _left(self, ledger: Any, request: Request) -> dict[str, float]:
        """Return what the blocks that will pay have left, or will open with, in rho."""
        known: dict[str, int] = {}
        with suppress(accounts.UnknownLineage):
            known = {each.name: each.remaining for each in await ledger.all_blocks(request.lineage)}
        payers = self._purchase(request).payers
        opening = {block: 0 if budget is None else budget.limit for block, budget in payers.items()}
        return {block: to_rho(known.get(block, limit)) for block, limit in opening.items()}

    def _purchase(self, request: Request) -> accounts.Purchase:
        """Return the purchase of what is to be trained."""
        price, blocks = needed_price(request.price), request.declared_blocks
        return planned_purchase(request.lineage, self._described.unit, price, self._lineage.budget, blocks)

    async def _check_account(self, request: Request) -> None:
        """Raise before training what would be raised after it: an account that is not there, or cannot pay."""
        async with self._opened() as ledger:
            await check_purchases(ledger, [self._purchase(request)])

    async def _charged(self, written: ProvenCertificate, budget: Budget | None) -> int:
        """Charge the lineage for a release; return what was charged, in picorho.

        budget: opens its account, where it has none.
        """
        if release_certificate(written) is None:
            return 0
        async with self._opened() as ledger:
            by = operating_systems_user()
            return picorho_charged(await buy(ledger, [model_purchase(written, budget=budget)], by=by))

    def _opened(self) -> Any:
        lineage = self._lineage
        given = None if lineage.ledger is None else str(lineage.ledger)
        return open_ledger(given, lineage.ledger_replicas, journals=journals_folder())

    def _take(self, folder: Path, certificate: ProvenCertificate, charged: int, label_type: Any) -> None:
        """Take a bundle as what was fitted. label_type: Arrow's, of the labels; None for a file's text."""
        model = load_model(folder)
        self.certificate_ = certificate
        self.charged_rho_ = to_rho(charged)
        self._files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self._model = pay_once(model)
        given = own_values(self._levels, label_type)
        self._order = sorted(range(len(given)), key=given.__getitem__)
        self.classes_ = np.asarray([given[place] for place in self._order])

    def _array(self, X: Any, may_be_missing: bool) -> Floats:
        """Return an array of numbers (n, d), NaN where a value is missing, if one may be."""
        try:
            finite = "allow-nan" if may_be_missing else True
            checked: Floats = check_array(X, dtype=np.float64, estimator=self, ensure_all_finite=finite)
        except ValueError as error:
            if "contains NaN" not in str(error):
                raise
            raise ValueError(f"{error} {_IMPUTED}") from None
        return checked

    def _checked(self, X: Any) -> Any:
        """Return rows without names as an array of the right width; others without what `fit` takes beside features."""
        check_rows(X)
        if names_of(X) is not None or _are_mappings(X):
            return without(X, self._beside_features - set(self._columns_asked()))
        columns = self.certificate_.feature_map.columns
        if any(column.kind not in ("number", "integer", "boolean") for column in columns):
            one = ": one row is [X.to_dict()]" if hasattr(X, "to_dict") else ""
            raise ValueError(f"X must be a data frame, or a list of mappings, with the columns of the schema{one}")
        X = self._array(X, not all(column.required for column in columns))
        if X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features "
                "as input"
            )
        return X


# Scikit-learn reads the parameters off the signature, which `unknown` is none of.
PrivateClassifier.__init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [each for each in inspect.signature(PrivateClassifier.__init__).parameters.values() if each.name != "unknown"]
)


@dataclass(frozen=True)
class FitCost:
    """The cost of a fit. rho: in zCDP; epsilon, delta: as it was given. left_rho: what the lineage has left for it.

    left_rho: by block, under "" for a lineage without blocks.
    """

    rho: float
    epsilon: float | None
    delta: float | None
    left_rho: Mapping[str, float]

    @property
    def is_paid(self) -> bool:
        """Whether every account that has to pay can."""
        return all(self.rho <= left for left in self.left_rho.values())


class _Owner(Terminal):
    """Shows progress on stderr, and tells the owner of warnings as Python does. Nothing goes to stdout."""

    def hear(self, event: Event) -> None:
        """Warn of a second budget, and of a plan that is worth little."""
        match event:
            case Warned():
                _warn(spelled(event.message, as_parameter))
            case Planned():
                for warning in event.warnings:
                    warnings.warn(warning, UserWarning, stacklevel=3)


def _arrow(X: Any, names: Sequence[str]) -> Any:
    """Return a data frame as an Arrow table, without an index."""
    import pyarrow as pa

    if len(set(names)) < len(names):
        raise ValueError("every column needs a name of its own")
    return pa.RecordBatchReader.from_stream(X).read_all().select(list(names))


def _labels(y: Any, *, leave_out: bool) -> Any:
    """Return y (n,) as an Arrow array. leave_out: whether labels may be missing. Raises ValueError, as scikit-learn."""
    # Only who trains should wait for Arrow.
    import pyarrow as pa

    from dpserve.training.inputs.table_records import UNLABELLED_ADVICE

    # A Series says its type, which NumPy may not have: booleans and integers that may be missing, categories.
    is_series = hasattr(y, "name") and hasattr(y, "__arrow_c_stream__")
    known = column_or_1d(y)
    try:
        labels = pa.chunked_array(y) if is_series else pa.array(known.tolist(), from_pandas=True)
    except pa.ArrowInvalid:
        check_classification_targets(known)
        raise
    if labels.null_count:
        if not leave_out:
            advice = spelled(UNLABELLED_ADVICE, as_parameter)
            raise ValueError(f"Input y contains NaN: a label is missing. {advice}")
        known = np.asarray(labels.drop_null().to_pylist())
    assert_all_finite(known, input_name="y")
    check_classification_targets(known)
    return labels


def _are_mappings(X: Any) -> bool:
    return isinstance(X, Sequence) and bool(X) and isinstance(X[0], Mapping)


def _check_no_weights(arguments: Mapping[str, Any]) -> None:
    """Refuse what `fit` does not take: weights with why, unless they are None."""
    for name, value in arguments.items():
        if name not in _WEIGHTS:
            raise TypeError(f"fit() got an unexpected keyword argument {name!r}")
        if value is not None:
            raise ValueError(f"there is no {name}{_WEIGHTS[name]}")


def _levels(schema: TableSchema | None, label: str, classes: Any) -> list[str]:
    """Return what each class is called in the table, in the certificate's order."""
    return [*map(str, classes)] if schema is None else [*schema.split(label)[1].column.levels]


def _check_described(described: Schema, schema: TableSchema | None, classes: Any) -> None:
    """Raise ValueError where nothing says which columns or classes there are."""
    if schema is None and (classes is None or described.bounds is None):
        lacking = {"columns={COLUMN: Number(LOW, HIGH)}": described.bounds, "classes=[NAME, ...]": classes}
        asked = " and ".join(what for what, value in lacking.items() if value is None)
        raise ValueError(
            f"declare what is public about the records: Schema({asked.replace(' and ', ', ')}). It is never read off "
            "the records, which would say something about single ones"
        )
    if classes is not None and (isinstance(classes, str) or not isinstance(classes, Iterable)):
        raise WrongValue("classes", "must be several values", value=classes)


def _takes_missing(described: Schema) -> bool:
    """Tell whether a schema declares what becomes of missing values."""
    columns = described.columns
    return (
        described.missing is not None
        or not isinstance(columns, Mapping | None)
        or "fields" in (columns or {})
        or any(getattr(column, "missing", None) is not None for column in (columns or {}).values())
    )


def _lineage(given: Lineage | str) -> Lineage:
    return given if isinstance(given, Lineage) else Lineage(given)


def _kind(given: Options | str) -> Options | None:
    """Return the options of a kind that is asked for; None for the planner's choice. Raises WrongOption."""
    if isinstance(given, Options):
        return given
    if given == AUTO:
        return None
    if isinstance(given, type) and issubclass(given, Options):
        raise WrongOption("kind", f"takes a value, and {given.__name__} is a class: give {given.__name__}()")
    names = (AUTO, *trainable_kinds())
    if given not in names:
        raise WrongValue("kind", f"must be one of {', '.join(names)}, or the options of one", value=given)
    return kind_named(given).options()


def _features(given: Features | str) -> Features:
    """Return the features that are asked for. Raises WrongOption."""
    return given if isinstance(given, Features) else Features.of_words({"features": given})


def _suggestion(name: str) -> str:
    """Return what was probably meant by an unknown parameter, or where it is now."""
    if name in _WEIGHTS:
        return _WEIGHTS[name]
    owners: list[tuple[str, type[Options]]] = [("schema", Schema), ("lineage", Lineage), ("features", Features)]
    owners += [("kind", kind.options) for kind in trainable_kinds().values()]
    if name in Blocks.model_fields:
        return f": it is one of lineage=Lineage(blocks=Blocks({name}=...))"
    for parameter, options in owners:
        if name in options.flags():
            return f": it is one of {parameter}={options.flags()[name][1].__name__}({name}=...)"
    parameters = inspect.signature(PrivateClassifier).parameters
    close = get_close_matches(name, parameters, 1)
    return f": did you mean {close[0]!r}?" if close else f": there are {', '.join(parameters)}"


def _plain_type(type_: Any) -> Any:
    """Return Arrow's type of the values of a column, be they categories or not."""
    import pyarrow as pa

    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _warn(what: str) -> None:
    warnings.warn(what, PrivacyWarning, stacklevel=3)


def _steps_before(estimator: object) -> list[str]:
    """Return the names of the steps that learn from the records, in the pipelines that are fitting the estimator.

    A pipeline tells its last step nothing, in no release of scikit-learn: `Pipeline.fit` is looked for among the calls
    that led here. It counts if the estimator is its last step, so that no other caller is taken for it.
    """
    steps: list[str] = []
    inner, frame = estimator, inspect.currentframe()
    while frame is not None:
        outer = frame.f_locals.get("self")
        if isinstance(outer, Pipeline) and outer is not inner and outer.steps[-1][1] is inner:
            steps = [name for name, step in outer.steps[:-1] if _learns(step)] + steps
            inner = outer
        frame = frame.f_back
    return steps


def _learns(step: Any) -> bool:
    """Tell whether a step of a pipeline may learn from the records, by its tags; the parts of a compound are asked."""
    for name in ("steps", "transformers", "transformer_list"):
        if hasattr(step, name):
            return any(_learns(part[1]) for part in getattr(step, name))
    try:
        return not (step is None or isinstance(step, str)) and bool(get_tags(step).requires_fit)
    except (AttributeError, TypeError):
        return True  # it has no tags


def _price(epsilon: Any, delta: Any) -> int | None:
    """Return what epsilon and delta may cost, in picorho; None where neither is given. Raises WrongOption."""
    if epsilon is None and delta is None:
        return None
    if epsilon is None or delta is None:
        raise one_alone(delta)
    return _picorho(epsilon, delta)


def _picorho(epsilon: Any, delta: Any) -> int:
    """Return what epsilon and delta may cost, in picorho. Raises WrongOption."""
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if isinstance(value, bool | str) or not isinstance(value, SupportsFloat):
            raise WrongValue(name, "must be a number", value=value)
    try:
        return picorho_for(float(epsilon), float(delta))
    except (ValueError, ArithmeticError) as error:
        raise WrongOption("epsilon", f"is no price at delta={delta!r}: {error}", value=epsilon) from error


def _budget_exhausted(detail: str, refused: accounts.BudgetExhausted) -> BudgetExhausted:
    cost, remaining = to_rho(refused.cost), to_rho(refused.remaining)
    return BudgetExhausted(
        detail,
        kind="urn:dpserve:problem:budget-exhausted",
        problem={"scope": refused.scope, "cost": cost, "remaining": remaining, "currency": "rho"},
    )


def _run(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end, in a thread of its own: a notebook has an event loop already."""
    with ThreadPoolExecutor(1, thread_name_prefix="dpserve-ledger") as pool:
        return pool.submit(asyncio.run, coroutine).result()


@contextmanager
def _in_python() -> Iterator[None]:
    """Raise what the floors below refuse as ValueError, in Python's words."""
    try:
        yield
    except accounts.NotPaidFor as error:
        if isinstance(error.refused, accounts.BudgetExhausted):
            raise _budget_exhausted(str(error), error.refused) from None
        raise ValueError(in_python(error)) from error
    except (TrainingError, accounts.LedgerRefusal) as error:
        raise ValueError(in_python(error)) from error
