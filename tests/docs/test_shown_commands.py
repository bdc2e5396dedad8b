"""Commands in blocks without a language: each is run here or elsewhere, or stands in a list with the reason why not.

What other blocks hold (`console`, `python`) is run from top to bottom by the tests of the pages, most of them slow.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

from dpserve.cli import app

from .walkthrough import DOCS, Walkthrough, steps

COMMAND = r"(?:(?:^ *|-- |CONTAINER )dpserve|dpserve:[\d.]+) ([a-z].*)"
UsageError = typer.BadParameter.__base__
PASTED = {"README.md": "test_readme_page.py"}
"""Pages whose blocks another test pastes from top to bottom."""

NOT_RUN = {
    (
        "attacks.md",
        "attack http://",
    ): "its shadow models take 20 CPU seconds: tests/dpserve/test_attacking.py has fewer",
    ("attacks.md", "attack model"): "its shadow models take 20 CPU seconds: tests/dpserve/test_attacking.py has fewer",
    (
        "attacks.md",
        "attack network",
    ): "hours of PyTorch: tests/audit/membership and test_attacking.py have small networks",
    ("attacks.md", "audit canaries"): "a table of the reader's: tests/dpserve/test_audit_canaries.py runs all three",
    (
        "attacks.md",
        "train dpsgd --data canaries/",
    ): "the canaries of the line before, in tests/dpserve/test_audit_canaries.py",
    ("attacks.md", "attack --predict-url"): "needs a server: tests/dpserve/test_predict_url.py has four",
    ("auditing.md", "audit service --url-in"): "two services with different records: tests/dpserve/test_auditing.py",
    (
        "auditing.md",
        "audit training published",
    ): "half a minute of PyTorch: tests/audit/test_replay.py has fewer epochs",
    ("auditing.md", "train dpsgd"): "tests/dpserve/test_canaries_command.py trains with canaries, on fewer records",
    (
        "auditing.md",
        "audit release",
    ): "the models of the line before: tests/dpserve/test_canaries_command.py audits two",
    ("deploying.md", "serve /bundle --epsilon 3 --delta 1e-6 --host"): "a store of the owner's: tests/faults has some",
    ("deploying.md", "ledger restore"): "needs a ledger that was lost: tests/deployment/test_backups.py runs it",
    ("deploying.md", "ledger reconcile"): "needs a ledger that was lost: tests/deployment/test_backups.py runs it",
    ("deploying.md", "ledger verify"): "needs a ledger that was lost: tests/deployment/test_backups.py runs it",
    ("ledger.md", ""): "an owner's ledger of months: tests/owners_commands.py runs every command for it",
    ("repairs.md", ""): "needs a ledger that lost something: tests/faults/test_drill.py and tests/accounting/ledger",
    (
        "serving.md",
        "serve loans=current",
    ): "two versions of one model: tests/dpserve/test_replacing_workers.py has them",
    ("releases.md", "evaluate"): "tests/dpserve/test_evaluating.py has held-out records and a budget",
    ("exporting.md", "export"): "test_exporting_page.py runs it, with models of these names",
    ("encoders.md", "train"): "a published model, 100 MB: tests/training/features/test_encoder.py makes small ones",
    (
        "encoders.md",
        "serve",
    ): "a GPU, and the model of the line before: tests/service/test_encoders.py serves a small one",
}
"""The beginnings of commands that no test runs as they stand: only their parser reads them."""

PROGRAMS = {
    "docker": "needs a container engine; tests/deployment checks the Dockerfile without one",
    "kubectl": "needs a cluster: its own parser reads the line below; tests/deployment checks what is applied",
    "make": "`make demo`, `make serve`: tests/dpserve/test_cli.py runs the demonstration that they are",
    "python3 ": "what is tested has an environment already",
    "sudo": "needs root: what it is for, that an image's user reads a bundle, needs a container engine",
    "pip": "needs a package index; tests/training/test_errors.py says what an extra brings",
    "source": "test_readme_page.py pastes it",
    "bash": "tests/deployment writes users and certificates by these scripts",
    "export": "sets a variable for the lines below it",
    "sed": "changes one line of a file of the reader's",
    **dict.fromkeys(("ln ", "kill "), "tests/dpserve/test_replacing_workers.py moves the link and sends the signal"),
    "curl": "tests/service and tests/dpserve ask the same by another program",
}
"""Other first words of blocks without a language, and where each is run, or why it is not."""


def shown_commands(page):
    """Every `dpserve` command in the blocks without a language, as words."""
    for language, block in re.findall(r"^ *```([^\n]*)\n(.*?)^ *```$", page.read_text(), re.DOTALL | re.MULTILINE):
        if language:
            continue
        for command in re.findall(COMMAND, block.replace("\\\n", " "), re.MULTILINE):
            yield [word for word in shlex.split(command, comments=True) if word != "..."]


def console_commands(page):
    """Every `dpserve` command of the blocks `console` that stands alone in its line, as words."""
    for kind, command, *_ in steps(page.read_text()):
        alone = re.sub(r" (&|> [\w.]+)$", "", command)
        if kind == "console" and alone.startswith("dpserve ") and not set(alone) & set("|&;<>$`*~"):
            yield shlex.split(alone)[1:]


def pages():
    """Every page by its name, the README first."""
    return {
        page.relative_to(DOCS).as_posix() if page.is_relative_to(DOCS) else page.name: page
        for page in [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
    }


def to_run():
    """The commands that this module runs, by page."""
    return {
        name: [words for words in shown_commands(page) if not reasons(name, words)]
        for name, page in pages().items()
        if name not in PASTED
    }


def reasons(name, words):
    """Why a page's command is not run: the one entry of the list that it begins with, if any."""
    found = [reason for (of, begin), reason in NOT_RUN.items() if of == name and " ".join(words).startswith(begin)]
    assert len(found) <= 1, words
    return found


