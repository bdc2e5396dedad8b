"""Services that commands start; and two services of neighbouring models, for an audit."""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.accounting.budgets import Budget, accepts_for
from dpserve.accounting.ledger import Ledger, key_digest, new_api_key
from dpserve.audit.distinguishing.neighbours import KINDS, Neighbours, neighbours, random_rows, strongest_row
from dpserve.configuration import environment_without_settings
from dpserve.mechanisms.mechanism import Law, Mechanism
from dpserve.mechanisms.registry import priced
from dpserve.service.errors import CannotServe
from dpserve.training.features.feature_map import default_clip_norm
from dpserve.training.features.maps import Identity
from dpserve.training.inputs.digits import load_digits
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.bundle import CertifiedHead, save_bundle
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.registry import kind_of

_ACCOUNT_DELTA = 1e-6
_POOL = 2000
_SPARE = 1.001
_OWNER = "dpserve: the owner's port is "
_COMMAND_LINE = "from dpserve.orphans import command_line; command_line()"


@dataclass(frozen=True, eq=False)
class ServicePair:
    """Two running services, first the one with the record. row: (1, d), the strongest; note: what the models are."""

    models: Neighbours
    row: Floats
    urls: tuple[str, str]
    keys: tuple[str, str]
    note: str


def running_services(
    urls: tuple[str, str], bundles: tuple[Path, Path], keys: tuple[str, str], rng: np.random.Generator
) -> ServicePair:
    """Return two services that run already, first the one with the record, or unit.

    Raises ValueError where one model protects units and the other does not, for neighbours are alike in that.
    """
    heads = [load_model(path) for path in bundles]
    for head in heads:
        if (lack := kind_of(head).limitation("audit")) is not None:
            raise ValueError(f"{head.certificate.name}: {lack}")
    first, second = (getattr(head.certificate, "unit", None) for head in heads)
    if first != second:
        raise ValueError("the two models protect different privacy units, so they are no neighbours")
    public = heads[0].certificate
    lower, upper = public.feature_map.lower, public.feature_map.upper
    declaration = Declaration(public.feature_names, lower, upper, public.classes)
    pool = random_rows(declaration, _POOL, rng)
    pair = Neighbours("natural", heads[0], heads[1], pool[0], 0)
    one = "record" if first is None else repr(first)
    note = f"The two bundles are taken for neighbours: that one {one} makes their difference is the auditor's word."
    return ServicePair(pair, strongest_row(pair, declaration, pool, rng), urls, keys, note)


@contextmanager
def own_services(
    kind: str,
    mechanism: str,
    price: str,
    lam: float,
    trials: int,
    rng: np.random.Generator,
    selection: Law | None = None,
) -> Iterator[ServicePair]:
    """Train two models on the digits, one with a record of this kind more, and serve both until the end.

    Their budgets pay for the trials. Raises ValueError for an unknown kind or mechanism, and CannotServe.
    """
    kind_of_service = next((one for one in KINDS if one == kind), None)
    if kind_of_service is None:
        raise ValueError(f"the record is one of {', '.join(KINDS)}, not {kind!r}")
    records = load_digits().train
    chosen = priced(mechanism, price, len(records.declaration.classes), selection)
    pair = neighbours(kind_of_service, records, lambda some: trained(some, lam), rng)
    row = strongest_row(pair, records.declaration, records.X, rng)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dpserve-audit-")))
        first, second = (
            stack.enter_context(_service(cast(CertifiedHead, head), folder / which, chosen, price, selection, trials))
            for head, which in ((pair.head_in, "in"), (pair.head_out, "out"))
        )
        records_of = "records that the auditor chose" if kind == "poisoned" else "the digits"
        one = {"mislabelled": "a searched mislabelled", "poisoned": "one more"}.get(kind, f"one {kind}")
        note = f"The models were trained on {records_of}, Lambda = {lam:g}, with and without {one} record."
        yield ServicePair(pair, row, (first[0], second[0]), (first[1], second[1]), note)


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
    return train_head(records, Recipe("digits", feature_map, lam), f"audit-{len(records)}")


@contextmanager
def _service(
    head: CertifiedHead, folder: Path, mechanism: Mechanism, price: str, selection: Law | None, trials: int
) -> Iterator[tuple[str, str]]:
    """Start a service whose lineage and whose one client can pay for the trials; give its address and the key."""
    folder.mkdir()
    save_bundle(folder / "bundle", head)
    rho = float(mechanism.cost.rho) * trials * _SPARE
    accepts = accepts_for(mechanism.cost)
    options = ["--price", price, "--mechanism", mechanism.name, "--rho", repr(rho), "--delta", repr(_ACCOUNT_DELTA)]
    options += ["--selection", selection] if selection else []
    options += ["--accepts", accepts] + ["--accept-unproven"] * (mechanism.status != "proven")
    with start_service(folder / "bundle", folder, options) as service:
        key = service.add_client(head.certificate.lineage, "auditor", Budget.from_rho(rho, _ACCOUNT_DELTA, accepts))
        yield service.address, key


@dataclass(frozen=True)
class StartedService:
    """A service in a process of its own. owner: what it prints about the owner's port. store: its folder, or URL.

    replicas: on how many of the store's replicas a charge must be on disk, too.
    """

    address: str
    owner: str
    store: Path | str
    replicas: int
    process: subprocess.Popen[str]

    def ledger(self) -> AbstractAsyncContextManager[Ledger]:
        """Open its ledger."""
        return Ledger.open(self.store, replicas=self.replicas)

    def add_client(self, lineage: str, name: str, budget: Budget) -> str:
        """Give a client a budget; return its API key."""
        key = new_api_key()

        async def add() -> None:
            async with self.ledger() as ledger:
                await ledger.acting("dpserve").add_client(lineage, name, budget, key_digest(key), time=time.time())

        asyncio.run(add())
        return key


@contextmanager
def start_service(
    bundle: Path,
    folder: Path,
    options: Sequence[str],
    *,
    port: int = 0,
    quiet: bool = True,
    ledger: str | None = None,
    replicas: int = 0,
) -> Iterator[StartedService]:
    """Start a service of a bundle; stop it at the end. port: 0 for a free one.

    quiet: keep its log in the folder, for the error if it does not start. ledger: the URL of a store; by default the
    ledger is in the folder. replicas: of the store. Raises CannotServe.
    """
    store: Path | str = folder / "ledger" if ledger is None else ledger
    command = [sys.executable, "-c", _COMMAND_LINE, "serve", str(bundle), "--port", str(port)]
    command += ["--ledger", str(store), "--ledger-replicas", str(replicas), *options]
    environment = environment_without_settings() | {"PYTHONUNBUFFERED": "1", "DPSERVE_HOME": str(folder)}
    with (folder / "service.log").open("w+") as log:
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,  # closed with this process, whatever ends it
            stdout=subprocess.PIPE,
            stderr=log if quiet else None,
            text=True,
            env=environment,
        )
        try:
            address = owner = ""
            for line in process.stdout or ():
                if line.startswith(_OWNER):
                    owner = line.removeprefix(_OWNER).strip()
                if line.startswith("dpserve: serving"):
                    address = line.split()[-1]
                    break
            if not address:
                log.seek(0)
                raise CannotServe(log.read().strip().removeprefix("dpserve: ") or "the service did not start")
            yield StartedService(address, owner, store, replicas, process)
        finally:
            process.terminate()
            process.wait()
