"""Nobody gets another's reply: many clients, answers that betray their rows, hang-ups, and batches in any order.

The check itself is checked: on a service that swaps two replies of a batch it fails.
"""

import asyncio
import random
from collections.abc import Sequence

import httpx
import msgspec
import numpy as np
import pytest

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import Ledger, key_digest
from dpserve.mechanisms.elementary import softmax
from dpserve.service.metered import MeteredPredictor
from dpserve.service.predictor import Prediction

from .conftest import DELTA, LARGEST_BATCH, Plain, RunningService

CLIENTS, REQUESTS = 12, 160


class Shuffled(MeteredPredictor):
    """Puts the requests of every batch into a random order."""

    turns = random.Random(3)

    def __init__(self, *words, **settings):
        super().__init__(*words, **settings)
        take = self._batcher._next_batch

        def shuffled():
            batch = take()
            self.turns.shuffle(batch)
            return batch

        self._batcher._next_batch = shuffled


class Swapping(Shuffled):
    """A planted fault: two requests of a batch get each other's answers."""

    async def _answer_batch(self, batch):
        results = await super()._answer_batch(batch)
        places = [place for place, result in enumerate(results) if isinstance(result, Prediction)]
        if len(places) > 1:
            one, other = places[:2]
            results[one], results[other] = results[other], results[one]
        return results


class Misreporting(Shuffled):
    """A planted fault: one client is told how another's account stands."""

    async def _answer_batch(self, batch):
        results = await super()._answer_batch(batch)
        balances = [result.charge.balance for result in results if isinstance(result, Prediction)][::-1]
        return [
            msgspec.structs.replace(result, charge=msgspec.structs.replace(result.charge, balance=balances.pop(0)))
            if isinstance(result, Prediction)
            else result
            for result in results
        ]


def _service(start, head, predictor) -> RunningService:
    def make(ledger: Ledger) -> MeteredPredictor:
        return predictor(head, Plain(), ledger, largest_batch=LARGEST_BATCH)

    return start.start(make, head.certificate.lineage, 100.0, "gaussian")


def _accounts(service: RunningService) -> list[tuple[str, float]]:
    """Each client has a key, and a budget that no other has."""
    accounts = []
    for number in range(CLIENTS):
        name, rho = f"client-{number}", 1.0 + number / 16
        budget = Budget.from_rho(rho, DELTA, "gaussian")
        added = service.ledger.acting("owner").add_client(
            service.predictor.lineage, name, budget, key_digest(name), time=0.0
        )
        service.call(added)
        accounts.append((name, rho))
    return accounts


async def _ask_all(url: str, head, accounts: Sequence[tuple[str, float]], seed: int) -> int:
    """Ask from many clients at once, and let a quarter hang up. Returns how many replies were checked."""
    turns = random.Random(seed)
    rows = np.random.default_rng(seed).uniform(size=(REQUESTS, 4))
    expected = softmax(head.logits(head.features(rows)))
    checked = 0

    async def ask(http: httpx.AsyncClient, number: int) -> None:
        nonlocal checked
        key, rho = accounts[number % CLIENTS]
        places = [number, *turns.choices(range(REQUESTS), k=turns.randrange(4))]
        answer = await http.post(
            "/predict", json={"instances": rows[places].tolist()}, headers={"Authorization": f"Bearer {key}"}
        )
        assert answer.status_code == 200, answer.text
        found = answer.json()
        np.testing.assert_allclose(found["predictions"], expected[places], rtol=1e-9)
        assert found["budget"]["limit"] == pytest.approx(rho, rel=1e-9)
        assert found["receipt"]["rows"] == len(places)
        checked += 1

    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=48)) as http:
        asking = [asyncio.create_task(ask(http, number)) for number in range(REQUESTS)]
        for number in turns.sample(range(REQUESTS), REQUESTS // 4):
            await asyncio.wait([asking[turns.randrange(REQUESTS)]], timeout=0.002 * turns.random())
            asking[number].cancel()
        ended = await asyncio.gather(*asking, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error
    return checked


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_reply_is_its_own(start, head, seed):
    service = _service(start, head, Shuffled)
    accounts = _accounts(service)
    checked = asyncio.run(_ask_all(service.url, head, accounts, seed))
    assert checked >= REQUESTS // 2
    spent = [service.spent(name) for name, _ in accounts]
    assert max(spent) <= service.call(service.ledger.lineage(service.predictor.lineage)).spent <= sum(spent)


@pytest.mark.parametrize("broken", [Swapping, Misreporting])
def test_the_check_finds_mixed_replies(start, head, broken):
    service = _service(start, head, broken)
    accounts = _accounts(service)
    with pytest.raises(AssertionError):
        asyncio.run(_ask_all(service.url, head, accounts, seed=1))
