"""Which records validate, and do not train, where something is chosen by results on them: by a keyed hash of each."""

import hashlib
import hmac
from collections.abc import Iterator

from training.errors import TrainingError
from training.inputs.records import Records

ONE_IN = 6
"""One in so many records validates."""

_PURPOSE = b"dpserve: which records validate\0"
_OF_UNIT = b"dpserve: which units validate\0"


def keyed(records: Records, key: bytes) -> Iterator[bytes]:
    """Yield a keyed hash of each record alone, or of its privacy unit's name. key: the owner's secret.

    A record is its features and its label as 64-bit numbers. Raises TrainingError for units without names.
    """
    if records.units is None:
        for row, label in zip(records.X, records.y, strict=True):
            # 0.0 and -0.0 are the same number.
            content = (row + 0.0).astype("<f8").tobytes() + int(label).to_bytes(8, "little")
            yield hmac.digest(key, _PURPOSE + content, hashlib.sha256)
        return
    if records.units.names is None:
        raise TrainingError("the units have no names, which say whether they validate")
    of_unit = [hmac.digest(key, _OF_UNIT + name.tobytes(), hashlib.sha256) for name in records.units.names]
    yield from (of_unit[unit] for unit in records.units.of)
