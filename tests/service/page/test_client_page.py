"""The client's page in a real browser: sign in, look, ask, be refused; and what it must never keep."""

import contextlib
import csv
import hashlib
import io
import json
import os
import re
import subprocess
import time
from dataclasses import replace

import numpy as np
import pytest
from playwright.sync_api import expect

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import key_digest, new_api_key
from dpserve.accounting.picorho import to_rho
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.training.inputs.columns import NumberColumn, TimeColumn
from tests.service.people import head_on
from tests.service.test_models import predictor, renamed
from tests.service.test_prediction_sets import model_of

from .conftest import open_view, violations

ROW = "0.2, 0.4, 0.6, 0.8"
SOME = [[0.2, 0.4, 0.6, 0.8], [0.9, 0.1, 0.1, 0.1], [0.1, 0.9, 0.1, 0.1]]
PRICE = to_rho(Gaussian(10.0).cost.picorho)
"""Rho for a row."""


@pytest.fixture(scope="module")
def service(start_for_module, head):
    return start_for_module(head)


@pytest.fixture
def key(service, request):
    """The key of a client of this test's own."""
    return service.add_client(client_of(request))


def client_of(request):
    return "c" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]


def paste(page, text, button="See the price"):
    page.get_by_role("radio", name="Paste").check()
    page.fill("#pasted", text)
    page.get_by_role("button", name=button, exact=True).click()


def lines(rows):
    return "\n".join(",".join(map(str, row)) for row in rows)


def longest_paragraph(page):
    """Return the most words of a paragraph that is shown."""
    return max(len(text.split()) for text in page.locator("main p:visible").all_inner_texts())


def budget_of(service, key):
    return service.http(key).get("/budget").json()


def test_signing_in_shows_the_account(service, tab, key, head):
    service.http(key).post("/predict", json={"instances": SOME})
    tab.page.goto(service.url)
    expect(tab.page.locator("#about h2")).to_have_text(head.certificate.name)
    assert violations(tab.page) == []
    assert longest_paragraph(tab.page) <= 25
    tab.shot("welcome")

    page = tab.sign_in(service.url, key)
    budget = budget_of(service, key)
    expect(page.locator("#standing-0")).to_have_text(f"About {budget['queries_left']} of 199 answers left")
    expect(page.locator(".refusal")).to_have_count(0)
    assert longest_paragraph(page) <= 25
    assert violations(page) == []
    tab.shot("ask")
    open_view(page, "Budget")
    expect(page.locator("#spent")).to_have_text("rho 0.015 of 1 spent, 0.985 left")
    meter = page.get_by_role("meter", name="Budget left")
    expect(meter).to_have_attribute("aria-valuenow", str(budget["remaining"]["rho"]))
    expect(meter.locator(".count")).to_have_text(str(budget["queries_left"]))
    believed, beats, epsilon = page.locator("#figures-body .big").all_inner_texts()
    assert 0.999 < budget["posterior_belief_bound"]["when_spent"] <= 0.9999
    assert believed == "99.99 %"
    expect(page.locator("#meaning-body")).to_have_text("For one record, at most, once all is spent.")
    notes = page.locator("#figures-body .note").all_inner_texts()
    settled = {note.partition(" if you")[0] for note in notes if "settled" in note}
    assert settled
    assert not settled & {believed, beats, epsilon}
    assert float(beats.split()[0]) == pytest.approx(100 * budget["membership_advantage_bound"]["when_spent"], abs=0.1)
    assert float(epsilon) == pytest.approx(budget["limit"]["epsilon"], rel=1e-3)
    for folded in ("words", "attacks", "analyses"):
        expect(page.locator(f"#{folded}-body")).to_be_hidden()
    for summary in page.locator("#budget summary").all():
        summary.click()
    assert max(len(said.split()) for said in page.locator("#words-body li").all_inner_texts()) <= 16
    expect(page.locator("#attacks-body tbody tr")).to_have_count(len(budget["explanation"]["attack_power"]))
    expect(page.locator("#analyses-body tbody tr")).to_have_count(5)
    tightest = page.locator("#analyses-body tr.tightest")
    expect(tightest).to_have_count(1)
    shown = float(tightest.locator("td.number").inner_text())
    assert budget["explanation"]["epsilon"] <= shown <= budget["explanation"]["epsilon"] * 1.001
    expect(page.locator("#receipts-body tbody tr")).to_have_count(1)
    expect(page.get_by_role("img", name="rho 0.015 in 1 charge.")).to_be_visible()
    assert violations(page) == []
    tab.shot("budget")


