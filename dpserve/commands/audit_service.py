"""What `dpserve audit service` does: two services of neighbouring models, its own or running ones, told apart."""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from accounting.budgets import Budget, accepts_for
from accounting.ledger import Ledger, key_digest, new_api_key
from audit.distinguishing import presentation
from audit.distinguishing.mechanism import judge
from audit.distinguishing.neighbours import KINDS, Neighbours, neighbours, random_rows, strongest_row
from audit.distinguishing.service import Kept, observe_services
from audit.pieces import ResultStore
from audit.reports import Report
from dpserve.client import Client
from dpserve.commands.audit_output import stored
from dpserve.commands.console import counting
from dpserve.configuration import environment_without_settings
from mechanisms.mechanism import Mechanism, priced
from service.errors import CannotServe
from training.bundle import CertifiedHead, load_bundle, save_bundle
from training.data.digits import load_digits
from training.data.records import Declaration, Records
from training.feature_maps import Identity, default_clip_norm
from training.published.bundle import is_published, load_published
from training.recipe import Recipe
from training.train import train

Floats = NDArray[np.float64]

_ACCOUNT_DELTA = 1e-6
_POOL = 2000
_CLIENT = "auditor"
_SPARE = 1.001


@dataclass(frozen=True)
class OwnServices:
    """Two services to be trained and started here, on the digits."""

    kind: str
    mechanism: str
    price: str
    lam: float


@dataclass(frozen=True)
class RunningServices:
    """Two services that run already, first the one with the record."""

    urls: tuple[str, str]
    bundles: tuple[Path, Path]
    keys: tuple[str, str]


Services = OwnServices | RunningServices


@dataclass(frozen=True, eq=False)
class _Opened:
    pair: Neighbours
    row: Floats
    urls: tuple[str, str]
    keys: tuple[str, str]
    said: str


def audit_service(
    services: Services,
    *,
    delta: float,
    trials: int,
    confidence: float,
    conviction_confidence: float,
    seed: int,
    resume: Path | None,
) -> Report:
    """Return the report. Raises ValueError for nonsense, and the client's errors.

    resume: the folder of scores that were kept, each bound to both models, the price, the rows and the seed.
    """
    rng = np.random.default_rng(seed)
    with ExitStack() as stack:
        kept = _kept(stack.enter_context(stored(resume)), seed)
        if isinstance(services, OwnServices):
            opened = stack.enter_context(_own(services, trials, rng))
        else:
            opened = _running(services, rng)
        first, second = (
            stack.enter_context(Client(url, key)) for url, key in zip(opened.urls, opened.keys, strict=True)
        )
        progress = stack.enter_context(counting("asking both services", trials))
        mechanism, scores_in, scores_out = observe_services(
            first, second, opened.pair, opened.row, trials, rng, kept=kept, progress=progress
        )
    finding = judge(
        mechanism,
        scores_in,
        scores_out,
        delta=delta,
        confidence=confidence,
        conviction_confidence=conviction_confidence,
    )
    movement = float(opened.pair.movement(opened.row)[0])
    return presentation.report(
        finding,
        scores_in,
        scores_out,
        f"Audit of two services by the mechanism {mechanism.name!r} ({mechanism.status})",
        {"record": opened.pair.kind, "trials": trials, "seed": seed, "movement_over_sensitivity": movement},
        opened.said,
        f"At the strongest row that was found the logits move by {movement:.4g} of their sensitivity.",
    )


