"""Running programs and schedules on a cluster: run once, keep resident, compare (design §5a)."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from coconet_lab.errors import ClusterError, IllegalTransform
from coconet_lab.ir.inputs import check_inputs, input_block
from coconet_lab.ir.ops import Input
from coconet_lab.ir.program import Program
from coconet_lab.kernels.lower import lower
from coconet_lab.kernels.plan import Plan
from coconet_lab.run import job
from coconet_lab.run.comparison import Comparison, Row
from coconet_lab.run.provenance import Provenance, provenance
from coconet_lab.run.results import GlobalValues, RunResult, Timing, gone
from coconet_lab.run.trace import Trace
from coconet_lab.schedule.schedule import Schedule

Array = np.ndarray[Any, Any]
Runnable: TypeAlias = Program | Schedule
_FETCH_BYTES = 256 << 20
_RUN_KEY = "run"


class RunsPrograms:
    """What a cluster does with programs; `Cluster` brings the ranks."""

    backend: Any
    call: Callable[..., list[Any]]
    _runs = 0

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        raise NotImplementedError

    @property
    def generation(self) -> int:
        """Counts starts of the ranks."""
        raise NotImplementedError

    def run(
        self,
        schedule: Runnable,
        inputs: Mapping[Any, Any] | None = None,
        *,
        repeats: int = 1,
        warmup: int | None = None,
        seed: int = 0,
        name: str = "",
        deadline_s: float | None = None,
    ) -> RunResult:
        """Run a schedule (or an unscheduled program) on the ranks with its generated kernels.

        Parameters
        ----------
        schedule : Schedule or Program
        inputs : mapping or None
            Name → global array, number for a scalar, or callable ``(rank, index ranges) → array``; None draws
            `random_inputs` on the ranks. State updated in place starts from `inputs` at each repeat.
        repeats : int
            Timed runs; the result's values are those of the last.
        warmup : int or None
            Runs before the timed ones; None: one where more than one repeat is asked for.
        seed : int
            Of drawn inputs.
        name : str
            What the schedule is called in tables; by default its steps.
        deadline_s : float or None
            Seconds the whole call may take; None: the cluster's.

        Returns
        -------
        RunResult

        Raises
        ------
        ClusterError
            A cluster of another size than the program.
        InputError
            Inputs of a wrong name, shape, dtype or range.
        RankError
            A rank raised, died or did not return before the deadline.
        """
        program = _program_of(schedule)
        self._check_size(program)
        plan = lower(program)
        given = None if inputs is None else check_inputs(program, inputs)
        label = name or _label(schedule)
        request = job.Job(
            _RUN_KEY, plan, self.backend.name, *_split(program, given, seed), seed,
            repeats, (1 if repeats > 1 else 0) if warmup is None else warmup, True, label,
        )  # fmt: skip
        measured = self.call(
            job.execute, request, per_rank=self._parts(program, given), what=f"'{label}'", deadline_s=deadline_s
        )
        self._runs += 1
        return self._result(program, plan, measured, self._provenance(program, label, seed))

    def load(
        self, schedule: Runnable, inputs: Mapping[Any, Any] | None = None, *, seed: int = 0, name: str = ""
    ) -> Resident:
        """Keep a schedule and its state on the ranks: ``step`` it with new scalars, ``read`` values when needed.

        Parameters and errors are those of `run`.
        """
        program = _program_of(schedule)
        self._check_size(program)
        given = None if inputs is None else check_inputs(program, inputs)
        plan = lower(program)
        key = f"resident {next(_numbers)}"
        request = job.Job(
            key, plan, self.backend.name, *_split(program, given, seed), seed, what=name or _label(schedule)
        )
        self.call(job.prepare, request, per_rank=self._parts(program, given), what=f"load '{request.what}'")
        return Resident(self, key, program, plan, dict(request.scalars))

    def compare(
        self,
        schedules: Mapping[str, Runnable],
        inputs: Mapping[Any, Any] | None = None,
        *,
        repeats: int = 10,
        warmup: int = 2,
        seed: int = 0,
        baseline: str | None = None,
        workload: str = "",
        deadline_s: float | None = None,
    ) -> Comparison:
        """Measure several schedules of one program on the same inputs.

        Parameters
        ----------
        schedules : mapping of name to Schedule or Program
        inputs, seed
            As for `run`, the same for all.
        repeats, warmup : int
        baseline : str or None
            The schedule that speed-ups are over; None: the first.
        workload : str
            For tables; by default the program's name.

        Returns
        -------
        Comparison
            `.records()`, `.to_csv()`, `.plot()`; an interrupt keeps the schedules that were finished.
        """
        names = list(schedules)
        if not names or (baseline is not None and baseline not in names):
            raise ClusterError(
                f"nothing to compare with {baseline!r}" if names else "nothing to compare",
                rule="compare takes one schedule or more, and the baseline is one of them",
                hint='cluster.compare({"naive": program, "fused": schedule})',
            )
        rows: list[Row] = []
        try:
            for name in names:
                result = self.run(
                    schedules[name], inputs, repeats=repeats, warmup=warmup, seed=seed, name=name, deadline_s=deadline_s
                )
                rows.append(Row.of(name, _program_of(schedules[name]), result, workload))
        except KeyboardInterrupt:
            print(
                f"Interrupted after {len(rows)} of {len(names)} schedules; the finished ones are kept.", file=sys.stderr
            )
            if not rows:
                raise
        return Comparison(tuple(rows), baseline or names[0])

    # -- shared --------------------------------------------------------------------------------------------------

    def _check_size(self, program: Program) -> None:
        if program.ranks != self.ranks:
            raise ClusterError(
                f"program {program.name!r} is for {program.ranks} ranks, the cluster has {self.ranks}",
                rule="a program runs on the ranks it was written for",
                where=repr(self),
                hint=f"schedule.with_ranks({self.ranks}), or cl.Cluster(ranks={program.ranks})",
            )

    def _parts(self, program: Program, given: Mapping[str, Any] | None) -> list[dict[str, job.Part]]:
        """For every rank, its parts of the tensor inputs: cut arrays, callables, or None to draw there."""
        tensors = [n for n in program.inputs if program.types[n].shape != () or program.types[n].pieces]
        parts: list[dict[str, job.Part]] = [{} for _ in range(program.ranks)]
        for name in tensors:
            group = program.types[name].group
            for rank in range(program.ranks):
                if group is not None and rank // program.group_ranks != group:
                    continue
                if given is None or callable(given[name]):
                    parts[rank][name] = None if given is None else given[name]
                else:
                    parts[rank][name] = input_block(program, given, name, rank)
        return parts

    def _provenance(self, program: Program, label: str, seed: int) -> Provenance:
        return provenance(ranks=self.ranks, backend=self.backend.name, seed=seed, program=program.name, schedule=label)

    def _result(self, program: Program, plan: Plan, measured: Sequence[job.RankRun], source: Provenance) -> RunResult:
        complete = min(len(m.samples_us) for m in measured)
        samples = tuple(max(m.samples_us[i] for m in measured) for i in range(complete))
        timing = Timing(samples, max(m.compile_s for m in measured))
        run_number, generation = self._runs, self.generation

        def parts(names: tuple[str, ...]) -> list[dict[str, Array]]:
            kept = self._runs == run_number and self.generation == generation and generation > 0
            found = self.call(job.read, _RUN_KEY, names, what="reading values") if kept else [None]
            present = [part for part in found if part is not None]
            if len(present) < program.ranks:
                raise gone(names[0], f"run of program {program.name!r}")
            return present

        def fetch(name: str) -> Array:
            return assemble(program, storage[name], parts((storage[name],)))

        storage = {name: name for name in plan.outputs} | {name: name for name in plan.state}
        small = tuple(n for n in storage if program.types[n].elements * program.types[n].dtype.itemsize <= _FETCH_BYTES)
        found = parts(small) if small else []
        here = {name: assemble(program, name, found) for name in small}
        outputs = GlobalValues({n: here[n] for n in plan.outputs if n in here}, fetch, tuple(plan.outputs))
        state = GlobalValues({n: here[n] for n in plan.state if n in here}, fetch, tuple(plan.state))

        def read(rank: int, name: str) -> Array:
            part = parts((name,))[rank]
            if name not in part:
                raise IllegalTransform(
                    f"rank {rank} does not hold {name!r}",
                    rule="values inside a fused kernel live in registers; values of a group live on its ranks",
                    where=f"run of program {program.name!r}",
                    hint=f"one of {', '.join(map(repr, plan.slots))}, or make it an output",
                )
            return part[name]

        trace = Trace.gather(plan, program.types, [m.spans for m in measured])
        return RunResult(outputs, state, timing, trace, source, read)


class Resident:
    """A schedule that stays on the ranks with its state.

    Examples
    --------
    ``opt = cluster.load(s, inputs); opt.step(t=2); opt.read("w")``
    """

    def __init__(self, cluster: RunsPrograms, key: str, program: Program, plan: Plan, scalars: dict[str, Any]) -> None:
        self._cluster, self._key, self._plan = cluster, key, plan
        self._generation = cluster.generation
        self.program, self.scalars, self.steps = program, scalars, 0

    def step(self, *, times: int = 1, **scalars: float | int) -> Timing:
        """Run once (or `times`), with new values for some scalars; nothing is compiled again.

        Raises
        ------
        InputError
            An unknown scalar, or a value outside its bounds.
        """
        self._check_alive()
        checked = check_scalars(self.program, {**self.scalars, **scalars})
        self.scalars = checked
        samples = self._cluster.call(job.step, self._key, checked, times, what=f"step of {self.program.name!r}")
        self.steps += times
        return Timing(tuple(max(s[i] for s in samples) for i in range(times)))

    def read(self, name: Any) -> Array:
        """The global value of an output or of an updated input, as it is now."""
        self._check_alive()
        called = self.program.resolve(name)
        parts = self._cluster.call(job.read, self._key, (called,), what=f"reading {called!r}")
        if any(p is None for p in parts):
            raise gone(called, f"resident {self.program.name!r}")
        return assemble(self.program, called, parts)

    def close(self) -> None:
        """Give the ranks' memory back."""
        if self._cluster.generation == self._generation:
            self._cluster.call(job.release, self._key, what="release")

    def _check_alive(self) -> None:
        if self._cluster.generation != self._generation:
            raise ClusterError(
                f"the ranks that kept {self.program.name!r} have ended",
                rule="resident state lives as long as the ranks",
                where=repr(self._cluster),
                hint="cluster.load(schedule, inputs) again",
            )

    def __repr__(self) -> str:
        return f"Resident({self.program.name}: {self.steps} steps on {self.program.ranks} ranks)"


