import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from redis.crc import key_slot

from dpserve.accounting.ledger import LARGEST_REQUEST, ChargeRequest, Idempotency, key_digest, new_api_key
from dpserve.accounting.ledger.receipts import charge_terms
from dpserve.accounting.ledger.wire import LineageKeys
from dpserve.accounting.losses import ApproximateGaussianLoss, Cost, GaussianLoss


def _request(**changes: object) -> ChargeRequest:
    terms: dict[str, object] = {"model": "model", "mechanism": "gaussian", "cost": Cost((GaussianLoss(0.5),))}
    terms |= {name: changes.pop(name) for name in terms.keys() & changes.keys()}
    plain = ChargeRequest("lineage", "ann", charge_terms(**terms), (bytes(16),), 0.0)  # type: ignore[arg-type]
    return structs.replace(plain, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lineage": "a}b"}, "a lineage's name has"),
        ({"lineage": ""}, "a lineage's name has"),
        ({"client": "x" * 257}, "has 257 bytes of UTF-8, and 256 is the most"),
        ({"client": "é" * 129}, "has 258 bytes of UTF-8, and 256 is the most"),
        ({"client": ""}, "is empty"),
        ({"client": " ann"}, "begins or ends with a space"),
        ({"client": "ann\n"}, "cannot be printed"),
        ({"client": "a\x1b[2Jb"}, "cannot be printed"),
        ({"client": "a\ud800"}, "cannot be printed"),
        ({"client": "a\u202eb"}, "cannot be printed"),
        ({"client": "Zoe\u0308"}, "is not in Unicode's normal form NFC: write 'Zoë'"),
        ({"model": ""}, "a model's id must have 1 to 255 bytes"),
        ({"mechanism": "é" * 128}, "a mechanism's name must have 1 to 255 bytes"),
        ({"questions": ()}, "a request must have 1 to 10000 questions, not 0"),
        ({"questions": (bytes(16),) * (LARGEST_REQUEST + 1)}, "not 10001"),
        ({"questions": (bytes(15),)}, "digest of 16 bytes"),
        ({"time": float("nan")}, "time must be finite"),
        ({"time": 1e300}, "time must be finite"),
        ({"cost": Cost((ApproximateGaussianLoss(1e-4, 2.0**-40),))}, "only pay-once models have a cost with a coin"),
    ],
)
def test_what_the_store_could_not_hold_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _request(**changes)


@pytest.mark.parametrize("text", ["gaussian:np.float64(0.25)", "gaussian:0.5", ""])
def test_a_cost_whose_text_does_not_read_back_never_reaches_a_tally(text: str) -> None:
    class Odd(GaussianLoss):
        def __str__(self) -> str:
            return text

    with pytest.raises(ValueError, match=r"gaussian:np|does not read back"):
        _request(cost=Cost((Odd(0.25),)))


NAMES = [
    "ann@example.org",
    "auth0|5f7c8ec7",
    "Zoë Ωmega",
    "https://id.example.org/tenants/7 users/ann?x#y",
    "東京/川 é",
    "a:questions",
    "{other}",
    "ann:receipts",
    "%61nn",
    "ann",
    "x" * 256,
]


@given(st.sampled_from(NAMES) | st.text(max_size=40), st.sampled_from(NAMES) | st.text(max_size=40))
def test_no_two_clients_share_a_key(one: str, other: str) -> None:
    keys = LineageKeys("lineage")
    try:
        first, second = keys.client(one), keys.client(other)
    except ValueError:
        return
    mine, theirs = {first.account, *first.contents}, {second.account, *second.contents}
    assert len(mine) == 5
    assert (mine == theirs) == (one == other)
    assert one == other or mine.isdisjoint(theirs)
    assert mine.isdisjoint({keys.account, *keys.contents})
    assert all(key_slot(key.encode()) == key_slot(keys.account.encode()) for key in mine)


def test_idempotency_needs_a_key_and_a_digest() -> None:
    with pytest.raises(ValueError, match="key must have 1 to 255 bytes"):
        Idempotency("", bytes(32))
    with pytest.raises(ValueError, match="SHA-256"):
        Idempotency("key", bytes(31))


def test_api_keys_are_new_each_time_and_stored_as_digests() -> None:
    one, other = new_api_key(), new_api_key()
    assert one != other
    assert len(one) >= 43
    assert key_digest(one) == hashlib.sha256(one.encode()).digest()
