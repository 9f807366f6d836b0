"""Collectives, slices and sends: the operations that move values between ranks (paper §§2.2, 3.1)."""

from __future__ import annotations

from typing import Any

from coconet_lab.arguments import one_of, shown, whole
from coconet_lab.errors import LayoutError, ProgramError
from coconet_lab.ir import ops as o
from coconet_lab.lang.value import GroupSizeExpression, Value, make, operand
from coconet_lab.site import caller_site


def all_reduce(x: Value, reduction: str = "+", *, name: str | None = None) -> Value:
    """Combine the ranks' own values; every rank receives the result.  Local → Replicated.

    Parameters
    ----------
    x : Value, Local
    reduction : "+", "max" or "min"

    Examples
    --------
    >>> import coconet_lab as cl
    >>> cl.all_reduce(cl.tensor("g", cl.FP32, (8,), cl.Local), name="total")
    total = AllReduce(g): FP32[8] Replicated
    """
    return make(o.AllReduce(name="", reduction=_reduction(reduction)), (operand(x),), name)


def reduce_scatter(x: Value, dim: int = 0, reduction: str = "+", *, name: str | None = None) -> Value:
    """Combine the ranks' own values; rank k receives block k of `dim`.  Local → Sliced(dim)."""
    return make(o.ReduceScatter(name="", dim=_dim(dim), reduction=_reduction(reduction)), (operand(x),), name)


def all_gather(x: Value, *, name: str | None = None) -> Value:
    """Every rank receives all blocks.  Sliced → Replicated."""
    return make(o.AllGather(name=""), (operand(x),), name)


def reduce(x: Value, root: int = 0, reduction: str = "+", *, name: str | None = None) -> Value:
    """Combine the ranks' own values on rank `root` of the group; elsewhere poison is left.  Local → Local."""
    return make(o.Reduce(name="", root=_root(root), reduction=_reduction(reduction)), (operand(x),), name)


def broadcast(x: Value, root: int = 0, *, name: str | None = None) -> Value:
    """Every rank receives rank `root`'s own value.  Local → Replicated."""
    return make(o.Broadcast(name="", root=_root(root)), (operand(x),), name)


def all_to_all(x: Value, split: int, concat: int, *, name: str | None = None) -> Value:
    """Split the block along `split`, join what comes along `concat`.  Sliced(concat) → Sliced(split)."""
    return make(o.AllToAll(name="", split=_dim(split), concat=_dim(concat)), (operand(x),), name)


def local_slice(x: Value, dim: int = 0, *, name: str | None = None) -> Value:
    """This rank's block of a value every rank has; nothing moves.  Replicated → Sliced(dim)."""
    return make(o.LocalSlice(name="", dim=_dim(dim)), (operand(x),), name)


def _dim(dim: Any) -> int:
    return whole(dim, "a dim", hint="dim=0", error=LayoutError)


def _root(root: Any) -> int:
    return whole(root, "the root, a rank of the group,", hint="root=0", error=LayoutError)


def _reduction(reduction: Any) -> str:
    return one_of(reduction, o.REDUCTIONS, "the reduction", hint='all_reduce(x, "max")', error=LayoutError)


def _steps(steps: Any) -> int:
    return whole(steps, "the distance to another group", least=None, hint="cl.GROUP + 1")


class Peer:
    """The group some steps before or after the own one: ``cl.GROUP + 1``."""

    __slots__ = ("offset",)

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def __add__(self, steps: int) -> Peer:
        return Peer(self.offset + _steps(steps))

    def __sub__(self, steps: int) -> Peer:
        return Peer(self.offset - _steps(steps))

    @property
    def size(self) -> GroupSizeExpression:
        """Ranks of the group, a constant of the program."""
        return GroupSizeExpression(o.GroupSize())

    def __repr__(self) -> str:
        return f"cl.GROUP{self.offset:+d}" if self.offset else "cl.GROUP"


GROUP = Peer()


def send(x: Value, to: Peer, *, name: str | None = None) -> Value:
    """Rank k's value of `x` on rank k of group ``to``; dtype, shape and layout stay.

    Raises
    ------
    ProgramError
        `to` is no group, or the own one.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> cl.send(cl.tensor("out", cl.FP32, (8,), cl.Replicated), to=cl.GROUP + 1, name="sent")
    sent = Send(out, offset=1): FP32[8] Replicated group 1
    """
    if not isinstance(to, Peer) or to.offset == 0:
        raise ProgramError(
            f"cannot send {getattr(x, 'name', '') or 'a value'} to {shown(to)}",
            rule="a send goes to another group: cl.GROUP plus or minus a number",
            where=str(caller_site() or ""),
            hint="send(x, to=cl.GROUP + 1)",
        )
    return make(o.Send(name="", offset=to.offset), (operand(x),), name)
