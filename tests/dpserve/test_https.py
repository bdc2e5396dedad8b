"""`dpserve serve` over HTTPS with a certificate of one's own, called by the client and at the owner's port."""

import asyncio
import logging
import ssl
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
import uvicorn

from dpserve.client import Client, ServiceError
from dpserve.configuration import environment_without_settings
from dpserve.service.http.problems import Problem, ProblemType
from dpserve.service.listener import bind, url_of
from dpserve.service.tls import Tls
from tests.certificates import write_certificate

KEY = "a-key-that-the-owner-chose"


@asynccontextmanager
async def answering(listening, tls):
    """Answer 503 to everything over HTTPS, as a service whose ledger is away does."""

    async def app(scope, receive, send):
        problem = Problem(ProblemType.LEDGER_UNAVAILABLE, "not verified yet")
        await problem.response()(scope, receive, send)

    config = uvicorn.Config(app, lifespan="off", log_config=None, **tls.for_uvicorn())
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    yield
    server.should_exit = True
    await serving


def healthy(address, environment):
    """The exit status of the image's health check, told of the service as in a container."""
    environment = environment_without_settings() | environment | {"DPSERVE_PORT": address.rpartition(":")[2]}
    program = Path(__file__).parents[2] / "deploy" / "healthcheck.py"
    return subprocess.run([sys.executable, program], env=environment, timeout=60, check=False).returncode


def test_both_ports_speak_https_alone(run, bundle, monkeypatch):
    certificate, key = write_certificate(run.folder, "own")
    run.environment["DPSERVE_ADMIN_KEY"] = KEY
    process, address, lines = run.start_and_read(
        bundle, "--port", 0, "--epsilon", 3, "--delta", 1e-6, "--tls-cert", certificate, "--tls-key", key
    )
    try:
        owner = lines[0].split()[5].rstrip(",")
        assert address.startswith("https://127.0.0.1:")
        assert owner.startswith("https://127.0.0.1:")
        api_key = run("clients", "add", "alice", "--epsilon", 1, "--delta", 1e-6).stdout.strip()
        trusting = ssl.create_default_context(cafile=certificate)
        assert httpx.get(f"{address}/readyz", verify=trusting).status_code == 200
        bearer = {"Authorization": f"Bearer {KEY}"}
        assert httpx.get(f"{owner}/api/models", verify=trusting, headers=bearer).status_code == 200
        assert healthy(address, {"DPSERVE_TLS_CERT": str(certificate)}) == 0
        assert healthy(address, {}) == 1
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address}/readyz")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{address}/readyz".replace("https", "http"))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with Client(address, api_key) as client:
            assert client.predict_proba(np.array([[30.0, 2000.0]])).shape == (1, 2)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_what_cannot_be_used_is_said_before_the_service_listens(run, bundle):
    certificate, _ = write_certificate(run.folder, "own")
    _, other = write_certificate(run.folder, "other")
    serve = ("serve", bundle, "--port", 0, "--epsilon", 3, "--delta", 1e-6)
    assert run.fails(*serve, "--tls-cert", certificate) == "HTTPS needs both --tls-cert and --tls-key"
    for wrong in (other, run.folder / "none.key", run.folder / "own-locked.key", certificate):
        assert "cannot be used for HTTPS" in run.fails(*serve, "--tls-cert", certificate, "--tls-key", wrong)
    assert "tokens need all of" in run.fails(*serve, "--jwt-issuer", "https://provider.example")
    assert "takes an origin" in run.fails(*serve, "--cors-origin", "*")


def test_a_pinned_certificate_is_the_only_one_that_is_trusted(tmp_path):
    pinned = Tls(*write_certificate(tmp_path, "pinned"))
    impostor = Tls(*write_certificate(tmp_path, "impostor"))

    async def ask(tls):
        with bind() as listening:
            url = url_of(listening, tls)
            async with answering(listening, tls), httpx.AsyncClient(verify=pinned.pinned()) as http:
                return (await http.get(f"{url}/livez")).status_code

    assert asyncio.run(ask(pinned)) == 503
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(ask(impostor))


def test_a_renewed_certificate_is_taken_at_the_next_handshake(tmp_path, caplog):
    """A certificate without its key yet, and one that is damaged, leave the former in use."""
    first, second = write_certificate(tmp_path, "first"), write_certificate(tmp_path, "second")
    served = [tmp_path / "served.pem", tmp_path / "served.key"]
    for source, target in zip(first, served, strict=False):
        target.write_bytes(source.read_bytes())
    tls = Tls(*served)

    async def ask():
        seen = []
        with bind() as listening:
            url = url_of(listening, tls)
            async with answering(listening, tls):

                async def look():
                    for name, files in (("first", first), ("second", second)):
                        with suppress(httpx.ConnectError):
                            async with httpx.AsyncClient(verify=Tls(*files[:2]).pinned()) as http:
                                await http.get(f"{url}/livez")
                                seen.append(name)

                await look()
                served[0].write_bytes(second[0].read_bytes())
                await look()
                served[1].write_bytes(second[1].read_bytes())
                await look()
                served[0].write_text("no certificate")
                await look()
        return seen

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(ask()) == ["first", "first", "second", "second"]
    assert len([record for record in caplog.records if "cannot be used" in record.message]) == 2


def test_the_client_trusts_whom_it_is_told_to(tmp_path):
    tls = Tls(*write_certificate(tmp_path, "own"))

    async def ask(trusting):
        with bind() as listening:
            url = url_of(listening, tls)
            async with answering(listening, tls):
                with Client(url, "k" * 20, attempts=1, trusting=trusting) as client:
                    return await asyncio.to_thread(client.budget)

    with pytest.raises(ServiceError, match="not verified yet"):
        asyncio.run(ask(ssl.create_default_context(cafile=tls.certificate)))
    with pytest.raises(ServiceError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(ask(None))
