"""Two ranks on two GPUs, one of which is killed or stays away: how and when the other one ends.

``python tests/gpu/dead_rank.py [case …]`` needs neither pytest nor mpiexec, which would end both. A line for each case,
exit status 1 if one is not as it should be.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT_S = 100.0
"""For one case, with the seconds that CuPy and NCCL take to start."""


@dataclass(frozen=True)
class Case:
    """What rank 1 does, and what rank 0 must say of it."""

    what: str
    deadline_s: float
    says: str
    runs: int = 3
    elements: int = 4096


DIED = "rank 1 died while rank 0 was in 'total', step 0"
CASES = {
    "first": Case("is killed before the first run, in which NCCL joins the ranks", 30, DIED, runs=0),
    "graph": Case("is killed between two launches of the graph", 30, DIED),
    "inside": Case("is killed while its GPU sends", 30, DIED, elements=1 << 26),
    "late": Case("lives, and does not come", 3, "s for rank 1 in 'total', step 0"),
    "fused": Case(
        "is killed between two launches of a fused collective", 30, "rank 1 died while rank 0 was in 'fused'"
    ),
}


class Pair:
    """A world of two processes that talk over a pipe of their own."""

    size, hosts = 2, 1

    def __init__(self, rank: int, pipe: Connection) -> None:
        self.rank, self.pipe = rank, pipe

    @property
    def mpi(self) -> Pair:
        return self

    def allgather(self, item: Any) -> list[Any]:
        self.pipe.send(item)
        if not self.pipe.poll(LIMIT_S):
            raise TimeoutError("the other rank says nothing")
        other = self.pipe.recv()
        return [item, other] if self.rank == 0 else [other, item]

    def barrier(self) -> None:
        self.allgather(None)


def engine_of(world: Pair, name: str, case: Case) -> Any:
    """An engine with its inputs."""
    import numpy as np

    import coconet_lab as cl
    import coconet_lab.workloads as workloads
    from coconet_lab.kernels.lower import lower
    from coconet_lab.run.cuda_engine import CudaEngine

    if name == "fused":
        workload = workloads.adam(case.elements, ranks=2, dtype="fp16")
        program = workload.schedules["fuse(RS-Opt-AG)"].program
    else:
        g = cl.tensor("g", cl.FP32, (case.elements,), cl.Local)
        program = cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=2)
    engine = CudaEngine(lower(program), world, deadline_s=case.deadline_s)
    if name == "fused":
        engine.set_scalars({})
    else:
        engine.load({"g": np.full(case.elements, world.rank + 1, np.float32)})
    return engine


def on_rank(rank: int, name: str, descriptor: int) -> None:
    """What a rank does; rank 0 prints what it found."""
    from coconet_lab.errors import CoconetError

    case, world = CASES[name], Pair(rank, Connection(descriptor))
    engine = engine_of(world, name, case)
    for _ in range(case.runs):
        engine.run()
    world.barrier()
    if rank == 1:
        if name == "inside":
            engine.enqueue(100)
        if name != "late":
            os.kill(os.getpid(), signal.SIGKILL)
        world.pipe.poll(LIMIT_S)  # rank 0 closes it
        os._exit(0)
    found: dict[str, Any] = {"error": "", "again": ""}
    started_s = time.perf_counter()
    try:
        engine.enqueue(100 if name == "inside" else 1)
        engine.wait()
    except CoconetError as error:
        found["kind"], found["error"] = type(error).__name__, str(error)
    found["error_s"] = time.perf_counter() - started_s
    try:
        engine.run()
    except CoconetError as error:
        found["again"] = error.found
    started_s = time.perf_counter()
    engine.close()
    found["close_s"] = time.perf_counter() - started_s
    print(json.dumps(found), flush=True)


def problems(case: Case, found: dict[str, Any], status: int) -> list[str]:
    """What is not as it should be."""
    checks = {
        f"it says {found['error']!r}": case.says in found["error"] and found.get("kind") == "RankError",
        f"the error took {found['error_s']:.1f} s": found["error_s"] < max(case.deadline_s, 15),
        f"another run says {found['again']!r}": "runs no more" in found["again"],
        f"close took {found['close_s']:.1f} s": found["close_s"] < 6,
        f"the process ended with {status}": status == 0,
    }
    return [text for text, is_right in checks.items() if not is_right]


def check(name: str) -> tuple[bool, str]:
    """Run a case: whether it is right, and a line about it."""
    case, ends = CASES[name], socket.socketpair()
    environment = {"NCCL_NVLS_ENABLE": "0", **os.environ, "PYTHONPATH": str(ROOT)}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", str(rank), name, str(end.fileno())], env=environment, text=True,
            pass_fds=[end.fileno()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank, end in enumerate(ends)
    ]  # fmt: skip
    for end in ends:
        end.close()
    started_s = time.perf_counter()
    try:
        output = ranks[0].communicate(timeout=LIMIT_S)[0]
    except subprocess.TimeoutExpired:
        return False, f"FAIL {name:<7} {case.what}: rank 0 hangs"
    finally:
        for rank in ranks:
            rank.kill()
        other = ranks[1].communicate()[0]
    line = next((text for text in output.splitlines() if text.startswith("{")), "")
    if not line:
        return False, f"FAIL {name:<7} {case.what}: rank 0 ended with\n{output[-2000:]}\nrank 1 with\n{other[-1000:]}"
    found = json.loads(line)
    wrong = problems(case, found, ranks[0].returncode)
    times = (
        f"error {found['error_s']:.2f} s, close {found['close_s']:.2f} s, all {time.perf_counter() - started_s:.0f} s"
    )
    first = found["error"].splitlines()[0] if found["error"] else "no error"
    return not wrong, f"{'FAIL' if wrong else 'ok  '} {name:<7} {times}: {'; '.join(wrong) or first}"


def main(names: list[str]) -> int:
    """Check the cases named, or all."""
    is_right = True
    for name in names or CASES:
        fine, line = check(name)
        print(line, flush=True)
        is_right &= fine
    return 0 if is_right else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        on_rank(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        sys.exit(main(sys.argv[1:]))
