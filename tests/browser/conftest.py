"""One JupyterLab and one Chromium for the tier; pictures are kept in out/browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab
import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What JupyterLab opens: copies of the repository's notebooks, and what tests write."""
    made = tmp_path_factory.mktemp("notebooks")
    for file in (lab.ROOT / "notebooks").glob("*.ipynb"):
        shutil.copy(file, made / file.name)
    return made


@pytest.fixture(scope="session")
def address(folder: Path) -> Iterator[str]:
    with lab.served(folder) as found:
        yield found


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=lab.BROWSER)
        yield started
        started.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of 1400 × 1000; an error of a script on it fails the test."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    shown = context.new_page()
    shown.set_default_timeout(lab.CELL_MS)
    errors: list[str] = []
    shown.on("pageerror", lambda error: errors.append(str(error)))
    yield shown
    context.close()
    assert not [error for error in errors if "explorer" in error.lower()], errors


@pytest.fixture
def opened(page: Any, address: str, folder: Path) -> Any:
    """``opened(cell, cell, …)``: a notebook of these cells, run, on the page."""

    def show(*cells: str, name: str = "test.ipynb") -> lab.Explorer:
        (folder / name).write_text(lab.notebook(*cells), encoding="utf-8")
        lab.open_notebook(page, address, name)
        lab.run_all(page)
        return lab.Explorer(page)

    yield show
    lab.end_kernels(address)
