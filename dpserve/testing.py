"""Checks for authors of kinds of models: whether a kind keeps the promises that services, certificates and audits need.

from dpserve.testing import check_kind

def test_the_kind():
    check_kind(KIND, Ridge(lam=1.0))
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.accounting.picorho import to_rho
from dpserve.audit.replay import Outcome, audit_training, outcome
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.gaussian_vector import whole_picorho
from dpserve.mechanisms.randomness import Randomness, SystemRandomness
from dpserve.mechanisms.tapes import Tape
from dpserve.train_options import options_of_train
from dpserve.training.errors import BundleError, MissingExtra
from dpserve.training.export.files import FORMS, exported
from dpserve.training.features.maps import Bins, Quantiles
from dpserve.training.fitting.unit_rows import unit
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.kind import Job, Kind, problems_of
from dpserve.training.options import Options
from dpserve.training.pay_once.certificate import ReleaseCertificate
from dpserve.training.pay_once.chain import BoughtFeatures, buy_features
from dpserve.training.pay_once.classifier import ReleasedClassifier
from dpserve.training.pay_once.cuts import CUTS
from dpserve.training.watchers import Unwatched

__all__ = ["check_kind"]

_RECORDS = 300
_WIDTH = 3


def check_kind(
    kind: Kind,
    options: Options | None = None,
    *,
    price: str = "rho:1",
    classes: tuple[str, ...] = ("no", "yes", "perhaps"),
) -> None:
    """Raise AssertionError for the first promise that a kind does not keep. It trains small models: seconds.

    Parameters
    ----------
    kind : Kind
        The object that the registry would have.
    options : Options, optional
        Of the kind; None for its defaults.
    price : str, default "rho:1"
        What a model that is paid for once may cost.
    classes : tuple of str
        The names of the classes: numbers, for a kind that takes no others.
    """
    _check_words(kind)
    made = kind.options() if options is None else options
    _require(isinstance(made, kind.options), f"{made!r} are options of another kind")
    with tempfile.TemporaryDirectory() as folder:
        trained = _Trained(kind, made, whole_picorho(price), classes, Path(folder))
        model = trained.model("first", trained.records(_RECORDS))
        certificate = model.certificate
        _check_certificate(kind, certificate)
        if kind.answers == "once":
            _check_releases(certificate, trained.price)
            _check_answers(kind, model)
            _check_export(kind, model)
            again = trained.model("again", trained.records(_RECORDS))
            _check_noise(model, again)
            _check_features(trained)
        _check_replay(trained)
        for name, records in trained.odd_records():
            with _naming(f"training on {name}"):
                trained.model(name.replace(" ", "-"), records)


def _require(kept: bool, promise: str) -> None:
    """Raise AssertionError with the promise that is not kept."""
    if not kept:
        raise AssertionError(promise)


@contextmanager
def _naming(what: str) -> Iterator[None]:
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{what} ends in {type(error).__name__}: {error}") from error


def _check_words(kind: Kind) -> None:
    """Check what is said of the kind, and that `train` can have its options."""
    for problem in problems_of(kind):
        raise AssertionError(f"{getattr(kind, 'name', kind)}: {problem}")
    taken = sorted(kind.options.model_fields.keys() & options_of_train())
    _require(not taken, f"{kind.name}: dpserve train has options of its own that are called {', '.join(taken)}")


class _Trained:
    """Models of a kind on made records."""

    def __init__(self, kind: Kind, options: Options, price: int, classes: tuple[str, ...], folder: Path) -> None:
        self.kind, self.options, self.folder = kind, options, folder
        self.price = price if kind.answers == "once" else None
        names = tuple(f"column {place}" for place in range(_WIDTH))
        self.declaration = Declaration(names, (0.0,) * _WIDTH, (1.0,) * _WIDTH, classes)

    def records(self, count: int, label: int | None = None) -> Records:
        """Return records whose class follows from their first number, or is `label`."""
        generator = np.random.default_rng(count)
        X = generator.uniform(size=(count, _WIDTH))
        classes = len(self.declaration.classes)
        y = np.minimum((X[:, 0] * classes).astype(np.int64), classes - 1)
        if label is not None:
            y[:] = label
        return Records(X, y, self.declaration, tuple(row.tobytes() for row in X))

    def odd_records(self) -> Iterator[tuple[str, Records]]:
        """Yield records that training must not fail on: whether it does is seen, and no budget covers it."""
        yield "one record", self.records(1)
        yield "records of one class", self.records(40, label=0)
        alike = self.records(40)
        yield "equal records", Records(np.tile(alike.X[:1], (40, 1)), alike.y, self.declaration, alike.source)

    def model(
        self,
        name: str,
        records: Records,
        bought: BoughtFeatures | None = None,
        left: int | None = None,
        randomness: Randomness | None = None,
    ) -> Any:
        """Train a model, and read it back. bought: features, which leave so much of the price."""
        out = self.folder / name
        bins = Bins(lower=self.declaration.lower, upper=self.declaration.upper, clip_norm=1.0, bias=0.0)
        features = bought or BoughtFeatures(bins)
        job = Job(
            records=records,
            name="checked",
            lineage="checked",
            feature_map=features.feature_map,
            out=out,
            state=self.folder / "state",
            progress=Unwatched(),
            price=self.price if left is None else left,
            n=_RECORDS,
            before=features.releases,
            randomness=randomness or SystemRandomness(),
        )
        certificate = self.kind.train(job, self.options)
        with _naming("loading what was saved"):
            model = self.kind.load(out, None)
        _require(model.certificate == certificate, "the certificate that is loaded is another than `train` returned")
        return model


def _check_certificate(kind: Kind, certificate: Any) -> None:
    """Check that it names its kind, holds, and keeps what is private."""
    _require(certificate.kind_name == kind.name, f"the certificate is of the kind {certificate.kind_name!r}")
    with _naming("deriving the certificate again"):
        certificate.verify()
    json.dumps(certificate.public())
    json.dumps(certificate.shown_to_strangers())
    _require(len(certificate.assumptions) > 0, "the certificate says nothing of what its proof assumes")
    for what, value in kind.figures(certificate):
        _require(isinstance(what, str) and isinstance(value, str), "figures are pairs of texts")


def _check_releases(certificate: ReleaseCertificate, price: int | None) -> None:
    """Check that the releases are proved, cost what they may, and cannot be left out or made cheaper."""
    cost = certificate.price.picorho
    _require(price is not None and 0 < cost <= price, f"a model for rho {to_rho(price or 0):g} costs {to_rho(cost):g}")
    for step in certificate.STEPS:
        _require(bool((type(step).__doc__ or "").strip()), f"the step {step.name} has no docstring, and so no proof")
    others: dict[str, dict[str, object]] = {"no cost": {"cost": ""}, "other assumptions": {"assumptions": ()}}
    for release in certificate.releases:
        step = next(each for each in certificate.STEPS if each.name == release.name)
        rest = tuple(each for each in certificate.releases if each is not release)
        if step.is_needed_by(certificate):
            others[f"no release of {release.name}"] = {"releases": rest}
    for what, changes in others.items():
        try:
            certificate.model_copy(update=changes).verify()
        except BundleError:
            continue
        raise AssertionError(f"a certificate with {what} holds")


def _check_noise(model: Any, again: Any) -> None:
    """Check that a second training on the same records releases something else: what was drawn is never drawn again."""
    rows = np.random.default_rng(2).uniform(size=(9, _WIDTH))
    answers = [each.values(rows) for each in (model, again)]
    _require(not np.array_equal(*answers), "two trainings on the same records answer alike: there is no fresh noise")


def _check_replay(trained: "_Trained") -> None:
    """Check that a record shows in releases alone, and moves none by more than its noise hides.

    A kind draws all of its noise from `job.randomness`.
    """
    number = count()

    def train(records: Records, tape: Tape) -> Outcome:
        name = f"replay-{next(number)}"
        return outcome(trained.model(name, records, randomness=tape), trained.folder / name)

    for records in (trained.records(40), trained.records(40, label=0)):
        found = audit_training(train, records, trials=2)
        for broken in found.broken:
            raise AssertionError(f"a record shows beside what is released: {broken}")
        _require(bool(found.moved), f"no neighbours were compared: {'; '.join(found.refused)}")


def _check_features(trained: "_Trained") -> None:
    """Check that what was bought for the features is among the releases, where the kind can have such features."""
    if not any(step.name == CUTS.name for step in trained.kind.steps):
        return
    lower, upper = trained.declaration.lower, trained.declaration.upper
    records, whole = trained.records(_RECORDS), trained.price or 0
    bought, left = buy_features(
        (CUTS,), records, Quantiles(lower=lower, upper=upper, bias=0.0), whole, SystemRandomness()
    )
    with _naming("training on quantiles that were bought before, `job.before`,"):
        model = trained.model("on quantiles", records, bought, left)
    _require(
        model.certificate.releases[: len(bought.releases)] == bought.releases,
        "what was bought before the kind's turn, `job.before`, is not at the head of its releases",
    )


def _check_answers(kind: Kind, model: Any) -> None:
    """Check that a row's answer is of the row alone, bit for bit, whatever is asked beside it."""
    rows = np.random.default_rng(1).uniform(-0.5, 1.5, size=(17, _WIDTH))
    answers = model.values(rows)
    fields = kind.outputs(model.certificate)
    _require(answers.shape[0] == len(rows) and bool(np.isfinite(answers).all()), "answers are finite, one for each row")
    if fields.classes is not None:
        sums = answers.sum(axis=1)
        _require(bool(np.allclose(sums, 1) and (answers >= 0).all()), "probabilities of classes add up to 1")
    for place in range(len(rows)):
        alone = model.values(rows[place : place + 1].copy())
        _require(
            alone.tobytes() == answers[place : place + 1].tobytes(), "a row has other bits alone than among others"
        )
    with_noise, _ = model.answers(rows)
    _require(with_noise.tobytes() == answers.tobytes(), "a row has other bits where its noise is asked for")


def _check_export(kind: Kind, model: Any) -> None:
    """Check that the model leaves in every form, or that the kind says why it does not."""
    if kind.limitation("export") is not None:
        return
    for form in FORMS:
        with _naming(f"the export to {form}"), suppress(MissingExtra):
            exported(model, form)
    rows = np.random.default_rng(3).uniform(size=(9, _WIDTH))
    with _naming("what `classifier` returns"):
        written = _probabilities(kind.classifier(model), rows)
    _require(np.allclose(written, model.values(rows), atol=1e-6), "what `classifier` returns answers otherwise")


def _probabilities(classifier: ReleasedClassifier, rows: Floats) -> Floats:
    """Return what the numbers of an export answer to rows, (n, C), in floating point."""
    phi = classifier.feature_map(rows, classifier.tensors)
    if classifier.centre is not None:
        phi = unit(unit(phi) - classifier.centre)
    logits = np.zeros((len(rows), len(classifier.certificate.classes)))
    for (weights, biases), *later in classifier.networks:
        values = phi @ weights + biases
        for following, its_biases in later:
            values = np.tanh(values) @ following + its_biases
        logits += values
    return softmax(logits)
