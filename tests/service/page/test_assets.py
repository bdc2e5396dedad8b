"""The pages' files: what they are sent with, and what stands in them, without a browser."""

import re
from html.parser import HTMLParser

import pytest

from dpserve.service.http.authentication import LONGEST_CREDENTIAL
from dpserve.service.page.assets import HEADERS, SWAGGER, asset_named, assets


@pytest.fixture(scope="module")
def http(start_for_module, head):
    return start_for_module(head).http()


def test_the_page_is_sent_with_a_strict_policy(http):
    answer = http.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in str(policy)
    assert "http" not in str(policy)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_every_file_is_served_with_the_same_headers_and_once(http):
    for name in (*assets(), *SWAGGER):
        asset = asset_named(name)
        path = "/" if name == "client.html" else f"/page/{name}"
        answer = http.get(path)
        if name.endswith(".html") and name != "client.html":
            assert answer.status_code == 404
            continue
        assert answer.content == asset.content
        assert answer.headers["content-type"] == asset.media_type
        assert HEADERS.items() <= {key.title(): value for key, value in answer.headers.items()}.items()
        again = http.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304
        assert again.content == b""
        assert http.head(path).headers["content-length"] == str(len(asset.content))


@pytest.mark.parametrize("name", ["no-such.js", "client.html", "..%2f__init__.py", "assets.py", ""])
def test_nothing_else_is_served(http, name):
    answer = http.get(f"/page/{name}")
    assert answer.status_code == 404
    assert answer.json()["type"] == "urn:dpserve:problem:not-found"


class Inline(HTMLParser):
    """Collects what a policy without inline code would block, and what is loaded from where."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.loaded: list[str] = []
        self.unlabelled: set[str] = set()

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.inline += [f"{tag} {name}" for name in given if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)
        self.loaded += [given[name] for name in ("src", "href") if name in given]


@pytest.mark.parametrize("name", [name for name in assets() if name.endswith(".html")])
def test_a_page_has_no_inline_code_and_loads_its_own_files_only(name):
    found = Inline()
    found.feed(assets()[name].content.decode())
    assert found.inline == []
    assert found.loaded
    for address in found.loaded:
        if not address.startswith("#"):
            assert re.fullmatch(r"page/[a-z-]+\.(js|css|svg)", address)
            assert asset_named(address.removeprefix("page/"))


@pytest.mark.parametrize("name", [name for name in assets() if name.endswith((".js", ".css"))])
def test_no_script_makes_markup_of_text_or_reaches_elsewhere(name):
    source = assets()[name].content.decode()
    for forbidden in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "DOMParser",
    ):
        assert forbidden not in source
    for kept in ("localStorage", "sessionStorage", "document.cookie", "indexedDB", "caches"):
        assert kept not in source
    addresses = re.findall(r"https?://[^\"'\s)]+", source)
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|@font-face|url\(", source)


def test_the_client_may_sign_in_with_whatever_the_service_takes():
    """A provider's token is longer than any API key."""
    page = assets()["client.html"].content.decode()
    assert int(re.search(r'id="key"[^>]*maxlength="(\d+)"', page)[1]) == LONGEST_CREDENTIAL
