"""`dpserve clients` by itself: whom it takes, and how much it gives."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from accounting.budgets import Budget
from accounting.ledger import ActRefused, Ledger
from dpserve.commands.accounts import clients


def _clients(folder: Path, *words: str) -> Result:
    return CliRunner(env={"COLUMNS": "120"}).invoke(clients, [*words, "--ledger", str(folder)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    async def opened() -> None:
        async with Ledger.open(tmp_path / "ledger") as ledger:
            await ledger.open_lineage("records", Budget.from_rho(0.5, 1e-5, "gaussian"), time=0.0)

    asyncio.run(opened())
    return tmp_path / "ledger"


def test_a_client_that_would_get_more_than_its_lineage_has_is_refused(folder: Path) -> None:
    refused = _clients(folder, "add", "ann", "--rho", "0.6", "--delta", "1e-5")
    assert isinstance(refused.exception, ActRefused)
    assert "ann would get rho = 0.6, and the lineage" in str(refused.exception)
    assert "raise the lineage's budget" in str(refused.exception)
    assert _clients(folder, "add", "ann", "--rho", "0.5", "--delta", "1e-5").exit_code == 0
    more = _clients(folder, "set-budget", "ann", "--rho", "0.7", "--delta", "1e-5", "--yes")
    assert isinstance(more.exception, ActRefused)


def test_a_client_is_named_by_an_address_or_a_subject(folder: Path) -> None:
    for name in ("ann@example.org", "auth0|5f7c8ec7", "Zoë"):
        assert _clients(folder, "add", name, "--rho", "0.1", "--delta", "1e-5").exit_code == 0
        assert _clients(folder, "show", name).output.startswith(f"{name} of lineage records is active")
    listed = _clients(folder, "list").output
    assert all(name in listed for name in ("ann@example.org", "auth0|5f7c8ec7", "Zoë"))
