"""A client who comes in by the same keys in several lineages is one person: acts on its keys are done in all."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import ClientRevoked, Ledger, UnknownKey, key_digest
from dpserve.cli import app
from dpserve.commands.accounts import clients

BUDGET = ("--rho", "0.1", "--delta", "1e-5")


class Owner:
    """Runs `dpserve clients` on a ledger of three lineages, and asks whose a key is in each of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = self("add", "ann", "--lineage", "clinic", *BUDGET).stdout.strip()
        self("add", "ann", "--lineage", "peng", "--keys-of", "clinic", *BUDGET)

    def run(self, *words: str) -> Result:
        return CliRunner(env={"COLUMNS": "120"}).invoke(clients, [*words, "--ledger", str(self.folder)])

    def __call__(self, *words: str) -> Result:
        done = self.run(*words)
        assert done.exit_code == 0, done.output
        return done

    def open_in(self, key: str) -> Sequence[str]:
        async def ask() -> Sequence[str]:
            found = []
            async with Ledger.open(self.folder) as ledger:
                for lineage in await ledger.lineage_names():
                    try:
                        await ledger.api_keys.authenticate(lineage, key_digest(key))
                    except (UnknownKey, ClientRevoked):
                        continue
                    found.append(lineage)
            return found

        return asyncio.run(ask())


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    async def opened() -> None:
        async with Ledger.open(tmp_path) as ledger:
            for lineage in ("clinic", "other", "peng"):
                await ledger.acting("owner").open_lineage(lineage, Budget.from_rho(0.5, 1e-5, "gaussian"), time=0.0)

    asyncio.run(opened())
    return Owner(tmp_path)


def test_a_key_is_rotated_wherever_it_opens_and_nowhere_else(owner: Owner) -> None:
    stranger = owner("add", "bob", "--lineage", "other", *BUDGET).stdout.strip()
    assert owner.open_in(owner.key) == ["clinic", "peng"]
    done = owner("rotate-key", "ann")
    assert "clinic, peng" in done.stderr
    assert owner.open_in(owner.key) == []
    assert owner.open_in(done.stdout.strip()) == ["clinic", "peng"]
    assert owner.open_in(stranger) == ["other"]


def test_where_a_lineage_is_named_it_is_said_that_the_key_goes_on_elsewhere(owner: Owner) -> None:
    done = owner("rotate-key", "ann", "--lineage", "clinic")
    assert "in clinic alone; what it has goes on in peng" in done.stderr
    assert owner.open_in(owner.key) == ["peng"]
    assert owner.open_in(done.stdout.strip()) == ["clinic"]


@pytest.mark.parametrize("words", [("revoke", "ann"), ("remove-key", "ann")])
def test_what_is_taken_away_is_taken_away_everywhere(owner: Owner, words: tuple[str, ...]) -> None:
    more = (key_digest(owner.key)[:6].hex(),) if words[0] == "remove-key" else ()
    assert "clinic, peng" in owner(*words, *more).output
    assert owner.open_in(owner.key) == []


def test_two_persons_of_one_name_are_told_apart(owner: Owner) -> None:
    own = owner("add", "ann", "--lineage", "other", *BUDGET).stdout.strip()
    refused = owner.run("revoke", "ann")
    assert refused.exit_code != 0
    assert "clinic, other, peng" in str(refused.exception)
    owner("revoke", "ann", "--lineage", "other")
    assert (owner.open_in(own), owner.open_in(owner.key)) == ([], ["clinic", "peng"])


def test_the_only_lineage_of_a_client_is_taken_and_said(owner: Owner) -> None:
    owner("add", "bob", "--lineage", "other", *BUDGET)
    done = owner("set-budget", "bob", "--rho", "0.05", "--delta", "1e-5")
    assert "in the lineage other" in done.stderr
    assert "of lineage other is active" in owner("show", "bob").stdout
    explained = CliRunner().invoke(app, ["explain", "--client", "bob", "--json", "--ledger", str(owner.folder)])
    assert json.loads(explained.stdout)["limit"]["rho"] == 0.05
    several = owner.run("set-budget", "ann", "--rho", "0.05", "--delta", "1e-5")
    assert "clinic, peng" in str(several.exception)
