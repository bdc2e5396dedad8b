"""A real browser before a real service. Whatever a page says in the console is a failure."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, BrowserContext, Page, expect

from research.pictures.browser import check_browser, open_browser

SCREENSHOTS = os.environ.get("DPSERVE_SCREENSHOTS")
"""Where pictures of every state are kept, to be looked at, if anywhere."""

WIDE = {"width": 1280, "height": 900}
FEW_PROCESSES = (
    "--in-process-gpu",
    "--renderer-process-limit=1",
    "--process-per-site",
    "--disable-site-isolation-trials",
)
"""Chromium as one process for all pages: to start one for each page took a third of the tests' time."""
TIMEOUT = 30_000
"""Milliseconds after which something that should show has not: nothing waits for so long that works."""

expect.set_options(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def browser():
    """Return headless Chromium, closed with the module: no event loop of its may run beside those of other tests."""
    try:
        check_browser()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with open_browser(*FEW_PROCESSES) as browser:
        yield browser


def open_view(page: Page, name: str) -> None:
    page.get_by_role("link", name=name, exact=True).click()


def violations(page: Page) -> list[tuple[str, list[str]]]:
    """Return what axe minds: each rule, and the elements that break it."""
    if not page.evaluate("'axe' in globalThis"):
        page.evaluate(AXE_SCRIPT)
    return page.evaluate(
        """async () => (await axe.run({ resultTypes: ["violations"] })).violations.map(
            (one) => [one.id, one.nodes.map((node) => node.target)])"""
    )


@dataclass
class Tab:
    """One page. said: what should not have been; asked: (method, URL, headers)."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    """Patterns of console messages that belong to the test: Chromium reports every status above 399."""

    def sign_in(self, url: str, key: str) -> Page:
        self.page.goto(url)
        self.page.fill("#key", key)
        self.page.keyboard.press("Enter")
        expect(self.page.locator("#account")).to_be_visible()
        expect(self.page.locator("#receipts-body > *").first).to_be_attached()
        return self.page

    def shot(self, name: str) -> None:
        """Keep a picture of the whole page, where pictures are kept."""
        if SCREENSHOTS:
            self.page.evaluate("window.scrollTo(0, 0)")
            self.page.screenshot(path=Path(SCREENSHOTS, f"{name}.png"), full_page=True)

    def unexpected(self) -> list[str]:
        return [line for line in self.said if not any(re.search(pattern, line) for pattern in self.expected)]


def new_context(browser: Browser, **options) -> BrowserContext:
    context = browser.new_context(**{"viewport": WIDE, "accept_downloads": True} | options)
    context.set_default_timeout(TIMEOUT)
    return context


@pytest.fixture(scope="module")
def shared_context(browser: Browser):
    """The context of all tabs of a module that ask for nothing of their own: it has read the page's files before."""
    with new_context(browser) as context:
        context.new_page()  # stays open: a window that closes with its last page would be made anew for each test
        yield context


@pytest.fixture
def open_tab(browser: Browser, shared_context: BrowserContext):
    """Return a function that opens a page; with arguments, those of `new_context`, in a context of its own."""
    tabs: list[Tab] = []

    def open_(**options) -> Tab:
        tab = Tab((new_context(browser, **options) if options else shared_context).new_page())
        tab.page.on("console", lambda message: tab.said.append(f"{message.type}: {message.text}"))
        tab.page.on("pageerror", lambda error: tab.said.append(f"error: {error}"))
        tab.page.on("request", lambda request: tab.asked.append((request.method, request.url, request.all_headers())))
        tabs.append(tab)
        return tab

    yield open_
    shown = [tab.page.locator("body").text_content() or "" for tab in tabs if tab.page.url.startswith("http")]
    for tab in tabs:
        tab.page.unroute_all(behavior="ignoreErrors")  # a page may be asking still
        tab.page.close()
        if tab.page.context is not shared_context:
            tab.page.context.close()
    assert [line for tab in tabs for line in tab.unexpected()] == []
    assert not any("[object " in text for text in shown)


@pytest.fixture
def tab(open_tab: Callable[..., Tab]) -> Tab:
    return open_tab()
