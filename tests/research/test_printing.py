"""Tables of research: nothing cut off at 80 columns, CSV where piped, and every program prints through them."""

import csv
import io
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from dpserve.audit.reports import ReportTable
from research.printing import as_csv, print_table

ROOT = Path(__file__).parents[2]
COMMANDS = [
    "lu2022 --dataset all",
    "lu2022 --dataset location --bounds",
    "lu2022 table-1",
    "lu2022 figure-2",
    "lu2022 finding-5",
    "lu2022 convexity --epochs 1",
    "bernau2021 --games 10",
    "erlingsson2019 by-epsilon",
    "erlingsson2019 mechanism gaussian --trials 100 --noise-multiplier 1",
    "nasr2023 --steps 40 --runs 1",
    "sensitivity certified --lam 100",
]
WORDS = st.text(st.sampled_from("abcdefghij0123456789.-"), min_size=1, max_size=24)


def ran(command, *, columns):
    module, *words = command.split()
    found = module if (ROOT / "research" / f"{module}.py").exists() else f"{module}.__main__"
    runner = CliRunner(env={"COLUMNS": columns})
    done = runner.invoke(import_module(f"research.{found}").app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def blocks(text):
    return [list(csv.reader(io.StringIO(block))) for block in text.rstrip("\n").split("\n\n")]


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_that_a_program_prints_is_cut_off_at_80_columns(command):
    if "convexity" in command:
        pytest.importorskip("torch")
    shown = ran(command, columns="80").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("lu2022")])
def test_a_piped_program_prints_csv_with_the_cells_that_a_terminal_shows(command):
    if "convexity" in command:
        pytest.importorskip("torch")
    shown = ran(command, columns="80").stdout
    for rows in blocks(ran(command, columns=None).stdout):
        assert len(rows) > 1
        assert {len(row) for row in rows} == {len(rows[0])}
        assert len(set(rows[0])) == len(rows[0])
        cells = [cell for row in rows[1:] for cell in row[rows[0][0] == "table" :]]
        assert all(cell in shown for cell in cells if len(cell) <= 24)


def test_every_program_that_prints_tables_is_looked_at():
    # These write files of their own and print no table.
    silent = {"canaries", "comparison", "pictures", "planning", "prediction_sets", "quantiles"}
    silent |= {"recommended", "retraining"}
    silent |= {"attack_figures", "audit_table", "noise_faults", "rivals"}  # tables of hours of work
    programs = {path.parent.name for path in (ROOT / "research").glob("*/__main__.py")}
    programs |= {path.stem for path in (ROOT / "research").glob("*.py") if "__main__" in path.read_text()}
    assert {command.split()[0] for command in COMMANDS} == programs - silent


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_whatever_the_table_no_short_cell_is_broken(data):
    count = data.draw(st.integers(1, 14))
    columns = [f"c{place} {data.draw(WORDS)}" for place in range(count)]
    rows = data.draw(st.lists(st.tuples(*[WORDS] * count), min_size=1, max_size=4))
    width = data.draw(st.integers(60, 120))
    file = io.StringIO()
    table = ReportTable("a title", tuple(columns), tuple(rows))
    print_table(table, Console(file=file, width=width, markup=False))
    shown = file.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    assert all(cell in shown for row in rows for cell in row)
    assert all(word in shown for column in columns for word in column.split())
    assert list(csv.reader(io.StringIO(as_csv((table,))))) == [columns, *map(list, rows)]
