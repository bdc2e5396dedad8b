"""Three services behind nginx share one ledger: nothing is overspent, and a row has one answer, whoever is asked."""

import asyncio
import re

import httpx
import numpy as np
import pytest

from benchmarks.replicas import NGINX, ROOT, replicas
from dpserve.service.predictor import LARGEST_BODY
from dpserve.training.features.maps import Identity
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.bundle import save_bundle
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head

PRICE, AFFORDABLE = 0.001, 150
CLIENTS, DEMAND = 4, 240
"""Each of the clients has a budget for all that the lineage pays for; together they ask for more."""


def small_bundle(folder):
    """A head on two features."""
    X = np.random.default_rng(0).uniform(size=(60, 2))
    declaration = Declaration(("a", "b"), (0.0, 0.0), (1.0, 1.0), ("no", "yes"))
    feature_map = Identity(lower=declaration.lower, upper=declaration.upper, clip_norm=1.0, bias=0.0)
    records = Records(X, (X.sum(axis=1) > 1).astype(int), declaration, ())
    save_bundle(folder / "small", train_head(records, Recipe("small", feature_map, 1.0), "a-lineage"))
    return folder / "small"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """The services, and the clients' keys."""
    if NGINX is None:
        pytest.skip("nginx is not installed")
    folder = tmp_path_factory.mktemp("replicas")
    budget = ("--rho", PRICE * (AFFORDABLE + 0.5), "--delta", 1e-6)
    with replicas(folder, small_bundle(folder), 3, "--price", f"rho:{PRICE}", *budget) as found:
        yield found, [found.new_key(f"client-{number}", *budget) for number in range(CLIENTS)]


async def ask_all(url, keys, rows):
    """Ask each row by itself, the clients in turn and all at once; return the responses."""
    limits = httpx.Limits(max_connections=24)
    async with httpx.AsyncClient(limits=limits, timeout=60) as session:
        requests = [
            session.post(
                f"{url}/predict",
                json={"instances": [row]},
                headers={"Authorization": f"Bearer {keys[number % len(keys)]}"},
            )
            for number, row in enumerate(rows)
        ]
        return await asyncio.gather(*requests)


def test_nothing_is_overspent_through_three_services(running):
    services, keys = running
    rows = np.random.default_rng(1).uniform(size=(DEMAND, 2)).tolist()
    responses = asyncio.run(ask_all(services.url, keys, rows))
    answered = [number for number, response in enumerate(responses) if response.status_code == 200]
    refused = [response for response in responses if response.status_code == 403]
    assert len(answered) == AFFORDABLE  # all that the budget pays for, and not one more
    assert len(refused) == DEMAND - AFFORDABLE
    assert {response.json()["scope"] for response in refused} == {"lineage"}
    assert sum(responses[number].json()["receipt"]["charged_rows"] for number in answered) == AFFORDABLE
    assert ": right" in services.command("ledger", "verify", *journals(services))

    shares = services.answered_by()
    assert set(shares) == set(services.services)  # each had a part in it
    number = answered[0]
    for address in services.services:
        (again,) = asyncio.run(ask_all(f"http://{address}", [keys[number % len(keys)]], [rows[number]]))
        assert again.json()["predictions"] == responses[number].json()["predictions"]
        assert again.json()["receipt"]["charged_rows"] == 0


def test_nginx_takes_all_that_a_service_takes(running):
    services, keys = running
    limit = re.search(r"client_max_body_size (\d+)m;", (ROOT / "deploy" / "nginx.conf").read_text())
    assert int(limit[1]) * 2**20 > LARGEST_BODY
    response = httpx.post(
        f"{services.url}/predict", content=bytes(20 * 2**20), headers={"Authorization": f"Bearer {keys[0]}"}, timeout=60
    )
    assert response.status_code == 413
    assert response.headers["content-type"] == "application/problem+json"  # the service's own refusal


def journals(services):
    """The journals of all services, each of which has a home of its own."""
    return [
        word
        for number in range(len(services.services))
        for word in ("--journal", services.folder / f"home-{number}" / "journals")
    ]


def test_a_key_that_is_revoked_is_refused_by_every_service(running):
    services, keys = running
    services.command("clients", "revoke", f"client-{CLIENTS - 1}")
    for address in services.services:
        (response,) = asyncio.run(ask_all(f"http://{address}", keys[-1:], [[0.5, 0.5]]))
        assert response.status_code == 401
