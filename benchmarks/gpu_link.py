"""What the links between GPUs carry, whatever is computed: peers read, peers written, and both at once.

``mpiexec -n 2 python benchmarks/gpu_link.py`` prints GB/s a direction and rank, the slowest rank's median of 9. Every
rank works on its next neighbour's memory, all at the same time: each link is used both ways.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np
from gpu_common import Timed, mpi_world, samples_us, say

from coconet_lab.kernels.cuda_compile import Variant, compile_text
from coconet_lab.run.cuda_device import import_cupy, take_gpu
from coconet_lab.run.cuda_symmetric import allocate

THREADS, CTAS_PER_PROCESSOR, UNROLL = 512, 2, 2
TEXT = """
struct Args { const uint4* from; uint4* to; unsigned long long count; };

template <bool READ, bool WRITE> static __device__ __forceinline__ void move(const Args& a) {
  const unsigned long long threads = (unsigned long long)gridDim.x * THREADS;
  unsigned found = 0;
  for (unsigned long long i = blockIdx.x * THREADS + threadIdx.x; i < a.count; i += threads * UNROLL) {
    uint4 x[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
      x[u] = READ && i + u * threads < a.count ? __ldcs(a.from + i + u * threads) : make_uint4(i, u, 2, 3);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      if (WRITE && i + u * threads < a.count) __stwb(a.to + i + u * threads, x[u]);
      found ^= x[u].x ^ x[u].y ^ x[u].z ^ x[u].w;
    }
  }
  if (!WRITE && found == 0x12345678) *a.to = make_uint4(1, 1, 1, 1);  // so that nothing is left out
}
extern "C" __global__ void __launch_bounds__(THREADS) reads(const __grid_constant__ Args a) { move<true, false>(a); }
extern "C" __global__ void __launch_bounds__(THREADS) writes(const __grid_constant__ Args a) { move<false, true>(a); }
extern "C" __global__ void __launch_bounds__(THREADS) both(const __grid_constant__ Args a) { move<true, true>(a); }
"""
KERNELS = {"reads": 1, "writes": 1, "both": 2}
"""Kernels, and how often their bytes cross a link in each direction."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--mib", type=int, default=256, help="that each rank reads, and writes")
    options = parser.parse_args()
    world = mpi_world()
    gpu, cupy = take_gpu(world.rank, world.size), import_cupy()
    nbytes = options.mib << 20
    arena = allocate("ipc", 2 * nbytes, world, gpu)
    module = cupy.cuda.function.Module()
    module.load(
        compile_text("link", TEXT, Variant(gpu.arch, unroll=UNROLL, threads=THREADS), what="the link's kernels")
    )
    peer = arena.addresses[(world.rank + 1) % world.size]
    packed = np.zeros(1, dtype=[("words", np.uint64, (3,))])
    packed["words"][0] = peer, peer + nbytes, nbytes // 16
    stream = cupy.cuda.Stream(non_blocking=True)
    for name, crossings in KERNELS.items():
        function, grid = module.get_function(name), (CTAS_PER_PROCESSOR * gpu.processors,)

        def launch(function: Any = function, grid: tuple[int] = grid) -> None:
            with stream:
                function(grid, (THREADS,), (packed,))

        launch()
        found = samples_us(world, Timed(stream, launch), cupy.cuda.Event, cupy.cuda.get_elapsed_time, 9)
        median = max(world.mpi.allgather(statistics.median(found)))
        if world.rank == 0:
            say(f"{name:<7} {median:8.1f} µs  {crossings * nbytes / median / 1e3:6.1f} GB/s a direction")
    arena.free()


if __name__ == "__main__":
    main()
