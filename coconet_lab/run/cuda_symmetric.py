"""Symmetric memory on GPUs: one allocation a rank that all ranks of the host can read and write.

By CUDA IPC over plain device memory, or by an NCCL window. Either way kernels get nothing but addresses. One allocation
is one window; it is registered once, before any graph is captured, and a window that came back null is an error.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from coconet_lab.errors import ClusterError, CoconetError, ToolError
from coconet_lab.run.cuda_device import Gpu, device_malloc, explained, import_cupy, out_of_memory, with_deadline

Kind = Literal["ipc", "nccl"]
WINDOWS_SINCE = 22800
COLLECTIVE_SYMMETRIC = 1
"""NCCL_WIN_COLL_SYMMETRIC of nccl.h."""

NCCL_CALLS = (
    "ncclMemAlloc", "ncclMemFree", "ncclCommWindowRegister", "ncclCommWindowDeregister", "ncclGetErrorString"
)  # fmt: skip
"""What is called past CuPy, which has no windows."""

DESCRIPTOR = {"winHost": "Q", "lsaFlatBase": "Q", "lsaRank": "i", "worldRank": "i", "stride4G": "I"}
"""How ncclWindow_vidmem begins, in NCCL 2.28.9 to 2.32.3 alike: names and `struct` codes of its first members."""


def _nothing() -> None:
    return None


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
    close : callable
        Gives up what this rank has opened of the others', alone.
    """

    addresses: tuple[int, ...]
    local: int
    nbytes: int
    release: Callable[[], None]
    close: Callable[[], None] = _nothing

    def free(self) -> None:
        """Give it back; a second call does nothing. Collective."""
        release, self.release = self.release, _nothing
        self.addresses = ()
        release()

    def leave(self) -> None:
        """As `free` where other ranks may not come. Its own stays taken: who has it open may be writing to it."""
        close, self.close = self.close, _nothing
        self.release, self.addresses = _nothing, ()
        close()


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
        (address,) = agreed(world, lambda: device_malloc(nbytes), f"{nbytes >> 20} MiB on the GPU", nbytes)
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

    opened: dict[int, int] = {}

    def make() -> bytes:
        local.append(device_malloc(nbytes))
        return bytes(runtime.ipcGetMemHandle(local[0]))

    def close() -> None:
        for rank, address in opened.items():
            if rank != world.rank:
                runtime.ipcCloseMemHandle(address)

    def release() -> None:
        runtime.deviceSynchronize()
        world.barrier()
        close()
        world.barrier()
        for address in local:
            runtime.free(address)

    try:
        handles = agreed(world, make, "symmetric memory by CUDA IPC", nbytes)

        def open_all() -> None:
            for rank, handle in enumerate(handles):
                opened[rank] = local[0] if rank == world.rank else runtime.ipcOpenMemHandle(handle)

        agreed(world, open_all, "opening the peers' memory by CUDA IPC")
    except CoconetError:
        release()  # on all ranks: what some have got must not stay taken until they end
        raise
    return Arena(tuple(opened.values()), local[0], nbytes, release, close)


# -- NCCL windows ----------------------------------------------------------------------------------------------------


def _by_window(nbytes: int, world: Any, gpu: Gpu, communicator: Any) -> Arena:
    library = nccl_library()
    comm = ctypes.c_void_p(communicator.comm)
    memory, window = ctypes.c_void_p(), ctypes.c_void_p()

    def allocate_here() -> None:
        cupy = import_cupy()
        status = library.ncclMemAlloc(ctypes.byref(memory), ctypes.c_size_t(nbytes))
        if status:
            cupy.get_default_memory_pool().free_all_blocks()
            status = library.ncclMemAlloc(ctypes.byref(memory), ctypes.c_size_t(nbytes))
        # NCCL calls it a "CUDA error"; the free memory tells which.
        if status and cupy.cuda.runtime.memGetInfo()[0] < nbytes:
            raise out_of_memory("symmetric memory by ncclMemAlloc", nbytes)
        _check(library, status, "ncclMemAlloc")

    try:
        agreed(world, allocate_here, "symmetric memory by ncclMemAlloc", nbytes)
    except CoconetError:
        if memory.value:
            library.ncclMemFree(memory)
        raise

    def register() -> None:
        status = library.ncclCommWindowRegister(
            comm, memory, ctypes.c_size_t(nbytes), ctypes.byref(window), ctypes.c_int(COLLECTIVE_SYMMETRIC)
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
    members = struct.Struct(f"<{''.join(DESCRIPTOR.values())}")
    raw = ctypes.create_string_buffer(members.size)
    runtime.memcpy(ctypes.addressof(raw), window, members.size, runtime.memcpyDeviceToHost)
    _, base, rank_here, rank_of_all, stride_4g = members.unpack(raw.raw)
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
    try:
        from cupy.cuda import nccl

        version = int(nccl.get_version())
    except (ImportError, AttributeError) as error:
        raise _no_windows(f"NCCL cannot be loaded: {error}") from None
    if version < WINDOWS_SINCE:
        raise _no_windows(f"NCCL {version_text(version)} has no symmetric windows")
    # Found through CuPy's own module: a process with torch in it may hold two copies, and calls of one with the
    # communicators of the other end it.
    library = ctypes.CDLL(str(sys.modules[nccl.NcclCommunicator.__module__].__file__))
    missing = [name for name in NCCL_CALLS if not hasattr(library, name)]
    if missing:
        raise _no_windows(f"NCCL {version_text(version)} has no {', '.join(missing)}")
    return library


def version_text(version: int) -> str:
    """NCCL's version number as it is written: 22809 is 2.28.9.

    Examples
    --------
    >>> version_text(22809)
    '2.28.9'
    """
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def _no_windows(found: str) -> ToolError:
    return ToolError(
        found,
        rule="symmetric windows came with NCCL 2.28",
        where="the NCCL that CuPy uses",
        hint="symmetric='ipc', or pip install 'nvidia-nccl-cu13>=2.28.9'",
    )


def _check(library: Any, status: int, what: str) -> None:
    if status:
        library.ncclGetErrorString.restype = ctypes.c_char_p
        raise ClusterError(
            f"{what} failed: {library.ncclGetErrorString(status).decode()}",
            rule="NCCL windows need GPUs that reach each other's memory",
            where="symmetric memory",
            hint="symmetric='ipc'",
        )
