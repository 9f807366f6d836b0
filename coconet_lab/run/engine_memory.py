"""The memory of one rank for a Plan: its buffers, and the addresses that kernels get."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar, cast

import numpy as np

from coconet_lab.ir.dtypes import DType
from coconet_lab.ir.rounding import poison
from coconet_lab.ir.types import Range, TensorType, block_range
from coconet_lab.kernels.kernel import Kernel
from coconet_lab.kernels.numba_convert import widen
from coconet_lab.kernels.plan import Buffer, Launch, Plan, Slot
from coconet_lab.kernels.scatter import reserved_elements, shifts, spans
from coconet_lab.kernels.signals import PAD_LINE, pad_bytes
from coconet_lab.run.world import SharedBuffer, World

Array = np.ndarray[Any, Any]
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Place:
    """This rank in its Plan.

    Parameters
    ----------
    rank : int
        Of all ranks.
    group, index : int
        Its process group, and its rank within it.
    ranks, span : int
        Ranks of a group, and the hosts it spans.
    """

    rank: int
    group: int
    index: int
    ranks: int
    span: int = 1

    @property
    def local(self) -> int:
        """Ranks of a group on one host: they reach each other's memory."""
        return self.ranks // self.span

    @property
    def at(self) -> int:
        """This rank's number among its group's on this host."""
        return self.index % self.local

    def peers(self, group: int) -> range:
        """The ranks of a group whose memory this rank reaches: for its own group, those on its host."""
        first = self.members(group)[self.index - self.at]
        return range(first, first + self.local)

    def rail(self) -> list[int]:
        """The ranks of this rank's number on every host of its group."""
        return list(self.members(-1)[self.at :: self.local])

    def members(self, group: int) -> range:
        """The ranks of a process group; of this rank's own where a value lives in every group (-1)."""
        chosen = self.group if group < 0 else group
        return range(chosen * self.ranks, (chosen + 1) * self.ranks)

    def holds(self, group: int) -> bool:
        """Whether this rank has the buffers of a group."""
        return group in (-1, self.group)


class Widened:
    """An operand in the type its products are summed in: itself, or a copy that is renewed before it is used.

    Parameters
    ----------
    array : array
        The operand, in place.
    dtype : DType
    is_packed : bool
        Whether the product needs it without gaps.
    """

    def __init__(self, array: Array, dtype: DType, is_packed: bool) -> None:
        self._array, self._dtype = array, dtype
        wide = np.dtype(dtype.compute if dtype.is_float else np.int64)
        fits = wide == array.dtype and (array.flags.c_contiguous or not is_packed)
        self.wide = array if fits else np.empty(array.shape, wide)

    def renew(self) -> None:
        """Take the operand as it is now."""
        if self.wide is not self._array:
            widen(self._array, self.wide, self._dtype)


A = TypeVar("A")


class Buffers(Generic[A]):
    """Where values lie among the buffers of one rank, be they on the host or on a GPU.

    Attributes
    ----------
    plan : Plan
    place : Place
    arrays : dict of name to array
        The buffers that this rank holds.
    """

    plan: Plan
    place: Place
    arrays: dict[str, A]

    def view(self, slot: Slot) -> A:
        """This rank's part of a value, in place; a scattered list has `parts`."""
        buffer, array = self.plan.buffers[slot.buffer], cast(Any, self.arrays[slot.buffer])
        ranges = slot.type.ranges(self.place.index, self.place.ranks)
        if buffer.placement == "block":
            ranges = tuple((0, stop - start) for start, stop in ranges)
        index: Any = (..., *(slice(start, stop) for start, stop in ranges))  # a view also of a zero-dim array
        return cast(A, array[index])

    def parts(self, slot: Slot) -> list[A]:
        """This rank's part of a value, in place: of a list, one row a tensor."""
        if not slot.type.is_list:
            return [self.view(slot)]
        buffer, array = self.plan.buffers[slot.buffer], cast(Any, self.arrays[slot.buffer])
        return [array[a:b] for a, b in spans(buffer, slot.type, self.place.index, self.place.ranks)]

    def shifts(self, name: str) -> Array:
        """Of a list's buffer: what turns a flat index into an element of it, for each tensor."""
        return shifts(self.plan.buffers[name], self.place.index, self.place.ranks)


