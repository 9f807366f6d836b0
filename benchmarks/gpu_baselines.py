"""The updates a user would write with torch: NCCL collectives and fused optimizers, with and without CUDA graphs.

Every baseline has the same state and the same care: buffers allocated once, warmed up, graphs of several repeats.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from gpu_common import Timed, repeats_for, samples_us

LR, B1, B2, EPS, DECAY = 1e-3, 0.9, 0.999, 1e-8, 0.01


@dataclass
class Torch:
    """torch.distributed on the ranks of an MPI world, set up eagerly."""

    world: Any
    torch: Any = None
    dist: Any = None
    device: Any = None
    pool: Any = None
    lamb_direction: Any = None
    lamb_apply: Any = None
    notes: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Join all ranks; collective."""
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.device = torch.device("cuda", self.world.rank)
        torch.cuda.set_device(self.device)
        path = self.world.mpi.bcast(tempfile.mktemp(prefix="coconet-store-") if self.world.rank == 0 else None)
        dist.init_process_group(
            "nccl",
            init_method=f"file://{path}",
            rank=self.world.rank,
            world_size=self.world.size,
            device_id=self.device,
        )
        self.pool = self._pool()
        self.lamb_direction, self.lamb_apply = (
            torch.compile(function, dynamic=True) for function in lamb_functions(torch)
        )

    def _pool(self) -> Any:
        """A pool of NCCL's registered symmetric memory, or None with a note."""
        try:
            backend = self.dist.group.WORLD._get_backend(self.device)
            pool = self.torch.cuda.MemPool(backend.mem_allocator)
            with self.torch.cuda.use_mem_pool(pool):
                self.torch.empty(1 << 20, device=self.device)
            try:
                backend.register_mem_pool(pool, symm=True)
            except TypeError:
                backend.register_mem_pool(pool)
            return pool
        except Exception as error:  # a missing peer is a note in the table, not the end of the run
            self.notes.append(f"no symmetric pool: {type(error).__name__}: {str(error)[:200]}")
            return None

    def stop(self) -> None:
        """Leave; collective. The pool gives its memory back through the communicator, so it goes first."""
        self.pool = None
        gc.collect()
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()
        self.dist.destroy_process_group()

    def event(self) -> Any:
        """A timing event of torch's."""
        return self.torch.cuda.Event(enable_timing=True)


@dataclass
class Buffers:
    """Gradients, parameters and state of one size."""

    g: Any
    p: Any
    wide: Any
    w: Any
    m: Any
    v: Any
    steps: Any
    part: Any


class Updates:
    """The updates of one optimizer, size and dtype.

    Parameters
    ----------
    lab : Torch
    optimizer : "adam", "sgd" or "lamb"
    dtype : "fp16" or "fp32"
    elements : int
        A multiple of the ranks.
    pooled : bool
        Whether what travels lies in the registered pool.
    sliced : bool
        Whether the state is this rank's slice alone.
    """

    def __init__(self, lab: Torch, optimizer: str, dtype: str, elements: int, *, pooled: bool, sliced: bool) -> None:
        torch = lab.torch
        self.lab, self.optimizer, self.sliced, self.mixed = lab, optimizer, sliced, dtype == "fp16"
        wire = torch.float16 if self.mixed else torch.float32
        count = elements // lab.world.size if sliced else elements

        def zeros(n: int, kind: Any = torch.float32) -> Any:
            return torch.zeros(n, dtype=kind, device=lab.device)

        with torch.cuda.use_mem_pool(lab.pool) if pooled else nullcontext():
            g = torch.randn(elements, device=lab.device).to(wire)
            p = zeros(elements, wire) if self.mixed or sliced else None
            part = zeros(count, wire) if sliced else g
        adaptive = optimizer != "sgd"
        self.b = Buffers(
            g, p, zeros(count) if self.mixed and optimizer == "adam" else part, torch.randn(count, device=lab.device),
            zeros(count) if adaptive else None, zeros(count) if adaptive else None,
            torch.zeros((), device=lab.device), part,
        )  # fmt: skip

    def run(self) -> None:
        """Collectives and update of one step; the collective takes the mean."""
        dist, b = self.lab.dist, self.b
        if self.sliced:
            dist.reduce_scatter_tensor(b.part, b.g, op=dist.ReduceOp.AVG)
        else:
            dist.all_reduce(b.g, op=dist.ReduceOp.AVG)
        self.update()
        if self.sliced:
            dist.all_gather_into_tensor(b.p, b.p[self._mine()] if self.mixed else b.w)

    def _mine(self) -> slice:
        count = self.b.w.numel()
        return slice(self.lab.world.rank * count, (self.lab.world.rank + 1) * count)

    def update(self) -> None:
        """The optimizer on what arrived, and the parameters on the wire from the master weights."""
        torch, b = self.lab.torch, self.b
        if self.optimizer == "adam":
            if self.mixed:
                b.wide.copy_(b.part)
            b.steps += 1
            torch._fused_adam_(
                [b.w], [b.wide], [b.m], [b.v], [], [b.steps], lr=LR, beta1=B1, beta2=B2, weight_decay=0.0, eps=EPS,
                amsgrad=False, maximize=False, grad_scale=None, found_inf=None,
            )  # fmt: skip
        elif self.optimizer == "sgd":
            b.w.add_(b.part, alpha=-LR)
        else:
            b.steps += 1
            up, norms = self.lab.lamb_direction(b.part, b.w, b.m, b.v, b.steps)
            if self.sliced:
                self.lab.dist.all_reduce(norms)
            self.lab.lamb_apply(b.w, up, norms)
        if self.mixed and b.p is not None:
            (b.p[self._mine()] if self.sliced else b.p).copy_(b.w)


