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

import inspect
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted

from dpserve.accounting.arrays import Floats
from dpserve.accounting.picorho import to_rho
from dpserve.commands.console import counting, shares
from dpserve.commands.options import operating_systems_user, refuse_forgotten, state_folder
from dpserve.described_rows import Target, read_described, rows_form
from dpserve.frames import are_mappings, check_rows, names_of, rows_for, without
from dpserve.kept_fits import KeptFits
from dpserve.labelled_tables import LabelledTable, columns_undeclared, labelled_table, number_array
from dpserve.labels import own_values
from dpserve.lineages import Lineage
from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.owner_warnings import Owner, warn_of_fitted_steps, warn_of_privacy
from dpserve.parameters import AUTO, Parameters, check_no_weights, lineage_of, takes_missing
from dpserve.payments import FitCost, charge_model, check_account, errors_in_python, fit_cost, opened, purchase, run
from dpserve.prices import Price
from dpserve.training.block_choice import Blocks
from dpserve.training.bundles.certificate import ProvenCertificate
from dpserve.training.bundles.drafts import draft_folder
from dpserve.training.bundles.sealing import EVALUATION_FILE, write_folder
from dpserve.training.errors import ErrorList, TrainingError, WrongValue
from dpserve.training.evaluation import Evaluation, Law, evaluate
from dpserve.training.feature_choice import Features
from dpserve.training.fit import Request, fit
from dpserve.training.inputs.described import Schema
from dpserve.training.inputs.lineage import RecordRegistry
from dpserve.training.inputs.records import Records
from dpserve.training.inputs.undeclared import shortest_way
from dpserve.training.kinds.kind import needed_price
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.registry import kind_of, pay_once
from dpserve.training.options import Options
from dpserve.training.pay_once.coverage import thousandths


