"""The engine on a GPU: the twin of the CPU's `Engine`, with a whole Plan as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from coconet_lab.errors import CoconetError, InputError
from coconet_lab.kernels.plan import AnyEntry, Collective, HostScalars, Launch, Library, Plan, Slot, Transfer
from coconet_lab.run.cuda_device import import_cupy, take_gpu
from coconet_lab.run.cuda_kernels import Kernels
from coconet_lab.run.cuda_library import library_step, needs_temporaries
from coconet_lab.run.cuda_memory import DeviceMemory, Layout, symmetric_layout
from coconet_lab.run.cuda_nccl import (
    all_to_all_step,
    collective_step,
    communicators_of,
    needs_group,
    needs_world,
    transfer_step,
)
from coconet_lab.run.cuda_scalars import DeviceScalars
from coconet_lab.run.cuda_steps import Part, Step, Steps, check_plan, meeting_parts, stream_count
from coconet_lab.run.cuda_symmetric import Arena, Kind, agreed, allocate
from coconet_lab.run.cuda_tuning import Tuning
from coconet_lab.run.cuda_wait import Watch
from coconet_lab.run.engine_inputs import Given, checked_part, input_error, state_slots
from coconet_lab.run.engine_memory import Place
from coconet_lab.run.engine_trace import Span

Array = np.ndarray[Any, Any]
Hook = Callable[[Part], None]


class CudaEngine:
    """Runs a Plan on this rank's GPU; made, loaded and run by all ranks alike.

    State stays from run to run. The first run of a Plan with library calls is issued call by call, which sets the
    libraries up; every later one is one launch of a graph.

    Parameters
    ----------
    plan : Plan
    world : World
        Of ``plan.ranks`` processes on one host, each with a GPU.
    backend : "cuda"
    deadline_s : float
        Seconds to wait for a peer inside the Plan. NCCL's waits cannot be told from work: a run may take half a
        second more than this.
    tuning : Tuning
    symmetric : "ipc" or "nccl"
        How ranks reach each other's memory.
    graph : bool
        Whether runs are graph launches.

    Attributes
    ----------
    compile_s : float
        Seconds it took to get the kernels, from disk or compiled.
    """

    def __init__(
        self,
        plan: Plan,
        world: Any,
        backend: str = "cuda",
        deadline_s: float = 60.0,
        *,
        tuning: Tuning | None = None,
        symmetric: Kind = "ipc",
        graph: bool = True,
    ) -> None:
        check_plan(plan, world, backend)
        self.plan, self.world, self.deadline_s = plan, world, deadline_s
        ranks = plan.group_ranks
        self.place = Place(world.rank, world.rank // ranks, world.rank % ranks, ranks)
        self.gpu = agreed(world, lambda: take_gpu(world.rank, world.size), "taking its GPU")[world.rank]
        self._cupy = import_cupy()
        self.kernels = Kernels(plan, world, self.place.index, self.gpu, tuning or Tuning())
        self.compile_s = self.kernels.compile_s
        self._communicators = communicators_of(world, self.gpu)
        everybody = tuple(range(world.size))
        self._by_window = symmetric == "nccl" and world.size > 1
        window = self._communicators.of(everybody) if self._by_window else None
        in_group = needs_group(plan) and ranks > 1
        self._group = self._communicators.of(tuple(self.place.members(-1))) if in_group else None
        self._world = self._communicators.of(everybody) if needs_world(plan) else None
        self._initial: dict[str, list[Any]] = {}
        self._spans: list[Span] = []
        self._uses_graph = graph and not any(needs_temporaries(e) for e in plan.entries)
        self._has_run = all(isinstance(e, Launch | HostScalars) for e in plan.entries)
        layout = symmetric_layout(plan, meeting_parts(plan, self.kernels))
        arena = allocate(symmetric, layout.nbytes, world, self.gpu, window)
        self._give_back = arena.free
        try:
            agreed(world, lambda: self._set_up(arena, layout), f"setting up the plan of program {plan.name!r}")
        except CoconetError:
            self._give_back()  # on all ranks
            raise
        self._cupy.cuda.runtime.deviceSynchronize()
        world.barrier()

    # -- making ------------------------------------------------------------------------------------------------------

    def _set_up(self, arena: Arena, layout: Layout) -> None:
        """What a rank does alone, and may fail at alone: its own memory, streams, and steps."""
        self.memory = DeviceMemory(self.plan, self.place, arena, layout)
        self._give_back = self.memory.free
        self._scalars = DeviceScalars(self.plan, self.memory)
        self._steps = Steps(self.plan, self.memory, self.kernels, self._scalars.addresses, self.deadline_s)
        self._streams = [self._cupy.cuda.Stream(non_blocking=True) for _ in range(stream_count(self.plan))]
        uses_nccl = self._by_window or self._group is not None or self._world is not None
        self._watch = Watch(
            self.plan, self.place, self._communicators, self._streams, self._steps.states, self.deadline_s, uses_nccl
        )
        self._calls: dict[int, list[Step]] = {}
        self._parts = self._make_parts()

    def _make_parts(self) -> list[Part]:
        mine = [
            (i, e)
            for i, e in enumerate(self.plan.entries)
            if self.place.group in e.groups and not isinstance(e, HostScalars)
        ]
        streams = {i: e.stream for i, e in mine}
        parts = []
        for index, entry in mine:
            steps = [
                *self._steps.meetings(index, entry.stream, entry.opens, inside=isinstance(entry, Launch)),
                *self._work(index, entry),
                *self._steps.meetings(index, entry.stream, entry.closes, inside=isinstance(entry, Launch)),
            ]
            after = tuple(a for a in entry.after if streams.get(a, entry.stream) != entry.stream)
            parts.append(Part(index, entry.stream, tuple(steps), after))
        return parts

    def _work(self, index: int, entry: AnyEntry) -> list[Step]:
        if isinstance(entry, Launch):
            return [self._steps.launch(index, entry)]
        if index not in self._calls:  # made once: some take memory, and tuning changes none of them
            self._calls[index] = self._call(entry)
        return self._calls[index]

    def _call(self, entry: AnyEntry) -> list[Step]:
        match entry:
            case Collective():
                return [collective_step(entry, self.memory, self._group)]
            case Transfer():
                return [transfer_step(entry, self.memory, self._world)]
            case Library() if entry.op.kind == "AllToAll":
                return [all_to_all_step(entry, self.memory, self._group)]
            case Library():
                return [library_step(self.plan, entry, self.memory, self._watch.settle)]
            case _:
                return []

    # -- values ------------------------------------------------------------------------------------------------------

    def load(self, inputs: Mapping[str, Given]) -> None:
        """Fill this rank's inputs; as `Engine.load`.

        Raises
        ------
        InputError
            An unknown or missing name, a wrong shape or dtype.
        """
        self._watch.check()
        scalars = {name: value for name, value in inputs.items() if name in self.plan.scalar_inputs}
        for name in inputs:
            if name not in self.plan.inputs and name not in scalars:
                raise self._error(f"{name!r} is no input", ", ".join(map(repr, self.plan.inputs)))
        for name, slot in self.plan.inputs.items():
            if slot.buffer in self.memory.arrays:
                if name not in inputs:
                    raise self._error(f"input {name!r} is missing", f"{{{name!r}: …}}")
                self.memory.fill(slot, checked_part(self.plan, self.place, name, slot, inputs[name]))
        states = state_slots(self.plan, self.memory.arrays).items()
        self._initial = {name: [part.copy() for part in self.memory.parts(slot)] for name, slot in states}
        self.set_scalars(scalars)
        self._cupy.cuda.runtime.deviceSynchronize()
        self.world.barrier()  # a peer's kernel may read this rank's inputs at once

    def set_scalars(self, scalars: Mapping[str, Any]) -> None:
        """New values for scalar inputs; the others keep theirs. Nothing is recompiled or captured again."""
        self._watch.settle()
        self._scalars.set(scalars, self._streams[0])

    def reset_state(self) -> None:
        """Put the updated inputs back to what `load` gave; collective."""
        self._watch.check()
        self.world.barrier()
        for name, slot in state_slots(self.plan, self.memory.arrays).items():
            for part, initial in zip(self.memory.parts(slot), self._initial[name]):
                part[...] = initial
        self._cupy.cuda.runtime.deviceSynchronize()
        self.world.barrier()

    def poison(self) -> None:
        """Fill outputs and temporaries with NaN or a telling integer: nothing old passes for a result; collective."""
        self._watch.check()
        self.world.barrier()
        self.memory.poison("output", "temporary")
        self._cupy.cuda.runtime.deviceSynchronize()
        self.world.barrier()

    def arrays(self, name: str) -> list[Any]:
        """This rank's part of an input or output as CuPy arrays, in place (BF16 as its bits): of a list each tensor."""
        slot = self.plan.inputs.get(name) or self._slot(name)
        if slot is None or slot.buffer not in self.memory.arrays:
            raise self._error(f"rank {self.place.rank} holds no {name!r}", ", ".join(map(repr, self.plan.inputs)))
        return self.memory.parts(slot)

    def retune(self, tuning: Tuning) -> None:
        """Other CTAs and unrolling from the next run on; values stay. Collective."""
        self._watch.settle()
        self.kernels = Kernels(self.plan, self.world, self.place.index, self.gpu, tuning)
        self._steps.kernels = self.kernels
        self._parts, self._watch.graph = self._make_parts(), None
        self._cupy.cuda.runtime.deviceSynchronize()
        self.world.barrier()

    def holds(self, name: str) -> bool:
        """Whether this rank can read a value."""
        slot = self._slot(name)
        return name in self._scalars.values or (slot is not None and slot.buffer in self.memory.arrays)

    def _slot(self, name: str) -> Slot | None:
        return self.plan.outputs.get(name) or self.plan.state.get(name) or self.plan.slots.get(name)

    def read(self, name: str) -> Array:
        """A copy of this rank's part of a value: an output, an updated input by its name, any value that is stored."""
        slot = self._slot(name)
        if slot is not None and slot.buffer in self.memory.arrays:
            self._watch.settle()
            return self.memory.fetch(slot)
        if name in self._scalars.values:
            return self._scalars.values[name].copy()
        known = ", ".join(map(repr, (*self.plan.outputs, *self.plan.state)))
        raise self._error(f"rank {self.place.rank} holds no {name!r}", known)

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self, trace: bool = False) -> None:
        """Execute the Plan once and wait for it.

        Parameters
        ----------
        trace : bool
            Issue it call by call and keep a span for every entry.

        Raises
        ------
        RankError
            A rank has died or did not come in time. The engine then runs no more.
        InputError
            A scalar without value.
        """
        if trace:
            self._run_traced()
        else:
            self.enqueue()
        self.wait()

    def enqueue(self, times: int = 1) -> None:
        """Start the Plan on the GPU, `times` in a row, and return at once; `wait` waits and checks."""
        watch, main = self._watch, self._streams[0]
        watch.check()
        self._scalars.ready(main)
        watch.pending += times
        for _ in range(times):
            if not self._has_run:
                watch.first(lambda: self._issue(*self._told()))
                self._has_run = True
            elif not self._uses_graph:
                watch.issue(self._issue)
            else:
                if watch.graph is None:
                    watch.graph = self.captured()
                watch.graph.launch(main)

    @property
    def _graph(self) -> Any:
        return self._watch.graph

    @property
    def stream(self) -> Any:
        """The stream that runs begin and end on."""
        return self._streams[0]

    def wait(self) -> None:
        """Wait for all that was started, and say which meeting failed, if one did."""
        self._watch.wait()

    def _issue(self, before: Hook | None = None, after: Hook | None = None) -> None:
        """Enqueue every entry on its stream; events where one stream needs another."""
        event = self._cupy.cuda.Event
        main, others = self._streams[0], self._streams[1:]
        start = main.record(event(disable_timing=True))
        for stream in others:
            stream.wait_event(start)
        wanted = {index for part in self._parts for index in part.after}
        done: dict[int, Any] = {}
        for part in self._parts:
            stream = self._streams[part.stream]
            for index in part.after:
                if index in done:
                    stream.wait_event(done[index])
            if before:
                before(part)
            for step in part.steps:
                step(stream)
            if after:
                after(part)
            if part.index in wanted:
                done[part.index] = stream.record(event(disable_timing=True))
        for stream in others:
            main.wait_event(stream.record(event(disable_timing=True)))

    def _told(self, mark: Hook | None = None) -> tuple[Hook, Hook]:
        """For `_issue`: the watch hears where this rank is; `mark` is called at the begin and the end of each part."""
        event = self._cupy.cuda.Event

        def before(part: Part) -> None:
            self._watch.begins(part.index)
            if mark:
                mark(part)

        def after(part: Part) -> None:
            if mark:
                mark(part)
            self._watch.ends(part.index, part.stream, self._streams[part.stream].record(event(disable_timing=True)))

        return before, after

    def captured(self, times: int = 1) -> Any:
        """The whole Plan, `times` in a row, as one graph to ``launch(engine.stream)``; after a first run."""
        return self._watch.first(lambda: self._capture(times))

    def _capture(self, times: int) -> Any:
        self._streams[0].begin_capture()
        try:
            for _ in range(times):
                self._issue(lambda part: self._watch.begins(part.index))
        finally:
            graph = self._streams[0].end_capture()
        graph.upload(self._streams[0])
        return graph

    def _run_traced(self) -> None:
        event = self._cupy.cuda.Event
        marks: dict[int, list[Any]] = {}

        def mark(part: Part) -> None:
            marks.setdefault(part.index, []).append(self._streams[part.stream].record(event()))

        self._watch.check()
        self._scalars.ready(self._streams[0])
        self._watch.pending += 1
        start = self._streams[0].record(event())
        self._watch.first(lambda: self._issue(*self._told(mark)))
        self._has_run = True
        self._watch.settle()
        elapsed = self._cupy.cuda.get_elapsed_time
        self._spans = []
        for part in self._parts:
            begin, end = (1e3 * elapsed(start, m) for m in marks[part.index])
            entry = self.plan.entries[part.index]
            chunk = entry.chunk.index if entry.chunk else -1
            self._spans.append(Span(entry.name, _kind(entry), entry.stream, begin, end, chunk, part.index))

    def trace(self) -> Sequence[Span]:
        """The spans of the last traced run."""
        return tuple(self._spans)

    def close(self) -> None:
        """Give the memory back; collective, but after a failure, when each rank gives back what it can alone."""
        self._parts, self._calls, self._initial, self._watch.graph = [], {}, {}, None
        if self._watch.failed is None:
            self.memory.free()
        else:
            self._watch.abandon(self.memory)

    # -- errors ------------------------------------------------------------------------------------------------------

    def _error(self, found: str, hint: str) -> InputError:
        return input_error(self.plan, found, hint)


def _kind(entry: AnyEntry) -> str:
    if isinstance(entry, Collective):
        return entry.kind
    return entry.op.kind if isinstance(entry, Library) else type(entry).__name__
