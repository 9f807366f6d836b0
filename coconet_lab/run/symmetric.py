"""Symmetric memory on one host: a buffer with a pointer to each peer's copy, the one idea behind a fused collective.

Each rank makes a file, reserves its space, and maps everybody's files; the names are then removed, so nothing is left
whatever happens later.  Plain files rather than ``MPI.Win.Allocate_shared``: MPICH reserves nothing, so with a small
``/dev/shm`` (64 MB in a container) the first write past its end kills every rank with SIGBUS and no word; with a file
of our own the space is really there before anybody maps it, a failure is an error code that all ranks share, and where
``/dev/shm`` is too small the same code falls back to a file in a temporary directory.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from coconet_lab.errors import ClusterError

Bytes = npt.NDArray[np.uint8]
_SHM = "/dev/shm"
_ALIGNMENT = 64


class Symmetric:
    """One symmetric buffer, as one rank sees it.

    Attributes
    ----------
    local : array of uint8
        This rank's part, 64-byte aligned, zeros at first.
    peers : list of arrays of uint8
        Every rank's part, own included, in rank order.
    addresses : array of int64
        Base address of every rank's part as mapped in this process: the table that kernels take.
    nbytes : int
        Bytes of each part.
    note : str
        What the user should know about where the memory lies; empty when there is nothing.
    """

    def __init__(self, rank: int, parts: list[mmap.mmap], nbytes: int, note: str) -> None:
        self._maps: list[mmap.mmap] = parts
        self.peers: list[Bytes] = [np.frombuffer(part, dtype=np.uint8)[:nbytes] for part in parts]
        self.local: Bytes = self.peers[rank]
        self.addresses = np.array([np.frombuffer(part, dtype=np.uint8).ctypes.data for part in parts], dtype=np.int64)
        self.nbytes = nbytes
        self.note = note

    def __repr__(self) -> str:
        state = f"{self.nbytes} bytes on each of {len(self._maps)} ranks" if self._maps else "freed"
        return f"Symmetric({state}{', ' + self.note if self.note else ''})"

    @property
    def is_free(self) -> bool:
        """Whether `free` was called."""
        return not self._maps

    def free(self) -> None:
        """Give the memory back; not collective.  Arrays still in use keep their part mapped until they go."""
        maps, self._maps = self._maps, []
        self.peers, self.local = [], np.empty(0, dtype=np.uint8)
        self.addresses = np.empty(0, dtype=np.int64)
        for part in maps:
            with contextlib.suppress(BufferError):  # an array of the user's still looks into it
                part.close()


class SymmetricHeap:
    """Allocates symmetric buffers for the ranks of one MPI communicator, all on one host.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The ranks; every call of `allocate` is collective over it.
    directories : tuple of str, optional
        Where to try, in this order; by default ``/dev/shm``, then the temporary directory.

    Raises
    ------
    ClusterError
        On all ranks, if the ranks are not all on one host.
    """

    def __init__(self, comm: Any, directories: tuple[str, ...] | None = None) -> None:
        self.comm = comm
        self.rank: int = comm.Get_rank()
        self.ranks: int = comm.Get_size()
        self._directories = directories if directories is not None else _default_directories()
        hosts = sorted(set(comm.allgather(os.uname().nodename)))
        if len(hosts) > 1:
            raise ClusterError(
                f"no shared memory between the {len(hosts)} hosts {', '.join(hosts[:3])}",
                rule="symmetric memory joins ranks of one host",
                where=f"SymmetricHeap of {self.ranks} ranks",
                hint="SymmetricHeap(comm.Split_type(MPI.COMM_TYPE_SHARED))",
            )

    def allocate(self, nbytes: int) -> Symmetric:
        """A buffer of `nbytes` bytes on every rank, each mapped by all; collective, and so is its failure.

        Parameters
        ----------
        nbytes : int
            Bytes of each rank's part, the same on all ranks.

        Raises
        ------
        ClusterError
            On all ranks alike, if the sizes differ or no directory has room.
        """
        sizes = self.comm.allgather(int(nbytes))
        if len(set(sizes)) > 1 or sizes[0] < 0:
            raise self._error(f"ranks asked for different sizes, {min(sizes)} to {max(sizes)} bytes")
        reasons: list[str] = []
        for directory in self._directories:
            parts, reason = self._try(directory, max(_ALIGNMENT, sizes[0]))
            if parts is not None:
                note = f"file-backed in {directory}: {reasons[0]}" if reasons else ""
                return Symmetric(self.rank, parts, sizes[0], note)
            reasons.append(reason)
        raise self._error(f"no room for {self.ranks} × {sizes[0]} bytes: " + "; ".join(reasons))

    def _error(self, found: str) -> ClusterError:
        return ClusterError(
            f"no symmetric memory: {found}",
            rule="the space of a shared window is reserved on every rank before anybody writes to it",
            where=f"SymmetricHeap of {self.ranks} ranks",
            hint="smaller sizes, TMPDIR on a larger disk, or a larger /dev/shm (docker run --shm-size=4g)",
        )

    def _try(self, directory: str, nbytes: int) -> tuple[list[mmap.mmap] | None, str]:
        """Make, reserve and map everybody's part in `directory`; what failed anywhere fails everywhere."""
        path, descriptor = "", -1
        opened: list[int] = []
        try:
            (path, descriptor), failed = self._agree(lambda: _reserve(directory, nbytes), directory)
            paths = self.comm.allgather(path)
            if failed:
                return None, failed
            parts, failed = self._agree(lambda: self._map(paths, nbytes, opened), directory)
            return (None, failed) if failed else (parts, "")
        finally:
            for number in [*opened, *([descriptor] if descriptor >= 0 else [])]:
                os.close(number)
            if path:
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _map(self, paths: list[str], nbytes: int, opened: list[int]) -> list[mmap.mmap]:
        for path in paths:
            opened.append(os.open(path, os.O_RDWR))
        return [mmap.mmap(number, nbytes) for number in opened]

    def _agree(self, action: Callable[[], Any], directory: str) -> tuple[Any, str]:
        """Run `action` here; one rank's failure becomes everybody's, so that nobody waits for who has left."""
        result, reason = ("", -1), ""
        try:
            result = action()
        except OSError as error:
            reason = _reason(error, directory)
        failures = [text for text in self.comm.allgather(reason) if text]
        return result, failures[0] if failures else ""


def _reserve(directory: str, nbytes: int) -> tuple[str, int]:
    """A new file of `nbytes` bytes in `directory` whose space is really there."""
    descriptor, path = tempfile.mkstemp(prefix="coconet_lab-", dir=directory)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except BaseException:
        os.close(descriptor)
        os.unlink(path)
        raise
    return path, descriptor


def _reason(error: OSError, directory: str) -> str:
    """Why a directory did not do, in a few words."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        with contextlib.suppress(OSError):
            space = os.statvfs(directory)
            return f"{directory} has {space.f_bavail * space.f_frsize >> 20} MiB left"
    return f"{directory}: {os.strerror(error.errno) if error.errno else error}"


def _default_directories() -> tuple[str, ...]:
    """Memory first, then disk."""
    return tuple(path for path in (_SHM, tempfile.gettempdir()) if os.path.isdir(path))
