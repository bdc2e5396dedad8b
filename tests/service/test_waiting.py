"""Before it is ready a service answers that it lives and is not ready; then the same socket serves."""

import asyncio

import httpx

from service.http.waiting import answering_that_it_is_not_ready
from service.run import ServiceSettings, bind, url_of


def test_it_lives_and_is_not_ready():
    async def run():
        with bind(ServiceSettings(port=0)) as listening:
            url = url_of(listening)
            async with answering_that_it_is_not_ready(listening), httpx.AsyncClient(base_url=url) as http:
                found = [
                    await http.get("/livez"),
                    await http.head("/livez"),
                    await http.get("/readyz"),
                    await http.get("/v2/health/ready"),
                    await http.post("/predict", json={"instances": [[0.5] * 10_000]}),
                    await http.head("/readyz"),
                ]
            # The socket still listens: who comes now waits for the service itself.
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            writer.close()
            return found, reader

    found, _ = asyncio.run(run())
    assert [response.status_code for response in found] == [200, 200, 503, 503, 503, 503]
    for response in found[2:]:
        assert response.headers["Retry-After"] == "1"
        assert response.headers["dpserve-problem"] == "not-ready"
    assert found[2].json()["type"] == "urn:dpserve:problem:not-ready"
    assert found[0].json() == {"status": "live"}
