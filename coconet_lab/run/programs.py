"""Running programs and schedules on a cluster: run once, keep resident, compare (design §5a)."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from coconet_lab.arguments import seed as checked_seed
from coconet_lab.arguments import shown, text, whole
from coconet_lab.errors import ClusterError, InputError
from coconet_lab.ir.inputs import check_inputs, input_block, random_block
from coconet_lab.ir.ops import Input
from coconet_lab.ir.program import Program
from coconet_lab.kernels.lower import lower
from coconet_lab.kernels.plan import Plan
from coconet_lab.run import job
from coconet_lab.run.calls import Interrupted
from coconet_lab.run.comparison import Comparison, Row
from coconet_lab.run.provenance import Provenance, provenance
from coconet_lab.run.resident import Resident, scalar_names
from coconet_lab.run.results import GlobalValues, HeldValues, RunResult, Timing
from coconet_lab.run.trace import Trace
from coconet_lab.schedule.schedule import Schedule, program_of

Array = np.ndarray[Any, Any]
Runnable: TypeAlias = Program | Schedule
_FETCH_BYTES = 256 << 20
_RUN_KEY = "run"
_MOST_REPEATS = 10**9  # what the ranks' reports have room to count


class RunInterrupted(Interrupted):
    """An interrupt in the middle of a run's repeats.

    Attributes
    ----------
    run : RunResult
        What the finished repeats gave.
    """

    def __init__(self, message: str, results: list[Any] | None, run: RunResult) -> None:
        super().__init__(message, results)
        self.run = run


class RunsPrograms:
    """What a cluster does with programs; `Cluster` brings the ranks."""

    backend: Any
    call: Callable[..., list[Any]]
    _lock: AbstractContextManager[Any]  # held by one call, or one run, at a time
    _runs = 0

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        raise NotImplementedError

    @property
    def hosts(self) -> int:
        """Hosts that the ranks are on: Plans reach peers inside a host alone."""
        return 1

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
        progress: bool | None = None,
        values: bool = True,
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
            Runs before the timed ones; None: two where more than one repeat is asked for (a GPU makes its graph).
        seed : int
            Of drawn inputs.
        name : str
            What the schedule is called in tables; by default its steps.
        deadline_s, progress
            As for `Cluster.call`: the seconds that all of it may take; whether there is a bar.
        values : bool
            Whether outputs and state are brought along; else they stay on the ranks until the next run.

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
        repeats = whole(repeats, "repeats", least=1, most=_MOST_REPEATS, hint="repeats=10", error=ClusterError)
        before = _warmups(warmup, repeats)
        label = _name(name) or _label(schedule)
        with self._lock:  # another thread's run would overwrite the values before they are brought along
            made, parts = self._job(_RUN_KEY, schedule, inputs, seed, label)
            made = replace(made, repeats=repeats, warmup=before)
            source = self._provenance(made.program, label, seed)
            with _kept(lambda found: self._result(made, found, source, values)):
                self._runs += 1  # what an earlier run left on the ranks ends here, also where this one fails
                measured = self.call(
                    job.execute, made, per_rank=parts, what=f"'{label}'", deadline_s=deadline_s, progress=progress
                )
            return self._result(made, measured, source, values)

    def load(
        self, schedule: Runnable, inputs: Mapping[Any, Any] | None = None, *, seed: int = 0, name: str = ""
    ) -> Resident:
        """Keep a schedule and its state on the ranks: ``step`` it with new scalars, ``read`` values when needed.

        Parameters and errors are those of `run`.
        """
        key = f"resident {secrets.token_hex(8)}"
        made, parts = self._job(key, schedule, inputs, seed, _name(name) or _label(schedule))
        compile_s = self.call(job.prepare, made, per_rank=parts, what=f"load '{made.what}'")
        return Resident(self, key, made.program, stored_names(made.plan), made.scalars, max(compile_s))

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
        values: bool = True,
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
        values : bool
            Whether every row's `result` has its outputs and state; measuring large sizes needs none of them.

        Returns
        -------
        Comparison
            `.records()`, `.to_csv()`, `.plot()`; an interrupt keeps the schedules that were finished.
        """
        names = _compared(schedules, baseline)
        rows: list[Row] = []
        is_partial = False
        try:
            for name in names:
                result = self.run(
                    schedules[name], inputs, repeats=repeats, warmup=warmup, seed=seed, name=name,
                    deadline_s=deadline_s, values=values,
                )  # fmt: skip
                rows.append(Row.of(name, program_of(schedules[name]), result, workload))
        except KeyboardInterrupt as stop:
            is_partial, finished = True, len(rows)
            if isinstance(stop, RunInterrupted):
                rows.append(Row.of(name, program_of(schedules[name]), stop.run, workload))
            if not rows:
                raise
            repeated = f", and {len(rows[-1].timing.samples_us)} repeats of {name!r}" if len(rows) > finished else ""
            print(f"Interrupted: {finished} of {len(names)} schedules are kept{repeated}.", file=sys.stderr)
        kept = {row.schedule for row in rows}
        return Comparison(tuple(rows), baseline if baseline in kept else rows[0].schedule, is_partial)

    # -- shared --------------------------------------------------------------------------------------------------

    def _job(
        self, key: str, schedule: Runnable, inputs: Mapping[Any, Any] | None, seed: int, label: str
    ) -> tuple[job.Job, list[dict[str, job.Part]]]:
        """The job of a schedule and every rank's parts of its inputs; all that can be refused here is."""
        program = program_of(schedule)
        self._check_size(program)
        seed = checked_seed(seed)
        if inputs is not None and not isinstance(inputs, Mapping):
            raise InputError(
                f"the inputs are a {type(inputs).__name__}",
                rule="inputs are a dict of name to array, number or callable; without them they are drawn",
                where=f"inputs of program {program.name!r}",
                hint="inputs=cl.random_inputs(program)",
            )
        given = None if inputs is None else check_inputs(program, inputs)
        made = job.Job(
            key, lower(program, hosts=self.hosts), program, self.backend.name, _scalars(program, given, seed), seed,
            what=label,
        )  # fmt: skip
        return made, self._parts(program, given)

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

    def _result(self, made: job.Job, measured: Sequence[job.RankRun], source: Provenance, values: bool) -> RunResult:
        program, plan = made.program, made.plan
        run_number, generation = self._runs, self.generation

        def parts(names: tuple[str, ...]) -> list[dict[str, Array]] | None:
            with self._lock:
                if self._runs != run_number or self.generation != generation:
                    return None
                found = self.call(job.read, _RUN_KEY, names, what="reading values")
            return None if any(part is None for part in found) else found

        held = HeldValues(program, stored_names(plan), parts)
        wanted = (*plan.outputs, *plan.state) if values else ()
        here = held.whole(n for n in wanted if _stored_bytes(program, n) <= _FETCH_BYTES)
        outputs, state = GlobalValues(here, held, plan.outputs), GlobalValues(here, held, plan.state)
        trace = Trace.gather(plan, program.types, [m.spans for m in measured])
        return RunResult(outputs, state, _timing(measured), trace, source, held)


