"""Every workload, schedule and dtype on GPUs against the oracle, bit for bit where the rules say so.

``mpiexec -n 2 python benchmarks/gpu_check.py --out results``
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gpu_common import Budget, mpi_world, say

import coconet_lab.workloads as workloads
from coconet_lab.ir import oracle
from coconet_lab.ir.exact import integer_inputs, within_tolerance
from coconet_lab.ir.inputs import input_block, proof_inputs
from coconet_lab.ir.program import Program
from coconet_lab.ir.rounding import mismatch
from coconet_lab.ir.updates import updated_inputs
from coconet_lab.kernels.lower import lower
from coconet_lab.run.cuda_engine import CudaEngine
from coconet_lab.run.cuda_tuning import Tuning

LIST = [(5,), (64, 33), (3,), (30, 100), (4096,), (1,)]
Made = Iterator[tuple[str, Any]]


def made(ranks: int, quick: bool) -> Made:
    """Workloads by name: even sizes, odd ones, lists, and one large enough for many CTAs."""
    for dtype in ("fp16", "fp32"):
        for name in ("adam", "lamb", "sgd"):
            sizes: list[Any] = [4096, 1003, LIST] if quick else [4096, 1003, 5, (1 << 20) + 24, (1 << 18) + 5, LIST]
            for elements in sizes:
                label = "list" if isinstance(elements, list) else str(elements)
                yield (
                    f"{name} {dtype} {label}",
                    lambda n=name, d=dtype, e=elements: getattr(workloads, n)(elements=e, ranks=ranks, dtype=d),
                )
        for name in ("self_attention", "mlp"):
            for sequence, hidden in ((8, 64), (3, 5 * ranks)):
                yield (
                    f"{name} {dtype} {sequence}x{hidden}",
                    lambda n=name, d=dtype, s=sequence, h=hidden: getattr(workloads, n)(
                        batch=2 * ranks, sequence=s, hidden=h, ranks=ranks, dtype=d
                    ),
                )
        if ranks % 2 == 0:
            yield (
                f"pipeline {dtype}",
                lambda d=dtype: workloads.pipeline(batch=ranks, sequence=4, hidden=32, ranks=ranks, groups=2, dtype=d),
            )


def holds(program: Program, name: str, rank: int) -> bool:
    group = program.types[name].group
    return group is None or rank // program.group_ranks == group


def given(program: Program, inputs: dict[str, Any], rank: int) -> dict[str, Any]:
    """This rank's parts of the inputs, and the scalars."""
    found = {}
    for name in program.inputs:
        if holds(program, name, rank):
            kind = program.types[name]
            is_scalar = kind.shape == () and not kind.pieces
            found[name] = inputs[name] if is_scalar else input_block(program, inputs, name, rank)
    return found


def differences(program: Program, expected: oracle.OracleRun, engine: CudaEngine, rank: int) -> list[str]:
    """What this rank holds and the oracle does not."""
    loose = within_tolerance(expected, device=True)
    last = updated_inputs(program)
    found = []
    for name in dict.fromkeys((*engine.plan.outputs, *engine.plan.state)):
        value = last[name] if name in engine.plan.state and name not in engine.plan.outputs else name
        if not holds(program, value, rank):
            continue
        tolerance = 16 * program.types[value].dtype.eps if value in loose else 0.0
        got, want = engine.read(name), expected.values[value][rank]
        where = mismatch(got, want, tolerance)
        if where is not None:
            found.append(f"{name}{list(where)} is {got[where]!r}, not {want[where]!r}, tolerance {tolerance:g}")
    return found


def check(world: Any, workload: Any, schedule: str, options: argparse.Namespace) -> list[str]:
    """Problems of one schedule on this rank: a first run, a traced one, replays, new scalars without a new graph."""
    program = workload.schedules[schedule].program
    inputs = proof_inputs(workload.program, integer_inputs(workload.program))
    tuning = Tuning(options.ctas, options.unroll, form=options.form)
    engine = CudaEngine(lower(program), world, deadline_s=20.0, tuning=tuning, symmetric=options.symmetric)
    found = []
    try:
        engine.load(given(program, inputs, world.rank))
        expected = oracle.run(program, inputs)
        for how in ("run", "trace", "graph", "graph again"):
            engine.reset_state()
            engine.poison()
            engine.run(trace=how == "trace")
            found += [f"{how}: {text}" for text in differences(program, expected, engine, world.rank)]
        changed = {n: v for n, v in (("lr", 0.125), ("t", 3.0)) if n in engine.plan.scalar_inputs}
        if changed:
            kept = engine._graph
            engine.set_scalars(changed)
            engine.reset_state()
            engine.run()
            now = oracle.run(program, inputs | {n: np.float32(v) for n, v in changed.items()})
            found += [f"new scalars: {text}" for text in differences(program, now, engine, world.rank)]
            if engine._graph is not kept:
                found.append("new scalars captured a new graph")
    finally:
        engine.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--budget-s", type=float, default=240.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="workloads whose name has this")
    parser.add_argument("--symmetric", choices=("ipc", "nccl"), default="ipc")
    parser.add_argument("--ctas", type=int, default=0)
    parser.add_argument("--unroll", type=int, default=0)
    parser.add_argument("--form", choices=("", "read", "turns", "push"), default="", help="how peers' parts come")
    options = parser.parse_args()
    world = mpi_world()
    budget = Budget(world, options.budget_s)
    results: list[dict[str, Any]] = []
    for label, make in made(world.size, options.quick):
        if options.only not in label:
            continue
        workload, started_s, found = make(), time.perf_counter(), []
        for schedule in workload.recipes:
            if budget.is_over(2):
                break
            found.append(_one(world, label, workload, schedule, options))
        results += found
        passed = [r["schedule"] for r in found if not r["problems"]]
        if world.rank == 0 and passed:
            say(f"ok   {label:<24} {time.perf_counter() - started_s:5.1f} s  {', '.join(passed)}")
    return _report(world, results, budget, options.out)


def _one(world: Any, label: str, workload: Any, schedule: str, options: argparse.Namespace) -> dict[str, Any]:
    try:
        problems = check(world, workload, schedule, options)
    except Exception as error:  # one schedule's error must not hide the others'
        problems = [f"{type(error).__name__}: {error}"]
    everybody = world.mpi.allgather(problems)
    found = [f"rank {rank}: {text}" for rank, texts in enumerate(everybody) for text in texts]
    if world.rank == 0 and found:
        say(f"FAIL {label:<24} {schedule}" + "".join(f"\n     {text[:300]}" for text in found[:4]))
    return {"workload": label, "schedule": schedule, "problems": found}


def _report(world: Any, results: list[dict[str, Any]], budget: Budget, out: Path) -> int:
    failed = [r for r in results if r["problems"]]
    if world.rank == 0:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"gpu_check_{world.size}.json").write_text(json.dumps(results, indent=1))
        say(f"{len(results) - len(failed)} of {len(results)} equal the oracle on {world.size} ranks, "
            f"{budget.spent_s:.0f} s")  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
