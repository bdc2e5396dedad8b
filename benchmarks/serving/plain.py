"""The network without privacy and ledger, behind the plainest endpoint that does its JSON well.

Run: python -m benchmarks.serving.plain PORT
"""

import sys

import msgspec
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.serving.network import Network


def application() -> Starlette:
    """Return an application that answers every request by itself."""
    network = Network()

    async def predict(request: Request) -> Response:
        rows = np.array(msgspec.json.decode(await request.body())["instances"], dtype=np.float32)
        return Response(msgspec.json.encode({"predictions": network(rows).tolist()}), media_type="application/json")

    async def livez(_: Request) -> Response:
        return Response(b"{}", media_type="application/json")

    return Starlette(routes=[Route("/predict", predict, methods=["POST"]), Route("/livez", livez)])


if __name__ == "__main__":
    uvicorn.run(application(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