def amounts(text):
    """Return the numbers that a text says of an account, in order."""
    return [float(number) for number in re.findall(r"(?:epsilon|rho|of|spent,) ([\d.e-]+)", text)]


@pytest.mark.parametrize(("given", "other"), [("epsilon", "rho"), ("rho", "epsilon")])
def test_what_an_account_reads_adds_up_in_the_currency_that_it_was_given_in(service, tab, request, given, other):
    page = tab.sign_in(service.url, service.add_client(client_of(request), **{given: 3}))
    spent, left, steps, said = 0.0, 3.0, [], []
    for row in SOME[:2]:
        paste(page, lines([row]))
        quote = page.locator("#quote").inner_text()
        *_, adds, leaves = amounts(quote)
        assert adds + leaves == pytest.approx(left, rel=1e-3)
        page.locator("#pay").click()
        expect(page.locator("#paid")).to_contain_text(f"paid{given} {adds:.4g}")
        open_view(page, "Budget")
        expect(page.locator("#receipts-body tbody tr")).to_have_count(len(steps) + 1)
        meter = page.locator("#spent").inner_text()
        spent_then, limit, left = amounts(meter)
        assert limit == 3
        assert spent_then + left == pytest.approx(limit, rel=1e-3)
        assert spent_then - spent == pytest.approx(adds, rel=1e-2)
        spent = spent_then
        steps.append(adds)
        said += [quote, meter, page.locator("#receipts-body").inner_text(), page.locator("#spend-body").inner_text()]
        open_view(page, "Ask")
        said.append(page.locator("#ask").inner_text())
    # Of epsilon each answer adds less than the one before, of rho as much.
    assert steps[1] < steps[0] if given == "epsilon" else steps[1] == steps[0]
    assert [text for text in said if re.search(rf"\b{other}\b", text)] == []
    meter = page.get_by_role("meter", include_hidden=True)
    share = float(meter.get_attribute("aria-valuenow")) / float(meter.get_attribute("aria-valuemax"))
    assert share == pytest.approx(left / 3, rel=1e-3)
    if given == "epsilon":
        open_view(page, "Budget")
        for summary in page.locator("#budget summary").all()[:2]:
            summary.click()
        assert "rho" not in page.locator("body").inner_text()
        tab.shot("epsilon")


def test_an_address_opens_a_view_and_the_back_button_returns_to_the_last(service, tab, key):
    page = tab.sign_in(f"{service.url}#budget", key)
    budget = page.get_by_role("heading", name="Budget", exact=True)
    expect(budget).to_be_focused()
    expect(page.locator("#ask")).to_be_hidden()
    open_view(page, "For programs")
    expect(page.get_by_role("heading", name="For programs")).to_be_focused()
    expect(page.get_by_role("link", name="For programs")).to_have_attribute("aria-current", "page")
    page.go_back()
    expect(budget).to_be_focused()
    expect(page.locator("#programs")).to_be_hidden()
    page.keyboard.press("Shift+Tab")
    page.goto(f"{service.url}#main")  # as the link that skips to the content
    expect(budget).to_be_visible()


