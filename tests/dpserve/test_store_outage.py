"""A service whose ledger's store is gone: it says so to who asks, goes on, and ends when it is told to."""

import httpx
import pytest

from dpserve.accounting.ledger import EmbeddedStore

PATIENCE = 60
"""Seconds; many times the ledger's deadline, after which a service that does not answer has stopped."""


@pytest.fixture
def store(tmp_path):
    """A store of the owner's, which the service did not start and does not start again; and ends before it."""
    store = EmbeddedStore(tmp_path / "store")
    store.open()
    yield store
    store.close()


def test_a_stopped_store_is_an_answer_to_who_asks_and_not_the_services_end(run, bundle, store):
    run.environment["DPSERVE_LEDGER"] = store.url
    process, address = run.start(bundle, "--port", 0, "--rho", 1, "--delta", 1e-6, "--price", "rho:0.001")
    try:
        key = run("clients", "add", "ann", "--rho", 1, "--delta", 1e-6).stdout.strip()
        with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE) as http:
            row = {"instances": [[30.0, 1000.0]]}
            assert http.post("/predict", json=row).status_code == 200
            store.close()
            for path in ("/predict", "/predict?dry_run=true"):
                refused = http.post(path, json=row)
                assert refused.status_code == 503
                assert refused.json()["type"] == "urn:dpserve:problem:ledger-unavailable"
            assert http.get("/budget").status_code == 503
            assert http.get("/livez").status_code == 200
            assert http.get("/readyz").status_code == 503
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert "LedgerUnavailable from " in said
    assert "Traceback" not in said
