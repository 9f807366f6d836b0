"""Entries of a Plan as prebound steps: everything that can be looked up is looked up before the first run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from coconet_lab.ir.rounding import poison
from coconet_lab.ir.types import TensorType
from coconet_lab.kernels.kernel import Kernel
from coconet_lab.kernels.numba_compile import Compiled
from coconet_lab.kernels.numba_printer import barriers
from coconet_lab.kernels.plan import Collective, Launch, Sync, Transfer
from coconet_lab.run.communicator import Communicator
from coconet_lab.run.engine_library import all_to_all
from coconet_lab.run.engine_meet import Meetings
from coconet_lab.run.engine_memory import Memory

Array = np.ndarray[Any, Any]
Step = Callable[[], None]
_INSIDE = (Sync("barrier"), Sync("barrier", "host"))  # meetings that a kernel holds itself


class Arguments:
    """The scalar arguments of one launch, overwritten in place: a new value recompiles nothing."""

    def __init__(self, launch: Launch) -> None:
        params = launch.kernel.scalars
        self._floats = [name for name, p in zip(launch.scalars, params) if p.dtype.is_float]
        self._integers = [name for name, p in zip(launch.scalars, params) if not p.dtype.is_float]
        self.scalars = np.zeros(len(self._floats), np.float64)
        self.integers = np.zeros(len(self._integers), np.int64)

    def set(self, values: dict[str, Array]) -> None:
        """Take new values."""
        for at, name in enumerate(self._floats):
            self.scalars[at] = values[name].astype(np.float64)
        for at, name in enumerate(self._integers):
            self.integers[at] = values[name].astype(np.int64)


def launch_step(
    index: int, entry: Launch, kernel: Compiled, memory: Memory, meetings: Meetings, arguments: Arguments
) -> Step:
    """A generated kernel with its argument tables; its group's barriers happen inside of it."""
    pointers, extents = memory.pointers(index, entry), memory.extents(entry)
    scalars, integers = arguments.scalars, arguments.integers
    place, pads, deadline_ns = memory.place, meetings.pads, meetings.deadline_ns
    rank = (place.index + entry.shift * place.local) % place.ranks  # whose block it walks
    lo, hi = (entry.chunk.start, entry.chunk.stop) if entry.chunk else (0, _walked(entry.kernel))
    opens, closes = (int(any(sync in _INSIDE for sync in syncs)) for syncs in (entry.opens, entry.closes))
    count = barriers(entry.kernel)
    turn = 0

    def launch() -> None:
        nonlocal turn
        epoch = meetings.epoch
        meetings.epoch = epoch + count
        status = kernel(
            pointers, extents, scalars, integers, rank, lo, hi, turn, pads, epoch, deadline_ns, opens, closes
        )
        if status:
            raise meetings.lost(index, place.peers(-1)[status - 1])
        turn ^= 1

    return launch


def meeting_steps(index: int, syncs: tuple[Sync, ...], meetings: Meetings, inside: bool) -> list[Step]:
    """Steps for an entry's meetings; a launch does its group's barriers itself (`inside`)."""
    chosen = [sync for sync in syncs if not (inside and sync in _INSIDE)]
    return [meetings.step(sync, index) for sync in chosen]


def _walked(kernel: Kernel) -> int:
    dim = kernel.space.chunk_dim
    return kernel.space.shape[dim] if dim is not None else 0


def collective_step(entry: Collective, memory: Memory, group: Communicator) -> Step:
    """A collective of MPI's, or of threads."""
    if entry.kind == "AllToAll":
        split, concat = entry.op.split, entry.op.concat  # type: ignore[attr-defined]
        return lambda: all_to_all(group, memory.view(entry.source), memory.view(entry.target), split, concat)
    sources = [_Flat(part) for part in memory.parts(entry.source)]
    targets = [_Flat(part) for part in memory.parts(entry.target)]
    if entry.kind in ("ReduceScatter", "AllGather"):  # never of a list: its blocks are kernels' work
        return _written_back(_block_move(entry, memory, group, sources[0], targets[0]), targets)
    moves = [_whole_move(entry, group, source, target) for source, target in zip(sources, targets)]

    def move() -> None:
        for one in moves:
            one()

    return _written_back(moves[0] if len(moves) == 1 else move, targets)


def _block_move(entry: Collective, memory: Memory, group: Communicator, source: _Flat, target: _Flat) -> Step:
    """A collective of which every rank has a block."""
    dtype, reduction, before, after = entry.target.type.dtype, entry.reduction, source.read, target.array
    if entry.kind == "ReduceScatter":
        counts = _counts(entry.target.type, memory)
        return lambda: group.reduce_scatter(before(), after, counts, reduction, dtype)
    counts = _counts(entry.source.type, memory)
    return lambda: group.all_gather(before(), after, counts)


def _whole_move(entry: Collective, group: Communicator, source: _Flat, target: _Flat) -> Step:
    """A collective of a whole value, or of one tensor of a list."""
    dtype, reduction, root = entry.target.type.dtype, entry.reduction, entry.root
    before, after, nothing = source.read, target.array, poison(entry.target.type.dtype)

    def reduce() -> None:
        if group.rank != root:
            after.fill(nothing)
        group.reduce(before(), after, root, reduction, dtype)

    def broadcast() -> None:
        if group.rank == root:
            after[:] = before()
        group.broadcast(after, root)

    if entry.kind == "AllReduce":
        return lambda: group.all_reduce(before(), after, reduction, dtype)
    return reduce if entry.kind == "Reduce" else broadcast


def transfer_step(entry: Transfer, memory: Memory, group: Communicator) -> Step:
    """A send on the ranks of the first group, a receive on those of the second."""
    place = memory.place
    sends, receives = entry.groups[0], entry.groups[-1]
    if place.group == sends:
        sources = [_Flat(part) for part in memory.parts(entry.source)]
        to = place.members(receives)[place.index]

        def send() -> None:
            for source in sources:
                group.send(source.read(), to)

        return send
    targets = [_Flat(part) for part in memory.parts(entry.target)]
    sender = place.members(sends)[place.index]

    def receive() -> None:
        for target in targets:
            group.receive(target.array, sender)

    return _written_back(receive, targets)


class _Flat:
    """An array as one row of elements: the array itself where it is contiguous, else a copy."""

    def __init__(self, view: Array) -> None:
        self.view = view
        self.is_direct = view.flags.c_contiguous
        self.array = view.reshape(-1) if self.is_direct else np.empty(view.size, view.dtype)

    def read(self) -> Array:
        """The elements as they are now."""
        if not self.is_direct:
            self.array.reshape(self.view.shape)[...] = self.view
        return self.array

    def write(self) -> None:
        """Put a copy's elements back."""
        self.view[...] = self.array.reshape(self.view.shape)


def _written_back(move: Step, targets: list[_Flat]) -> Step:
    copies = [target for target in targets if not target.is_direct]
    if not copies:
        return move

    def both() -> None:
        move()
        for target in copies:
            target.write()

    return both


def _counts(kind: TensorType, memory: Memory) -> list[int]:
    """Elements of every rank's block."""
    ranks = memory.place.ranks
    return [int(np.prod(kind.local_shape(rank, ranks), dtype=np.int64)) for rank in range(ranks)]
