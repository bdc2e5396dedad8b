"""A real service that audits itself over HTTP until its key's budget is spent, and shows what it found."""

import json
import os
import time
from types import SimpleNamespace

import httpx
import numpy as np
import pytest

from accounting import conversions
from dpserve import self_audit
from dpserve.client import BudgetExhausted, ServiceError
from mechanisms.gaussian import Gaussian
from mechanisms.seeded import SeededRandomness


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


def when_spent(address):
    deadline = time.monotonic() + 60
    found = httpx.get(f"{address}/audit").json()
    while "spent" not in found["state"] and time.monotonic() < deadline:
        found = httpx.get(f"{address}/audit").json()
    return found


def test_a_service_audits_itself_on_its_keys_budget(service, key):
    found = when_spent(service)
    assert found["state"] == "its budget is spent"
    assert (found["looks"], found["answers"]) == (13, 13 * 64)
    assert found["claim"]["mu"] == 2
    assert found["claim"]["losses"] == "gaussian:2.0"
    assert 0 < found["lower_bound"]["mu"] <= 3  # each side beyond ten deviations
    assert not found["refuted"]
    implied = conversions.gaussian_epsilon(found["lower_bound"]["mu"], found["claim"]["delta"])
    assert found["lower_bound"]["epsilon_at_delta"] == pytest.approx(implied)
    budget = httpx.get(f"{service}/budget", headers={"Authorization": f"Bearer {key}"}).json()
    assert budget["spent"]["rho"] == pytest.approx(13 * 64 * 2)


SERVED = "--port", 0, "--price", "noise-multiplier:0.5", "--self-audit-seconds", 0.1, "--self-audit-rows", 64


def test_what_was_found_is_not_forgotten_when_the_service_is_started_again(run, bundle, key):
    run.environment |= {"DPSERVE_SELF_AUDIT_KEY": key}
    seen = []
    for _ in range(2):
        process, address = run.start(bundle, *SERVED)
        seen.append(when_spent(address))
        process.terminate()
        process.communicate(timeout=60)
    assert seen[0]["looks"] == 13
    assert seen[1] == seen[0]

    (kept,) = (run.folder / "home" / "self-audit").glob("*.json")
    content = json.loads(kept.read_text())
    content["found"]["refuted"] = True
    kept.write_text(json.dumps(content))
    process, address = run.start(bundle, *SERVED)
    assert when_spent(address)["refuted"]
    process.terminate()
    process.communicate(timeout=60)

    kept.write_text("half a f")
    assert "begin again" in run.fails("serve", bundle, *SERVED)


class Failing:
    def __init__(self, *_, **__):
        raise RuntimeError("no such luck")


def test_an_audit_that_ends_by_an_error_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(self_audit, "Client", Failing)
    audit = self_audit.SelfAudit(head_of_three(), Gaussian(1.0), "key", 1.0, 8, tmp_path)
    audit.run("http://127.0.0.1:1")
    assert "error" in audit.published()["state"]


class Answering:
    """A client of a service whose noise leaves nothing of the probabilities; it counts the questions."""

    asked = 0

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def predict_proba(self, rows):
        type(self).asked += 1
        return np.tile([1.0, 0.0], (len(rows), 1))


def head_of_three():
    """A head on three features, of sensitivity 1."""
    feature_map = SimpleNamespace(lower=(0.0,) * 3, upper=(1.0,) * 3)
    certificate = SimpleNamespace(classes=("no", "yes"), model_id="m", feature_map=feature_map)
    return SimpleNamespace(
        certificate=certificate, features=lambda rows: rows, logit_sensitivity=lambda rows: np.ones(len(rows))
    )


def test_an_audit_that_noise_ended_stays_ended_when_the_service_is_started_again(monkeypatch, tmp_path):
    """To go on would choose looks by their noise, and a certificate of 95 % would say nothing."""
    monkeypatch.setattr(self_audit, "Client", Answering)
    for _ in range(2):
        audit = self_audit.SelfAudit(head_of_three(), Gaussian(1.0), "key", 1.0, 8, tmp_path)
        audit.run("http://127.0.0.1:1") if not Answering.asked else audit.start("http://127.0.0.1:1")
        assert "too small" in audit.published()["state"]
        assert (Answering.asked, audit.published()["looks"]) == (1, 0)
        audit.kept.path.with_suffix(".lock").unlink()  # the first process has ended

    kept = audit.kept.path
    content = json.loads(kept.read_text())
    del content["found"]["stopped_by_noise"]
    kept.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="away to begin again"):
        self_audit.SelfAudit(head_of_three(), Gaussian(1.0), "key", 1.0, 8, tmp_path)


