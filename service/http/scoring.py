"""MLflow's scoring protocol over the same core: `POST /invocations` at the price of `POST /predict`, and `GET /ping`.

It is what MLflow's clients and SageMaker ask of a container.
"""

from importlib.metadata import version

from fastapi import FastAPI
from starlette.responses import PlainTextResponse

from service.http.codec import RowsCodec, parsed_json
from service.http.tables import Rows, rows_of_invocation
from service.models import Models


class InvocationsCodec(RowsCodec):
    """`POST /invocations`."""

    def instances(self, body: bytes) -> tuple[Rows, str | None]:
        """Return the rows of a body in JSON, and the tier that it names."""
        return parsed_json(rows_of_invocation, body)


def add_scoring(app: FastAPI, models: Models) -> None:
    """Add `GET /ping`, `/health` and `/version`."""

    @app.get("/ping", summary="Whether the service can charge and answer")
    @app.get("/health", summary="Whether the service can charge and answer")
    async def ping() -> dict[str, str]:
        await models.check_ready()
        return {"status": "ready"}

    @app.get("/version", summary="The version of the service", response_class=PlainTextResponse)
    async def say_version() -> str:
        return version("dpserve")
