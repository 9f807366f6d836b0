"""The index space of a fused group: which elements its one kernel runs over, and which operations fit into it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coconet_lab.ir import ops as o
from coconet_lab.ir.types import TensorType

Ops = Mapping[str, o.Op]
Types = Mapping[str, TensorType]


@dataclass(frozen=True, slots=True)
class Space:
    """What one kernel runs over: a global shape, and the dim of which each rank has a block.

    Parameters
    ----------
    shape : tuple of int
        Global shape; ``()`` for a group of scalars only.
    dim : int or None
        The sliced dim; None where every rank runs over the whole.
    pieces, bucket
        As in TensorType, where the space is a list value.
    """

    shape: tuple[int, ...]
    dim: int | None
    pieces: tuple[tuple[int, ...], ...] = ()
    bucket: int = 0

    def aligned(self, kind: TensorType, dim: int) -> int:
        """The space's dim that dim `dim` of a value of type `kind` is (dims align right)."""
        return dim + len(self.shape) - len(kind.shape)

    def broadcasts(self, kind: TensorType) -> bool:
        """Whether a tensor of type `kind` has, or is stretched to, an element for each index."""
        if kind.pieces or self.pieces:
            return kind.pieces == self.pieces
        offset = len(self.shape) - len(kind.shape)
        return offset >= 0 and all(n in (1, self.shape[d + offset]) for d, n in enumerate(kind.shape))

    def is_full(self, kind: TensorType) -> bool:
        """Whether a value of type `kind` has exactly the space's elements."""
        return kind.shape == self.shape and not kind.per_piece

    def has_block(self, kind: TensorType) -> bool:
        """Whether a value of type `kind` extends along the sliced dim, so that a rank needs only its block of it."""
        if self.dim is None or kind.is_scalar:
            return False
        at = self.dim - (len(self.shape) - len(kind.shape))
        return at >= 0 and kind.shape[at] == self.shape[self.dim]


def domain(ops: Ops, types: Types, name: str) -> TensorType:
    """The type an operation runs over: what it reads for gathers, sends and reductions, else its own."""
    op = ops[name]
    if isinstance(op, o.AllGather | o.Send | o.Reduction):
        source = op.operands[0]
        return types[source] if isinstance(source, str) else types[name]
    return types[name]


def common_space(ops: Ops, types: Types, members: Iterable[str]) -> Space:
    """The space of a group: the largest domain of its members and the first sliced dim among them."""
    kinds = [kind for kind in (domain(ops, types, m) for m in members) if not kind.is_scalar]
    if not kinds:
        return Space((), None)
    largest = max(kinds, key=lambda kind: (math.prod(kind.shape), len(kind.shape)))
    flat = Space(largest.shape, None, largest.pieces, largest.bucket)
    dims = (flat.aligned(k, k.layout.dim) for k in kinds if k.layout.dim is not None and flat.broadcasts(k))
    return Space(flat.shape, next(dims, None), flat.pieces, flat.bucket)


def crosses(ops: Ops, types: Types, space: Space, name: str) -> bool:
    """Whether `name` reduces across the sliced dim: each rank has a partial of its block, and they are exchanged."""
    op = ops[name]
    if not isinstance(op, o.Reduction):
        return False
    kind = domain(ops, types, name)
    if not space.has_block(kind):
        return False
    dims = op.dims
    return dims is None or bool(kind.pieces) or space.dim in {space.aligned(kind, d) for d in dims}


def misfit(ops: Ops, types: Types, space: Space, name: str) -> str:
    """Why `name` cannot run over `space`; empty where it can."""
    kind = domain(ops, types, name)
    if kind.is_scalar:
        is_moved = isinstance(ops[name], o.AllReduce | o.ReduceScatter | o.Send)
        return "runs over one number" if is_moved and space.shape else ""
    if not space.broadcasts(kind):
        return f"runs over {_shape(kind)}"
    if kind.layout.dim is not None and space.aligned(kind, kind.layout.dim) != space.dim:
        return f"runs over blocks of dim {kind.layout.dim} of {_shape(kind)}"
    if space.dim is not None and kind.layout.is_local:
        return "runs over a whole value of every rank's own"
    if space.dim is not None and isinstance(ops[name], o.AllReduce):
        return "runs over the whole on every rank"
    must_be_full = not o.is_pointwise(ops[name]) or isinstance(ops[name], o.Dropout)
    return f"runs over {_shape(kind)}" if must_be_full and not space.is_full(kind) else ""


def needs_whole(ops: Ops, types: Types, space: Space, name: str) -> str:
    """Why `name` cannot be written by a kernel over `space`, though it can be computed inside; empty where it can."""
    op, kind = ops[name], types[name]
    if kind.is_scalar or isinstance(op, o.AllGather | o.Send):
        return ""
    if isinstance(op, o.Reduction):
        whole = kind.layout.is_replicated and not crosses(ops, types, space, name)
        return f"runs over the whole of {_shape(kind)}" if whole and space.has_block(kind) else ""
    if not space.is_full(kind):
        return f"runs over {_shape(kind)}"
    return "runs over the whole on every rank" if space.dim is not None and kind.layout.is_replicated else ""


def _shape(kind: TensorType) -> str:
    return f"{len(kind.pieces)} tensors" if kind.pieces else str(list(kind.shape))


def described(space: Space) -> str:
    """``blocks of dim 0 of [8, 4, 8]``."""
    shape = f"{len(space.pieces)} tensors" if space.pieces else str(list(space.shape))
    return shape if space.dim is None else f"blocks of dim {space.dim} of {shape}"