class Silent(Answering):
    """A client of a service that answers the second look alone."""

    def predict_proba(self, rows):
        Answering.asked += 1
        if Answering.asked == 2:
            return Gaussian(1.0).release(np.zeros((len(rows), 2)), np.ones(len(rows)), SeededRandomness(0, ("look",)))
        refused = {"kind": "not-ready", "status": 503} if Answering.asked > 3 else {}
        raise ServiceError("certificate verify failed", **refused)


def test_an_audit_that_gets_no_answer_says_so_once_for_each_reason(tmp_path, caplog):
    Answering.asked = 0
    shown = tmp_path / "shown.json"
    audit = self_audit.SelfAudit(head_of_three(), Gaussian(1.0), "key", 1.0, 8, tmp_path, shown)
    states, audit._around, rng = [], np.full((1, 3), 0.5), np.random.default_rng(0)
    for _ in range(5):
        assert audit._look(Silent(), rng)
        states.append(audit.published()["state"])
        assert json.loads(shown.read_text()) == audit.published(), "the other workers say something else"
    vain = "asking in vain: no connection"
    assert states == [vain, "asking", vain, *["asking in vain: not-ready"] * 2]
    assert audit.published()["looks"] == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert "certificate verify failed" in caplog.text


def test_where_nothing_can_be_written_workers_show_nothing_and_the_audit_goes_on(tmp_path, caplog):
    shown = tmp_path / "shown.json"
    audit = self_audit.SelfAudit(head_of_three(), Gaussian(1.0), "key", 1.0, 8, tmp_path / "kept", shown)
    assert self_audit.shown_in(shown)["state"] == "waiting"
    blocked = shown.with_name(f".{shown.name}.{os.getpid()}")
    blocked.mkdir()
    audit._set_state("asking")
    assert audit.published()["state"] == "asking"
    assert "not known" in self_audit.shown_in(shown)["state"]
    assert "not shown by the other workers" in caplog.text
    blocked.rmdir()
    audit._set_state("stopped")
    assert self_audit.shown_in(shown) == audit.published()


def test_two_services_do_not_keep_one_audit(tmp_path):
    first, second, other = (self_audit.KeptFindings.for_model(tmp_path, "m", losses) for losses in ("a", "a", "b"))
    assert second.path is None
    assert second.read() is None
    assert first.path != other.path
    first.write({"looks": 1})
    assert first.read() == {"looks": 1}
    assert other.read() is None


def test_a_mechanism_that_cannot_be_audited_so_is_refused_at_the_start(run, bundle):
    served = "serve", bundle, "--mechanism", "label", "--price", "epsilon:0.1", "--rho", 1, "--delta", 1e-5
    assert "two services" in run.fails(*served, "--self-audit-key", "k" * 20)


class Spending:
    """A service with a fifth less noise than it promises, whose key pays for two looks."""

    def __init__(self, *_, **__):
        self.looks = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def predict_proba(self, rows):
        self.looks += 1
        if self.looks > 2:
            raise BudgetExhausted("spent", problem={"scope": "client", "cost": 0.5, "currency": "rho"})
        words = SeededRandomness(0, ("spending", str(self.looks)))
        return Gaussian(1.0).release(np.zeros((len(rows), 2)), np.full(len(rows), 0.7), words)


def test_a_spent_budget_whose_result_is_suspicious_says_so(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(self_audit, "Client", Spending)
    audit = self_audit.SelfAudit(head_of_three(), Gaussian(1.0), "key", 0.0, 64, tmp_path)
    audit.run("http://127.0.0.1:1")
    found = audit.published()
    assert not found["refuted"]
    assert found["noise_p_value"] < 0.05
    assert "suspicious" in found["state"]
    assert caplog.records[-1].levelname == "ERROR"
