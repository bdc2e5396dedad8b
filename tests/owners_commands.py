"""Every command of an owner that opens the ledger, run one after the other, as the tests of other stores need them."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup
from typer.testing import CliRunner, Result

from dpserve.cli import app
from dpserve.commands.options import journals_folder, open_ledger
from tests.faults.books import asking

ROWS = [f"{20 + index % 60},{1000 * (index % 60)},{'yes' if index % 60 > 30 else 'no'}\n" for index in range(120)]
COLUMNS = ("--label", "ok", "--classes", "no,yes", "--bounds", "age=0:120", "--bounds", "income=0:1e6")
BUDGET = ("--epsilon", "6", "--delta", "1e-5")

LEDGER_OPTIONS = {"ledger": "ledger_replicas"}


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that ends a command line, with its words."""

    def below(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
        if not isinstance(command, TyperGroup):
            yield words, command
            return
        context = typer.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from below((*words, name), found)

    yield from below((), typer.main.get_command(app))


@cache
def ledger_commands() -> dict[tuple[str, ...], Any]:
    """The commands that open a ledger."""
    return {
        words: command
        for words, command in commands()
        if {parameter.name for parameter in command.params} & LEDGER_OPTIONS.keys()
    }


@dataclass
class Owner:
    """Runs commands in this process, and remembers which it ran."""

    folder: Path
    more: tuple[str, ...] = ()
    """Arguments that name the ledger, unless the environment or a file does."""
    ran: set[tuple[str, ...]] = field(default_factory=set)

    def __call__(self, *words: str) -> str:
        """Run one command and return what it printed."""
        done = self._run(words)
        assert done.exit_code == 0, (words, done.output, done.exception)
        return done.output

    def error(self, *words: str) -> BaseException | None:
        """Run one command and return what it fails with."""
        return self._run(words).exception

    def rows(self) -> Path:
        """Write a table of records, and return where."""
        path = self.folder / "r.csv"
        path.write_text("age,income,ok\n" + "".join(ROWS))
        return path

    def _run(self, words: tuple[str, ...]) -> Result:
        known = [each for each in ledger_commands() if words[: len(each)] == each]
        self.ran.update(known)
        return CliRunner().invoke(app, [*words, *(self.more if known else ())])

    def key_id(self, client: str) -> str:
        """The id of a client's only key."""
        found = re.findall(r"^\W*([0-9a-f]{8,})\b", self("clients", "show", client), re.MULTILINE)
        assert len(found) == 1
        return str(found[0])


def use_every_command(owner: Owner, empty: Callable[[], None]) -> None:
    """Run each command that opens the ledger but `serve`, and look whether it did what it should.

    empty: empties the store, whose backup is then restored.
    """
    folder = owner.folder
    (folder / "held.csv").write_text("age,income,ok\n" + "".join(row.replace(",", ".5,", 1) for row in ROWS))
    model, data = str(folder / "model"), str(owner.rows())
    owner(
        *("train", "--data", data, *COLUMNS, "--lineage", "people", "--out", model),
        *("dpsgd", "--steps", "2", "--n", "120", "--rho", "0.1"),
    )
    owner("lineage", "set-budget", model, "--epsilon", "7", "--delta", "1e-5", "--yes")
    assert "people" in owner("lineage", "list")
    owner("groups", "add", "team", "--epsilon", "5", "--delta", "1e-5")
    owner("groups", "set-budget", "team", "--epsilon", "6", "--delta", "1e-5", "--yes")
    owner("clients", "add", "ann", *BUDGET)
    owner("clients", "set-group", "ann", "team")
    assert json.loads(owner("groups", "list", "--json"))[0]["members"] == ["ann"]
    owner("clients", "remove-key", "ann", owner.key_id("ann"))
    owner("clients", "add-key", "ann")
    owner("clients", "rotate-key", "ann")
    owner("clients", "rename", "ann", "Ann of Risk")
    owner("clients", "set-budget", "ann", "--epsilon", "5.5", "--delta", "1e-5", "--yes")
    assert json.loads(owner("clients", "list", "--json"))[0]["display_name"] == "Ann of Risk"

    async def charge(row: str) -> None:
        async with open_ledger(*_named(owner.more), journals=journals_folder()) as ledger:
            await ledger.join("people")
            assert (await ledger.charge(asking("people", "ann", row, time=1.5))).receipt

    asyncio.run(charge("a row"))
    held = ("--data", str(folder / "held.csv"), *COLUMNS, "head", "--lam", "1")
    misspelt = ["train", *held, "--lineage", "hedl", "--out", str(folder / "misspelt")]
    assert CliRunner().invoke(app, misspelt).exit_code == 0  # without a choice it asks no ledger that is named
    owner("lineage", "forget", "hedl", "--yes")
    assert "ann" in owner("explain", "--client", "ann", "--lineage", "people", "--json")
    owner(
        *("evaluate", model, "--data", str(folder / "held.csv"), "--label", "ok", "--lineage", "held"),
        *("--rho", "0.1", "--out", str(folder / "evaluation.json")),
        *("--lineage-epsilon", "6", "--lineage-delta", "1e-5"),
    )
    owner("export", model, "--to", "safetensors", "--out", str(folder / "model.safetensors"))
    asyncio.run(charge("a later row"))
    verified = json.loads(owner("ledger", "verify", "--lineage", "people", "--json"))
    trail = owner("ledger", "export", "--lineage", "people")
    assert trail.count('"kind": "receipt"') == verified["receipts"]
    owner("ledger", "backup", str(folder / "copy"))
    owner("ledger", "rehearse", str(folder / "copy"))
    assert json.loads(owner("lineage", "show", "people", "--json"))["clients"] == ["ann"]
    before = owner("lineage", "list", "--json")
    empty()
    owner("ledger", "restore", str(folder / "copy"))
    owner("ledger", "reconcile")
    assert owner("lineage", "list", "--json") == before
    owner("clients", "revoke", "ann", "--lineage", "people")
    owner("ledger", "export", "--lineage", "people", "--out", str(folder / "trail"))
    assert "people" in owner("ledger", "status")
    assert " right" in owner("ledger", "verify")


def _named(more: tuple[str, ...]) -> tuple[str | None, int | None]:
    given: Mapping[str, str] = dict(zip(more[::2], more[1::2], strict=True))
    replicas = given.get("--ledger-replicas")
    return given.get("--ledger"), None if replicas is None else int(replicas)
