"""Lineages: all models trained on the same records share one, and with it one budget.

The owner names the lineage. Nothing computed from the records could: a set with one record more or fewer is exactly
the neighbouring one, and must not open a budget of its own. So that a second name for the same records is noticed, the
owner's state folder keeps a keyed digest of every record that was trained on (HMAC-SHA256 under a secret of the
owner's, cut to 16 bytes), by lineage: it tells nobody without the secret whose records they were, and says how many of
a set that is about to be trained on are in another lineage, in whatever order, columns and company.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from training.certificate import NAME
from training.data.records import Records
from training.errors import TrainingError
from training.private_files import write_whole

DIGITS = "digits"
"""The lineage of the public digits that examples train on."""

_KEY_BYTES = 32
_DIGEST_DIGITS = 32


class KnownRecords:
    """Which records were trained on in which lineage, as keyed digests in the owner's state folder."""

    def __init__(self, folder: Path) -> None:
        """folder: where the secret is, and a folder `trained` with a folder for each lineage; made when needed."""
        self._key = folder / "lineage.key"
        self._trained = folder / "trained"

    def digests(self, records: Records) -> frozenset[str]:
        """Return the keyed digest of every row of the source: what is picked from it does not matter."""
        key = owner_key(self._key)
        return frozenset(hmac.digest(key, row, "sha256").hex()[:_DIGEST_DIGITS] for row in records.source)

    def remember(self, lineage: str, digests: frozenset[str]) -> None:
        """Note that these records are in the lineage. Raises OSError."""
        text = "\n".join(sorted(digests))
        folder = self._trained / check_lineage_name(lineage)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(folder / hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS], text)

    def among(self, digests: frozenset[str]) -> Mapping[str, int]:
        """Return how many of these records are in each lineage that has any, by its name, those with most first."""
        found: dict[str, set[str]] = {}
        for path in self._trained.glob("[!.]*/[!.]*"):
            found.setdefault(path.parent.name, set()).update(digests & set(path.read_text("ascii").split()))
        counts = {lineage: len(shared) for lineage, shared in sorted(found.items()) if shared}
        return dict(sorted(counts.items(), key=lambda entry: -entry[1]))


def check_lineage_name(name: str) -> str:
    """Return the owner's own name for a lineage, or raise TrainingError."""
    if not NAME.fullmatch(name):
        raise TrainingError(f"a lineage is named with letters, digits, '.', '_' and '-', at most 64, not {name!r}")
    return name


def owner_key(path: Path) -> bytes:
    """Return the owner's secret for lineages, made on first use and kept in `path`, readable by its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        key = path.read_bytes()
        if len(key) != _KEY_BYTES:
            raise TrainingError(f"{path} should hold {_KEY_BYTES} secret bytes, and holds {len(key)}") from None
        return key
    with os.fdopen(descriptor, "wb") as file:
        key = secrets.token_bytes(_KEY_BYTES)
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    return key
