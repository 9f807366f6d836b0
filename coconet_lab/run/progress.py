"""How far a call is: a bar where somebody can watch one, else a line now and then."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from coconet_lab.run.ranks import Report

_QUIET_S = 0.5
_LINE_S = 5.0
_CELL_LINE_S = 1.0  # in a notebook that nobody has open
_WIDGET_VARIABLES = ("JPY_SESSION_NAME", "VSCODE_PID", "COLAB_RELEASE_TAG")


def can_draw_bar(stream: TextIO) -> bool:
    """Whether a moving bar can be seen: a terminal, or a notebook that a front end with widgets has opened.

    A notebook run by nbclient or nbconvert has a kernel too, but nobody to draw the widget; only front ends set the
    variables looked at here.
    """
    return any(name in os.environ for name in _WIDGET_VARIABLES) if in_kernel() else stream.isatty()


def in_kernel() -> bool:
    """Whether this process runs a notebook's cells."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


class Progress:
    """Shows the ranks' reports of one call.

    Parameters
    ----------
    what : str
        The call, in the user's words.
    wanted : bool or None
        True: from the start; None: once the call lasts and ranks report a total; False: never.
    stream : text file, optional
        Where lines go; by default a cell's output, else standard error.
    """

    def __init__(self, what: str, wanted: bool | None, stream: TextIO | None = None) -> None:
        self._what = what
        self._wanted = wanted
        is_cell = stream is None and in_kernel()  # in a cell, standard error would look like a fault
        self._stream = stream if stream is not None else sys.stdout if is_cell else sys.stderr
        self._interval_s = _CELL_LINE_S if is_cell else _LINE_S
        self._draws = wanted is not False and can_draw_bar(self._stream)
        self._started_s = time.monotonic()
        self._line_s = self._started_s if wanted is None else self._started_s - self._interval_s
        self._line = ""
        self._bar: Any = None

    def update(self, reports: Sequence[Report]) -> None:
        """Show where the ranks are: the slowest one counts."""
        now_s = time.monotonic()
        if self._wanted is False or (self._wanted is None and now_s - self._started_s < _QUIET_S):
            return
        slowest = min(reports, key=lambda report: (report.done, report.step), default=Report())
        total = max((report.total for report in reports), default=-1)
        if total < 0 and self._wanted is None:
            return
        if self._draws:
            self._update_bar(slowest, total)
        elif now_s - self._line_s >= self._interval_s:
            self._write_line(slowest, total)
            self._line_s = now_s

    def _update_bar(self, slowest: Report, total: int) -> None:
        from tqdm.auto import tqdm

        if self._bar is None:
            self._bar = tqdm(total=max(total, 0) or None, desc=self._what, leave=False)
        if total > 0 and self._bar.total != total:
            self._bar.total = total
        self._bar.set_postfix_str(slowest.op, refresh=False)
        self._bar.update(max(slowest.done, 0) - self._bar.n)

    def _write_line(self, slowest: Report, total: int) -> None:
        count = f" {max(slowest.done, 0)} of {total}" if total >= 0 else ""
        place = f", in {slowest.op!r}" if slowest.op not in ("", self._what) else ""
        line = f"{self._what}:{count}{place}"
        if line != self._line:
            self._stream.write(line + "\n")
            self._stream.flush()
        self._line = line

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
