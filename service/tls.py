"""HTTPS: a certificate and its key, checked before the service listens."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.errors import CannotServe


@dataclass(frozen=True)
class Tls:
    """PEM files with a certificate, its chain behind it, and its key. Raises CannotServe if they cannot be used."""

    certificate: Path
    key: Path

    def __post_init__(self) -> None:
        """Load both once, to find out now."""
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                self.certificate, self.key, _no_password
            )
        except (OSError, ssl.SSLError) as error:
            raise CannotServe(
                f"{self.certificate} and {self.key} cannot be used for HTTPS: {error}; they must be PEM files, the key "
                "that of the certificate and without a password"
            ) from error

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

    def for_grpc(self) -> tuple[bytes, bytes]:
        """Return the key, and the certificate with its chain."""
        return self.key.read_bytes(), self.certificate.read_bytes()

    def for_uvicorn(self) -> dict[str, Any]:
        """Return uvicorn's settings: TLS 1.2 or newer, with forward secrecy and authenticated encryption."""
        return {
            "ssl_certfile": str(self.certificate),
            "ssl_keyfile": str(self.key),
            "ssl_version": ssl.PROTOCOL_TLS_SERVER,
            "ssl_ciphers": _CIPHERS,
        }


_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


def _no_password() -> str:
    raise ssl.SSLError("the key is locked by a password")
