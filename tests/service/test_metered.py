"""A metered model's answers: what is done before one is charged."""

import asyncio

from dpserve.service import metered

ROWS = {"instances": [[0.1, 0.2, 0.3, 0.4]]}


def is_on_a_loop():
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def test_the_cipher_is_loaded_once_off_the_loop_and_before_anything_is_charged(monkeypatch, start, head):
    seen = []

    def load_cipher():
        seen.append((is_on_a_loop(), service.spent()))

    monkeypatch.setattr(metered, "load_cipher", load_cipher)
    service = start(head)
    asking = service.http(service.add_client())
    unspent = service.spent()
    for _ in range(2):
        assert asking.post("/predict", json=ROWS).status_code == 200
    assert seen == [(False, unspent)]
    assert service.spent() != unspent
