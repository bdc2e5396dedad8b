"""The owner's page in a real browser: accounts, models, verdicts with their plots, and what is answered now."""

import base64
import json
import re

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from accounting.ledger import key_digest
from audit import presentation, region, reports
from service.admin import verdicts
from service.admin.server import AdminPort, admin_port
from service.listener import bind, url_of

KEY = "the-owner's-key-of-these-tests"
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture(scope="module")
def service(start_for_module, head):
    service = start_for_module(head)
    for name, rows in (("alice", 40), ("bob", 7), ("carol", 0)):
        http = service.http(service.add_client(name, rho=0.25))
        for row in range(rows):
            http.post("/predict", json={"instances": [[row / 100] * 4]})
    service.call(service.ledger.revoke(service.predictor.lineage, "bob"))
    return service


@pytest.fixture(scope="module")
def url(service, tmp_path_factory):
    folder = tmp_path_factory.mktemp("verdicts")
    keep_verdicts(folder)
    listening = bind()
    admin = AdminPort(listening, key_digest(KEY), folder, lambda: {"refuted": False, "looks": 3})
    opened = admin_port(admin, service.models, service.ledger, service.metrics, service.counts)
    service.call(opened.__aenter__())
    yield url_of(listening)
    service.call(opened.__aexit__(None, None, None))
    listening.close()


def keep_verdicts(folder):
    rates = np.union1d(np.linspace(0, 1, 65), np.geomspace(1e-4, 1, 65))
    attack = {
        "title": "membership-inference attack on colours (gaussian, proven, at gaussian:0.1)",
        "verdict": "not convicted: the best attack (likelihood ratio) has TPR - FPR = 0.041 [-0.02, 0.10]",
        "convicted": False,
        "inconclusive": False,
        "warnings": ["<b>members</b> and others were few"],
        "notes": ["16 shadow models"],
        "roc": {
            "false_positive_rates": rates.tolist(),
            "attacks": [
                {"attack": "likelihood ratio", "true_positive_rates": (rates**0.9).tolist()},
                {"attack": "threshold", "true_positive_rates": (rates**0.97).tolist()},
            ],
            "bound": np.minimum(1, rates**0.7).tolist(),
        },
    }
    points = [
        region.Point(noise, {"Clopper-Pearson": 0.6 / noise}, {"zcdp": 3 / noise, "exact": 2.4 / noise}, {}, False)
        for noise in (0.5, 1.0, 2.0, 4.0, 8.0)
    ]
    regions = presentation.of_region("Region of privacy of gaussian", points, 1e-6, {})
    refuted = {"title": "an audit of a claim", "verdict": "CONVICTED: epsilon >= 3.1", "convicted": True}
    picture = ("Scores", "Of both worlds.", base64.b64decode(DOT))
    verdicts.keep(folder, "audit-service", refuted, [picture], time=1_700_000_000.0)
    verdicts.keep(folder, "audit-region", json.loads(reports.as_json(regions)), [], time=1_700_000_100.0)
    verdicts.keep(folder, "attack", attack, [], time=1_700_000_200.0)


def sign_in(tab, url):
    tab.page.goto(url)
    tab.page.fill("#key", KEY)
    tab.page.keyboard.press("Enter")
    expect(tab.page.locator("#verdicts-body article")).to_have_count(4)
    expect(tab.page.locator("#throughput")).to_be_visible()
    return tab.page


def violations(page):
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [(one["id"], [node["target"] for node in one["nodes"]]) for one in found]


