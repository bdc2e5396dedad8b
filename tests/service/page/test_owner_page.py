"""The owner's page in a real browser: accounts and models."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from dpserve.accounting.acts import ACTS, BudgetTerms
from dpserve.accounting.budgets import MEASURES, Budget
from dpserve.accounting.ledger import ReleaseRequest, key_digest, new_api_key
from dpserve.accounting.ledger.purchases import buy
from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.service.admin.app import AdminPort, admin_port
from dpserve.service.listener import bind, url_of
from dpserve.service.pay_once import PayOncePredictor
from dpserve.training.kinds.weights.train import release_weights
from dpserve.training.purchases import model_purchase

from .conftest import open_view, violations

KEY = "the-owner's-key-of-these-tests"


@pytest.fixture(scope="module")
def service(start_for_module, head):
    service = start_for_module(head)
    for name, rows in (("alice", 40), ("bob", 7), ("carol", 0)):
        http = service.http(service.add_client(name, rho=0.25))
        for row in range(rows):
            http.post("/predict", json={"instances": [[row / 100] * 4]})
    service.call(service.ledger.acting("owner").revoke(service.predictor.lineage, "bob"))
    return service


@contextmanager
def owners_page(service):
    """Give the address of the owner's page of a service."""
    listening = bind()
    admin = AdminPort(listening, key_digest(KEY))
    opened = admin_port(admin, service.models, service.ledger, service.metrics, service.counts)
    service.call(opened.__aenter__())
    yield url_of(listening)
    service.call(opened.__aexit__(None, None, None))
    listening.close()


@pytest.fixture(scope="module")
def url(service):
    with owners_page(service) as url:
        yield url


def sign_in(tab, url):
    tab.page.goto(url)
    tab.page.fill("#key", KEY)
    tab.page.keyboard.press("Enter")
    expect(tab.page.locator("#groups-body > *").first).to_be_attached()
    expect(tab.page.locator("#clients-body tbody tr").first).to_be_visible()
    return tab.page


def test_the_owner_sees_accounts_models_and_receipts(tab, url, service, head):
    tab.page.goto(url)
    assert violations(tab.page) == []
    tab.shot("owner-welcome")
    page = sign_in(tab, url)
    expect(page.locator("#lineages-body tbody tr")).to_have_count(1)
    expect(page.locator("#lineages-body tbody th")).to_contain_text(service.predictor.lineage)
    expect(page.locator("#clients-body tbody th")).to_have_text(["alice", "bob revoked", "carol"])
    (alice, _, carol) = page.locator("#clients-body tbody tr").all_inner_texts()
    for text, left, spent in ((alice, 9, "rho 0.2 of 0.25"), (carol, 49, "rho 0 of 0.25")):
        assert f"{head.certificate.name} {left} answers left" in text
        assert spent in text
    bars = page.locator("#clients-body .track-bar > i").evaluate_all("(bars) => bars.map((bar) => bar.style.width)")
    assert [round(float(width.rstrip("%"))) for width in bars] == [80, 14, 0]
    assert violations(page) == []
    tab.shot("owner")
    open_view(page, "Models")
    expect(page.locator("#models-body h2")).to_have_text(head.certificate.name)
    page.get_by_text("The whole certificate").click()
    assert json.loads(page.locator("#models-body pre").inner_text())["model_id"] == head.certificate.model_id
    assert violations(page) == []
    open_view(page, "Clients")

    page.get_by_role("button", name=service.predictor.lineage).click()
    page.get_by_role("button", name="Show its receipts").click()
    expect(page.locator("#act-body tbody tr")).to_have_count(10)
    expect(page.locator("#act-body tbody tr").first).to_contain_text("bob")
    page.get_by_role("button", name="Older").click()
    expect(page.locator("#act-body tbody tr").first).to_contain_text("alice")
    assert violations(page) == []
    page.get_by_role("button", name="Close").click()
    page.set_viewport_size({"width": 360, "height": 700})
    cut = "(frames) => frames.filter((frame) => frame.scrollWidth > frame.clientWidth).length"
    assert page.locator(".scrolling").evaluate_all(cut) == 0


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


