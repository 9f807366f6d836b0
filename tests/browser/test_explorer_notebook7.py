"""The explorer in Notebook 7, which takes keys on their way down, before a page's own elements see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab
import pytest

CELL = """import coconet_lab as cl
from coconet_lab import workloads
ex = cl.explore(workloads.self_attention(batch=4, sequence=32, hidden=64, ranks=2), repeats=5)
ex"""


@pytest.fixture
def notebook(need: Any, tmp_path: Path) -> Iterator[str]:
    need("jupyter-notebook")
    (tmp_path / "test.ipynb").write_text(lab.notebook(CELL), encoding="utf-8")
    with lab.served(tmp_path, "jupyter-notebook") as found:
        yield found


def test_notebook_7_shows_it_keeps_its_cells_and_runs_a_schedule(notebook, page):
    lab.open_notebook(page, notebook, "test.ipynb", "notebooks")
    lab.run_all(page)
    ex = lab.Explorer(page)
    cells = page.locator(".jp-Notebook .jp-Cell").count()
    ex.click_op("total")
    ex.see("Moves for total")
    for key in ("d", "d", "x", "z", "a", "b", "m", "Enter", "Shift+M"):
        page.keyboard.press(key)
    page.keyboard.press("1")
    ex.see_op("total_rs")
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells
    assert page.locator(".jp-Notebook .jp-MarkdownCell").count() == 0
    ex.act("run")
    ex.root.locator(".cl-timed.here", has_text="split total").wait_for()
    ex.picture("notebook7_light", whole_page=True)
    page.keyboard.press("u")
    ex.root.locator(".cl-row.here", has_text="start").wait_for()
    lab.end_kernels(notebook)