def test_one_sign_in_serves_every_model_of_the_key(start, open_tab, head):
    def more(ledger):
        return [predictor(renamed(head, "shapes"), ledger), predictor(renamed(head, "sounds", "other"), ledger)]

    service, key, budget = start(head, more=more), new_api_key(), Budget.from_rho(100.0, 1e-6, "gaussian")
    service.call(service.ledger.acting("owner").open_lineage("other", budget, time=time.time()))
    tab = open_tab()
    page = tab.sign_in(service.url, service.add_client())
    chooser = page.get_by_role("group", name="Model")
    expect(chooser.locator("label")).to_have_text([re.compile("^colours About 199"), re.compile("^shapes About 199")])
    chooser.get_by_role("radio", name="shapes").check()
    expect(page.locator("#ask-title")).to_have_text("Ask shapes")
    expect(chooser.get_by_role("radio", name="shapes")).to_be_focused()
    paste(page, ROW)
    page.click("#pay")
    expect(page.locator("#answers")).to_be_visible()
    expect(chooser.locator("label")).to_have_text([re.compile("^colours About 198"), re.compile("^shapes About 198")])
    expect(page.locator("#programs-body")).to_contain_text('model="shapes"')
    assert [path for method, path, _ in tab.asked if method == "POST"][-1].endswith("/models/shapes/predict")
    assert violations(page) == []

    # A key of a model that is not the default signs in to that.
    service.call(service.ledger.acting("owner").add_client("other", "bob", budget, key_digest(key), time=time.time()))
    page = open_tab().sign_in(service.url, key)
    expect(page.locator("#ask-title")).to_have_text("Ask sounds")
    expect(page.get_by_role("radio", name="sounds")).to_have_count(0)


def test_the_same_can_be_asked_from_a_program(service, tab, key):
    page = tab.sign_in(service.url, key)
    open_view(page, "For programs")
    assert violations(page) == []
    curl, python = page.locator("#programs-body pre").all_inner_texts()
    assert key not in curl + python
    done = subprocess.run(
        ["bash", "-c", f"{curl} --silent"], env=os.environ | {"KEY": key}, capture_output=True, text=True
    )
    answered = json.loads(done.stdout)
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(python, {"key": key})
    assert len(answered["predictions"]) == 1
    told_numbers = [float(number) for number in re.findall(r"[0-9.]+(?:e[+-][0-9]+)?", told.getvalue())]
    assert told_numbers == pytest.approx(answered["predictions"][0], abs=1e-6)
    for link in page.locator("#programs-body a").all():
        assert service.http().get("/" + link.get_attribute("href")).status_code == 200


def test_a_wrong_key_opens_nothing(service, tab):
    tab.expected.append("401")
    page = tab.page
    page.goto(service.url)
    for wrong, said in (
        ("dp_" + "x" * 43, "not good here"),
        ("", "Paste your API key"),
        ("two words", "not good here"),
        ("dp_ü", "plain characters"),
    ):
        page.fill("#key", wrong)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text(said)
        expect(page.locator("#key")).to_be_focused()
        expect(page.locator("#account")).to_be_hidden()
        if wrong.startswith("dp_x"):
            assert violations(page) == []
            tab.shot("wrong-key")


def test_a_revoked_key_ends_the_session(service, tab, key, request):
    tab.expected.append("401")
    page = tab.sign_in(service.url, key)
    service.call(service.ledger.acting("owner").revoke(service.predictor.lineage, client_of(request)))
    paste(page, ROW)
    expect(page.locator("#key-error")).to_contain_text("revoked")
    expect(page.locator("#account")).to_be_hidden()
    assert page.locator("#gauge-body").text_content() == ""


def test_one_row_is_priced_then_paid_then_answered(service, tab, key, request, head):
    page = tab.sign_in(service.url, key)
    for name, value in zip(head.certificate.feature_names, SOME[0], strict=True):
        page.get_by_role("textbox", name=name, exact=True).fill(str(value))
    page.get_by_role("button", name="See the price").click()
    expect(page.locator("#quote")).to_contain_text("addsrho 0.005")
    assert service.spent(client_of(request)) == 0
    tab.shot("price")

    page.get_by_role("button", name="Ask, and pay rho 0.005").click()
    expect(page.locator("#paid")).to_contain_text("paidrho 0.005")
    expect(page.locator("#standing-0")).to_have_text("About 198 of 199 answers left")
    expect(page.locator("#receipts-body tbody tr")).to_have_count(1)
    assert to_rho(service.spent(client_of(request))) == PRICE

    (stored,) = service.http(key).post("/predict", json={"instances": [SOME[0]]}).json()["predictions"]
    shown = [text.split()[0] for text in page.locator(".bars .value-text").all_inner_texts()]
    assert shown == [f"{p:.3f}" for p in stored]
    assert page.locator(".top-class").inner_text() == head.certificate.classes[stored.index(max(stored))]
    expect(page.locator("#status")).to_have_text(re.compile(r"Answer: \w+. Charged rho 0.005."))
    expect(page.locator(".bars .band")).to_have_count(3)
    assert violations(page) == []
    tab.shot("answer")

    page.get_by_role("button", name="See the price").click()
    page.get_by_role("button", name="Ask, at no cost").click()
    expect(page.locator("#paid")).to_contain_text("replayed at no cost1")
    assert to_rho(service.spent(client_of(request))) == PRICE


