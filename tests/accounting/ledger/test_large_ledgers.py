"""The owner's tools hold no more in memory for more receipts."""

import hashlib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpserve.accounting.ledger import Ledger, LedgerUnavailable, backups
from dpserve.accounting.ledger.backups import backup, restore
from dpserve.accounting.ledger.receipts import charge_terms
from dpserve.accounting.ledger.values import LedgerRequest, Line
from dpserve.accounting.ledger.verification import all_receipts, verify
from dpserve.accounting.ledger.wire import LineageKeys

from .conftest import COST, open_accounts, releases

_CALL = 500


class _Lines:
    """The lines of a file, read anew for each iteration."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[str]:
        with self._path.open() as file:
            yield from file


async def _charge(ledger: Ledger, lineage: str, count: int) -> None:
    """Charge `count` receipts to ann and bob, who ask every tenth question both."""
    await open_accounts(ledger, lineage, releases(count), ann=releases(count), bob=releases(count))
    terms = charge_terms("model", "gaussian", COST)
    for start in range(0, count, _CALL):
        requests = []
        for number in range(start, min(start + _CALL, count)):
            asked = number - 1 if number % 10 == 1 else number
            question = hashlib.sha256(b"%d" % asked).digest()[:16]
            requests.append(LedgerRequest(lineage, ("ann", "bob")[number % 2], 0, (Line(terms, (question,)),)))
        await ledger.apply(requests)


async def _most_bytes(folder: Path, count: int) -> int:
    """Return the most bytes that Python held while it verified, backed up and restored so many receipts."""
    folder.mkdir()
    path = folder / "backup"
    async with Ledger.open(folder / "store") as ledger:
        await _charge(ledger, "lineage", count)
        tracemalloc.start()
        try:
            checked = await verify(ledger, "lineage")
            with path.open("w") as file:
                async for line in backup(ledger):
                    file.write(line)
            async with Ledger.open(folder / "new") as new:
                assert await restore(new, _Lines(path)) == ["lineage"]
                assert (await verify(new, "lineage")) == checked
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (checked.receipts, checked.findings) == (count, ())
    return most


@pytest.mark.slow
@pytest.mark.anyio
async def test_memory_does_not_grow_with_the_receipts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pages of 100, so that few receipts show it: 2,000 more of them in a list take 0.7 MB."""
    for name, size in (
        ("verification._PAGE", 100),
        ("verification._INDEX_PAGE", 100),
        ("backups._ENTRIES_OF_A_STREAM", 100),
        ("backups._ENTRIES_IN_A_CALL", 100),
        ("backups._MOST_WAITING", 100),
        ("questions._AT_ONCE", 100),
    ):
        monkeypatch.setattr(f"dpserve.accounting.ledger.{name}", size)
    fewer = await _most_bytes(tmp_path / "fewer", 1_200)
    more = await _most_bytes(tmp_path / "more", 3_200)
    assert more < fewer + 550_000


async def _lines(ledger: Ledger) -> list[str]:
    return [line async for line in backup(ledger)]


@pytest.mark.anyio
async def test_a_call_whose_time_ran_out_meanwhile_is_made_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page is asked for, and a part written, while Python is busy with another one."""
    call, made = Ledger.call, dict[str, int]()

    async def late(self: Ledger, lineage: str, function: str, *rest: Any, **more: Any) -> list[Any]:
        if function == "restore" or rest[0] == [LineageKeys(lineage).receipts]:
            made[function] = made.get(function, 0) + 1
            if made[function] % 2:
                raise LedgerUnavailable("the ledger's store did not answer within 5 s")
        return await call(self, lineage, function, *rest, **more)

    monkeypatch.setattr(backups, "_ENTRIES_OF_A_STREAM", 7)  # so that 30 receipts are several parts
    monkeypatch.setattr(backups, "_MOST_WAITING", 10)
    async with Ledger.open(tmp_path / "store") as ledger, Ledger.open(tmp_path / "new") as new:
        await _charge(ledger, "lineage", 30)
        lines = await _lines(ledger)
        receipts = [one async for one in all_receipts(ledger, "lineage", 30)]
        monkeypatch.setattr(Ledger, "call", late)
        assert [one async for one in all_receipts(ledger, "lineage", 30)] == receipts
        assert await restore(new, lines) == ["lineage"]
        monkeypatch.setattr(Ledger, "call", call)
        assert (await verify(new, "lineage")).findings == ()
    assert all(count > 2 for count in made.values())
