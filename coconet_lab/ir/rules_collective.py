"""Layout rules of the collectives and sends (paper §2.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from coconet_lab.errors import LayoutError
from coconet_lab.ir import ops as o
from coconet_lab.ir.join import Named, described
from coconet_lab.ir.layout import Local, Replicated, Sliced
from coconet_lab.ir.types import TensorType


def _only(op: o.Op, items: Sequence[Named]) -> TensorType:
    """The one operand's type, after checks every collective shares."""
    kind = items[0][1]
    reduction = getattr(op, "reduction", "+")
    if reduction not in o.REDUCTIONS:
        raise LayoutError(
            f"unknown reduction {reduction!r}", rule="a reduction is '+', 'max' or 'min'", hint="all_reduce(x, 'max')"
        )
    return kind


def _check_dim(op: o.Op, item: Named, dim: int) -> None:
    if not 0 <= dim < len(item[1].shape) or (item[1].pieces and dim != 0):
        raise LayoutError(
            f"cannot {op.kind} {described(item)} along dim {dim}",
            rule=f"it has dims 0 to {len(item[1].shape) - 1}",
            hint="dim=0",
        )


def _refuse(op: o.Op, items: Sequence[Named], rule: str, hint: str) -> LayoutError:
    return LayoutError(f"cannot {op.kind} {described(items[0])}", rule=rule, hint=hint)


def _all_reduce(op: o.Op, items: Sequence[Named], ranks: int | None) -> TensorType:
    kind = _only(op, items)
    if kind.layout.is_local:
        return kind.with_layout(Replicated)
    name = items[0][0] or "x"
    if kind.layout.is_replicated:
        raise _refuse(
            op,
            items,
            "an AllReduce adds the ranks' own values (Local); it would multiply a Replicated one by the group size",
            f"use {name} as it is",
        )
    raise _refuse(
        op, items, "an AllReduce adds the ranks' own values (Local); blocks are gathered", f"all_gather({name})"
    )


def _reduce_scatter(op: o.Op, items: Sequence[Named], ranks: int | None) -> TensorType:
    assert isinstance(op, o.ReduceScatter)
    kind = _only(op, items)
    _check_dim(op, items[0], op.dim)
    if kind.layout.is_local:
        return kind.with_layout(Sliced(op.dim))
    fix = "local_slice" if kind.layout.is_replicated else "all_gather"
    raise _refuse(op, items, "a ReduceScatter adds the ranks' own values (Local)", f"{fix}({items[0][0] or 'x'}, ...)")


def _all_gather(op: o.Op, items: Sequence[Named], ranks: int | None) -> TensorType:
    kind = _only(op, items)
    if kind.layout.is_sliced:
        return kind.with_layout(Replicated)
    hint = "all_reduce" if kind.layout.is_local else "use it as it is: every rank has it whole"
    raise _refuse(op, items, "an AllGather joins blocks (Sliced)", hint)


def _reduce(op: o.Op, items: Sequence[Named], ranks: int | None) -> TensorType:
    assert isinstance(op, o.Reduce)
    kind = _only(op, items)
    _check_root(op, items, op.root, ranks)
    if kind.layout.is_local:
        return kind.with_layout(Local)
    raise _refuse(op, items, "a Reduce adds the ranks' own values (Local)", "use it as it is, or all_gather it")


def _broadcast(op: o.Op, items: Sequence[Named], ranks: int | None) -> TensorType:
    assert isinstance(op, o.Broadcast)
    kind = _only(op, items)
    _check_root(op, items, op.root, ranks)
    if kind.layout.is_local:
        return kind.with_layout(Replicated)
    raise _refuse(op, items, "a Broadcast spreads one rank's own value (Local)", "use it as it is, or all_gather it")


def _check_root(op: o.Op, items: Sequence[Named], root: int, ranks: int | None) -> None:
    if root < 0 or (ranks is not None and root >= ranks):
        raise _refuse(op, items, f"the root is a rank of the group, 0 to {(ranks or 1) - 1}, not {root}", "root=0")


def _all_to_all(op: o.Op, items: Sequence[Named], ranks: int | None) -> TensorType:
    assert isinstance(op, o.AllToAll)
    kind = _only(op, items)
    _check_dim(op, items[0], op.split)
    _check_dim(op, items[0], op.concat)
    if kind.layout != Sliced(op.concat) or op.split == op.concat:
        raise _refuse(
            op,
            items,
            "an AllToAll turns Sliced(concat) into Sliced(split), two different dims",
            f"all_to_all(x, split={op.split}, concat={kind.layout.dim})",
        )
    return kind.with_layout(Sliced(op.split))


def _send(op: o.Op, items: Sequence[Named], ranks: int | None) -> TensorType:
    assert isinstance(op, o.Send)
    kind = _only(op, items)
    if kind.group is None:
        raise _refuse(op, items, "scalars are on every rank of every group", "use it there as it is")
    if kind.group + op.offset < 0:
        raise LayoutError(
            f"cannot send {described(items[0])} to group {kind.group + op.offset}",
            rule="groups count from 0",
            hint="send(x, to=cl.GROUP + 1)",
        )
    return replace(kind, group=kind.group + op.offset)


COLLECTIVE_RULES: dict[type[o.Op], Callable[[o.Op, Sequence[Named], int | None], TensorType]] = {
    o.AllReduce: _all_reduce,
    o.ReduceScatter: _reduce_scatter,
    o.AllGather: _all_gather,
    o.Reduce: _reduce,
    o.Broadcast: _broadcast,
    o.AllToAll: _all_to_all,
    o.Send: _send,
}
