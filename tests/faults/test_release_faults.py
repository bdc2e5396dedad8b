"""The service of a model that is paid for once dies at every step: one charge, the same answer, always."""

import contextlib
import itertools
from pathlib import Path

import httpx
import pytest

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import Ledger, key_digest, new_api_key
from dpserve.accounting.ledger.verification import verify
from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.training.kinds.head.bundle import CertifiedHead
from dpserve.training.kinds.weights.bundle import save_weights
from dpserve.training.kinds.weights.train import release_weights

from .conftest import fault, trials
from .dying_service import HELD, OPENED, STEPS
from .servers import NotServing, Services

pytestmark = pytest.mark.anyio

LINEAGE = "two-lineage"
OWN = Budget.from_rho(0.2, 1e-6, "gaussian")
PRICE = 10**10


def _bundle(head: CertifiedHead, folder: Path) -> Path:
    save_weights(folder, release_weights(head, PRICE, LINEAGE, SystemRandomness()))
    return folder


def _ask(address: str, key: str, idempotency: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": idempotency}
    body = {"instances": [[0.25, 0.5]]}
    return httpx.post(f"{address}/predict", json=body, headers=headers, timeout=60)


async def test_a_client_pays_while_its_service_is_killed(head: CertifiedHead, tmp_path: Path) -> None:
    """Each trial's client pays for the model at a service that dies on the way."""
    bundle = _bundle(head, tmp_path / "bundle")
    services = Services(bundle, tmp_path / "home", str(tmp_path / "ledger"), tmp_path / "log", price=None)
    with (
        fault("release's service killed at each of its steps, then retried twice") as found,
        services.serving("--rho", 1, "--delta", 1e-6) as (living, _),
    ):
        for trial, point in enumerate(itertools.islice(itertools.cycle(STEPS), trials(100, 3))):
            client, key = f"client{trial}", new_api_key()
            async with Ledger.open(services.ledger) as ledger:
                await ledger.acting("owner").add_client(LINEAGE, client, OWN, key_digest(key), time=0.0)
            with services.serving(fault=point) as (doomed, process):
                with contextlib.suppress(httpx.HTTPError):
                    raise AssertionError(f"{point} was survived: {_ask(doomed, key, 'first').text}")
                assert process.wait(60) == -9
            first, again = (_ask(living, key, "first").json() for _ in range(2))
            async with Ledger.open(services.ledger) as ledger:
                account, lineage = await ledger.client(LINEAGE, client), await ledger.lineage(LINEAGE)
                right = (await verify(ledger, LINEAGE)).findings == ()
            one_answer = first["predictions"] == again["predictions"]
            paid_once = account.releases == lineage.releases == 1 and account.spent == lineage.spent
            found.trial(held=one_answer and paid_once and right)


async def test_a_service_is_killed_on_the_way_to_its_first_answer(head: CertifiedHead, tmp_path: Path) -> None:
    """Each trial is a release of its own, whose first service dies, at its start or on its first client's request."""
    services = Services(tmp_path, tmp_path / "home", str(tmp_path / "ledger"), tmp_path / "log", price=None)
    steps = (OPENED, HELD, *STEPS)
    with fault("release's first service killed at each of its steps, restarted") as found:
        for trial, point in enumerate(itertools.islice(itertools.cycle(steps), trials(70, 4))):
            services.bundle = _bundle(head, tmp_path / f"bundle-{trial}")
            client, key = f"client{trial}", new_api_key()
            if point not in (OPENED, HELD):
                async with Ledger.open(services.ledger) as ledger:
                    await ledger.acting("owner").add_client(LINEAGE, client, OWN, key_digest(key), time=0.0)
            with (
                contextlib.suppress(httpx.HTTPError, NotServing),  # it may die before it says that it serves
                services.serving("--rho", 1, "--delta", 1e-6, fault=point) as (doomed, process),
            ):
                with contextlib.suppress(httpx.HTTPError):
                    raise AssertionError(f"{point} was survived: {_ask(doomed, key, 'first').text}")
                assert process.wait(60) == -9
            async with Ledger.open(services.ledger) as ledger:
                charged = (await ledger.lineage(LINEAGE)).releases
                if point in (OPENED, HELD):
                    await ledger.acting("owner").add_client(LINEAGE, client, OWN, key_digest(key), time=0.0)
            with services.serving() as (living, _):
                first, again = (_ask(living, key, "first").json() for _ in range(2))
            async with Ledger.open(services.ledger) as ledger:
                account, lineage = await ledger.client(LINEAGE, client), await ledger.lineage(LINEAGE)
                right = (await verify(ledger, LINEAGE)).findings == ()
            one_answer = first["predictions"] == again["predictions"]
            charged_before = charged == trial + (point != OPENED)
            paid_once = lineage.releases == trial + 1 and account.releases == 1
            found.trial(held=one_answer and charged_before and paid_once and right)
