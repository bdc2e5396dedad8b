"""Whether a contender answers rightly: asked before any load, so that nobody is fast by answering something else."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable

import numpy as np

from benchmarks.serving.load import Body

Answers = Callable[[np.ndarray], np.ndarray]


def ask(url: str, body: Body, rows: np.ndarray, key: str | None = None) -> bytes:
    """Return what `url` answers to these rows, (n, d). Raises RuntimeError with what it said instead."""
    headers = {"Content-Type": body.media_type, "Accept": body.media_type} | (
        {"Authorization": f"Bearer {key}"} if key else {}
    )
    request = urllib.request.Request(url, body.of(rows.tolist()), headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            raise RuntimeError(f"{url} says {error.code}: {error.read()[:500]!r}") from error


def check(
    url: str, body: Body, read: Callable[[bytes], np.ndarray], expected: Answers | None, features: int, key: str | None
) -> None:
    """Raise RuntimeError unless the answers are distributions and, where noise does not forbid it, the expected ones.

    expected: None for private answers. These must be given again, the same, when the same rows are asked again.
    """
    rows = np.random.default_rng(7).random((3, features)).round(4)
    found = read(ask(url, body, rows, key))
    wanted = read(ask(url, body, rows, key)) if expected is None else expected(rows)
    if found.shape != wanted.shape:
        raise RuntimeError(f"{url} answers in the shape {found.shape}, not {wanted.shape}")
    if not (np.isfinite(found).all() and (found >= 0).all() and np.allclose(found.sum(axis=1), 1, atol=1e-4)):
        raise RuntimeError(f"{url} answers with something that is no distribution")
    if not np.allclose(found, wanted, atol=0 if expected is None else 1e-5, rtol=0):
        raise RuntimeError(f"{url} answers wrongly: off by up to {np.abs(found - wanted).max():.3g}")


def of(name: str | None) -> Callable[[bytes], np.ndarray]:
    """Return a reader of JSON answers: the rows of probabilities under `name`, or the whole answer."""

    def read(content: bytes) -> np.ndarray:
        parsed = json.loads(content)
        return np.array(parsed if name is None else parsed[name], dtype=np.float64)

    return read


def read_v2(content: bytes) -> np.ndarray:
    """Read an answer of the V2 inference protocol."""
    output = json.loads(content)["outputs"][0]
    return np.array(output["data"], dtype=np.float64).reshape(output["shape"])
