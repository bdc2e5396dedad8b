"""Each planted fault is convicted. How often one could escape is said where it is tested."""

import numpy as np
import pytest

from research.nasr2023 import faults
from research.nasr2023.faults import FAULTS, faulty, noise_ratio_of, observations_for, planted_fault
from research.white_box.bounds import largest_ratio, pooled_bound, power, repetition_bound
from tests.research.steps import CLAIM, CLAIMED_MU, DELTA, SURE, observed


def test_clipping_after_averaging_is_convicted(network, records):
    """The canary moves the sum by about 12 where the noise is 3; 300 observations hardly mix, where 70 would do."""
    audited = faulty("clip-after-averaging", network, CLAIM, 4, records=60)
    inside, outside = observed(audited, records, 300)
    assert pooled_bound(inside, outside, SURE).value > CLAIMED_MU


def test_noise_from_few_seeds_is_convicted(network, records):
    """Half of 2,000 observations show each of 100 noises but for a probability of 100 e^-10, and one unseen is little.

    So the score errs on less than 5 % of the other half, and mu is above 3, but for a probability far below 1e-6.
    """
    audited = faulty("noise-from-100-seeds", network, CLAIM, 5, records=60)
    inside, outside = observed(audited, records, 2000)
    assert np.count_nonzero(np.diff(np.sort(outside)) > 1e-4) < 100
    assert repetition_bound(inside, outside, SURE).value > 2 > CLAIMED_MU


def test_runs_of_a_program_with_few_seeds_share_its_noises_and_nothing_else(network, records, monkeypatch):
    """Runs that copied one another would look like repeated noise whatever the number of seeds."""
    runs = [observed(faulty("noise-from-100-seeds", network, CLAIM, run, records=60), records, 300) for run in (5, 6)]
    assert not np.array_equal(runs[0], runs[1])
    assert len(np.unique(np.round(np.concatenate([outside for _, outside in runs]), 6))) < 600
    monkeypatch.setattr(faults, "SEEDS", 10**9)
    many = [observed(faulty("noise-from-100-seeds", network, CLAIM, run, records=60), records, 500) for run in (5, 6)]
    inside, outside = (np.concatenate(both) for both in zip(*many, strict=True))
    assert repetition_bound(inside, outside, SURE).value <= CLAIMED_MU


def test_too_little_noise_is_convicted(network, records):
    """For a true epsilon of 2.17: as many observations as convict it but for a probability of 1e-6, in closed form."""
    ratio = noise_ratio_of(2.17, DELTA)
    audited = faulty("noise-too-small", network, CLAIM, 6, records=60, noise_ratio=ratio)
    inside, outside = observed(audited, records, observations_for(CLAIMED_MU, ratio, SURE, 1 - 1e-6))
    assert pooled_bound(inside, outside, SURE).value > CLAIMED_MU


@pytest.mark.parametrize("ratio", [0.3, 0.6, 0.8255])
def test_an_audit_is_sized_for_its_fault(ratio):
    count = observations_for(CLAIMED_MU, ratio, 1 - 1e-9 / 3)
    assert power(CLAIMED_MU, ratio, count, 1 - 1e-9 / 3) >= 0.99
    assert power(CLAIMED_MU, ratio, count * 9 // 10, 1 - 1e-9 / 3) < 0.99
    assert ratio <= largest_ratio(CLAIMED_MU, count, 1 - 1e-9 / 3) < ratio * 1.01


def test_faults_need_names_and_ratios_that_mean_something(network):
    with pytest.raises(ValueError, match="planted faults are"):
        faulty("clip-never", network, CLAIM, 0, records=60)
    with pytest.raises(ValueError, match="between 0 and 1"):
        faulty("noise-too-small", network, CLAIM, 0, records=60, noise_ratio=1.0)
    assert len(FAULTS) == 3
    assert planted_fault("none") is None
    with pytest.raises(ValueError, match="or none, not"):
        planted_fault("clip-never")
    with pytest.raises(ValueError, match="cannot distinguish"):
        observations_for(CLAIMED_MU, 1.0, SURE)
