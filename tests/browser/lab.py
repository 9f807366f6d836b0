"""A real JupyterLab on loopback, and a page of headless Chromium that shows one of its notebooks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "out" / "browser"
BIN = Path(sys.executable).parent
BROWSER = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
           "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"]  # fmt: skip
STARTS_S, CELL_MS = 60.0, 25_000
NO_NEWS = '{"fetchNews": "false", "checkForUpdates": false}'


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def notebook(*cells: str) -> str:
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    made.metadata["language_info"] = {"name": "python"}
    return nbformat.writes(made)


@contextmanager
def served(folder: Path, program: str = "jupyter-lab") -> Iterator[str]:
    """The address of a JupyterLab (or a Notebook) on `folder`; it and all its kernels are gone afterwards."""
    port = free_port()
    own = folder / f".{program}"
    settings = own / "set" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(NO_NEWS)
    places = {
        "JUPYTER_CONFIG_DIR": "cfg", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "run", "IPYTHONDIR": "ipy",
        "JUPYTERLAB_SETTINGS_DIR": "set", "JUPYTERLAB_WORKSPACES_DIR": "ws",
    }  # fmt: skip
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}
    environment |= {name: str(own / place) for name, place in places.items()}
    command = [
        str(BIN / program), "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", "--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True",
        f"--ServerApp.root_dir={folder}",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", "--LabApp.extension_manager=readonly",
    ]  # fmt: skip
    with (own / "log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{port}"
        await_answer(address, server, own / "log")
        yield address
    finally:
        end(server)


def await_answer(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTS_S
    while True:
        try:
            with urllib.request.urlopen(f"{address}/api/status", timeout=2) as answer:
                json.load(answer)
                return
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Jupyter did not start:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.1)


def end(server: subprocess.Popen[bytes]) -> None:
    """Ask the server to end its kernels and itself; end its whole process group if it does not."""
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(timeout=15)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(timeout=10)


def open_notebook(page: Any, address: str, name: str, place: str = "lab/tree") -> None:
    """Show a notebook, its kernel idle; Notebook's `place` is ``notebooks``."""
    page.goto(f"{address}/{place}/{name}?reset")
    page.wait_for_selector(".jp-NotebookPanel .jp-Notebook .jp-Cell", timeout=CELL_MS)
    page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]', timeout=CELL_MS)
    with suppress(Exception):  # asked where the list of kernels came late
        page.click('.jp-Dialog button:has-text("Select")', timeout=1500)
        page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]', timeout=CELL_MS)


def run_all(page: Any) -> None:
    """Run every cell; an explorer is then on the page."""
    page.click("text=Run >> nth=0")
    page.click('li[data-command="runmenu:run-all"]')
    page.wait_for_selector(".cl-explorer .cl-canvas svg", timeout=CELL_MS)


def run_cell(page: Any, source: str) -> str:
    """Run source in a new cell at the end; its printed line."""
    last = page.locator(".jp-Notebook .jp-Cell").last
    last.locator(".cm-content").click()
    page.keyboard.press("Escape")
    page.keyboard.press("b")
    cell = page.locator(".jp-Notebook .jp-Cell").last
    cell.locator(".cm-content").click()
    page.keyboard.insert_text(source)
    page.keyboard.press("Control+Enter")
    cell.locator(".jp-OutputArea-output").first.wait_for()
    return str(cell.locator(".jp-OutputArea-output").first.inner_text())


def restart_kernel(page: Any) -> None:
    """A new kernel, as the menu gives it."""
    page.click("text=Kernel >> nth=0")
    page.click('li[data-command="kernelmenu:restart"]')
    page.click('.jp-Dialog button:has-text("Restart")')
    page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]', timeout=CELL_MS)


def set_dark(page: Any, is_dark: bool) -> None:
    """The notebook's theme."""
    page.click("text=Settings >> nth=0")
    page.hover('.lm-Menu-item:has-text("Theme")')
    page.click(f'.lm-Menu-item:has-text("JupyterLab {"Dark" if is_dark else "Light"}") >> nth=0')
    page.wait_for_selector(
        f'body[data-jp-theme-light="{"false" if is_dark else "true"}"]', timeout=20_000, state="attached"
    )


def end_kernels(address: str) -> None:
    """End the kernels a test has started, and with them their clusters."""
    with urllib.request.urlopen(f"{address}/api/sessions", timeout=10) as answer:
        sessions = json.load(answer)
    for session in sessions:
        asked = urllib.request.Request(f"{address}/api/sessions/{session['id']}", method="DELETE")
        urllib.request.urlopen(asked, timeout=20).close()


class Explorer:
    """An explorer on a page, in a person's words."""

    def __init__(self, page: Any, at: int = 0) -> None:
        self.page = page
        self.root = page.locator(".cl-explorer").nth(at)

    def see(self, text: str, pane: str = "moves", timeout: int = CELL_MS) -> None:
        """Wait until a pane shows a text."""
        self.root.locator(f".cl-{pane}", has_text=text).first.wait_for(timeout=timeout)

    def click_op(self, title: str, **more: Any) -> None:
        """Click an operation by its name."""
        self.root.locator(f'g[data-box][aria-label^="{title}, "]').first.click(**more)

    def is_there(self, title: str) -> bool:
        return self.root.locator(f'g[data-box][aria-label^="{title}, "]').count() > 0

    def see_op(self, title: str) -> None:
        """Wait until the graph has an operation of this name."""
        self.root.locator(f'g[data-box][aria-label^="{title}, "]').first.wait_for()

    def act(self, key: str) -> None:
        """Click what keeps the focus by `key`."""
        self.root.locator(f'[data-key="{key}"]').first.click()

    def take(self, number: int, then: str) -> None:
        """Take a move, and wait until the history has it."""
        self.act(f"move {number}")
        self.root.locator(".cl-row.here", has_text=then).wait_for()

    def focused(self) -> str:
        """What has the focus: the key of a button, or the box of an operation."""
        found = self.page.evaluate("[document.activeElement?.dataset?.key, document.activeElement?.dataset?.box]")
        return str(found[0] or found[1])

    def height(self) -> float:
        return float(self.root.bounding_box()["height"])

    def picture(self, name: str, whole_page: bool = False, rest: bool = True) -> None:
        """Keep a picture for a person to look at."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        if rest:
            self.page.mouse.move(2, 500)
        file = str(PICTURES / f"{name}.png")
        if whole_page:
            self.root.scroll_into_view_if_needed()
            self.page.screenshot(path=file)
        else:
            self.root.screenshot(path=file)
