"""`dpserve inspect`, and how a certificate is printed for its owner."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from accounting.picorho import to_rho
from dpserve.commands import completing
from dpserve.commands.console import stdout_console
from training.certificate import Certificate, ProvenCertificate
from training.feature_maps import Encoder, FeatureMap
from training.loading import load_model
from training.published.bundle import PublishedNetwork
from training.releases.certificate import ReleaseCertificate
from training.releases.model import ReleasedModel
from training.teachers.bundle import Teachers
from training.teachers.certificate import TeachersCertificate


def inspect(
    bundle: Annotated[Path, typer.Argument(help="The bundle's folder.", autocompletion=completing.bundles)],
    as_json: Annotated[bool, typer.Option("--json", help="Print the certificate as JSON.")] = False,
) -> None:
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
    if isinstance(model, Teachers):
        print_teachers(stdout_console(), model.certificate)
    elif isinstance(model, ReleasedModel):
        print_release(stdout_console(), model.certificate)
    else:
        print_certificate(stdout_console(), model.certificate)
    assumptions = (f"\n - {each}" for each in certificate.assumptions)
    stdout_console().print("It holds if:", *assumptions, highlight=False)
    stdout_console().print("verified: every number was derived again, and the weights are those that were certified")


def print_certificate(console: Console, certificate: Certificate) -> None:
    """Print the certificate for its owner."""
    feature_map = certificate.feature_map
    figures = [
        ("status", certificate.status),
        ("neighbouring data sets", certificate.neighbouring),
        *_unit_rows(certificate),
        ("objective", certificate.objective),
        ("features", f"{len(certificate.feature_names)} -> {feature_map.kind}, {feature_map.dimension} coordinates"),
        *_encoder_rows(feature_map),
        *_column_rows(feature_map),
        ("classes", f"{len(certificate.classes)}: " + _shortened(", ".join(certificate.classes))),
        ("feature norm bound R", f"{certificate.feature_norm_bound:g}"),
        ("Lambda", f"{certificate.strong_convexity:g}"),
        ("tolerance tau", f"{certificate.tolerance:g}"),
        ("steps of features and weights", f"{certificate.feature_step:g}, {certificate.weight_step:g}"),
        ("weight sensitivity Delta_W", f"{certificate.weight_sensitivity:.6g}"),
    ]
    _print_figures(console, certificate, figures)


def _unit_rows(certificate: ProvenCertificate) -> list[tuple[str, str]]:
    if certificate.unit is None:
        return []
    return [("privacy unit", f"all records with one value of {certificate.unit!r}: a person with many rows is one")]


def _encoder_rows(feature_map: FeatureMap) -> list[tuple[str, str]]:
    if not isinstance(feature_map, Encoder):
        return []
    return [("encoder, declared public", f"ONNX, SHA-256 {feature_map.model_sha256[:16]}...")]


def _column_rows(feature_map: FeatureMap) -> list[tuple[str, str]]:
    each = [f"{column.name} ({column.kind})" for column in feature_map.columns]
    return [("columns, declared public", f"{len(each)}: " + _shortened(", ".join(each)))] if each else []


def print_release(console: Console, certificate: ReleaseCertificate) -> None:
    """Print the certificate of a release for its owner: what is common to all, its own numbers, and its tiers."""
    common = set(ReleaseCertificate.model_fields)
    own = {name: value for name, value in certificate.model_dump(mode="json").items() if name not in common}
    feature_map = certificate.feature_map
    features = f"{len(certificate.feature_names)} -> {feature_map.kind}, {feature_map.dimension} coordinates"
    figures = [
        ("pay-once model", certificate.release),
        ("status", certificate.status),
        ("neighbouring data sets", certificate.neighbouring),
        *_unit_rows(certificate),
        ("features", features),
        *_column_rows(feature_map),
        ("classes", str(len(certificate.classes))),
    ]
    for name, value in own.items():
        if not isinstance(value, list | dict):
            figures.append((name.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else str(value)))
    _print_figures(console, certificate, figures)
    prices = Table("tier", "rho in all", "beyond the one before", title="what holding it costs", title_justify="left")
    total = 0
    for tier in certificate.tiers:
        total += tier.cost.picorho
        prices.add_row(tier.name, f"{to_rho(total):.6g}", f"{to_rho(tier.cost.picorho):.6g}")
    console.print(prices, highlight=False)


def print_teachers(console: Console, certificate: TeachersCertificate) -> None:
    """Print the certificate of teachers for its owner."""
    layers = " -> ".join(map(str, certificate.widths))
    figures = [
        ("status", certificate.status),
        ("neighbouring data sets", certificate.neighbouring),
        *_unit_rows(certificate),
        ("teachers", f"{certificate.teachers}, on disjoint parts {certificate.parts}"),
        ("each of them", f"{layers}, {certificate.activation}"),
        ("what each says", certificate.rule),
        ("sensitivity of the mean, in L2", f"{certificate.logit_sensitivity:.6g}"),
    ]
    _print_figures(console, certificate, figures)


def _print_figures(console: Console, certificate: ProvenCertificate, figures: Sequence[tuple[str, str]]) -> None:
    """Print a certificate's own figures, and what every certificate ends with."""
    table = Table("what", "value", title=f"certificate of {certificate.name}", title_justify="left")
    for what, value in figures:
        table.add_row(what, value)
    table.add_row("lineage", certificate.lineage)
    table.add_row("SHA-256 of the weights (private)", certificate.weights_sha256[:16] + "...")
    console.print(table, highlight=False)


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
