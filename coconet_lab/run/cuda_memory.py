"""The memory of one rank's GPU for a Plan: what peers reach in one symmetric arena, the rest in another allocation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from coconet_lab.ir.dtypes import BF16, DType
from coconet_lab.ir.rounding import poison
from coconet_lab.ir.types import block_extent
from coconet_lab.kernels.plan import Buffer, Plan, Slot
from coconet_lab.kernels.scatter import spans
from coconet_lab.run.cublas import WORKSPACE_BYTES, Cublas
from coconet_lab.run.cuda_device import device_malloc, explained, import_cupy
from coconet_lab.run.cuda_symmetric import Arena
from coconet_lab.run.engine_memory import Buffers, Place, stored_shape

Array = np.ndarray[Any, Any]
_ALIGNMENT = 256


def device_dtype(dtype: DType) -> np.dtype[Any]:
    """How CuPy holds a dtype: BF16 as its bits."""
    return np.dtype(np.uint16) if dtype == BF16 else dtype.numpy


class Layout:
    """Offsets of named parts in one allocation."""

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}
        self.nbytes = 0

    def add(self, name: str, nbytes: int) -> None:
        """Reserve `nbytes` under a name."""
        self.offsets[name] = self.nbytes
        self.nbytes += -(-max(nbytes, 1) // _ALIGNMENT) * _ALIGNMENT


def reserved_bytes(buffer: Buffer, ranks: int) -> int:
    """Bytes of a buffer with room for equal blocks: the library's collectives know no shorter last one."""
    shape = stored_shape(buffer, ranks)
    count = math.prod(shape)
    if len(shape) == 1 and buffer.placement == "whole" and not buffer.type.pieces:
        count = ranks * block_extent(shape[0], ranks)
    return count * buffer.type.dtype.itemsize


def symmetric_layout(plan: Plan, extra: Iterable[tuple[str, int]]) -> Layout:
    """Where everything that peers reach lies: the same on all ranks; buffers of different groups share their room."""
    layout = Layout()
    for name, nbytes in extra:
        layout.add(name, nbytes)
    common, ends = layout.nbytes, []
    groups = {b.group for b in plan.buffers.values() if b.symmetric}
    for buffer in plan.buffers.values():
        if buffer.symmetric and buffer.group < 0:
            layout.add(buffer.name, reserved_bytes(buffer, plan.group_ranks))
    common = layout.nbytes
    for group in sorted(g for g in groups if g >= 0):
        layout.nbytes = common
        for buffer in plan.buffers.values():
            if buffer.symmetric and buffer.group == group:
                layout.add(buffer.name, reserved_bytes(buffer, plan.group_ranks))
        ends.append(layout.nbytes)
    layout.nbytes = max([common, *ends])
    return layout


