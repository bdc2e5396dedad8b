"""Printing a certificate: what a model is, what was bought for it, and where the proofs are."""

from rich.console import Console
from rich.table import Table

from dpserve.accounting.budgets import READ_AT, words_at
from dpserve.commands.console import whole
from dpserve.training.bundles.certificate import ModelCertificate
from dpserve.training.kinds.registry import kind_of, release_certificate
from dpserve.training.pay_once.certificate import ReleaseCertificate
from dpserve.training.pay_once.releases import TRAINING


def print_certificate(console: Console, certificate: ModelCertificate, delta: float | None = READ_AT) -> None:
    """Print a certificate for its owner: its own figures, what every certificate has, and what it costs.

    delta: at which the cost of a pay-once model is said as an epsilon; None for one that was given in rho.
    """
    kind = kind_of(certificate)
    table = Table("what", "value", title=f"{kind.table_title} {certificate.name}", title_justify="left")
    for what, value in (
        ("status", certificate.status),
        ("neighbouring data sets", certificate.neighbouring),
        *_unit(getattr(certificate, "unit", None)),
        *kind.figures(certificate),
        ("lineage", certificate.lineage),
        *([("blocks", ", ".join(certificate.blocks))] if certificate.blocks else []),
        ("SHA-256 of the weights (private)", certificate.weights_sha256[:16] + "..."),
    ):
        table.add_row(what, value)
    console.print(table, highlight=False)
    if claimed := kind.claims(certificate):
        claims = whole("claimed", "value", "by the paper's")
        claims.title, claims.title_justify = "what the published method claims (private, unproven)", "left"
        for row in claimed:
            claims.add_row(*row)
        console.print(claims, highlight=False)
    if (release := release_certificate(certificate)) is None:
        return
    console.print(_receipt(release), highlight=False)
    proofs = (f"\n - {step.name}: {step.proof}" for step in release.STEPS if release.release_of(step))
    console.print("The proof of each is a docstring:", *proofs, highlight=False)
    console.print(f"It costs {words_at(release.price.picorho, delta)}, once.", highlight=False)


def _receipt(certificate: ReleaseCertificate) -> Table:
    """Return what was bought: each release, its share of the cost, and the records that it was made of."""
    table = whole("release", "share", "records")
    table.title, table.title_justify = "what was bought", "left"
    for release in certificate.releases:
        own = release.part == TRAINING
        share = f"{float(release.price.rho / certificate.price.rho):.1%}" if own else "beside"
        records = "those that train" if own else f"those {release.part}"
        table.add_row(release.name, share, records)
    return table


def _unit(unit: str | None) -> list[tuple[str, str]]:
    if unit is None:
        return []
    return [("privacy unit", f"all records with one value of {unit!r}: a person with many rows is one")]
