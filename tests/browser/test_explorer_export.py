"""A notebook with explorers after its kernel is gone: exported to HTML, with and without widget state, no network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from lab import PICTURES, ROOT
from nbclient import NotebookClient
from nbconvert import HTMLExporter

EXECUTED_S = 120


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The explorer's notebook, executed without a browser."""
    notebook = nbformat.read(ROOT / "notebooks" / "02_explorer.ipynb", as_version=4)
    folder = tmp_path_factory.mktemp("executed")
    client = NotebookClient(notebook, timeout=EXECUTED_S, resources={"metadata": {"path": str(folder)}})
    return client.execute()


@pytest.mark.parametrize("with_state", [True, False], ids=["with widget state", "without widget state"])
def test_the_exported_page_shows_graph_script_and_costs_without_a_network(executed, page, tmp_path, with_state):
    notebook = nbformat.from_dict(executed)
    if with_state:
        assert notebook.metadata["widgets"], "nbclient keeps the state of widgets"
    else:
        notebook.metadata.pop("widgets", None)
    html, _ = HTMLExporter().from_notebook_node(notebook)
    file = Path(tmp_path) / "export.html"
    file.write_text(html, encoding="utf-8")
    page.context.set_offline(True)
    page.goto(file.as_uri(), wait_until="domcontentloaded")
    static = page.locator('[class^="cl-static-"]')
    assert static.count() == 2
    for at, name in ((0, "fuse(RS-C-AG)"), (1, "adam")):
        shown = static.nth(at)
        shown.wait_for(state="visible")
        assert name in shown.inner_text()
        assert shown.locator("svg").bounding_box()["width"] > 200
        assert "memory" in shown.inner_text()
    static.first.screenshot(path=str(PICTURES / "export.png"))


def test_every_output_of_an_explorer_has_a_picture_for_pages_that_strip_svg(executed):
    bundles = [output.data for cell in executed.cells for output in cell.get("outputs", []) if "data" in output]
    static = [bundle for bundle in bundles if "cl-static-" in bundle.get("text/html", "")]
    assert len(static) == 2
    assert all(bundle["image/png"].startswith("iVBOR") and "Explorer of" in bundle["text/plain"] for bundle in static)