class Memory(Buffers[Array]):
    """Buffers as arrays. Everything that peers reach lies in one symmetric allocation, at equal offsets on all ranks.

    Parameters
    ----------
    plan : Plan
    world : World
    place : Place
    """

    def __init__(self, plan: Plan, world: World, place: Place) -> None:
        self.plan, self.place = plan, place
        self._offsets: dict[str, int] = {}
        size = 0
        for key, nbytes in _symmetric_parts(plan, place.ranks):
            self._offsets[key] = size
            size += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self._shared: SharedBuffer = world.allocate(size)
        self._addresses = _by_rank(self._shared.addresses, plan, place.rank)
        self.arrays = {name: self._array(buffer) for name, buffer in plan.buffers.items() if place.holds(buffer.group)}
        self._scratch: list[Array] = []
        self._widened: dict[tuple[Slot, bool], Widened] = {}

    def free(self) -> None:
        """Give the memory back."""
        self.arrays = {}
        self._shared.free()

    def _array(self, buffer: Buffer) -> Array:
        shape = stored_shape(buffer, self.place.ranks)
        nbytes = math.prod(shape) * buffer.type.dtype.itemsize
        if buffer.symmetric:
            start = self._offsets[buffer.name]
            raw = self._shared.local[start : start + nbytes]
        else:
            raw = _aligned(nbytes)
        return raw.view(buffer.type.dtype.numpy).reshape(shape)

    def take(self, slot: Slot) -> Array:
        """A copy of this rank's part of a value."""
        parts = self.parts(slot)
        return parts[0].copy() if len(parts) == 1 else np.concatenate([np.empty(0, slot.type.dtype.numpy), *parts])

    def put(self, slot: Slot, value: Array) -> None:
        """Overwrite this rank's part of a value."""
        at = 0
        if not slot.type.is_list:
            self.view(slot)[...] = value
            return
        for part in self.parts(slot):
            part[...] = value[at : at + part.size]
            at += part.size

    def extents(self, launch: Launch) -> Array:
        """The run-time extents of a launch, with the places of scattered lists."""
        chosen = (slot for slot, tensor in zip(launch.tensors, launch.kernel.tensors) if tensor.scattered)
        return run_time_extents(launch.kernel, [self.shifts(slot.buffer) for slot in chosen])

    def widened(self, slot: Slot, part: Array, dtype: DType, *, is_whole: bool, is_packed: bool = False) -> Widened:
        """A part of a value as a library call takes it; whole operands are shared by the chunks of an overlap."""
        if not is_whole:
            return Widened(part, dtype, is_packed)
        return self._widened.setdefault((slot, is_packed), Widened(part, dtype, is_packed))

    def ranges(self, kind: TensorType) -> tuple[Range, ...]:
        """The part of each dim of a value that this rank has."""
        return kind.ranges(self.place.index, self.place.ranks)

    def poison(self, *roles: str) -> None:
        """Fill the buffers of these roles with what shows in every result it gets into."""
        for name, array in self.arrays.items():
            buffer = self.plan.buffers[name]
            if buffer.role in roles:
                array.fill(poison(buffer.type.dtype))

    # -- addresses ------------------------------------------------------------------------------------------------

    def pads(self, kind: str, group: int = -1) -> Array:
        """Base addresses of the pads of the ranks of a group that this one reaches; `kind`: "barrier" or "pair"."""
        return self._addresses[list(self.place.peers(group))] + self._offsets[f"{kind} pads"]

    def signal_pads(self, ranks: Sequence[int]) -> Array:
        """Base addresses of the signal pads of some ranks of this host."""
        return self._addresses[list(ranks)] + self._offsets["signal pads"]

    def pointers(self, entry_index: int, launch: Launch) -> Array:
        """The table of addresses of one launch (see `kernels.numba_printer`)."""
        kernel = launch.kernel
        table = np.zeros((len(kernel.tensors) + len(kernel.accumulators), self.place.local), np.int64)
        for row, slot in enumerate(launch.tensors):
            buffer = self.plan.buffers[slot.buffer]
            if buffer.symmetric:
                table[row] = self._addresses[list(self.place.peers(buffer.group))] + self._offsets[buffer.name]
            elif slot.buffer in self.arrays:
                table[row, self.place.at] = self.arrays[slot.buffer].ctypes.data
        for at, accumulator in enumerate(kernel.accumulators):
            row = len(kernel.tensors) + at
            if accumulator.crosses:
                own = self._addresses[list(self.place.peers(-1))]
                table[row] = own + self._offsets[_scratch_key(entry_index, at)]
            else:
                scratch = _aligned(24 * accumulator_elements(kernel, at))
                self._scratch.append(scratch)
                table[row, self.place.at] = scratch.ctypes.data
        return table


