"""Layout rules of the operations that sum over a shared dim: MatMul and Conv (paper §2.2)."""

from __future__ import annotations

from collections.abc import Sequence

from coconet_lab.errors import LayoutError
from coconet_lab.ir import ops as o
from coconet_lab.ir.join import Named, described, join_dtypes, join_groups
from coconet_lab.ir.layout import Layout, Local, Replicated, Sliced
from coconet_lab.ir.types import TensorType

_MATMUL_RULE = (
    "matmul takes A sliced along K with B sliced along K (partial sums), B sliced along its last dim, "
    "A sliced along another dim, or Local with Local or Replicated [paper §2.2]"
)
_CONV_RULE = (
    "conv takes both sliced along the input channels (partial sums), w along its output channels, "
    "x along the batch, or Local with Local or Replicated [paper §7]"
)


def matmul(op: o.Op, items: Sequence[Named], ranks: int | None) -> TensorType:
    """``A[…, K] @ B[K, N] -> [..., N]``."""
    (_, a), (_, b) = items
    join_dtypes("matmul", items)
    if len(a.shape) < 2 or len(b.shape) != 2 or a.shape[-1] != b.shape[0] or a.pieces or b.pieces:
        raise LayoutError(
            f"cannot matmul {described(items[0])} and {described(items[1])}",
            rule="A[…, K] @ B[K, N] with two or more dims in A, two in B, and one K",
            hint=f"B of shape [{a.shape[-1] if a.shape else 'K'}, N]",
        )
    last = len(a.shape) - 1
    layout = _contract(a.layout, b.layout, last, 0, a_keeps=range(last), b_keeps={1: last})
    if layout is None:
        raise LayoutError(
            f"cannot matmul {described(items[0])} and {described(items[1])}",
            rule=_MATMUL_RULE,
            hint=_contract_hint(items, last, 0),
        )
    return TensorType(a.dtype, (*a.shape[:-1], b.shape[1]), layout, join_groups("matmul", items))


def conv(op: o.Op, items: Sequence[Named], ranks: int | None) -> TensorType:
    """``x[N, C, …] * w[O, C, …] -> [N, O, …]``."""
    assert isinstance(op, o.Conv)
    (_, x), (_, w) = items
    join_dtypes("conv", items)
    spatial = len(x.shape) - 2
    if spatial < 1 or len(w.shape) != len(x.shape) or x.shape[1] != w.shape[1] or x.pieces or w.pieces:
        raise LayoutError(
            f"cannot conv {described(items[0])} and {described(items[1])}",
            rule="x[N, C, …] and w[O, C, …] of equal rank, three or more, and one C",
            hint="w of shape [O, C, kernel…]",
        )
    if len(op.stride) != spatial or len(op.padding) != spatial or min(op.stride) < 1 or min(op.padding) < 0:
        raise LayoutError(
            f"stride {list(op.stride)} and padding {list(op.padding)} for {spatial} spatial dims",
            rule="one stride of 1 or more and one padding of 0 or more per spatial dim",
            hint="conv(x, w, stride=1, padding=0)",
        )
    extents = tuple((n + 2 * p - k) // s + 1 for n, k, s, p in zip(x.shape[2:], w.shape[2:], op.stride, op.padding))
    if min(extents) < 1:
        raise LayoutError(
            f"cannot conv {described(items[0])} and {described(items[1])}: nothing is left",
            rule="the kernel fits into the padded input",
            hint="a larger padding",
        )
    layout = _contract(x.layout, w.layout, 1, 1, a_keeps=(0,), b_keeps={0: 1})
    if layout is None:
        raise LayoutError(
            f"cannot conv {described(items[0])} and {described(items[1])}",
            rule=_CONV_RULE,
            hint=_contract_hint(items, 1, 1),
        )
    return TensorType(x.dtype, (x.shape[0], w.shape[0], *extents), layout, join_groups("conv", items))


def _contract(
    a: Layout, b: Layout, a_dim: int, b_dim: int, *, a_keeps: Sequence[int] | range, b_keeps: dict[int, int]
) -> Layout | None:
    """Layout of a sum over `a_dim` of A and `b_dim` of B; None where it is no sum of what the ranks hold."""
    if a.is_local or b.is_local:
        return None if a.is_sliced or b.is_sliced else Local
    if a == Sliced(a_dim) and b == Sliced(b_dim):
        return Local
    if a.is_sliced and b.is_replicated and a.dim in a_keeps:
        return a
    if a.is_replicated and b.is_sliced and b.dim in b_keeps:
        return Sliced(b_keeps[b.dim])
    return Replicated if a.is_replicated and b.is_replicated else None


def _contract_hint(items: Sequence[Named], a_dim: int, b_dim: int) -> str:
    (a_name, a), (b_name, b) = items
    if a.layout.is_sliced and a.layout.dim == a_dim and b.layout.is_replicated:
        return f"local_slice({b_name or 'B'}, dim={b_dim})"
    if b.layout.is_sliced and b.layout.dim == b_dim and a.layout.is_replicated:
        return f"local_slice({a_name or 'A'}, dim={a_dim})"
    sliced = a_name or "A" if a.layout.is_sliced else b_name or "B"
    return f"all_gather({sliced})"
