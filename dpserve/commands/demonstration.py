"""`dpserve demo`: the whole way once, on real records, in a temporary folder."""

import asyncio
import signal
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import ClientAccount
from dpserve.accounting.messages import Message
from dpserve.commands.demonstrated_digits import print_refusal, say_how_to_call, train_digits
from dpserve.commands.errors import CommandError
from dpserve.local_services import StartedService, start_service
from dpserve.mechanisms.gaussian_vector import picorho_for
from dpserve.service.listener import bind
from dpserve.training.errors import WrongOption
from dpserve.training.inputs.digits import Digits, load_digits
from dpserve.training.inputs.lineage import DIGITS
from dpserve.training.kinds.registry import kind_named
from dpserve.training.options import option

EPSILON = 3.0
DELTA = 1e-6
TOO_LITTLE = 1.0
"""The second client's budget: less than the model costs."""
CLIENT, SECOND_CLIENT = "visitor", "second visitor"


def demo(
    *,
    metered: bool = option(False, "Show the papers' system instead: each answer is paid for, and attacked."),
    stay: bool = option(False, "Keep the service up and print how to call it."),
    port: int = option(0, "The port to listen on; 0 picks a free one.", ge=0, le=65535),
    ledger: str | None = option(
        None,
        "--metered: the URL of a store, redis://host:6379/0, which keeps what the demonstration does.",
        default_text="one that goes afterwards",
    ),
    ledger_replicas: int = option(
        0, "--metered: on how many replicas of the store a charge must be on disk, too.", ge=0
    ),
) -> None:
    """Train a pay-once model on scikit-learn's digits, serve it, ask, and show what was learnt and spent.

    With --metered: train a certified head, serve it with the selected neuron, ask until epsilon runs out, attack it,
    and refute the mechanism that Lu et al. 2022 published. It takes about a minute.
    """
    if ledger is not None and (not metered or "://" not in ledger):
        raise WrongOption("ledger", Message("is the URL of a store, and goes with {metered}"), value=ledger)
    console = Console()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # so that a stopped demonstration also cleans up
    bind(port=port).close()
    with tempfile.TemporaryDirectory(prefix="dpserve-demo-") as temporary:
        folder = Path(temporary)
        if metered:
            # The other demonstration should not wait for what audits.
            from dpserve.commands import metered_demonstration

            metered_demonstration.show(console, folder, port=port, ledger=ledger, replicas=ledger_replicas, stay=stay)
            return
        digits = load_digits()
        bundle = train_digits(
            console, digits, folder / "digits", kind_named("dpsgd").options(), DIGITS, picorho_for(EPSILON, DELTA)
        )
        options = ["--epsilon", str(EPSILON), "--delta", str(DELTA)]
        with start_service(bundle, folder, options, port=port, quiet=not stay) as service:
            key, second_key = (
                service.add_client(DIGITS, client, Budget.from_epsilon_delta(epsilon, DELTA, "gaussian"))
                for client, epsilon in ((CLIENT, EPSILON), (SECOND_CLIENT, TOO_LITTLE))
            )
            if stay:
                say_how_to_call(console, service, key, digits, folder, CLIENT)
            else:
                _ask(console, service, key, digits)
                _show_refusal(console, service, second_key, digits)


def _ask(console: Console, service: StartedService, key: str, digits: Digits) -> None:
    """Ask about every digit that was held out, and once more."""
    from dpserve.client import Client

    rows, labels = digits.held_out_rows, digits.held_out_labels.astype(str)
    with Client(service.address, key) as client:
        right = np.mean(client.predict(rows) == labels)
        console.print(
            f"\nThe model was paid for once, for any number of answers: epsilon = {EPSILON:g} at delta = {DELTA:g}."
            f"\nAccuracy on all {len(rows)} held-out digits: {right:.2f}",
            highlight=False,
        )
        client.predict(rows)
        account = asyncio.run(_account(service))
        console.print(
            f"Asked twice about all of them; charged {len(list(client.receipts()))} time, "
            f"{account.budget.words(account.spent)}.",
            highlight=False,
        )
    _print_analyses(console, account)


def _show_refusal(console: Console, service: StartedService, key: str, digits: Digits) -> None:
    """Ask for a client whose budget does not pay for the model."""
    from dpserve.client import BudgetExhausted, Client

    with Client(service.address, key) as client:
        try:
            client.predict(digits.held_out_rows[:1])
        except BudgetExhausted as refusal:
            console.print(f"\nA client who may spend epsilon = {TOO_LITTLE:g} was refused:", style="bold")
            print_refusal(console, refusal)
            return
    raise CommandError("a client was answered whose budget does not pay for the model")


async def _account(service: StartedService) -> ClientAccount:
    async with service.ledger() as ledger:
        return await ledger.client(DIGITS, CLIENT)


def _print_analyses(console: Console, account: ClientAccount) -> None:
    from dpserve.accounting.analyses import side_by_side

    spent = side_by_side(account.tally, DELTA)
    table = Table("analysis", f"epsilon at delta = {DELTA:g}", "how", title="what was spent, by five analyses")
    for analysis in spent.analyses:
        epsilon = "does not apply" if analysis.epsilon is None else f"{analysis.epsilon:.4g}"
        table.add_row(analysis.name, epsilon, analysis.method)
    console.print("", table, f"The tightest is {spent.tightest!r}; the loss does not change with the analysis.")
