"""The check for authors of kinds: it passes the kinds of this package and the examples, and convicts planted faults."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from dpserve import testing
from dpserve.testing import check_kind
from dpserve.training.kinds import registry
from dpserve.training.kinds.class_sums.bundle import save_class_sums
from dpserve.training.kinds.class_sums.kind import ClassSumsKind
from dpserve.training.kinds.class_sums.model import ReleasedClassSums
from dpserve.training.kinds.class_sums.steps import ClassTotals
from dpserve.training.kinds.class_sums.train import train_class_sums
from dpserve.training.kinds.registry import kind_named
from dpserve.training.kinds.weights.kind import WeightsKind
from tests.seeded import Seeded

EXAMPLES = Path(__file__).parents[1] / "another_package"


@pytest.mark.parametrize("name", ["class-sums", "weights", "dpsgd", "head"])
def test_every_kind_keeps_its_promises(name):
    check_kind(kind_named(name))


class Nameless(ClassSumsKind):
    name = "no name"


class Lacking(ClassSumsKind):
    limitations = {**ClassSumsKind.limitations, "wings": "it does not fly"}  # noqa: RUF012 - a constant of the class


class Spendthrift(ClassSumsKind):
    def train(self, job, options):
        return super().train(replace(job, price=2 * job.price), options)


class Forgetful(ClassSumsKind):
    def train(self, job, options):
        return super().train(replace(job, before=()), options)


class Embellishing(ClassSumsKind):
    def classifier(self, model):
        found = super().classifier(model)
        (((weights, biases),),) = found.networks
        return replace(found, networks=(((weights, biases + np.arange(len(biases))),),))


class Repeating(ClassSumsKind):
    def train(self, job, options):
        words = Seeded(1)
        model = train_class_sums(
            job.records, job.name, job.feature_map, job.model_price, job.lineage, words, before=job.before
        )
        return save_class_sums(job.out, model)


class Counting(ClassSumsKind):
    def train(self, job, options):
        return super().train(replace(job, name=f"of-{len(job.records)}"), options)


class Fainting(WeightsKind):
    def train(self, job, options):
        if len(job.records) < 2:
            raise ValueError("too few records")
        return super().train(job, options)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Nameless, "is no name"),
        (Lacking, "is no ability"),
        (Spendthrift, "costs"),
        (Forgetful, "job.before"),
        (Embellishing, "what `classifier` returns answers otherwise"),
        (Repeating, "answer alike"),
        (Fainting, "training on one record ends in ValueError"),
        (Counting, "a record shows beside what is released"),
    ],
)
def test_a_kind_that_breaks_a_promise_is_convicted_of_that(kind, said):
    with pytest.raises(AssertionError, match=said):
        check_kind(kind())


def test_answers_that_depend_on_the_rows_beside_them_are_convicted(monkeypatch):
    values = ReleasedClassSums.values

    def mixed(self, X):
        probabilities = values(self, X)
        shares = 0.9 * probabilities + 0.1 * probabilities.mean(axis=0)
        return shares / shares.sum(axis=1, keepdims=True)

    monkeypatch.setattr(ReleasedClassSums, "values", mixed)
    with pytest.raises(AssertionError, match="other bits alone"):
        check_kind(kind_named("class-sums"))


def test_a_step_without_a_proof_or_whose_release_may_be_missing_is_convicted(monkeypatch):
    monkeypatch.setattr(ClassTotals, "__doc__", "")
    with pytest.raises(AssertionError, match="no docstring"):
        check_kind(kind_named("class-sums"))


def test_the_examples_of_other_packages_keep_their_promises(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    names = ("noisy_shares.kind", "noisy_ratings.kind", "noisy_sums")
    shares, ratings, sums = examples = [import_module(name).KIND for name in names]
    monkeypatch.setattr(registry, "_kinds", {**registry.all_kinds(), **{kind.name: kind for kind in examples}})
    check_kind(shares)
    check_kind(ratings, classes=("1", "2", "5"))
    check_kind(sums)


def test_the_example_that_uses_features_learns(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    sums = import_module("noisy_sums").KIND
    monkeypatch.setattr(registry, "_kinds", {**registry.all_kinds(), sums.name: sums})
    trained = testing._Trained(sums, sums.options(), 10**12, ("no", "yes"), tmp_path)
    records = trained.records(300)
    answers, _ = trained.model("model", records).answers(records.X)
    assert np.mean(answers.argmax(axis=1) == records.y) > 0.8


def test_the_made_records_are_of_every_class():
    kind = kind_named("class-sums")
    trained = testing._Trained(kind, kind.options(), 10**12, ("a", "b", "c"), EXAMPLES)
    assert set(np.unique(trained.records(300).y)) == {0, 1, 2}
