"""Where ranks live: processes of MPI that share a host's memory, or threads of one process for tests and checks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from coconet_lab.errors import RankError
from coconet_lab.run.communicator import Communicator, MpiCommunicator, ThreadCommunicator
from coconet_lab.run.host_world import host_count

T = TypeVar("T")
Array = np.ndarray[Any, Any]


class SharedBuffer(Protocol):
    """A symmetric buffer as one rank sees it (see `run.symmetric.Symmetric`)."""

    local: Array
    peers: list[Array]
    addresses: Array

    def free(self) -> None:
        """Give the memory back."""


class World(Protocol):
    """All ranks of a run, as one of them sees them.

    Attributes
    ----------
    rank, size : int
    hosts : int
        Hosts that the ranks are on, equally many consecutive ones on each.
    mpi : mpi4py communicator or None
    """

    rank: int
    size: int
    hosts: int

    @property
    def mpi(self) -> Any:
        """The mpi4py communicator of all ranks; None where ranks are threads."""

    def allocate(self, nbytes: int) -> SharedBuffer:
        """Symmetric memory, zeroed: `nbytes` on every rank, mapped by all of its host; collective."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def group(self, ranks: Sequence[int]) -> Communicator:
        """Collectives among some ranks; called by all ranks, each for the group it is in."""


class ThreadBuffer:
    """Symmetric memory of threads: plain arrays of one process, of the ranks of one host."""

    def __init__(self, number: int, peers: list[Array]) -> None:
        self.peers = peers
        self.local = peers[number]
        self.addresses = np.array([part.ctypes.data for part in peers], dtype=np.int64)

    def free(self) -> None:
        """Let the arrays go."""
        self.peers, self.local = [], np.empty(0, np.uint8)


class _Meeting:
    """What the threads of one `ThreadWorld.run` share."""

    def __init__(self, size: int, deadline_s: float, hosts: int) -> None:
        self.size, self.deadline_s, self.hosts = size, deadline_s, hosts
        self.lock = threading.Lock()
        self.places: dict[tuple[int, ...], tuple[threading.Barrier, list[Any]]] = {}
        self.mail: dict[tuple[int, int], list[Any]] = {}
        self.arrived = threading.Condition(self.lock)
        self.is_broken = False

    def place(self, ranks: tuple[int, ...]) -> tuple[threading.Barrier, list[Any]]:
        """Where these ranks meet."""
        with self.lock:
            if ranks not in self.places:
                barrier = threading.Barrier(len(ranks), timeout=self.deadline_s)
                if self.is_broken:
                    barrier.abort()
                self.places[ranks] = barrier, [None] * len(ranks)
            return self.places[ranks]

    def abort(self) -> None:
        """A rank failed: nobody shall wait for it."""
        with self.lock:
            self.is_broken = True
            for barrier, _ in self.places.values():
                barrier.abort()
            self.arrived.notify_all()


class ThreadWorld:
    """Ranks as threads of this process: kernels run without Python's lock, so they run at once.

    Examples
    --------
    >>> ThreadWorld.run(3, lambda world: world.rank * 10)
    [0, 10, 20]
    """

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank, self.size, self.hosts = rank, meeting.size, meeting.hosts
        self._meeting = meeting
        self._all = self.group(range(meeting.size))

    @classmethod
    def run(cls, size: int, function: Callable[[World], T], deadline_s: float = 120.0, hosts: int = 1) -> list[T]:
        """``function(world)`` on `size` ranks at once; results in rank order.

        Parameters
        ----------
        size : int
        function : callable
        deadline_s : float
            Seconds any rank waits for another.
        hosts : int
            As if the ranks were on so many hosts: memory is shared within each alone.

        Raises
        ------
        Exception
            What the first rank that failed by itself raised.
        """
        meeting = _Meeting(size, deadline_s, hosts)
        results: list[Any] = [None] * size
        errors: list[tuple[int, BaseException]] = []

        def work(rank: int) -> None:
            try:
                results[rank] = function(cls(rank, meeting))
            except BaseException as error:  # all of it is raised below, in the caller's thread
                errors.append((rank, error))
                meeting.abort()

        threads = [threading.Thread(target=work, args=(rank,), name=f"rank {rank}") for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        own = [error for _, error in errors if not isinstance(error, threading.BrokenBarrierError)]
        if own:
            raise own[0]
        if errors:
            raise RankError(
                f"{len(errors)} of {size} ranks waited {deadline_s:g} s for the others",
                rule="every rank enters the same collectives in the same order",
                where="ThreadWorld.run",
                hint="a longer deadline_s",
            )
        return results

    @property
    def mpi(self) -> Any:
        """None: threads of one process."""
        return None

    def allocate(self, nbytes: int) -> SharedBuffer:
        """Zeroed arrays that the threads of a host see; collective."""
        raw = np.zeros(nbytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        everybody, local = self._all.exchange(raw[start : start + nbytes]), self.size // self.hosts
        number = self.rank % local
        return ThreadBuffer(number, everybody[self.rank - number :][:local])

    def barrier(self) -> None:
        """Wait for all threads."""
        self._all.barrier()

    def group(self, ranks: Sequence[int]) -> ThreadCommunicator:
        """Collectives among some threads."""
        return ThreadCommunicator(self._meeting, tuple(ranks), self.rank)


class MpiWorld:
    """Ranks as processes of one MPI communicator; those of one host, consecutive ones, share its memory.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, optional
        ``COMM_WORLD`` by default.
    hosts : int, optional
        As if the ranks were on so many hosts, to try on one what several do; by default where they are.

    Raises
    ------
    ClusterError
        On all ranks, if hosts have different numbers of ranks, or ranks of one that do not follow one another.
    """

    def __init__(self, comm: Any = None, hosts: int | None = None) -> None:
        from mpi4py import MPI

        from coconet_lab.run.symmetric import SymmetricHeap

        self._comm = MPI.COMM_WORLD if comm is None else comm
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self.hosts = host_count(self._comm.allgather(os.uname().nodename)) if hosts is None else hosts
        # Each rank shares memory with those of its own host; collectives join all.
        number = self.rank * self.hosts // self.size
        self._heap = SymmetricHeap(self._comm if self.hosts == 1 else self._comm.Split(number, self.rank))

    @property
    def mpi(self) -> Any:
        """The communicator."""
        return self._comm

    def allocate(self, nbytes: int) -> SharedBuffer:
        """A shared file mapped by all ranks of a host; collective."""
        return self._heap.allocate(nbytes)

    def barrier(self) -> None:
        """MPI's barrier over all ranks."""
        self._comm.Barrier()

    def group(self, ranks: Sequence[int]) -> Communicator:
        """A communicator of some ranks; collective over all."""
        chosen = self._comm if len(ranks) == self.size else self._comm.Split(min(ranks), self.rank)
        return MpiCommunicator(chosen, self._comm, tuple(ranks))
