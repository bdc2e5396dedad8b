import numpy as np

from dpserve.training.kinds.dpsgd.noisy_step import StepRelease
from research.white_box.observations import (
    Descent,
    Example,
    mislabel,
    observe_steps,
    quiet_coordinate,
    sound,
)


def test_a_canary_that_is_a_record_passes_through_the_clipping(network, records):
    """Its gradient is far longer than the clipping norm, and moves the observation by 1 and no more (5.5 errors)."""
    audited = sound(network, StepRelease(0.2, 0.5, clip_norm=0.05), 1)
    found = observe_steps(audited, records, Descent(200, 0.01), Example(np.ones(6), 2))
    assert abs((found.with_canary - found.without).mean() - 1) < 5.5 * 0.2 * np.sqrt(2 / 200)


def test_the_quiet_coordinate_is_one_that_no_record_uses(network, records):
    inputs = records.inputs.copy()
    inputs[:, 4] = 0
    coordinate = quiet_coordinate(network, network.initial(0) + 0.1, inputs, records.labels)
    assert coordinate in range(4 * 5, 5 * 5)  # the weights that leave input 4


def test_a_mislabelled_canary_is_a_record_with_another_label(records):
    example = mislabel(records.inputs, records.labels, 3, 7)
    (row,) = np.flatnonzero((records.inputs == example.x).all(axis=1))
    assert records.labels[row] != example.label