def lamb_functions(torch: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """LAMB before and after its norms meet, for torch.compile: torch has no fused one."""

    def direction(g: Any, w: Any, m: Any, v: Any, steps: Any) -> tuple[Any, Any]:
        g = g.float()
        m.mul_(B1).add_(g, alpha=1 - B1)
        v.mul_(B2).addcmul_(g, g, value=1 - B2)
        up = (m / (1 - B1**steps)) / ((v / (1 - B2**steps)).sqrt() + EPS) + DECAY * w
        return up, torch.stack([w.square().sum(), up.square().sum()])

    def apply(w: Any, up: Any, norms: Any) -> None:
        weight, change = norms.sqrt().unbind()
        ratio = torch.where((weight > 0) & (change > 0), weight / change, torch.ones_like(weight))
        w.sub_(up * (LR * ratio))

    return direction, apply


def measure(lab: Torch, run: Callable[[], None], *, graph: bool, count: int) -> list[float] | None:
    """Samples of a callable on torch's current stream, or None with a note if it cannot be captured."""
    torch = lab.torch
    stream = torch.cuda.Stream()
    elapsed = lambda a, b: a.elapsed_time(b)  # noqa: E731
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
        stream.synchronize()
        estimate = samples_us(lab.world, Timed(stream, run), lab.event, elapsed, 3)
        repeats = repeats_for(max(lab.world.mpi.allgather(min(estimate))))
        launch = _repeated(run, repeats)
        if graph:
            captured = torch.cuda.CUDAGraph()
            # Other threads (NCCL's watchdog) may look at their own events meanwhile.
            with torch.cuda.graph(captured, stream=stream, capture_error_mode="thread_local"):
                launch()
            launch = captured.replay
            launch()
            stream.synchronize()
        return samples_us(lab.world, Timed(stream, launch, repeats), lab.event, elapsed, count)


def _repeated(run: Callable[[], None], repeats: int) -> Callable[[], None]:
    def several() -> None:
        for _ in range(repeats):
            run()

    return several


Case = tuple[str, dict[str, Any], bool]


def cases(lab: Torch) -> Iterator[Case]:
    """Name, how the buffers are, and whether it is captured; the most telling first."""
    fused = "torch_fused"
    yield f"all_reduce+{fused}+graph", {"pooled": False, "sliced": False}, True
    yield f"reduce_scatter+{fused}+all_gather+graph", {"pooled": False, "sliced": True}, True
    yield f"all_reduce+{fused}", {"pooled": False, "sliced": False}, False
    yield f"reduce_scatter+{fused}+all_gather", {"pooled": False, "sliced": True}, False
    if lab.pool is not None:
        yield f"all_reduce+{fused}+pool+graph", {"pooled": True, "sliced": False}, True
        yield f"reduce_scatter+{fused}+all_gather+pool+graph", {"pooled": True, "sliced": True}, True
        yield f"all_reduce+{fused}+pool", {"pooled": True, "sliced": False}, False


def zero_redundancy(lab: Torch, elements: int, parts: int = 32) -> Callable[[], None]:
    """ZeroRedundancyOptimizer over `parts` float32 tensors, whose gradients are summed as one."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch = lab.torch
    flat = torch.randn(elements, device=lab.device)
    grads = flat.chunk(parts)
    parameters = [torch.nn.Parameter(torch.randn_like(g)) for g in grads]
    for parameter, grad in zip(parameters, grads):
        parameter.grad = grad
    optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=LR, fused=True)

    def run() -> None:
        lab.dist.all_reduce(flat, op=lab.dist.ReduceOp.AVG)
        optimizer.step()

    return run
