"""Training in Python: what `dpserve train` does, as a scikit-learn classifier, through the same function.

from dpserve import PrivateClassifier

model = PrivateClassifier(
    lineage="patients", lineage_budget=(3, 1e-6), epsilon=1, delta=1e-6, release="class-sums",
    classes=["ill", "well"], bounds={"age": (0, 120), "pressure": (50, 250)},
).fit(table, "outcome")
model.predict_proba(rows)
model.save("bundle")

Promises: nothing that is declared (bounds, levels, classes, the number of records) is read off the records. A model
that is private itself is paid for when it is fitted, in the ledger that the service charges: its lineage's account is
charged durably before anything of it can be seen, and a fit that the account does not pay for leaves nothing. Saving,
loading and serving such a model then cost nothing more.

Each fit is a release with noise of its own. So an estimator is fitted once, and a clone of one not at all, as a grid
search or cross-validation would do without a word, unless it was made with `every_fit_is_charged=True`. Even then the
lineage's account holds, and choosing among fits by their scores on private records is covered by no budget. What can
be seen of that, and of steps of a pipeline that are fitted on the records before, is said by `PrivacyWarning`.
"""

import asyncio
import inspect
import warnings
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Self, SupportsFloat, TypeVar

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
from dpserve.frames import check_rows, names_of, rows_for
from dpserve.labels import classes_of, label_beside, own_values, schema_with_label
from dpserve.mechanisms.gaussian_vector import picorho_for
from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.training.block_choice import BlockChoice
from dpserve.training.bundles.certificate import ProvenCertificate
from dpserve.training.bundles.sealing import EVALUATION_FILE, write_folder
from dpserve.training.errors import PrivacyWarning, TrainingError, WrongOption, WrongValue
from dpserve.training.evaluation import Evaluation, Law, evaluate
from dpserve.training.feature_choice import FeatureChoice
from dpserve.training.fit import BudgetPlan, Event, Planned, Request, Warned, check, fit, kind_asked
from dpserve.training.inputs.blocks import BlockDeclaration
from dpserve.training.inputs.columns import Missing
from dpserve.training.inputs.declared import Bounds
from dpserve.training.inputs.lineage import KnownRecords
from dpserve.training.inputs.reading import RowsForm
from dpserve.training.inputs.records import Records
from dpserve.training.inputs.schema import Schema, Unlabelled, parse_schema, read_schema
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.options import fields_of
from dpserve.training.kinds.registry import kind_of, option_fields, pay_once, release_certificate
from dpserve.training.pay_once.coverage import thousandths
from dpserve.training.purchases import model_purchase, planned_purchase
from dpserve.training.sets_choice import SetsChoice
from dpserve.wording import as_parameter, in_python

_Result = TypeVar("_Result")
_WEIGHTS = dict.fromkeys(
    ("sample_weight", "class_weight"),
    ": a record counts once. The price is what one record may change, and a weight would multiply that",
)
"""Arguments that classifiers of scikit-learn take and this one does not, with why."""
_IMPUTED = (
    "missing= declares what a missing value counts as. An imputer that is fitted on the records holds exact figures of "
    "them, which no budget covers"
)

_FITTED_STEPS_ADVICE = (
    "Such a step holds exact figures of the records, and hides records from the lineages that have them. Give the "
    "columns as they are, with bounds known without the records, by which the model scales them; missing={COLUMN: "
    "VALUE} declares what a missing value counts as."
)


class PrivateClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that is trained with differential privacy.

    Give it the columns as they are. A step that is fitted on the records before it, in a `Pipeline` or a
    `ColumnTransformer`, is outside the guarantee: a scaler or an imputer holds exact means, every column then depends
    on every record, and records are no longer recognised in another lineage. What people need is inside: numbers are
    scaled by `bounds`, `missing` says what a missing value counts as, `schema` declares levels, dates and texts.
    Fitted steps of a pipeline raise `PrivacyWarning`; what was fitted elsewhere cannot be seen.

    Exact scores on private records are outside, too: `score`, and what searches, cross-validation, calibration,
    `permutation_importance` and MLflow's autologging compute. There is no `sample_weight` or `class_weight`: a record
    counts once. Whoever repeats records (bagging, oversampling) protects each copy alone.

    None for a parameter stands for what `dpserve train` does by default. Nothing is checked before `fit`. An option of
    a kind from another package is a parameter of its name, too, with the default None.

    Parameters
    ----------
    lineage : str, needed
        The name of the lineage of the records: all models of records that overlap share one, and its budget.
        Needed.
    release : str or None, default "auto"
        The kind of pay-once model; "auto" for the one that the planner chooses; None for a head,
        each of whose answers is paid for when a service gives it.
    epsilon : float, optional
        What all answers together cost, at `delta`. Needed for a pay-once model.
    delta : float, optional
        The delta of `epsilon`, above 0 and below 1.
    schema : str, Path, mapping or Schema, optional
        A Table Schema, in place of `bounds`, and of `classes` where it has a field for y: a file, or its content.
    bounds : (float, float) or mapping, optional
        The lowest and the highest value of every column, in its own units, or {column: (low, high)}. Public:
        never read off the records.
    classes : sequence of str, or mapping, optional
        The names of the C classes, or {value: name}. Beside `schema` only where it has no field for y.
    missing : str, float or mapping, optional
        The public value that a missing one counts as, within the bounds, or "level" for a level of its own; of
        every column, or {column: value}. By default missing values are refused, unless a schema is given.
    ignore : sequence of str, optional
        The columns to leave out.
    unit : str, optional
        The column that identifies the person behind each record: all records of one are protected together.
    id : str, optional
        The column with a key of each record, or of its person, by which records are found again in another
        lineage.
    overlapping_lineage_is_accepted : bool, default False
        Train although records are in another lineage: they then have a second budget.
    block : str, optional
        The column that names each record's block, or with a period a date. It is no feature. Every block has a budget
        of its own, which pays for what models say of its records.
    blocks : str, optional
        The blocks that the records are in, between commas: declared, not read off the records.
    block_by : {"day", "week", "month", "year"}, optional
        The period of a column of dates that is a block: 2026-09-30, 2026-W40, 2026-09 or 2026.
    block_name : str, optional
        The one block that all records of the table are in, where no column names it.
    block_budget : str, optional
        The budget with which each block opens when a model of it is first charged, as "epsilon:3@1e-6".
    leave_out_other_blocks : {"no", "yes"}, default "no"
        What becomes of records of blocks that are not declared: no refuses them, yes leaves them out.
    equal_rows_in_blocks_are_others : {"no", "yes"}, default "no"
        Whether rows that are equal to rows of another block in every column are known to be other people's.
    encoding : str, optional
        Of a CSV file: its encoding, as windows-1252 or latin-1; by default the schema's, or utf-8.
    decimal : str, optional
        Of a table without a schema: the sign before a number's fraction, as a comma.
    sheet : str, optional
        Of a spreadsheet with several sheets: the one to read.
    unlabelled : {"refuse", "leave-out"}, default "refuse"
        What becomes of records without a label.
    clip : bool, default False
        Clip values beyond the bounds instead of refusing them, in `fit` and in `predict`.
    name : str, default "model"
        The model's public name: letters, digits, '.', '_' and '-', at most 64.
    ledger : str or Path, optional
        The URL or the folder of the ledger; by default the command line's.
    ledger_replicas : int, optional
        The number of the store's replicas on whose disks a charge must be, too; by default the command line's.
    lineage_budget : (float, float), optional
        The epsilon and the delta of the account that is opened for the lineage where it has none.
    every_fit_is_charged : bool, default False
        Allow a second fit, and the fits of clones: each costs `epsilon` again.
    records_declared : int, optional
        About how many records there are, as a number that may be public: not counted: in records, at least 1.
        For class-sums, dpsgd.
    lam : float, optional
        Lambda: a larger one means less noise and a simpler model: at least 1e-12 and at most 1e+12. For
        weights, head.
    objective : {"sum", "convexified"}, optional
        What is minimised: sum, of the losses, or convexified, n_min times their log-mean-exp, which large
        losses count more in. For weights, head.
    alpha : float, optional
        How much more large losses count: 0.01 costs little, 1 a great deal: at least 1e-06 and at most 1e+06.
        For weights, head.
    least_records : int, optional
        n_min, a public number that there are no fewer records than: with fewer nothing is trained. Not the
        number of records declared, which may be too high: in records, at least 2 and at most
        1099511627776. For weights, head.
    tolerance : float, optional
        tau: the gradient norm that is reached, or training fails: at least 1e-12 and at most 1e+12. For
        weights, head.
    features : {"auto", "identity", "fourier", "bins", "quantiles", "hog", "hog-fourier"}, optional
        The public feature map; auto follows public rules.
    image_shape : sequence of int, optional
        The height, the width and perhaps the channels, 1 or 3, of images whose pixels are a record's columns:
        in pixels, at least 1.
    cross_buckets : int, optional
        The number of buckets that pairs of columns are hashed to, beside bins; 0 for none: at least 0 and at most
        16384.
    quantile_share : float, optional
        The share of the price that buys the records' noisy quantiles, where quantiles cut numbers; 0 for even cuts,
        which cost nothing: at least 0 and at most 0.5. By default 0.05.
    bias : float, optional
        The constant coordinate of phi: at least 0 and below 1.
    clip_norm : float, optional
        The length that scaled rows, or an encoder's features, are scaled down to: at least 9.53674e-07 and at most
        1048576.
    random_features : int, optional
        The number of Fourier features, an even one: at least 2 and at most 4194304.
    bandwidth : float, optional
        The width of the Fourier kernel, in units of the unit ball: at least 1e-06 and at most 1000000.
    seed : int, optional
        The public seed of the random features: at least 0 and below 4294967296.
    hidden : sequence of int, optional
        The width of each hidden layer: in units, at least 0. For dpsgd.
    activation : {"tanh", "relu"}, optional
        What hidden units compute: tanh or relu. For dpsgd.
    steps : int, optional
        How many steps: at least 1 and at most 1e+06. For dpsgd.
    sampling_rate : float, optional
        The probability with which a record joins a step: above 0 and at most 1. For dpsgd.
    sampling : str, optional
        How records join a step. Only 'poisson', each by itself, is covered. For dpsgd.
    step_noise : float, optional
        The noise multiplier of a step: above 0.25 and below 1e+06. For dpsgd.
    gradient_clip : float, optional
        The largest norm of a record's gradient: at least 1e-30 and at most 1e+30. For dpsgd.
    learning_rate : float, optional
        The learning rate: above 0. For dpsgd.
    canaries : int, optional
        How many made records join the training by fair coins, on coordinates of their own, to measure what it tells: at
        least 64 and at most 10000. For class-sums, weights, dpsgd.
    prediction_sets : {"auto", "off", "all", "class"}, default "auto"
        Hold records back, which train nothing, for prediction sets: sets of classes that hold the true one with a
        coverage that each client chooses. all: for all records together; class: for those of each class, too; auto:
        by public rules.
    encoder : str or Path, optional
        An ONNX file, a public model made without these records, whose first output is the features.
    encoder_range : sequence of float, optional
        The lowest and the highest value that the encoder takes.
    device : {"cpu", "cuda"}, optional
        Where an encoder computes.

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
        *,
        lineage: str | None = None,
        release: str | None = "auto",
        epsilon: float | None = None,
        delta: float | None = None,
        schema: Any = None,
        bounds: Any = None,
        classes: Any = None,
        missing: Any = None,
        ignore: Sequence[str] | None = None,
        unit: str | None = None,
        id: str | None = None,  # noqa: A002 - the command line's name
        overlapping_lineage_is_accepted: bool = False,
        block: str | None = None,
        blocks: str | None = None,
        block_by: str | None = None,
        block_name: str | None = None,
        block_budget: str | None = None,
        leave_out_other_blocks: str = "no",
        equal_rows_in_blocks_are_others: str = "no",
        encoding: str | None = None,
        decimal: str | None = None,
        sheet: str | None = None,
        unlabelled: Unlabelled = "refuse",
        clip: bool = False,
        name: str = "model",
        ledger: str | Path | None = None,
        ledger_replicas: int | None = None,
        lineage_budget: tuple[float, float] | None = None,
        every_fit_is_charged: bool = False,
        records_declared: int | None = None,
        lam: float | None = None,
        objective: str | None = None,
        alpha: float | None = None,
        least_records: int | None = None,
        tolerance: float | None = None,
        features: str | None = None,
        image_shape: Sequence[int] | None = None,
        cross_buckets: int | None = None,
        quantile_share: float | None = None,
        bias: float | None = None,
        clip_norm: float | None = None,
        random_features: int | None = None,
        bandwidth: float | None = None,
        seed: int | None = None,
        hidden: Sequence[int] | None = None,
        activation: str | None = None,
        steps: int | None = None,
        sampling_rate: float | None = None,
        sampling: str | None = None,
        step_noise: float | None = None,
        gradient_clip: float | None = None,
        learning_rate: float | None = None,
        canaries: int | None = None,
        prediction_sets: str = "auto",
        encoder: str | Path | None = None,
        encoder_range: tuple[float, float] | None = None,
        device: str | None = None,
        **options_of_other_packages: Any,
    ) -> None:
        """Take the parameters; `fit` checks them."""
        for unknown in options_of_other_packages.keys() - set(_OTHER_OPTIONS):
            raise TypeError(f"PrivateClassifier has no parameter {unknown!r}{_WEIGHTS.get(unknown, '')}")
        for option in _OTHER_OPTIONS:
            setattr(self, option, options_of_other_packages.get(option))
        self.lineage = lineage
        self.release = release
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.bounds = bounds
        self.classes = classes
        self.missing = missing
        self.ignore = ignore
        self.unit = unit
        self.id = id
        self.overlapping_lineage_is_accepted = overlapping_lineage_is_accepted
        self.block = block
        self.blocks = blocks
        self.block_by = block_by
        self.block_name = block_name
        self.block_budget = block_budget
        self.leave_out_other_blocks = leave_out_other_blocks
        self.equal_rows_in_blocks_are_others = equal_rows_in_blocks_are_others
        self.encoding = encoding
        self.decimal = decimal
        self.sheet = sheet
        self.unlabelled = unlabelled
        self.clip = clip
        self.name = name
        self.ledger = ledger
        self.ledger_replicas = ledger_replicas
        self.lineage_budget = lineage_budget
        self.every_fit_is_charged = every_fit_is_charged
        self.records_declared = records_declared
        self.lam = lam
        self.objective = objective
        self.alpha = alpha
        self.least_records = least_records
        self.tolerance = tolerance
        self.features = features
        self.image_shape = image_shape
        self.cross_buckets = cross_buckets
        self.quantile_share = quantile_share
        self.bias = bias
        self.clip_norm = clip_norm
        self.random_features = random_features
        self.bandwidth = bandwidth
        self.seed = seed
        self.hidden = hidden
        self.activation = activation
        self.steps = steps
        self.sampling_rate = sampling_rate
        self.sampling = sampling
        self.step_noise = step_noise
        self.gradient_clip = gradient_clip
        self.learning_rate = learning_rate
        self.canaries = canaries
        self.prediction_sets = prediction_sets
        self.encoder = encoder
        self.encoder_range = encoder_range
        self.device = device

    def fit(self, X: Any, y: Any = None, **not_offered: Any) -> Self:
        """Train on private records, charge the lineage, and return the estimator.

        Parameters
        ----------
        X : data frame, Arrow table, path, URL or ndarray (n, d)
            A data frame of pandas or Polars, a table, or numbers, whose columns are called x0, x1, ...
        y : str or array (n,)
            The name of the column of classes; or the classes, beside a data frame or an array. With `schema` they are
            the field that the table lacks, or `classes` declares them; booleans need no declaration.
        not_offered : object
            Refused: a `sample_weight` would change how much one record may weigh, which the price is computed from.

        Raises TypeError for other arguments, ValueError for what is not declared, does not fit, or does not go
        together, and for a fit that was not allowed (`every_fit_is_charged`); BudgetExhausted if the lineage's account
        does not pay, when nothing was charged; `LedgerError` where the ledger cannot be asked.
        """
        _check_no_weights(not_offered)
        self._check_is_allowed()
        if before := _steps_before(self):
            _warn(
                f"the steps {', '.join(map(repr, before))} of the pipeline are fitted on the records: what they learn "
                f"is exact, and no budget covers it. {_FITTED_STEPS_ADVICE}"
            )
        if getattr(self, "_is_clone", False) and self.release is not None:
            _warn(
                "a clone is fitted, as searches, cross-validation, calibration and ensembles make them. Its fit is "
                "charged, and no budget covers what these do with the records beside it: they choose by exact scores, "
                "fit calibrators to exact labels, or draw a record several times"
            )
        table, label, columns = self._table(X, y)
        label_type = None if isinstance(table, str) else _plain_type(table.schema.field(label).type)
        with _in_python(), TemporaryDirectory(prefix="dpserve-") as folder:
            schema = self._schema()
            if schema is not None:
                schema = schema_with_label(schema, label, self.classes, label_type)
            price, budget = self._price(), _budget(self.lineage_budget)
            classes = self.classes if schema is not None else classes_of(self.classes, label_type)
            request = self._request(schema, price, classes)
            check(request, unit=self.unit)
            refuse_forgotten(request.lineage)
            records = self._records(table, label, schema, classes)
            if request.made_kind.outputs(records.declaration).classes is None:
                raise WrongValue("release", "must be a kind that answers with probabilities", value=self.release)
            if price is not None:
                # The charge follows the training: what the account could not pay for should not be trained.
                _run(self._check_account(request.lineage, price, budget, request.blocks.declaration))
            fitted = fit(
                records,
                request,
                Path(folder) / "bundle",
                state=state_folder(),
                watcher=_Owner(),
            )
            self._levels = _levels(schema, label, classes)
            self._take(fitted.folder, fitted.certificate, _run(self._charged(fitted.certificate, budget)), label_type)
        self.n_features_in_ = len(columns or self.certificate_.feature_map.columns or self.certificate_.feature_names)
        if columns is not None:
            self.feature_names_in_ = np.asarray(columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

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
        rows = rows_for(self.certificate_.public(), self._checked(X), clip=self.clip or None)
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
        y: Any,
        *,
        epsilon: float,
        delta: float,
        report: Sequence[str] | None = None,
        lineage: str | None = None,
        lineage_budget: tuple[float, float] | None = None,
        block: str | None = None,
        blocks: str | None = None,
        block_by: Literal["day", "week", "month", "year"] | None = None,
        block_name: str | None = None,
        block_budget: str | None = None,
        leave_out_other_blocks: Literal["no", "yes"] = "no",
        equal_rows_in_blocks_are_others: Literal["no", "yes"] = "no",
    ) -> Evaluation:
        """Release how good the model is on private held-out records, with noise and intervals; it may be published.

        Parameters
        ----------
        X : data frame, Arrow table, path, URL or ndarray (n, d)
            The held-out records, as for `fit`; for a model of privacy units with their column.
        y : str or array (n,)
            As for `fit`.
        epsilon : float
            What the evaluation costs, at `delta`; evaluating again draws new noise, and costs again.
        delta : float
            The delta of `epsilon`, above 0 and below 1.
        report : sequence of str, optional
            The parts to report, "accuracy" among them: fewer are more precise. All that such a model has by default.
        lineage : str, optional
            The lineage of the held-out records, where none of them was trained on: it pays. By default the model's,
            which is right whether they were or not.
        lineage_budget : (float, float), optional
            The epsilon and the delta of the account that is opened for that lineage where it has none.
        block : str, optional
            As for the constructor, of the held-out records: the blocks that they lie in pay, and no others.
        blocks : str, optional
            As for the constructor.
        block_by : {"day", "week", "month", "year"}, optional
            As for the constructor.
        block_name : str, optional
            As for the constructor.
        block_budget : str, optional
            The budget with which a block opens that neither the ledger nor the model has, as "epsilon:3@1e-6".
        leave_out_other_blocks : {"no", "yes"}, default "no"
            As for the constructor.
        equal_rows_in_blocks_are_others : {"no", "yes"}, default "no"
            As for the constructor.

        Returns the figures (`accuracy`, `log_loss`, `calibration`, `confusion`, `roc`, `coverage`), each with its
        standard error and interval; `save` writes them beside the model, as `dpserve evaluate` does. Nothing exact is
        seen or kept. Raises ValueError for rows that do not fit or lie in another lineage or block, and for a model
        each of whose answers is paid for; BudgetExhausted where an account does not pay, when nothing was charged.
        """
        check_is_fitted(self, "certificate_")
        # Only who evaluates should wait for it.
        from dpserve.evaluating import Payer, charge, evaluable, noted_rows, parts_named, published

        choice = BlockChoice(
            block=block,
            blocks=blocks,
            block_by=block_by,
            block_name=block_name,
            block_budget=block_budget,
            leave_out_other_blocks=leave_out_other_blocks,
            equal_rows_in_blocks_are_others=equal_rows_in_blocks_are_others,
        )
        with _in_python():
            asked = evaluable(self.certificate_, self._model)
            certificate, parts, whole = asked.certificate, parts_named(report), _picorho("epsilon", epsilon, delta)
            payer = Payer.chosen(certificate, lineage, choice, _budget(lineage_budget))
            refuse_forgotten(payer.lineage)
            records = self._held_out(X, y, certificate.unit, choice.declared(needs_budget=False))

            async def charged(law: Law, evaluation_id: str) -> None:
                async with self._opened() as ledger:
                    await charge(ledger, certificate, payer, law, evaluation_id, by=operating_systems_user())

            others = equal_rows_in_blocks_are_others == "yes"
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
            name = certificate.name
            made = cls(lineage=certificate.lineage, name=name, ledger=ledger, ledger_replicas=ledger_replicas)
            release = release_certificate(certificate)
            made.release = None if release is None else release.release
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
        """Return an unfitted copy that knows to be one: see `every_fit_is_charged`."""
        made = type(self)(**{name: clone(value, safe=False) for name, value in self.get_params(deep=False).items()})
        made._is_clone = True
        return made

    def __sklearn_tags__(self) -> Any:
        """Say to scikit-learn that noise decides, and that accuracy is not promised."""
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.classifier_tags.poor_score = True
        tags.input_tags.allow_nan = self.missing is not None or self.schema is not None
        return tags

    def _check_is_allowed(self) -> None:
        again = hasattr(self, "certificate_") or getattr(self, "_is_clone", False)
        if again and self.release is not None and not self.every_fit_is_charged:
            raise ValueError(
                "this would train another model on the same records and charge the lineage again: "
                + ("this one is fitted" if hasattr(self, "certificate_") else "it is a clone, as a search makes them")
                + ". Make the estimator with every_fit_is_charged=True if it shall"
            )

    def _table(self, X: Any, y: Any) -> tuple[Any, str, list[str] | None]:
        """Return a table with a column of classes, that column's name, and the others' where they have names."""
        if y is None:
            raise ValueError(
                "PrivateClassifier requires y to be passed, but the target y is None: the column's name, or the classes"
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

            schema = self._schema()
            encoding = self.encoding or (None if schema is None else schema.encoding)
            with _in_python():
                return str(X), y, self._features_among(column_names(str(X), encoding, self.sheet), y)
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
            X = self._array(X, self.missing is not None)
            table = pa.table({f"x{index}": np.ascontiguousarray(column) for index, column in enumerate(X.T)})
        else:
            table = _arrow(X, names)
        check_consistent_length(X, column_or_1d(y, warn=True))
        schema, of_y = self._schema(), _labels(y, leave_out=self.unlabelled == "leave-out")
        declared = self.classes is not None or schema is None
        label = label_beside(table.column_names, schema, y, classes_declared=declared)
        return table.append_column(label, of_y), label, self._features_among(names, label)

    def _private_among(self, X: Any, y: Any) -> str | None:
        """Say of rows and their classes that at least half of them are records; None of others.

        Records are known by their digests in the owner's state folder, from every training there.
        """
        if not (state_folder() / "trained").is_dir():
            return None
        if isinstance(self.classes, Mapping):
            values = {name: value for value, name in self.classes.items()}
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
        own_id = self.id if there is None or self.id in there else None
        beside = dict.fromkeys((*(self.ignore or ()), *filter(None, (self.unit, self.block))))
        ignore = tuple(name for name in beside if name not in kept and (there is None or name in there))
        certificate, given = self.certificate_, self._levels
        limits = certificate.feature_map
        form = replace(self._rows_form(label), ignore=ignore, id=own_id)
        return form.read_like(
            table,
            certificate.feature_names,
            limits.lower,
            limits.upper,
            certificate.classes,
            given,
            limits.columns,
            clip=self.clip or certificate.clips,
            **more,
        )

    def _columns_asked(self) -> list[str]:
        """Return the names of the columns that the model takes."""
        return [each.name for each in self.certificate_.feature_map.columns] or list(self.certificate_.feature_names)

    def _features_among(self, names: Sequence[str] | None, label: str) -> list[str] | None:
        left_out = {label, self.unit, self.id, self.block, *(self.ignore or ())}
        schema = self._schema()
        if names is not None and schema is not None and schema.subset:
            left_out |= set(names) - {column.name for column in schema.columns}
        return None if names is None else [name for name in names if name not in left_out]

    def _schema(self) -> Schema | None:
        if self.schema is None or isinstance(self.schema, Schema):
            return self.schema
        with _in_python():
            return parse_schema(self.schema) if isinstance(self.schema, Mapping) else read_schema(Path(self.schema))

    def _request(self, schema: Schema | None, price: int | None, classes: Any) -> Request:
        """Return the parameters as a request. price: of all answers together, in picorho. Raises WrongOption.

        classes: those declared, or of booleans.
        """
        if self.lineage is None:
            raise TrainingError(
                Message(
                    "name the lineage of these records with {lineage:NAME}: all models of records that "
                    "overlap share one name, and with it one budget"
                )
            )
        if schema is None and (classes is None or self.bounds is None):
            lacking = {"bounds=(LOW, HIGH) or {COLUMN: (LOW, HIGH)}": self.bounds, "classes=[NAME, ...]": classes}
            asked = " and ".join(what for what, value in lacking.items() if value is None)
            raise ValueError(
                f"declare what is public about the records: {asked}; or schema=, which describes every column. It is "
                "never read off the records, which would say something about single ones"
            )
        if classes is not None and (isinstance(classes, str) or not isinstance(classes, Iterable)):
            raise WrongValue("classes", "must be several values", value=classes)
        if schema is not None and self.bounds is not None:
            raise ValueError("schema= takes the place of bounds=: leave that out")
        given = {name: value for name, value in self.get_params(deep=False).items() if value is not None}
        options = {name: given[name] for name in option_fields() if name in given}
        is_planned = self.release == "auto" and price is not None
        if price is not None and not is_planned:
            options["price"] = price
        return Request(
            name=self.name,
            lineage=self.lineage,
            kind=kind_asked(None if self.release == "auto" else self.release),
            options=options,
            features=FeatureChoice.from_given(
                {name: given[name] for name in fields_of(FeatureChoice) if name in given}
            ),
            encoder=None if self.encoder is None else Path(self.encoder).read_bytes(),
            plan=BudgetPlan(budget=price) if is_planned and price is not None else None,
            sets=SetsChoice.from_given({"prediction_sets": self.prediction_sets}),
            blocks=self._block_choice(),
            overlapping_lineage_is_accepted=self.overlapping_lineage_is_accepted,
        )

    def _block_choice(self) -> BlockChoice:
        """Return what is declared of blocks. Raises WrongOption."""
        return BlockChoice.from_given(
            {name: value for name in fields_of(BlockChoice) if (value := getattr(self, name)) is not None}
        )

    def _records(self, table: Any, label: str, schema: Schema | None, classes: Any) -> Records:
        """Return the records of a table. Raises TrainingError."""
        named = isinstance(classes, Mapping)
        with shares("reading") as show:
            return self._rows_form(label).read(
                table,
                classes=tuple(map(str, (classes.values() if named else classes) if schema is None else ())),
                values=tuple(map(str, classes if schema is None else ())),
                bounds=_bounds(self.bounds),
                clip=self.clip,
                schema=schema,
                unit=self.unit,
                missing=_missing(self.missing),
                blocks=self._block_choice().declaration,
                progress=lambda count, share: show(f"{count:,} records", share),
            )

    def _rows_form(self, label: str) -> RowsForm:
        """Return the form of a table with a column of classes."""
        own = {name: getattr(self, name) for name in ("id", "encoding", "decimal", "sheet", "unlabelled")}
        return RowsForm(label=label, ignore=tuple(self.ignore or ()), **own)

    def _price(self) -> int | None:
        """Return what a fit costs at most, in picorho; None where answers are paid for one by one."""
        if self.release is None:
            if self.epsilon is not None:
                raise ValueError(
                    "each answer of this model is paid for when a service gives it, by the service's price: leave "
                    "epsilon= out, or choose a release that is private itself"
                )
            return None
        if self.epsilon is None or self.delta is None:
            raise ValueError("say what all answers together cost: epsilon= and delta=")
        return _picorho("epsilon", self.epsilon, self.delta)

    async def _check_account(
        self, lineage: str, price: int, budget: Budget | None, blocks: BlockDeclaration | None
    ) -> None:
        """Raise before training what would be raised after it: an account that is not there, or cannot pay."""
        if blocks is not None and budget is not None:
            raise WrongOption("lineage_budget", "is a lineage's without blocks: leave it out, these have their own")
        async with self._opened() as ledger:
            await check_purchases(ledger, [planned_purchase(lineage, self.unit, price, budget, blocks)])

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
        given = None if self.ledger is None else str(self.ledger)
        return open_ledger(given, self.ledger_replicas, journals=journals_folder())

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
        """Return rows without names as an array of the right width; others as they are."""
        check_rows(X)
        if names_of(X) is not None or _are_mappings(X):
            return X
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


def _signature_with_all_options() -> inspect.Signature:
    """Return the constructor's signature with every option of every kind: scikit-learn reads its parameters off it."""
    *own, others = inspect.signature(PrivateClassifier.__init__).parameters.values()
    known = {each.name for each in own} | {"price"}  # which is epsilon= and delta= here
    added = [others.replace(name=name, kind=inspect.Parameter.KEYWORD_ONLY, default=None) for name in option_fields()]
    return inspect.Signature([*own, *(each for each in added if each.name not in known)])


PrivateClassifier.__init__.__signature__ = _signature_with_all_options()  # type: ignore[attr-defined]
_OTHER_OPTIONS = tuple(
    name
    for name in inspect.signature(PrivateClassifier).parameters
    if name not in (PrivateClassifier.__init__.__kwdefaults__ or {})
)
"""Options of kinds that other packages bring."""


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


def _levels(schema: Schema | None, label: str, classes: Any) -> list[str]:
    """Return what each class is called in the table, in the certificate's order."""
    return [*map(str, classes)] if schema is None else [*schema.split(label)[1].column.levels]


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


def _bounds(declared: Any) -> Bounds:
    """Return declared bounds by column, under None those of every other. Raises ValueError."""
    if declared is None:
        return {}
    pairs = declared.items() if isinstance(declared, Mapping) else [(None, declared)]
    try:
        return {name: (float(low), float(high)) for name, (low, high) in pairs}
    except (TypeError, ValueError):
        raise ValueError(f"bounds= takes (LOW, HIGH) or {{COLUMN: (LOW, HIGH)}}, not {declared!r}") from None


def _missing(declared: Any) -> Missing:
    """Return what missing values become by column, under None those of every other."""
    if declared is None:
        return {}
    return dict(declared) if isinstance(declared, Mapping) else {None: declared}


def _budget(given: Any) -> Budget | None:
    """Return the budget of a lineage, if one is given. Raises WrongOption."""
    if given is None:
        return None
    try:
        epsilon, delta = map(float, given)
    except (TypeError, ValueError):
        raise WrongValue("lineage_budget", "must be two numbers", value=given) from None
    try:
        return Budget.from_epsilon_delta(epsilon, delta, "gaussian")
    except ValueError as error:
        raise WrongOption("lineage_budget", f"is no budget: {error}", value=given) from error


def _picorho(parameter: str, epsilon: Any, delta: Any) -> int:
    """Return what epsilon and delta may cost, in picorho. Raises WrongOption, which names the parameter."""
    for name, value in ((parameter, epsilon), ("delta", delta)):
        if isinstance(value, bool | str) or not isinstance(value, SupportsFloat):
            raise WrongValue(name, "must be a number", value=value)
    try:
        return picorho_for(float(epsilon), float(delta))
    except (ValueError, ArithmeticError) as error:
        raise WrongOption(parameter, f"is no price at delta={delta!r}: {error}", value=epsilon) from error


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
