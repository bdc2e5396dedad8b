"""The client's page before other noise: of what is paid for once; of one class and its odds; of one class."""

import hashlib
import re
from types import SimpleNamespace

import numpy as np
import pytest
from playwright.sync_api import expect

from dpserve.accounting.losses import GaussianLoss
from dpserve.accounting.picorho import to_rho
from dpserve.mechanisms.label import Label
from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.mechanisms.selected_neuron import SelectedNeuron
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.dpsgd.choices import Choices
from dpserve.training.kinds.dpsgd.train import DpSgdRecipe, train_dpsgd
from dpserve.training.kinds.weights.train import release_weights

from .conftest import open_view, violations
from .test_client_page import lines, paste

PRICE = 10**11
LIKELIER = "async (given) => (await import('/page/answers.js')).mostTimesAsLikely(...given)"
ROWS = np.random.default_rng(2).uniform(size=(60, 4)).round(3).tolist()


@pytest.fixture(scope="module")
def model(head):
    return release_weights(head, PRICE, "colours-lineage", SystemRandomness(), None, 100)


@pytest.fixture(scope="module")
def service(start_for_module, model):
    return start_for_module.release(model)


@pytest.fixture
def client(request):
    return "c" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]


@pytest.fixture
def key(service, client):
    return service.add_client(client)


def rho(model):
    return to_rho(model.certificate.price.picorho)


def intervals(page):
    return [text.split("\n")[-1] for text in page.locator(".bars .value-text").all_inner_texts()]


def test_a_model_is_paid_for_once_and_says_so_before(service, tab, key, client, model):
    page, price = tab.sign_in(service.url, key), rho(model)
    about = page.locator("#about")
    expect(about).to_contain_text(model.certificate.canaries.summary.split(";")[0])
    expect(page.locator("#standing-0")).to_have_text(f"Unlimited answers for rho {price:.4g}")
    paste(page, lines(ROWS[:1]))
    expect(page.locator("#quote")).to_contain_text(f"costsrho {price:.4g}, once")
    assert service.spent(client) == 0
    assert violations(page) == []
    tab.shot("once-price")
    page.locator("#pay").click()
    expect(page.locator("#paid")).to_contain_text(f"paidrho {price:.4g}")
    expect(page.locator("#standing-0")).to_have_text("Paid: unlimited answers")
    expect(page.locator(".bars .band")).to_have_count(3)
    expect(page.locator("#band-note")).to_contain_text("drawn once, when the model was trained")
    shown = [float(text.split()[0]) for text in page.locator(".bars .value-text").all_inner_texts()]
    np.testing.assert_allclose(shown, model.values(np.array(ROWS[:1]))[0], atol=6e-4)
    assert violations(page) == []
    tab.shot("once-answer")

    # What is paid for is answered without a look at the price.
    paste(page, lines(ROWS[1:2]), "Ask")
    expect(page.locator("#status")).to_have_text(re.compile("^Answer: .* Charged nothing.$"))
    expect(page.locator("#paid")).to_be_hidden()
    open_view(page, "Budget")
    expect(page.get_by_role("meter")).to_contain_text("unlimited")
    expect(page.locator("#receipts-body tbody tr")).to_have_count(1)
    assert to_rho(service.spent(client)) == pytest.approx(price)


def test_many_batches_are_paid_for_once_in_the_currency_of_the_budget(service, tab, client, model):
    page = tab.sign_in(service.url, service.add_client(client, epsilon=3))
    expect(page.locator("#standing-0")).to_have_text("Unlimited answers for epsilon 1.995")
    paste(page, lines(ROWS))
    expect(page.locator("#quote")).to_contain_text("costsepsilon 1.995, onceleavesepsilon 1.005")
    page.get_by_role("button", name="Pay epsilon 1.995 once, and ask").click()
    expect(page.locator("#answers tbody tr")).to_have_count(20)
    expect(page.locator("#paid")).to_contain_text("paidepsilon 1.995")
    assert to_rho(service.spent(client)) == pytest.approx(rho(model))
    tab.shot("once-many")