def test_every_command_is_run_or_stands_in_the_list_with_a_reason():
    shown = {name: list(shown_commands(page)) for name, page in pages().items()}
    assert sum(map(len, shown.values())) >= 20
    for name, begin in NOT_RUN:
        assert [words for words in shown[name] if " ".join(words).startswith(begin)], f"{name} has no {begin}"
    for name in PASTED:
        assert shown[name]
    run = {name: [" ".join(words[:2]) for words in commands] for name, commands in to_run().items() if commands}
    assert run == {
        "auditing.md": ["audit service"],
        "deploying.md": [
            "serve /bundle",
            "clients add",
            "ledger backup",
            "serve /bundle",
            "clients add",
            "clients add",
        ],
        "mechanisms.md": ["plan --public"],
        "releases.md": ["train dpsgd"],
    }


def other_lines(page):
    """The lines of blocks without a language that begin like a program of PROGRAMS, or like another one's call."""
    for language, block in re.findall(r"^ *```([^\n]*)\n(.*?)^ *```$", page.read_text(), re.DOTALL | re.MULTILINE):
        if not language:
            lines = (line.strip() for line in block.replace("\\\n", " ").splitlines())
            yield from (line for line in lines if re.match(r"[A-Z]+=\$|[a-z][\w.-]* ", line))


SAID = r"dpserve |at delta = |(analysis|basic|advanced|zcdp|rdp|exact|nothing|scope:|what was spent,) "
"""The other such lines: our own commands, and what the demonstration prints."""


def test_no_other_program_is_called_without_a_word_on_who_runs_it():
    found = {line for page in pages().values() for line in other_lines(page) if not re.match(SAID, line)}
    unknown = [line for line in found if not line.startswith(tuple(PROGRAMS))]
    assert unknown == []
    assert all(any(line.startswith(program) for line in found) for program in PROGRAMS)


def parsed(words):
    """Read a command with the parser that reads it in earnest, and do not carry it out; return its context."""
    command, context = get_command(app), None
    while True:
        context = command.make_context(words[0] if words else "dpserve", list(words), parent=context)
        if not isinstance(command, TyperGroup):
            return context
        _, command, words = command.resolve_command(context, context._protected_args + context.args)


class Understood(Exception):
    """All options were read, and the command would begin."""


@pytest.fixture
def understood(monkeypatch):
    """Read a command and the values of its options, and do not carry it out."""

    def begin():
        raise Understood

    monkeypatch.setattr("dpserve.commands.command.begin", begin)

    def read(words):
        with pytest.raises(Understood), parsed(words) as context:
            context.command.invoke(context)

    return read


