"""`dpserve clients` by itself: whom it takes, and how much it gives."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner, Result

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import RAISED_AFTER_ANSWERS, ActRefused, Ledger, UnknownGroup
from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.commands.accounts import clients, groups
from dpserve.commands.command import with_options
from dpserve.commands.explaining import explain
from dpserve.commands.options import operating_systems_user
from tests.accounting.ledger.conftest import asking


def _clients(folder: Path, *words: str) -> Result:
    return CliRunner(env={"COLUMNS": "120"}).invoke(clients, [*words, "--ledger", str(folder)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    async def opened() -> None:
        async with Ledger.open(tmp_path / "ledger") as ledger:
            await ledger.acting("owner").open_lineage("records", Budget.from_rho(0.5, 1e-5, "gaussian"), time=0.0)

    asyncio.run(opened())
    return tmp_path / "ledger"


def test_a_client_that_would_get_more_than_its_lineage_has_is_refused(folder: Path) -> None:
    refused = _clients(folder, "add", "ann", "--rho", "0.6", "--delta", "1e-5")
    assert isinstance(refused.exception, ActRefused)
    assert "ann would get rho = 0.6, and the lineage, which pays for every answer too, has rho = 0.5" in str(
        refused.exception
    )
    assert "raise the lineage's budget" in str(refused.exception)
    assert _clients(folder, "add", "ann", "--rho", "0.5", "--delta", "1e-5").exit_code == 0
    more = _clients(folder, "set-budget", "ann", "--rho", "0.7", "--delta", "1e-5", "--yes")
    assert isinstance(more.exception, ActRefused)


def test_a_raise_is_warned_of_once_there_were_answers(folder: Path) -> None:
    assert _clients(folder, "add", "ann", "--rho", "0.2", "--delta", "1e-5").exit_code == 0
    before = _clients(folder, "set-budget", "ann", "--rho", "0.3", "--delta", "1e-5", "--yes")
    assert before.exit_code == 0
    assert RAISED_AFTER_ANSWERS not in " ".join(before.stderr.split())

    async def asked() -> None:
        async with Ledger.open(folder) as ledger:
            await ledger.charge(asking("records", "ann", "a row"))

    asyncio.run(asked())
    after = _clients(folder, "set-budget", "ann", "--rho", "0.4", "--delta", "1e-5", "--yes")
    assert after.exit_code == 0
    assert RAISED_AFTER_ANSWERS in " ".join(after.stderr.split())


def test_a_client_is_named_by_an_address_or_a_subject(folder: Path) -> None:
    for name in ("ann@example.org", "auth0|5f7c8ec7", "Zoë"):
        assert _clients(folder, "add", name, "--rho", "0.1", "--delta", "1e-5").exit_code == 0
        assert _clients(folder, "show", name).output.startswith(f"{name} of lineage records is active")
    listed = _clients(folder, "list").output
    assert all(name in listed for name in ("ann@example.org", "auth0|5f7c8ec7", "Zoë"))


def test_names_are_printed_as_they_are_with_brackets_and_colons(folder: Path) -> None:
    assert _groups(folder, "add", "risk [/b]", "--rho", "0.5", "--delta", "1e-5").exit_code == 0
    names = ("auth0[/b]", "urn:key:5", "[red]eve[/red]")
    for name in names:
        words = ("--rho", "0.1", "--delta", "1e-5", "--group", "risk [/b]", "--display-name", "[i]:key:")
        assert _clients(folder, "add", name, *words).exit_code == 0
        assert _clients(folder, "show", name).output.startswith(f"{name} ([i]:key:) of lineage records is active")
    listed = _clients(folder, "list").output
    assert all(f"{name} ([i]:key:)" in listed for name in names)
    assert "risk [/b]" in _groups(folder, "list").output


def _groups(folder: Path, *words: str) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(groups, [*words, "--ledger", str(folder)])


def _acts(folder: Path) -> list[tuple[str, str, str, str]]:
    async def read() -> list[tuple[str, str, str, str]]:
        async with Ledger.open(folder) as ledger:
            return [(act.kind, act.subject, act.by, act.why) for act in await ledger.acts("records")]

    return asyncio.run(read())


def test_a_group_has_a_budget_between_its_members_and_the_lineages(folder: Path) -> None:
    refused = _groups(folder, "add", "team", "--rho", "0.6", "--delta", "1e-5")
    assert "team would get rho = 0.6, and the lineage, which pays for every answer too, has rho = 0.5" in str(
        refused.exception
    )
    assert _groups(folder, "add", "team", "--rho", "0.2", "--delta", "1e-5").exit_code == 0
    too_much = _clients(folder, "add", "ann", "--group", "team", "--rho", "0.3", "--delta", "1e-5")
    assert "and the group team" in str(too_much.exception)
    nobodys = _clients(folder, "add", "ann", "--group", "nobody's", "--rho", "0.1", "--delta", "1e-5")
    assert isinstance(nobodys.exception, UnknownGroup)
    assert _clients(folder, "add", "ann", "--group", "team", "--rho", "0.1", "--delta", "1e-5").exit_code == 0
    assert "belongs to the group team" in _clients(folder, "show", "ann").output
    assert "team" in _clients(folder, "list").output
    (listed,) = json.loads(_groups(folder, "list", "--json").output)
    assert (listed["group"], listed["members"], listed["budget_picorho"]) == ("team", ["ann"], 2 * 10**11)
    assert _groups(folder, "set-budget", "team", "--rho", "0.25", "--delta", "1e-5", "--yes").exit_code == 0
    assert _clients(folder, "set-group", "ann", "").output == "ann belongs to no group\n"
    assert "team" in _groups(folder, "list").output


def test_a_client_with_more_than_a_group_has_does_not_join_it(folder: Path) -> None:
    assert _groups(folder, "add", "team", "--rho", "0.2", "--delta", "1e-5").exit_code == 0
    assert _clients(folder, "add", "ann", "--rho", "0.3", "--delta", "1e-5").exit_code == 0
    too_much = _clients(folder, "set-group", "ann", "team")
    assert "and the group team" in str(too_much.exception)
    assert _clients(folder, "set-budget", "ann", "--rho", "0.2", "--delta", "1e-5").exit_code == 0
    assert _clients(folder, "set-group", "ann", "team").exit_code == 0


@pytest.mark.parametrize("command", [_clients, _groups])
def test_an_empty_name_is_refused_and_leaves_the_lineages_budget(folder: Path, command: Callable[..., Result]) -> None:
    refused = command(folder, "set-budget", "", "--rho", "0.9", "--delta", "1e-5", "--yes")
    assert refused.exit_code == 2
    assert [kind for kind, *_ in _acts(folder)] == ["open"]


def test_acts_say_who_and_why_by_flag_environment_or_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = ("--rho", "0.1", "--delta", "1e-5")
    assert _clients(folder, "add", "ann", *budget, "--by", "Ann Owner", "--why", "a study").exit_code == 0
    monkeypatch.setenv("DPSERVE_BY", "deputy@example.org")
    assert _clients(folder, "rename", "ann", "Ann of Risk").exit_code == 0
    monkeypatch.delenv("DPSERVE_BY")
    assert _clients(folder, "revoke", "ann", "--why", "left us").exit_code == 0
    assert "ann (Ann of Risk)" in _clients(folder, "list").output
    assert _acts(folder)[1:] == [
        ("add-client", "client:ann", "Ann Owner", "a study"),
        ("rename", "client:ann", "deputy@example.org", ""),
        ("revoke", "client:ann", operating_systems_user(), "left us"),
    ]


@pytest.mark.parametrize("name", ["Zoe\u0308", "a\u202eb", "é" * 129, " ann", "ann\n", "ann\u3164", "ann\ufe0f"])
def test_an_id_that_could_be_taken_for_another_is_refused_in_a_line(folder: Path, name: str) -> None:
    refused = _clients(folder, "add", name, "--rho", "0.1", "--delta", "1e-5")
    assert isinstance(refused.exception, ValueError)
    assert str(refused.exception).startswith("the client id ")
    assert "\n" not in str(refused.exception)


def test_the_explanation_says_whom_each_account_bounds_together(folder: Path) -> None:
    assert _groups(folder, "add", "team", "--rho", "0.2", "--delta", "1e-5").exit_code == 0
    assert _clients(folder, "add", "ann", "--group", "team", "--rho", "0.1", "--delta", "1e-5").exit_code == 0
    app = Typer()
    app.command()(with_options(explain))

    def words(*flags: str) -> str:
        said = CliRunner(env={"COLUMNS": "500"}).invoke(app, [*flags, "--json", "--ledger", str(folder)])
        return str(json.loads(said.output)["explanation"]["in_plain_words"])

    assert "Members of its group 'team' who share what they learn are bounded together" in words("--client", "ann")
    assert "That is all members of the group 'team' together" in words("--group", "team")
    assert "That is all clients and groups together" in words("--lineage", "records")


def test_a_budget_that_buys_nothing_at_the_newest_price_is_warned_of(folder: Path) -> None:
    """A cheaper model that was served once is served no more."""

    def warned(name: str, rho: float) -> bool:
        added = _clients(folder, "add", name, "--rho", str(rho), "--delta", "1e-5")
        assert added.exit_code == 0
        return "Warning" in added.stderr

    async def asked(row: str, mu: float) -> None:
        async with Ledger.open(folder) as ledger:
            await ledger.charge(asking("records", "ann", row, cost=Cost((GaussianLoss(mu),))))

    assert not warned("ann", 0.3)
    asyncio.run(asked("a row", 0.1))
    assert not warned("bob", 0.006)
    asyncio.run(asked("another row", 0.2))
    assert warned("cy", 0.006)
    assert not warned("dee", 0.021)
