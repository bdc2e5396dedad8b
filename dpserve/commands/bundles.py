"""`dpserve inspect` and `dpserve export`: what a bundle promises, and a pay-once model as a file of its own."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from accounting.ledger import BudgetExhausted, Ledger, UnknownLineage
from accounting.picorho import to_rho
from dpserve.commands import options
from dpserve.commands.command import option
from dpserve.commands.console import stdout_console
from service.errors import CannotServe
from training.certificate import Certificate
from training.export.files import FORMS, exported
from training.feature_maps import Bins, Encoder
from training.loading import load_model
from training.published.bundle import PublishedNetwork
from training.releases.certificate import ReleaseCertificate
from training.releases.model import ReleasedModel
from training.teachers.certificate import TeachersCertificate

Certified = Certificate | ReleaseCertificate | TeachersCertificate


def inspect(bundle: options.Bundle, as_json: options.Json = False) -> None:
    """Derive every number of a bundle's certificate again: prints it and "verified", or says what differs."""
    model = load_model(bundle)
    if isinstance(model, PublishedNetwork):
        typer.echo(model.certificate.model_dump_json(indent=2))
        typer.echo("UNPROVEN: the numbers follow from each other, and bound nothing", err=True)
        return
    certificate = model.certificate
    if as_json:
        typer.echo(json.dumps(certificate.model_dump(mode="json") | {"verified": True}, indent=2))
        return
    print_certificate(stdout_console(), certificate)
    assumptions = (f"\n - {each}" for each in certificate.assumptions)
    stdout_console().print("It holds if:", *assumptions, highlight=False)
    stdout_console().print("verified: every number was derived again, and the weights are those that were certified")


def print_certificate(console: Console, certificate: Certified) -> None:
    """Print a certificate for its owner: its own figures, what every certificate has, and what holding it costs."""
    own = (
        _of_teachers(certificate)
        if isinstance(certificate, TeachersCertificate)
        else _of_release(certificate)
        if isinstance(certificate, ReleaseCertificate)
        else _of_head(certificate)
    )
    table = Table("what", "value", title=f"certificate of {certificate.name}", title_justify="left")
    for what, value in (
        ("status", certificate.status),
        ("neighbouring data sets", certificate.neighbouring),
        *_unit(certificate.unit),
        *own,
        ("lineage", certificate.lineage),
        ("SHA-256 of the weights (private)", certificate.weights_sha256[:16] + "..."),
    ):
        table.add_row(what, value)
    console.print(table, highlight=False)
    if not isinstance(certificate, ReleaseCertificate):
        return
    prices = Table("tier", "rho in all", "beyond the one before", title="what holding it costs", title_justify="left")
    total = 0
    for tier in certificate.tiers:
        total += tier.cost.picorho
        prices.add_row(tier.name, f"{to_rho(total):.6g}", f"{to_rho(tier.cost.picorho):.6g}")
    console.print(prices, highlight=False)


def _unit(unit: str | None) -> list[tuple[str, str]]:
    if unit is None:
        return []
    return [("privacy unit", f"all records with one value of {unit!r}: a person with many rows is one")]


def _of_head(certificate: Certificate) -> list[tuple[str, str]]:
    return [
        ("objective", certificate.objective),
        *_features(certificate),
        ("classes", f"{len(certificate.classes)}: " + _shortened(", ".join(certificate.classes))),
        ("feature norm bound R", f"{certificate.feature_norm_bound:g}"),
        ("Lambda", f"{certificate.strong_convexity:g}"),
        ("tolerance tau", f"{certificate.tolerance:g}"),
        ("steps of features and weights", f"{certificate.feature_step:g}, {certificate.weight_step:g}"),
        ("weight sensitivity Delta_W", f"{certificate.weight_sensitivity:.6g}"),
    ]


def _of_release(certificate: ReleaseCertificate) -> list[tuple[str, str]]:
    common = set(ReleaseCertificate.model_fields)
    own = {name: value for name, value in certificate.model_dump(mode="json").items() if name not in common}
    return [
        ("pay-once model", certificate.release),
        *_features(certificate),
        ("classes", str(len(certificate.classes))),
        *(
            (name.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else str(value))
            for name, value in own.items()
            if not isinstance(value, list | dict)
        ),
    ]


def _of_teachers(certificate: TeachersCertificate) -> list[tuple[str, str]]:
    layers = " -> ".join(map(str, certificate.widths))
    return [
        ("teachers", f"{certificate.teachers}, on disjoint parts {certificate.parts}"),
        ("each of them", f"{layers}, {certificate.activation}"),
        ("what each says", certificate.rule),
        ("sensitivity of the mean, in L2", f"{certificate.logit_sensitivity:.6g}"),
    ]


def _features(certificate: Certificate | ReleaseCertificate) -> list[tuple[str, str]]:
    feature_map = certificate.feature_map
    figures = [
        ("features", f"{len(certificate.feature_names)} -> {feature_map.kind}, {feature_map.dimension} coordinates")
    ]
    if isinstance(feature_map, Encoder):
        figures.append(("encoder, declared public", f"ONNX, SHA-256 {feature_map.model_sha256[:16]}..."))
    if each := [f"{column.name} ({column.kind})" for column in feature_map.columns]:
        figures.append(("columns, declared public", f"{len(each)}: " + _shortened(", ".join(each))))
    if isinstance(feature_map, Bins) and feature_map.crosses:
        names = [column.name for column in feature_map.columns] or certificate.feature_names
        crosses = ", ".join(f"{names[one]}:{names[other]}" for one, other in feature_map.crosses)
        figures.append(("crosses, declared public", _shortened(crosses)))
    return figures


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


class ReplicatedLedger(options.ActsOnLedger):
    """The ledger that a charge is made in."""

    ledger_replicas: int = option(
        0,
        "On how many of the store's replicas the charge must be on disk, too, as 'serve' takes it.",
        ge=0,
        variable="DPSERVE_LEDGER_REPLICAS",
    )


def export(
    bundle: options.Bundle,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help=f"{', '.join(FORMS)}: a graph for any ONNX runtime, a fitted pipeline for joblib, or the arrays.",
            autocompletion=options.form_names,
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
    with written(target, file.content):
        charged = asyncio.run(_charge(ledger, certificate, file.tier))
    typer.echo(f"wrote {target}, {len(file.content):,} bytes, with nothing secret in it")
    if charged:
        typer.echo(f"the lineage {certificate.lineage} was charged rho = {to_rho(charged):g} for it, once")


@contextmanager
def written(target: Path, content: bytes) -> Iterator[None]:
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
    # Training prints certificates, and should not wait for what answers.
    from service.opening import hold_for_owner

    location, journals = options.ledger_location(where.ledger), options.journals_folder()
    async with Ledger.open(location, replicas=where.ledger_replicas, journals=journals) as ledger:
        try:
            charged = await hold_for_owner(ledger, certificate, tier)
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
        left = {"what": certificate.name, "model": certificate.model_id, "tier": tier}
        await where.acting(ledger).note(certificate.lineage, "export", left)
        return charged
