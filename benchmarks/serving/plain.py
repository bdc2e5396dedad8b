"""The network without privacy and ledger, behind the plainest endpoint that does its JSON well.

Run: python -m benchmarks.serving.plain simple BUNDLE PORT
"""

import sys

import numpy as np
import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.serving.network import Network


def simple() -> Starlette:
    """Return an application that answers every request by itself."""
    network = Network()

    async def predict(request: Request) -> Response:
        rows = np.array(orjson.loads(await request.body())["instances"], dtype=np.float32)
        answer = {"predictions": network(rows)}
        return Response(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")

    async def livez(_: Request) -> Response:
        return Response(b"{}", media_type="application/json")

    return Starlette(routes=[Route("/predict", predict, methods=["POST"]), Route("/livez", livez)])


if __name__ == "__main__":
    _, mode, bundle, port = sys.argv
    uvicorn.run(simple(), host="127.0.0.1", port=int(port), log_level="warning", access_log=False)
