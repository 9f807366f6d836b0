"""Whether the chunks of a chain of stages match: one dim runs through all of them, and nobody reduces across it."""

from __future__ import annotations

from collections.abc import Sequence

from coconet_lab.errors import Refusal
from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Program
from coconet_lab.ir.spaces import common_space
from coconet_lab.ir.types import TensorType

RULE = "all stages run over the same chunks in one order, so no stage after the first reduces across them [paper §3.4]"
SAME_BLOCKS = "stages whose blocks are of different dims finish their chunks in different orders [paper §3.4]"


def chunk_refusal(program: Program, stages: Sequence[str], members: Sequence[Sequence[str]]) -> Refusal | None:
    """Why no dim can be cut into chunks through all `stages`, or None."""
    refusals = []
    for dim in range(len(_out_shape(program, members[0]))):
        refusal = _along(program, stages, members, dim)
        if refusal is None:
            return None
        refusals.append(refusal)
    if not refusals:
        found = f"cannot overlap {' | '.join(stages)}: {stages[0]!r} is one number"
        return Refusal(found, RULE, "overlap tensors")
    return next((refusal for refusal in refusals if refusal.rule == RULE), refusals[0])


def _along(program: Program, stages: Sequence[str], members: Sequence[Sequence[str]], dim: int) -> Refusal | None:
    """Follow dim `dim` of what the first stage makes through the chain."""
    wanted = _own_dim(program, members[0])
    if wanted is not None and wanted != dim:
        return _mismatch(stages[0], stages[1], dim, wanted)
    for at in range(1, len(stages)):
        moved = _through(program, members[at - 1], members[at], dim)
        if isinstance(moved, str):
            across = f"{moved!r} ({program.ops[moved].kind}) reduces across dim {dim}"
            found = f"cannot overlap {' | '.join(stages)}: {across}"
            return Refusal(found, RULE, f"leave {stages[at]!r} out, or chunk another dim")
        wanted = _own_dim(program, members[at])
        if wanted is not None and wanted != moved:
            return _mismatch(stages[at - 1], stages[at], moved, wanted)
        dim = moved
    return None


def _mismatch(first: str, second: str, dim: int, wanted: int) -> Refusal:
    found = f"cannot overlap {first!r} and {second!r}: one runs in chunks of dim {dim}, the other of dim {wanted}"
    return Refusal(found, SAME_BLOCKS, f"split along dim {dim}, so that both run over the same blocks")


def _own_dim(program: Program, members: Sequence[str]) -> int | None:
    """The dim whose blocks fix a stage's order of chunks: that of its collective or slices; None where any will do."""
    for name in members:
        op = program.ops[name]
        if isinstance(op, o.ReduceScatter):
            return op.dim
        if isinstance(op, o.AllGather):
            return program.types[next(op.sources)].layout.dim
    return None if isinstance(program.ops[members[0]], o.MatMul | o.Conv) else _space_dim(program, members)


def _space_dim(program: Program, members: Sequence[str]) -> int | None:
    return common_space(program.ops, program.types, members).dim


def _out_shape(program: Program, members: Sequence[str]) -> tuple[int, ...]:
    kinds = [program.types[name] for name in members]
    return max((kind.shape for kind in kinds if not kind.is_scalar), key=len, default=())


def _through(program: Program, first: Sequence[str], second: Sequence[str], dim: int) -> int | str:
    """Where dim `dim` of the first stage's values is in the second stage's, or the operation that reduces across it."""
    rank = len(_out_shape(program, first))
    shape = _out_shape(program, second)
    fed = set(first)
    for name in second:
        op = program.ops[name]
        if isinstance(op, o.MatMul | o.Conv):
            moved = _contracted(program, op, fed, dim)
            return name if moved is None else moved
    moved = dim + len(shape) - rank
    for name in second:
        op = program.ops[name]
        if isinstance(op, o.Reduction) and _reduces(program.types[next(op.sources)], op, moved, len(shape)):
            return name
    return moved


def _contracted(program: Program, op: o.Op, fed: set[str], dim: int) -> int | None:
    """Where a dim of an operand is in a MatMul's or Conv's result; None where it is summed over."""
    a, b = (x for x in op.operands if isinstance(x, str))
    rank = len(program.types[a].shape)
    if isinstance(op, o.MatMul):
        if a in fed and (dim == rank - 1 or b in fed):
            return None
        return dim if a in fed else (rank - 1 if dim == 1 else None)
    if a in fed:
        return 0 if dim == 0 and b not in fed else None
    return 1 if dim == 0 else None


def _reduces(kind: TensorType, op: o.Reduction, dim: int, rank: int) -> bool:
    own = dim - (rank - len(kind.shape))
    return own >= 0 and (op.dims is None or bool(kind.pieces) or own in op.dims)
