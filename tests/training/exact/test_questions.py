"""One question, one answer: the same bits whatever computes them, and other words for any other question."""

import hashlib
import os
import platform
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.randomness import NoiseKey
from dpserve.training.bundles.certificate import now
from dpserve.training.exact.network import exact_layers, logits, rounded
from dpserve.training.exact.quantised import products, quantised, summands
from dpserve.training.exact.questions import noise_of
from dpserve.training.features.maps import Fourier, Identity
from dpserve.training.features.whole_steps import STEP
from dpserve.training.kinds.head.bundle import CertifiedHead, save_bundle
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.published.bounds import Topology
from dpserve.training.kinds.published.bundle import (
    PublishedNetwork,
    ScaledInputs,
    UnprovenCertificate,
    claims,
    save_published,
)
from tests.training.answering import answers, asked, mechanisms_for
from tests.training.conftest import make_records

KERNELS = ("Prescott", "Nehalem", "Sandybridge", "Haswell", "SkylakeX")
"""Kernels of OpenBLAS. One that this processor lacks is another one, which costs a run and shows nothing."""


def published(records, activation) -> PublishedNetwork:
    """A network that nobody trained: what it answers must be the same everywhere all the same."""
    topology, generator = Topology(4, (30, 20), 3), np.random.default_rng(5)
    certificate = UnprovenCertificate(
        name="rival",
        model_id="1" * 32,
        created=now(),
        objective="cross-entropy",
        alpha=1.0,
        classes=records.declaration.classes,
        feature_names=records.declaration.feature_names,
        feature_map=ScaledInputs(lower=records.declaration.lower, upper=records.declaration.upper),
        hidden=topology.hidden,
        activation=activation,
        records=60,
        l2_regulariser=0.001,
        lineage="people",
        **claims(topology, 60, 0.001),
    )
    shapes = zip(topology.widths, topology.widths[1:], strict=False)
    layers = tuple((generator.normal(size=shape), generator.normal(size=shape[1])) for shape in shapes)
    return PublishedNetwork(certificate, exact_layers(layers), NoiseKey.fresh())


@pytest.fixture(scope="session")
def bundles(tmp_path_factory) -> dict[str, Path]:
    """One of every kind that is paid for answer by answer."""
    folder = tmp_path_factory.mktemp("bundles")
    records = make_records(n=60)
    shared = {"lower": records.declaration.lower, "upper": records.declaration.upper, "clip_norm": 0.9, "bias": 0.3}
    maps = {
        "identity": Identity(**shared),
        "fourier": Fourier(**shared, random_features=300, bandwidth=0.4, seed=1),
    }
    for name, feature_map in maps.items():
        save_bundle(folder / name, train_head(records, Recipe(name, feature_map, 0.01), "l"))
    for activation in ("tanh", "sigmoid"):
        save_published(folder / f"published-{activation}", published(records, activation))
    return {path.name: path for path in sorted(folder.iterdir())}


