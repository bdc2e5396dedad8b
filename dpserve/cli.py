"""The command line: `dpserve --help`.

Every foreseen error is one clear line on stderr and exit status 1; wrong usage is exit status 2.
"""

import sys

import typer

from dpserve.commands import bundles, clients, demonstration, explaining, ledger, lineages, planning, serving
from training.reproduction import command as reproduction

app = typer.Typer(
    name="dpserve",
    help="Serve a model trained on private records: every answer is differentially private, and charged to a budget "
    "that cannot be overspent.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("train")(bundles.train)
app.command("train-published")(bundles.train_published)
app.command("inspect")(bundles.inspect)
app.command("plan")(planning.plan)
app.command("explain")(explaining.explain)
app.command("serve")(serving.serve)
app.command("demo")(demonstration.demo)
app.add_typer(clients.app, name="clients")
app.add_typer(lineages.app, name="lineage")
app.add_typer(ledger.app, name="ledger")
app.add_typer(reproduction.app, name="reproduce")


def main() -> None:
    """Run the command line."""
    from accounting.ledger import LedgerError
    from service.run import CannotServe
    from training.errors import TrainingError

    try:
        app()
    except (TrainingError, LedgerError, CannotServe, ValueError) as error:
        sys.stderr.write("".join(f"dpserve: {line}\n" for line in str(error).splitlines()))
        sys.exit(1)
    except OSError as error:
        sys.stderr.write(f"dpserve: {error.strerror or error}: {error.filename or ''}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
