"""Execute a notebook with other parameters and keep the executed copy.

    python benchmarks/run_notebook.py notebooks/01_transformations.ipynb --out 01_h200x4.ipynb \
        --set ranks=4 batch=8 sequence=1024 hidden=3072 "dtype='fp16'" "backend='cuda'"
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="Python literals")
    parser.add_argument("--timeout-s", type=int, default=300, help="for each cell")
    options = parser.parse_args()
    values = dict(assignment(text) for text in options.set)
    book = executed(options.notebook, values, options.timeout_s)
    import nbformat

    options.out.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(book, options.out)
    print(f"wrote {options.out.name}")


def assignment(text: str) -> tuple[str, Any]:
    """``ranks=4`` as a name and a value."""
    name, _, value = text.partition("=")
    return name.strip(), ast.literal_eval(value)


def executed(path: Path, values: dict[str, Any], timeout_s: int) -> Any:
    """The notebook run top to bottom with `values` assigned at the end of its `parameters` cell."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    (cell,) = (c for c in book.cells if "parameters" in c.metadata.get("tags", []))
    cell.source = "\n".join([cell.source, *(f"{name} = {value!r}" for name, value in values.items())])
    NotebookClient(book, timeout=timeout_s, kernel_name="python3").execute()
    return book


if __name__ == "__main__":
    main()
