"""Parameter updates on GPUs: generated kernels against NCCL and torch, Adam, LAMB and SGD, one command.

``mpiexec -n 2 python benchmarks/gpu_data_parallel.py --out results --budget-s 500``

Each sample is the longest over all ranks, by events on the device, of several repeats; a graph holds all repeats of a
sample, for ours and for theirs. Sizes come in the order of what they tell, so a run that is cut is of use.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_baselines import Torch, Updates, cases, measure, zero_redundancy
from gpu_common import Budget, Table, Timed, mpi_world, repeats_for, samples_us, say

import coconet_lab.workloads as workloads
from coconet_lab.kernels.lower import lower
from coconet_lab.run.cuda_device import import_cupy
from coconet_lab.run.cuda_engine import CudaEngine
from coconet_lab.run.cuda_tuning import Tuning

EXPONENTS = (28, 16, 20, 12, 24, 26, 18, 22, 14, 10, 29)
SCHEDULES = ("fuse(RS-Opt-AG)", "RS-Opt-AG", "AR-Opt")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--budget-s", type=float, default=500.0)
    parser.add_argument("--samples", type=int, default=11)
    parser.add_argument("--workloads", default="adam,sgd,lamb")
    parser.add_argument("--dtypes", default="fp16,fp32")
    parser.add_argument("--exponents", default=",".join(map(str, EXPONENTS)))
    parser.add_argument("--symmetric", choices=("ipc", "nccl"), default="ipc")
    parser.add_argument("--without-torch", action="store_true")
    parser.add_argument("--without-list", action="store_true", help="leave out BERT's 396 tensors")
    parser.add_argument("--without-tuning", action="store_true")
    return parser.parse_args()


class Ours:
    """The lab's engines on this rank's GPU."""

    def __init__(self, world: Any, options: argparse.Namespace) -> None:
        self.world, self.options, self.cupy = world, options, import_cupy()
        self.best: dict[str, Any] = {}

    def engine(self, workload: str, schedule: str, dtype: str, elements: Any, tuning: Tuning) -> CudaEngine:
        """An engine with random inputs made on the GPU."""
        made = getattr(workloads, workload)(elements=elements, ranks=self.world.size, dtype=dtype)
        plan = lower(made.schedules[schedule].program)
        engine = CudaEngine(plan, self.world, tuning=tuning, symmetric=self.options.symmetric)
        random = self.cupy.random.default_rng(self.world.rank)
        for array in (array for name in plan.inputs for array in engine.arrays(name)):
            step = 1 << 26
            flat = array.reshape(-1)
            for start in range(0, flat.size, step):
                count = min(step, flat.size - start)
                flat[start : start + count] = random.random(count, dtype=self.cupy.float32).astype(array.dtype)
        engine.set_scalars({})
        self.cupy.cuda.runtime.deviceSynchronize()
        self.world.barrier()
        return engine

    def samples(self, engine: CudaEngine, count: int) -> list[float]:
        """Microseconds of one run, as graphs of several."""
        event = self.cupy.cuda.Event
        engine.run()
        engine.run()
        once = Timed(engine.stream, engine.enqueue)
        estimate = samples_us(self.world, once, event, self.cupy.cuda.get_elapsed_time, 3)
        repeats = repeats_for(max(self.world.mpi.allgather(min(estimate))))
        graph = engine.captured(repeats)
        timed = Timed(engine.stream, lambda: graph.launch(engine.stream), repeats)
        samples_us(self.world, timed, event, self.cupy.cuda.get_elapsed_time, 1)
        found = samples_us(self.world, timed, event, self.cupy.cuda.get_elapsed_time, count)
        engine.wait()
        return found

    def tuned(self, engine: CudaEngine, elements: int, budget: Budget) -> Tuning:
        """The fastest of a sweep over CTAs and unrolling, by the slowest rank; collective."""
        tried: list[tuple[float, int, int, int, str]] = []
        for choice in candidates(elements // self.world.size, engine.gpu.processors):
            if budget.is_over(20):
                break
            engine.retune(Tuning(*choice))
            if choice[3] == "push" and not any(loaded.push for loaded in engine.kernels.loaded.values()):
                continue  # it reduces, so it reads: measured already
            median = sorted(self.samples(engine, 3))[1]
            tried.append((max(self.world.mpi.allgather(median)), *choice))
        if not tried:
            return Tuning()
        best = min(tried)
        self.best[f"{engine.plan.name} {elements}"] = {"best": best, "tried": tried}
        return Tuning(*best[1:])


def candidates(elements: int, processors: int) -> list[tuple[int, int, int, str]]:
    """CTAs, unrolling, threads and form worth a try for so many elements a rank."""
    if elements < 1 << 20:
        return [
            (ctas, 1, threads, "read")
            for threads in (128, 256, 512)
            for ctas in _few(elements // (threads * 8), processors)
        ]
    one, two = processors, 2 * processors
    return [
        *((n, unroll, 512, "read") for n in (one, two) for unroll in (1, 2)),
        (one, 4, 512, "read"), (4 * processors, 1, 256, "read"), (two, 1, 384, "read"),
        *((n, 2, 512, "turns") for n in (one, two)), (one, 4, 512, "turns"), (4 * processors, 1, 256, "turns"),
        *((two, 1, threads, "push") for threads in (384, 448, 512)), (one, 1, 1024, "push"),
    ]  # fmt: skip


def _few(passes: int, processors: int) -> list[int]:
    """CTAs that do a few elements in one pass, or in two."""
    whole = min(max(1, passes), 4 * processors)
    return sorted({whole, max(1, whole // 2)})


def measure_ours(ours: Ours, table: Table, budget: Budget, workload: str, dtype: str, elements: int) -> None:
    """All schedules of one workload, dtype and size; the fused one tuned."""
    for schedule in SCHEDULES:
        if budget.is_over(8):
            return
        guarded(table, f"{schedule} {workload} {dtype} {elements}", lambda s=schedule: _one_of_ours(
            ours, table, budget, workload, dtype, elements, s))  # fmt: skip


def _one_of_ours(
    ours: Ours, table: Table, budget: Budget, workload: str, dtype: str, elements: Any, schedule: str
) -> None:
    count = elements if isinstance(elements, int) else sum(math.prod(shape) for shape in elements)
    shape = str(elements) if isinstance(elements, int) else f"{len(elements)} tensors"
    engine = ours.engine(workload, schedule, dtype, elements, Tuning())
    try:
        if schedule.startswith("fuse") and not ours.options.without_tuning:
            engine.retune(ours.tuned(engine, count, budget))
        median = table.add(workload, schedule, dtype, count, shape, ours.samples(engine, ours.options.samples))
        if shape != str(count) and table.world.rank == 0:
            say(f"{workload} {dtype} {schedule}, {shape}: {median:.1f} µs")
    finally:
        engine.close()


def measure_list(ours: Ours, table: Table, budget: Budget, workload: str, dtype: str) -> None:
    """BERT's tensors as a list, and as many elements in one piece."""
    count = sum(math.prod(shape) for shape in workloads.BERT_SHAPES)
    for elements in (list(workloads.BERT_SHAPES), count):
        if not budget.is_over(10):
            guarded(table, f"list {workload} {dtype}", lambda e=elements: _one_of_ours(
                ours, table, budget, workload, dtype, e, SCHEDULES[0]))  # fmt: skip


