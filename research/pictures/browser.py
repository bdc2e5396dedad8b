"""A real browser without a window: Chromium, or one that is made of it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def check_browser() -> str:
    """Return the path of the first of BROWSERS on PATH. Raises FileNotFoundError where there is none."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise FileNotFoundError(f"there is no {BROWSERS[0]} on PATH to open the pages with (apt install chromium)")
    return found


@contextmanager
def open_browser(*arguments: str) -> Iterator[Browser]:
    """Give it, closed afterwards. arguments: more of Chromium's. Raises as `check_browser`."""
    found = check_browser()
    with sync_playwright() as playwright:
        # Chromium's sandbox refuses to run as root.
        as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=found, args=[*as_root, *arguments])
        try:
            yield browser
        finally:
            browser.close()