def test_a_csv_file_is_answered_in_batches_which_cost_no_more_than_was_said(service, tab, request, tmp_path):
    rows = [[index / 100, 0.25, 0.5, 1 - index / 100] for index in range(60)]
    file = tmp_path / "rows.csv"
    file.write_text("d,note,a,b,c\n" + "".join(f'{d},"x, y",{a},{b},{c}\n' for a, b, c, d in rows))
    key = service.add_client(client_of(request), epsilon=10)
    page = tab.sign_in(service.url, key)
    page.get_by_role("radio", name="CSV file").check()
    page.locator("#csv").set_input_files(file)
    page.get_by_role("button", name="See the price").click()
    expect(page.locator("#quote")).to_contain_text("rows60")
    most = page.locator("#quote").inner_text()
    (adds,) = amounts(re.findall("at most .*", most)[0])
    (leaves,) = amounts(re.findall("at least .*", most)[0])
    expect(page.locator("#csv-note")).to_have_text("rows.csv: 60 rows. Columns left out: note.")
    page.locator("#pay").click()
    expect(page.locator("#paid")).to_contain_text("for new rows60")
    spent, left = (budget_of(service, key)[part]["epsilon"] for part in ("spent", "remaining"))
    assert adds / 2 < spent < adds
    assert leaves < left
    assert to_rho(service.spent(client_of(request))) == pytest.approx(60 * PRICE)
    expect(page.locator("#answers tbody tr")).to_have_count(20)
    page.get_by_role("button", name="After").click()
    expect(page.locator("#answers tbody th").first).to_have_text("21")
    page.get_by_role("button", name="Show all classes of row 25").click()
    expect(page.locator(".answer h2")).to_contain_text("Row 25")
    assert violations(page) == []
    tab.shot("csv")

    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    saved = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    answers = []
    for batch in (rows[:50], rows[50:]):
        answers += service.http(key).post("/predict", json={"instances": batch}).json()["predictions"]
    assert [[float(line[name]) for name in ("red", "green", "blue")] for line in saved] == answers
    assert all(float(line["red low"]) <= float(line["red"]) <= float(line["red high"]) for line in saved)


BAD_ROWS = {
    "0.2, 0.4, 0.6": "Line 1 has 3 values; the model takes 4.",
    "0.2, 0.4, 0.6, 7": "Line 1, d is 7; it must be a number from 0 to 1.",
    "0.1,0.1,0.1,0.1\n0.1,0.1,,0.1": "Line 2, c is empty; it must be a number from 0 to 1.",
    "0.1,0.1,0.1,0.1\n0.1,0.1,<b>,0.1": "Line 2, c is <b>; it must be a number from 0 to 1.",
    "a,b,c\n1,1,1": "The first line names the columns, and d is not among them.",
    "a,b,c,d": "There is a line of column names, and no row below it.",
    'a,b,"c,d\n1,1,1,1': "line 1: a quotation mark is never closed",
    "  ": "There is no row here.",
}


