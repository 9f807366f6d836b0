"""NCCL's names over threads, with collectives that do not end where a test says so."""

from __future__ import annotations

import itertools
import threading

import numpy as np


class NcclError(RuntimeError):
    """As CuPy names it."""


class Nccl:
    """Collectives among threads, and every way in which they may not end.

    Attributes
    ----------
    hangs : set of int
        Ranks whose collectives never end on their streams.
    blocks : set of int
        Ranks whose calls do not even return.
    errors : dict of int to Exception
        What a rank is told when it asks for asynchronous errors.
    asked, aborted : list of int
        The ranks that did.
    released : threading.Event or None
        What an abort waits for.
    """

    NcclError = NcclError

    def __init__(self, at, streams) -> None:
        self._numbers, self._meetings = itertools.count(), {}
        self.at, self.streams = at, streams
        self.hangs, self.blocks, self.errors = set(), set(), {}
        self.asked, self.aborted, self.released = [], [], None

    def get_version(self):
        return 22809

    def get_unique_id(self):
        return (next(self._numbers),)

    def groupStart(self):
        pass

    def groupEnd(self):
        pass

    def NcclCommunicator(self, count, number, rank):
        meeting = self._meetings.setdefault(number, ([None] * count, threading.Barrier(count, timeout=30), {}))
        return Communicator(self, *meeting, rank, count)


_TYPES = {2: np.int32, 4: np.int64, 6: np.float16, 7: np.float32, 8: np.float64, 9: np.uint16}


class Communicator:
    def __init__(self, nccl, shown, barrier, mail, rank, count) -> None:
        self.nccl, self.shown, self.barrier, self.mail, self.rank, self.count = nccl, shown, barrier, mail, rank, count
        self.comm, self.ended = 0, threading.Event()

    def check_async_error(self):
        self.nccl.asked.append(self.rank)
        if self.rank in self.nccl.errors:
            raise self.nccl.errors[self.rank]

    def abort(self):
        self.nccl.aborted.append(self.rank)
        if self.nccl.released:
            self.nccl.released.wait()
        self.ended.set()

    def _on(self, number, action):
        """Do it on a stream, in its time, if it is to end there."""
        assert not self.ended.is_set(), "NCCL would read memory that it has freed"
        stream = self.nccl.streams[number]
        if self.rank in self.nccl.blocks:
            self.ended.wait()
            raise NcclError("unhandled system error")
        stream.give(lambda: stream.hangs.append(self.ended) if self.rank in self.nccl.hangs else action())

    def _exchange(self, place, count, kind):
        item = np.dtype(_TYPES[kind])
        self.shown[self.rank] = self.nccl.at(place, count * item.itemsize).view(item).copy()
        self.barrier.wait()
        found = list(self.shown)
        self.barrier.wait()
        return found

    def _put(self, place, values):
        self.nccl.at(place, values.nbytes)[:] = np.ascontiguousarray(values).view(np.uint8)

    def _combined(self, place, count, kind, op):
        arrays = self._exchange(place, count, kind)
        wide = np.float32 if arrays[0].dtype == np.float16 else arrays[0].dtype
        total = arrays[0].astype(wide)
        for array in arrays[1:]:
            total = {0: np.add, 2: np.maximum, 3: np.minimum}[op](total, array.astype(wide))
        return total.astype(arrays[0].dtype)

    def allReduce(self, source, target, count, kind, op, stream):
        self._on(stream, lambda: self._put(target, self._combined(source, count, kind, op)))

    def reduce(self, source, target, count, kind, op, root, stream):
        def act():
            total = self._combined(source, count, kind, op)
            if self.rank == root:
                self._put(target, total)

        self._on(stream, act)

    def reduceScatter(self, source, target, count, kind, op, stream):
        def act():
            total = self._combined(source, count * self.count, kind, op)
            self._put(target, total[self.rank * count : (self.rank + 1) * count])

        self._on(stream, act)

    def allGather(self, source, target, count, kind, stream):
        self._on(stream, lambda: self._put(target, np.concatenate(self._exchange(source, count, kind))))

    def broadcast(self, source, target, count, kind, root, stream):
        self._on(stream, lambda: self._put(target, self._exchange(source, count, kind)[root]))

    def send(self, source, count, kind, peer, stream):
        item = np.dtype(_TYPES[kind])
        box = self.mail.setdefault((self.rank, peer), _Mail())
        self._on(stream, lambda: box.put(self.nccl.at(source, count * item.itemsize).copy()))

    def recv(self, target, count, kind, peer, stream):
        box = self.mail.setdefault((peer, self.rank), _Mail())
        self._on(stream, lambda: self._put(target, box.take()))


class _Mail:
    def __init__(self) -> None:
        self.items, self.arrived = [], threading.Condition()

    def put(self, item):
        with self.arrived:
            self.items.append(item)
            self.arrived.notify_all()

    def take(self):
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.items, timeout=30)
            return self.items.pop(0)
