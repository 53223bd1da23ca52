"""A browser for the status page, and a small cluster of real processes with traffic on it.

Collected by `make check-page` only; what has no browser fails there with the remedy.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from deploy.cluster import ClusterSpec, LocalCluster
from tests.browser.traffic import Traffic
from worker.models.synthetic import build_synthetic
from worker.models.synthetic_generator import build_tiny_generator

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_REMEDY = "no Chromium: install one (Debian: apt-get install --no-install-recommends chromium)"
# As in a container: no sandbox of its own as root, and nothing that calls home.
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if found is None:
        pytest.fail(_REMEDY)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=list(_ARGUMENTS))
        yield chromium
        chromium.close()


Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens pages that end with the test; what the console says is in `page.said`."""
    contexts: list[BrowserContext] = []

    def opened(url: str, *, width: int = 1280, height: int = 900, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`paced` takes about 15 ms (its worse variant 3); `tiny-chat` generates text."""
    root = tmp_path_factory.mktemp("models")
    build_synthetic(root, "paced", busy={"tiny-a": 5000, "tiny-b": 1000})
    build_tiny_generator(root)
    return root


@pytest.fixture
def cluster(tmp_path: Path, repository: Path) -> Iterator[LocalCluster]:
    """A control plane with its page, an encoder worker and a decode worker."""
    spec = ClusterSpec(
        workers=1,
        decode_threads=1,
        directory=tmp_path / "cluster",
        listen="127.0.0.1:0",
        page="127.0.0.1:0",
        repository=repository,
    )
    with LocalCluster(spec) as running:
        running.wait_ready(timeout_s=90)
        yield running


@pytest.fixture
def traffic(cluster: LocalCluster) -> Iterator[Traffic]:
    """Requests and generations that go on until the test ends."""
    with Traffic(cluster.address, requests="paced", generations="tiny-chat") as running:
        yield running