def test_a_model_that_is_not_covered_is_refused_at_no_cost(service, open_tab, client, model):
    tab = open_tab(color_scheme="dark", viewport={"width": 390, "height": 800})
    tab.expected.append("403")
    page = tab.sign_in(service.url, service.add_client(client, rho=rho(model) * 0.5))
    paste(page, lines(ROWS[:1]))
    expect(page.locator("#outcome .notice")).to_contain_text("it would be refused")
    page.locator("#pay").click()
    expect(page.locator("#outcome .refusal")).to_contain_text("the budget does not cover it")
    assert service.spent(client) == 0
    assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    assert violations(page) == []
    tab.shot("once-refused-dark-small")


def test_of_one_class_and_its_odds_the_band_is_around_that_class(start, head, tab, client):
    service = start(head, SelectedNeuron(1.0, GaussianLoss(1.5)), accepts="any")
    page = tab.sign_in(service.url, service.add_client(client, rho=2.0, accepts="any"))
    paste(page, lines(ROWS[:1]))
    page.locator("#pay").click()
    expect(page.locator(".bars .band")).to_have_count(3)
    expect(page.locator("#band-note")).to_contain_text("One class was drawn")
    # Whatever was drawn: so little noise leaves no band of the class drawn as wide as from 0.000 to 1.000, and the
    # others share what is left beside it.
    common, *_ = [each for each in intervals(page) if intervals(page).count(each) == 2]
    assert common.removeprefix("band ").startswith("0.000–")
    assert len(set(intervals(page))) == 2
    assert violations(page) == []
    tab.shot("selected-neuron")


def test_a_label_has_no_band_and_the_page_says_how_far_it_can_be_trusted(start, head, tab, client):
    service = start(head, Label(0.5), accepts="any")
    page = tab.sign_in(service.url, service.add_client(client, accepts="any"))
    paste(page, lines(ROWS[:1]))
    page.locator("#pay").click()
    expect(page.locator("#band-note")).to_contain_text("no probability")
    expect(page.locator("#band-note")).to_contain_text("times as likely as the one drawn")
    expect(page.locator(".bars .band")).to_have_count(0)
    tab.shot("label")


def test_a_class_that_was_drawn_is_nearly_as_likely_as_any(service, tab):
    trials, label = 2000, Label(0.5)
    sensitivity = np.full(trials, 0.3)
    words = np.random.default_rng(1).integers(2**64, size=trials, dtype=np.uint64)
    tab.page.goto(service.url)
    for logits in ([0.0, 0.5], [0.0, 3.0, 3.0, 2.9], [0.0] * 9 + [4.0]):
        released = label.release(np.tile(logits, (trials, 1)), sensitivity, SimpleNamespace(words=lambda _: words))
        most = tab.page.evaluate(LIKELIER, [float(label.scale(sensitivity)[0]), len(logits)])
        times = np.exp(max(logits) - np.array(logits)[released.argmax(axis=1)])
        # The bound holds for 95 of 100 draws: a true share of exactly that falls so low with a chance under 1e-6.
        assert (times <= most).mean() >= 0.95 - 5.2 * np.sqrt(0.95 * 0.05 / trials)
        assert tab.page.evaluate(LIKELIER, [0.0, len(logits)]) == 1


def test_a_release_without_a_known_law_says_why_it_has_no_band(start_for_module, head, tab, client):
    X = np.random.default_rng(3).uniform(size=(30, 4))
    known = head.certificate
    declaration = Declaration(known.feature_names, (0.0,) * 4, (1.0,) * 4, known.classes)
    records = Records(X, X[:, :3].argmax(axis=1), declaration, ())
    choices = Choices(records_declared=30, sampling_rate=0.2, steps=5, learning_rate=0.5)
    recipe = DpSgdRecipe("steps", known.feature_map, choices, 10**11)
    service = start_for_module.release(train_dpsgd(records, recipe, known.lineage, SystemRandomness()))
    page = tab.sign_in(service.url, service.add_client(client))
    paste(page, lines(ROWS[:1]))
    page.locator("#pay").click()
    expect(page.locator("#band-note")).to_contain_text("every step of training had noise")
    expect(page.locator(".bars .band")).to_have_count(0)
