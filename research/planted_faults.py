"""Faults of privacy, planted in the running code: what audits must convict, for tests and `research.audit_table`.

A fault is what somebody could write by mistake: each is one function of the product that is replaced while a context
lasts. With it goes the training in which it shows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.audit import in_process
from dpserve.audit import replay as audited
from dpserve.mechanisms.gaussian_vector import GaussianVector
from dpserve.mechanisms.noise import RoundedGaussian
from dpserve.mechanisms.randomness import KeyedRandomness
from dpserve.mechanisms.wide_gaussian import WideGaussian
from dpserve.training import holding_back
from dpserve.training.bundles import certificate
from dpserve.training.feature_choice import AutoFeatures, Features, IdentityFeatures, QuantileFeatures
from dpserve.training.fit import Request
from dpserve.training.fitting import histograms
from dpserve.training.fitting.network import Network
from dpserve.training.inputs.lineage import RecordRegistry
from dpserve.training.inputs.records import Declaration, Digests, Records, Units
from dpserve.training.kinds import registry
from dpserve.training.kinds.class_sums import steps as class_sums
from dpserve.training.kinds.class_sums.kind import ClassSums
from dpserve.training.kinds.dpsgd import noisy_step
from dpserve.training.kinds.dpsgd import steps as dpsgd
from dpserve.training.kinds.dpsgd.kind import DPSGD
from dpserve.training.kinds.head.kind import Head
from dpserve.training.kinds.kind import Job
from dpserve.training.kinds.registry import kind_for
from dpserve.training.kinds.weights.kind import Weights
from dpserve.training.options import Options
from dpserve.training.pay_once.certificate import ReleaseCertificate

RECORDS = 90


def made_records(count: int = RECORDS, people: int = 0, features: int = 4) -> Records:
    """Return records of three classes, one at all upper bounds and two alike. people: their units; 0 for none."""
    generator = np.random.default_rng(count)
    X = generator.uniform(size=(count, features))
    X[3], X[4] = 1.0, X[5]
    declared = Declaration(
        tuple(f"x{place}" for place in range(features)), (0.0,) * features, (1.0,) * features, ("x", "y", "z")
    )
    y = np.minimum((X[:, 0] * 3).astype(np.int64), 2)
    units = None
    if people:
        _, of = np.unique(generator.integers(people, size=count), return_inverse=True)
        units = Units("person", of)
    source = np.frombuffer(X[:, :2].tobytes(), np.uint8).reshape(count, 16)
    return Records(X, y, declared, Digests(source), units)


Patch = tuple[object, str, Callable[[Any], Any]]
"""Where a function is, its name, and what makes another of it."""


@dataclass(frozen=True)
class PlantedFault:
    """A fault. patches: make it. kind, features, sets, people: the training that it shows in.

    broken: what replay finds broken of it; nothing where it cannot find any.
    """

    patches: Sequence[Patch]
    kind: Options
    broken: frozenset[str] = frozenset()
    features: Features = field(default_factory=AutoFeatures)
    sets: str = "off"
    people: int = 0
    records: int = RECORDS

    def request(self) -> Request:
        """Return the request for that training."""
        bought: dict[str, Any] = {}
        if kind_for(self.kind).answers == "once":
            bought = {"price": 3 * 10**12 if self.records > RECORDS else 5 * 10**11, "n": RECORDS}
        given = {"kind": self.kind, "features": self.features, "prediction_sets": self.sets}
        return Request(name="audited", lineage="audited", **given, **bought)

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have the fault in the product while the context lasts."""
        with ExitStack() as stack:
            for owner, name, make in self.patches:
                stack.enter_context(patch.object(owner, name, make(getattr(owner, name))))
            yield


