"""How the operands of an elementwise operation meet: shapes align right, layouts join, dtypes are equal."""

from __future__ import annotations

from collections.abc import Sequence

from coconet_lab.errors import LayoutError
from coconet_lab.ir.layout import Layout, Replicated, Sliced
from coconet_lab.ir.types import TensorType

Named = tuple[str, TensorType]


def quoted(name: str) -> str:
    """A value's name as errors print it; values the user has not named yet are told by what they are."""
    return repr(name) if name else "an unnamed value"


def described(item: Named) -> str:
    """``'g' (FP32[1024] Local)``."""
    name, kind = item
    return f"{quoted(name)} ({kind})"


def join_shapes(verb: str, items: Sequence[Named]) -> tuple[int, ...]:
    """The broadcast shape: dims align right, an extent of 1 stretches."""
    rank = max(len(kind.shape) for _, kind in items)
    shape = [1] * rank
    for name, kind in items:
        for dim, extent in enumerate(kind.shape, rank - len(kind.shape)):
            if extent not in (1, shape[dim]) and shape[dim] != 1:
                raise LayoutError(
                    f"cannot {verb} {' and '.join(described(i) for i in items)}: "
                    f"dim {dim - rank} is {shape[dim]} and {extent}",
                    rule="shapes align at their last dims; equal extents or 1 [paper §2.2]",
                    hint=f"give {quoted(name)} an extent of {shape[dim]} or 1 there",
                )
            shape[dim] = max(shape[dim], extent) if extent != 0 and shape[dim] != 0 else 0
    return tuple(shape)


def join_layouts(verb: str, items: Sequence[Named], shape: tuple[int, ...]) -> Layout:
    """L+L=L, R+x=x, S(d)+S(d)=S(d) with dims counted in the result; anything else is refused [paper §2.2]."""
    found: Layout = Replicated
    first: Named | None = None
    for item in items:
        layout = _in_result(verb, item, shape)
        if layout.is_replicated or layout == found:
            continue
        if not found.is_replicated and first is not None:
            raise LayoutError(
                f"cannot {verb} {described(first)} and {described(item)}",
                rule="operands of an elementwise op share a layout, or one is Replicated [paper §2.2]",
                hint=_layout_hint(first, item, found, layout),
            )
        found, first = layout, item
    return found


def _in_result(verb: str, item: Named, shape: tuple[int, ...]) -> Layout:
    kind = item[1]
    if not kind.layout.is_sliced or kind.layout.dim is None:
        return kind.layout
    dim = kind.layout.dim + len(shape) - len(kind.shape)
    if kind.shape[kind.layout.dim] != shape[dim]:
        raise _is_broadcast(verb, item, shape[dim])
    return Sliced(dim)


def _is_broadcast(verb: str, item: Named, extent: int) -> LayoutError:
    return LayoutError(
        f"cannot {verb} {described(item)}: its sliced dim would be broadcast to {extent} element{'s' * (extent != 1)}",
        rule="a sliced dim may not be broadcast: the ranks hold different elements of it",
        hint=f"all_gather({item[0] or 'it'}) first",
    )


def _layout_hint(first: Named, item: Named, found: Layout, layout: Layout) -> str:
    local, other = (first, layout) if found.is_local else (item, found)
    if local[1].layout.is_local and other.is_sliced:
        return f"reduce_scatter({local[0] or 'x'}, dim={(other.dim or 0) - _shift(local[1], other)})"
    return f"all_gather({item[0] or 'x'}), or slice both along one dim"


def _shift(kind: TensorType, layout: Layout) -> int:
    """Dims missing on the left of `kind`; only known to matter where `layout` names one of them."""
    return max(0, (layout.dim or 0) - len(kind.shape) + 1)


def join_groups(verb: str, items: Sequence[Named]) -> int | None:
    """The one group all operands live in; scalars live in every group."""
    group: int | None = None
    first: Named | None = None
    for item in items:
        if item[1].group is None:
            continue
        if first is not None and item[1].group != group:
            raise LayoutError(
                f"cannot {verb} {quoted(first[0])} of group {group} and {quoted(item[0])} of group {item[1].group}",
                rule="operands live in one process group",
                hint=f"send({first[0] or 'x'}, to=cl.GROUP + {item[1].group - (group or 0)})",
            )
        group, first = item[1].group, item
    return group


def join_dtypes(verb: str, items: Sequence[Named]) -> None:
    """Refuse operands of different dtypes with the cast to write."""
    name, kind = items[0]
    for other, other_kind in items[1:]:
        if other_kind.dtype != kind.dtype:
            raise LayoutError(
                f"cannot {verb} {quoted(name)} of {kind.dtype} and {quoted(other)} of {other_kind.dtype}",
                rule="operands have equal dtypes; nothing is converted silently",
                hint=f"cast({other or 'x'}, {kind.dtype}), or cast({name or 'x'}, {other_kind.dtype})",
            )


def join_lists(verb: str, items: Sequence[Named]) -> tuple[tuple[tuple[int, ...], ...], bool, int]:
    """Pieces, per_piece and bucket of the result: equal lists, or a list with per-tensor scalars or plain scalars."""
    lists = [item for item in items if item[1].pieces]
    if not lists:
        return (), False, items[0][1].bucket
    first = lists[0]
    for item in items:
        differs = item[1].pieces != first[1].pieces or item[1].bucket != first[1].bucket
        if differs and item[1].shape != ():
            raise LayoutError(
                f"cannot {verb} {described(first)} and {described(item)}",
                rule="a list of tensors meets equal lists, one scalar per tensor, or a scalar [paper §5.4]",
                hint="give both the same list of shapes and the same bucket",
            )
    per_piece = all(item[1].per_piece or not item[1].pieces for item in items)
    return first[1].pieces, per_piece, first[1].bucket


def join(verb: str, items: Sequence[Named]) -> TensorType:
    """The type of an elementwise result, dtype aside (the first operand's)."""
    pieces, per_piece, bucket = join_lists(verb, items)
    if pieces:
        shaped = [item for item in items if bool(item[1].pieces) and item[1].per_piece == per_piece]
        shape = shaped[0][1].shape
        flat = [i for i in items if not (i[1].per_piece and not per_piece)]
        layout = join_layouts(verb, flat, shape)
        scalars = [i for i in items if i[1].per_piece and not i[1].layout.is_replicated and not per_piece]
        for item in scalars:
            if item[1].layout.is_sliced:  # also where there are as many tensors as elements
                raise _is_broadcast(verb, item, shape[0])
        if scalars:
            layout = join_layouts(verb, [*scalars, *shaped], shape)
    else:
        shape = join_shapes(verb, items)
        layout = join_layouts(verb, items, shape)
    return TensorType(items[0][1].dtype, shape, layout, join_groups(verb, items), pieces, per_piece, bucket)
