"""No page of another origin may ask, unless the owner names it."""

from dpserve.service.http.app import HttpOptions

from .test_http import ROW

BODY = {"instances": [ROW]}


def test_no_origin_may_ask_by_default(start, head):
    service = start(head)
    asks = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    http = service.http(service.add_client())
    for response in (
        http.options("/predict", headers=asks),
        http.get("/budget", headers=asks),
        http.get("/models", headers=asks),
    ):
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_an_origin_that_the_owner_names_may_ask(start, head):
    service = start(head, options=HttpOptions(origins=("https://app.example",)))
    http = service.http(service.add_client())
    for origin, allowed in (("https://app.example", "https://app.example"), ("https://other.example", None)):
        asks = {
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, x-request-id, inference-header-content-length",
        }
        before = http.options("/predict", headers=asks)
        assert (before.status_code == 200) == (allowed is not None)
        assert before.headers.get("access-control-allow-origin") == allowed
        answer = http.post("/predict", json=BODY, headers={"Origin": origin})
        assert answer.headers.get("access-control-allow-origin") == allowed
        assert "access-control-allow-credentials" not in answer.headers
