"""The engine: executes a Plan on one rank, entry by entry in issue order."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from coconet_lab.errors import CodegenError, InputError
from coconet_lab.kernels.numba_compile import compile_numba, compile_share
from coconet_lab.kernels.plan import (
    AnyEntry,
    Arrive,
    Chunk,
    Collective,
    Exchange,
    HostScalars,
    Launch,
    Library,
    Plan,
    Transfer,
)
from coconet_lab.run.engine_exchange import exchange_step
from coconet_lab.run.engine_inputs import Given, checked_part, input_error, state_slots
from coconet_lab.run.engine_library import library_step
from coconet_lab.run.engine_meet import Meetings
from coconet_lab.run.engine_memory import Memory, Place
from coconet_lab.run.engine_scalars import check_scalar_names, scalar_values
from coconet_lab.run.engine_steps import Arguments, collective_step, launch_step, meeting_steps, transfer_step
from coconet_lab.run.engine_trace import Span
from coconet_lab.run.ranks import report
from coconet_lab.run.world import World

Array = np.ndarray[Any, Any]
Step = Callable[[], None]


class Engine:
    """Runs a Plan on this rank; made, loaded and run by all ranks alike.

    State stays from run to run: what `run` updated in place is where the next one starts.

    Parameters
    ----------
    plan : Plan
    world : World
        Of ``plan.ranks`` ranks.
    backend : "cpu"
    deadline_s : float
        Seconds to wait for a peer inside the Plan.

    Attributes
    ----------
    compile_s : float
        Seconds it took to get the kernels, from disk or compiled.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> from coconet_lab.kernels.lower import lower
    >>> from coconet_lab.run.world import ThreadWorld
    >>> g = cl.tensor("g", cl.FP32, (3,), cl.Local)
    >>> plan = lower(cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=2))
    >>> def work(world):
    ...     engine = Engine(plan, world)
    ...     engine.load({"g": np.full(3, world.rank + 1, np.float32)})
    ...     engine.run()
    ...     return engine.read("total").tolist()
    >>> ThreadWorld.run(2, work)
    [[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]
    """

    def __init__(self, plan: Plan, world: World, backend: str = "cpu", deadline_s: float = 60.0) -> None:
        _check(plan, world, backend)
        self.plan, self.world = plan, world
        ranks = plan.group_ranks
        self.place = Place(world.rank, world.rank // ranks, world.rank % ranks, ranks, plan.placement.span)
        self._group = world.group(list(self.place.members(-1)))
        self._rail = world.group(self.place.rail()) if plan.hosts > 1 else self._group
        self.compile_s = 0.0
        self._kernels = self._compile()
        self.memory = Memory(plan, world, self.place)
        self._meetings = Meetings(plan, self.memory, deadline_s)
        self._arguments: list[Arguments] = []
        self._scalars: dict[str, Array] = {}
        self._given: dict[str, Any] = {}
        self._initial: dict[str, Array] = {}
        self._spans: list[Span] = []
        self._said = -1
        self._parts = [(index, self._steps(index, entry)) for index, entry in self._own_entries()]
        self._flat = [step for _, steps in self._parts for step in steps]

    # -- making -------------------------------------------------------------------------------------------------------

    def _own_entries(self) -> list[tuple[int, AnyEntry]]:
        mine = self.place.group
        return [(i, e) for i, e in enumerate(self.plan.entries) if mine in e.groups and not isinstance(e, HostScalars)]

    def _compile(self) -> dict[Any, Any]:
        """Each rank compiles a share of the kernels, then finds the others' on disk."""
        started_s = time.perf_counter()
        kernels = self.plan.kernels()
        compile_share(kernels, self.world.rank, self.world.size)
        self.world.barrier()
        own = {e.kernel for _, e in self._own_entries() if isinstance(e, Launch)}
        found = {kernel: compile_numba(kernel) for kernel in kernels if kernel in own}
        self.compile_s = time.perf_counter() - started_s
        return found

    def _steps(self, index: int, entry: AnyEntry) -> list[Step]:
        """What an entry does on this rank: meet, work, meet."""
        is_launch = isinstance(entry, Launch)
        steps = [self._telling(index, entry)] if _meets(entry) and self.plan.ranks > 1 else []
        if self.place.ranks > 1 or self.plan.groups > 1:
            steps += meeting_steps(index, entry.opens, self._meetings, is_launch)
        steps += self._work(index, entry)
        if self.place.ranks > 1 or self.plan.groups > 1:
            steps += meeting_steps(index, entry.closes, self._meetings, is_launch)
        return steps

    def _work(self, index: int, entry: AnyEntry) -> list[Step]:
        match entry:
            case Launch():
                arguments = Arguments(entry)
                self._arguments.append(arguments)
                kernel = self._kernels[entry.kernel]
                return [launch_step(index, entry, kernel, self.memory, self._meetings, arguments)]
            case Collective():
                return [collective_step(entry, self.memory, self._group)]
            case Transfer():
                return [transfer_step(entry, self.memory, self._group)]
            case Library():
                return [library_step(self.plan, entry, self.memory, self._group)]
            case Exchange():
                return [exchange_step(entry, self.memory, self._rail, self._group)]
            case Arrive() | HostScalars():
                return []

    def _telling(self, index: int, entry: AnyEntry) -> Step:
        """Say which entry this rank is in, once: a file is written for it."""

        def tell() -> None:
            if self._said != index:
                self._said = index
                report(op=entry.name, step=index)

        return tell

    # -- values -------------------------------------------------------------------------------------------------------

    def load(self, inputs: Mapping[str, Given]) -> None:
        """Fill this rank's inputs.

        Parameters
        ----------
        inputs : mapping
            Tensor input -> this rank's part of it (its block where the layout is Sliced), or a callable
            ``(rank, ranges) -> array`` with the rank of all ranks and the part's global ranges. Inputs of other
            groups' ranks are passed over; scalars may be among them.

        Raises
        ------
        InputError
            An unknown or missing name, a wrong shape or dtype.
        """
        scalars = {name: value for name, value in inputs.items() if name in self.plan.scalar_inputs}
        for name in inputs:
            if name not in self.plan.inputs and name not in scalars:
                raise self._error(f"{name!r} is no input", ", ".join(map(repr, self.plan.inputs)))
        for name, slot in self.plan.inputs.items():
            if self.place.holds(self.plan.buffers[slot.buffer].group):
                if name not in inputs:
                    raise self._error(f"input {name!r} is missing", f"{{{name!r}: …}}")
                self.memory.put(slot, checked_part(self.plan, self.place, name, slot, inputs[name]))
        self._initial = {
            name: self.memory.take(slot) for name, slot in state_slots(self.plan, self.memory.arrays).items()
        }
        self.set_scalars(scalars)
        self.world.barrier()  # a peer's kernel may read this rank's inputs at once

    def set_scalars(self, scalars: Mapping[str, Any]) -> None:
        """New values for scalar inputs; the others keep theirs. Nothing is recompiled."""
        check_scalar_names(self.plan, scalars)
        self._given = {**self._given, **scalars}
        waiting = [name for name, default in self.plan.scalar_inputs.items() if default is None]
        if all(name in self._given for name in waiting):  # else the others come later, before the first run
            self._compute_scalars()

    def _compute_scalars(self) -> None:
        self._scalars = scalar_values(self.plan, self._given)
        for arguments in self._arguments:
            arguments.set(self._scalars)

    def reset_state(self) -> None:
        """Put the updated inputs back to what `load` gave; collective."""
        self.world.barrier()
        for name, slot in state_slots(self.plan, self.memory.arrays).items():
            self.memory.put(slot, self._initial[name])
        self.world.barrier()

    def poison(self) -> None:
        """Fill outputs and temporaries with NaN or a telling integer: nothing old passes for a result; collective."""
        self.world.barrier()
        self.memory.poison("output", "temporary")
        self.world.barrier()

    def read(self, name: str) -> Array:
        """A copy of this rank's part of a value: an output, an updated input by its name, any value that is stored."""
        slot = self.plan.outputs.get(name) or self.plan.state.get(name) or self.plan.slots.get(name)
        if slot is not None and slot.buffer in self.memory.arrays:
            return self.memory.take(slot)
        if name in self._scalars:
            return self._scalars[name].copy()
        raise self._error(
            f"rank {self.place.rank} holds no {name!r}", ", ".join(map(repr, (*self.plan.outputs, *self.plan.state)))
        )

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, trace: bool = False) -> None:
        """Execute the Plan once.

        Parameters
        ----------
        trace : bool
            Keep a span for every entry.

        Raises
        ------
        RankError
            A peer did not come to a meeting in time; names the entry, its step and the peer.
        InputError
            A scalar without value.
        """
        if len(self._scalars) < len(self.plan.scalar_types):
            self._compute_scalars()
        if trace:
            self._run_traced()
            return
        for step in self._flat:
            step()

    def _run_traced(self) -> None:
        clock, spans = time.perf_counter_ns, []
        started_ns = clock()
        for index, steps in self._parts:
            begin_ns = clock()
            for step in steps:
                step()
            spans.append((index, begin_ns, clock()))
        self._spans = [
            _span(self.plan.entries[index], index, (begin_ns - started_ns) / 1e3, (end_ns - started_ns) / 1e3)
            for index, begin_ns, end_ns in spans
        ]

    def trace(self) -> Sequence[Span]:
        """The spans of the last traced run."""
        return tuple(self._spans)

    def close(self) -> None:
        """Give the memory back."""
        self._flat, self._parts = [], []
        self.memory.free()

    def _error(self, found: str, hint: str) -> InputError:
        return input_error(self.plan, found, hint)


