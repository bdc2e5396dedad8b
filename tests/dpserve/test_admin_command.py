"""`dpserve serve` opens the owner's port on loopback, with a key that only the owner may read."""

import re
import stat

import httpx
import pytest

from dpserve.service.admin.keys import admin_key
from dpserve.service.errors import CannotServe
from dpserve.serving import open_port
from dpserve.settings import ServeSettings

KEY_LINE = re.compile(r"dpserve: the owner's port is (http://127\.0\.0\.1:\d+), its key is in (.+)")

OPEN = ServeSettings(bundle="model", admin_port=0)


def test_the_owners_port_and_its_key(run, bundle):
    process, address, lines = run.start_and_read(bundle, "--port", 0, "--epsilon", 3, "--delta", 1e-6)
    try:
        url, path = KEY_LINE.fullmatch(lines[0]).groups()
        key_file = run.folder / "home" / "admin.key"
        assert path == str(key_file)
        assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
        with httpx.Client(headers={"Authorization": f"Bearer {key_file.read_text().strip()}"}) as owner:
            (lineage,) = owner.get(f"{url}/api/lineages").json()["lineages"]
            assert lineage["served"]
            assert owner.get(f"{address}/api/lineages").status_code == 404
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    assert process.returncode == 0


def test_a_key_that_can_be_guessed_is_refused(run, bundle):
    run.environment["DPSERVE_ADMIN_KEY"] = "secret"
    said = run.fails("serve", bundle, "--port", 0, "--epsilon", 3, "--delta", 1e-6)
    assert said.startswith("DPSERVE_ADMIN_KEY must have 20 characters or more")


NO_GOOD_KEYS = ["", "secret", "x" * 257, "with a blank in its middle", "nicht-nur-ASCII-schlüssel", "\tx" + "y" * 30]


@pytest.mark.parametrize("key", NO_GOOD_KEYS)
def test_no_key_that_is_guessed_or_never_taken_stands_in_either_place(monkeypatch, tmp_path, key):
    monkeypatch.setenv("DPSERVE_HOME", str(tmp_path))
    monkeypatch.delenv("DPSERVE_ADMIN_KEY", raising=False)
    path = tmp_path / "admin.key"
    path.write_text(key + "\n", "utf-8")
    path.chmod(0o600)
    if key.strip() == key:
        with pytest.raises(CannotServe, match="20 characters or more"):
            admin_key(tmp_path)
    monkeypatch.setenv("DPSERVE_ADMIN_KEY", key)
    with pytest.raises(CannotServe, match="DPSERVE_ADMIN_KEY must have 20 characters or more"):
        admin_key(tmp_path)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o602])
def test_a_key_that_others_could_read_or_write_is_replaced(monkeypatch, tmp_path, caplog, mode):
    monkeypatch.setenv("DPSERVE_HOME", str(tmp_path))
    monkeypatch.delenv("DPSERVE_ADMIN_KEY", raising=False)
    key = admin_key(tmp_path)
    assert admin_key(tmp_path) == key
    assert not caplog.records
    file = tmp_path / "admin.key"
    file.chmod(mode)
    new = admin_key(tmp_path)
    assert new not in (key, "")
    assert (admin_key(tmp_path), file.stat().st_mode & 0o777) == (new, 0o600)
    assert "a new one" in caplog.text
    assert key not in caplog.text


def test_the_key_for_metrics_is_another_than_the_admin_key(monkeypatch, tmp_path):
    monkeypatch.setenv("DPSERVE_HOME", str(tmp_path))
    monkeypatch.setenv("DPSERVE_METRICS_KEY", "short")
    with pytest.raises(CannotServe, match="DPSERVE_METRICS_KEY must have 20"):
        open_port(OPEN, 0)
    monkeypatch.setenv("DPSERVE_METRICS_KEY", admin_key(tmp_path))
    with pytest.raises(CannotServe, match="must not be the admin key"):
        open_port(OPEN, 0)
    monkeypatch.setenv("DPSERVE_METRICS_KEY", "another-key-for-the-metrics")
    port = open_port(OPEN, 0)
    port.listening.close()
    assert port.metrics_digest not in (None, port.digest)


def test_the_key_of_the_environment_is_not_written_down(run, bundle):
    key = "a-key-that-the-owner-chose"
    run.environment["DPSERVE_ADMIN_KEY"] = key
    process, _, lines = run.start_and_read(bundle, "--port", 0, "--epsilon", 3, "--delta", 1e-6)
    try:
        url, where = KEY_LINE.fullmatch(lines[0]).groups()
        assert where == "the environment's DPSERVE_ADMIN_KEY"
        assert httpx.get(f"{url}/api/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        assert not (run.folder / "home" / "admin.key").exists()
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_no_owners_port_is_opened_where_none_is_wanted(run, bundle):
    process, _, lines = run.start_and_read(bundle, "--port", 0, "--epsilon", 3, "--delta", 1e-6, "--no-admin")
    process.terminate()
    process.communicate(timeout=60)
    assert lines == []
    assert not (run.folder / "home" / "admin.key").exists()
