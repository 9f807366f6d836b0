"""Every legal step worth taking on a program: the buttons of the explorer and the moves of the tuner (design §4a)."""

from __future__ import annotations

from collections.abc import Iterator

from coconet_lab.ir.program import Program
from coconet_lab.transforms.as_slice import AsSlice
from coconet_lab.transforms.base import Transform
from coconet_lab.transforms.dead import Dead
from coconet_lab.transforms.fuse import Fuse
from coconet_lab.transforms.overlap import Overlap
from coconet_lab.transforms.reorder import Reorder
from coconet_lab.transforms.split import Split

FAMILIES: tuple[type[Transform], ...] = (Split, Reorder, AsSlice, Dead, Fuse, Overlap)


def candidates(program: Program) -> Iterator[Transform]:
    """Steps worth asking about, family by family; each may still be refused."""
    for family in FAMILIES:
        yield from family.candidates(program)


def legal_moves(program: Program) -> list[Transform]:
    """The candidates that are legal, the largest of each family first. No move undoes another, so a search ends.

    Parameters
    ----------
    program : Program

    Returns
    -------
    list of Transform
        split, reorder, as_slice, dead, fuse, overlap, in this order.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> g = cl.tensor("g", cl.FP32, (8,), cl.Local)
    >>> program = cl.program("p", outputs=[cl.mul(cl.all_reduce(g, name="total"), 2.0, name="out")], ranks=4)
    >>> [move.script() for move in legal_moves(program)]
    ['split("total")', 'fuse("total", "out")']
    """
    return [step for step in candidates(program) if step.why_not(program) is None]