def test_rows_are_read_as_people_write_them_and_what_cannot_be_asked_about_is_never_sent(service, tab, key):
    page = tab.sign_in(service.url, key)
    for text, said in BAD_ROWS.items():
        paste(page, text)
        expect(page.locator("#rows-error")).to_have_text(said)
    assert not [url for _, url, _ in tab.asked if "predict" in url]
    for text in (
        "0.2 0.4 0.6 0.8",
        "0.2;0.4;0.6;0.8",
        "0.2\t0.4\t0.6\t0.8",
        "0.2 , 0.4,0.6,  0.8 \r\n",
        "b,a,d,c\n0.4,0.2,0.8,0.6",
    ):
        with page.expect_request("**/predict?dry_run=true") as asked:
            paste(page, text)
        assert asked.value.post_data_json == {"instances": [SOME[0]]}
        expect(page.locator("#quote")).to_be_visible()
    # Values beyond the bounds are clipped on demand.
    paste(page, "0.2, 0.4, 0.6, 7")
    page.get_by_label("Clip to the declared bounds").check()
    with page.expect_request("**/predict?dry_run=true") as asked:
        page.get_by_role("button", name="See the price").click()
    assert asked.value.post_data_json == {"instances": [[0.2, 0.4, 0.6, 7]], "clip": True}
    page.locator("#pay").click()
    expect(page.locator(".answer h2")).to_be_visible()
    within = {"instances": [[0.2, 0.4, 0.6, 1.0]]}
    assert service.http(key).post("/predict", json=within).json()["receipt"]["charged_rows"] == 0


def test_a_csv_of_an_office_is_read_as_its_schema_says(start, tab, tmp_path):
    columns = (
        NumberColumn(name="Größe", minimum=0, maximum=3001, decimal=",", group="."),
        TimeColumn(
            name="Tag", kind="date", minimum="2020-01-01", maximum="2030-12-31", parts=("time",), pattern="%d.%m.%Y"
        ),
    )
    service = start(head_on(columns, [{"Größe": 1653.24 + row, "Tag": "2022-10-06"} for row in range(20)]))
    page = tab.sign_in(service.url, service.add_client("alice"))
    page.get_by_role("radio", name="CSV file").check()
    file = tmp_path / "office.csv"
    for line, said in (("16.53,24;06.10.2022", "Größe is 16.53,24"), ("1,5;31.02.2022", "Tag is 31.02.2022")):
        file.write_text(f"Tag;Größe\n{';'.join(reversed(line.split(';')))}\n", "latin-1")
        page.locator("#csv").set_input_files(file)
        page.get_by_role("button", name="See the price").click()
        expect(page.locator("#rows-error")).to_contain_text(said)
    file.write_text("Tag;Größe\n06.10.2022;1.653,24\n2022-10-07;54,5\n", "latin-1")
    page.locator("#csv").set_input_files(file)
    page.get_by_role("button", name="See the price").click()
    page.locator("#pay").click()
    expect(page.locator("#paid")).to_contain_text("for new rows2")
    # The example that is filled in is written as the column is, in a field and as a pasted row.
    for way, field in (("Fields", "#column-0"), ("Paste", "#pasted")):
        page.get_by_role("radio", name=way).check()
        page.get_by_role("button", name="Fill in an example").locator("visible=true").click()
        expect(page.locator(field)).to_have_value(re.compile("1500,5"))
        page.get_by_role("button", name="See the price").click()
        expect(page.locator("#quote")).to_contain_text("rows1")


def test_an_exhausted_budget_refuses_and_charges_nothing(service, tab, request):
    tab.expected.append("403")
    key = service.add_client(client_of(request), rho=2.5 * PRICE)
    page = tab.sign_in(service.url, key)
    paste(page, lines(SOME))
    expect(page.locator("#outcome .notice")).to_contain_text("it would be refused")
    tab.shot("would-be-refused")
    page.get_by_role("button", name="Ask all the same").click()
    refusal = page.locator("#outcome .refusal")
    expect(refusal).to_contain_text("Refused: the budget does not cover it")
    assert service.spent(client_of(request)) == 0
    refusal.get_by_text("As a program sees it").click()
    problem = json.loads(refusal.locator("pre").inner_text())
    assert problem["type"] == "urn:dpserve:problem:budget-exhausted"
    assert (problem["scope"], problem["cost"]) == ("client", pytest.approx(3 * PRICE))
    assert violations(page) == []
    tab.shot("refused")

    paste(page, lines(SOME[:2]))
    page.locator("#pay").click()
    expect(page.locator("#standing-0")).to_have_text("About 0 of 2 answers left")
    paste(page, lines(SOME[:1]))
    expect(page.get_by_role("button", name="Ask, at no cost")).to_be_visible()
    tab.shot("exhausted")


