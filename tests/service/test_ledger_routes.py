"""Quotes and receipts over HTTP."""

import pytest

from dpserve.mechanisms.label import Label

ROW, OTHER = [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]


def test_a_dry_run_spends_nothing_and_says_what_the_request_would_cost(service):
    http = service.http(service.add_client(rho=0.016))
    first = http.post("/predict?dry_run=true", json={"instances": [ROW, OTHER, ROW]}).json()["quote"]
    assert (first["rows"], first["new_rows"], first["free"]) == (3, 2, [False, False, True])
    assert first["cost"] == pytest.approx(2 * first["price_per_row"])
    assert first["admitted"]
    assert service.spent() == 0
    http.post("/predict", json={"instances": [ROW]})
    spent = service.spent()
    assert http.post("/predict?dry_run=true", json={"instances": [ROW]}).json()["quote"]["cost"] == 0
    dear = http.post("/predict?dry_run=true", json={"instances": [[x / 100] * 4 for x in range(20)]}).json()["quote"]
    assert (dear["admitted"], dear["refusal"], dear["scope"]) == (
        False,
        "urn:dpserve:problem:budget-exhausted",
        "client",
    )
    assert service.spent() == spent
    assert "predictions" not in first


@pytest.mark.parametrize("given", ["epsilon", "rho"])
def test_a_quote_says_by_how_much_the_account_that_a_person_reads_grows_whatever_others_spent(service, given):
    alice = service.http(service.add_client("alice", **{given: 1}))
    bob = service.http(service.add_client("bob"))
    rows, quoted = {"instances": [ROW, OTHER]}, []
    for instances in ([[0.5] * 4], [ROW, OTHER]):
        quoted.append(alice.post("/predict?dry_run=true", json=rows).json()["quote"])
        bob.post("/predict", json={"instances": instances})
    assert quoted[0] == quoted[1]
    for asked in (rows, {"instances": [ROW, [0.9] * 4]}):
        before = alice.get("/budget").json()
        quote = alice.post("/predict?dry_run=true", json=asked).json()["quote"]
        alice.post("/predict", json=asked)
        after = alice.get("/budget").json()
        assert before["shown_in"] == given
        grown = after["spent"][given] - before["spent"][given]
        assert quote["shown_cost"] == pytest.approx(grown, rel=1e-9)
        assert quote["shown_cost"] < after["limit"][given]


def test_a_quote_knows_no_step_of_what_the_account_never_pays_for(start, head):
    service = start(head, Label(0.5), accepts="any")
    quote = service.http(service.add_client(epsilon=1)).post("/predict?dry_run=true", json={"instances": [ROW]})
    quote = quote.json()["quote"]
    assert (quote["refusal"], quote["shown_cost"]) == ("urn:dpserve:problem:mechanism-not-accepted", None)


def test_a_dry_run_is_asked_for_in_one_way_and_validated_like_the_request(service):
    http = service.http(service.add_client())
    assert http.post("/predict?dry_run=perhaps", json={"instances": [ROW]}).status_code == 400
    assert http.post("/predict?dry_run=true", json={"instances": [[9, 9, 9, 9]]}).status_code == 422
    assert "quote" not in http.post("/predict?dry_run=false", json={"instances": [ROW]}).json()
    assert service.http().post("/predict?dry_run=true", json={"instances": [ROW]}).status_code == 401


def test_a_client_reads_its_own_receipts_page_by_page_and_nothing_of_what_others_ask(service):
    alice, bob = service.http(service.add_client("alice")), service.http(service.add_client("bob"))
    for place in range(5):
        for http in (alice, bob):
            http.post("/predict", json={"instances": [[place / 10] * 4]})
    first = alice.get("/budget/receipts?count=3").json()
    assert [receipt["id"] for receipt in first["receipts"]] == [1, 2, 3]
    rest = alice.get(f"/budget/receipts?count=3&after={first['next_after']}").json()
    assert [receipt["id"] for receipt in rest["receipts"]] == [4, 5]
    assert rest["next_after"] is None
    assert alice.get("/budget/receipts?count=5").json()["next_after"] is None
    assert rest["receipts"][0]["model_id"] == service.predictor.certificate.model_id
    assert len(rest["receipts"][0]["hash"]) == 64
    assert alice.get("/budget/receipts?count=0").status_code == 422
    assert service.http().get("/budget/receipts").status_code == 401
