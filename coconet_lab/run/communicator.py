"""Plain collectives in buffer form, by MPI or among threads: what a Plan runs where nothing is fused."""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from coconet_lab.ir.dtypes import BF16, FP16, FP32, FP64, INT32, INT64, DType
from coconet_lab.ir.rounding import rounded

Array = np.ndarray[Any, Any]
_COMBINE = {"+": np.add, "max": np.maximum, "min": np.minimum}


def combine(arrays: Sequence[Array], reduction: str, dtype: DType) -> Array:
    """The ranks' arrays in rank order: in the compute type, rounded once."""
    total = arrays[0].astype(dtype.compute)
    with np.errstate(over="ignore", invalid="ignore"):
        for array in arrays[1:]:
            _COMBINE[reduction](total, array.astype(dtype.compute, copy=False), out=total)
    return rounded(total, dtype)


class Communicator(ABC):
    """Collectives of one group; arrays are flat and contiguous, `counts` elements a rank.

    Attributes
    ----------
    rank, size : int
        Within the group.
    """

    rank: int
    size: int

    @abstractmethod
    def all_to_all(self, parts: Sequence[Array], counts: Sequence[int]) -> list[Array]:
        """Part k to rank k; what came from each rank, `counts` elements each."""

    @abstractmethod
    def all_gather(self, source: Array, target: Array, counts: Sequence[int]) -> None:
        """All ranks' sources, one after the other; the source may lie in its place in the target."""

    @abstractmethod
    def broadcast(self, buffer: Array, root: int) -> None:
        """The root's elements on every rank."""

    @abstractmethod
    def all_reduce(self, source: Array, target: Array, reduction: str, dtype: DType) -> None:
        """The ranks' elements combined, on every rank."""

    @abstractmethod
    def send(self, array: Array, to: int) -> None:
        """To a rank of the world."""

    @abstractmethod
    def receive(self, array: Array, sender: int) -> None:
        """From a rank of the world."""

    def reduce_scatter(self, source: Array, target: Array, counts: Sequence[int], reduction: str, dtype: DType) -> None:
        """The ranks' elements combined; rank k has block k."""
        borders = np.concatenate(([0], np.cumsum(counts)))
        parts = [source[a:b] for a, b in itertools.pairwise(borders)]
        own = int(counts[self.rank])
        target[:own] = combine(self.all_to_all(parts, [own] * self.size), reduction, dtype)

    def reduce(self, source: Array, target: Array, root: int, reduction: str, dtype: DType) -> None:
        """The ranks' elements combined, on the root; other targets stay as they are."""
        counts = [source.size if k == root else 0 for k in range(self.size)]
        parts = [source if k == root else source[:0] for k in range(self.size)]
        arrays = self.all_to_all(parts, [counts[self.rank]] * self.size)
        if self.rank == root:
            target[:] = combine(arrays, reduction, dtype)

    def _all_reduce_in_two_steps(self, source: Array, target: Array, reduction: str, dtype: DType) -> None:
        """Combine blocks, then gather them: every rank has the bits that one rank made."""
        share = -(-source.size // self.size)
        counts = [max(0, min(share, source.size - k * share)) for k in range(self.size)]
        block = np.empty(counts[self.rank], source.dtype)
        self.reduce_scatter(source, block, counts, reduction, dtype)
        self.all_gather(block, target, counts)


class ThreadCommunicator(Communicator):
    """Among threads of one process: each shows its array, all read."""

    def __init__(self, meeting: Any, ranks: tuple[int, ...], world_rank: int) -> None:
        self._meeting, self._world_rank = meeting, world_rank
        self._barrier, self._shown = meeting.place(ranks)
        self.size = len(ranks)
        self.rank = ranks.index(world_rank) if world_rank in ranks else -1

    def exchange(self, item: Any) -> list[Any]:
        """What every thread gave, in rank order."""
        self._shown[self.rank] = item
        self._barrier.wait()
        found = list(self._shown)
        self._barrier.wait()
        return found

    def barrier(self) -> None:
        """Wait for all threads of the group."""
        self._barrier.wait()

    def all_to_all(self, parts: Sequence[Array], counts: Sequence[int]) -> list[Array]:
        """See `Communicator`."""
        found = [shown[self.rank].copy() for shown in self._show([*parts])]
        self._barrier.wait()
        return found

    def all_gather(self, source: Array, target: Array, counts: Sequence[int]) -> None:
        """See `Communicator`."""
        joined = np.concatenate(self._show(source))
        self._barrier.wait()
        target[:] = joined

    def broadcast(self, buffer: Array, root: int) -> None:
        """See `Communicator`."""
        shown = self._show(buffer)
        if self.rank != root:
            buffer[:] = shown[root]
        self._barrier.wait()

    def all_reduce(self, source: Array, target: Array, reduction: str, dtype: DType) -> None:
        """See `Communicator`."""
        total = combine(self._show(source), reduction, dtype)
        self._barrier.wait()
        target[:] = total

    def _show(self, item: Any) -> list[Any]:
        """Everybody's item, until the barrier that must follow."""
        self._shown[self.rank] = item
        self._barrier.wait()
        return list(self._shown)

    def send(self, array: Array, to: int) -> None:
        """See `Communicator`."""
        with self._meeting.arrived:
            self._meeting.mail.setdefault((self._world_rank, to), []).append(array.copy())
            self._meeting.arrived.notify_all()

    def receive(self, array: Array, sender: int) -> None:
        """See `Communicator`."""
        key = (sender, self._world_rank)
        with self._meeting.arrived:
            self._meeting.arrived.wait_for(
                lambda: self._meeting.mail.get(key) or self._meeting.is_broken, self._meeting.deadline_s
            )
            if not self._meeting.mail.get(key):
                raise threading.BrokenBarrierError
            array[:] = self._meeting.mail[key].pop(0)


class MpiCommunicator(Communicator):
    """By mpi4py, buffer form. What MPI has no type or no meaning for goes block by block and is combined here."""

    def __init__(self, comm: Any, world: Any, ranks: tuple[int, ...]) -> None:
        from mpi4py import MPI

        self._mpi, self._comm, self._world = MPI, comm, world
        self.rank, self.size = comm.Get_rank(), len(ranks)
        self._kinds = {FP32: MPI.FLOAT, FP64: MPI.DOUBLE, INT32: MPI.INT32_T, INT64: MPI.INT64_T}
        for dtype, name in ((FP16, "FLOAT16_T"), (BF16, "BFLOAT16_T")):
            kind = getattr(MPI, name, MPI.DATATYPE_NULL)
            if kind != MPI.DATATYPE_NULL:
                self._kinds[dtype] = kind

    def _sums(self, reduction: str, dtype: DType) -> Any:
        """MPI's type for a sum; None where it has none. Its max and min do not promise what becomes of NaN."""
        return self._kinds.get(dtype) if reduction == "+" or not dtype.is_float else None

    def _op(self, reduction: str) -> Any:
        return {"+": self._mpi.SUM, "max": self._mpi.MAX, "min": self._mpi.MIN}[reduction]

    def all_to_all(self, parts: Sequence[Array], counts: Sequence[int]) -> list[Array]:
        """See `Communicator`."""
        kind, item = parts[0].dtype, parts[0].dtype.itemsize
        given = np.concatenate([part.reshape(-1) for part in parts]).view(np.uint8)
        came = np.empty(sum(counts) * item, np.uint8)
        byte = self._mpi.BYTE
        self._comm.Alltoallv(
            [given, [part.size * item for part in parts], byte], [came, [count * item for count in counts], byte]
        )
        borders = np.concatenate(([0], np.cumsum(counts)))
        elements = came.view(kind)
        return [elements[a:b] for a, b in itertools.pairwise(borders)]

    def all_gather(self, source: Array, target: Array, counts: Sequence[int]) -> None:
        """See `Communicator`."""
        item, byte = target.dtype.itemsize, self._mpi.BYTE
        start = int(sum(counts[: self.rank]))
        is_there = source.size and source.ctypes.data == target[start:].ctypes.data
        if not is_there and np.shares_memory(source, target):
            source = source.copy()
        given = self._mpi.IN_PLACE if is_there else [_bytes(source), counts[self.rank] * item, byte]
        self._comm.Allgatherv(given, [_bytes(target), [count * item for count in counts], byte])

    def broadcast(self, buffer: Array, root: int) -> None:
        """See `Communicator`."""
        self._comm.Bcast([_bytes(buffer), self._mpi.BYTE], root)

    def all_reduce(self, source: Array, target: Array, reduction: str, dtype: DType) -> None:
        """See `Communicator`."""
        kind = self._sums(reduction, dtype)
        if kind is None:
            self._all_reduce_in_two_steps(source, target, reduction, dtype)
            return
        count = source.size
        given = self._mpi.IN_PLACE if source.ctypes.data == target.ctypes.data else [_bytes(source), count, kind]
        self._comm.Allreduce(given, [_bytes(target), count, kind], self._op(reduction))

    def reduce_scatter(self, source: Array, target: Array, counts: Sequence[int], reduction: str, dtype: DType) -> None:
        """See `Communicator`."""
        kind = self._sums(reduction, dtype)
        if kind is None or np.may_share_memory(source, target):
            super().reduce_scatter(source, target, counts, reduction, dtype)
            return
        given, came = [_bytes(source), source.size, kind], [_bytes(target), counts[self.rank], kind]
        self._comm.Reduce_scatter(given, came, list(counts), self._op(reduction))

    def reduce(self, source: Array, target: Array, root: int, reduction: str, dtype: DType) -> None:
        """See `Communicator`."""
        kind = self._sums(reduction, dtype)
        if kind is None or np.may_share_memory(source, target):
            super().reduce(source, target, root, reduction, dtype)
            return
        came = [_bytes(target), source.size, kind] if self.rank == root else None
        self._comm.Reduce([_bytes(source), source.size, kind], came, self._op(reduction), root)

    def send(self, array: Array, to: int) -> None:
        """See `Communicator`."""
        self._world.Send([_bytes(array), self._mpi.BYTE], to)

    def receive(self, array: Array, sender: int) -> None:
        """See `Communicator`."""
        self._world.Recv([_bytes(array), self._mpi.BYTE], sender)


def _bytes(array: Array) -> Array:
    """The array's memory; MPI is told the type apart, since it knows no NumPy bfloat16."""
    return array.view(np.uint8)