def test_the_block_that_limits_a_client_is_named(start, open_tab, head):
    certificate = head.certificate.model_copy(update={"blocks": ("2026-09", "2026-10")})
    lineage = certificate.lineage

    async def open_blocks(ledger):
        for block, answers in (("2026-09", 9.5), ("2026-10", 2.5)):
            await ledger.acting("owner").open_block(
                lineage, block, Budget.from_rho(answers * PRICE, 1e-6, "gaussian"), time=1.0
            )

    model = replace(head, certificate=certificate)
    service = start.start(lambda ledger: predictor(model, ledger), lineage, 100.0, "gaussian", before=open_blocks)
    poor, rich = service.add_client("poor", rho=1.5 * PRICE), service.add_client("rich")

    page = open_tab().sign_in(service.url, poor)
    expect(page.locator("#standing-0")).to_have_text("About 1 of 1 answer left")

    tab = open_tab()
    page = tab.sign_in(service.url, rich)
    assert budget_of(service, rich)["limiting_block"] == "2026-10"
    expect(page.locator("#standing-0")).to_have_text("About 2 answers left in the block 2026-10")
    tab.shot("limited-by-a-block")
    paste(page, lines(SOME[:2]))
    page.locator("#pay").click()
    expect(page.locator("#standing-0")).to_have_text("About 0 answers left in the block 2026-10")


def test_a_lost_answer_is_asked_for_again_and_charged_once(service, tab, key, request):
    tab.expected.append("ERR_FAILED")
    page = tab.sign_in(service.url, key)
    names = []

    def lose_the_first(route):
        names.append(route.request.headers["idempotency-key"])
        answer = route.fetch()
        if len(names) == 1:
            route.abort()
        else:
            route.fulfill(response=answer)

    page.route(re.compile("/predict$"), lose_the_first)
    paste(page, ROW)
    page.locator("#pay").click()
    expect(page.locator("#outcome .refusal")).to_contain_text("No answer")
    tab.shot("no-answer")
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator("#answers")).to_be_visible()
    assert len(names) == 2
    assert len(set(names)) == 1
    assert to_rho(service.spent(client_of(request))) == PRICE


def test_the_key_is_kept_nowhere_and_signing_out_empties_the_page(service, tab, key):
    page = tab.sign_in(service.url, key)
    paste(page, ROW)
    page.locator("#pay").click()
    expect(page.locator("#answers")).to_be_visible()
    open_view(page, "Budget")
    kept = page.evaluate(
        """async () => JSON.stringify([
          {...localStorage}, {...sessionStorage}, document.cookie, location.href, history.state, document.referrer,
          (await indexedDB.databases()), (await caches.keys()), window.name,
          performance.getEntries().map((entry) => entry.name),
          [...document.querySelectorAll("input, textarea")].map((one) => one.value),
          document.documentElement.outerHTML, Object.keys(globalThis).map((name) => String(globalThis[name])),
        ])"""
    )
    assert key not in kept
    assert page.context.cookies() == []
    assert page.context.storage_state() == {"cookies": [], "origins": []}
    assert page.evaluate("localStorage.length + sessionStorage.length") == 0
    for _, url, headers in tab.asked:
        assert url.startswith(service.url)
        assert key not in url
        assert [name for name, value in headers.items() if key in value] in ([], ["authorization"])
        assert "referer" not in headers
    page.reload()
    expect(page.locator("#sign-in")).to_be_visible()
    expect(page.locator("#account")).to_be_hidden()
    assert page.locator("#key").input_value() == ""
    page.go_back()
    expect(page.locator("#account")).to_be_hidden()
    tab.sign_in(service.url, key)
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("#key")).to_be_focused()
    bodies = page.locator("#account [id$='-body']")
    assert set(bodies.all_text_contents()) == {""}


