"""HTTPS: a certificate and its key, checked before the service listens, and read again whenever the files change."""

import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import uvicorn

from dpserve.service.errors import CannotServe
from dpserve.service.telemetry import logs

_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Tls:
    """PEM files with a certificate, its chain behind it, and its key. Raises CannotServe if they cannot be used."""

    certificate: Path
    key: Path

    def __post_init__(self) -> None:
        """Load both once, to find out now."""
        try:
            self._loaded()
        except (OSError, ssl.SSLError) as error:
            raise self._refused(error) from error

    def check_answers(self, grpc_address: str | None) -> None:
        """Raise CannotServe if these files can be loaded, and no client be answered with them all the same.

        grpc_address: HOST:PORT where gRPC could listen, if it is to answer: it takes fewer kinds of keys.
        """
        try:
            client = self.pinned()
            client.verify_mode = ssl.CERT_NONE  # what has expired may be renewed while the service runs
            _shake_hands(self._loaded(), client)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise self._refused(error) from error
        if grpc_address is not None:
            import grpc

            server = grpc.server(ThreadPoolExecutor(1))
            try:
                server.add_secure_port(grpc_address, self.for_grpc())
            except RuntimeError as error:
                raise self._refused("gRPC does not take a key of this kind, or their form") from error
            finally:
                server.stop(None)

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_ciphers(_CIPHERS)
        context.load_cert_chain(self.certificate, self.key, _no_password)
        return context

    def _refused(self, why: object) -> CannotServe:
        return CannotServe(
            f"{self.certificate} and {self.key} cannot be used for HTTPS: {why}; they must be PEM files, the key "
            "that of the certificate and without a password"
        )

    def pinned(self) -> ssl.SSLContext:
        """Return what a caller trusts this very certificate with, whoever signed it and whatever it is a name of.

        For calls of the service to itself. Nobody else's certificate is taken, an authority's of the system neither.
        """
        # Here, as what a service without an audit of its own need not hold in memory.
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import Encoding

        own, *_ = x509.load_pem_x509_certificates(self.certificate.read_bytes())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False  # the service is called by address, and the certificate names it otherwise
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it ends at this certificate, not at who signed it
        context.load_verify_locations(cadata=own.public_bytes(Encoding.DER))
        return context

    def for_grpc(self) -> Any:
        """Return gRPC's credentials of a server; a handshake after the files changed has the new ones."""
        import grpc

        kept = Renewed(self, self._configuration)
        return grpc.dynamic_ssl_server_credentials(kept.made, kept.current, require_client_authentication=False)

    def _configuration(self) -> Any:
        import grpc

        Tls(self.certificate, self.key)  # gRPC takes a key of another certificate, and then refuses every client
        return grpc.ssl_server_certificate_configuration([(self.key.read_bytes(), self.certificate.read_bytes())])

    def for_uvicorn(self) -> dict[str, Any]:
        """Return uvicorn's settings: TLS 1.2 or newer, with forward secrecy and authenticated encryption.

        A handshake after the files changed has the new certificate.
        """
        return {
            "ssl_certfile": str(self.certificate),
            "ssl_keyfile": str(self.key),
            "ssl_version": ssl.PROTOCOL_TLS_SERVER,
            "ssl_ciphers": _CIPHERS,
            "ssl_context_factory": self._renewed_context,
        }

    def _renewed_context(self, config: uvicorn.Config, make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        del config
        kept = Renewed(self, make)

        def newest(connection: ssl.SSLSocket | ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
            connection.context = kept.current()

        kept.made.sni_callback = newest
        return kept.made

    @property
    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Times, sizes and numbers of the files, through links; zeros for one that is not there."""
        return tuple(map(_stamp_of, (self.certificate, self.key)))


@dataclass
class Renewed(Generic[_Made]):
    """Something made of the files, and made again once they change. What cannot be made leaves the former in use.

    Two files are seldom replaced at one moment: a certificate whose key is still the former's cannot be made, and is
    tried again when the key has changed, too.
    """

    tls: Tls
    make: Callable[[], _Made]
    made: _Made = field(init=False)
    stamp: object = field(init=False)

    def __post_init__(self) -> None:
        """Make it for the first time. Raises what `make` raises."""
        self.stamp = self.tls.stamp
        self.made = self.make()

    def current(self) -> _Made:
        """Return it, of the files as they are now."""
        if (stamp := self.tls.stamp) != self.stamp:
            self.stamp = stamp
            try:
                self.made = self.make()
            except (OSError, ssl.SSLError, CannotServe) as error:
                logs.log.error("the certificate that was renewed cannot be used, and the former stays: %s", error)
            else:
                logs.log.info("the certificate was renewed")
        return self.made


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Have both agree on a connection in memory. Raises SSLError where they do not."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)
    while sum(_goes_on(side) for side in sides) < len(sides):  # each in every round, unlike `all`
        pass


def _goes_on(side: ssl.SSLObject) -> bool:
    """Take a handshake as far as what has come allows; return whether it is over."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _stamp_of(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_mtime_ns, status.st_size, status.st_ino


_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


def _no_password() -> str:
    raise ssl.SSLError("the key is locked by a password")
