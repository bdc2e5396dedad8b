"""The owner's page with 3 and with 300 clients, at three widths, light and dark: nothing is cut off, all are found."""

import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache

import pytest
from playwright.sync_api import expect

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import key_digest, new_api_key
from dpserve.accounting.ledger.purchases import buy
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.service.metered import MeteredPredictor
from dpserve.service.pay_once import PayOncePredictor
from dpserve.training.exact.questions import NoiseKey
from dpserve.training.kinds.weights.train import release_weights
from dpserve.training.purchases import model_purchase
from tests.service.conftest import Starter

from .conftest import open_view, violations
from .test_owner_page import KEY, owners_page

DELTA = 1e-6
LONG = "readmissions-of-cardiology-within-thirty-days-2026"
"""A name as offices give them, longer than a phone is wide."""
WIDTHS = (390, 900, 1400)
CUT_OFF = """() => [...document.querySelectorAll("#account *")].filter((node) => {
  const apart = "svg, .scrolling, [hidden], thead, .document, .visually-hidden";
  if (node.closest(apart) !== null || !node.checkVisibility()) return false;
  const box = node.getBoundingClientRect();
  const cut = getComputedStyle(node).overflowX !== "visible" && node.scrollWidth > node.clientWidth + 1;
  return box.width > 0 && (box.right > innerWidth + 0.5 || box.left < -0.5 || (node.clientWidth > 0 && cut));
}).map((node) => `${node.tagName}.${node.className}: ${node.textContent.slice(0, 60)}`)"""
"""Elements that reach beyond the window, or whose content is cut; what may be scrolled has a shadow that says so."""


def named(head, name, lineage):
    certificate = head.certificate.model_copy(update={"name": name, "model_id": name * 2, "lineage": lineage})
    return replace(head, certificate=certificate, weights=-head.weights, noise_key=NoiseKey(bytes(32)))


@contextmanager
def served(starter, head, clients):
    """Give the address of the owner's page, of three models of two lineages and so many clients."""
    once = release_weights(head, 10**11, head.certificate.lineage, SystemRandomness(), None, 100)
    once = replace(once, certificate=once.certificate.model_copy(update={"name": "colours-for-good"}))

    def more(ledger):
        other = MeteredPredictor(named(head, LONG, LONG), Gaussian(10.0), ledger, largest_batch=50)
        return [PayOncePredictor(once, ledger, largest_batch=50), other]

    service = starter(head, more=more)
    ledger, lineage = service.ledger, service.predictor.lineage
    service.call(buy(ledger, [model_purchase(once.certificate)], by="a test"))
    for name in (LONG, "of-last-year"):
        service.call(
            ledger.acting("owner").open_lineage(name, Budget.from_epsilon_delta(3, DELTA, "gaussian"), time=time.time())
        )
    for month in range(1, 13):
        budget = Budget.from_epsilon_delta(month / 4, DELTA, "gaussian")
        service.call(ledger.acting("owner").open_block(LONG, f"2026-{month:02}", budget, time=time.time()))
    for number in range(clients):
        budget = Budget.from_epsilon_delta((0.05, 0.5, 1, 4)[number % 4], DELTA, "gaussian")
        name = f"{('ward', 'practice-of-general-medicine-in-the-old-town', 'registry')[number % 3]}-{number}"
        key = new_api_key()
        service.call(ledger.acting("owner").add_client(lineage, name, budget, key_digest(key), time=time.time()))
        if number % 4 == 3 and number < 120:
            http = service.http(key)
            instances = [[number / 400, row / 50, 0.5, 0.5] for row in range(20)]
            assert http.post("/models/colours/predict", json={"instances": instances}).status_code == 200
            if number % 8 == 3:
                assert http.post("/models/colours-for-good/predict", json={"instances": instances}).status_code == 200
        if number % 9 == 1:
            service.call(ledger.acting("owner").revoke(lineage, name))
    with owners_page(service) as url:
        yield url
    starter.stop()


@pytest.fixture(scope="module")
def urls(head, tmp_path_factory):
    """Return a function that gives the address of a page with so many clients."""
    with ExitStack() as stack:

        @cache
        def url(clients):
            return stack.enter_context(served(Starter(tmp_path_factory.mktemp("service")), head, clients))

        yield url


def sign_in(tab, url, clients):
    page = tab.page
    page.goto(url)
    page.fill("#key", KEY)
    page.keyboard.press("Enter")
    expect(page.locator("#clients-body tbody tr")).to_have_count(min(clients, 20))
    return page


def check_that_nothing_is_cut_off(page):
    assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    assert page.evaluate(CUT_OFF) == []


def looks(tab, name):
    """Show the page at three widths, light and dark: nothing is cut off in any, and axe minds nothing."""
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            tab.page.set_viewport_size({"width": width, "height": 900})
            tab.page.emulate_media(color_scheme=scheme)
            tab.shot(f"{name}-{width}-{scheme}")
            check_that_nothing_is_cut_off(tab.page)
            if width == WIDTHS[0]:
                assert violations(tab.page) == []
                first = tab.page.locator("#clients-body tbody tr").first
                assert not first.is_visible() or first.bounding_box()["y"] < 1000


@pytest.mark.parametrize("clients", [pytest.param(3, marks=pytest.mark.slow), 300])
def test_nothing_is_cut_off_and_each_of_twelve_blocks_has_a_bar(tab, urls, clients):
    page = sign_in(tab, urls(clients), clients)
    looks(tab, f"owner-{clients}")
    if clients == 300:
        return
    open_view(page, "Models")
    looks(tab, "owner-models")
    open_view(page, "Clients")
    page.get_by_role("button", name=LONG).click()
    page.get_by_role("button", name="Show its blocks").click()
    blocks = page.locator("#act-body tbody tr")
    expect(blocks).to_have_count(12)
    expect(blocks.locator(".spent-bar .track-bar")).to_have_count(12)
    expect(blocks.first.locator("td").first).to_have_text("epsilon 0 of 0.25 spent, 0.25 left")
    looks(tab, "owner-blocks")


def test_all_of_300_clients_can_be_unfolded_on_a_phone_are_there_after_a_refresh_and_are_found_by_name(open_tab, urls):
    tab = open_tab(viewport={"width": 390, "height": 900}, has_touch=True, is_mobile=True)
    tab.page.clock.install()
    page = sign_in(tab, urls(300), 300)
    rows = page.locator("#clients-body tbody tr")
    for shown in (20, 40, 80, 160):
        expect(page.locator("#clients-body")).to_contain_text(f"{shown} of 300 clients")
        page.get_by_role("button", name="More", exact=True).click()
        expect(rows).to_have_count(min(2 * shown, 300))
    expect(page.get_by_role("button", name="More", exact=True)).to_have_count(0)
    names = [each.split("\n")[0] for each in rows.locator("th").all_inner_texts()]
    assert len(set(names)) == 300
    check_that_nothing_is_cut_off(page)
    with page.expect_response(lambda answer: "/clients" in answer.url):
        page.clock.run_for(16_000)
    expect(rows).to_have_count(300)
    field = page.get_by_label("Find by name")
    field.fill("REGISTRY-29")
    field.press("9")
    expect(rows).to_have_count(1)
    expect(rows.locator("td").first).to_contain_text("epsilon")
    expect(field).to_be_focused()
    field.fill("old-town-100")
    expect(rows).to_have_count(1)
    expect(rows.locator("th")).to_contain_text("revoked")  # and not shown as one that may ask
    expect(rows.locator("td").nth(1)).to_have_text("–")
    field.fill("nobody")
    expect(page.locator("#clients-body")).to_contain_text("No client has this in its name.")
