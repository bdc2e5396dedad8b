import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from accounting.ledger import LARGEST_REQUEST, ChargeRequest, Idempotency, key_digest, new_api_key, row_id
from accounting.losses import ApproximateGaussianLoss, Cost, GaussianLoss, LaplaceLoss

_COSTS = st.sampled_from([Cost(), Cost((GaussianLoss(0.5),)), Cost((LaplaceLoss(0.5),)), Cost((GaussianLoss(1.0),))])
_PARTS = st.tuples(st.text(max_size=4), st.text(max_size=4), st.text(max_size=4), _COSTS, st.binary(max_size=8))


def _request(**changes: object) -> ChargeRequest:
    plain = ChargeRequest("lineage", "ann", "model", "gaussian", Cost((GaussianLoss(0.5),)), (b"row",), 0.0)
    return structs.replace(plain, **changes)  # type: ignore[arg-type]


@given(_PARTS, _PARTS)
def test_rows_share_an_id_only_if_everything_that_decides_the_answer_is_equal(one, other) -> None:  # type: ignore[no-untyped-def]
    assert (row_id(*one) == row_id(*other)) == (one == other)


def test_parts_do_not_run_into_each_other() -> None:
    cost = Cost()
    assert row_id("ab", "c", "d", cost, b"") != row_id("a", "bc", "d", cost, b"")
    assert row_id("a", "b", "cd", cost, b"") != row_id("a", "b", "c", cost, b"d")


def test_a_request_derives_its_ids_and_its_price() -> None:
    request = _request(rows=(b"1", b"2", b"1"))
    cost = request.cost
    assert request.row_ids == tuple(row_id("ann", "model", "gaussian", cost, row) for row in (b"1", b"2", b"1"))
    assert request.price == cost.picorho


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lineage": "a}b"}, "a lineage has"),
        ({"lineage": ""}, "a lineage has"),
        ({"client": "a:tally"}, "a client's name has"),
        ({"client": "x" * 129}, "a client's name has"),
        ({"client": "ann\n"}, "a client's name has"),
        ({"model": ""}, "a model's id must have 1 to 255 bytes"),
        ({"mechanism": "é" * 128}, "a mechanism's name must have 1 to 255 bytes"),
        ({"rows": ()}, "a request must have 1 to 10000 rows, not 0"),
        ({"rows": (b"",) * (LARGEST_REQUEST + 1)}, "not 10001"),
        ({"time": float("nan")}, "time must be finite"),
        ({"cost": Cost((ApproximateGaussianLoss(1e-4, 2.0**-40),))}, "a release with a coin is held"),
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
