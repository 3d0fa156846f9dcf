"""The notebooks' controls where they are used: in JupyterLab, by keyboard, with a kernel behind them."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import ROOT, Shot

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser
pytest.importorskip("jupyterlab", reason="needs jupyterlab, of the notebooks extra")
pytest.importorskip("ipywidgets", reason="needs ipywidgets, of the notebooks extra")
nbformat = pytest.importorskip("nbformat", reason="needs nbformat, of the test extra")
api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the test extra")

START = 120.0
"""Seconds until the server answers, or a notebook has run: one takes 10 on an idle machine, tests may share 2 cores."""
CONTROLS = """\
from k3lab.ui import widgets
from tests.analysis.timeline.made import chain
browser = widgets.TimelineBrowser(chain())
browser"""
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},  # every cell is in the page, seen or not
}

Opened = Callable[[str], "Page"]


@dataclass(frozen=True)
class Server:
    """A JupyterLab that serves a folder."""

    port: int
    token: str

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}?token={self.token}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests here, on copies of notebooks; it and its kernels end with them."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copy(ROOT / "notebooks" / "01_formats.ipynb", folder)
    cells = [nbformat.v4.new_code_cell(CONTROLS)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernelspec()), folder / "controls.ipynb")
    with serving(folder) as found:
        yield found


def kernelspec() -> dict[str, object]:
    return {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """`jupyter lab` on `folder`, with settings and files of its own beside it."""
    found = Server(free_port(), secrets.token_hex(16))
    own = folder.parent / f"{folder.name}-own"
    for name, settings in SETTINGS.items():
        path = own / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings))
    homes = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime"}
    homes |= {"IPYTHONDIR": "ipython", "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "spaces"}
    environment = os.environ | {name: str(own / place) for name, place in homes.items()}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    log = own / "server.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={found.port}"),
                *("--ServerApp.port_retries=0", f"--IdentityProvider.token={found.token}"),
                f"--ServerApp.root_dir={folder}",
            ],
            cwd=folder,
            env=environment,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_for_answer(found, process, log)
        yield found
    finally:
        stop(process)


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def wait_for_answer(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START
    while True:
        try:
            with urllib.request.urlopen(server.url("api/status"), timeout=5):
                return
        except (urllib.error.URLError, OSError):
            over = process.poll() is not None or time.monotonic() > end
            assert not over, f"jupyter lab did not answer:\n{log.read_text(errors='replace')[-2000:]}"
            time.sleep(0.2)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Asked to end, the server ends its kernels first; if it does not, it is killed, and they notice."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def ran(server: Server, page: Page) -> Opened:
    """`ran(name)` opens a notebook and runs all of it: the page, when the kernel has nothing left to do."""

    def opened(name: str) -> Page:
        page.goto(
            server.url(f"lab/workspaces/{Path(name).stem}/tree/{name}"), timeout=START * 1000
        )  # nothing else is open
        cells = page.locator(".jp-Notebook .jp-CodeCell")
        cells.first.wait_for(timeout=START * 1000)
        page.get_by_text("(ipykernel) | Idle").wait_for(timeout=START * 1000)
        run_all(page)
        page.wait_for_function(ALL_RAN, timeout=START * 1000)
        page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").wait_for(timeout=START * 1000)
        return page

    return opened


def run_all(page: Page) -> None:
    """Choose it in the menu, again if need be: a kernel that is still being connected to drops what it is asked."""
    end = time.monotonic() + START
    while not page.evaluate(BEGUN):
        assert time.monotonic() < end, "no cell began to run"
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        with suppress(api.TimeoutError):
            page.wait_for_function(BEGUN, timeout=5000)


BEGUN = r"""() => [...document.querySelectorAll(".jp-Notebook .jp-CodeCell .jp-InputPrompt")].some(
  (prompt) => /\[[*\d]/.test(prompt.textContent))"""
ALL_RAN = r"""() => {
  const asked = [...document.querySelectorAll(".jp-Notebook .jp-CodeCell .jp-InputPrompt")];
  return asked.length && asked.every((prompt) => /\[\d+\]/.test(prompt.textContent));
}"""
"""Every code cell has a number: none is left, none is running."""
FAILED = ".jp-Notebook [data-mime-type='application/vnd.jupyter.error']"


def shown(page: Page) -> Locator:
    """The output that holds a control's view: the last of the cell with widgets."""
    return page.locator(".jp-OutputArea:has(.jupyter-widgets) > .jp-OutputArea-child").last


def focused(page: Page) -> str:
    """What has the keyboard: its tag and its role."""
    text: str = page.evaluate("() => `${document.activeElement.tagName} ${document.activeElement.role}`")
    return text


def test_a_slider_moved_by_keyboard_changes_the_view(ran: Opened, shot: Shot):
    page = ran("controls.ipynb")
    assert page.locator(FAILED).count() == 0
    view, image = shown(page), shown(page).locator("img")
    picture, table = image.get_attribute("src"), view.inner_text()
    assert "CTA 0 (" in table and picture and picture.startswith("data:image/png")
    before = view.screenshot()

    page.locator(".widget-dropdown select").first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert focused(page) == "DIV slider"
    page.keyboard.press("ArrowRight")
    view.get_by_text("CTA 1 (").wait_for()
    assert view.screenshot() != before and image.get_attribute("src") == picture  # the table changed, not the picture
    shot(page, "lab-slider")

    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    for key in ("Space", "ArrowDown", "Enter"):  # opens the list, goes on in it, takes what it stands on
        page.keyboard.press(key)
    api.expect(image).not_to_have_attribute("src", picture)  # each update makes the output's elements anew
    shot(page, "lab-picture")


def test_the_lesson_on_formats(ran: Opened, shot: Shot):
    page = ran("01_formats.ipynb")
    assert page.locator(FAILED).count() == 0
    assert page.locator(".jp-Notebook .jp-OutputArea img").count() >= 7
    view = shown(page)
    picture = view.locator("img").get_attribute("src")
    view.scroll_into_view_if_needed()
    number = page.locator(".widget-text input").first
    number.focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("2.5")
    page.keyboard.press("Enter")
    view.get_by_text("a tie, to the even code").first.wait_for()
    assert view.locator("img").get_attribute("src") != picture
    shot(page, "lab-formats")


def test_a_server_that_does_not_start_says_why(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    (tmp_path / "log").write_text("no such port")
    with pytest.raises(AssertionError, match="did not answer:\\s*no such port"):
        wait_for_answer(Server(free_port(), "x"), process, tmp_path / "log")