def test_the_owner_sees_accounts_models_and_verdicts(tab, url, service, head):
    tab.page.goto(url)
    assert violations(tab.page) == []
    tab.shot("owner-welcome")
    page = sign_in(tab, url)
    expect(page.locator("#lineages-body tbody tr")).to_have_count(1)
    expect(page.locator("#lineages-body tbody th")).to_contain_text(service.predictor.lineage)
    expect(page.locator("#clients-body tbody th")).to_have_text(["alice", "bob revoked", "carol"])
    (alice, _, carol) = page.locator("#clients-body tbody tr").all_inner_texts()
    assert "9" in alice.split("\t")
    assert "49" in carol.split("\t")
    expect(page.locator("#models-body h2")).to_have_text(head.certificate.name)
    page.get_by_text("The whole certificate").click()
    assert json.loads(page.locator("#models-body pre").inner_text())["model_id"] == head.certificate.model_id
    page.get_by_text("The whole certificate").click()
    assert violations(page) == []
    tab.shot("owner")


def test_verdicts_have_their_plots(tab, url):
    page = sign_in(tab, url)
    texts = page.locator("#verdicts-body article .tag").all_inner_texts()
    assert texts == ["not refuted", "not convicted", "not convicted", "convicted"]
    attack, regions, refuted = (page.locator("#verdicts-body article").nth(place) for place in (1, 2, 3))
    expect(attack.get_by_role("img", name=re.compile("^ROC of likelihood ratio"))).to_have_count(2)
    expect(attack).to_contain_text("<b>members</b> and others were few")
    expect(regions.get_by_role("img", name=re.compile("between epsilon 1.2 and 4.8"))).to_be_visible()
    image = refuted.get_by_role("img", name="Scores")
    expect(image).to_be_visible()
    assert image.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 1


def test_what_is_answered_is_shown_as_it_happens(tab, url, service):
    page = sign_in(tab, url)
    charged = page.locator("#throughput div").filter(has_text="rows charged").locator("dd")
    before = int(charged.inner_text())
    labels = page.locator("#throughput dt").all_inner_texts()
    assert [label.endswith(" in all") for label in labels] == [False] * 2 + [True] * 4
    expect(page.locator("#live .note").first).to_contain_text("in all: since the service started")
    http = service.http(service.add_client("dora"))
    http.post("/predict", json={"instances": [[0.31] * 4, [0.32] * 4]})
    expect(charged).to_have_text(str(before + 2))


def test_a_clients_key_or_a_wrong_one_opens_nothing(tab, url, service):
    tab.expected.append("401")
    page = tab.page
    page.goto(url)
    for wrong in (service.add_client("eve"), "x" * 30):
        page.fill("#key", wrong)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_have_text("This admin key is not good here.")
        expect(page.locator("#account")).to_be_hidden()
    tab.shot("owner-wrong-key")


def test_the_admin_key_is_kept_nowhere_and_forgotten(tab, url):
    page = sign_in(tab, url)
    kept = page.evaluate(
        """async () => JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href,
        (await indexedDB.databases()), document.documentElement.outerHTML,
        [...document.querySelectorAll("input")].map((one) => one.value)])"""
    )
    assert KEY not in kept
    assert page.context.storage_state() == {"cookies": [], "origins": []}
    assert all(one.startswith((url, "blob:")) for _, one, _ in tab.asked)
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("#account")).to_be_hidden()
    assert page.locator("#clients-body").text_content() == ""


def test_dark_and_small(open_tab, url):
    tab = open_tab(viewport={"width": 360, "height": 700}, color_scheme="dark", has_touch=True, is_mobile=True)
    page = sign_in(tab, url)
    assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    assert violations(page) == []
    tab.shot("owner-dark-small")


def test_clients_that_were_unfolded_stay_so_when_the_page_looks_again(tab, url, service):
    tab.page.route("**/clients?count=100*", lambda route: route.continue_(url=route.request.url.replace("=100", "=2")))
    tab.page.clock.install()
    page = sign_in(tab, url)
    names = page.locator("#clients-body tbody th")
    expect(names).to_have_text(["alice", "bob revoked"])
    page.get_by_role("button", name="More").click()
    expect(names.nth(2)).to_have_text("carol")
    service.add_client("zoe", rho=0.25)
    with page.expect_response("**/clients?*"):
        page.clock.fast_forward(16_000)
    expect(names.nth(2)).to_have_text("carol")
