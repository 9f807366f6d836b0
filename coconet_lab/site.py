"""Where in the user's own code something was written: recorded once per operation, shown in errors and comments."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from types import TracebackType

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_CELL = re.compile(r"ipykernel_\d+[\\/]\d+\.py$|<ipython-input-\d+-")


@dataclass(frozen=True, slots=True)
class Site:
    """The file (or notebook cell) and line that made an operation."""

    file: str
    line: int

    def __str__(self) -> str:
        if self.file.startswith("cell "):
            return f"notebook {self.file}, line {self.line}"
        return f"{os.path.basename(self.file)}:{self.line}"


def caller_site() -> Site | None:
    """The innermost frame outside this package, or None at an embedded prompt without a file."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return None
    return Site(_file_name(frame.f_code.co_filename), frame.f_lineno)


def _file_name(filename: str) -> str:
    """A stable name: cells by the number that the notebook shows beside them, files by their path."""
    return f"cell {_cell_number(filename)}" if _CELL.search(filename) else filename


def _cell_number(filename: str) -> str:
    """The number beside the cell that `filename` was made for, as IPython's own tracebacks find it.

    Not the shell's count: that is the cell which runs now, or from IPython 9 on the next one, while this line may be of
    a function from an earlier cell.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    label = shell.compile.format_code_name(filename) if shell is not None else None
    number = re.search(r"\d+", label[1]) if label else None
    return number[0] if number else "?"


def user_line(traceback: TracebackType | None) -> str | None:
    """The last line of the user's own code in `traceback`, as ``file:line: text``."""
    import linecache

    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith(_PACKAGE):
            text = linecache.getline(code.co_filename, traceback.tb_lineno).strip()
            found = f"{Site(_file_name(code.co_filename), traceback.tb_lineno)}: {text}"
        traceback = traceback.tb_next
    return found