_numbers = itertools.count()


def assemble(program: Program, name: str, parts: Sequence[Mapping[str, Array] | None]) -> Array:
    """The global value of `name` from what the ranks hold."""
    kind = program.types[name]
    size = program.group_ranks
    first = (kind.group or 0) * size
    held = [parts[rank][name] for rank in range(first, first + size)]  # type: ignore[index]
    if kind.layout.is_replicated:
        return held[0]
    return np.stack(held) if kind.layout.is_local else np.concatenate(held, axis=kind.layout.dim or 0)


def check_scalars(program: Program, scalars: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers for scalar inputs, checked against their bounds; the tensors are left aside."""
    names = [n for n in program.inputs if program.types[n].shape == () and not program.types[n].pieces]
    ready: dict[str, Any] = {n: (lambda rank, ranges: None) for n in program.inputs if n not in names}
    found = check_inputs(program, {**ready, **scalars})
    return {n: found[n].item() for n in names}


def _split(
    program: Program, given: Mapping[str, Any] | None, seed: int
) -> tuple[dict[str, Any], dict[str, Input], dict[str, Any]]:
    """Scalars as numbers, the inputs to draw, and the types of the tensors."""
    from coconet_lab.ir.inputs import random_block

    scalars: dict[str, Any] = {}
    drawn: dict[str, Input] = {}
    types: dict[str, Any] = {}
    for name in program.inputs:
        op, kind = program.ops[name], program.types[name]
        if not isinstance(op, Input):
            continue
        if kind.shape == () and not kind.pieces:
            value = random_block(op, seed, (), 0) if given is None else given[name]
            scalars[name] = np.asarray(value).item()
        else:
            types[name] = kind
            drawn[name] = op
    return scalars, drawn, types


def _program_of(item: Runnable) -> Program:
    return item.program if isinstance(item, Schedule) else item


def _label(item: Runnable) -> str:
    """What a run is called where the user gives no name."""
    if isinstance(item, Program) or not item.steps:
        return _program_of(item).name
    return f"{item.program.name} after {len(item.steps)} steps"