def test_what_the_service_says_is_shown_as_text(service, tab, key):
    hostile = '<img src=x onerror="document.title=\'run\'"><script>document.title="run"</script>'

    def rewrite(route):
        model = route.fetch().json()
        changed = {"name": hostile, "classes": [hostile] * 3, "feature_names": [hostile] * 4, "assumptions": [hostile]}
        route.fulfill(json=model | changed)

    def reword(route):
        budget = route.fetch().json()
        budget["analysis"] = budget["explanation"]["analyses"][0]["method"] = budget["explanation"]["unit"] = hostile
        budget["status"], budget["raised"] = "unproven", {"posterior_belief_bound": 0.875}
        route.fulfill(json=budget)

    tab.page.route(re.compile("/models/"), rewrite)
    tab.page.route(re.compile("/budget$"), reword)
    page = tab.sign_in(service.url, key)
    paste(page, ROW)
    page.locator("#pay").click()
    expect(page.locator("#answers")).to_contain_text(hostile)
    for said in (hostile, "Unproven", "the limit was raised", "87.5 %"):
        expect(page.locator("#words-body")).to_contain_text(said, ignore_case=True)
    expect(page.locator("#analyses-body")).to_contain_text(hostile)
    expect(page.locator("#about h2")).to_have_text(hostile)
    assert page.locator("main img, main script").count() == 0
    assert page.title() == f"{hostile} · dpserve"


def test_the_browser_itself_refuses_markup_from_strings(service, tab):
    tab.expected.append("Content Security Policy|TrustedHTML|TrustedScript")
    tab.page.goto(service.url)
    refused = tab.page.evaluate("() => { try { document.body.innerHTML = '<p>'; } catch (e) { return e.name; } }")
    assert refused == "TypeError"
    tab.page.evaluate(
        """() => { const script = document.createElement("script");
        try { script.text = "document.title = 'run'"; document.body.append(script); } catch {} }"""
    )
    assert tab.page.title() != "run"


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_light_and_dark_follow_the_system_until_chosen(service, open_tab, key):
    tab = open_tab(color_scheme="dark")
    page = tab.sign_in(service.url, key)
    paste(page, ROW)
    page.locator("#pay").click()
    expect(page.locator("#answers")).to_be_visible()
    dark = background(page)
    assert violations(page) == []
    tab.shot("dark")
    page.get_by_role("radio", name="Light").check()
    light = background(page)
    page.get_by_role("radio", name="Dark").check()
    assert background(page) == dark
    page.get_by_role("radio", name="Auto").check()
    assert background(page) == dark
    page.emulate_media(color_scheme="light")
    assert background(page) == light != dark


def test_small_screens_never_scroll_sideways(service, open_tab, key):
    tab = open_tab(viewport={"width": 320, "height": 700}, has_touch=True, is_mobile=True)
    tab.page.goto(service.url)
    expect(tab.page.locator("#about h2")).to_be_visible()
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not tab.page.evaluate(wide)
    page = tab.sign_in(service.url, key)
    paste(page, lines(SOME))
    page.locator("#pay").click()
    expect(page.locator("#answers")).to_be_visible()
    for name in ("Budget", "For programs", "Ask"):
        open_view(page, name)
        for width in (320, 390):
            page.set_viewport_size({"width": width, "height": 844})
            # Waits for the new layout.
            expect(page.locator("html")).to_have_js_property("scrollWidth", width)
            tab.shot(f"small-{name}-{width}")
    assert violations(page) == []
    assert page.locator("#ask-body form").bounding_box()["y"] < 844 / 2
    assert page.evaluate("document.documentElement.scrollHeight") < 5094 / 2