def printed(bundles, **environment):
    program = [sys.executable, "-m", "tests.training.answering", *map(str, bundles.values())]
    done = subprocess.run(
        program, env=os.environ | environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    floats, *others = done.stdout.splitlines()
    return floats, others


INSTRUCTIONS = {"NPY_DISABLE_CPU_FEATURES": " ".join(np.show_config(mode="dicts")["SIMD Extensions"].get("found", []))}
PLAIN_KERNEL = INSTRUCTIONS | {"OPENBLAS_CORETYPE": KERNELS[0]}


@pytest.mark.parametrize(
    "environments",
    [
        pytest.param((PLAIN_KERNEL,), id="one"),
        pytest.param(
            (
                *({"OPENBLAS_CORETYPE": kernel} for kernel in KERNELS),
                INSTRUCTIONS,
                PLAIN_KERNEL,
                *({"OPENBLAS_NUM_THREADS": threads} for threads in ("1", "2", "7")),
            ),
            id="all",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_no_kernel_thread_count_or_instruction_set_changes_a_bit(bundles, environments):
    floats, expected = printed(bundles)
    assert len(expected) == 2 * 6 + 2 * 2
    seen = {floats}
    for environment in environments:
        others, found = printed(bundles, **environment)
        assert found == expected, environment
        seen.add(others)
    if platform.machine() == "x86_64":
        assert len(seen) > 1, "no product in floats differed: the comparison shows nothing"


@pytest.mark.parametrize("kind", ["identity", "fourier", "published-tanh"])
def test_no_batch_size_or_order_of_rows_changes_a_bit(bundles, kind):
    model = load_model(bundles[kind])
    X = np.tile(asked(model), (6, 1))[:512]
    for mechanism in mechanisms_for(model)[::3]:
        together = answers(model, mechanism, X)
        for size in (1, 2, 3, 8, 64, 100, 511):
            starts = range(0, 96 if size == 1 else 512, size)
            apart = [answer for start in starts for answer in answers(model, mechanism, X[start : start + size])]
            assert apart == together[: len(apart)]
        order = np.random.default_rng(6).permutation(512)
        assert answers(model, mechanism, X[order]) == [together[row] for row in order]


def test_rows_with_the_same_features_are_one_question(head):
    X = np.array([[0.5, 0.25, 0.0, 1.0], [0.5, 0.25, -0.0, 7.0], [0.5 + 1e-12, 0.25, 0.0, 1.0]])
    first, *others = answers(head, Gaussian(5.0), X)
    assert others == [first, first]


def words(head: CertifiedHead, mechanism, phi):
    noise = noise_of(head, mechanism, phi, head.logit_sensitivity(phi))
    return noise.digests, noise.words(20 * len(phi))


def test_a_copy_of_a_bundle_answers_alike_and_a_model_trained_again_does_not(head, records, tmp_path):
    save_bundle(tmp_path / "bundle", head)
    loaded = load_model(tmp_path / "bundle")
    phi = head.features(records.X)
    for ours, theirs in zip(words(head, Gaussian(5.0), phi), words(loaded, Gaussian(5.0), phi), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    feature_map = head.certificate.feature_map
    again = train_head(records, Recipe("small", feature_map, 1.0), "lineage-of-tests")
    assert (again.weights == head.weights).all()
    assert not set(words(again, Gaussian(5.0), phi)[1]) & set(words(head, Gaussian(5.0), phi)[1])


def test_any_other_model_mechanism_price_or_question_has_other_words(head):
    """Equal words among 1,000 independent ones: a chance below 1e-13."""
    phi = head.features(np.array([[0.5, 0.25, 0.0, 1.0]]))
    moved = phi.copy()
    moved[0, 1] += STEP
    other_model = replace(head, certificate=head.certificate.model_copy(update={"model_id": "0" * 32}))
    other_key = replace(head, noise_key=NoiseKey.fresh())
    cases = [
        words(head, Gaussian(5.0), phi),
        words(head, Gaussian(5.0), moved),
        words(head, Gaussian(np.nextafter(5.0, 0.0)), phi),
        *(words(head, mechanism, phi) for mechanism in mechanisms_for(head)[1:]),
        words(other_model, Gaussian(5.0), phi),
        words(other_key, Gaussian(5.0), phi),
    ]
    digests = [digest for (digest,), _ in cases]
    assert len(set(digests)) == len(digests)
    all_words = np.concatenate([drawn for _, drawn in cases])
    assert len(np.unique(all_words)) == len(all_words)


def test_a_larger_sensitivity_of_the_same_features_is_another_question(head):
    """No version that states another sensitivity scales the same draw in another way."""
    phi = head.features(np.array([[0.5, 0.25, 0.0, 1.0]]))
    found = [noise_of(head, Gaussian(5.0), phi, np.array([moved])).digests for moved in (1.0, np.nextafter(1.0, 2.0))]
    assert found[0] != found[1]


def test_digests_tell_nothing_that_the_words_follow_from(head):
    """No digest's bytes are among its stream's, nor the key's."""
    (digest,), drawn = words(head, Gaussian(5.0), head.features(np.array([[0.5, 0.25, 0.0, 1.0]])))
    assert digest not in drawn.tobytes()
    assert hashlib.blake2b(digest).digest()[:8] not in drawn.tobytes()


def test_questions_and_logits_are_those_of_this_noise_version():
    """A question keeps its noise for ever, so what it is added to must stay: a change needs another `NOISE_VERSION`."""
    bounds = {"lower": (-1.0, 0.0, 0.0), "upper": (1.0, 3.0, 7.0), "clip_norm": 0.75, "bias": 0.25}
    grid = np.random.RandomState(6)
    X = grid.uniform(bounds["lower"], bounds["upper"], (40, 3))
    found = []
    for feature_map in (
        Identity(**bounds),
        Fourier(**bounds, random_features=12, bandwidth=0.5, seed=1),
    ):
        phi = feature_map(X, feature_map.public_tensors())
        weights = quantised(grid.uniform(-30, 30, (4, feature_map.dimension)))
        found.append(_digest(phi, products(phi, summands(weights))))
    inputs, widths = rounded(grid.uniform(0, 1, (40, 3))), (3, 8, 5, 4)
    layers = tuple((grid.uniform(-3, 3, each), grid.uniform(-1, 1, each[1])) for each in pairwise(widths))
    found += [_digest(logits(exact_layers(layers), inputs, activation)) for activation in ("tanh", "sigmoid")]
    assert found == [
        "8417c6a5f744e47c",
        "a80f3237edaff293",
        "c171fee7675bff7c",
        "2028b63678c6eea0",
    ]


def _digest(*numbers: np.ndarray) -> str:
    content = b"".join((each + 0.0).astype("<f8").tobytes() for each in numbers)
    return hashlib.sha256(content).hexdigest()[:16]