class DeviceMemory(Buffers[Any]):
    """Buffers of one rank as CuPy arrays.

    Parameters
    ----------
    plan : Plan
    place : Place
    arena : Arena
        Symmetric memory of `layout.nbytes`.
    layout : Layout
        From `symmetric_layout`.
    """

    def __init__(self, plan: Plan, place: Place, arena: Arena, layout: Layout) -> None:
        self.plan, self.place, self.arena, self.layout = plan, place, arena, layout
        self._cupy = import_cupy()
        self._local = Layout()
        for buffer in plan.buffers.values():
            if place.holds(buffer.group) and not buffer.symmetric:
                self._local.add(buffer.name, reserved_bytes(buffer, place.ranks))
        self._address = self.reserve(self._local.nbytes)
        self._extra: list[int] = []
        self._cublas: dict[int, Cublas] = {}
        self.arrays = {n: self._array(b) for n, b in plan.buffers.items() if place.holds(b.group)}

    def reserve(self, nbytes: int) -> int:
        """Zeroed device memory of this rank alone."""
        runtime = self._cupy.cuda.runtime
        try:
            address = device_malloc(max(nbytes, 1))
        except runtime.CUDARuntimeError as error:
            raise explained(error, f"plan of program {self.plan.name!r}", nbytes) from None
        runtime.memset(address, 0, max(nbytes, 1))
        return address

    def scratch(self, nbytes: int) -> int:
        """As `reserve`, given back by `free`."""
        address = self.reserve(nbytes)
        self._extra.append(address)
        return address

    def cublas(self, stream: int) -> Cublas:
        """A cuBLAS handle for the products of one stream: those of two run at once, in workspaces of their own."""
        if stream not in self._cublas:
            self._cublas[stream] = Cublas(self.scratch(WORKSPACE_BYTES))
        return self._cublas[stream]

    def free(self) -> None:
        """Give all of it back; collective, as peers may still be reading."""
        self._cupy.cuda.runtime.deviceSynchronize()
        self._free_own()
        self.arena.free()

    def leave(self) -> None:
        """Give back what this rank has for itself, and let go of its peers' memory: they may have ended."""
        self._free_own()
        self.arena.leave()

    def _free_own(self) -> None:
        self.arrays = {}
        for handle in self._cublas.values():
            handle.close()
        self._cublas = {}
        for address in (*self._extra, *([self._address] if self._address else [])):
            self._cupy.cuda.runtime.free(address)
        self._extra, self._address = [], 0

    # -- addresses -----------------------------------------------------------------------------------------------

    def address(self, buffer: str) -> int:
        """Of this rank's copy of a buffer."""
        if self.plan.buffers[buffer].symmetric:
            return self.arena.local + self.layout.offsets[buffer]
        return self._address + self._local.offsets[buffer]

    def peers(self, name: str, group: int = -1) -> tuple[int, ...]:
        """Addresses of a symmetric part on all ranks of a group (-1: this rank's own)."""
        return tuple(self.arena.addresses[r] + self.layout.offsets[name] for r in self.place.members(group))

    def on_device(self, values: Array) -> int:
        """A copy of a small host array that lives as long as this memory."""
        address = self.scratch(values.nbytes)
        runtime = self._cupy.cuda.runtime
        if values.nbytes:
            runtime.memcpy(address, values.ctypes.data, values.nbytes, runtime.memcpyHostToDevice)
        return address

    # -- arrays --------------------------------------------------------------------------------------------------

    def _array(self, buffer: Buffer) -> Any:
        dtype = device_dtype(buffer.type.dtype)
        return self.view_at(self.address(buffer.name), stored_shape(buffer, self.place.ranks), dtype)

    def view_at(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Memory at an address as a CuPy array."""
        memory = self._cupy.cuda.memory
        nbytes = max(1, math.prod(shape) * dtype.itemsize)
        block = memory.UnownedMemory(address, nbytes, self)
        return self._cupy.ndarray(shape, dtype, memory.MemoryPointer(block, 0))

    def runs(self, slot: Slot) -> list[tuple[int, int]]:
        """Address and elements of what a collective takes: of a list each tensor, else the largest block."""
        if not slot.type.is_list:
            return [(self.start(slot), self.block_elements(slot))]
        buffer, base, item = self.plan.buffers[slot.buffer], self.address(slot.buffer), slot.type.dtype.itemsize
        found = spans(buffer, slot.type, self.place.index, self.place.ranks)
        return [(base + a * item, b - a) for a, b in found]

    def start(self, slot: Slot) -> int:
        """Address of this rank's block of a value whose blocks are contiguous, counted in largest blocks."""
        address = self.address(slot.buffer)
        if slot.type.layout.is_sliced and self.plan.buffers[slot.buffer].placement == "whole":
            address += self.place.index * self.block_elements(slot) * slot.type.dtype.itemsize
        return address

    def block_elements(self, slot: Slot) -> int:
        """Elements of the largest block of a value, or of the whole where it is not sliced."""
        return math.prod(slot.type.stored_shape(self.place.ranks))

    def fill(self, slot: Slot, values: Array) -> None:
        """Put host values into this rank's part."""
        held = np.ascontiguousarray(values).view(device_dtype(slot.type.dtype))
        if not slot.type.is_list:
            self.view(slot)[...] = self._cupy.asarray(held.reshape(values.shape))
            return
        at = 0
        for part in self.parts(slot):
            part[...] = self._cupy.asarray(held[at : at + part.size])
            at += part.size

    def fetch(self, slot: Slot) -> Array:
        """This rank's part on the host."""
        dtype = slot.type.dtype.numpy
        if slot.type.is_list:
            found = [np.asarray(part.get()) for part in self.parts(slot)]
            return np.concatenate([np.empty(0, device_dtype(slot.type.dtype)), *found]).view(dtype)
        held = self._cupy.ascontiguousarray(self.view(slot)).get()
        return np.asarray(held.view(dtype).reshape(self.view(slot).shape))

    def poison(self, *roles: str) -> None:
        """Fill the buffers of these roles with what shows in every result it gets into."""
        for name, array in self.arrays.items():
            buffer = self.plan.buffers[name]
            if buffer.role in roles:
                value = np.asarray(poison(buffer.type.dtype)).view(device_dtype(buffer.type.dtype))
                array.fill(value.item() if value.dtype != np.float16 else float(value))
