"""Every notebook runs top to bottom from an empty kernel, with small parameters, in a folder of its own."""

from __future__ import annotations

import ast
import base64
import re
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))

# Put in place of what a notebook's `parameters` cell assigns; a name that is not here keeps its value.
SMALL = {"ranks": 2, "batch": 4, "sequence": 4, "hidden": 16, "elements": 1003, "repeats": 2, "backend": "cpu"}

# What a notebook is there to show.
SHOWN = {
    "00_language": [
        r"layer = MatMul\(x, w\)",
        r"cannot AllReduce 'total'.*\n  rule: .*\n  in: .*notebook cell.*\n  try: ",
        r"cannot add 'x' .* and 'layer'",
        r"cannot matmul 'x' .* and 'w2'",
        r"p1 = Update\(p, sub_1\)",
    ],
    "01_transformations": [
        r"cannot fuse 'layer', 'out'",
        r"cannot move 'total': it is AllReduce.*\n  rule: .*\n  try: +split\(\"total\"\) first",
        r"ol\(MM,fuse\(RS-C-AG\)\)   equal: 1 output × 2 ranks, exact",
        r"fuse\(RS-C-AG\) +wire .* MiB +memory .* MiB +launches 2",
        r"2 ranks, CPU",
        r"(?:.+equals the oracle\n){5}",
        r"\.overlap\(\"layer\", \"fused\"\)",
    ],
    "02_explorer": [r"\.fuse\(\"total_rs\", \"out\"\)", r"2 ranks, CPU", r"cannot move 'total'"],
}


def load(name: str) -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def with_parameters(book: nbformat.NotebookNode, values: dict[str, object]) -> nbformat.NotebookNode:
    """The notebook with other values for what its `parameters` cell assigns."""
    cells = [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", [])]
    assert len(cells) == 1, "a notebook has one cell tagged `parameters`"
    assigned = {node.id for node in ast.walk(ast.parse(cells[0].source)) if isinstance(node, ast.Name)}
    new = [f"{name} = {value!r}" for name, value in values.items() if name in assigned]
    assert new, "none of the parameters is known here: see SMALL"
    cells[0].source = "\n".join([cells[0].source, *new])
    return book


@cache
def executed(name: str, folder: Path) -> nbformat.NotebookNode:
    """The notebook after a run from an empty kernel in `folder`; an error in any cell raises."""
    book = with_parameters(load(name), SMALL)
    folder.mkdir(exist_ok=True)
    NotebookClient(book, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    return book


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("notebooks")
    return lambda name: executed(name, folder / name)


def texts(book: nbformat.NotebookNode) -> str:
    """Everything the cells printed or showed as text."""
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_an_empty_kernel_and_shows_what_it_is_for(name, ran):
    book = ran(name)
    said = texts(book)
    for pattern in SHOWN.get(name, []):
        assert re.search(pattern, said), f"{name} does not show {pattern!r}:\n{said[:3000]}"
    assert not [o for cell in book.cells for o in cell.get("outputs", []) if o.get("name") == "stderr"]


@pytest.mark.parametrize("name", ["00_language", "01_transformations"])
def test_every_picture_of_an_exported_page_is_in_the_page(name, ran):
    page, _ = HTMLExporter().from_notebook_node(ran(name))
    images = re.findall(r'<img[^>]*?src="([^"]*)"', page)
    assert images
    assert all(source.startswith("data:image/") for source in images)
    graphs = [base64.b64decode(source.split(",", 1)[1]) for source in images if "svg" in source[:20]]
    assert len(graphs) >= 2
    for graph in graphs:
        root = ET.fromstring(graph)
        assert root.tag.endswith("svg")
        assert not re.search(rb'(?:href|src)="https?:|url\(https?:', graph)
    assert any(b"layer" in graph for graph in graphs)


@pytest.mark.parametrize("name", NAMES)
def test_a_committed_notebook_was_run_in_order_and_without_error(name):
    book = load(name)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = [output.output_type for cell in cells for output in cell.outputs]
    assert "error" not in kinds
    assert kinds
    assert not [o for cell in cells for o in cell.outputs if o.get("name") == "stderr"]
    assert book.metadata.kernelspec.name == "python3"


@pytest.mark.parametrize("name", NAMES)
def test_a_message_names_its_cell_by_the_number_beside_it(name):
    for cell in load(name).cells:
        said = texts(nbformat.v4.new_notebook(cells=[cell]))
        number = cell.get("execution_count") or 0
        assert set(re.findall(r" at notebook cell (\S+),", said)) <= {str(number)}  # an error's, made right there
        assert all(int(earlier) <= number for earlier in re.findall(r"notebook cell (\S+),", said))  # a kernel's lines


@pytest.mark.parametrize("name", NAMES)
def test_no_output_shows_where_an_object_lies_in_memory(name):
    assert not re.findall(r".* at 0x[0-9a-f]{6,}.*", texts(load(name)))


def test_the_language_notebook_shows_what_is_committed(tmp_path):
    committed, book = load("00_language"), load("00_language")
    NotebookClient(book, timeout=100, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert texts(book) == texts(committed)


def test_parameters_are_put_in_place_and_others_left():
    book = nbformat.v4.new_notebook()
    cell = nbformat.v4.new_code_cell("ranks, own = 4, 7", metadata={"tags": ["parameters"]})
    book.cells = [cell]
    space: dict[str, int] = {}
    exec(with_parameters(book, {"ranks": 2, "hidden": 8}).cells[0].source, space)
    assert (space["ranks"], space["own"], "hidden" in space) == (2, 7, False)
    with pytest.raises(AssertionError, match="none of the parameters"):
        with_parameters(book, {"hidden": 8})
