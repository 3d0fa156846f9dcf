"""A headless Chromium for tests of pages: `browser`, `page`, `visit` for files, and `shot` for screenshots.

The Chromium is the system's (Debian: `apt-get install chromium`), never one that playwright downloads. Where there is
none the tests are skipped and say so. K3LAB_CHROMIUM names another one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"
"""Kept after a run, to look at; not in git."""
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
DESKTOP = {"width": 1280, "height": 900}
PATIENCE = 15_000  # milliseconds until an action or a wait fails: one of 2 busy cores may take several seconds

PHONE = {"width": 390, "height": 844}

Shot = Callable[..., Path]
Visit = Callable[..., "Page"]


def chromium() -> str | None:
    """The Chromium to drive, as a path; None where there is none."""
    named = os.environ.get("K3LAB_CHROMIUM")
    found = (shutil.which(name) for name in ((named,) if named else NAMES))
    return next((path for path in found if path), None)


@pytest.fixture(scope="module")  # no longer: while it lives, asyncio.run of other tests would find a running loop
def browser() -> Iterator[Browser]:
    """The running browser of this file's tests."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: pip install -c constraints.txt playwright"
    )
    path = chromium()
    if path is None:
        pytest.skip(f"needs Chromium: none of {', '.join(NAMES)} on the PATH (apt-get install chromium)")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=["--disable-dev-shm-usage"])
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page in a context of its own: light, 1280 x 900 pixels."""
    context = browser.new_context(viewport=DESKTOP, color_scheme="light")
    context.set_default_timeout(PATIENCE)
    yield context.new_page()
    context.close()


@pytest.fixture
def shot() -> Shot:
    """`shot(page, "name")` keeps a picture in build/screenshots/; further arguments are those of `page.screenshot`."""

    def take(page: Page, name: str, **how: Any) -> Path:
        path = SCREENSHOTS / f"{name}.png"
        page.screenshot(path=path, **how)
        return path

    return take


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """`visit(path, scheme="dark", size=PHONE)` opens a file; further arguments are those of `browser.new_context`.

    At the end, the pages may have complained of nothing, and asked for nothing but files.
    """
    contexts: list[Any] = []
    faults: list[str] = []

    def opened(path: Path, scheme: str = "light", size: dict[str, int] = DESKTOP, **how: Any) -> Page:
        contexts.append(browser.new_context(viewport=size, color_scheme=scheme, **how))
        contexts[-1].set_default_timeout(PATIENCE)
        page = contexts[-1].new_page()
        page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda asked: None if _own(asked.url) else faults.append(f"asked for {asked.url[:100]}"))
        page.goto(path.absolute().as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not faults


def _own(address: str) -> bool:
    return address.startswith(("file:", "data:"))


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pages at mini geometry: k1/ (report and timeline), k2a/ (report that changed), index.html."""
    import k3lab
    from k3lab.analysis.html import index
    from k3lab.analysis.timeline import run_timeline
    from k3lab.files import write_text

    folder = tmp_path_factory.mktemp("pages")
    k1, k2a = k3lab.make_case("k1", geometry="mini"), k3lab.make_case("k2a", geometry="mini", ranks=2)
    reports = {"k1": k3lab.make_report("k1", k1), "k2a": k3lab.make_report("k2a", k2a, budget=False, spread=False)}
    other = k3lab.make_case("k2a", geometry="mini", ranks=2, seed=1)
    k3lab.make_report("k2a", other, budget=False, spread=False).save(folder / "k2a")
    for name, report in reports.items():
        report.save(folder / name, timeline=run_timeline("k1", k1) if name == "k1" else None)
    write_text(folder / "index.html", index(reports))
    return folder
