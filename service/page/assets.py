"""The pages' files: read once, served from memory, with headers under which nothing foreign loads or runs.

Those of Swagger UI are read when they are first asked for: they are ten times as large as all others, and few ask.

A page holds no data. What it shows it asks of the service with the key that the reader types in, and puts into the
document as text. The policy below has no inline script or style, lets a page talk to its own origin only, and keeps
Trusted Types from making markup out of any string. `/docs` is Swagger UI, which styles its elements as it makes them,
and draws its icons from data: its policy allows that, and nothing from elsewhere.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from pathlib import PurePath
from string import Template
from types import MappingProxyType
from typing import Literal, get_args

from fastapi import FastAPI, Request, Response

from dpserve.service.http.problems import Problem, ProblemType

Reader = Literal["client", "owner"]

FOLDER = "/page/"

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; "
)
_OF_PAGES = "style-src 'self'; img-src 'self'; require-trusted-types-for 'script'; trusted-types 'none'"
_OF_SWAGGER = "style-src 'self' 'unsafe-inline'; img-src 'self' data:"
SWAGGER = ("swagger-ui-bundle.js", "swagger-ui.css")
"""Those files of the package `fastapi-offline` that are served."""

HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": _POLICY + _OF_PAGES,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
        "Cache-Control": "no-cache",
    }
)
"""Headers of every file of a page."""


@dataclass(frozen=True)
class Asset:
    """One file. tag: its entity tag, of its content alone."""

    content: bytes
    media_type: str
    tag: str

    def response(self, request: Request, **more: str) -> Response:
        """Return the file, or nothing but the headers for who has it already. more: further headers."""
        headers = {**HEADERS, "ETag": self.tag, **more}
        if self.tag in (tag.strip() for tag in request.headers.get("if-none-match", "").split(",")):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


@cache
def assets() -> Mapping[str, Asset]:
    """Return our own files by name. Raises OSError where the package was installed without them."""
    contents = {file.name: file.read_bytes() for file in files("dpserve.service.page").joinpath("static").iterdir()}
    shell = Template(contents.pop("shell.html").decode())
    for reader in get_args(Reader):
        text = (part.partition(" -->") for part in contents[f"{reader}.html"].decode().split("<!-- ")[1:])
        parts = {name: content.removeprefix("\n").removesuffix("\n") for name, _, content in text}
        contents[f"{reader}.html"] = shell.substitute(_NO_PARTS | parts, reader=reader).encode()
    return MappingProxyType({name: _asset(name, content) for name, content in contents.items()})


@cache
def _swagger(name: str) -> Asset:
    return _asset(name, files("fastapi_offline").joinpath("static", name).read_bytes())


def asset_named(name: str) -> Asset | None:
    """Return a file, ours or Swagger UI's; None for a name that none has."""
    return _swagger(name) if name in SWAGGER else assets().get(name)


_NO_PARTS = {"note": "", "about": "", "after": ""}
"""Parts of `shell.html` that not every page has."""


def _asset(name: str, content: bytes) -> Asset:
    return Asset(content, _MEDIA_TYPES[PurePath(name).suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def add_page(app: FastAPI, reader: Reader) -> None:
    """Add the page for `reader` at `/`, and its files below `/page/`."""
    page = assets()[f"{reader}.html"]

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def show(request: Request) -> Response:
        return page.response(request)

    @app.head(FOLDER + "{name}", include_in_schema=False)
    @app.get(FOLDER + "{name}", include_in_schema=False)
    async def file(name: str, request: Request) -> Response:
        asset = asset_named(name)
        if asset is None or name.endswith(".html"):
            raise Problem(ProblemType.NOT_FOUND, f"the page has no file {name!r}")
        return asset.response(request)


def add_documentation(app: FastAPI) -> None:
    """Add Swagger UI over the service's own OpenAPI document."""

    @app.get("/docs", include_in_schema=False)
    async def documentation(request: Request) -> Response:
        return assets()["docs.html"].response(request, **{"Content-Security-Policy": _POLICY + _OF_SWAGGER})
