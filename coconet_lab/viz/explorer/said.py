"""What a screen reader is told when something changes that has not the focus: one sentence for each thing."""

from __future__ import annotations

from collections.abc import Sequence

from coconet_lab.run.results import duration
from coconet_lab.viz.explorer.pages import SIGNS, Busy
from coconet_lab.viz.explorer.state import State
from coconet_lab.viz.explorer.words import listed


def said(state: State, shown: Sequence[int] | None, busy: Busy | None, label: str) -> dict[str, str]:
    """Where one is, what can be done there, and how the run goes.

    Parameters
    ----------
    state : State
    shown : sequence of int or None
        The moves on the page; None while they are looked for.
    busy : Busy or None
    label : str
        The paper's name of the schedule.
    """
    node = state.node
    where = f"{node.name or label or node.title}: {SIGNS[node.proof][1]}" if node.parent is not None else node.title
    if node.measured is not None and node.measured.samples_us:
        where += f", {duration(node.measured.median_us)}"
    moves = ""
    if shown is not None:
        moves = f"{len(shown) or 'no'} legal move{'' if len(shown) == 1 else 's'}"
        moves += f" for {listed(state.selected, 3)}" if state.selected else ""
    return {"schedule": where, "moves": moves, "run": said_of_run(busy)}


def said_of_run(busy: Busy | None) -> str:
    """A run in steps that are worth a word: what it waits for, then each quarter.

    Examples
    --------
    >>> said_of_run(Busy("start: run 17 of 30, 0.3 s left", 17, 30)), said_of_run(Busy("Starting 4 ranks, 2 s"))
    ('Running, 50 %', 'Starting 4 ranks')
    """
    if busy is None:
        return ""
    if busy.total > 0:
        return f"Running, {100 * busy.done // busy.total // 25 * 25} %"
    return busy.words.partition(", ")[0]
