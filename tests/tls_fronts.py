"""TLS in front of stores that speak none, with a client's certificate, for every client but the stores themselves.

The embedded Valkey is built without TLS. A store, a replica or a Sentinel reaches another at the same port that a
client is told, so the front tells them apart by where they come from: `STORES_OWN` is relayed as it is, and anybody
else speaks TLS or hears nothing.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.certificates import write_certificate

STORES_OWN = "127.0.0.2"
"""The address that stores bind their own connections to."""


class Fronts:
    """Relays ports of loopback on a thread of its own."""

    def __init__(self, folder: Path) -> None:
        """Make the certificates of the servers and of one client in `folder`."""
        folder.mkdir()
        self._folder = folder
        self._connections: set[asyncio.StreamWriter] = set()
        certificate, client, client_key = self._write_certificates()
        self.authority = {"ssl_ca_certs": str(certificate)}
        self.options = self.authority | {"ssl_certfile": str(client), "ssl_keyfile": str(client_key)}
        """Options that an address must set to be let in."""
        self.encrypted: list[int] = []
        """The ports of stores that somebody reached by TLS, one for each connection."""
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def query(self) -> str:
        """`options`, as an address has them."""
        return urlencode(self.options)

    def _write_certificates(self) -> tuple[Path, Path, Path]:
        certificate, key = write_certificate(self._folder, "servers")
        client, client_key = write_certificate(self._folder, "client")
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate, key)
        self._tls.load_verify_locations(client)
        self._tls.verify_mode = ssl.CERT_REQUIRED
        return certificate, client, client_key

    def renew(self) -> None:
        """Replace the certificates, and who signs them, in the same files; trust no other, and close what is open."""
        self._write_certificates()
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        for writer in self._connections:
            writer.close()

    def start(self, store_port: int) -> int:
        """Relay a free port to that of a store, and return it."""
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self._soon(self._accept(listener, store_port))
        return int(listener.getsockname()[1])

    def _soon(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _accept(self, listener: socket.socket, store_port: int) -> None:
        with listener:
            while True:
                client, (host, _) = await self._loop.sock_accept(listener)
                tls = None if host == STORES_OWN else self._tls
                task = self._loop.create_task(self._relay(client, store_port, tls))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _relay(self, client: socket.socket, store_port: int, tls: ssl.SSLContext | None) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        with suppress(OSError):  # no TLS, no certificate, or no store
            transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, client, ssl=tls)
            writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
            self._connections.add(writer)
            try:
                await self._relay_to(store_port, reader, writer, encrypted=tls is not None)
            finally:
                self._connections.discard(writer)
                writer.transport.abort()

    async def _relay_to(
        self, store_port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, encrypted: bool
    ) -> None:
        theirs, to_them = await asyncio.open_connection("127.0.0.1", store_port)
        if encrypted:
            self.encrypted.append(store_port)
        try:
            await asyncio.gather(_copy(reader, to_them), _copy(theirs, writer))
        finally:
            to_them.transport.abort()

    def run(self) -> None:
        """Relay until the loop is stopped."""
        self._loop.run_forever()
        while tasks := asyncio.all_tasks(self._loop):  # a copy that is cancelled ends the one beside it
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.run_until_complete(asyncio.sleep(0))  # the turn in which what was aborted is closed
        self._loop.close()

    def stop(self) -> None:
        """Stop the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextmanager
def fronts(folder: Path) -> Iterator[Fronts]:
    """Give fronts that relay until the context ends."""
    made = Fronts(folder)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield made
    finally:
        made.stop()
        thread.join()