def fill_act(page, **fields):
    """Fill the fields of the dialog's form, by their labels, and see what the act means."""
    dialog = page.get_by_role("dialog")
    for label, value in ({"Who you are": "Ada", "Why": "the pilot"} | fields).items():
        found = dialog.get_by_label(label.replace("_", " "))
        if found.evaluate("(node) => node.tagName") == "SELECT":
            found.select_option(value)
        else:
            found.fill(value)
    dialog.get_by_role("button", name="See what it means").click()
    expect(dialog.get_by_role("button", name="Do it")).to_be_visible()
    return dialog


def open_client(page, name):
    page.locator("#clients-body").get_by_role("button", name=name, exact=True).click()
    return page.get_by_role("dialog")


def test_a_client_is_added_with_the_keyboard_alone_and_its_key_is_shown_once(tab, url, service):
    page = sign_in(tab, url)

    def press(*keys):
        for key in keys:
            page.keyboard.press(key)

    page.get_by_role("button", name="Add client").focus()
    press("Enter")
    expect(page.locator("#act-title")).to_be_focused()
    press("Tab")
    page.keyboard.type("kate@example.org")
    press("Tab", "Tab")  # what the budget is stated as
    page.keyboard.type("1")
    for label, text in (("Who you are", "Ada"), ("Why", "the pilot")):
        field = page.get_by_role("dialog").get_by_label(label)
        while not field.evaluate("(node) => node === document.activeElement"):
            press("Tab")
        page.keyboard.type(text)
    press("Enter")
    doing = page.get_by_role("button", name="Do it")
    expect(doing).to_be_visible()
    while not doing.evaluate("(node) => node === document.activeElement"):
        press("Tab")
    press("Enter")
    shown = page.get_by_label("The API key")
    expect(shown).to_be_visible()
    key = shown.input_value()
    tab.shot("owner-new-key")
    assert service.http(key).get("/budget").json()["limit"]["epsilon"] == pytest.approx(1)
    press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.get_by_role("button", name="Add client")).to_be_focused()
    assert key not in page.content()
    assert page.evaluate("[...document.querySelectorAll('input')].every((one) => !one.value.startsWith('dp_'))")
    expect(page.locator("#clients-body tbody th").filter(has_text="kate@example.org")).to_have_count(1)


