"""Symmetric memory of GPUs: one allocation a rank, peers by IPC or by an NCCL window; what may go wrong is named."""

from __future__ import annotations

import struct
import sys

import cupy_on_host
import numpy as np
import pytest
from cuda_on_host import address

from coconet_lab.errors import ClusterError, ToolError
from coconet_lab.ir.dtypes import FP32
from coconet_lab.ir.layout import Replicated
from coconet_lab.ir.types import TensorType
from coconet_lab.kernels.plan import Buffer, Plan
from coconet_lab.run import cuda_symmetric
from coconet_lab.run.cuda_device import Gpu
from coconet_lab.run.cuda_memory import symmetric_layout
from coconet_lab.run.cuda_symmetric import allocate

GPU = Gpu(0, "host", "sm_90", 1)
World = cupy_on_host.World


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    module = cupy_on_host.make(gpus=2)
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setitem(sys.modules, "cupy.cuda", module.cuda)
    return module


class Library:
    """NCCL's window calls: a descriptor that names a base, this rank and a stride of 4 GiB steps."""

    def __init__(
        self, rank: int, cupy, *, null: bool = False, team_rank: int | None = None, status: int = 0, full: int = -1
    ) -> None:
        named = struct.pack("<QQiiIxxxx", 1, 0x7000_0000_0000, rank if team_rank is None else team_rank, rank, 3)
        self.descriptor = np.frombuffer(named, np.uint8)
        self.cupy, self.null, self.status, self.registered = cupy, null, status, []
        self.full, self.freed = full == rank, []
        self.ncclGetErrorString = lambda status: b"invalid usage"

    def ncclMemAlloc(self, place, nbytes):
        if self.full:
            return 1
        place._obj.value = self.cupy.cuda.runtime.malloc(nbytes.value)
        return 0

    def ncclCommWindowRegister(self, comm, memory, nbytes, window, flags):
        self.registered.append((memory.value, nbytes.value, flags.value))
        window._obj.value = None if self.null else address(self.descriptor)
        return self.status

    def ncclCommWindowDeregister(self, comm, window):
        return 0

    def ncclMemFree(self, memory):
        self.freed.append(memory.value)
        return 0


def in_turn(monkeypatch, cupy, how, work):
    """Each rank with a library of its own."""
    made = {}
    monkeypatch.setattr(cuda_symmetric, "nccl_library", lambda: made[cupy_on_host._HERE.rank])

    def run(world):
        cupy_on_host._HERE.rank = world.rank
        made[world.rank] = Library(world.rank, cupy, **how)
        world.barrier()
        return work(world, made[world.rank])

    return World.run(2, run)


def nccl(world):
    return allocate("nccl", 1000, world, GPU, type("Communicator", (), {"comm": 7}))


def test_every_rank_finds_every_other_by_ipc():
    def work(world):
        arena = allocate("ipc", 1000, world, GPU)
        cupy_on_host.at(arena.local, 1)[:] = 10 + world.rank
        world.barrier()
        found = [int(cupy_on_host.at(place, 1)[0]) for place in arena.addresses]
        arena.free()
        arena.free()
        return found, arena.nbytes

    assert World.run(2, work) == [([10, 11], 2 << 20)] * 2


def test_a_window_s_peers_lie_at_equal_distances_and_it_is_registered_once(monkeypatch, cupy):
    def work(world, library):
        arena = nccl(world)
        assert library.registered == [(arena.local, 2 << 20, 1)]
        return arena.addresses

    expected = (0x7000_0000_0000, 0x7000_0000_0000 + (3 << 32))
    assert in_turn(monkeypatch, cupy, {}, work) == [expected] * 2


@pytest.mark.parametrize(
    ("how", "kind", "match"),
    [
        ({"null": True}, ToolError, "registered a window and returned none"),
        ({"team_rank": 5}, ToolError, "does not join all ranks"),
        ({"status": 4}, ClusterError, "ncclCommWindowRegister failed: invalid usage"),
    ],
)
def test_a_window_that_is_none_or_of_other_ranks_is_an_error(how, kind, match, monkeypatch, cupy):
    def work(world, library):
        with pytest.raises(kind, match=match):
            nccl(world)

    in_turn(monkeypatch, cupy, how, work)


def test_a_window_for_which_one_rank_has_no_memory_is_an_error_on_all_and_is_given_back(monkeypatch, cupy):
    cupy.cuda.runtime.memGetInfo = lambda: (1 << 20, 2 << 30)

    def work(world, library):
        with pytest.raises((ToolError, ClusterError)) as caught:
            nccl(world)
        return caught.value.found, len(library.freed)

    (first, given_back), (second, _) = in_turn(monkeypatch, cupy, {"full": 1}, work)
    assert "out of GPU memory: symmetric memory by ncclMemAlloc takes 2 MiB, 1 of 2048 MiB are free" in second
    assert "rank 1 failed at symmetric memory by ncclMemAlloc" in first
    assert given_back == 1


def test_an_nccl_without_windows_is_too_old(cupy):
    cupy.cuda.nccl.get_version = lambda: 22705
    with pytest.raises(ToolError, match=r"NCCL 2\.27\.5 has no symmetric windows"):
        cuda_symmetric.nccl_library()


def test_buffers_of_different_groups_share_their_room():
    def buffer(name, group, symmetric=True):
        kind = TensorType(FP32, (1024,), Replicated)
        return Buffer(name, name, kind, "whole", "input", symmetric, group, 4096, 0, 0)

    buffers = {n: buffer(n, g) for n, g in (("b0", 0), ("b1", 1), ("b2", -1))} | {"b3": buffer("b3", 0, False)}
    plan = Plan("p", 4, 2, (), buffers, {}, {}, {}, {}, {}, {})
    layout = symmetric_layout(plan, [("pads", 100)])
    assert layout.offsets == {"pads": 0, "b2": 256, "b0": 4352, "b1": 4352}
    assert layout.nbytes == 8448
