"""Programs to explore, and a cluster that needs no ranks."""

from __future__ import annotations

import threading
from typing import Any

import coconet_lab as cl
from coconet_lab import FP16, Program, Replicated, Sliced, workloads
from coconet_lab.errors import ClusterError, RankError
from coconet_lab.run.ranks import Report
from coconet_lab.run.trace import Span

WAIT_S = 60.0


def attention(ranks: int = 4) -> Program:
    return workloads.self_attention(ranks=ranks).program


def small_attention(ranks: int = 2) -> Program:
    return workloads.self_attention(batch=4, sequence=8, hidden=16, ranks=ranks).program


def large(blocks: int = 63) -> Program:
    """A chain of equal blocks: 8 operations each, 505 in all for 63."""
    h = x = cl.tensor("x", FP16, (8, 1024, 3072), Replicated)
    inputs = [x]
    for number in range(blocks):
        with cl.scope(f"block{number}.attn"):
            w, b = cl.tensor("w", FP16, (3072, 3072), Sliced(0)), cl.tensor("b", FP16, (3072,), Replicated)
            layer = cl.matmul(cl.local_slice(h, 2, name="cut"), w, name="layer")
            biased = cl.add(cl.all_reduce(layer, name="total"), b, name="biased")
            h = cl.add(cl.dropout(biased, 0.1, name="drop"), h, name="out")
            inputs += [w, b]
    return cl.program("gpt", inputs=inputs, outputs=[h], ranks=4)


class Timed:
    """What a run gives back, as far as the explorer reads it."""

    def __init__(self, samples_us: tuple[float, ...]) -> None:
        self.timing = type("Timing", (), {"samples_us": samples_us})()
        self.trace = (Span(0, 0, "layer", "MatMul", 0.0, 9.0, "Local"), Span(1, 1, "total", "AllReduce", 9.0, 20.0))
        self.provenance = type("Provenance", (), {"caption": lambda self: "a machine of the tests"})()


class FakeCluster:
    """Two ranks that answer, raise or die as they are told."""

    ranks = 2
    queue = ""
    backend = type("Backend", (), {"name": "cpu", "__str__": lambda self: "2 ranks, CPU"})()

    def __init__(self, fault: Exception | None = None, dies: bool = False, holds: bool = False) -> None:
        self.fault, self.dies, self.generation = fault, dies, 0
        self.state = "not started"
        self.names: list[str] = []
        self.go_on = threading.Event()
        self.started = threading.Event()
        if not holds:
            self.go_on.set()

    def start(self) -> None:
        self.generation += 1
        self.state = "running"

    def cancel(self) -> None:
        self.go_on.set()

    def reports(self) -> list[Report]:
        return [Report(1, "total", 1, 3, 10)] * 2 if self.generation else []

    def run(self, schedule: Any, inputs: Any, *, repeats: int, name: str, progress: bool) -> Timed:
        assert progress is False, "the page shows the progress: a bar in the cell would be a second one"
        self.names.append(name)
        self.started.set()
        assert self.go_on.wait(WAIT_S)
        if self.dies:
            self.state, self.dies = "ranks ended", False
            raise RankError("rank 1 of 2 was killed by signal 9 (SIGKILL) in 'total'", rule="one world", where="run")
        if self.fault is not None:
            raise self.fault
        self.generation, self.state = self.generation or 1, "running"
        return Timed(tuple(float(100 - len(self.names)) for _ in range(repeats)))


def broken() -> RankError:
    return RankError(
        "rank 1 of 2 raised ZeroDivisionError: division by zero, in 'total'", rule="an exception ends the call",
        where="'start'", hint="error.tracebacks[1]", tracebacks={1: "Traceback: <b>line</b> 1"},
    )  # fmt: skip


def wrong_size() -> ClusterError:
    return ClusterError("program 'p' is for 4 ranks, the cluster has 2", rule="sizes agree", hint="with_ranks(2)")
