"""A Plan run in NumPy, all ranks in one process, each rank going on by itself as far as the Plan lets it.

Every rank has one queue per stream. An entry starts when the entries it names in `after` are done on its rank and its
meetings are; which of the entries that can go on does so next is drawn at random, or greedily for one rank. So a Plan
that lacks a dependency, a barrier or a signal reads poison or stale values here, and one that waits in a circle stops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Any

import numpy as np
from kernel_interpreter import FINISH, KernelRun

from coconet_lab.ir import ops as o
from coconet_lab.ir.contract import conv, finished, matmul
from coconet_lab.ir.elementwise import FUNCTIONS
from coconet_lab.ir.inputs import check_inputs, input_block
from coconet_lab.ir.rank_values import block_slices
from coconet_lab.ir.rounding import cast, literal, poisoned, rounded
from coconet_lab.kernels import plan as p

Array = np.ndarray[Any, Any]
COMBINE = {"+": np.add, "max": np.maximum, "min": np.minimum}


@dataclass
class Machine:
    """Memory, scalars and meetings of all ranks of one run."""

    plan: p.Plan
    memory: list[dict[str, Array]]
    scalars: dict[str, Array]
    arrived: dict[tuple[Any, ...], set[int]]
    posted: dict[tuple[Any, ...], set[int]]
    left: dict[tuple[Any, ...], Any]

    def __post_init__(self) -> None:
        placement, self.size = self.plan.placement, self.plan.group_ranks
        self.hosts = [placement.host(rank) for rank in range(self.plan.ranks)]
        self._members = [range(self.size * group, self.size * (group + 1)) for group in range(self.plan.groups)]
        local = placement.local
        self._rails = [[o for o in self.members(r) if o % local == r % local] for r in range(self.plan.ranks)]
        self._cuts: dict[tuple[int, int], tuple[p.Slot, tuple[Any, ...]]] = {}

    def again(self) -> Machine:
        """Another with this memory, where nothing has happened."""
        memory = [{name: array.copy() for name, array in held.items()} for held in self.memory]
        return Machine(self.plan, memory, dict(self.scalars), {}, {}, {})

    def members(self, rank: int) -> range:
        return self._members[rank // self.size]

    def host(self, rank: int) -> int:
        return self.hosts[rank]

    def peers(self, rank: int) -> list[int]:
        """The ranks of its group on its host."""
        return [other for other in self.members(rank) if self.hosts[other] == self.hosts[rank]]

    def rail(self, rank: int) -> list[int]:
        """The ranks of its number on every host of its group."""
        return self._rails[rank]

    def shifted(self, rank: int, shift: int) -> int:
        """In its group, the rank of its number so many hosts further on."""
        rail = self._rails[rank]
        return rail[(rail.index(rank) + shift) % len(rail)] % self.size

    def view(self, rank: int, slot: p.Slot, shift: int = 0) -> Array:
        """The part of a buffer that is this rank's value, or where it holds another host's block."""
        return self.memory[rank][slot.buffer][self._cut(slot, self.shifted(rank, shift))]

    def _cut(self, slot: p.Slot, k: int) -> tuple[Any, ...]:
        kept = self._cuts.get((id(slot), k))
        if kept is None:
            ranges = slot.type.ranges(k, self.size)
            if self.plan.buffers[slot.buffer].placement == "block":
                ranges = tuple((0, stop - start) for start, stop in ranges)
            # With the slot: as long as it lives, no other has its id.
            kept = self._cuts[id(slot), k] = slot, (..., *(slice(*r) for r in ranges))
        return kept[1]


def run_plan(program: Any, plan: p.Plan, inputs: Any, seed: int = 0, greedy: int | None = None) -> Machine:
    """Run; `greedy` prefers one rank whenever it can go on (-1: the last ones first)."""
    return run_machine(before(program, plan, inputs), seed, greedy)


def run_machine(machine: Machine, seed: int, greedy: int | None) -> Machine:
    """Run the Plan of a machine that is as before a run."""
    plan = machine.plan
    queues: dict[tuple[int, int], list[Iterator[bool]]] = defaultdict(list)
    done: list[set[int]] = [set() for _ in range(plan.ranks)]
    for at, entry in enumerate(plan.entries):
        for rank in range(plan.ranks):
            if rank // machine.size in entry.groups:
                queues[rank, entry.stream].append(_entry(machine, at, entry, rank, done))
    _schedule({key: chain(*queue) for key, queue in queues.items()}, Random(seed), greedy)
    return machine


def _schedule(queues: dict[tuple[int, int], Iterator[bool]], random: Random, greedy: int | None) -> None:
    """Step the queues until all are at their end; an entry yields False while it waits."""
    live = sorted(queues)
    free = live.copy()
    while live:
        if not free:
            raise AssertionError(f"every rank waits: {live}")
        at = random.randrange(len(free)) if greedy is None else greedy
        key = free[at]
        step = next(queues[key], None)
        if step is False:
            del free[at]
            continue
        if step is None:
            live.remove(key)
        if step is None or len(free) < len(live):
            free = live.copy()


def _entry(machine: Machine, at: int, entry: Any, rank: int, done: list[set[int]]) -> Iterator[bool]:
    mine = [i for i in entry.after if rank // machine.size in machine.plan.entries[i].groups]
    assert all(i < at for i in mine)
    while not done[rank].issuperset(mine):
        yield False
    for number, sync in enumerate(entry.opens):
        yield from _meet(machine, (at, "opens", number), sync, rank)
    yield True
    yield from _execute(machine, at, entry, rank)
    for number, sync in enumerate(entry.closes):
        yield from _meet(machine, (at, "closes", number), sync, rank)
    done[rank].add(at)
    yield True


def _meet(machine: Machine, place: tuple[Any, ...], sync: p.Sync, rank: int) -> Iterator[bool]:
    group = rank // machine.size
    scope = set(machine.peers(rank) if sync.scope == "host" else machine.members(rank))
    if sync.scope == "pair":
        partner = sync.partner * machine.size + rank % machine.size
        scope = {rank, partner}
    if sync.kind == "barrier":
        # The n-th barrier of these ranks, whichever entry they are at.
        line = ("barrier", tuple(sorted(scope)), place if sync.scope != "pair" else None)
        number = machine.left.setdefault((line, rank), 0)
        machine.left[line, rank] = number + 1
        arrived = machine.arrived.setdefault((line, number), set())
        arrived.add(rank)
        yield True
        while arrived != scope:
            yield False
    elif sync.kind == "signal":
        assert 0 <= sync.channel < machine.plan.channels
        posted = machine.posted.setdefault((sync.channel, group), set())
        assert rank not in posted, "a channel is posted once a run"
        posted.add(rank)
        yield True
    else:
        senders = scope if sync.scope == "group" else scope - {rank}
        sender_group = group if sync.scope == "group" else sync.partner
        while not machine.posted.get((sync.channel, sender_group), set()) >= senders:
            yield False


def _execute(machine: Machine, at: int, entry: Any, rank: int) -> Iterator[bool]:
    match entry:
        case p.Launch():
            yield from _launch(machine, at, entry, rank)
        case p.Collective():
            yield from _collective(machine, at, entry, rank)
        case p.Exchange():
            yield from _exchange(machine, at, entry, rank)
        case p.Transfer():
            yield from _transfer(machine, at, entry, rank)
        case p.Library() if isinstance(entry.op, o.AllToAll):
            yield from _collective(machine, at, entry, rank)
        case p.Library():
            _library(machine, entry, rank)
            yield True
        case p.HostScalars():
            for op in entry.scalar_ops:
                machine.scalars[op.name] = host_scalar(machine, op)
            yield True
        case p.Arrive():
            yield True


def host_scalar(machine: Machine, op: o.Op) -> Array:
    types = machine.plan.scalar_types
    kind = types[op.name]
    first = [types[x].dtype for x in op.operands if isinstance(x, str)]
    first = first[1:] if op.kind == "Where" and isinstance(op.operands[0], str) else first
    dtype = first[0] if first else kind.dtype
    scalars, size = machine.scalars, machine.size
    arrays = [scalars[x] if isinstance(x, str) else literal(x.resolve(size), dtype) for x in op.operands]
    with np.errstate(all="ignore"):
        if isinstance(op, o.Cast):
            return cast(arrays[0], dtype, kind.dtype)
        return np.asarray(FUNCTIONS[op.fn](dtype, *arrays))


def _launch(machine: Machine, at: int, entry: p.Launch, rank: int) -> Iterator[bool]:
    run = KernelRun(machine, entry, rank)
    for number in range(len(entry.kernel.phases)):
        run.phase(number)
        yield True
        if run.partials:
            shared = machine.left.setdefault(("partials", at, rank // machine.size, number), {})
            shared[rank] = dict(run.partials)
            while any(entry.kernel.accumulators[a].crosses for a in run.partials) and len(shared) < machine.size:
                yield False
            run.finish(shared)


def _collective(machine: Machine, at: int, entry: Any, rank: int) -> Iterator[bool]:
    source = entry.source if isinstance(entry, p.Collective) else entry.operands[0]
    brought = machine.left.setdefault(("collective", at), {})
    brought[rank] = machine.view(rank, source).copy()
    yield True
    while not all(member in brought for member in machine.members(rank)):
        yield False
    arrays = [brought[member] for member in machine.members(rank)]
    result = combined(entry, source, arrays)
    kind, k = entry.target.type, rank % machine.size
    if isinstance(entry.op, o.Reduce) and k != entry.op.root:
        return
    cut = result if not kind.layout.is_sliced else result[tuple(slice(*r) for r in kind.ranges(k, machine.size))]
    machine.view(rank, entry.target)[...] = cut
    yield True


def combined(entry: Any, source: p.Slot, arrays: list[Array]) -> Array:
    """The global value that a collective makes of what the ranks bring."""
    if isinstance(entry.op, o.Broadcast):
        return arrays[entry.op.root]
    if source.type.layout.is_sliced:
        return np.concatenate(arrays, axis=source.type.layout.dim)
    dtype = source.type.dtype
    total = arrays[0].astype(dtype.compute)
    for array in arrays[1:]:
        total = COMBINE[entry.reduction](total, array.astype(dtype.compute))
    return rounded(np.asarray(total), dtype)


def _exchange(machine: Machine, at: int, entry: p.Exchange, rank: int) -> Iterator[bool]:
    along = machine.members(rank) if entry.kind == "Reduction" else machine.rail(rank)
    brought = machine.left.setdefault(("exchange", at), {})
    shifts = range(len(entry.sources))
    brought[rank] = [machine.view(rank, slot, shift).copy() for shift, slot in zip(shifts, entry.sources)]
    yield True
    while not all(member in brought for member in along):
        yield False
    target, own = entry.targets[0] if entry.targets else None, list(along).index(rank)
    if entry.kind == "AllGather":
        for shift, slot in enumerate(entry.targets, 1):
            machine.view(rank, slot, shift)[...] = brought[along[(own + shift) % len(along)]][0]
    elif entry.kind == "ReduceScatter":
        parts = [brought[other][(own - at) % len(along)] for at, other in enumerate(along)]
        dtype = target.type.dtype
        total = parts[0].astype(dtype.compute)
        for part in parts[1:]:
            total = COMBINE[entry.reduction](total, part.astype(dtype.compute))
        machine.view(rank, target)[...] = rounded(np.asarray(total), dtype)
    else:
        total = brought[along[0]][0]
        for other in along[1:]:
            total = FINISH[entry.reduction](total, brought[other][0])
        machine.view(rank, target)[...] = _finished(entry, total)
    yield True


def _finished(entry: p.Exchange, total: Array) -> Array:
    with np.errstate(all="ignore"):
        if entry.reduction == "mean":
            total = total / np.array(entry.counts if len(entry.counts) > 1 else entry.counts[0], np.float64)
        total = np.sqrt(total) if entry.reduction == "norm" else total
        return finished(np.asarray(total), entry.targets[0].type.dtype)


def _transfer(machine: Machine, at: int, entry: p.Transfer, rank: int) -> Iterator[bool]:
    sent = machine.left.setdefault(("transfer", at), {})
    k = rank % machine.size
    if rank // machine.size == entry.groups[0]:
        sent[k] = machine.view(rank, entry.source).copy()
        yield True
    if rank // machine.size == entry.groups[1]:
        while k not in sent:
            yield False
        machine.view(rank, entry.target)[...] = sent[k]
        yield True


def _library(machine: Machine, entry: p.Library, rank: int) -> None:
    arrays = [machine.view(rank, slot) for slot in entry.operands]
    target = machine.view(rank, entry.target)
    chunk, op = entry.chunk, entry.op
    if chunk is not None:
        cut = slice(chunk.start, min(chunk.stop, target.shape[chunk.dim]))
        target = target[(slice(None),) * chunk.dim + (cut,)]
        columns = target.ndim - 1 if isinstance(op, o.MatMul) else 1
        if chunk.dim == columns:
            arrays[1] = arrays[1][:, cut] if isinstance(op, o.MatMul) else arrays[1][cut]
        else:
            arrays[0] = arrays[0][(slice(None),) * chunk.dim + (cut,)]
    with np.errstate(all="ignore"):
        if isinstance(op, o.MatMul):
            target[...] = matmul(*arrays, entry.target.type.dtype)
        elif isinstance(op, o.Conv):
            target[...] = conv(*arrays, op.stride, op.padding, entry.target.type.dtype)
        else:
            target[...] = _custom(machine, entry, rank, arrays)


def _custom(machine: Machine, entry: p.Library, rank: int, arrays: list[Array]) -> Array:
    kind, k = entry.target.type, rank % machine.size
    ranges = kind.ranges(k, machine.size)
    if kind.layout.is_sliced:
        whole = [slot.type.layout.is_replicated for slot in entry.operands]
        arrays = [
            a[block_slices(slot.type, kind, ranges)] if w else a for a, slot, w in zip(arrays, entry.operands, whole)
        ]
    stored, operands = iter(arrays), []
    for x in entry.op.operands:
        operands.append(next(stored) if isinstance(x, str) else literal(x.resolve(machine.size), kind.dtype))
    return np.asarray((entry.op.operator.call or entry.op.operator.meaning)(*operands, ranges=ranges))


def before(program: Any, plan: p.Plan, inputs: Any) -> Machine:
    """All ranks before a run: inputs in their places, everything else poisoned."""
    given = check_inputs(program, inputs)
    memory: list[dict[str, Array]] = []
    for rank in range(plan.ranks):
        held = {}
        for name, buffer in plan.buffers.items():
            if buffer.symmetric or buffer.group in (-1, rank // plan.group_ranks):
                shape = buffer.type.shape if buffer.placement == "whole" else buffer.type.stored_shape(plan.group_ranks)
                held[name] = poisoned(shape, buffer.type.dtype)
                assert held[name].nbytes == buffer.bytes
        memory.append(held)
    scalars = {name: np.asarray(given[name]) for name in plan.scalar_inputs}
    machine = Machine(plan, memory, scalars, {}, {}, {})
    for name, slot in plan.inputs.items():
        group = plan.buffers[slot.buffer].group
        for rank in range(plan.ranks):
            if group in (-1, rank // plan.group_ranks):
                machine.view(rank, slot)[...] = input_block(program, given, name, rank)
    return machine