def test_everything_can_be_done_from_the_keyboard(service, tab, key):
    page = tab.page
    page.goto(service.url)
    expect(page.locator("#about h2")).to_be_visible()

    def tab_to(selector, most=40):
        for _ in range(most):
            page.keyboard.press("Tab")
            focused = page.evaluate(
                """(selector) => {
                  const one = document.activeElement;
                  const marked = one.type === "radio" ? one.nextElementSibling : one;
                  const { outlineStyle, outlineWidth } = getComputedStyle(marked);
                  const seen = outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
                  return [one.matches(selector), seen, one.outerHTML.slice(0, 80)];
                }""",
                selector,
            )
            assert focused[1], f"no focus is to be seen on {focused[2]}"
            if focused[0]:
                return
        raise AssertionError(f"Tab does not reach {selector}")

    tab_to(".skip", most=1)
    tab_to("#key")
    page.keyboard.type(key)
    page.keyboard.press("Enter")
    expect(page.locator("#ask-title")).to_be_focused()
    tab_to("input[name=input]")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#pasted")).to_be_visible()
    tab_to("#pasted")
    page.keyboard.type(ROW)
    tab_to("button.primary")
    page.keyboard.press("Space")
    expect(page.locator("#pay")).to_be_visible()
    tab_to("#pay")
    page.keyboard.press("Enter")
    expect(page.locator("#answers")).to_be_visible()
    expect(page.locator("#outcome")).to_be_focused()
    tab_to("#band-note summary", most=5)
    page.keyboard.press("Enter")
    expect(page.locator("#band-note p")).to_be_visible()
    page.locator(".wordmark").click()
    tab_to("nav a[href='#budget']", most=2)
    page.keyboard.press("Enter")
    expect(page.locator("#budget-title")).to_be_focused()
    tab_to("#budget summary", most=5)
    page.keyboard.press("Enter")
    expect(page.locator("#words-body")).to_be_visible()


def test_receipts_are_paged_newest_first(service, tab, key):
    http = service.http(key)
    for place in range(23):
        http.post("/predict", json={"instances": [[place / 60] * 4]})
    page = tab.sign_in(service.url, key)
    open_view(page, "Budget")
    expect(page.locator("#receipts-body tbody tr")).to_have_count(10)
    expect(page.locator("#receipts-page")).to_have_text("1 to 10 of 23")
    ids = [int(text.replace(",", "")) for text in page.locator("#receipts-body tbody th").all_inner_texts()]
    assert ids == sorted(ids, reverse=True)
    page.get_by_role("button", name="Older").click()
    page.get_by_role("button", name="Older").click()
    expect(page.locator("#receipts-page")).to_have_text("21 to 23 of 23")
    expect(page.get_by_role("button", name="Older")).to_be_disabled()
    expect(page.get_by_role("img", name="in 23 charges")).to_be_visible()
    tab.shot("receipts")


def test_the_documentation_shows_every_operation_under_its_policy(tab, service):
    tab.page.goto(f"{service.url}/docs")
    paths = service.http().get("/openapi.json").json()["paths"]
    expect(tab.page.locator(".opblock")).to_have_count(sum(map(len, paths.values())))


def test_a_slider_chooses_the_coverage_of_prediction_sets(start, tab, tmp_path):
    model = model_of(tmp_path, "dpsgd", "all")
    service = start.release(model)
    page = tab.sign_in(service.url, service.add_client())
    sets = model.certificate.prediction_sets
    # Where a set's edge lies follows from the model's noise. That no row has two sets needs nine deviations of it.
    rows = np.array([[a / 50, a / 50] for a in range(51)])
    answers, _ = model.answers(rows)
    differ = (sets.sets_of(answers, 500) != sets.sets_of(answers, 900)).any(axis=1)
    row, answers = rows[differ][0].tolist(), answers[differ][:1]
    ruled_out = page.locator("#answers .ruled-out")
    paste(page, ", ".join(map(str, row)))
    page.click("#pay")
    expect(page.get_by_label("Coverage")).to_have_value("90")
    expect(ruled_out).to_have_count(int((~sets.sets_of(answers, 900)).sum()))
    page.get_by_label("Coverage").fill("50")
    expect(page.get_by_label("Coverage")).to_have_value("50")
    expect(ruled_out).to_have_count(int((~sets.sets_of(answers, 500)).sum()))
    assert violations(page) == []
    tab.shot("prediction-sets")
    spent = service.spent()
    page.get_by_label("Coverage").fill("99")
    expect(ruled_out).to_have_count(int((~sets.sets_of(answers, 990)).sum()))
    assert service.spent() == spent
