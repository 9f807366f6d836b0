"""Symmetric memory on GPUs: one allocation a rank that all ranks of the host can read and write.

By CUDA IPC over plain device memory, or by an NCCL window. Either way kernels get nothing but addresses. One allocation
is one window; it is registered once, before any graph is captured, and a window that came back null is an error.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coconet_lab.errors import ClusterError, ToolError
from coconet_lab.run.cuda_device import Gpu, explained, import_cupy, with_deadline

Kind = Literal["ipc", "nccl"]
WINDOWS_SINCE = 22800
_COLLECTIVE_SYMMETRIC = 1


@dataclass(slots=True)
class Arena:
    """Device memory of one rank that its peers reach.

    Parameters
    ----------
    addresses : tuple of int
        Where each rank's memory begins, as this rank's GPU sees it.
    local : int
        Where this rank's own begins.
    nbytes : int
    release : callable
        Gives it back; collective.
    """

    addresses: tuple[int, ...]
    local: int
    nbytes: int
    release: Callable[[], None]

    def free(self) -> None:
        """Give it back; a second call does nothing. Collective."""
        release, self.release = self.release, _nothing
        self.addresses = ()
        release()


def _nothing() -> None:
    return None


def allocate(kind: Kind, nbytes: int, world: Any, gpu: Gpu, communicator: Any = None) -> Arena:
    """Zeroed symmetric memory on all ranks of the world; collective, and so is its failure.

    Parameters
    ----------
    kind : "ipc" or "nccl"
    nbytes : int
        The same on all ranks.
    world : World
    gpu : Gpu
    communicator : NcclCommunicator or None
        For "nccl", of all ranks.
    """
    runtime = import_cupy().cuda.runtime
    # Whole 2 MiB pages: the driver may put smaller allocations together, and peers would then map the wrong start.
    nbytes = -(-max(nbytes, 1) // (2 << 20)) * (2 << 20)
    if world.size == 1:
        (address,) = agreed(world, lambda: runtime.malloc(nbytes), f"{nbytes >> 20} MiB on the GPU", nbytes)
        runtime.memset(address, 0, nbytes)
        return Arena((address,), address, nbytes, lambda: runtime.free(address))
    found = _by_ipc(nbytes, world, gpu) if kind == "ipc" else _by_window(nbytes, world, gpu, communicator)
    runtime.memset(found.local, 0, nbytes)
    runtime.deviceSynchronize()
    world.barrier()
    return found


def agreed(world: Any, action: Callable[[], Any], what: str, nbytes: int = 0) -> list[Any]:
    """Every rank's result of `action`; one rank's failure is everybody's, so that nobody waits for who has left."""
    result, failure = None, None
    try:
        result = action()
    except Exception as error:  # whatever it is, the other ranks must hear of it
        failure = explained(error, what, nbytes)
    everybody = exchange(world, (result, failure))
    if failure is not None:
        raise failure
    for rank, (_, theirs) in enumerate(everybody):
        if theirs is not None:
            raise ClusterError(
                f"rank {rank} failed at {what}: {theirs.found}", rule=theirs.rule, where=theirs.where, hint=theirs.hint
            )
    return [item for item, _ in everybody]


def exchange(world: Any, item: Any) -> list[Any]:
    """What every rank gave, in rank order."""
    if world.size == 1:
        return [item]
    if world.mpi is None:
        raise ClusterError(
            "the CUDA engine needs its ranks as processes",
            rule="a GPU's rank is a process of an MPI world; threads serve the CPU",
            where=f"a world of {world.size} threads",
            hint="mpiexec -n P python …, or cl.Cluster(ranks=P)",
        )
    return list(world.mpi.allgather(item))


def _by_ipc(nbytes: int, world: Any, gpu: Gpu) -> Arena:
    runtime = import_cupy().cuda.runtime
    local: list[int] = []

    def make() -> bytes:
        local.append(runtime.malloc(nbytes))
        return bytes(runtime.ipcGetMemHandle(local[0]))

    handles = agreed(world, make, "symmetric memory by CUDA IPC", nbytes)

    def open_all() -> list[int]:
        return [local[0] if r == world.rank else runtime.ipcOpenMemHandle(h) for r, h in enumerate(handles)]

    opened: list[int] = []
    agreed(world, lambda: opened.extend(open_all()), "opening the peers' memory by CUDA IPC")

    def release() -> None:
        runtime.deviceSynchronize()
        world.barrier()
        for rank, address in enumerate(opened):
            if rank != world.rank:
                runtime.ipcCloseMemHandle(address)
        world.barrier()
        runtime.free(local[0])

    return Arena(tuple(opened), local[0], nbytes, release)