@contextmanager
def _kept(result: Callable[[Sequence[job.RankRun]], RunResult]) -> Iterator[None]:
    """What was measured before an interrupt goes along with it."""
    try:
        yield
    except Interrupted as stop:
        if not stop.results or not _timing(stop.results).samples_us:
            raise
        raise RunInterrupted(str(stop), stop.results, result(stop.results)) from None


def _compared(schedules: Any, baseline: Any) -> list[str]:
    """The names of what is compared, the baseline among them."""
    names = list(schedules) if isinstance(schedules, Mapping) else []
    if not all(isinstance(name, str) and name for name in names):
        names = []
    if names and (baseline is None or (isinstance(baseline, str) and baseline in names)):
        return names
    raise ClusterError(
        f"nothing to compare with {shown(baseline)}" if names else "nothing to compare",
        rule="compare takes a dict of one schedule or more by name, and the baseline is one of them",
        where="compare",
        hint='cluster.compare({"naive": program, "fused": schedule})',
    )


def _warmups(given: Any, repeats: int) -> int:
    """Runs before the timed ones."""
    if given is None:
        return 2 if repeats > 1 else 0
    return whole(given, "warmup", most=_MOST_REPEATS, hint="warmup=2", error=ClusterError)


def _name(given: Any) -> str:
    """What the user calls a run; empty where there is no name."""
    if given is None or (isinstance(given, str) and not given):
        return ""
    return text(given, "a run's name", hint='name="fused"')


def stored_names(plan: Plan) -> tuple[str, ...]:
    """Values that some rank stores, outputs and updated inputs first."""
    return tuple(dict.fromkeys((*plan.outputs, *plan.state, *plan.slots)))


def _stored_bytes(program: Program, name: str) -> int:
    kind = program.types[name]
    return kind.elements * kind.dtype.itemsize * (program.group_ranks if kind.layout.is_local else 1)


def _timing(measured: Sequence[job.RankRun]) -> Timing:
    """The slowest rank's time of every repeat that all ranks finished."""
    complete = min(len(rank.samples_us) for rank in measured)
    samples = tuple(max(rank.samples_us[i] for rank in measured) for i in range(complete))
    return Timing(samples, max(rank.compile_s for rank in measured))


def _scalars(program: Program, given: Mapping[str, Any] | None, seed: int) -> dict[str, float | int]:
    """The scalar inputs as numbers: as given, or as `random_inputs` draws them."""
    found = {}
    for name in scalar_names(program):
        op = program.ops[name]
        if isinstance(op, Input):
            found[name] = np.asarray(random_block(op, seed, (), 0) if given is None else given[name]).item()
    return found


def _label(item: Runnable) -> str:
    """What a run is called where the user gives no name."""
    steps = len(item.steps) if isinstance(item, Schedule) else 0
    after = f" after {steps} step{'' if steps == 1 else 's'}" if steps else ""
    return program_of(item).name + after