def _check(plan: Plan, world: World, backend: str) -> None:
    if backend != "cpu":
        raise CodegenError(
            f"this engine has no backend {backend!r}", rule="it runs Plans on the CPU", where="Engine", hint='"cpu"'
        )
    if world.size != plan.ranks:
        raise InputError(
            f"program {plan.name!r} is for {plan.ranks} ranks, the world has {world.size}",
            rule="a Plan runs on as many ranks as its program says",
            where="Engine",
            hint=f"program.with_ranks({world.size})",
        )
    if plan.hosts % world.hosts:
        raise InputError(
            f"the Plan of {plan.name!r} is for ranks on {plan.hosts} host{'s' if plan.hosts > 1 else ''}, "
            f"they are on {world.hosts}",
            rule="kernels reach the memory of one host's ranks only",
            where="Engine",
            hint=f"lower(program, hosts={world.hosts})",
        )


def _meets(entry: AnyEntry) -> bool:
    """Whether a rank may wait for others in an entry."""
    return bool(entry.opens or entry.closes) or isinstance(entry, Collective | Transfer | Arrive | Exchange)


def _span(entry: AnyEntry, index: int, start_us: float, end_us: float) -> Span:
    chunk = entry.chunk.index if isinstance(entry.chunk, Chunk) else -1
    return Span(entry.name, entry_kind(entry), entry.stream, start_us, end_us, chunk, index)


def entry_kind(entry: AnyEntry) -> str:
    """What an entry is, in the field's words."""
    if isinstance(entry, Collective | Exchange):
        return entry.kind
    return entry.op.kind if isinstance(entry, Library) else type(entry).__name__