def measure_torch(lab: Torch, table: Table, budget: Budget, workload: str, dtype: str, elements: int) -> None:
    """All baselines of one workload, dtype and size."""
    torch, count = lab.torch, 9
    wire = torch.float16 if dtype == "fp16" else torch.float32
    size = str(elements)

    def all_reduce(pooled: bool, graph: bool) -> None:
        name = "all_reduce" + ("+pool" if pooled else "") + ("+graph" if graph else "")
        with torch.cuda.use_mem_pool(lab.pool) if pooled else torch.cuda.device(lab.device):
            g = torch.randn(elements, device=lab.device).to(wire)
        found = measure(lab, lambda: lab.dist.all_reduce(g), graph=graph, count=count)
        table.add(workload, name, dtype, elements, size, found)

    def update(name: str, how: dict[str, Any], graph: bool) -> None:
        updates = Updates(lab, workload, dtype, elements, **how)
        shown = name if workload != "lamb" else name.replace("torch_fused", "torch_compiled")
        table.add(workload, shown, dtype, elements, size, measure(lab, updates.run, graph=graph, count=count))

    for pooled, graph in ((False, True), (False, False), *(((True, True),) if lab.pool is not None else ())):
        if budget.is_over(4):
            return
        guarded(table, f"all_reduce {elements}", lambda p=pooled, g=graph: all_reduce(p, g))
    for name, how, graph in cases(lab):
        if budget.is_over(4):
            return
        guarded(table, f"{name} {elements}", lambda n=name, h=how, g=graph: update(n, h, g))
        torch.cuda.empty_cache()
    if workload == "adam" and dtype == "fp32" and not budget.is_over(6):
        guarded(table, f"zero {elements}", lambda: table.add(
            workload, "ZeroRedundancyOptimizer", dtype, elements, size,
            measure(lab, zero_redundancy(lab, elements), graph=False, count=5)))  # fmt: skip


def guarded(table: Table, what: str, action: Callable[[], Any]) -> bool:
    """Whether all ranks did it: one rank's failure is a note on all of them, not the end of the run."""
    problem = ""
    try:
        action()
    except Exception as error:  # noted with its name; the table goes on
        problem = f"{what}: {type(error).__name__}: {str(error)[:300]}"
    found = [text for text in table.world.mpi.allgather(problem) if text]
    if found and table.world.rank == 0:
        say(f"NOT MEASURED {found[0]}")
    return not found


def main() -> None:
    options = arguments()
    world = mpi_world()
    budget = Budget(world, options.budget_s)
    ours = Ours(world, options)
    from coconet_lab.run.cuda_device import take_gpu

    gpu = take_gpu(world.rank, world.size)
    table = Table(world, options.out, gpu.name)
    lab = Torch(world)
    if not options.without_torch:
        started = guarded(table, "torch", lab.start)
        lab.torch = lab.torch if started else None
    for workload in options.workloads.split(","):
        for dtype in options.dtypes.split(","):
            for exponent in map(int, options.exponents.split(",")):
                if budget.is_over(10):
                    break
                measure_ours(ours, table, budget, workload, dtype, 1 << exponent)
                if lab.torch is not None:
                    ours.cupy.get_default_memory_pool().free_all_blocks()
                    measure_torch(lab, table, budget, workload, dtype, 1 << exponent)
                if exponent == 28 and not options.without_list:
                    measure_list(ours, table, budget, workload, dtype)
            table.show(workload, dtype)
    if world.rank == 0:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "tuning.json").write_text(json.dumps(ours.best, indent=1))
        say(f"\n{gpu.name}, {world.size} ranks, {budget.spent_s:.0f} s; notes: {lab.notes}")
    if lab.torch is not None:
        lab.stop()


if __name__ == "__main__":
    main()
