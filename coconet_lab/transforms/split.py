"""split: an AllReduce in two halves, so that computation can move between them (paper §3.1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from coconet_lab.errors import Refusal
from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Program
from coconet_lab.ir.types import TensorType
from coconet_lab.transforms.base import Transform, call, in_overlap, unknown
from coconet_lab.transforms.rewriting import carried_groups, fresh_name, with_replaced

FORMS = ("rs_ag", "reduce_broadcast")
_RULE = "an AllReduce is a ReduceScatter and an AllGather, or a Reduce and a Broadcast [paper §3.1]"


@dataclass(frozen=True, slots=True)
class Halves:
    """What a split puts in place of its target, and which of it stays in the target's fused group."""

    ops: tuple[o.Op, ...]
    grouped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Split(Transform):
    """total = AllReduce(x)  -->  total_rs = ReduceScatter(x); total = AllGather(total_rs).

    A Send of a Replicated value becomes a local slice, a Send of the slice, and an AllGather in the target group.

    Parameters
    ----------
    target : str
        An AllReduce, or a Send of a Replicated value.
    dim : int or None
        The dim to slice; None is the first that divides among the ranks (0 for one-dimensional values).
    into : "rs_ag" or "reduce_broadcast"

    Examples
    --------
    >>> import coconet_lab as cl
    >>> g = cl.tensor("g", cl.FP32, (8,), cl.Local)
    >>> before = cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=4)
    >>> Split("total")(before)
    sum: 3 ops, 4 ranks
      g = Tensor                          FP32[8] Local
      total_rs = ReduceScatter(g, dim=0)  FP32[8] Sliced(0)
      total = AllGather(total_rs)         FP32[8] Replicated
      outputs total
    """

    target: str
    dim: int | None = None
    into: str = "rs_ag"
    kind: ClassVar[str] = "split"

    def plan(self, program: Program) -> Halves | Refusal:
        """The halves, or the Refusal."""
        op = program.ops.get(self.target)
        if op is None:
            return unknown(program, self.target)
        if self.into not in FORMS:
            return Refusal(f"cannot split {self.target!r} into {self.into!r}", _RULE, 'into="rs_ag"', applies=False)
        refusal = in_overlap(program, iter([self.target])) or self._wrong_target(program, op)
        if refusal is not None:
            return refusal
        if isinstance(op, o.AllReduce) and self.into == "reduce_broadcast":
            return self._reduce_broadcast(program, op)
        dim = self._dim(program, op)
        if isinstance(dim, Refusal):
            return dim
        return self._sent(program, op, dim) if isinstance(op, o.Send) else self._scattered(program, op, dim)

    def _wrong_target(self, program: Program, op: o.Op) -> Refusal | None:
        if isinstance(op, o.AllReduce):
            return None
        if not isinstance(op, o.Send):
            targets = [name for name, other in program.ops.items() if isinstance(other, o.AllReduce)]
            hint = call("split", targets[0]) if targets else "this program has no AllReduce"
            return Refusal(f"{op.name!r} is {_article(op.kind)}, not an AllReduce", _RULE, hint, applies=False)
        kind = program.types[op.name]
        if not kind.layout.is_replicated or self.into != "rs_ag":
            found = f"{op.name!r} sends a value that is {kind.layout}, and asks for {self.into!r}"
            rule = "a Send is split into slices where every rank sends the same: of a Replicated value [paper §4]"
            return Refusal(found, rule, 'split an AllReduce, or a Send of a Replicated value into "rs_ag"')
        return None

    def _dim(self, program: Program, op: o.Op) -> int | Refusal:
        kind, ranks = program.types[op.name], program.group_ranks
        fits = [d for d in range(len(kind.shape)) if _divides(kind, d, ranks)]
        if self.dim is None:
            return fits[0] if fits else self._nothing_divides(op, kind, ranks)
        if not 0 <= self.dim < len(kind.shape) or (kind.pieces and self.dim):
            found = f"cannot split {op.name!r} along dim {self.dim}: it has dims 0 to {len(kind.shape) - 1}"
            return Refusal(found, "a value is sliced along one of its dims", call("split", op.name))
        if self.dim not in fits:
            return self._not_even(op, kind, ranks, fits)
        return self.dim

    def _not_even(self, op: o.Op, kind: TensorType, ranks: int, fits: list[int]) -> Refusal:
        extent = kind.shape[self.dim or 0]
        way_out = Split(op.name, fits[0]) if fits else None
        padded = f"pad dim {self.dim} to {-(-extent // ranks) * ranks}"
        return Refusal(
            f"cannot split {op.name!r} along dim {self.dim}: it has {extent} elements for {ranks} ranks",
            "a sliced dim must divide evenly among the ranks (one-dimensional values take any size)",
            f"{way_out.script()}, or {padded}" if way_out else padded,
            way_out,
        )

    def _nothing_divides(self, op: o.Op, kind: TensorType, ranks: int) -> Refusal:
        shape = f"has shape {list(kind.shape)}" if kind.shape else "is zero-dimensional"
        return Refusal(
            f"cannot split {op.name!r}: it {shape}, and no dim divides among {ranks} ranks",
            "a sliced dim must divide evenly among the ranks (one-dimensional values take any size)",
            f"pad dim 0 to {-(-kind.shape[0] // ranks) * ranks}" if kind.shape else "leave it as it is: one number",
        )

    def _scattered(self, program: Program, op: o.Op, dim: int) -> Halves:
        part = fresh_name(program, f"{op.name}_rs")
        reduction = op.reduction if isinstance(op, o.AllReduce) else "+"
        first = o.ReduceScatter(
            name=part, operands=op.operands, label=op.label, site=op.site, dim=dim, reduction=reduction
        )
        return Halves((first, _gather(op, part)), (part, op.name))

    def _reduce_broadcast(self, program: Program, op: o.AllReduce) -> Halves | Refusal:
        if self.dim is not None:
            found = f"cannot split {op.name!r} into a Reduce along dim {self.dim}: its root receives it whole"
            way_out = Split(op.name, None, self.into)
            return Refusal(found, _RULE, way_out.script(), way_out)
        part = fresh_name(program, f"{op.name}_reduce")
        first = o.Reduce(name=part, operands=op.operands, label=op.label, site=op.site, reduction=op.reduction)
        second = o.Broadcast(name=op.name, operands=(part,), label=op.label, site=op.site)
        return Halves((first, second), (part, op.name))

    def _sent(self, program: Program, op: o.Send, dim: int) -> Halves:
        source = next(op.sources)
        cut = fresh_name(program, f"{source}_part")
        part = fresh_name(program, f"{op.name}_part", (cut,))
        block = o.LocalSlice(name=cut, operands=(source,), label=program.ops[source].label, site=op.site, dim=dim)
        moved = o.Send(name=part, operands=(cut,), label=op.label, site=op.site, offset=op.offset)
        # The gather runs in the target group, so it cannot stay in a fused group of this one.
        return Halves((block, moved, _gather(op, part)), (cut, part))

    def needs_trial(self, program: Program, plan: Halves) -> bool:
        """Only a target in a fused group: the group must stay one kernel."""
        return self.target in program.fusion_of

    def carry_out(self, program: Program, plan: Halves) -> Program:
        """The program with the halves in the target's place."""
        ops = with_replaced(program.ops, {self.target: plan.ops})
        fusions = carried_groups(program, ops, {self.target: plan.grouped})
        return program.edit(ops, touched=[op.name for op in plan.ops], fusions=fusions)

    @classmethod
    def candidates(cls, program: Program) -> Iterator[Self]:
        """Every AllReduce and every Send of a Replicated value."""
        for name, op in program.ops.items():
            if isinstance(op, o.AllReduce) or (isinstance(op, o.Send) and program.types[name].layout.is_replicated):
                yield cls(name)

    def script(self) -> str:
        """``split("total")``."""
        return call("split", self.target, dim=self.dim, into=None if self.into == "rs_ag" else self.into)


def _gather(op: o.Op, part: str) -> o.AllGather:
    return o.AllGather(name=op.name, operands=(part,), label=op.label, site=op.site)


def _divides(kind: TensorType, dim: int, ranks: int) -> bool:
    return len(kind.shape) == 1 or kind.shape[dim] % ranks == 0


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"