def _kept(store: ResultStore, seed: int) -> Kept:
    def kept(piece: Mapping[str, Any], ask: Callable[[], tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
        def compute() -> dict[str, Any]:
            inside, outside = ask()
            return {"in": inside.tolist(), "out": outside.tolist()}

        found = store.result({"name": "audit-service", "seed": seed, **piece}, compute)
        return np.array(found["in"]), np.array(found["out"])

    return kept


def _running(services: RunningServices, rng: np.random.Generator) -> _Opened:
    heads = [load_published(path) if is_published(path) else load_bundle(path) for path in services.bundles]
    certificate = heads[0].certificate
    declaration = Declaration(
        certificate.feature_names,
        certificate.feature_map.lower,
        certificate.feature_map.upper,
        certificate.classes,
    )
    pool = random_rows(declaration, _POOL, rng)
    pair = Neighbours("natural", heads[0], heads[1], pool[0], 0)
    return _Opened(
        pair,
        strongest_row(pair, declaration, pool, rng),
        services.urls,
        services.keys,
        "The two bundles are taken for neighbours: that one record makes their difference is the auditor's word.",
    )


@contextmanager
def _own(services: OwnServices, trials: int, rng: np.random.Generator) -> Iterator[_Opened]:
    if services.kind not in KINDS:
        raise ValueError(f"the record is one of {', '.join(KINDS)}, not {services.kind!r}")
    records = load_digits().train
    mechanism = priced(services.mechanism, services.price, len(records.declaration.classes))
    pair = neighbours(services.kind, records, lambda some: trained(some, services.lam), rng)
    row = strongest_row(pair, records.declaration, records.X, rng)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dpserve-audit-")))
        started = [
            stack.enter_context(_service(cast(CertifiedHead, head), folder / which, mechanism, services.price, trials))
            for head, which in ((pair.head_in, "in"), (pair.head_out, "out"))
        ]
        yield _Opened(
            pair,
            row,
            (started[0][0], started[1][0]),
            (started[0][1], started[1][1]),
            f"The models were trained on the digits, Lambda = {services.lam:g}, with and without "
            f"{'a searched' if services.kind == 'mislabelled' else 'one'} {services.kind} record.",
        )


def trained(records: Records, lam: float) -> CertifiedHead:
    """Return a certified head of the digits with the identity for its feature map."""
    declaration = records.declaration
    feature_map = Identity(
        lower=declaration.lower,
        upper=declaration.upper,
        clip_norm=default_clip_norm(declaration.features),
        bias=0.0,
    )
    # Each training is a lineage of its own: the two services must not share an account.
    return train(records, Recipe("digits", feature_map, lam), f"audit-{len(records)}")


@contextmanager
def _service(
    head: CertifiedHead, folder: Path, mechanism: Mechanism, price: str, trials: int
) -> Iterator[tuple[str, str]]:
    """Start a service whose lineage and whose one client can pay for the trials; give its address and the key."""
    folder.mkdir()
    save_bundle(folder / "bundle", head)
    rho = float(mechanism.cost.rho) * trials * _SPARE
    accepts = accepts_for(mechanism.cost)
    command = [sys.executable, "-m", "dpserve", "serve", str(folder / "bundle"), "--port", "0", "--price", price]
    command += ["--mechanism", mechanism.name, "--ledger", str(folder / "ledger"), "--rho", repr(rho)]
    command += ["--delta", repr(_ACCOUNT_DELTA), "--accepts", accepts]
    command += ["--accept-unproven"] if mechanism.status != "proven" else []
    environment = environment_without_settings() | {"PYTHONUNBUFFERED": "1", "DPSERVE_HOME": str(folder)}
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(  # noqa: S603
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
        try:
            address = next(
                (line.split()[-1] for line in process.stdout or () if line.startswith("dpserve: serving")), ""
            )
            if not address:
                log.seek(0)
                raise CannotServe(log.read().strip().removeprefix("dpserve: "))
            key = new_api_key()
            budget = Budget.from_rho(rho, _ACCOUNT_DELTA, accepts)
            asyncio.run(_add_client(folder / "ledger", head.certificate.lineage, budget, key))
            yield address, key
        finally:
            process.terminate()
            process.wait()


async def _add_client(ledger: Path, lineage: str, budget: Budget, key: str) -> None:
    async with Ledger.open(ledger) as opened:
        await opened.add_client(lineage, _CLIENT, budget, key_digest(key), time=time.time())
