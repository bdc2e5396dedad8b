"""`dpserve plan --retrain`: what each of several retrainings may cost as records come by block, and its accuracy."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import typer
from rich.console import Console
from rich.table import Table

from dpserve.accounting.messages import Message, named
from dpserve.accounting.picorho import to_rho
from dpserve.commands.console import narrow_console, shares
from dpserve.commands.options import BudgetOptions
from dpserve.plan_options import PlanOptions
from dpserve.prices import flags_of_budget
from dpserve.training.errors import ErrorList, WrongOption
from dpserve.training.inputs.blocks import Period
from dpserve.training.inputs.lineage import DIGITS
from dpserve.training.inputs.schema import facts_of
from dpserve.training.kinds.kind import declared_count
from dpserve.training.planning.options import option_named
from dpserve.training.planning.retraining import Schedule, retrainings_of, schedule_by_rule, schedule_by_simulation
from dpserve.wording import as_flag


def asks_retraining(given: PlanOptions, bundle: Path | None, plot: Path | None) -> bool:
    """Return whether a plan is about retrainings. Raises WrongOption for options that do not go with that."""
    if given.retrain is None:
        if given.window is not None:
            raise WrongOption("window", "goes with --retrain")
        return False
    if bundle is not None or plot is not None:
        raise WrongOption("retrain", "plans before training: leave bundle and --plot out")
    if given.queries is not None:
        raise WrongOption("retrain", "does not go with --queries")
    return True


def plan_retraining(given: PlanOptions, of_block: BudgetOptions, *, as_json: bool) -> None:
    """Say what each retraining may cost and, where there are public rows to simulate on, its accuracy.

    of_block: what one block's records may lose by all models.
    """
    wrong = ErrorList() if given.public is not None else ErrorList(given.lacking())
    if of_block.epsilon is None or of_block.delta is None:
        name, other = ("epsilon", "delta") if of_block.epsilon is None else ("delta", "epsilon")
        needed = Message("is needed beside {}", named(other))
        wrong.errors.append(WrongOption(name, needed, remedy="what all models may tell of one block's records"))
    wrong.check()
    count = retrainings_of(str(given.retrain))
    window, budget = min(given.window or count, count), of_block.budget("gaussian").limit
    rows = given.rows()
    shape = given.shape_of_rows(None if rows is None else rows.declaration)
    if rows is not None:
        with shares("simulating") as progress:
            found = schedule_by_simulation(
                rows, n=given.count, count=count, window=window, budget=budget, image_shape=shape, progress=progress
            )
        note = f"Accuracy on {len(rows)} rows of {given.public}, declared public."
    else:
        declared = given.declaration()
        classes = len(given.declared_classes()[0] if declared is None else declared.classes)
        found = schedule_by_rule(declared_count(given.count), classes, count, window, budget, declared)
        note = "No rows were given: --public FILE simulates each retraining on rows like yours."
    if as_json:
        figures = {"price_rho": to_rho(found.price), "note": note, "command": command_of(given, of_block, found)}
        typer.echo(json.dumps(asdict(found) | figures, indent=2))
    else:
        print_schedule(narrow_console(), found, note, command_of(given, of_block, found))


def price_flags(whole: int) -> str:
    """Return a price in picorho as the command line has it."""
    return f"--rho {to_rho(whole)!r}"


def command_of(given: PlanOptions, of_block: BudgetOptions, schedule: Schedule) -> str:
    """Return the command of the last retraining; those before differ in their blocks and their number of records."""
    last = schedule.retrainings[-1]
    count = last.last - last.first + 1
    by = f" --block-by {given.retrain}" if given.retrain in get_args(Period) else ""
    names = "NAME" if count == 1 else f"NAMES-OF-{count}"
    words = [
        "dpserve train",
        *read_by(given),
        f"--block COLUMN{by} --blocks {names} --leave-out-other-blocks",
    ]
    words += [flags_of_budget(of_block.epsilon or 0.0, of_block.delta or 0.0).replace("--", "--lineage-")]
    words += [f"{price_flags(schedule.price)} --n {last.records} --lineage {given.lineage or 'NAME'} --out MODEL"]
    return " ".join(words)


def read_by(given: PlanOptions) -> list[str]:
    """Return the words of `dpserve train` that say which records there are and how they are read."""
    words = [f"--data {shlex.quote(given.data or 'FILE')}"]
    by_file = facts_of(given.schema_file)
    for name in _DECLARED:
        value = getattr(given, name)
        if name in given.model_fields_set and value != getattr(by_file, name, None):
            flag = "--schema" if name == "schema_file" else as_flag(name)
            values = value if isinstance(value, tuple) else [value]
            words += [flag if each is True else f"{flag} {shlex.quote(str(each))}" for each in values]
    if not given.schema_file and given.data != DIGITS:
        if not given.classes or given.classes.isdecimal():
            words = [word for word in words if not word.startswith("--classes ")] + ["--classes A,B"]
        if not given.bounds and not given.described():
            words.append("--bounds LOW:HIGH")
    return words


_DECLARED = (
    *("schema_file", "label", "classes", "bounds", "levels", "dates", "texts", "ignore", "unit", "id", "missing"),
    *("clip", "encoding", "decimal", "sheet", "unlabelled", "where"),
)
"""The options by which `train` reads records."""


def as_lines(command: str, title: str = "") -> str:
    """Return a command in lines that end in a backslash where they are too long for a terminal. title: before it."""
    parts: list[str] = []
    for word in shlex.split(command):
        quoted = shlex.quote(word)
        if word.startswith("--") or not parts:
            parts.append(quoted)
        else:
            parts[-1] += f" {quoted}"
    lines, line = [], ""
    for part in parts:
        if line and len(line) + len(part) + 3 > WIDTH:
            lines.append(f"{line} \\")
            line = "    " + part
        else:
            line = f"{line} {part}" if line else title + part
    return "\n".join([*lines, line])


WIDTH = 80
"""Columns of a terminal as people have it."""


def print_schedule(console: Console, shown: Schedule, note: str, command: str) -> None:
    """Print the retrainings, what each may cost and why, and where their accuracies come from.

    command: of the last one.
    """
    simulated = any(retraining.accuracy is not None for retraining in shown.retrainings)
    table = Table("retraining", "blocks", "records, about", *(["accuracy"] if simulated else []))
    for retraining in shown.retrainings:
        accuracy = "" if retraining.accuracy is None else f"{retraining.accuracy:.3f}"
        accuracy += "" if retraining.spread is None else f" ± {retraining.spread:.3f}"
        known = (accuracy,) if simulated else ()
        table.add_row(
            str(retraining.number), f"{retraining.first} to {retraining.last}", f"{retraining.records:,}", *known
        )
    console.print(table, highlight=False)
    console.print(note, highlight=False)
    models = "one model" if shown.window == 1 else f"up to {shown.window} models"
    console.print(
        f"Each block is in {models}: give each rho = {to_rho(shown.price)!r}, by {option_named(shown.option).title}.",
        highlight=False,
    )
    console.print(f"Next, for each:\n{as_lines(command)}", highlight=False, soft_wrap=True)
