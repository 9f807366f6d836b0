"""The GPU of a rank: found, checked and named; set-up steps that may wait for other ranks have a deadline."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from coconet_lab.errors import ClusterError, CoconetError, ToolError

T = TypeVar("T")
SETUP_S = 120.0
"""Seconds a set-up step may take before the ranks that did not come are given up."""

_OUT_OF_MEMORY = 2


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPU one rank computes on.

    Parameters
    ----------
    number : int
        Of the devices this process sees.
    name : str
    arch : str
        ``sm_90``.
    processors : int
        Streaming multiprocessors.
    """

    number: int
    name: str
    arch: str
    processors: int


def take_gpu(rank: int, ranks: int) -> Gpu:
    """Make GPU number `rank` this thread's, if there is one for each of the host's `ranks` ranks.

    Raises
    ------
    ToolError
        No CuPy, no GPU, fewer GPUs than ranks, or GPUs that cannot reach each other's memory.
    """
    cupy = import_cupy()
    runtime = cupy.cuda.runtime
    try:
        count = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        raise _no_gpu(f"no GPU: {error}", ranks) from None
    if count < ranks:
        raise _no_gpu(f"{count} GPU{'' if count == 1 else 's'} found, {ranks} needed", ranks)
    for other in range(ranks):
        if other != rank and not runtime.deviceCanAccessPeer(rank, other):
            raise ToolError(
                f"GPU {rank} cannot reach the memory of GPU {other}",
                rule="kernels over peer pointers need GPUs joined by NVLink or PCIe peer-to-peer",
                where=f"rank {rank} of {ranks}",
                hint="Cluster(ranks=1), or backend='cpu'",
            )
    runtime.setDevice(rank)
    found = runtime.getDeviceProperties(rank)
    name = found["name"]
    return Gpu(
        rank,
        name.decode() if isinstance(name, bytes) else str(name),
        f"sm_{found['major']}{found['minor']}",
        int(found["multiProcessorCount"]),
    )


def import_cupy() -> Any:
    """CuPy, or the error that says how to get it."""
    try:
        import cupy
    except ImportError as error:
        raise ToolError(
            f"CuPy cannot be imported: {error}",
            rule="GPUs are used through CuPy",
            where="the CUDA engine",
            hint="pip install 'coconet-lab[gpu]', or backend='cpu'",
        ) from None
    return cupy


def _no_gpu(found: str, ranks: int) -> ToolError:
    # A job's launcher may show each rank one GPU alone: the machine then has more than were counted.
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    note = "" if shown is None else f", CUDA_VISIBLE_DEVICES={shown}"
    return ToolError(
        found, rule="every rank has a GPU of its own, and sees those of all ranks of its host",
        where=f"{ranks} ranks with backend 'cuda'{note}", hint=f"Cluster(ranks={ranks}, backend='cpu')",
    )  # fmt: skip


def device_malloc(nbytes: int) -> int:
    """Device memory from the driver: what CuPy's pool only keeps for later is given back where none is left."""
    cupy = import_cupy()
    try:
        return int(cupy.cuda.runtime.malloc(nbytes))
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if getattr(error, "status", None) != _OUT_OF_MEMORY:
            raise
    cupy.get_default_memory_pool().free_all_blocks()
    return int(cupy.cuda.runtime.malloc(nbytes))


def with_deadline(action: Callable[[], T], what: str, gpu: Gpu, seconds: float = SETUP_S) -> T:
    """Run a step that waits for the other ranks; an error that names it where they do not come.

    It runs in a thread of its own: a call that never returns cannot be taken back, only left behind.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            import_cupy().cuda.runtime.setDevice(gpu.number)
            results.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name=what, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise ClusterError(
            f"{what} did not finish on GPU {gpu.number} in {seconds:g} s",
            rule="all ranks set up together; one that died or runs another program keeps the others waiting",
            where=f"GPU {gpu.number}, {gpu.name}",
            hint="cluster.log(rank), then start the cluster again",
        )
    return results[0]


def explained(error: BaseException, what: str, nbytes: int = 0) -> CoconetError:
    """A CUDA error in the lab's words."""
    if isinstance(error, CoconetError):
        return error
    status = getattr(error, "status", None)
    if status == _OUT_OF_MEMORY or type(error).__name__ == "OutOfMemoryError":
        return out_of_memory(what, nbytes)
    return ClusterError(
        f"{what} failed: {error}", rule="the CUDA driver said no", where=what, hint="coconet-lab doctor"
    )


def out_of_memory(what: str, nbytes: int) -> ToolError:
    """What did not fit, with the numbers."""
    free, total = import_cupy().cuda.runtime.memGetInfo()
    return ToolError(
        f"out of GPU memory: {what} takes {nbytes >> 20} MiB, {free >> 20} of {total >> 20} MiB are free",
        rule="a Plan's buffers must fit into the GPU's memory",
        where=what,
        hint="smaller sizes, more ranks, or close what else runs there (plan.ledger() counts the bytes)",
    )
