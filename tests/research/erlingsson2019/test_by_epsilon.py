"""Sections 3 and 4 of Erlingsson et al. 2019: the rotation, and the noise that each analysis asks for."""

import pytest

from research.erlingsson2019.by_epsilon import (
    ANALYSES,
    DELTA,
    JAYARAMAN_EVANS,
    ROTATED,
    SAMPLING_RATE,
    STEPS,
    noise_for,
    printed_tables,
)


@pytest.mark.parametrize("analysis", ANALYSES)
@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_the_noise_has_the_epsilon_that_was_asked_for(analysis, epsilon):
    noise = noise_for(analysis, epsilon, SAMPLING_RATE, STEPS, DELTA)
    assert ANALYSES[analysis](noise, SAMPLING_RATE, STEPS, DELTA) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize(("epsilon", "printed"), [(1.0, 6.99), (10.0, 1.06)])
def test_by_rdp_it_is_the_printed_noise(epsilon, printed):
    assert noise_for("RDP", epsilon, SAMPLING_RATE, STEPS, DELTA) == pytest.approx(printed, abs=0.0095)


def test_the_rotated_cells_are_those_of_the_table_that_was_rotated():
    assert [ROTATED[0.5][name][1] for name in ("naive", "advanced", "zCDP", "RDP")] == [152, 138, 157, 122]
    for cells in (ROTATED[0.93], ROTATED[0.5]):
        for analysis, (epsilon, count) in cells.items():
            assert JAYARAMAN_EVANS.get((float(epsilon), analysis), (0, count))[1] == count


def test_a_more_careful_analysis_needs_less_noise_at_the_same_epsilon():
    section_4 = printed_tables()[2]
    noise = {(row[0], row[1]): float(row[2]) for row in section_4.rows}
    assert noise["1", "naive"] > noise["1", "advanced"] > noise["1", "RDP"]


def test_the_table_says_what_the_rounding_of_its_least_multiplier_explains():
    """The greatest that rounds to 0.44 is 0.445."""
    note = printed_tables()[3].note
    assert f"{ANALYSES['RDP'](0.445, SAMPLING_RATE, STEPS, DELTA):.0f}" in note
    assert f"{noise_for('RDP', 100.0, SAMPLING_RATE, STEPS, DELTA):.4g}" in note
