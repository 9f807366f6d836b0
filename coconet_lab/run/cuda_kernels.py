"""A Plan's kernels on one rank's GPU: printed, compiled, loaded, with as many CTAs as all ranks can hold at once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from coconet_lab.kernels.cuda_compile import Variant, compile_kernel, compile_text
from coconet_lab.kernels.cuda_launch import staging_bytes
from coconet_lab.kernels.cuda_meet import NAME, meet_text
from coconet_lab.kernels.cuda_printer import CudaSource, print_kernel
from coconet_lab.kernels.kernel import Kernel
from coconet_lab.kernels.plan import AnyEntry, Launch, Plan
from coconet_lab.run.cuda_device import Gpu, import_cupy
from coconet_lab.run.cuda_nccl import is_nccl
from coconet_lab.run.cuda_symmetric import agreed, exchange
from coconet_lab.run.cuda_tuning import (
    Tuning,
    chosen_form,
    chosen_threads,
    chosen_unroll,
    reserved_staging_bytes,
    wanted_ctas,
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel ready to launch.

    Parameters
    ----------
    source : CudaSource
    function : cupy.cuda.function.Function
    ctas, threads : int
        The grid, equal on all ranks.
    unroll : int
        Vectors a thread has in flight.
    push : bool
        Whether it is compiled to write into its peers' staging instead of reading there.
    """

    source: CudaSource
    function: Any
    ctas: int
    threads: int
    unroll: int = 1
    push: bool = False

    @property
    def staging_bytes(self) -> int:
        """Staging a launch uses on each rank."""
        return staging_bytes(self.source, self.ctas, self.threads, self.unroll) if self.push else 0


class Kernels:
    """The kernels of a Plan.

    Attributes
    ----------
    compile_s : float
        Seconds it took to get them, from disk or compiled.
    meet : Function
        The kernel that ranks meet in between entries.
    reserved_staging_bytes : int
        What each stream's staging should have room for; the same on all ranks.
    """

    def __init__(self, plan: Plan, world: Any, rank: int, gpu: Gpu, tuning: Tuning) -> None:
        started_s = time.perf_counter()
        self._modules: list[Any] = []
        self._gpu, self._tuning = gpu, tuning
        # Who pushes must know where peers take: the same choices on all ranks, also where their GPUs differ.
        self._processors = min(exchange(world, gpu.processors))
        streams = len({e.stream for e in plan.entries if _keeps_its_place(e)}) or 1
        found: dict[Kernel, Loaded] = {}

        def load() -> None:
            for kernel in plan.kernels():
                found[kernel] = self._load(kernel, rank, streams)
            code = compile_text(NAME, meet_text(), Variant(gpu.arch, threads=32), what="the kernel ranks meet in")
            self.meet = self._function(code, NAME)

        agreed(world, load, "compiling kernels")
        grids = exchange(world, [found[kernel].ctas for kernel in plan.kernels()])
        self.loaded: Mapping[Kernel, Loaded] = {
            kernel: replace(found[kernel], ctas=min(grid[n] for grid in grids))
            for n, kernel in enumerate(plan.kernels())
        }
        self.reserved_staging_bytes = max(exchange(world, self._staging()))
        self.compile_s = time.perf_counter() - started_s

    def _load(self, kernel: Kernel, rank: int, streams: int) -> Loaded:
        source = print_kernel(kernel)
        unroll = chosen_unroll(source, self._tuning, self._processors)
        threads = chosen_threads(source, self._tuning, self._processors)
        form = chosen_form(source, self._tuning, self._processors)
        variant = Variant(self._gpu.arch, rank, unroll, threads, form)
        function = self._function(compile_kernel(source, variant), source.name)
        ctas = wanted_ctas(source, self._tuning, unroll, self._processors)
        if _waits(kernel):
            driver = import_cupy().cuda.driver
            fit = driver.occupancyMaxActiveBlocksPerMultiprocessor(function.ptr, threads, 0)
            # A CTA that waits must not keep the one it waits for from the GPU; one place is left for a meeting.
            ctas = min(ctas, max(1, fit * self._gpu.processors // streams - (streams > 1)))
        return Loaded(source, function, ctas, threads, unroll, form == "push")

    def _staging(self) -> int:
        """Bytes of staging: for what is there, and for what it may be tuned to."""
        found = self.loaded.values()
        needed = [max(k.staging_bytes, reserved_staging_bytes(k.source, self._processors)) for k in found]
        return max(needed, default=0)

    def _function(self, code: bytes, name: str) -> Any:
        module = import_cupy().cuda.function.Module()
        module.load(code)
        self._modules.append(module)
        return module.get_function(name)


def _keeps_its_place(entry: AnyEntry) -> bool:
    """Whether its CTAs stay on the GPU until other ranks come: launches that wait, and the library's collectives."""
    if isinstance(entry, Launch):
        return _waits(entry.kernel)
    return is_nccl(entry)


def _waits(kernel: Kernel) -> bool:
    """Whether CTAs of the kernel wait for others, on this rank or on peers."""
    return kernel.has_peers or bool(kernel.accumulators)
