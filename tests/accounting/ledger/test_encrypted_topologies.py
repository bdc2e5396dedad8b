"""The ledger by Sentinels behind TLS, with a private authority, a client's certificate and passwords."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dpserve.accounting.ledger import Ledger, LedgerUnavailable
from dpserve.accounting.ledger.store import RIGHTS
from tests.tls_fronts import Fronts, fronts
from tests.topologies import encrypted_sentinels

from .conftest import asking, new_lineage, open_accounts, releases

pytestmark = pytest.mark.anyio

USER = ("clerk", "secret", *RIGHTS.split())


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronts]:
    with fronts(tmp_path_factory.mktemp("tls") / "certificates") as made:
        yield made


async def test_sentinels_and_their_servers_are_reached_by_tls_alone_and_followed_to_a_new_primary(
    front: Fronts, tmp_path: Path
) -> None:
    with encrypted_sentinels(tmp_path, USER, front) as (store, replica):
        lineage = new_lineage()
        async with await Ledger.connect(store.url, replicas=1) as ledger:
            await open_accounts(ledger, lineage, releases(9), ann=releases(9))
            await ledger.charge(asking(lineage, "ann", "one", "two"))
        assert store.primaries[0].port in front.encrypted
        assert replica.port not in front.encrypted
        store.primaries[0].kill()
        async with await _soon(store.url) as ledger:
            assert (await ledger.lineage(lineage)).releases == 2
        assert replica.port in front.encrypted


async def test_sentinels_whose_certificates_were_renewed_are_asked_by_who_was_connected(
    front: Fronts, tmp_path: Path
) -> None:
    with encrypted_sentinels(tmp_path, USER, front) as (store, _):
        async with await Ledger.connect(store.url, replicas=1) as ledger:
            await _charge_over_a_renewal(ledger, front)


async def _charge_over_a_renewal(ledger: Ledger, front: Fronts) -> None:
    lineages = [new_lineage() for _ in range(6)]
    for lineage in lineages:
        await open_accounts(ledger, lineage, releases(9), ann=releases(9))
    front.renew()
    for lineage in lineages:
        request = asking(lineage, "ann", "one", "two")
        for _ in range(5):  # connections of which nobody has heard yet that they were closed
            with suppress(LedgerUnavailable):
                await ledger.charge(request)
                break
        assert (await ledger.lineage(lineage)).releases == 2


async def test_sentinels_own_credentials_are_asked_for(front: Fronts, tmp_path: Path) -> None:
    with encrypted_sentinels(tmp_path, USER, front) as (store, _):
        address = store.url.replace("sentinel_password=seen", "sentinel_password=guessed")
        with pytest.raises(LedgerUnavailable):
            await Ledger.connect(address, replicas=1, deadline=0.5)


async def _soon(url: str) -> Ledger:
    """Connect without replicas to wait for, as soon as the Sentinels have promoted one."""
    for _ in range(200):
        try:
            return await Ledger.connect(url, replicas=0, rehearsal=True, deadline=0.5)
        except LedgerUnavailable:
            continue
    raise TimeoutError("the Sentinels promoted nobody")
