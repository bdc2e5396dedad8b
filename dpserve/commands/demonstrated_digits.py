"""The parts that both demonstrations have: a model of scikit-learn's digits, a refusal, and how to call a service."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dpserve.commands.certificates import print_certificate
from dpserve.local_services import StartedService
from dpserve.trainer import Screen
from dpserve.training.features import rules
from dpserve.training.inputs.digits import Digits
from dpserve.training.kinds.kind import Job
from dpserve.training.kinds.registry import train_and_save
from dpserve.training.options import Options

if TYPE_CHECKING:
    from dpserve.client import BudgetExhausted

DIGITS_TO_TRY = 12


def train_digits(
    console: Console | None, digits: Digits, out: Path, kind: Options, lineage: str, price: int | None = None
) -> Path:
    """Train a model of this kind into a folder, and return that. console: where its certificate is printed.

    price: of a pay-once model, in picorho.
    """
    records = digits.train
    feature_map = rules.feature_map("modality", records.declaration)
    job = Job(records, "digits", lineage, feature_map, out, out.parent, Screen(), price, len(records))
    model = train_and_save(kind, job)
    if console is not None:
        print_certificate(console, model)
    return out


def print_refusal(console: Console, refusal: "BudgetExhausted") -> None:
    """Print what a client is told that has nothing left."""
    console.print(f"  {type(refusal).__name__}: {refusal}", highlight=False)


def _held_out_csv(folder: Path, digits: Digits) -> Path:
    """Write some held-out digits as a file to give to the page."""
    path = folder / "held-out-digits.csv"
    rows = (digits.train.declaration.feature_names, *digits.held_out_rows[:DIGITS_TO_TRY].astype(int).tolist())
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


def say_how_to_call(
    console: Console, service: StartedService, key: str, digits: Digits, folder: Path, client: str
) -> None:
    """Print how to call a service with a client's key, and wait for Ctrl-C."""
    from dpserve.client import Client

    row = ",".join(f"{pixel:g}" for pixel in digits.held_out_rows[0])
    bearer = f"-H 'Authorization: Bearer {key}'"
    body = f"'{{\"instances\": [[{row}]]}}'"
    with Client(service.address, key) as own:
        account = own.budget()
    at = "pure" if account["currency"] == "epsilon" else f"at delta = {account['delta']:g}"
    for line in (
        f"\nOpen {service.address}/ in a browser (the API: {service.address}/docs). Stop the service with Ctrl-C.",
        f"Sign in with the API key of {client!r}, for epsilon = {account['limit']['epsilon']:g} {at}: {key}",
        f"Digits to ask about: {_held_out_csv(folder, digits)}",
        f"The owner's page: {service.owner}\n",
        f"curl -s {bearer} {service.address}/budget\n",
        f"curl -s {bearer} -H 'Content-Type: application/json' -d {body} {service.address}/predict\n",
    ):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    with suppress(KeyboardInterrupt):
        service.process.wait()
