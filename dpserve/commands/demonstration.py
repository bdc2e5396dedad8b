"""`dpserve demo`: the whole way once, on real records, in a temporary folder."""

import asyncio
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from accounting.budgets import Budget
from accounting.ledger import ClientAccount, Ledger
from dpserve.commands.inspecting import print_certificate
from dpserve.commands.releases import train_with_progress
from dpserve.local_services import StartedService, started
from service.serving import ServiceSettings, bind
from training.bundle import save_bundle
from training.data.digits import Digits, load_digits
from training.feature_maps import Fourier, default_clip_norm
from training.lineage import DIGITS
from training.recipe import Recipe

STRONG_CONVEXITY = 100.0
RANDOM_FEATURES = 1000
BANDWIDTH = 0.4
NOISE_MULTIPLIER = 4
DELTA = 1e-6
LINEAGE_EPSILON = 8.0
CLIENT_EPSILON = 5.0
CLIENT = "visitor"
DIGITS_TO_TRY = 12


def demo(
    stay: Annotated[bool, typer.Option("--stay", help="Keep the service up and print how to call it.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 picks a free one.")] = 0,
) -> None:
    """Train on scikit-learn's digits, serve, ask until the budget is gone, and show what was learnt and spent."""
    console = Console()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # so that a stopped demonstration also cleans up
    bind(ServiceSettings(port=port)).close()
    with tempfile.TemporaryDirectory(prefix="dpserve-demo-") as temporary:
        folder = Path(temporary)
        digits = load_digits()
        bundle = _train(console, digits, folder)
        options = ["--price", f"noise-multiplier:{NOISE_MULTIPLIER}"]
        options += ["--epsilon", str(LINEAGE_EPSILON), "--delta", str(DELTA)]
        with started(bundle, folder, options, port=port, quiet=not stay) as service:
            key = service.add_client(DIGITS, CLIENT, Budget.from_epsilon_delta(CLIENT_EPSILON, DELTA, "gaussian"))
            if stay:
                _say_how_to_call(console, service, key, digits, _held_out_csv(folder, digits))
                with suppress(KeyboardInterrupt):
                    service.process.wait()
            else:
                _ask_until_refused(console, service, key, digits)


def _train(console: Console, digits: Digits, folder: Path) -> Path:
    """Return the bundle."""
    declaration = digits.train.declaration
    feature_map = Fourier(
        lower=declaration.lower,
        upper=declaration.upper,
        clip_norm=default_clip_norm(declaration.features),
        bias=0.0,
        random_features=RANDOM_FEATURES,
        bandwidth=BANDWIDTH,
        seed=0,
    )
    head = train_with_progress(digits.train, Recipe("digits", feature_map, STRONG_CONVEXITY), DIGITS)
    print_certificate(console, save_bundle(folder / "digits", head))
    return folder / "digits"


def _ask_until_refused(console: Console, service: StartedService, key: str, digits: Digits) -> None:
    from dpserve.client import BudgetExhausted, Client

    with Client(service.address, key) as client:
        affordable = client.budget()["queries_left"]
        console.print(
            f"\nThe client may spend epsilon = {CLIENT_EPSILON:g} at delta = {DELTA:g}: {affordable} answers. "
            "It asks about held-out digits, one at a time, until it is refused.",
            highlight=False,
        )
        right = asked = 0
        columns = (TextColumn("asking"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[accuracy]}"))
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("asking", total=affordable, accuracy="")
            for row, label in zip(digits.held_out_rows, digits.held_out_labels, strict=True):
                try:
                    (answer,) = client.predict(row[None])
                except BudgetExhausted as refusal:
                    refused = refusal
                    break
                asked += 1
                right += int(answer == str(label))
                progress.update(task, advance=1, accuracy=f"{right} of {asked} right")
        console.print(f"\nAccuracy on the {asked} held-out digits that were answered: {right / asked:.2f}")
        account = asyncio.run(_account(service))
        _print_analyses(console, account)
        console.print("\nThe next question was refused:", style="bold")
        console.print(
            f"  {type(refused).__name__}: {refused}\n  scope: {refused.scope}, cost: rho = {refused.cost:g}"
            f"\n  {refused.problem}",
            highlight=False,
        )


async def _account(service: StartedService) -> ClientAccount:
    async with Ledger.open(service.ledger) as ledger:
        return await ledger.client(DIGITS, CLIENT)


def _print_analyses(console: Console, account: ClientAccount) -> None:
    from accounting.analyses import side_by_side

    spent = side_by_side(account.tally, DELTA)
    table = Table("analysis", f"epsilon at delta = {DELTA:g}", "how", title="what was spent, by five analyses")
    for analysis in spent.analyses:
        epsilon = "does not apply" if analysis.epsilon is None else f"{analysis.epsilon:.4g}"
        table.add_row(analysis.name, epsilon, analysis.method)
    console.print("", table, f"The tightest is {spent.tightest!r}; the loss does not change with the analysis.")


def _held_out_csv(folder: Path, digits: Digits) -> Path:
    """Write some held-out digits as a file to give to the page."""
    path = folder / "held-out-digits.csv"
    rows = (digits.train.declaration.feature_names, *digits.held_out_rows[:DIGITS_TO_TRY].astype(int).tolist())
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


def _say_how_to_call(console: Console, service: StartedService, key: str, digits: Digits, held_out: Path) -> None:
    row = ",".join(f"{pixel:g}" for pixel in digits.held_out_rows[0])
    bearer = f"-H 'Authorization: Bearer {key}'"
    body = f"'{{\"instances\": [[{row}]]}}'"
    for line in (
        f"\nOpen {service.address}/ in a browser (the API: {service.address}/docs). Stop the service with Ctrl-C.",
        f"Sign in with the API key of {CLIENT!r}, for epsilon = {CLIENT_EPSILON:g} at delta = {DELTA:g}: {key}",
        f"Digits to ask about: {held_out}",
        f"The owner's page: {service.owner}\n",
        f"curl -s {bearer} {service.address}/budget\n",
        f"curl -s {bearer} -H 'Content-Type: application/json' -d {body} {service.address}/predict\n",
    ):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
