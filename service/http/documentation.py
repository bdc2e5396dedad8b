"""`GET /docs`: Swagger UI over the service's own OpenAPI document. All of it is served from here; nothing is loaded."""

from functools import cache
from html import escape
from importlib.resources import files

from fastapi import FastAPI, Response

from service.page.assets import HEADERS

PATH = "/docs"

_FILES = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
}
"""Those of the package `fastapi-offline` that are served."""

_START = "start.js"
_STARTED = """window.ui = SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  persistAuthorization: false,
  presets: [SwaggerUIBundle.presets.apis],
});
"""

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Swagger UI styles its elements as it makes them, and draws its icons from data."""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="{path}/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="{path}/swagger-ui-bundle.js"></script>
<script src="{path}/start.js"></script>
</body>
</html>
"""


def add_documentation(app: FastAPI) -> None:
    """Add the page and its files."""
    headers = {**HEADERS, "Content-Security-Policy": _POLICY}
    page = _PAGE.format(title=escape(app.title), path=PATH)

    @app.get(PATH, include_in_schema=False)
    async def documentation() -> Response:
        return Response(page, media_type="text/html; charset=utf-8", headers=headers)

    @app.get(f"{PATH}/{_START}", include_in_schema=False)
    async def start() -> Response:
        return Response(_STARTED, media_type="text/javascript; charset=utf-8", headers=headers)

    def add(name: str, media_type: str) -> None:
        @app.get(f"{PATH}/{name}", include_in_schema=False)
        async def file() -> Response:
            return Response(_file(name), media_type=media_type, headers=headers)

    for name, media_type in _FILES.items():
        add(name, media_type)


@cache
def _file(name: str) -> bytes:
    return files("fastapi_offline").joinpath("static", name).read_bytes()
