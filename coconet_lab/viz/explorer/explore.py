"""`explore`: an explorer of whatever can be explored."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from coconet_lab.viz.explorer.explorer import Explorer
from coconet_lab.viz.explorer.runner import REPEATS


def explore(
    program: Any,
    cluster: Any = None,
    history: str | PathLike[str] | None = None,
    *,
    inputs: Mapping[Any, Any] | None = None,
    repeats: int = REPEATS,
) -> Explorer:
    """An interactive explorer of a program's schedules: legal moves, reasons, costs, proofs and times, by clicking.

    Parameters
    ----------
    program : Program, Schedule or Workload
        What to start from; the steps of a schedule are its history.
    cluster : Cluster or None
        What the run button uses; None: it starts as many CPU ranks as the program has.
    history : path or None
        A file the whole tree is written to at each move, and read from where it is there already.
    inputs : mapping or None
        As for `Cluster.run`.
    repeats : int
        Timed runs of one press of the run button.

    Returns
    -------
    Explorer

    Examples
    --------
    >>> import coconet_lab as cl
    >>> ex = explore(cl.workloads.self_attention(batch=4, sequence=8, hidden=16, ranks=2).program)
    >>> ex.apply(ex.moves[0])
    self_attention, 2 ranks: at 'split total', 2 schedules tried
    >>> ex.schedule.steps
    (Split(target='total', dim=None, into='rs_ag'),)
    """
    return Explorer(program, cluster, history, inputs=inputs, repeats=repeats)
