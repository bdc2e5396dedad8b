"""Lineages: all models trained on the same records share one, and with it one budget.

The name is a keyed digest of the file or set that the records come from (HMAC-SHA256 under a secret of the
owner's), so that training again on the same records, in any order and from whichever columns, gives the same
lineage, and nobody without the key can test a guess at the records against it. Sets that overlap but differ get
different digests: an owner who trains on a growing or changing set names the lineage and so keeps the models
under one budget.
"""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from training.certificate import NAME
from training.data.records import Records
from training.errors import TrainingError

_KEY_BYTES = 32


def lineage_of(records: Records, key: bytes) -> str:
    """Return the lineage's name: 32 hexadecimal digits, the same for the same source in any order of its rows.

    The source counts, not what was picked from it: other columns, rows, classes, bounds or features of one file
    stay in its lineage.
    """
    each = sorted(hmac.digest(key, row, "sha256") for row in records.source)
    return hmac.digest(key, b"".join(each), hashlib.sha256).hex()[:32]


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
