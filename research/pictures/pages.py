"""The pictures of both pages, of a service of made records, in a real browser (Chromium)."""

import csv
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, FloatRect, Page, ViewportSize

from dpserve.accounting.budgets import Budget
from dpserve.client import Client
from dpserve.configuration import environment_without_settings
from dpserve.local_services import StartedService, start_service
from research.pictures.browser import check_browser, open_browser

LINEAGE, RECORDS = "patients", 20_000
EPSILON, DELTA = 1.0, 1e-6
OUTCOMES = ("well", "observe", "admit")
CLIENTS = {"clinic": (2.0, 240), "insurer": (1.0, 90), "registry": (3.0, 12), "student": (0.5, 0)}
"""Each client's epsilon, and how many rows it asks."""
SIZE: ViewportSize = {"width": 1100, "height": 860}
TIMEOUT_MS = 60_000


def draw_pages(client_page: Path, owner_page: Path) -> None:
    """Train a model of made records, serve it, ask, and take a picture of each page. Raises FileNotFoundError."""
    check_browser()  # before a model is trained for it
    with tempfile.TemporaryDirectory(prefix="dpserve-pictures-") as temporary:
        folder = Path(temporary)
        options = ["--epsilon", "3", "--delta", str(DELTA), "--admin-port", "0"]
        with start_service(_trained(folder), folder, options) as service:
            rows = _rows(np.random.default_rng(7), max(count for _, count in CLIENTS.values()))
            # Before the browser, whose event loop lets no other run.
            keys = {name: _client(service, name, rows) for name in CLIENTS}
            with open_browser() as browser:
                with _opened(browser, service.address, keys["clinic"]) as page:
                    _ask(page)
                    page.screenshot(path=client_page, full_page=True, clip=_top(page, "#answers"))
                address, key = _owner(service)
                with _opened(browser, address, key) as page:
                    page.locator("#clients-body tbody tr").nth(len(CLIENTS) - 1).wait_for()
                    page.screenshot(path=owner_page, full_page=True, clip=_top(page, "#clients-body"))


def _top(page: Page, last: str) -> FloatRect:
    """Return the page's part down to the end of an element."""
    page.evaluate("window.scrollTo(0, 0)")
    box = page.locator(last).bounding_box()
    assert box is not None
    return {"x": 0, "y": 0, "width": SIZE["width"], "height": box["y"] + box["height"] + 24}


@contextmanager
def _opened(browser: Browser, address: str, key: str) -> Iterator[Page]:
    """Sign in."""
    page = browser.new_page(viewport=SIZE, device_scale_factor=1)
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(address)
    page.fill("#key", key)
    page.keyboard.press("Enter")
    yield page
    page.close()


def _ask(page: Page) -> None:
    """Ask about one row of the model, which is paid for."""
    page.locator("#standing-0").wait_for()
    for name, value in (("age", "71"), ("pressure", "148")):
        page.get_by_role("textbox", name=name, exact=True).fill(value)
    page.get_by_role("button", name="Ask", exact=True).click()
    page.locator("#answers .bars").wait_for()


def _rows(generator: np.random.Generator, count: int) -> np.ndarray:
    age = generator.uniform(18, 95, count)
    pressure = np.clip(generator.normal(130, 20, count), 60, 220)
    return np.column_stack([age, pressure]).round(1)


def _trained(folder: Path) -> Path:
    """Write made records, in which age and pressure decide with chance, and train a model on them."""
    generator = np.random.default_rng(1)
    rows = _rows(generator, RECORDS)
    risk = (rows[:, 0] - 60) / 8 + (rows[:, 1] - 130) / 12 + generator.logistic(size=RECORDS)
    with (folder / "patients.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "pressure", "outcome"])
        for row, outcome in zip(rows.tolist(), np.searchsorted([-1.5, 1.5], risk).tolist(), strict=True):
            writer.writerow([*row, OUTCOMES[outcome]])
    words = ["train", "--data", "patients.csv", "--lineage", LINEAGE, "--label", "outcome"]
    words += ["--classes", ",".join(OUTCOMES), "--bounds", "age=18:95", "--bounds", "pressure=60:220"]
    words += ["--epsilon", str(EPSILON), "--delta", str(DELTA), "--n", str(RECORDS), "--out", "triage"]
    words += ["--prediction-sets", "all"]
    environment = environment_without_settings() | {"DPSERVE_HOME": str(folder)}
    subprocess.run(  # noqa: S603 - the project's own command
        [sys.executable, "-m", "dpserve", *words], cwd=folder, env=environment, check=True, capture_output=True
    )
    return folder / "triage"


def _client(service: StartedService, name: str, rows: np.ndarray) -> str:
    """Add a client, which asks; return its key."""
    epsilon, count = CLIENTS[name]
    key = service.add_client(LINEAGE, name, Budget.from_epsilon_delta(epsilon, DELTA, "gaussian"))
    if count:
        with Client(service.address, key) as client:
            client.predict(rows[:count])
    return key


def _owner(service: StartedService) -> tuple[str, str]:
    """Return the owner's address and key, from what the service printed."""
    found = re.match(r"(\S+), its key is in (.+)", service.owner)
    if found is None:
        raise ValueError(f"the service said nothing of the owner's key: {service.owner!r}")
    return found[1], Path(found[2]).read_text("utf-8").strip()
