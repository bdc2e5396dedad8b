"""A real service that audits itself over HTTP until its key's budget is spent, and shows what it found."""

import time

import httpx
import pytest


@pytest.fixture
def key(run, bundle):
    run("lineage", "set-budget", bundle, "--rho", 64 * 20 * 2, "--delta", 1e-5)
    # 13 looks of 64 answers at rho = 2 each, and a rest that pays for no fourteenth.
    return run(
        "clients", "add", "canary", "--rho", 64 * 13.5 * 2, "--delta", 1e-5, "--accepts", "gaussian"
    ).stdout.strip()


@pytest.fixture
def service(run, bundle, key):
    run.environment |= {"DPSERVE_SELF_AUDIT_KEY": key}
    process, address = run.start(
        bundle, "--port", 0, "--price", "noise-multiplier:0.5", "--self-audit-seconds", 0.1, "--self-audit-rows", 64
    )
    yield address
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors


def test_a_service_audits_itself_on_its_keys_budget(service, key):
    deadline = time.monotonic() + 60
    found = httpx.get(f"{service}/audit").json()
    while "spent" not in found["state"] and time.monotonic() < deadline:
        found = httpx.get(f"{service}/audit").json()
    assert found["state"] == "the client's budget is spent"
    assert (found["looks"], found["answers"]) == (13, 13 * 64)
    assert found["claim"]["mu"] == 2
    assert found["claim"]["losses"] == "gaussian:2.0"
    assert 0 < found["lower_bound"]["mu"] <= 3  # each side beyond ten deviations
    assert not found["refuted"]
    budget = httpx.get(f"{service}/budget", headers={"Authorization": f"Bearer {key}"}).json()
    assert budget["spent"]["rho"] == pytest.approx(13 * 64 * 2)


def test_a_mechanism_that_cannot_be_audited_so_is_refused_at_the_start(run, bundle):
    served = "serve", bundle, "--mechanism", "label", "--price", "epsilon:0.1", "--rho", 1, "--delta", 1e-5
    assert "two services" in run.fails(*served, "--self-audit-key", "k" * 20)
