"""What a user would write by hand: the baselines of every table, measured on the same ranks as the schedules.

``mpi4py+numpy`` is the plain expression; ``mpi4py+numpy_inplace`` spends the care of `out=` buffers;
``gloo+torch_fused`` is torch.distributed with its fused optimizer (torch is a benchmark-only extra).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coconet_lab.errors import ToolError
from coconet_lab.run import ranks

Array = np.ndarray[Any, Any]
Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class HandWritten:
    """A baseline to measure.

    Parameters
    ----------
    name : str
        As in the tables: ``mpi4py+numpy``, ….
    workload : str
        ``adam``, ``sgd``, ``lamb``, ``self_attention`` or ``mlp``; FP32.
    elements : int
        Of an optimizer's tensor.
    shape : tuple of int
        Batch, sequence, hidden and inner extent of an epilogue.
    repeats, warmup : int
    seed : int
    """

    name: str
    workload: str
    elements: int = 0
    shape: tuple[int, ...] = ()
    repeats: int = 10
    warmup: int = 2
    seed: int = 0


BASELINES: dict[str, tuple[str, ...]] = {
    "sgd": ("mpi4py+numpy", "mpi4py+numpy_inplace"),
    "adam": ("mpi4py+numpy", "mpi4py+numpy_inplace", "gloo+torch_fused"),
    "lamb": ("mpi4py+numpy",),
    "self_attention": ("mpi4py+numpy",),
    "mlp": ("mpi4py+numpy",),
}


def measure(what: HandWritten) -> tuple[float, ...]:
    """Times of the repeats on this rank, in microseconds: the ranks begin each together, as they do for schedules."""
    from mpi4py import MPI

    cores = os.sched_getaffinity(0)
    try:
        if what.name.startswith("gloo"):
            # Its own threads must run beside this one: they inherit where it may run, and a rank that spins in a
            # barrier of MPI would keep them from their core for a whole time slice.
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
            return _repeated(what, MPI.COMM_WORLD, make_step(what, MPI.COMM_WORLD), _gloo_barrier)
        return _repeated(what, MPI.COMM_WORLD, make_step(what, MPI.COMM_WORLD), MPI.COMM_WORLD.Barrier)
    finally:
        os.sched_setaffinity(0, cores)


def _repeated(what: HandWritten, comm: Any, step: Step, meet: Step) -> tuple[float, ...]:
    samples = []
    for repeat in range(-what.warmup, what.repeats):
        ranks.report(op=what.name, done=repeat + what.warmup, total=what.repeats + what.warmup)
        if comm.allreduce(ranks.cancelled()):
            break
        meet()
        started = time.perf_counter()
        step()
        if repeat >= 0:
            samples.append((time.perf_counter() - started) * 1e6)
    return tuple(samples)


def _gloo_barrier() -> None:
    import torch.distributed as dist

    dist.barrier()


def make_step(what: HandWritten, comm: Any) -> Step:
    """One step of a baseline on this rank of `comm`, an mpi4py communicator."""
    return _MAKERS[what.workload, what.name](what, comm)


def _vectors(what: HandWritten, comm: Any, count: int) -> list[Array]:
    """A gradient of this rank's own, then weights and state that all ranks share."""
    own = np.random.default_rng([what.seed, comm.Get_rank() + 1])
    shared = np.random.default_rng(what.seed)
    draws = [own, *[shared] * (count - 1)]
    return [draw.random(what.elements, dtype=np.float32) for draw in draws]


def _adam(what: HandWritten, comm: Any) -> Step:
    g, w, m, v = _vectors(what, comm, 4)
    total = np.empty_like(g)
    lr, b1, b2, eps = (np.float32(x) for x in (1e-3, 0.9, 0.999, 1e-8))
    one = np.float32(1)

    def step() -> None:
        comm.Allreduce(g, total)
        mean = total / np.float32(comm.size)
        m[:] = b1 * m + (one - b1) * mean
        v[:] = b2 * v + (one - b2) * (mean * mean)
        w[:] = w - lr * ((m / (one - b1)) / (np.sqrt(v / (one - b2)) + eps))

    return step


def _adam_in_place(what: HandWritten, comm: Any) -> Step:
    g, w, m, v = _vectors(what, comm, 4)
    total, work = np.empty_like(g), np.empty_like(g)
    lr, b1, b2, eps = (np.float32(x) for x in (1e-3, 0.9, 0.999, 1e-8))
    one = np.float32(1)

    def step() -> None:
        comm.Allreduce(g, total)
        np.divide(total, np.float32(comm.size), out=total)
        np.multiply(total, one - b1, out=work)
        np.multiply(m, b1, out=m)
        np.add(m, work, out=m)
        np.multiply(total, total, out=total)
        np.multiply(total, one - b2, out=total)
        np.multiply(v, b2, out=v)
        np.add(v, total, out=v)
        np.divide(v, one - b2, out=work)
        np.sqrt(work, out=work)
        np.add(work, eps, out=work)
        np.divide(m, one - b1, out=total)
        np.divide(total, work, out=total)
        np.multiply(total, lr, out=total)
        np.subtract(w, total, out=w)

    return step


