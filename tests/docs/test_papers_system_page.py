"""The papers' system, command by command, with the embedded ledger and with a store of the owner's."""

import pytest

from tests.faults.servers import StoreServer

from .walkthrough import Walkthrough

pytestmark = pytest.mark.slow


def test_the_papers_system_is_shown_as_printed(tmp_path):
    """Chance convicts the selected neuron with probability below 1e-6, and acquits `published` below 1e-100.

    The first where the attack's rates differ by at most 0.05: 8.9e-7, added up over all counts of 75 and 75 decisions.
    Members and non-members answer alike here: 1.3e-8.
    """
    with Walkthrough(tmp_path) as reader:
        reader.walk("papers-system.md")


def test_the_papers_system_charges_a_store_of_the_owners(tmp_path):
    with StoreServer(tmp_path / "store") as store, Walkthrough(tmp_path / "reader") as reader:
        reader.environment["DPSERVE_LEDGER"] = store.url
        reader.walk("papers-system.md", left_out="dpserve attack")
        assert not (tmp_path / "reader" / "home" / "ledger").exists()
        assert "│ alice   │ 6 " in "\n".join(reader.run_dpserve(["clients", "list"]))
