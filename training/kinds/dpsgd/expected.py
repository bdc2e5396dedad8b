"""About how long a training by DP-SGD takes, for a bar of progress: from what one block of its records takes."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from dpserve.accounting.arrays import Floats, Integers, Mask, Singles
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.training.inputs.sums import ROWS, LocalSums, of_rows
from dpserve.training.kinds.dpsgd.centre import sum_of_rows
from dpserve.training.kinds.dpsgd.certificate import DpSgdCertificate
from dpserve.training.kinds.dpsgd.noisy_step import private_step
from dpserve.training.kinds.dpsgd.steps import CENTRE, NOISY_STEPS, Training, inputs_of
from dpserve.training.pay_once.calibration import CALIBRATION, calibrated


def expected_seconds(state: Training, certificate: DpSgdCertificate) -> Mapping[str, float]:
    """Return about how many seconds each step of a training takes that has not begun, in their order.

    Each takes what it takes of one block, on this machine and now, times the records that it goes over. What is
    computed of the block is forgotten, and its randomness is none of the training's.
    """
    network, words, lengths = certificate.network, SeededRandomness(0, ("expected",)), state.mapped.lengths
    block = of_rows(*_block(state))
    parameters = network.initial(certificate.first_weights_seed)
    few = replace(state, mapped=block, model=replace(state.model, parameters=parameters))
    step = private_step(network, certificate.step_release, words)
    inputs = inputs_of(few.rows, few.model.centre, certificate)
    blocks = sum(lengths) / len(block.shards[0]) / min(len(lengths), os.cpu_count() or 1)

    def centre() -> None:
        block.shards[0].made.clear()
        sum_of_rows(block, few.rows)

    half = np.arange(len(block.shards[0])) % 2 == 0

    def step_on(taken: Mask) -> None:
        replace(step, sample=lambda _: taken).noisy_totals(parameters, block, inputs, None)

    watch = _Watch()
    of_centre = watch.seconds(centre)
    with_none, with_half = watch.seconds(lambda: step_on(half & False)), watch.seconds(lambda: step_on(half))
    of_step = with_none + max(0.0, with_half - with_none) / float(half.mean()) * certificate.sampling_rate * blocks
    of_step += watch.seconds(lambda: step.sample(sum(lengths)))
    of_calibration = watch.seconds(lambda: calibrated(block, few.logits, few.classes, 1.0, words))
    expected = {
        CENTRE.name: of_centre * blocks,
        NOISY_STEPS.name: of_step * certificate.steps,
        CALIBRATION.name: of_calibration * blocks,
    }
    return {name: seconds * watch.slowdown for name, seconds in expected.items()}


def _block(state: Training) -> tuple[Floats | Singles, Integers]:
    """Return a block of the records; random rows where these are elsewhere."""
    if isinstance(state.mapped, LocalSums):
        X, y, _ = next(max(state.mapped.shards, key=len).blocks(replace(ROWS, at_once=state.rows.at_once)))
        return X, y
    feature_map, generator = state.model.certificate.feature_map, np.random.default_rng(0)
    count = state.rows.at_once
    X = generator.uniform(feature_map.lower, feature_map.upper, (count, len(feature_map.lower)))
    return X, generator.integers(state.classes, size=count)


class _Watch:
    """Measures processor time, and how much longer everything takes by the clock."""

    def __init__(self) -> None:
        self._began, self._began_thread = time.perf_counter(), time.thread_time()

    def seconds(self, run: Callable[[], object]) -> float:
        """Return the processor seconds of something that has run before."""
        run()
        began = time.thread_time()
        run()
        return time.thread_time() - began

    @property
    def slowdown(self) -> float:
        """The ratio of the time by the clock to that of a processor, which other work raises."""
        return (time.perf_counter() - self._began) / max(time.thread_time() - self._began_thread, 1e-9)