def _sgd(what: HandWritten, comm: Any) -> Step:
    g, w = _vectors(what, comm, 2)
    total = np.empty_like(g)
    lr = np.float32(1e-2)

    def step() -> None:
        comm.Allreduce(g, total)
        w[:] = w - lr * (total / np.float32(comm.size))

    return step


def _sgd_in_place(what: HandWritten, comm: Any) -> Step:
    g, w = _vectors(what, comm, 2)
    total = np.empty_like(g)
    scale = np.float32(1e-2) / np.float32(comm.size)

    def step() -> None:
        comm.Allreduce(g, total)
        np.multiply(total, scale, out=total)
        np.subtract(w, total, out=w)

    return step


def _lamb(what: HandWritten, comm: Any) -> Step:
    g, w, m, v = _vectors(what, comm, 4)
    total = np.empty_like(g)
    lr, b1, b2, eps, decay = (np.float32(x) for x in (1e-3, 0.9, 0.999, 1e-8, 0.01))
    one = np.float32(1)

    def step() -> None:
        comm.Allreduce(g, total)
        mean = total / np.float32(comm.size)
        m[:] = b1 * m + (one - b1) * mean
        v[:] = b2 * v + (one - b2) * (mean * mean)
        u = (m / (one - b1)) / (np.sqrt(v / (one - b2)) + eps) + decay * w
        w_norm, u_norm = np.linalg.norm(w), np.linalg.norm(u)
        ratio = w_norm / u_norm if w_norm > 0 and u_norm > 0 else one
        w[:] = w - lr * ratio * u

    return step


def _epilogue(what: HandWritten, comm: Any) -> Step:
    batch, sequence, hidden, inner = what.shape
    own = np.random.default_rng([what.seed, comm.Get_rank() + 1])
    shared = np.random.default_rng(what.seed)
    x = own.random((batch, sequence, inner // comm.size), dtype=np.float32)
    w = own.random((inner // comm.size, hidden), dtype=np.float32)
    b = shared.random(hidden, dtype=np.float32)
    r = shared.random((batch, sequence, hidden), dtype=np.float32)
    total, out = np.empty_like(r), np.empty_like(r)
    mask = np.random.default_rng(what.seed)  # the same on all ranks, as the layer needs
    scale = np.float32(1 / 0.9)

    def step() -> None:
        layer = x @ w
        comm.Allreduce(layer, total)
        keep = mask.random(total.shape, dtype=np.float32) >= np.float32(0.1)
        out[:] = (total + b) * keep * scale + r

    return step


def _adam_torch(what: HandWritten, comm: Any) -> Step:
    try:
        import torch
        import torch.distributed as dist
    except ModuleNotFoundError as missing:
        raise ToolError(
            "the baseline gloo+torch_fused needs torch",
            rule="torch is an extra for benchmarks only",
            where="baseline gloo+torch_fused",
            hint="pip install 'coconet-lab[bench]'",
        ) from missing
    if not dist.is_initialized():
        _join_gloo(dist, comm)
    torch.set_num_threads(1)
    g, w, _, _ = _vectors(what, comm, 4)
    parameter = torch.nn.Parameter(torch.from_numpy(w))
    parameter.grad = torch.from_numpy(g)
    optimizer = torch.optim.Adam([parameter], lr=1e-3, fused=True)

    def step() -> None:
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(comm.size)
        optimizer.step()

    return step


def _join_gloo(dist: Any, comm: Any) -> None:
    """A gloo group of the same ranks, on loopback; its store's port is chosen by the system."""
    import datetime
    import os

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = (
        dist.TCPStore(
            "127.0.0.1",
            0,
            comm.size,
            comm.Get_rank() == 0,
            timeout=datetime.timedelta(seconds=60),
            wait_for_workers=False,
        )
        if comm.Get_rank() == 0
        else None
    )
    port = comm.bcast(store.port if store is not None else 0)
    if store is None:
        store = dist.TCPStore("127.0.0.1", port, comm.size, False, timeout=datetime.timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=comm.Get_rank(), world_size=comm.size)


_MAKERS: dict[tuple[str, str], Callable[[HandWritten, Any], Step]] = {
    ("adam", "mpi4py+numpy"): _adam,
    ("adam", "mpi4py+numpy_inplace"): _adam_in_place,
    ("adam", "gloo+torch_fused"): _adam_torch,
    ("sgd", "mpi4py+numpy"): _sgd,
    ("sgd", "mpi4py+numpy_inplace"): _sgd_in_place,
    ("lamb", "mpi4py+numpy"): _lamb,
    ("self_attention", "mpi4py+numpy"): _epilogue,
    ("mlp", "mpi4py+numpy"): _epilogue,
}