def _by_rank(addresses: Array, plan: Plan, rank: int) -> Array:
    """Addresses by the number among all ranks, where a buffer has those of one host's alone; 0 for the others'."""
    if len(addresses) == plan.ranks:
        return addresses
    found = np.zeros(plan.ranks, np.int64)
    first = rank - rank % len(addresses)
    found[first : first + len(addresses)] = addresses
    return found


def stored_shape(buffer: Buffer, ranks: int) -> tuple[int, ...]:
    """The shape a buffer has on every rank of its group; of a scattered list, one row with the gaps."""
    if buffer.scattered:
        return (reserved_elements(buffer, ranks),)
    return buffer.type.stored_shape(ranks) if buffer.placement == "block" else buffer.type.shape


def accumulator_elements(kernel: Kernel, at: int) -> int:
    """How many results a reduction of a kernel has."""
    accumulator, shape = kernel.accumulators[at], kernel.space.shape
    if accumulator.per_piece:
        return len(kernel.space.pieces)
    return 1 if accumulator.dims is None else math.prod(n for d, n in enumerate(shape) if d not in accumulator.dims)


def run_time_extents(kernel: Kernel, scattered: Sequence[Array] = ()) -> Array:
    """The extents of a kernel's space; for lists also where each rank's block and each tensor starts, and the end.

    `scattered` are the shifts of the scattered buffers, in the order of the kernel's tensors.
    """
    space = kernel.space
    if not space.pieces:
        return np.array(space.shape, np.int64)
    starts = [0]
    for piece in space.pieces:
        starts.append(starts[-1] + math.prod(piece))
    buckets = [at for a, b in pairwise(starts) for at in range(a, b, space.bucket)] + [starts[-1]]
    borders = [buckets[block_range(len(buckets) - 1, part, space.parts)[0]] for part in range(space.parts)]
    return np.concatenate([np.array([starts[-1], *borders, starts[-1], *starts], np.int64), *scattered])


def _symmetric_parts(plan: Plan, ranks: int) -> Iterator[tuple[str, int]]:
    """Everything peers reach, by name and bytes: the same on all ranks."""
    yield "barrier pads", pad_bytes(ranks)
    yield "pair pads", pad_bytes(plan.groups)
    yield "signal pads", PAD_LINE * max(plan.channels, 1) * plan.ranks
    for buffer in plan.buffers.values():
        if buffer.symmetric:
            yield buffer.name, math.prod(stored_shape(buffer, ranks)) * buffer.type.dtype.itemsize
    for index, entry in enumerate(plan.entries):
        if isinstance(entry, Launch):
            for at, accumulator in enumerate(entry.kernel.accumulators):
                if accumulator.crosses:
                    yield _scratch_key(index, at), 24 * accumulator_elements(entry.kernel, at)


def _scratch_key(entry_index: int, accumulator: int) -> str:
    return f"scratch {entry_index} {accumulator}"


def _aligned(nbytes: int) -> Array:
    """Zeroed bytes that begin at a cache line."""
    raw = np.zeros(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes]
