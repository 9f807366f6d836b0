"""Entries of a Plan from single operations and fused groups, before they are put in order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Program
from coconet_lab.ir.types import BUCKET_ELEMENTS, TensorType
from coconet_lab.kernels import kernel as k
from coconet_lab.kernels.lower_costs import Cost, collective_cost, kernel_cost, library_cost, transfer_cost
from coconet_lab.kernels.lower_kernel import KernelBuilder
from coconet_lab.kernels.lower_memory import Memory, source_of
from coconet_lab.kernels.lower_region import Region
from coconet_lab.kernels.plan import AnyEntry, Arrive, Collective, HostScalars, Launch, Library, Slot, Sync, Transfer

POINT = Region((), None, (), BUCKET_ELEMENTS)


@dataclass(frozen=True, slots=True)
class Lowering:
    """What lowering one program needs at hand."""

    program: Program
    memory: Memory

    def groups_of(self, kind: TensorType) -> tuple[int, ...]:
        """Process groups whose ranks compute a value of this type."""
        return tuple(range(self.program.groups)) if kind.group is None else (kind.group,)

    def entries_of(self, name: str, *, own_kernel: bool = False) -> list[AnyEntry]:
        """What runs for one operation; with `own_kernel`, collectives become kernels of ours, which chunks can cut."""
        op = self.program.ops[name]
        match op:
            case _ if name in self.memory.inside:
                return []
            case o.LocalSlice() if name not in self.memory.copied:
                return []
            case o.Update() if name in self.memory.forwarded.values():
                return []
            case o.MatMul() | o.Conv():
                return [self.library(op)]
            case o.Custom() if not op.is_elementwise:
                return self._packed(self.library(op))
            case o.Reduce() | o.Broadcast():
                return [self.collective(op)]
            case o.AllToAll():
                return [self.collective(op) if self._is_contiguous(op) else self.library(op)]
            case o.AllReduce() | o.ReduceScatter() | o.AllGather():
                if own_kernel or not self._is_contiguous(op):
                    return self.launch(name, (name,), (name,))
                return [self.collective(op)]
            case o.Send() if not own_kernel and self._is_packed(source_of(op)):
                return self.transfer(op)
            case _:
                return self.launch(name, (name,), (name,))

    # -- kernels -----------------------------------------------------------------------------------------------------

    def launch(
        self, name: str, members: tuple[str, ...], written: tuple[str, ...], region: Region | None = None
    ) -> list[AnyEntry]:
        """One kernel for `members`, and what waits for it on the ranks of other groups."""
        members, inside = self.memory.taken_in(members)
        made = KernelBuilder(self.memory, name, members, written, region).build()
        kind = self._kind_of_ranks(members or written)
        read, stored = touched(made.kernel)
        groups = self.groups_of(kind)
        partners = [(send, self.program.types[send].group or 0) for send in made.sends]
        meetings = [Sync("barrier")] if made.kernel.opens else []
        meetings += [Sync("barrier", "pair", partner=partner) for partner in dict.fromkeys(p for _, p in partners)]
        entry = Launch(
            name=name, ops=members or written, groups=groups,
            kernel=made.kernel, tensors=made.slots, scalars=made.scalars, inside=inside,
            reads=tuple(made.slots[at].buffer for at in read), writes=tuple(made.slots[at].buffer for at in stored),
            opens=tuple(meetings), closes=tuple(meetings), **as_fields(kernel_cost(made.kernel)),
        )  # fmt: skip
        return [entry, *(self._arrive(name, send, groups[0]) for send in made.sends)]

    def _kind_of_ranks(self, members: Iterable[str]) -> TensorType:
        """A type whose group is the one that computes: a Send's is the sender's."""
        kinds = []
        for name in members:
            op = self.program.ops[name]
            kinds.append(self.program.types[source_of(op) if isinstance(op, o.Send) else name])
        return next((kind for kind in kinds if kind.group is not None), kinds[0])

    def _arrive(self, name: str, send: str, sender: int) -> Arrive:
        slot = self.memory.home(send)
        meeting = (Sync("barrier", "pair", partner=sender),)
        written = slot.type.stored_bytes(self.program.group_ranks)
        return Arrive(
            name=name, ops=(send,), groups=self.groups_of(slot.type), target=slot, writes=(slot.buffer,),
            bytes_written=written, opens=meeting, closes=meeting,
        )  # fmt: skip

    def stored_scalar(self, name: str) -> AnyEntry:
        """A host scalar written into memory, for an output or a library call."""
        (entry,) = self.launch(name, (), (name,), POINT)
        return entry

    # -- libraries ---------------------------------------------------------------------------------------------------

    def library(self, op: o.Op) -> Library:
        """A call of a library."""
        kind = self.program.types[op.name]
        operands = tuple(self.memory.home(source) for source in op.sources)
        target = self.memory.home(op.name)
        ranks = self.program.group_ranks
        if isinstance(op, o.AllToAll):
            cost = collective_cost(op, operands[0].type, kind, ranks)
        else:
            cost = library_cost(op, [slot.type for slot in operands], kind, ranks)
        return Library(
            name=op.name, ops=(op.name,), groups=self.groups_of(kind), op=op, operands=operands, target=target,
            reads=tuple(dict.fromkeys(slot.buffer for slot in operands)), writes=(target.buffer,), **as_fields(cost),
        )  # fmt: skip

    def _packed(self, entry: Library) -> list[AnyEntry]:
        """A user's operator: it takes and makes lists in one row, so those that lie apart are copied by launches."""
        rows = [self.row(name, slot) for name, slot in zip(entry.op.sources, entry.operands)]
        target = self.row(entry.op.name, entry.target)
        before = [e for a, b in zip(entry.operands, rows) for e in self.copy("pack", entry.ops, entry.groups, a, b)]
        after = self.copy("unpack", entry.ops, entry.groups, target, entry.target)
        reads = tuple(dict.fromkeys(slot.buffer for slot in rows))
        call = replace(entry, operands=tuple(rows), target=target, reads=reads, writes=(target.buffer,))
        return [*before, call, *after]

    def row(self, name: str, slot: Slot) -> Slot:
        """The value itself, or where its copy goes: lists from outside lie apart."""
        if not slot.type.is_list or self.memory.buffers[slot.buffer].role == "temporary":
            return slot
        return self.memory.new(name, slot.type, "temporary")

    def copy(
        self, verb: str, ops: tuple[str, ...], groups: tuple[int, ...], source: Slot, target: Slot
    ) -> list[AnyEntry]:
        """A launch that copies a list, where it is in two places."""
        if source == target:
            return []
        kind, value = source.type, self.memory.buffers[source.buffer].value
        tensors = tuple(
            k.TensorParam(value, kind.dtype, kind.shape, self.memory.placement(slot), written=slot is target)
            for slot in (source, target)
        )
        phase = k.Phase((k.Load(0, 0), k.Store(1, 0)))
        kernel = k.Kernel(verb, self.space(kind), tensors, (), (kind.dtype,), (phase,), origin=(value,))
        return [Launch(
            name=f"{verb} {value}", ops=ops, groups=groups,
            kernel=kernel, tensors=(source, target), scalars=(), reads=(source.buffer,), writes=(target.buffer,),
            **as_fields(kernel_cost(kernel)),
        )]  # fmt: skip

    def space(self, kind: TensorType) -> k.Space:
        """What a kernel walks that does the same with every element of a list."""
        dim = 0 if kind.layout.is_sliced else None
        return k.Space(kind.shape, dim, self.program.group_ranks, None, kind.pieces, kind.bucket)

    def collective(self, op: o.Op) -> AnyEntry:
        """A collective of the library."""
        source, target = self.memory.home(source_of(op)), self.memory.home(op.name)
        cost = collective_cost(op, source.type, target.type, self.program.group_ranks)
        return Collective(
            name=op.name, ops=(op.name,), groups=self.groups_of(target.type), kind=op.kind,  # type: ignore[arg-type]
            source=source, target=target, reduction=getattr(op, "reduction", "+"), root=getattr(op, "root", 0), op=op,
            reads=(source.buffer,), writes=(target.buffer,), **as_fields(cost),
        )  # fmt: skip

    def transfer(self, op: o.Op) -> list[AnyEntry]:
        """A library send and receive."""
        source, target = self.memory.home(source_of(op)), self.memory.home(op.name)
        cost = transfer_cost(target.type, self.program.group_ranks)
        groups = (*self.groups_of(source.type), *self.groups_of(target.type))
        return [Transfer(
            name=op.name, ops=(op.name,), groups=groups, source=source, target=target,
            reads=(source.buffer,), writes=(target.buffer,), **as_fields(cost),
        )]  # fmt: skip

    def _is_packed(self, name: str) -> bool:
        """Whether a value's elements on a rank lie without gaps in its buffer."""
        slot = self.memory.home(name)
        if not slot.type.layout.is_sliced or self.memory.placement(slot) == "block":
            return True
        return slot.type.is_list or is_outermost(slot.type)

    def _is_contiguous(self, op: o.Op) -> bool:
        """Whether the blocks that travel are contiguous in both buffers."""
        source, target = self.program.types[source_of(op)], self.program.types[op.name]
        if isinstance(op, o.AllReduce):
            return True
        if isinstance(op, o.AllToAll):
            before_split = source.stored_shape(self.program.group_ranks)[: op.split]
            before_concat = target.stored_shape(self.program.group_ranks)[: op.concat]
            return math.prod(before_split) <= 1 and math.prod(before_concat) <= 1
        kind = source if isinstance(op, o.AllGather) else target
        return is_outermost(kind)


def is_outermost(kind: TensorType) -> bool:
    """Whether the blocks of a sliced type lie one after the other in the whole value."""
    return not kind.is_list and math.prod(kind.shape[: kind.layout.dim]) == 1


def as_fields(cost: Cost) -> dict[str, Any]:
    """A cost as keyword arguments of an entry."""
    return cost.fields()


def touched(kernel: k.Kernel) -> tuple[list[int], list[int]]:
    """Numbers of the tensors a kernel reads, and of those it stores into."""
    read: dict[int, None] = {}
    stored: dict[int, None] = {}
    for statement in kernel.statements():
        if isinstance(statement, k.Load | k.Combine):
            read[statement.tensor] = None
        elif isinstance(statement, k.Store | k.StoreAll | k.StoreTo):
            stored[statement.tensor] = None
    return list(read), list(stored)


def scalars_entry(program: Program, memory: Memory) -> list[AnyEntry]:
    """The arithmetic on scalar inputs that the host does first."""
    ops = tuple(op for name, op in program.ops.items() if name in memory.host and not isinstance(op, o.Input))
    if not ops:
        return []
    names = tuple(op.name for op in ops)
    return [HostScalars(name="scalars", ops=names, groups=tuple(range(program.groups)), scalar_ops=ops)]
