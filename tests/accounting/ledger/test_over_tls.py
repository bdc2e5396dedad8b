"""The ledger over `rediss://`: a store behind TLS, under both event loops that a service may run on."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dpserve.accounting.ledger import Ledger, LedgerUnavailable
from tests.certificates import write_certificate

from .conftest import ON_EACH_LOOP, asking, new_lineage, open_accounts, releases

pytestmark = [pytest.mark.anyio, ON_EACH_LOOP]


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


class _Front:
    """TLS in front of a store, as stunnel or a provider's proxy speaks it."""

    def __init__(self, store_url: str, tls: ssl.SSLContext) -> None:
        self.tls = tls
        self._path = urlsplit(store_url).path
        self._open: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, to_them = await asyncio.open_unix_connection(self._path)
        self._open += [writer, to_them]
        await asyncio.gather(_copy(reader, to_them), _copy(theirs, writer))

    def cut(self) -> None:
        for writer in self._open:
            if not writer.is_closing():  # closed twice, a transport of Python 3.11.2 cannot be aborted any more
                writer.transport.abort()
        self._open.clear()


@asynccontextmanager
async def _front(store_url: str, folder: Path) -> AsyncIterator[tuple[_Front, str]]:
    """A front and the ledger's address of it, which names the authority to trust."""
    certificate, key = write_certificate(folder, "store")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    front = _Front(store_url, tls)
    async with await asyncio.start_server(front.serve, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        yield front, f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}"
        front.cut()


async def test_charge_and_reconnect_over_tls(store_url: str, tmp_path: Path) -> None:
    lineage, rows = new_lineage(), [str(number) for number in range(300)]
    async with _front(store_url, tmp_path) as (front, url), await Ledger.connect(url) as ledger:
        await open_accounts(ledger, lineage, releases(400), ann=releases(400))
        await ledger.charge(asking(lineage, "ann", *rows))
        calls = [asyncio.create_task(ledger.lineage(lineage)) for _ in range(4)]
        await asyncio.sleep(0)
        front.cut()
        for ended in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(ended, LedgerUnavailable) or ended.releases == 300  # type: ignore[union-attr]
        with suppress(LedgerUnavailable):  # a connection of which nobody has heard yet that it was cut
            await ledger.lineage(lineage)
        again = await ledger.charge(asking(lineage, "ann", *rows, "new"))
        assert again.free == (True,) * 300 + (False,)
        assert again.receipt is not None
        assert again.receipt.releases == 1
        assert (await ledger.lineage(lineage)).releases == 301


async def test_a_certificate_that_was_renewed_is_trusted_by_who_was_connected(store_url: str, tmp_path: Path) -> None:
    lineage = new_lineage()
    async with _front(store_url, tmp_path) as (front, url), await Ledger.connect(url) as ledger:
        await open_accounts(ledger, lineage, releases(9), ann=releases(9))
        front.tls.load_cert_chain(*write_certificate(tmp_path, "store"))  # signed by another key than before
        front.cut()
        with suppress(LedgerUnavailable):  # a connection of which nobody has heard yet that it was cut
            await ledger.lineage(lineage)
        await ledger.charge(asking(lineage, "ann", "one"))
        assert (await ledger.lineage(lineage)).releases == 1


async def test_an_authority_that_is_not_trusted_is_refused(store_url: str, tmp_path: Path) -> None:
    async with _front(store_url, tmp_path) as (_, url):
        with pytest.raises(LedgerUnavailable, match=r"cannot be reached: .*certificate"):
            await Ledger.connect(url.partition("?")[0], deadline=1.0)
