"""Which code an audit's kept pieces come from: pieces of other code are not gone on from."""

import hashlib
from functools import cache
from pathlib import Path

import accounting
import audit
import mechanisms
import training


@cache
def code_digest() -> str:
    """Return a digest of every module of `accounting`, `mechanisms`, `training` and `audit`, by path and content.

    What is only shown is among them: to compute a piece again is cheaper than to trust one that other code made.
    """
    found = hashlib.sha256()
    for package in (accounting, mechanisms, training, audit):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            found.update(f"{package.__name__}/{path.relative_to(root)}".encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()
