"""Seals of archived receipts: what stays in the store of receipts that lie in a file and in the store no more.

An act has the name of the file, its SHA-256, the link that each service's next call carries, and a digest of what every
account had paid for by then; the accounts hold that themselves. So whoever has the chain of acts alone can tell an
archived file from any other, and the books of the store go on where the file ends.

Promise: what is read here was hashed into the chain of acts, or `sums_digest` says otherwise.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from accounting.ledger.receipts import Act, Receipt, digest
from accounting.ledger.values import Account, ChargedModel

ARCHIVE = "archive"
"""The kind of act that says that receipts were archived."""

RECONCILE = "reconcile"
"""The kind of act that says that services were let on again."""


class Sums(Struct, frozen=True, omit_defaults=True):
    """The payments of one account by archived receipts, in 1e-12 of what it counts.

    asked: questions as the account counts them; tally: releases by their cost; holds: whether a client took a tier of a
    pay-once model; models: of a lineage, what it paid for.
    """

    spent: int = 0
    coined: int = 0
    receipts: int = 0
    asked: int = 0
    tally: dict[str, int] = {}
    holds: bool = False
    models: list[ChargedModel] = []

    @property
    def encoding(self) -> bytes:
        """The sums as an account holds them."""
        return msgspec.json.encode(self)


class Seal(Struct, frozen=True):
    """The details of an act `archive`: receipts above `after` and up to `receipts` lie in a file.

    size, sha256: of the file; newest: a digest of the newest of these receipts (`identity`), sums: of what every
    account had paid for (`sums_digest`), both in hexadecimal; links: the link that the next call of each service with
    a receipt among them carries, by its id; lines: the SHA-256 of what the file says, however it is compressed or
    encrypted; place: where it was written. Former seals lack the last two.
    """

    after: int
    receipts: int
    file: str
    size: int
    sha256: str
    newest: str
    sums: str
    links: dict[str, str]
    lines: str = ""
    place: str = ""


def seals_of(acts: Iterable[Act]) -> list[Seal]:
    """Return the seals of a lineage's acts, oldest first. Raises ValueError for one that cannot be read."""
    return [msgspec.json.decode(act.detail, type=Seal) for act in acts if act.kind == ARCHIVE]


def sealed_links(seals: Iterable[Seal]) -> dict[str, bytes]:
    """Return the link that each service's next call after all of these carries, by the service's id."""
    return {service: bytes.fromhex(link) for seal in seals for service, link in seal.links.items()}


def resumed_links(details: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the link that each service went on from after a reconciliation, by its id and by what the act says."""
    return {one["service"]: bytes.fromhex(one["link"]) for one in details["services"]}


def link_after_acts(service: str, acts: Iterable[Act]) -> bytes | None:
    """Return the link that a service went on from after the newest act that says so. Raises ValueError or KeyError."""
    link: bytes | None = None
    for act in acts:
        if act.kind == ARCHIVE:
            link = sealed_links(seals_of([act])).get(service, link)
        elif act.kind == RECONCILE:
            link = resumed_links(act.details).get(service, link)
    return link


def sealed_sums(account: Account, upto: int | None = None) -> Sums:
    """Return what an account had paid for up to the lineage's receipt `upto`, of a lineage its newest archived one.

    Raises ValueError for what cannot be read.
    """
    text = account.sealed.get(account.archived if upto is None else upto)
    return Sums() if text is None else msgspec.json.decode(text, type=Sums)


def sums_digest(sums: Mapping[str, bytes]) -> bytes:
    """Return a digest of the sums of all accounts, as they hold them, by the accounts' subjects: 32 bytes."""
    return digest("dpserve sums", *(part for pair in sorted(sums.items()) for part in pair))


def identity(newest: Sequence[Receipt]) -> bytes:
    """Return a digest of one receipt, its place and its service; nothing for none."""
    return b"".join(digest("dpserve backup", one.link_values, one.service, one.link) for one in newest[:1])