class PrivateClassifier(ClassifierMixin, Parameters):  # type: ignore[misc]
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
    searches: `kind__hidden`, `schema__clip`. A search fits one combination after the other, and has paid for the first
    ones when a later one is refused: ask each for its `cost()` before, which refuses what `fit` would without records.

    Records are recognised by the names and the values of their columns. `fit(frame, "y")`, `fit(frame, frame["y"])` and
    an array whose columns the schema names are the same records; an array of others has columns x0, x1, ..., and is
    taken for new records, with a warning where the lineage has some.

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
        for parameter in unknown:
            raise TypeError(f"PrivateClassifier has no parameter {parameter!r}{self._suggestion(parameter)}")
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

    def cost(self) -> FitCost:
        """Return what a fit will cost, and what the lineage has left. No record is looked at, and nothing is charged.

        Raises ValueError for parameters that are wrong or do not go together.
        """
        with errors_in_python():
            request = self._request()
            if request.price is None:
                return FitCost(None, None, {}, 0.0, {})
            planned = purchase(request, self._lineage, self._described.unit)
            return fit_cost(self._lineage, planned, request.price, self.epsilon, self.delta)

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
        check_no_weights(not_offered)
        warn_of_fitted_steps(self)
        with errors_in_python(), draft_folder(state_folder()) as folder:
            described, request = self._described, self._request_for(X, y)
            given = labelled_table(described, X, y)
            target = Target.of(described, given.label, given.label_type)
            refuse_forgotten(request.lineage)
            with shares("reading") as show:
                records = read_described(
                    described,
                    given.table,
                    given.label,
                    target,
                    blocks=request.declared_blocks,
                    progress=lambda _, share: show("", share),
                )
            if request.made_kind.outputs(records.declaration).classes is None:
                raise WrongValue("kind", "must be a kind that answers with probabilities", value=self.kind)
            self._levels = target.levels(given.label)
            if request.price is None:
                fitted = fit(records, request, folder / "bundle", state=state_folder(), watcher=Owner())
                self._take(fitted.folder, fitted.certificate, 0, given.label_type)
            else:
                self._take_paid(records, request, folder / "bundle", given)
            columns = self._feature_names(given)
        self.n_features_in_ = len(columns or self.certificate_.feature_map.columns or self.certificate_.feature_names)
        if columns is not None:
            self.feature_names_in_ = np.asarray(columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def _request_for(self, X: Any, y: Any) -> Request:
        """Return the request. Raises TrainingError for all that is not declared, of it and of the records, at once."""
        wrong = ErrorList()
        block = self.lineage.blocks.block if isinstance(self.lineage, Lineage) else None
        undeclared = wrong.attempt(lambda: columns_undeclared(self._described, X, y, block))
        wrong.errors += undeclared or []
        request = wrong.attempt(self._request)
        if undeclared and (isinstance(X, str | Path) or names_of(X) is not None):
            wrong.errors.append(shortest_way(str(X) if isinstance(X, str | Path) else "FILE"))
        wrong.check()
        assert request is not None
        return request

    def _take_paid(self, records: Records, request: Request, draft: Path, given: LabelledTable) -> None:
        """Train, keep and charge a model that is paid for once, or take the one of the same fit."""
        lineage = self._lineage
        kept = KeptFits(state_folder()).fit_of(records, request, None if self.public is None else self._public_rows())
        if self.again or not kept.folder.exists():
            self._check_is_allowed()
            if not self.again:
                kept.check_new()
                if given.is_joined and kept.are_others:
                    warn_of_privacy(
                        f"models of the lineage {request.lineage!r} were paid for, and of none of these records. They "
                        "are recognised by what their columns are called, x0 and so on in an array: if they were in a "
                        "table before, fit them as that, so that no fit is charged twice"
                    )
            # The charge follows the training: what the account could not pay for should not be trained.
            check_account(lineage, purchase(request, lineage, records.unit))
            kept.keep(fit(records, request, draft, state=state_folder(), watcher=Owner()).folder)
        certificate = load_model(kept.folder).certificate
        try:
            with kept.charging():
                charged = charge_model(lineage, certificate, lineage.budget)
        except BaseException:
            kept.drop()  # nobody has paid for it
            raise
        self._take(kept.folder, certificate, charged, given.label_type)

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
        answers = self._model.values(rows)
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
            warn_of_privacy(
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
            The parts to report, "accuracy" among them: fewer are more precise. By default all that such a model has,
            but "roc" for two classes alone.
        lineage : Lineage or str, optional
            The lineage of the held-out records, where none of them was trained on: it pays, and opens with the budget
            that is stated where it has none. By default the model's, which is right whether they were or not. With
            blocks, those that the records lie in pay, and no others.

        Returns the figures (`accuracy`, `log_loss`, `calibration`, `confusion`, `roc` or `areas`, `coverage`), each
        with its standard error and interval; `save` writes them beside the model, as `dpserve evaluate` does. Nothing
        exact is seen or kept. Raises ValueError for rows that do not fit or lie in another lineage or block, and for a
        model each of whose answers is paid for; BudgetExhausted where an account does not pay, when nothing was
        charged.
        """
        check_is_fitted(self, "certificate_")
        # Only who evaluates should wait for it.
        from dpserve.evaluating import Payer, charge, evaluable, noted_rows, parts_named, published

        with errors_in_python():
            model, parts = evaluable(self.certificate_, self._model), parts_named(report)
            certificate, price = model.certificate, needed_price(Price(epsilon=epsilon, delta=delta).whole)
            held = lineage_of(certificate.lineage if lineage is None else lineage)
            blocks = held.blocks.declared(None)
            payer = Payer.chosen(certificate, held.name, held.blocks, held.budget_text)
            refuse_forgotten(payer.lineage)
            beside = {certificate.unit, None if blocks is None else blocks.column}
            records = self._rows_like(X, y, kept=beside, unit=certificate.unit, blocks=blocks)

            async def charged(law: Law, evaluation_id: str) -> None:
                async with opened(self._lineage) as ledger:
                    await charge(ledger, certificate, payer, law, evaluation_id, by=operating_systems_user())

            others = held.blocks.equal_rows_in_blocks_are_others
            noting = noted_rows(records, "X", payer.lineage, state_folder(), equal_rows_are_others=others)
            with noting, counting("asking", len(records)) as more:
                evaluation = evaluate(
                    model,
                    records.in_order(certificate.feature_names),
                    records.y,
                    price,
                    SystemRandomness(),
                    parts,
                    units=records.units,
                    in_blocks=bool(payer.blocks),
                    pay=lambda law, evaluation_id: run(charged(law, evaluation_id)),
                    progress=lambda _: more(1),
                )
        self._files[EVALUATION_FILE] = published(certificate, evaluation)
        return evaluation

    def save(self, path: str | Path) -> Path:
        """Write the bundle, which `dpserve serve` takes, into a new folder; return its path. Raises ValueError.

        Parameters
        ----------
        path : str or Path
            The new folder.
        """
        check_is_fitted(self, "certificate_")
        with errors_in_python():
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
            As for `Lineage`.
        ledger_replicas : int, optional
            As for `Lineage`.

        A model that is private itself is charged to its lineage unless
        it was before. Raises what `fit` raises.
        """
        with errors_in_python():
            certificate = load_model(Path(path)).certificate
            if certificate.status == "unproven":
                raise TrainingError(f"nothing is proved about the model in {path}: serve it with 'dpserve serve'")
            lineage = Lineage(certificate.lineage, ledger=ledger, ledger_replicas=ledger_replicas)
            model = cls(lineage=lineage, name=certificate.name, kind=certificate.kind_name)
            import pyarrow as pa

            model._levels = list(certificate.classes)
            model._take(Path(path), certificate, charge_model(lineage, certificate, None), pa.string())
        columns = certificate.feature_map.columns
        names = [column.name for column in columns] or list(certificate.feature_names)
        model.n_features_in_, model.feature_names_in_ = len(names), np.asarray(names, dtype=object)
        return model

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Return the parameters that are not defaults; of a fitted one also what it is and what it cost."""
        text: str = super().__repr__(N_CHAR_MAX=N_CHAR_MAX)
        if not hasattr(self, "certificate_"):
            return text
        kind = kind_of(self.certificate_).name
        price = getattr(self.certificate_, "cost", None)
        paid = "each answer is paid for" if price is None else "paid once"
        return f"{text}  # fitted: {kind}, {paid}, lineage {self.certificate_.lineage!r}"

    def __sklearn_tags__(self) -> Any:
        """Say to scikit-learn that noise decides, and that accuracy is not promised."""
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.classifier_tags.poor_score = True
        tags.input_tags.allow_nan = isinstance(self.schema, Schema) and takes_missing(self.schema)
        return tags

    def _check_is_allowed(self) -> None:
        """Raise ValueError for a clone, unless each fit may be charged; then warn of it."""
        if not getattr(self, "_is_clone", False):
            return
        if not self.again:
            raise ValueError(
                "each fit of a clone trains a model of its own and charges the lineage for it. This is a clone, as a "
                "search or a cross-validation makes one for each combination and fold: make the estimator with "
                "again=True if all of them shall be paid for"
            )
        warn_of_privacy(
            "a clone is fitted, as searches, cross-validation, calibration and ensembles make them. Its fit is "
            "charged, and no budget covers what these do with the records beside it: they choose by exact scores, "
            "fit calibrators to exact labels, or draw a record several times"
        )

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
            noted = RecordRegistry(state_folder())
            digests = noted.digests(records)
            for lineage, shared in noted.among(digests).items():
                if 2 * shared.records >= (total := len(digests.records)):
                    return f"{shared.records:,} of the {total:,} rows are records of the lineage {lineage!r}"
                if shared.units and 2 * shared.units >= len(digests.units):
                    return (
                        f"{shared.units:,} of the {len(digests.units):,} keys or units are in the lineage {lineage!r}"
                    )
        except (TrainingError, ValueError, OSError):
            return None  # rows of another form are no records that were trained on
        return None

    def _rows_like(self, X: Any, y: Any, kept: Collection[str | None] = (), **more: Any) -> Records:
        """Return rows by the fitted model's declaration, without what `fit` has as a name or leaves out.

        kept: columns that are read all the same. more: as for `RowsForm.read`.
        """
        described = self._described
        given = labelled_table(described, X, y)
        table, label = given.table, given.label
        if given.names is None:  # an array has the columns of the model, in its order
            table = table.rename_columns([*self._columns_asked(), label])
        # A path's columns are known to who reads it: there, all that is named must be there.
        there = None if isinstance(table, str) else table.column_names
        blocks = Blocks() if self.lineage is None else self._lineage.blocks
        own_id = described.id if there is None or described.id in there else None
        beside = dict.fromkeys((*described.ignore, *filter(None, (described.unit, blocks.block))))
        ignore = tuple(name for name in beside if name not in kept and (there is None or name in there))
        certificate, limits = self.certificate_, self.certificate_.feature_map
        form = rows_form(described, label).replaced(ignore=ignore, id=own_id)
        return form.read_like(
            table,
            certificate.feature_names,
            limits.lower,
            limits.upper,
            certificate.classes,
            self._levels,
            limits.columns,
            clip=described.clip or certificate.clips,
            **more,
        )

    def _columns_asked(self) -> list[str]:
        """Return the names of the columns that the model takes."""
        columns = self.certificate_.feature_map.columns
        return [column.name for column in columns] or list(self.certificate_.feature_names)

    def _feature_names(self, given: LabelledTable) -> list[str] | None:
        """Return the names of the columns that are features; None where they have no names."""
        if given.names is None:
            return None
        schema, left_out = self._described.table, {given.label, *self._beside_features}
        if schema is not None and schema.subset:
            left_out |= set(given.names) - {column.name for column in schema.columns}
        return [name for name in given.names if name not in left_out]

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

    def _take(self, folder: Path, certificate: ProvenCertificate, charged: int, label_type: Any) -> None:
        """Take a bundle as what was fitted. label_type: Arrow's, of the labels; None for a file's text."""
        model = load_model(folder)
        self.certificate_ = certificate
        self.charged_rho_ = to_rho(charged)
        self._files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self._model = pay_once(model)
        values = own_values(self._levels, label_type)
        self._order = sorted(range(len(values)), key=values.__getitem__)
        self.classes_ = np.asarray([values[place] for place in self._order])

    def _checked(self, X: Any) -> Any:
        """Return rows without names as an array of the right width; others without what `fit` takes beside features."""
        check_rows(X)
        if names_of(X) is not None or are_mappings(X):
            return without(X, self._beside_features - set(self._columns_asked()))
        columns = self.certificate_.feature_map.columns
        if any(column.kind not in ("number", "integer", "boolean") for column in columns):
            one = ": one row is [X.to_dict()]" if hasattr(X, "to_dict") else ""
            raise ValueError(f"X must be a data frame, or a list of mappings, with the columns of the schema{one}")
        X = number_array(X, self, may_be_missing=not all(column.required for column in columns))
        if X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features "
                "as input"
            )
        return X


# Scikit-learn reads the parameters off the signature, which `unknown` is none of.
PrivateClassifier.__init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [own for name, own in inspect.signature(PrivateClassifier.__init__).parameters.items() if name != "unknown"]
)