# -- NCCL windows ----------------------------------------------------------------------------------------------------


def _by_window(nbytes: int, world: Any, gpu: Gpu, communicator: Any) -> Arena:
    library = nccl_library()
    comm = ctypes.c_void_p(communicator.comm)
    memory, window = ctypes.c_void_p(), ctypes.c_void_p()

    def allocate_here() -> None:
        _check(library, library.ncclMemAlloc(ctypes.byref(memory), ctypes.c_size_t(nbytes)), "ncclMemAlloc")

    agreed(world, allocate_here, "symmetric memory by ncclMemAlloc", nbytes)

    def register() -> None:
        status = library.ncclCommWindowRegister(
            comm, memory, ctypes.c_size_t(nbytes), ctypes.byref(window), ctypes.c_int(_COLLECTIVE_SYMMETRIC)
        )
        _check(library, status, "ncclCommWindowRegister")
        if not window.value:
            raise ToolError(
                "NCCL registered a window and returned none",
                rule="windows need peer-to-peer access and virtual memory management (NCCL_CUMEM_ENABLE, not 0)",
                where=f"GPU {gpu.number}, {gpu.name}",
                hint="symmetric='ipc'",
            )

    agreed(world, lambda: with_deadline(register, "ncclCommWindowRegister", gpu), "registering an NCCL window")
    addresses: list[int] = []
    agreed(world, lambda: addresses.extend(_peers(window.value or 0, world, gpu)), "finding the window's peers")

    def release() -> None:
        import_cupy().cuda.runtime.deviceSynchronize()
        world.barrier()
        library.ncclCommWindowDeregister(comm, window)
        library.ncclMemFree(memory)

    return Arena(tuple(addresses), int(memory.value or 0), nbytes, release)


def _peers(window: int, world: Any, gpu: Gpu) -> list[int]:
    """Addresses of the ranks' memory: base + rank · stride, as the window's descriptor on the device says."""
    runtime = import_cupy().cuda.runtime
    raw = ctypes.create_string_buffer(32)
    runtime.memcpy(ctypes.addressof(raw), window, 32, runtime.memcpyDeviceToHost)
    _, base, rank_here, rank_of_all, stride_4g = struct.unpack("<QQiiI", raw.raw[:28])
    if rank_of_all != world.rank or rank_here != world.rank or not base or not stride_4g:
        raise ToolError(
            "the NCCL window does not join all ranks of this host",
            rule="a window's load/store team has all ranks, in rank order",
            where=f"rank {world.rank}: rank {rank_here} of its team, {rank_of_all} of all",
            hint="symmetric='ipc'",
        )
    return [base + rank * (stride_4g << 32) for rank in range(world.size)]


def nccl_library() -> Any:
    """The NCCL library that CuPy uses: another copy would not know its communicators.

    Raises
    ------
    ToolError
        None, or one without windows.
    """
    from cupy.cuda import nccl

    version = int(nccl.get_version())
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = [line.split()[-1] for line in maps if "libnccl.so" in line]
    if not paths or version < WINDOWS_SINCE:
        raise ToolError(
            f"NCCL {version} has no symmetric windows" if paths else "no NCCL library is loaded",
            rule="symmetric windows came with NCCL 2.28",
            where=paths[0] if paths else "this process",
            hint="symmetric='ipc', or pip install 'nvidia-nccl-cu13>=2.28.9'",
        )
    return ctypes.CDLL(paths[0])


def _check(library: Any, status: int, what: str) -> None:
    if status:
        library.ncclGetErrorString.restype = ctypes.c_char_p
        raise ClusterError(
            f"{what} failed: {library.ncclGetErrorString(status).decode()}",
            rule="NCCL windows need GPUs that reach each other's memory",
            where="symmetric memory",
            hint="symmetric='ipc'",
        )
