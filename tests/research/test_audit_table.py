"""The auditors' guide shows what each audit said of each planted fault."""

import pytest

from research.audit_table import AUDITS, CONVICTS_WORD, PAGE, as_markdown, shown_in, tabulate
from research.planted_faults import FAULTS

SHOWN = shown_in(PAGE.read_text("utf-8"))
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in SHOWN.splitlines()]


def test_the_page_has_every_fault_and_every_audit():
    assert ROWS[0][1:] == [*AUDITS]
    assert [row[0] for row in ROWS[2:]] == [*FAULTS]


def test_each_audit_convicts_something_and_each_fault_is_convicted_by_one():
    faults = [row for row in ROWS[2:] if FAULTS[row[0]].patches]
    assert len(faults) >= 12
    assert all(CONVICTS_WORD in row for row in faults)
    assert all(CONVICTS_WORD in column for column in list(zip(*faults, strict=True))[1:])
    assert not any(CONVICTS_WORD in row for row in ROWS[2:] if row not in faults)


@pytest.mark.slow
@pytest.mark.fresh_noise  # of which the sampler's forks must have different words
@pytest.mark.parametrize("part", range(7))
def test_the_page_shows_what_the_audits_say(part):
    """A right sampler is convicted with a probability of 21e-8 in all, and the other audits at 1e-9 each."""
    faults = dict([*FAULTS.items()][part::7])
    said = as_markdown(tabulate(faults)).splitlines()[2:]
    assert said == [line for line in SHOWN.splitlines()[2:] if line.split("|")[1].strip() in faults]
