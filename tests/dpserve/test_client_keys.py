"""`dpserve clients`: further keys, rotation with an overlap, expiry and scopes, up to what the service answers."""

import re
import time

import httpx
import pytest
import typer

from dpserve.accounting.acts import AddKey
from dpserve.commands.acts import seconds_in


def keys_shown(run, name):
    """The ids of the client's keys, with the lines that show them."""
    shown = run("clients", "show", name).stdout
    return {match[1]: match[0] for match in re.finditer(r"│ ([0-9a-f]{12}) .*", shown)}


def budget_status(address, key):
    return httpx.get(f"{address}/budget", headers={"Authorization": f"Bearer {key}"}).status_code


def predict_status(address, key):
    body = {"instances": [[30.0, 2000.0]]}
    return httpx.post(f"{address}/predict", json=body, headers={"Authorization": f"Bearer {key}"}).status_code


def test_keys_are_added_rotated_and_taken_away(run, service):
    first = run("clients", "add", "alice", "--rho", 0.05, "--delta", 1e-6, "--expires-in", "90d").stdout.strip()
    reader = run("clients", "add-key", "alice", "--scope", "budget-read").stdout.strip()
    assert (predict_status(service, first), predict_status(service, reader)) == (200, 403)
    assert (budget_status(service, first), budget_status(service, reader)) == (200, 200)

    shown = sorted(keys_shown(run, "alice").items(), key=lambda key: "predict, budget-read" not in key[1])
    (first_id, first_line), (reader_id, reader_line) = shown
    assert "predict, budget-read" in first_line
    assert "never" not in first_line
    assert re.search(r"│ budget-read +│ never", reader_line)

    second = run("clients", "rotate-key", "alice", "--key", reader_id).stdout.strip()
    assert (budget_status(service, reader), budget_status(service, second)) == (401, 200)
    assert predict_status(service, second) == 403, "a key that replaces another is good for the same"
    third = run("clients", "rotate-key", "alice", "--overlap", "1h").stdout.strip()
    assert [predict_status(service, key) for key in (first, third)] == [200, 200]
    run("clients", "remove-key", "alice", first_id)
    assert [predict_status(service, key) for key in (first, third)] == [401, 200]
    assert "alice has no API key" in run.fails("clients", "remove-key", "alice", first_id)
    run("ledger", "verify")
    assert "already has a client" in run.fails("clients", "add", "alice", "--epsilon", 1, "--delta", 1e-6)
    run("clients", "revoke", "alice")
    listed = run("clients", "list").stdout
    assert "revoked" in listed
    assert not [key for key in (first, third) if key in listed]
    assert budget_status(service, third) == 401
    assert "no client 'bob'" in run.fails("clients", "revoke", "bob")


def test_invalid_arguments_are_refused(run, bundle):
    run("lineage", "set-budget", bundle, "--epsilon", 3, "--delta", 1e-6)
    said = run("clients", "add", "alice", "--rho", 0.05, "--delta", 1e-6, "--scope", "write", status=2).stderr
    assert "--scope" in said
    assert "'predict' or 'budget-read'" in said
    said = run.fails("clients", "add", "alice", "--rho", 0.05, "--delta", 1e-6, "--expires-in", "0s")
    assert said == "an API key lasts from a second to a hundred years, or for ever"


@pytest.mark.parametrize("text", ["", "-1d", "9", "1w", "1e3s", " 1d", "9999999999d"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(typer.BadParameter) as refused:
        seconds_in(text, "--expires-in")
    assert refused.value.param_hint == "--expires-in"


@pytest.mark.parametrize(("text", "seconds"), [("45s", 45), ("30m", 1800), ("12h", 43200), ("90d", 7776000)])
def test_a_key_lasts_as_long_as_it_says(text, seconds):
    assert seconds_in(text, "--expires-in") == seconds
    before = time.time()
    _, key = AddKey(client="alice", expires_in_days=seconds / 86400).new_key()
    assert int(before) + seconds <= key.expires <= time.time() + seconds + 1
