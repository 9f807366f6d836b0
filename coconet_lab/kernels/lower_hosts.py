"""Lowering for ranks on several hosts: kernels reach peers on their host alone, the rest goes through the library.

A group of P = H·L ranks spans H hosts with L consecutive ranks each. ReduceScatter + compute + AllGather becomes

1. a kernel for each host's blocks: a rank combines, over its host, the H blocks that ranks of its number own,
2. an exchange along the rail, the ranks of one number, that combines them over the hosts and rounds once,
3. the compute kernel on the own block, which stores to the ranks of its host,
4. another exchange along the rail, and a kernel for each other host's block that spreads it over this host.

What has no such form runs as the library's collective and the kernel of what is left: an AllReduce, and a Send to a
group on another host. Where a reduction crosses the sliced dim, its kernel ends there (`lower_partials`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from coconet_lab.ir import ops as o
from coconet_lab.ir.dtypes import BF16, FP16, FP32, DType
from coconet_lab.ir.types import TensorType
from coconet_lab.kernels import kernel as k
from coconet_lab.kernels.hosts import Hosts
from coconet_lab.kernels.lower_costs import kernel_cost
from coconet_lab.kernels.lower_entries import Lowering, as_fields, touched
from coconet_lab.kernels.lower_kernel import KernelBuilder, Made
from coconet_lab.kernels.lower_memory import source_of
from coconet_lab.kernels.lower_partials import Part, PartialResult, parts_of
from coconet_lab.kernels.lower_region import Region, UnfitError, region_of
from coconet_lab.kernels.plan import AnyEntry, Collective, Entry, Exchange, Launch, Library, Slot, Sync, Transfer

Names = tuple[str, ...]
_Entry = TypeVar("_Entry", bound=Entry)
_HOST_BARRIER = (Sync("barrier", "host"),)


@dataclass(frozen=True, slots=True)
class HostLowering(Lowering):
    """Lowering of a program whose ranks are on several hosts."""

    hosts: Hosts

    def launch(self, name: str, members: Names, written: Names, region: Region | None = None) -> list[AnyEntry]:
        """The entries of `members`: kernels inside the hosts, and what goes between them."""
        away = tuple(m for m in members if self._leaves_its_host(self.program.ops[m]))
        if self.hosts.span == 1 and not away:
            return Lowering.launch(self, name, members, written, region)
        region = region or region_of(self.program, members or written)
        entries: list[AnyEntry] = []
        reducing = tuple(m for m in members if self.hosts.span > 1 and _reduces(self.program.ops[m]))
        for member in reducing:
            entries += self._reduced(member, frozenset(members))
        rest = tuple(m for m in members if m not in (*reducing, *away))
        sent = {source_of(self.program.ops[m]) for m in away} & set(rest)
        stored = tuple(m for m in rest if m in sent or m in written)
        if stored or not members:
            entries += self._computed(name, rest, stored if members else written, region)
        return entries + [entry for m in away for entry in self.transfer(self.program.ops[m])]

    def _leaves_its_host(self, op: o.Op) -> bool:
        if not isinstance(op, o.Send):
            return False
        kinds = self.program.types[source_of(op)], self.program.types[op.name]
        return not self.hosts.together(*(kind.group or 0 for kind in kinds))

    def _computed(self, name: str, members: Names, written: Names, region: Region) -> list[AnyEntry]:
        """The kernels of what neither combines the ranks' values nor leaves the group."""
        if self.hosts.span == 1:
            return Lowering.launch(self, name, members, written, region)
        members, inside = self.memory.taken_in(members)
        builder = KernelBuilder(self.memory, name, members, written, region)
        made, reductions = builder.build(), builder.phases.reductions
        values = {member: builder.planner.canonical(member) for member in members}
        renamed = {member: value for member, value in values.items() if value != member}
        groups = self.groups_of(self._kind_of_ranks(members or written))
        entries: list[AnyEntry] = []
        for part in parts_of(self._on_host(made), reductions, self.memory, written, renamed):
            launch = self._launch(name, part.ops or members or written, part.made, groups)
            entries.append(replace(launch, inside=tuple(value for value in inside if value in launch.ops)))
            entries += [self._reduction(part, result, groups) for result in part.results]
        gathered = dict.fromkeys(
            made.slots[s.tensor].buffer for s in made.kernel.statements() if isinstance(s, k.StoreAll)
        )
        gathers = [m for m in written if isinstance(self.program.ops[m], o.AllGather)]
        return entries + [e for g in gathers if self.memory.home(g).buffer in gathered for e in self._spread(g, groups)]

    # -- kernels of one host -----------------------------------------------------------------------------------------

    def _on_host(self, made: Made) -> Made:
        """The kernel over the ranks of one host, on blocks of the whole group."""
        space = replace(made.kernel.space, ranks=self.hosts.local, blocks=self.hosts.group_ranks)
        return replace(made, kernel=replace(made.kernel, space=space, opens=False, closes=False))

    def _launch(
        self, name: str, ops: Names, made: Made, groups: tuple[int, ...], shift: int = 0,
        opens: bool = True, closes: bool = True,
    ) -> Launch:  # fmt: skip
        """One launch; where it reaches peers it begins and ends with a barrier of its host, unless told otherwise."""
        kernel, slots = made.kernel, made.slots
        meets = self.hosts.local > 1 and any(isinstance(s, k.Combine | k.StoreAll) for s in kernel.statements())
        kernel = replace(kernel, opens=meets, closes=meets)
        read, stored = touched(kernel)
        return Launch(
            name=name, ops=ops, groups=groups, kernel=kernel, tensors=slots, scalars=made.scalars, shift=shift,
            reads=_buffers(slots[at] for at in read), writes=_buffers(slots[at] for at in stored),
            opens=_HOST_BARRIER if meets and opens else (), closes=_HOST_BARRIER if meets and closes else (),
            **as_fields(kernel_cost(kernel)),
        )  # fmt: skip

    def _reduced(self, name: str, inside: frozenset[str]) -> list[AnyEntry]:
        """A ReduceScatter: combined over this host block by block, then over the hosts."""
        op = self.program.ops[name]
        source = source_of(op)
        if source in inside:
            raise UnfitError(f"{name!r} combines what the same kernel computes")
        if isinstance(op, o.AllReduce):
            return [self.collective(op)]
        kind, region = self.program.types[name], region_of(self.program, (name,))
        reduction = getattr(op, "reduction", "+")
        wide = partial_dtype(kind.dtype, reduction)
        given = self.memory.home(source)
        sums = [self.memory.new(name, replace(kind, dtype=wide), "temporary") for _ in range(self.hosts.span)]
        tensors = (
            k.TensorParam(source, kind.dtype, kind.shape, "whole", peers=True),
            k.TensorParam(name, wide, kind.shape, "block", written=True),
        )
        phase = k.Phase((k.Combine(0, 0, reduction), k.Store(1, 0)))
        kernel = k.Kernel(name, region.space(0), tensors, (), (wide,), (phase,), origin=(name,))
        groups, last = self.groups_of(kind), len(sums) - 1
        entries: list[AnyEntry] = []
        for shift, partial in enumerate(sums):
            made = self._on_host(Made(kernel, (given, partial), (), ()))
            entries.append(self._launch(name, (name,), made, groups, shift, shift == 0, shift == last))
        sent = last * replace(kind, dtype=wide).stored_bytes(self.hosts.group_ranks)
        target = self.memory.home(name)
        row = self.row(name, target)
        entries.append(self._exchange("ReduceScatter", name, (name,), tuple(sums), (row,), sent, groups, reduction))
        return [*entries, *self.copy("unpack", (name,), groups, row, target)]

    def _spread(self, name: str, groups: tuple[int, ...]) -> list[AnyEntry]:
        """The other hosts' blocks of a gathered value: fetched along the rail, stored to the ranks of this host."""
        whole, kind = self.memory.home(name), self.program.types[source_of(self.program.ops[name])]
        others = [self.memory.new(name, kind, "temporary") for _ in range(self.hosts.span - 1)]
        sent = len(others) * kind.stored_bytes(self.hosts.group_ranks)
        own = Slot(whole.buffer, kind)
        row = self.row(name, own)
        entries = self.copy("pack", (name,), groups, own, row)
        entries.append(self._exchange("AllGather", name, (name,), (row,), tuple(others), sent, groups))
        tensors = (
            k.TensorParam(name, kind.dtype, kind.shape, "block"),
            k.TensorParam(name, kind.dtype, kind.shape, "whole", peers=True, written=True),
        )
        phase = k.Phase((k.Load(0, 0), k.StoreAll(1, 0)))
        space = region_of(self.program, (name,)).space(0)
        kernel = k.Kernel(name, space, tensors, (), (kind.dtype,), (phase,), origin=(name,))
        for shift, block in enumerate(others, 1):
            made = self._on_host(Made(kernel, (block, whole), (), ()))
            entries.append(self._launch(name, (name,), made, groups, shift, False, shift == len(others)))
        return entries

    # -- between hosts -----------------------------------------------------------------------------------------------

    def _exchange(
        self, kind: str, name: str, ops: Names, sources: tuple[Slot, ...], targets: tuple[Slot, ...], sent: int,
        groups: tuple[int, ...], reduction: str = "+", counts: tuple[int, ...] = (),
    ) -> Exchange:  # fmt: skip
        return Exchange(
            name=name, ops=ops, groups=groups, kind=kind, sources=sources, targets=targets,  # type: ignore[arg-type]
            reduction=reduction, counts=counts, reads=_buffers(sources), writes=_buffers(targets),
            bytes_read=self._bytes(sources), bytes_written=self._bytes(targets), link_bytes={"between hosts": sent},
        )  # fmt: skip

    def _bytes(self, slots: Sequence[Slot]) -> int:
        return sum(slot.type.stored_bytes(self.hosts.group_ranks) for slot in slots)

    def _reduction(self, part: Part, result: PartialResult, groups: tuple[int, ...]) -> Exchange:
        """The ranks' partial results of one reduction, combined."""
        partial = result.partial.type.stored_bytes(self.hosts.group_ranks)
        # Partial results are small: each rank sends its own to every other.
        made = self._exchange(
            "Reduction", result.value, (result.value,), (result.partial,), (result.target,),
            (self.hosts.group_ranks - self.hosts.local) * partial, groups, result.fn, result.counts,
        )  # fmt: skip
        within = (self.hosts.local - 1) * partial
        return replace(made, link_bytes={**made.link_bytes, **({"group": within} if within else {})})

    def collective(self, op: o.Op) -> AnyEntry:
        """A collective of the library; of a group that spans hosts, some ranks send all they send between hosts."""
        return self._relinked(Lowering.collective(self, op))

    def library(self, op: o.Op) -> Library:
        """A call of a library."""
        return self._relinked(Lowering.library(self, op))

    def space(self, kind: TensorType) -> k.Space:
        """What a kernel walks that does the same with every element of a list, over the ranks of one host."""
        space = Lowering.space(self, kind)
        return replace(space, ranks=self.hosts.local, blocks=self.hosts.group_ranks) if self.hosts.span > 1 else space

    def transfer(self, op: o.Op) -> list[AnyEntry]:
        """A library send and receive."""
        found = Lowering.transfer(self, op)
        return [self._relinked(entry) for entry in found] if self._leaves_its_host(op) else found

    def _relinked(self, entry: _Entry) -> _Entry:
        sent = sum(entry.link_bytes.values())
        spans = isinstance(entry, Transfer) or (self.hosts.span > 1 and isinstance(entry, Collective | Library))
        return replace(entry, link_bytes={"between hosts": sent}) if sent and spans else entry


def partial_dtype(dtype: DType, reduction: str) -> DType:
    """What a host's part of a sum is kept in until it is rounded: 16-bit sums in float32."""
    return FP32 if dtype in (FP16, BF16) and reduction == "+" else dtype


def _reduces(op: o.Op) -> bool:
    return isinstance(op, o.AllReduce | o.ReduceScatter)


def _buffers(slots: Any) -> Names:
    return tuple(dict.fromkeys(slot.buffer for slot in slots))
