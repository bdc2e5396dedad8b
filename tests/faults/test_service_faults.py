"""The service dies at every step of a request's way; many clients spend everything at once over two services."""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import redis

from dpserve.accounting.ledger import EmbeddedStore, Ledger, key_digest
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.service.http.app import create_app
from dpserve.service.listener import bind
from dpserve.service.metered import MeteredPredictor
from dpserve.service.models import Models
from dpserve.training.kinds.head.bundle import CertifiedHead
from tests.topologies import wait_until

from .books import COST, open_accounts
from .conftest import FULL, fault, trials
from .dying_service import STEPS
from .servers import Services, StoreServer, children, workers

pytestmark = pytest.mark.anyio

LINEAGE = "two-lineage"
BUDGET = ("--rho", 10, "--delta", 1e-6)


@pytest.fixture
def services(bundle: Path, tmp_path: Path) -> Services:
    return Services(bundle, tmp_path / "home", str(tmp_path / "ledger"), tmp_path / "log")


def _client(services: Services, name: str, rho: float) -> str:
    return services.command_line("clients", "add", name, "--rho", rho, "--delta", 1e-6).strip()


def _ask(address: str, key: str, row: list[float], idempotency: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": idempotency}
    return httpx.post(f"{address}/predict", json={"instances": [row]}, headers=headers, timeout=60)


async def test_the_service_is_killed_at_every_step(services: Services) -> None:
    """After each death a retry with the same key, twice, at a service that lives: one charge, one answer."""
    with (
        fault("service killed at each of its steps, then retried twice") as found,
        services.serving(*BUDGET) as (living, _),
    ):
        key = _client(services, "ann", 5)
        for trial, point in enumerate(itertools.islice(itertools.cycle(STEPS), trials(205, len(STEPS)))):
            row = [trial / 1000, 0.5]
            with services.serving(fault=point) as (doomed, process):
                with contextlib.suppress(httpx.HTTPError):
                    answered = _ask(doomed, key, row, f"key-{trial}")
                    raise AssertionError(f"{point} was survived: {answered.text}")
                assert process.wait(60) == -9
            first, again = (_ask(living, key, row, f"key-{trial}").json() for _ in range(2))
            async with Ledger.open(services.ledger) as ledger:
                account = await ledger.lineage(LINEAGE)
                right = (await verify(ledger, LINEAGE)).findings == ()
            one_answer = first["predictions"] == again["predictions"]
            found.trial(held=one_answer and account.releases == trial + 1 == account.newest_receipt and right)


async def test_the_only_service_is_killed_and_its_store_ends(services: Services) -> None:
    """The next service finds in the store's files what the dead one charged, and the journal that it wrote."""
    with fault("only service killed after its charge, started again") as found:
        with services.serving(*BUDGET):
            key = _client(services, "ann", 5)
        for trial in range(trials(10, 1)):
            row = [trial / 1000, 0.25]
            with services.serving(fault="charged") as (doomed, process):
                with contextlib.suppress(httpx.HTTPError):
                    _ask(doomed, key, row, f"key-{trial}")
                assert process.wait(60) == -9
            with services.serving() as (address, _):
                first, again = (_ask(address, key, row, f"key-{trial}").json() for _ in range(2))
            async with Ledger.open(services.ledger) as ledger:
                account = await ledger.lineage(LINEAGE)
            found.trial(held=first["predictions"] == again["predictions"] and account.releases == trial + 1)


@pytest.mark.slow
async def test_the_process_that_started_the_workers_is_killed(services: Services) -> None:
    """Just after it has started a worker: none of its processes is left, and its port is free."""
    delays = random.Random(20)
    with (
        fault("process that started the workers killed as one of them starts") as found,
        services.serving(*BUDGET),
    ):
        for _ in range(trials(50, 1)):
            with services.serving("--workers", 2) as (address, doomed):
                before = set(workers(doomed.pid))
                os.kill(min(before), signal.SIGKILL)
                wait_until(lambda: not before.issuperset(workers(doomed.pid)))  # noqa: B023 - called at once
                await asyncio.sleep(delays.uniform(0, 3))
                doomed.send_signal(signal.SIGSTOP)  # so that it starts no more
                started = children(doomed.pid)
                doomed.kill()
                left = _left(started)
                found.trial(held=len(started) > 1 and not left)
                with bind(port=int(address.rpartition(":")[2])):
                    pass
    assert not EmbeddedStore(Path(services.ledger)).is_running()


async def test_the_embedded_store_is_killed_under_a_running_service(services: Services) -> None:
    """The service starts it again; until then it answers 503, and the same key brings one charge and one answer."""
    folder = Path(services.ledger)
    with (
        fault("embedded store killed under a running service") as found,
        services.serving(*BUDGET) as (address, _),
    ):
        key = _client(services, "ann", 5)
        for trial in range(trials(20, 1)):
            with redis.Redis(unix_socket_path=(folder / "socket").read_text(), protocol=2) as client:
                os.kill(client.info()["process_id"], signal.SIGKILL)
            statuses = set()
            last = time.monotonic() + 60
            while 200 not in statuses and time.monotonic() < last:
                got = _ask(address, key, [trial / 1000, 0.75], f"key-{trial}")
                statuses.add(got.status_code)
            again = _ask(address, key, [trial / 1000, 0.75], f"key-{trial}")
            async with Ledger.open(services.ledger) as ledger:
                account = await ledger.lineage(LINEAGE)
                right = (await verify(ledger, LINEAGE)).findings == ()
            one_answer = again.json()["predictions"] == got.json()["predictions"]
            found.trial(held=statuses <= {200, 503} and one_answer and account.releases == trial + 1 and right)


@pytest.mark.parametrize("killed", [pytest.param(False, marks=pytest.mark.slow), True])
async def test_many_clients_spend_everything_over_two_services(services: Services, *, killed: bool) -> None:
    """Each of many keeps asking for new rows, a few at a time, until it is refused one row.

    Where the store is `killed` meanwhile, whoever hears 503 asks for the same rows again: each is charged once.
    """
    clients, each = (64, 24 if FULL else 6) if not killed else (16, 24 if FULL else 12)
    price = 0.001
    with (
        fault(f"{clients} clients, 2 services{', store killed' * killed}, until every budget is gone") as found,
        services.serving("--rho", clients * each * price + price / 2, "--delta", 1e-6) as (one, _),
        services.serving() as (other, _),
    ):
        keys = await _add_clients(services.ledger, clients, round((each + 3) * price * 1e12) + 7)
        limits = httpx.Limits(max_connections=clients)
        async with httpx.AsyncClient(timeout=120, limits=limits) as http:

            async def ask(number: int, turn: int, rows: list[list[float]]) -> httpx.Response:
                while True:
                    got = await http.post(
                        f"{(one, other)[(number + turn) % 2]}/predict",
                        json={"instances": rows},
                        headers={"Authorization": f"Bearer {keys[number]}"},
                    )
                    if not killed or got.status_code != 503:
                        return got
                    await asyncio.sleep(0.05)

            async def spend(number: int) -> int:
                answered = 0
                for turn in itertools.count():
                    if killed and number == 0 and turn == 2:
                        with redis.Redis(unix_socket_path=_socket(services), protocol=2) as client:
                            os.kill(client.info()["process_id"], signal.SIGKILL)
                    rows = [[number / 64, (turn * 3 + place) / 1000] for place in range(1 + turn % 3)]
                    got = await ask(number, turn, rows)
                    if got.status_code == 200:
                        answered += len(rows)
                    elif got.status_code != 403:
                        raise AssertionError(got.text)
                    elif len(rows) == 1:
                        return answered
                raise AssertionError

            answered = sum(await asyncio.gather(*map(spend, range(clients))))
        async with Ledger.open(services.ledger) as ledger:
            account, spenders, *_ = await ledger.snapshot(LINEAGE)
            right = (await verify(ledger, LINEAGE)).findings == ()
        whole = account.budget.limit // round(price * 1e12)
        spent = sum(spender.spent for spender in spenders)
        found.trial(
            held=answered == account.releases == whole == clients * each
            and account.spent == spent == whole * round(price * 1e12)
            and right
        )


@pytest.mark.slow
async def test_processes_are_killed_at_random_moments(services: Services) -> None:
    """A service with two workers is killed beside one that lives: a row is still charged once and has one answer."""
    chances = random.Random(7)
    with (
        fault("a worker, or all of a service, killed at a random moment") as found,
        services.serving(*BUDGET) as (living, _),
    ):
        key, rows = _client(services, "ann", 5), itertools.count()
        for trial in range(trials(60, 3)):
            asked = [[next(rows) / 10_000, 0.6] for _ in range(60)]
            with services.serving("--workers", 2) as (doomed, process), ThreadPoolExecutor(4) as pool:
                answers = [pool.submit(_ask, doomed, key, row, f"key-{row[0]}") for row in asked]
                await asyncio.sleep(chances.uniform(0.0, 0.3))
                answering = workers(process.pid)
                for pid in [process.pid, *answering] if trial % 3 == 2 else [chances.choice(answering)]:
                    os.kill(pid, signal.SIGKILL)
                told = [_answer_of(answer) for answer in answers]
            again = [_ask(living, key, row, f"key-{row[0]}").json()["predictions"] for row in asked]
            async with Ledger.open(services.ledger) as ledger:
                account = await ledger.lineage(LINEAGE)
                right = (await verify(ledger, LINEAGE)).findings == ()
            same = all(one in (None, other) for one, other in zip(told, again, strict=True))
            found.trial(held=same and account.releases == 60 * (trial + 1) and right)


def _left(pids: list[int]) -> list[int]:
    """Return which processes have not ended within a minute, and kill them: each may hold a pipe that is waited for."""
    last = time.monotonic() + 60
    while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < last:
        time.sleep(0.01)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


def _answer_of(asked: "Future[httpx.Response]") -> object:
    """Return the answer; None where the service died before."""
    try:
        response = asked.result(60)
    except httpx.HTTPError:
        return None
    return response.json()["predictions"] if response.status_code == 200 else None


def _socket(services: Services) -> str:
    return (Path(services.ledger) / "socket").read_text()


async def _add_clients(location: str, count: int, picorho: int) -> list[str]:
    keys = [f"key of client {number}" for number in range(count)]
    async with Ledger.open(location) as ledger:
        lineage = (await ledger.lineage(LINEAGE)).budget
        budget = type(lineage)(picorho, "gaussian", lineage.delta)
        for number, key in enumerate(keys):
            await ledger.acting("owner").add_client(LINEAGE, f"client-{number}", budget, key_digest(key), time=0.0)
    return keys


@contextlib.contextmanager
def _frozen(store: StoreServer) -> Iterator[None]:
    store.stop()
    try:
        yield
    finally:
        store.go_on()


async def test_what_clients_are_told(head: CertifiedHead, tmp_path: Path) -> None:
    """503 for a frozen store, 422 for a key used twice, 403 for one picorho short; ten thousand rows at once."""
    mechanism = Gaussian(10.0)
    with StoreServer(tmp_path / "store") as store:
        async with await Ledger.connect(store.url, deadline=2.0) as ledger:
            await open_accounts(ledger, LINEAGE, 2_000_000)
            account = await ledger.lineage(LINEAGE)
            price = mechanism.cost.picorho
            assert account.budget.limit > 10_003 * price > 0
            assert Cost((GaussianLoss(0.01),)) == COST
            short = type(account.budget)(2 * price - 1, "gaussian", account.budget.delta)
            await ledger.acting("owner").add_client(LINEAGE, "short", short, key_digest("short"), time=0.0)
            predictor = MeteredPredictor(head, mechanism, ledger, largest_batch=10_000)
            app = create_app(Models([predictor]), ledger)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:

                async def ask(key: str, rows: list[list[float]], idempotency: str = "") -> httpx.Response:
                    headers = {"Authorization": f"Bearer {key}"} | (
                        {"Idempotency-Key": idempotency} if idempotency else {}
                    )
                    return await http.post("/predict", json={"instances": rows}, headers=headers, timeout=60)

                ann = f"{LINEAGE}/ann"
                with fault("one picorho short: refused; what fits: answered") as found:
                    refused = await ask("short", [[0.1, 0.1], [0.2, 0.2]])
                    found.trial(held=refused.status_code == 403 and refused.json()["scope"] == "client")
                    found.trial(held=(await ask("short", [[0.1, 0.1]])).status_code == 200)
                with fault("an idempotency key with another body: 422, nothing charged") as found:
                    for trial in range(trials(100, 5)):
                        await ask(ann, [[trial / 1000, 0.3]], f"key-{trial}")
                        before = await ledger.lineage(LINEAGE)
                        again = await ask(ann, [[trial / 1000, 0.4]], f"key-{trial}")
                        unchanged = (await ledger.lineage(LINEAGE)).spent == before.spent
                        found.trial(held=again.status_code == 422 and unchanged)
                with fault("ten thousand rows in one request, and again as a replay") as found:
                    rows = [[number / 10_000, 0.9] for number in range(10_000)]
                    first, second = await ask(ann, rows), await ask(ann, rows)
                    same = first.json()["predictions"] == second.json()["predictions"]
                    found.trial(held=same and second.json()["receipt"]["charged_rows"] == 0)
                with fault("store frozen: 503 within the deadline, nothing answered") as found:
                    for trial in range(trials(10, 1)):
                        start = time.monotonic()
                        with _frozen(store):
                            got = await ask(ann, [[trial / 1000, 0.7]])
                        found.trial(held=got.status_code == 503 and time.monotonic() - start < 40)
