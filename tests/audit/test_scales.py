"""Functions that draw too little are convicted, and those of the product are not."""

import numpy as np
import pytest

from dpserve.audit import sampler, scales
from dpserve.audit.scales import scale_tests
from dpserve.mechanisms.gaussian_vector import GaussianVector
from dpserve.mechanisms.seeded import SeededRandomness

DRAWS = 100_000
LEAST_P = 7e-8
"""Right functions have one p of 12 below it with a probability of 1e-6 at most."""


def found_by_name():
    return {one.what: one for one in scale_tests(DRAWS, SeededRandomness(1, ("scales",)))}


def test_what_draws_as_much_as_it_promises_is_not_convicted():
    found = found_by_name()
    assert min(one.p for one in found.values()) > LEAST_P
    assert {"noise on a vector", "noise on a step of DP-SGD"} <= found.keys()
    for one in found.values():
        assert one.ratio is None or 0.9 < one.ratio < 1.1, one


def test_a_vector_with_less_noise_is_convicted(monkeypatch):
    """Nine tenths of it: the standard error of 100,000 numbers is a 450th."""
    honest = GaussianVector._with_noise
    monkeypatch.setattr(GaussianVector, "_with_noise", lambda self, values, words: 0.9 * honest(self, values, words))
    found = found_by_name()
    assert found["noise on a vector"].p < 1e-12
    assert found["noise on a step of DP-SGD"].p > LEAST_P


@pytest.mark.parametrize(
    ("name", "fault", "convicted"),
    [
        ("with_noise", lambda honest: lambda total, step, words: 0.9 * honest(total, step, words), "a step of DP-SGD"),
        ("grid_step", lambda honest: lambda release, size: honest(release, size) / 2, "a step of DP-SGD"),
        ("poisson_sample", lambda honest: lambda n, rate, words: honest(n, 1.5 * rate, words), "take part in a step"),
        ("hold_back", lambda honest: lambda records, one_in, words: honest(records, one_in - 1, words), "held back"),
    ],
)
def test_a_function_of_training_with_a_fault_is_convicted(monkeypatch, name, fault, convicted):
    monkeypatch.setattr(scales, name, fault(getattr(scales, name)))
    (found,) = [one for what, one in found_by_name().items() if convicted in what]
    assert found.p < 1e-12


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "selected-neuron", "label"])
def test_a_mechanism_with_half_of_the_noise_is_convicted(monkeypatch, mechanism):
    class Half:
        def __init__(self, sound):
            self.sound, self.answer_noise = sound, sound.answer_noise

        def release(self, logits, sensitivity, words):
            return self.sound.release(logits, sensitivity / 2, words)

    honest = scales.judge_known_logits
    monkeypatch.setattr(scales, "priced", lambda name, price, classes: Half(sampler.priced(name, price, classes)))
    monkeypatch.setattr(scales, "judge_known_logits", lambda half, *rest: honest(half.sound, *rest))
    found = [one for what, one in found_by_name().items() if f"answers of {mechanism} " in what]
    assert found
    assert max(one.p for one in found) < 1e-9


def test_the_sampler_is_convicted_by_what_draws_too_little():
    few = scales.ScaleTest("noise on a vector", 10, 0.5, 1e-20)
    right = scales.ScaleTest("noise on a vector", 10, 1.0, 0.3)
    for test, faults in ((few, ("noise on a vector: not as much as is promised",)), (right, ())):
        chi_square = sampler.ChiSquare("law", 2, 0.0, 1.0)
        finding = sampler.SamplerFinding({}, [("gaussian", chi_square)], [test], 1e-6, 0, 0, {})
        assert finding.faults == faults
        assert finding.least_p == pytest.approx(5e-7)
    assert np.isfinite(few.p)
