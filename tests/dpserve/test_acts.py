"""The owner's acts are declared once: the command line and the owner's port have all of them, in the same words."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from dpserve.accounting.acts import ACTS, BudgetTerms, Lasting, Names, OwnerAct, Plan
from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import Acts, Ledger
from dpserve.commands.accounts import clients, groups, lineages
from dpserve.commands.acts import command_of
from dpserve.commands.command import Group
from dpserve.service.admin.acts import REQUESTS, request_for

GROUPS = {"client": clients, "group": groups, "lineage": lineages}


def parameters(app: Group, name: str) -> list[Any]:
    command: Any = typer.main.get_command(app)
    found: list[Any] = command.commands[name].params
    return found


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_every_act_is_a_request_with_its_fields(act: type[OwnerAct]) -> None:
    (request,) = (each for each in REQUESTS if issubclass(each, act))
    schema = request.model_json_schema()
    assert schema["properties"]["act"]["const"] == act.name
    for name, field in act.model_fields.items():
        assert schema["properties"][name]["description"] == field.description
    assert {"lineage", "by", "why", "act"} <= set(schema["required"])


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_every_act_is_a_command_with_its_fields(act: type[OwnerAct]) -> None:
    for subject in act.about:
        own = parameters(GROUPS[subject], act.name.removesuffix(f"-{subject}"))
        said = " ".join(each.help for each in own if each.help)
        for name, field in act.model_fields.items():
            said_by_lineage = name == "here_alone"
            if not said_by_lineage and (name not in act.about or (name == subject and subject != "lineage")):
                assert str(field.description) in said, (subject, name)
        flags = {flag for each in own for flag in each.opts}
        assert issubclass(act, BudgetTerms) == ("--epsilon" in flags)
        assert {"--by", "--why"} < flags


class Greet(OwnerAct):
    """Note that a client was greeted."""

    name = "greet"
    client: Annotated[str, Names("client"), Field(description="The client's id.")]
    word: Annotated[str, Field(min_length=2, description="What was said.")]
    warm: Annotated[bool, Field(description="Whether it was said warmly.")] = False
    for_seconds: Annotated[int, Lasting(1, "_seconds"), Field(ge=5, description="How long.")] = 60

    async def _plan(self, acts: Acts, lineage: str) -> Plan:
        done = f"{self.client} was told {self.word!r} for {self.for_seconds} s{' warmly' * self.warm}"
        return Plan(done, done, partial(acts.note, lineage, "export", {"rows": self.word}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    async def opened() -> None:
        async with Ledger.open(tmp_path / "ledger") as ledger:
            await ledger.acting("owner").open_lineage("records", Budget.from_rho(0.5, 1e-5, "gaussian"), time=0.0)

    asyncio.run(opened())
    return tmp_path / "ledger"


def test_a_new_act_is_a_command_and_a_request_by_its_declaration_alone(folder: Path) -> None:
    app = Group("Test.")
    app.command("greet")(command_of(Greet, "client"))
    run = partial(CliRunner(env={"COLUMNS": "120"}).invoke, app)
    done = run(["greet", "ann", "hello", "--warm", "--for", "1h", "--ledger", str(folder)])
    assert done.output == "ann was told 'hello' for 3600 s warmly\n"
    for words, hint in ((("hello", "--for", "1s"), "--for"), (("hello", "--for", "long"), "--for"), (("h",), "word")):
        refused = run(["greet", "ann", *words, "--ledger", str(folder)])
        assert refused.exit_code == 2
        assert hint in refused.output
    request = request_for(Greet)
    signed = {"lineage": "records", "by": "Dr. Ada", "why": "a test", "act": "greet"}
    assert request.model_validate(signed | {"client": "ann", "word": "hello"}).lineage == "records"
    assert "lineage" not in Greet.model_fields