def test_the_parser_takes_every_command(understood):
    for name, page in pages().items():
        for words in (*shown_commands(page), *console_commands(page)):
            try:
                understood(words)
            except UsageError as error:
                pytest.fail(f"{name}: dpserve {' '.join(words)}: {error.format_message()}")


def test_the_parser_finds_what_is_wrong(understood):
    for words in (["serve", "model", "--epsilonn", "3"], ["serve", "model", "--port", "many"], ["clients", "ad", "a"]):
        with pytest.raises(UsageError):
            understood(words)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """A reader with records of an own and a public kind, and a model of them."""
    generator = np.random.default_rng(0)
    with Walkthrough(tmp_path_factory.mktemp("shown")) as found:
        rows = [(generator.integers(0, 120), generator.integers(0, 50)) for _ in range(300)]
        lines = [f"{age},{dose},{'ill' if age + 2 * dose > 110 else 'well'}" for age, dose in rows]
        (found.folder / "own.csv").write_text("\n".join(["age,dose,outcome", *lines]) + "\n")
        X = generator.uniform(size=(60, 6))
        np.savez(found.folder / "FILE.npz", X=X, y=np.array(["a", "b", "c"])[X[:, :3].argmax(axis=1)])
        pasted(
            found,
            "train head --data own.csv --label outcome --classes well,ill --bounds age=0:120 --bounds dose=0:50 "
            "--lam 10 --lineage own --out bundle",
        )
        yield found


def pasted(reader, command):
    """Run a command; return what it printed."""
    printed = reader.run_dpserve(shlex.split(command))
    assert reader.status == 0, "\n".join(printed)
    return printed


def served(reader, command):
    """Start a service beside the reader; return its address."""
    (said,) = reader.start(f"dpserve {command} --no-admin &", [""])
    assert said.startswith("dpserve: serving"), said
    return f"http://127.0.0.1:{reader.environment['DPSERVE_PORT']}"


@pytest.mark.slow
def test_the_page_on_deploying_on_one_service(reader):
    serve, *others = to_run()["deploying.md"]
    served(reader, shlex.join(serve).replace("/bundle", "bundle"))
    for place, words in enumerate(words for words in others if words != serve):
        adds = words[0] == "clients"
        if adds:
            words[2] += f"-{place}"  # the page has one client for each way to deploy, and here is one ledger
        assert ("dp_" if adds else "backed up to") in pasted(reader, shlex.join(words))[-1]
    stop(reader)


def stop(reader):
    """Stop what runs beside the reader."""
    for process in reader.background:
        process.terminate()
        process.communicate(timeout=60)
    reader.background.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "place", "given", "says"),
    [
        ("auditing.md", 0, {}, "the auditor chose"),
        ("mechanisms.md", 0, {"FILE": "FILE.npz"}, "held out"),
        ("releases.md", 0, {"--out model": "--out sgd"}, "Wrote the bundle sgd"),
    ],
)
def test_what_needs_no_service(reader, page, place, given, says):
    command = shlex.join(to_run()[page][place])
    for before, after in given.items():
        assert before in command
        command = command.replace(before, after)
    assert says in "\n".join(pasted(reader, command))


def test_kubectl_takes_every_line_for_it(tmp_path):
    """It reads flags and arguments before it looks for a cluster, and none listens where it is told to look."""
    lines = [line for line in other_lines(DOCS / "deploying.md") if line.startswith("kubectl ")]
    assert len(lines) >= 10
    program = Path(sys.executable).parent / "kubectl"
    for line in [*lines, "kubectl rollout status --never deployment/dpserve"]:
        words = shlex.split(re.split(r" [<|] ", line)[0])[1:]
        nowhere = ["--server=http://127.0.0.1:1", "--request-timeout=1s"]
        done = subprocess.run(
            [program, words[0], *nowhere, *words[1:]], cwd=tmp_path, env={"HOME": str(tmp_path)}, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        understood = not re.search(r"unknown|Usage|flag needs|accepts|requires", done.stderr)
        assert understood == ("--never" not in line), done.stderr
