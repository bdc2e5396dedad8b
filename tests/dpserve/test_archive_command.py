"""Archives whose process, or whose store, is killed, or whose connection is cut, between any two of their steps."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import pytest

from accounting.ledger import Ledger, LedgerUnavailable
from accounting.ledger.archives import Archive, archive
from accounting.ledger.backup_chains import Place
from accounting.ledger.embedded import EmbeddedStore
from accounting.ledger.seals import seals_of
from accounting.ledger.store import our_library
from accounting.ledger.verification import verify
from tests.faults.books import asking, open_accounts
from tests.faults.servers import StoreServer

pytestmark = pytest.mark.anyio

LINEAGE = "people"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Killable(Protocol):
    """A process."""

    def kill(self) -> None: ...


Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class KillingProxy:
    """A way to the store that kills a process at one call: before the call is passed on, or at its reply."""

    def __init__(self, connect: Connect, function: str, *, passes: bool) -> None:
        self._connect, self._passes = connect, passes
        self._call = f"dpserve_{our_library().version}_{function}\r\n".encode()
        self.process: asyncio.Future[Killable] = asyncio.get_running_loop().create_future()
        self.has_killed = self._kills_at_reply = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            yield f"redis://127.0.0.1:{port}/0"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_store, to_store = await self._connect()
        back = asyncio.ensure_future(self._pass_back(from_store, writer))
        before = b""
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if self._call in before + data:
                    if not (self._passes or self.has_killed):
                        await self._kill()
                        break
                    self._kills_at_reply = not self.has_killed
                before = data[-64:]
                to_store.write(data)
        back.cancel()
        to_store.close()
        writer.close()

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if self._kills_at_reply:
                    self._kills_at_reply = False
                    await self._kill()
                    writer.transport.abort()
                    break
                writer.write(data)

    async def _kill(self) -> None:
        (await self.process).kill()
        self.has_killed = True


@pytest.mark.parametrize(
    ("function", "passes"), [("seal", False), ("seal", True), ("archive", False), ("archive", True), ("trim", False)]
)
async def test_a_killed_archive_leaves_all_and_is_done_by_the_next(tmp_path: Path, function: str, passes: bool) -> None:
    files, place = tmp_path / "archive", Place(str(tmp_path / "archive"))
    with EmbeddedStore(tmp_path / "ledger") as store:
        async with await Ledger.connect(store.url) as ledger:
            await open_accounts(ledger, LINEAGE)
            for number in range(6):
                await ledger.charge(asking(LINEAGE, "ann", f"row {number}", f"row {number // 2}"))
            before = await ledger.client(LINEAGE, "ann")
            socket = store.url.removeprefix("unix://").partition("?")[0]
            proxy = KillingProxy(lambda: asyncio.open_unix_connection(socket), function, passes=passes)
            async with proxy.running() as url:
                words = ["ledger", "archive", str(files), "--older-than", "0s", "--ledger", url]
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "dpserve", *words),
                    env=os.environ | {"DPSERVE_HOME": str(tmp_path / "home")},
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                )
                proxy.process.set_result(process)
                assert await process.wait() == -9
            assert proxy.has_killed
            # Either all receipts are in the store, or those that the act names are in the file.
            is_done = function == "trim" or (function == "archive" and passes)
            assert (await ledger.lineage(LINEAGE)).archived == (5 if is_done else 0)
            assert [one.sequence for one in await ledger.receipts(LINEAGE)] == ([6] if is_done else [1, 2, 3, 4, 5, 6])
            readable = Archive(place).receipts
            assert (await verify(ledger, LINEAGE)).findings == ()
            assert (await verify(ledger, LINEAGE, archived=readable)).findings == ()
            assert (await ledger.charge(asking(LINEAGE, "ann", "row 0", "row 5"))).receipts == ()
            charge = await ledger.charge(asking(LINEAGE, "ann", "meanwhile"))
            assert charge.balance.spent == before.spent + charge.charged
            assert (await archive(ledger, LINEAGE, place, before=float("inf"))).upto == 6
            assert (await verify(ledger, LINEAGE)).findings == ()
            assert (await verify(ledger, LINEAGE, archived=readable)).findings == ()
            assert len(await ledger.client_index(LINEAGE, "ann")) == 1


@pytest.mark.parametrize(
    ("function", "passes"), [("seal", True), ("archive", False), ("archive", True), ("trim", False), ("trim", True)]
)
async def test_a_store_that_is_killed_during_an_archive_has_all_or_the_file(
    tmp_path: Path, function: str, passes: bool
) -> None:
    place = Place(str(tmp_path / "archive"))
    with StoreServer(tmp_path / "store") as store:
        async with await Ledger.connect(store.url) as ledger:
            await open_accounts(ledger, LINEAGE)
            for number in range(6):
                await ledger.charge(asking(LINEAGE, "ann", f"row {number}"))
        proxy = KillingProxy(lambda: asyncio.open_connection("127.0.0.1", store.port), function, passes=passes)
        proxy.process.set_result(store)
        async with proxy.running() as url, await Ledger.connect(url) as ledger:
            with pytest.raises(LedgerUnavailable):
                await archive(ledger, LINEAGE, place, before=float("inf"))
        assert proxy.has_killed
        store.start()
        async with await Ledger.connect(store.url) as ledger:
            is_done = function == "trim" or (function == "archive" and passes)
            assert (await ledger.lineage(LINEAGE)).archived == (5 if is_done else 0)
            assert (await verify(ledger, LINEAGE)).findings == ()
            assert (await verify(ledger, LINEAGE, archived=Archive(place).receipts)).findings == ()
            assert (
                await ledger.charge(asking(LINEAGE, "ann", *(f"row {number}" for number in range(6))))
            ).receipts == ()
            assert (await archive(ledger, LINEAGE, place, before=float("inf"))).upto == 5
            assert (await verify(ledger, LINEAGE, archived=Archive(place).receipts)).findings == ()
            assert len(await ledger.client_index(LINEAGE, "ann")) == 1


class Nothing:
    """A process that stays."""

    def kill(self) -> None:
        pass


@pytest.mark.parametrize(
    ("function", "passes"),
    [("seal", False), ("seal", True), ("archive", False), ("archive", True), ("trim", False), ("trim", True)],
)
async def test_no_file_is_removed_of_an_archive_whose_reply_was_lost(
    tmp_path: Path, function: str, passes: bool
) -> None:
    """The store may have given the receipts up: then the file is the only one that has them."""
    files = tmp_path / "archive"
    readable = Archive(Place(str(files))).receipts
    with EmbeddedStore(tmp_path / "ledger") as store:
        async with await Ledger.connect(store.url) as ledger:
            await open_accounts(ledger, LINEAGE)
            for number in range(6):
                await ledger.charge(asking(LINEAGE, "ann", f"row {number}"))
            socket = store.url.removeprefix("unix://").partition("?")[0]
            proxy = KillingProxy(lambda: asyncio.open_unix_connection(socket), function, passes=passes)
            proxy.process.set_result(Nothing())
            async with proxy.running() as url, await Ledger.connect(url) as cut:
                with pytest.raises(LedgerUnavailable):
                    await archive(cut, LINEAGE, Place(str(files)), before=float("inf"))
                assert proxy.has_killed
                is_done = function == "trim" or (function == "archive" and passes)
                assert (await ledger.lineage(LINEAGE)).archived == (5 if is_done else 0)
                written = set(files.iterdir())
                assert (await verify(ledger, LINEAGE, archived=readable)).findings == ()
                assert (await archive(cut, LINEAGE, Place(str(files)), before=float("inf"))).upto == 5
            assert set(files.iterdir()) >= written
            named = {seal.file for seal in seals_of(await ledger.acts(LINEAGE))}
            assert named <= {path.name for path in files.iterdir()}
            assert (await verify(ledger, LINEAGE)).findings == ()
            assert (await verify(ledger, LINEAGE, archived=readable)).findings == ()
            assert len(await ledger.client_index(LINEAGE, "ann")) == 1
