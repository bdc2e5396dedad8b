"""`dpserve export`: a pay-once model as a file that needs neither this service nor its code."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from accounting.ledger import BudgetExhausted, Ledger, UnknownLineage
from accounting.picorho import to_rho
from dpserve.commands import completing, options
from dpserve.commands.command import option
from service.errors import CannotServe
from service.opening import hold_for_owner
from training.export.files import FORMS, exported
from training.loading import load_model
from training.releases.certificate import ReleaseCertificate
from training.releases.model import ReleasedModel


class ReplicatedLedger(options.LedgerOption):
    """The ledger that a charge is made in."""

    ledger_replicas: int = option(
        0,
        "On how many of the store's replicas the charge must be on disk, too, as 'serve' takes it.",
        ge=0,
        variable="DPSERVE_LEDGER_REPLICAS",
    )


def export(
    bundle: Annotated[Path, typer.Argument(help="The bundle's folder.", autocompletion=completing.bundles)],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help=f"{', '.join(FORMS)}: a graph for any ONNX runtime, a fitted pipeline for joblib, or the arrays.",
            autocompletion=completing.forms,
        ),
    ],
    tier: Annotated[str | None, typer.Option(help="Which precision, of a model that has several.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file to write. [default: by the model's name]", show_default=False)
    ] = None,
    *,
    ledger: ReplicatedLedger,
) -> None:
    """Write a pay-once model into one file that anyone may have. The lineage pays for its tier, once."""
    model = load_model(bundle)
    file = exported(model, to, tier)
    assert isinstance(model, ReleasedModel)
    certificate = model.certificate
    suffix = f"-{file.tier}{file.suffix}" if len(certificate.tiers) > 1 else file.suffix
    target = out or Path(f"{certificate.name}{suffix}")
    with _written(target, file.content):
        charged = asyncio.run(_charge(ledger, certificate, file.tier))
    typer.echo(f"wrote {target}, {len(file.content):,} bytes, with nothing secret in it")
    if charged:
        typer.echo(f"the lineage {certificate.lineage} was charged rho = {to_rho(charged):g} for it, once")


@contextmanager
def _written(target: Path, content: bytes) -> Iterator[None]:
    """Put the file in its place when what is done meanwhile has succeeded; else leave nothing."""
    if target.exists():
        raise FileExistsError(0, "there is a file already, and it stays as it is; name another with --out", str(target))
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        yield
        draft.rename(target)
    finally:
        draft.unlink(missing_ok=True)


async def _charge(where: ReplicatedLedger, certificate: ReleaseCertificate, tier: str) -> int:
    """Charge the lineage for holding the tier; return what was charged now, in picorho."""
    location, journals = options.ledger_location(where.ledger), options.journals_folder()
    async with Ledger.open(location, replicas=where.ledger_replicas, journals=journals) as ledger:
        try:
            return await hold_for_owner(ledger, certificate, tier)
        except UnknownLineage:
            raise CannotServe(
                f"the lineage {certificate.lineage} has no budget, and what leaves is charged to it: give it one with "
                "'dpserve lineage set-budget BUNDLE --epsilon E --delta D'"
            ) from None
        except BudgetExhausted as refused:
            raise CannotServe(
                f"holding it costs rho = {to_rho(refused.cost):.6g}, and {to_rho(refused.remaining):.6g} is left of "
                f"the budget of the lineage {certificate.lineage}; nothing was charged, and nothing was written"
            ) from None
