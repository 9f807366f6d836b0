"""What runs on a rank for `Cluster.run`, `load` and `compare`: an engine kept between calls, repeats that are timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from coconet_lab.ir.inputs import input_block, random_block
from coconet_lab.ir.ops import Input
from coconet_lab.ir.program import Program
from coconet_lab.kernels.plan import Plan
from coconet_lab.run import ranks
from coconet_lab.run.engine_trace import Span

Array = np.ndarray[Any, Any]
DrawKey = tuple[int, Input, int, int]  # seed, input, rank in its group, ranks of the group
_DRAWN_BYTES = 256 << 20
Part = Array | Callable[..., Array] | None


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one Plan.

    Parameters
    ----------
    key : str
        Under which the ranks keep the engine.
    plan : Plan
    program : Program
        What the plan was lowered from: the ranks draw and check its inputs.
    backend : str
        ``cpu`` or ``cuda``.
    scalars : mapping of name to number
    seed : int
        Of the inputs the ranks draw themselves.
    repeats, warmup : int
    traced : bool
        Whether a run is traced: the single one, or one more after several.
    what : str
        The schedule's name, for the progress bar.
    """

    key: str
    plan: Plan
    program: Program
    backend: str
    scalars: Mapping[str, float | int]
    seed: int = 0
    repeats: int = 1
    warmup: int = 0
    traced: bool = True
    what: str = ""


@dataclass(frozen=True, slots=True)
class RankRun:
    """What one rank measured."""

    samples_us: tuple[float, ...]
    compile_s: float
    spans: tuple[Span, ...]
    stopped: bool = False


@dataclass(slots=True)
class _Kept:
    """The engines this rank process keeps: memory of the ranks, not of the notebook."""

    engines: dict[str, Any] = field(default_factory=dict)
    world: Any = None
    drawn: dict[DrawKey, Array] = field(default_factory=dict)


_kept = _Kept()  # one per rank process by nature, as its MPI world is


def prepare(job: Job, parts: Mapping[str, Part]) -> float:
    """Build (or take up) the engine of `job` and load this rank's parts; returns seconds spent compiling."""
    release(job.key)
    ranks.report(op=job.what or job.plan.name, step=-1, done=0, total=job.repeats + job.warmup)
    engine = _make_engine(job.plan, job.backend)
    _kept.engines[job.key] = engine
    rank = _world(job.backend).rank
    engine.load({name: _part(job, name, part, rank) for name, part in parts.items()})
    _forget_draws(job, rank)
    engine.set_scalars(dict(job.scalars))
    return float(engine.compile_s)


def _world(backend: str) -> Any:
    if _kept.world is None:
        from coconet_lab.run.world import MpiWorld

        _kept.world = MpiWorld()
    return _kept.world


def _make_engine(plan: Plan, backend: str) -> Any:
    if backend == "cuda":
        from coconet_lab.run.cuda_engine import CudaEngine

        return CudaEngine(plan, _world(backend))
    from coconet_lab.run.engine import Engine

    return Engine(plan, _world(backend))


def _part(job: Job, name: str, part: Part, rank: int) -> Array:
    """This rank's part of an input: as sent, made by the user's callable, or drawn."""
    if isinstance(part, np.ndarray):
        return part
    if part is not None:
        return input_block(job.program, {name: part}, name, rank)
    key = _draw_key(job, name, rank)
    if key not in _kept.drawn:
        seed, op, index, size = key
        _kept.drawn[key] = random_block(op, seed, op.type.ranges(index, size), index)
    return _kept.drawn[key]


def _draw_key(job: Job, name: str, rank: int) -> DrawKey:
    size = job.program.group_ranks
    return job.seed, cast(Input, job.program.ops[name]), rank % size, size


def _forget_draws(job: Job, rank: int) -> None:
    """Keep what the next schedule of a comparison draws again, if it is not too much: drawing takes its time."""
    wanted = {_draw_key(job, n, rank) for n, op in job.program.ops.items() if isinstance(op, Input)}
    _kept.drawn = {key: array for key, array in _kept.drawn.items() if key in wanted}
    if sum(array.nbytes for array in _kept.drawn.values()) > _DRAWN_BYTES:
        _kept.drawn.clear()


def execute(job: Job, parts: Mapping[str, Part]) -> RankRun:
    """Prepare, then run: every repeat starts from the inputs, on all ranks together; only the run itself is timed."""
    compile_s = prepare(job, parts)
    engine, world = _kept.engines[job.key], _world(job.backend)
    samples: list[float] = []
    # A single run is traced as it is timed; of several, one more is traced, which costs time, and not counted.
    extra = int(job.traced and job.repeats > 1)
    for repeat in range(-job.warmup, job.repeats + extra):
        ranks.report(op=job.what or job.plan.name, step=-1, done=min(repeat, job.repeats) + job.warmup)
        if _agree_to_stop(world):
            return RankRun(tuple(samples), compile_s, tuple(engine.trace()), stopped=True)
        engine.reset_state()
        engine.poison()  # the last of its barriers is where all ranks begin together
        traced = job.traced and repeat == job.repeats - 1 + extra
        started = time.perf_counter()
        engine.run(trace=traced)
        taken = (time.perf_counter() - started) * 1e6
        if 0 <= repeat < job.repeats:
            samples.append(taken)
    ranks.report(op=job.what or job.plan.name, step=-1, done=job.repeats + job.warmup)
    return RankRun(tuple(samples), compile_s, tuple(engine.trace()))


def step(key: str, scalars: Mapping[str, float | int], times: int) -> RankRun:
    """Run a kept engine again with new scalars; nothing is compiled and nothing reloaded."""
    engine = _kept.engines[key]
    compiled_s = float(engine.compile_s)
    engine.set_scalars(dict(scalars))
    samples = []
    for _ in range(times):
        started = time.perf_counter()
        engine.run()
        samples.append((time.perf_counter() - started) * 1e6)
    return RankRun(tuple(samples), float(engine.compile_s) - compiled_s, ())


def read(key: str, names: tuple[str, ...]) -> dict[str, Array] | None:
    """This rank's part of stored values; None if the engine is kept no longer."""
    engine = _kept.engines.get(key)
    if engine is None:
        return None
    held = [name for name in names if _is_held(engine, name)]
    return {name: engine.read(name) for name in held}


def _is_held(engine: Any, name: str) -> bool:
    """Whether this rank stores a value: those inside a kernel, and of other groups, it does not."""
    plan: Plan = engine.plan
    slot = plan.outputs.get(name) or plan.state.get(name) or plan.slots.get(name)
    return slot is not None and plan.buffers[slot.buffer].group == _kept.world.rank // plan.group_ranks


def _agree_to_stop(world: Any) -> bool:
    """Whether any rank was told to stop: all decide alike."""
    flag = np.array([ranks.cancelled()], np.int64)
    total = np.zeros_like(flag)
    world.mpi.Allreduce(flag, total)
    return bool(total[0])


def release(key: str) -> None:
    """Let go of an engine and its memory; harmless if it is not there."""
    engine = _kept.engines.pop(key, None)
    if engine is not None:
        engine.close()
