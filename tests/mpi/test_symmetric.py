"""Symmetric memory among real ranks: what one writes, all see; a failure anywhere is everybody's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from coconet_lab.run.cluster import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(ranks=2, backend="cpu", deadline_s=60) as started:
        yield started


def test_what_one_rank_writes_its_peers_see(cluster: Cluster) -> None:
    def work(nbytes: int) -> dict[str, Any]:
        import os

        import numpy as np
        from mpi4py import MPI

        from coconet_lab.run.symmetric import SymmetricHeap

        comm = MPI.COMM_WORLD
        memory = SymmetricHeap(comm).allocate(nbytes)
        zeros = not memory.local.any()
        comm.Barrier()
        memory.local[:] = comm.Get_rank() + 1
        comm.Barrier()
        seen = [(int(part.min()), int(part.max()), part.size) for part in memory.peers]
        aligned = memory.local.ctypes.data % 64 == 0
        bases = memory.addresses.tolist() == [part.ctypes.data for part in memory.peers]
        kind = memory.addresses.dtype == np.int64
        names = [name for name in os.listdir("/dev/shm") if name.startswith("coconet_lab-")]
        comm.Barrier()
        memory.free()
        memory.free()
        return {"seen": seen, "facts": (zeros, aligned, bases, kind, memory.is_free, memory.note), "names": names}

    for result in cluster.call(work, 1000):
        assert result["seen"] == [(1, 1, 1000), (2, 2, 1000)]
        assert result["facts"] == (True, True, True, True, True, "")
        assert result["names"] == []  # nothing has a name any more, so nothing can be left behind


def test_a_window_of_a_gibibyte_works(cluster: Cluster) -> None:
    def work() -> tuple[int, int, bool]:
        import os

        from mpi4py import MPI

        from coconet_lab.run.symmetric import SymmetricHeap

        def free_bytes() -> int:
            comm.Barrier()
            space = os.statvfs("/dev/shm")
            return space.f_bavail * space.f_frsize

        comm = MPI.COMM_WORLD
        before = free_bytes()
        memory = SymmetricHeap(comm).allocate(1 << 30)
        memory.local[-1] = 40 + comm.Get_rank()
        comm.Barrier()
        last = int(memory.peers[1 - comm.Get_rank()][-1])
        size = memory.local.size
        comm.Barrier()
        memory.free()
        return last, size, before - free_bytes() < 1 << 29  # given back, whatever others do there meanwhile

    assert cluster.call(work) == [(41, 1 << 30, True), (40, 1 << 30, True)]


def test_a_barrier_on_signal_pads_in_symmetric_memory_meets(cluster: Cluster) -> None:
    def work(rounds: int) -> int:
        from mpi4py import MPI

        from coconet_lab.kernels import signals
        from coconet_lab.run.symmetric import SymmetricHeap

        comm = MPI.COMM_WORLD
        rank, size = comm.Get_rank(), comm.Get_size()
        pads = SymmetricHeap(comm).allocate(signals.pad_bytes(size))
        for epoch in range(1, rounds + 1):
            status = signals.barrier(pads.addresses, rank, size, epoch, 10_000_000_000)
            if status:
                return int(status)
        return 0

    assert cluster.call(work, 1000) == [0, 0]


def allocate_with(cluster: Cluster, nbytes: list[int], directories: list[list[str]]) -> list[str]:
    """The note, or the error's first line, of an allocation of `nbytes` in `directories`, for each rank."""

    def work(own: tuple[int, list[str]]) -> str:
        from mpi4py import MPI

        from coconet_lab.errors import ClusterError
        from coconet_lab.run.symmetric import SymmetricHeap

        nbytes, directories = own
        try:
            memory = SymmetricHeap(MPI.COMM_WORLD, tuple(directories)).allocate(nbytes)
            memory.local[:] = 1
            return f"works; {memory.note}"
        except ClusterError as error:
            return error.found
        finally:
            MPI.COMM_WORLD.Barrier()

    return cluster.call(work, per_rank=list(zip(nbytes, directories, strict=True)), deadline_s=20)


TOO_MUCH = 1 << 50


def test_too_large_a_window_is_refused_on_all_ranks_alike(cluster: Cluster) -> None:
    first, second = allocate_with(cluster, [TOO_MUCH] * 2, [["/dev/shm"]] * 2)
    assert first == second
    assert "no room for 2 ×" in first


def test_where_one_rank_finds_no_space_all_take_the_next_directory_and_say_so(cluster: Cluster, tmp_path: Any) -> None:
    missing = str(tmp_path / "missing")
    first, second = allocate_with(cluster, [4096] * 2, [[str(tmp_path), "/dev/shm"], [missing, "/dev/shm"]])
    assert first.startswith("works; file-backed in /dev/shm")
    assert second.startswith("works; file-backed in /dev/shm")
    assert list(tmp_path.iterdir()) == []


def test_different_sizes_are_refused_on_all_ranks(cluster: Cluster) -> None:
    first, second = allocate_with(cluster, [64, 128], [["/dev/shm"]] * 2)
    assert first == second
    assert "different sizes, 64 to 128 bytes" in first


def test_an_empty_window_is_allowed(cluster: Cluster) -> None:
    assert allocate_with(cluster, [0, 0], [["/dev/shm"]] * 2) == ["works; ", "works; "]