def test_a_budget_is_raised_after_a_look_at_what_it_means(tab, url, service):
    service.add_client("raised", rho=0.25)
    page = sign_in(tab, url)
    dialog = open_client(page, "raised")
    dialog.get_by_role("button", name="Set budget").click()
    fill_act(page, The_budget_as="rho", Amount="0.5")
    expect(dialog).to_contain_text("More may then be learnt about every record")
    (limit,) = [row for row in dialog.locator("tbody tr").all_inner_texts() if row.startswith("rho, in all")]
    assert limit.split("\t") == ["rho, in all", "0.25", "0.5"]
    for width, scheme in ((1280, "light"), (360, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        assert violations(page) == []
        tab.shot(f"owner-budget-{scheme}-{width}")
    account = service.call(service.ledger.client(service.predictor.lineage, "raised"))
    assert account.budget.limit == 25 * 10**10
    dialog.get_by_role("button", name="Do it").click()
    expect(dialog).to_be_hidden()
    account = service.call(service.ledger.client(service.predictor.lineage, "raised"))
    assert account.budget.limit == 50 * 10**10
    (act,) = service.call(service.ledger.acts(service.predictor.lineage))[-1:]
    assert (act.kind, act.by, act.why) == ("budget", "Ada", "the pilot")


def test_the_page_has_a_form_with_every_field_of_every_act(tab, url, service):
    lineage = service.predictor.lineage
    client, group = "frank", "team"
    service.add_client(client, rho=0.25)
    service.call(
        service.ledger.acting("owner").add_group(lineage, group, Budget.from_rho(0.3, 1e-6, "gaussian"), time=1.0)
    )
    page = sign_in(tab, url)
    dialog = page.get_by_role("dialog")
    accounts = {"client": ("clients", client), "group": ("groups", group), "lineage": ("lineages", lineage)}
    for act in ACTS:
        title = act.name.replace("-", " ").capitalize()
        scope = act.about[0]  # the others have the same form
        section, name = accounts[scope]
        open_view(page, "Groups" if section == "groups" else "Clients")
        if not act.opens:
            page.locator(f"#{section}-body").get_by_role("button", name=name, exact=True).click()
        page.get_by_role("button", name=title, exact=True).click()
        expect(dialog).to_contain_text(act.__doc__)
        fields = {each: field for each, field in act.model_fields.items() if act.opens or each not in act.about}
        if issubclass(act, BudgetTerms):
            offered = (
                dialog.get_by_label("The budget as")
                .locator("option")
                .evaluate_all("(all) => all.map((one) => one.value)")
            )
            assert offered == list(MEASURES)
            for measure in MEASURES:
                dialog.get_by_label("The budget as").select_option(measure)
                expect(dialog).to_contain_text(fields.pop(measure).description)
        for field in fields.values():
            expect(dialog).to_contain_text(field.description)
        for width, scheme in ((390, "dark"), (1400, "light")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            assert not page.evaluate(
                """async () => {
                    for (const _ of [1, 2, 3]) await new Promise(requestAnimationFrame);
                    return document.documentElement.scrollWidth > document.documentElement.clientWidth;
                }"""
            )
            if act.opens:  # these forms have fields of all sorts
                assert violations(page) == []
            tab.shot(f"owner-{act.name}-{scope}-{scheme}-{width}")
        page.get_by_role("button", name="Close").click()


def test_the_answers_of_a_form_become_the_fields_of_the_act(tab, url, service):
    lineage = service.predictor.lineage
    service.add_client("grace", rho=0.25)
    page = sign_in(tab, url)
    dialog = open_client(page, "grace")
    dialog.get_by_role("button", name="Add key").click()
    dialog.get_by_label("budget-read").check()
    fill_act(page, Expires_in_days="1").get_by_role("button", name="Do it").click()
    expect(page.get_by_label("The API key")).to_be_visible()
    page.get_by_role("button", name="I have kept it").click()
    keys = service.call(service.ledger.client(lineage, "grace")).api_keys
    first, second = sorted(keys, key=lambda key: key.scopes == ("budget-read",))
    assert (second.scopes, second.expires is None, first.expires) == (("budget-read",), False, None)
    open_client(page, "grace").get_by_role("button", name="Rotate key").click()
    fill_act(page, Key=second.id, Overlap_seconds="0").get_by_role("button", name="Do it").click()
    page.get_by_role("button", name="I have kept it").click()
    keys = service.call(service.ledger.client(lineage, "grace")).api_keys
    assert first.id in [key.id for key in keys]
    assert second.id not in [key.id for key in keys]


def test_a_client_is_revoked_and_what_is_cancelled_or_refused_is_not_done(tab, url, service):
    tab.expected.append("409")
    service.add_client("mallory", rho=0.25)
    page = sign_in(tab, url)
    dialog = open_client(page, "mallory")
    dialog.get_by_role("button", name="Revoke").click()
    fill_act(page).get_by_role("button", name="Cancel").click()
    assert not service.call(service.ledger.client(service.predictor.lineage, "mallory")).revoked
    open_client(page, "mallory").get_by_role("button", name="Set budget").click()
    dialog.get_by_label("Amount").fill("one")
    dialog.get_by_label("Who you are").fill("Ada")
    dialog.get_by_label("Why").fill("more")
    dialog.get_by_role("button", name="See what it means").click()
    expect(dialog.get_by_role("alert")).to_have_text("“one” is no number.")
    dialog.get_by_label("The budget as").select_option("rho")
    dialog.get_by_label("Amount").fill("1000")
    dialog.get_by_role("button", name="See what it means").click()
    expect(dialog.get_by_role("alert")).to_contain_text("which pays for every answer too")
    dialog.get_by_role("button", name="Close").click()
    open_client(page, "mallory").get_by_role("button", name="Revoke").click()
    fill_act(page).get_by_role("button", name="Do it").click()
    expect(page.locator("#clients-body tbody th").filter(has_text="mallory")).to_contain_text("revoked")
    assert service.call(service.ledger.client(service.predictor.lineage, "mallory")).revoked


def test_the_trail_is_downloaded(tab, url, service):
    page = sign_in(tab, url)
    page.locator("#lineages-body").get_by_role("button", name=service.predictor.lineage).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Download the audit trail").click()
    dialog.get_by_label("Who you are").fill("Ada")
    dialog.get_by_label("Why").fill("the yearly review")
    with page.expect_download() as downloading:
        dialog.get_by_role("button", name="Download", exact=True).click()
    rows = [json.loads(line) for line in downloading.value.path().read_text().splitlines()]
    assert downloading.value.suggested_filename == f"{service.predictor.lineage}-trail.jsonl"
    assert sum(row["kind"] == "receipt" for row in rows) >= 47
    (export,) = [row for row in rows if row.get("why") == "the yearly review"]
    assert (export["kind"], export["by"]) == ("export", "Ada")


def test_a_lineage_with_blocks_shows_what_each_spent_on_which_models(tab, url, service):
    """Each block has a budget of its own, and so have the records that lie in none with a name."""
    ledger, lineage = service.ledger, "sales"
    service.call(ledger.acting("owner").open_lineage(lineage, Budget.from_rho(0.5, 1e-6, "gaussian"), time=1.0))
    for block, rho in (("2026-09", 0.025), ("2026-10", 0.5)):
        service.call(
            ledger.acting("owner").open_block(lineage, block, Budget.from_rho(rho, 1e-6, "gaussian"), time=1.0)
        )
    cost = Cost((GaussianLoss(0.2),))
    for model, blocks in (("a" * 32, ("2026-09", "2026-10")), ("b" * 32, ("2026-10",))):
        request = ReleaseRequest(lineage, "", model, model.encode(), "class-sums", cost, 2.0, blocks=blocks)
        service.call(ledger.charge(request))
    page = sign_in(tab, url)
    page.get_by_text("Not served here:").click()
    row = page.locator("#lineages-body tr").filter(has_text="2 blocks, each with its budget")
    row.get_by_role("button", name=lineage, exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("spentrho 0 of 0.5")
    expect(dialog).to_contain_text("Set budget")
    dialog.get_by_role("button", name="Show its blocks").click()
    rows = dialog.locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("aaaaaaaa (class-sums): rho 0.02")
    expect(rows.nth(0)).to_contain_text("rho 0.02 of 0.025")
    expect(rows.nth(1)).to_contain_text("bbbbbbbb (class-sums): rho 0.02")
    expect(rows.nth(1)).to_contain_text("rho 0.04 of 0.5")
    assert violations(page) == []
    tab.shot("owner-blocks")


def test_only_a_spent_lineage_whose_answers_are_refused_is_an_alarm(start, tab, head):
    """A pay-once model takes up its lineage's budget and answers on; a metered one's answers are then refused."""
    once = release_weights(head, 10**11, "once", SystemRandomness(), None, 100)
    once = replace(once, certificate=once.certificate.model_copy(update={"name": "for-good"}))
    service = start(head, lineage_rho=0.0055, more=lambda ledger: [PayOncePredictor(once, ledger, largest_batch=50)])
    ledger, key = service.ledger, new_api_key()
    budget = Budget(10**11, "gaussian", 1e-6)
    service.call(ledger.acting("owner").open_lineage("once", budget, time=1.0))
    service.call(buy(ledger, [model_purchase(once.certificate)], by="a test"))
    service.call(ledger.acting("owner").add_client("once", "zoe", budget, key_digest(key), time=1.0))
    service.http(service.add_client("alice")).post("/predict", json={"instances": [[0.5] * 4]})
    with owners_page(service) as url:
        page = sign_in(tab, url)
        row = page.locator("#lineages-body tbody tr")
        expect(row.filter(has_text="once")).to_contain_text("as planned")
        expect(row.filter(has_text="once").locator(".alarm, .tag.bad")).to_have_count(0)
        expect(row.filter(has_text=service.predictor.lineage).locator(".alarm")).to_have_count(1)
        expect(row.filter(has_text=service.predictor.lineage)).to_contain_text("answers are refused")
        assert violations(page) == []
        tab.shot("owner-spent")

        # The clients of both are listed, or those of one; a client that is added is of the lineage that is chosen.
        names = page.locator("#clients-body tbody th")
        expect(names).to_have_text([f"alice can buy nothing{service.predictor.lineage}", "zoeonce"])
        page.get_by_label("Lineage", exact=True).select_option("once")
        expect(names).to_have_text(["zoe"])
        page.get_by_role("button", name="Add client").click()
        page.get_by_role("dialog").get_by_label("Client", exact=True).fill("yan")
        fill_act(page, The_budget_as="rho", Amount="0.1").get_by_role("button", name="Do it").click()
        page.get_by_role("button", name="I have kept it").click()
        page.get_by_label("Order").select_option("By name")
        expect(names).to_have_text(["yan", "zoe"])
    assert [each.client for each in service.call(ledger.clients("once"))] == ["yan", "zoe"]