def _instead(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def _both_parts(original: Any) -> Any:
    def hold_back(records: Records, *more: Any) -> tuple[Records, Records]:
        _, held = original(records, *more)
        return records, held

    return hold_back


def _name_of_a_sum(original: Any) -> Any:
    return lambda options, job: original(options, replace(job, name=f"m{job.records.X.sum():.6f}"))


class _Exact:
    """A release without noise."""

    def release(self, values: Floats, randomness: object) -> Floats:
        """Return the values."""
        del randomness
        return values


def _clipped_too_late(original: Any) -> Any:
    return lambda network, parameters, inputs, labels, clip_norm, *more: original(
        network, parameters, inputs, labels, 4 * clip_norm, *more
    )


def _one_more_centre(original: Any) -> Any:
    def run(step: Any, state: Any, *more: Any) -> Any:
        if len(state.records) % 2:
            original(step, state, *more)
        return original(step, state, *more)

    return run


def _calibration_by_the_exact_count(original: Any) -> Any:
    def with_calibration(state: Any, calibration: Any) -> Any:
        return original(state, replace(calibration, scale=calibration.scale * (1 + len(state.records) * 2.0**-40)))

    return with_calibration


def _centre_by_the_exact_count(original: Any) -> Any:
    def run(step: Any, state: Any, *more: Any) -> Any:
        after = original(step, state, *more)
        return replace(after, model=replace(after.model, centre=after.model.centre / len(state.records)))

    return run


def _sets_by_the_records(original: Any) -> Any:
    def fit(records: Records, request: Any, *more: Any, **given: Any) -> Any:
        return original(records, request.replaced(prediction_sets=("off", "all")[len(records) % 2]), *more, **given)

    return fit


class _Known:
    """Leak 1: who asked for a model's public part was told whether any new record is among the lineage's known ones.

    And by that, whether there are prediction sets.
    """

    def __init__(self) -> None:
        self.apart = True

    def fit(self, original: Any) -> Any:
        """Return a training that looks whether the records are known."""

        def fit(records: Records, request: Any, *more: Any, state: Any, **given: Any) -> Any:
            registry = RecordRegistry(state)
            self.apart = not registry.has_any(registry.digests(records), request.lineage)
            changed = request.replaced(prediction_sets="all" if self.apart else "off")
            return original(records, changed, *more, state=state, **given)

        return fit

    def shown(self, original: Any) -> Any:
        """Return what shows it."""
        return lambda shown: {**original(shown), "apart": self.apart}


def _scale_of_a_release(original: Any) -> Any:
    """Leak 2: a public scale, in full precision, by which a released number can be told."""
    return lambda shown: {**original(shown), "scale": 0.1 * sum(shown.prediction_sets.released[0])}


def _number_of_cuts(original: Any) -> Any:
    """Leak 2, too: the dimension of features tells how many cuts there are, and so about how many records."""
    return lambda shown: {**original(shown), "dimension": shown.feature_map.dimension}


def _third_of_the_noise(original: Any) -> Any:
    return lambda vector, values, randomness: _towards(values, original(vector, values, randomness), vector.step)


def _third_of_the_noise_of_a_step(original: Any) -> Any:
    return lambda total, spacing, randomness: _towards(total, original(total, spacing, randomness), spacing)


def _towards(values: Floats, released: Floats, step: float) -> Floats:
    """Return values with a third of their noise, on the grid as they were."""
    noisy: Floats = np.rint((2 * values + released) / 3 / step) * step
    return noisy


def _half_of_the_draw(original: Any) -> Any:
    return lambda law, words: np.rint(original(law, words) / 2).astype(np.int64)


def _words_of_no_question(original: Any) -> Any:
    return lambda randomness, noise_key, context, questions: original(
        randomness, noise_key, context, [b""] * len(questions)
    )


FAULTS: Mapping[str, PlantedFault] = {
    "none, a head": PlantedFault([], Head()),
    "none, class sums": PlantedFault([], ClassSums(), sets="all"),
    "the records of a unit count in full": PlantedFault(
        [(Units, "weights", _instead(lambda units: np.ones(len(units.of))))],
        ClassSums(),
        frozenset({"movement"}),
        people=10,
    ),
    "cuts are at exact quantiles": PlantedFault(
        [(histograms, "vector_for", _instead(lambda *_: _Exact()))],
        Weights(),
        frozenset({"strangers", "clients"}),
        QuantileFeatures(),
    ),
    "the centre is divided by the exact number of records": PlantedFault(
        [(dpsgd.Centre, "run", _centre_by_the_exact_count)], DPSGD(steps=20), frozenset({"clients"})
    ),
    "the declared number of records is read off": PlantedFault(
        [(Job, "terms", lambda terms: property(lambda job: replace(terms.fget(job), n=len(job.records))))],
        DPSGD(steps=20),
        frozenset({"strangers", "sequence"}),
    ),
    "a rule looks at the records": PlantedFault(
        [(audited, "fit", _sets_by_the_records)],
        ClassSums(),
        frozenset({"sequence"}),
    ),
    "a record is in both parts": PlantedFault(
        [(holding_back, "hold_back", _both_parts)], ClassSums(), frozenset({"parts"}), sets="all"
    ),
    "a public field is computed from the records": PlantedFault(
        [(registry, "train_and_save", _name_of_a_sum)], Weights(), frozenset({"strangers"})
    ),
    "strangers hear whether a record is known": PlantedFault(
        [
            (audited, "fit", (known := _Known()).fit),
            (ReleaseCertificate, "shown_to_strangers", known.shown),
        ],
        ClassSums(),
        frozenset({"strangers"}),
        sets="all",
    ),
    "strangers see a scale that follows from a release": PlantedFault(
        [(ReleaseCertificate, "shown_to_strangers", _scale_of_a_release)],
        ClassSums(),
        frozenset({"strangers"}),
        sets="all",
    ),
    "strangers see the number of cuts": PlantedFault(
        [(ReleaseCertificate, "shown_to_strangers", _number_of_cuts)],
        Weights(),
        frozenset({"strangers"}),
        QuantileFeatures(),
        records=1000,
    ),
    "gradients are clipped too late": PlantedFault(
        [(Network, "clipped_sum", _clipped_too_late)], DPSGD(steps=20), frozenset({"movement"})
    ),
    "rows are longer than the sensitivity": PlantedFault(
        [(class_sums, "sums_of", lambda original: lambda *given: 1.5 * original(*given))],
        ClassSums(),
        frozenset({"movement"}),
        IdentityFeatures(),
    ),
    "there is a release more for some records": PlantedFault(
        [(class_sums.Centre, "run", _one_more_centre)], ClassSums(), frozenset({"sequence"})
    ),
    "calibration knows the exact number of records": PlantedFault(
        [(class_sums.Training, "with_calibration", _calibration_by_the_exact_count)],
        ClassSums(),
        frozenset({"clients"}),
    ),
    "a head is certified to move a fiftieth": PlantedFault(
        [(certificate, "quantised_weight_sensitivity", lambda original: lambda *given: original(*given) / 50)],
        Head(),
        frozenset({"movement"}),
    ),
    "a model has a third of its noise": PlantedFault(
        [
            (GaussianVector, "_with_noise", _third_of_the_noise),
            (noisy_step, "with_noise", _third_of_the_noise_of_a_step),
        ],
        ClassSums(),
    ),
    "all noise is drawn by half the law": PlantedFault(
        [(RoundedGaussian, "draw", _half_of_the_draw), (WideGaussian, "draw", _half_of_the_draw)], Head()
    ),
    "two questions have the same noise": PlantedFault([(KeyedRandomness, "__init__", _words_of_no_question)], Head()),
    "an answer is not charged": PlantedFault(
        [(in_process.BundleEndpoint, "charge", _instead(lambda *_: None))], Head()
    ),
}
