"""The system's Chromium, for tests that open a page. It downloads no browser and knows no page."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str:
    """Path of the first Chromium there is. Without one, the test is skipped; under CI, which installs one, it fails."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        reason = f"no Chromium on the PATH under any of these names: {', '.join(NAMES)}"
        if os.environ.get("CI"):
            pytest.fail(f"{reason}; under CI it must be there", pytrace=False)
        pytest.skip(reason)
    return found


# One a module, not one a session: until Playwright stops, its event loop keeps other tests from running theirs.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = executable()
    with sync_playwright() as playwright:
        # Chromium's own sandbox can't start as root or in a container; the pages are ours.
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()
