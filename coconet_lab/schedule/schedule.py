"""A schedule: a program and the steps taken on it, each step a new schedule (paper §3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coconet_lab.arguments import file_access, path, refusal, whole
from coconet_lab.arguments import seed as checked_seed
from coconet_lab.errors import ProgramError, ProofError, Refusal
from coconet_lab.ir.program import Moved, NameLike, Program
from coconet_lab.ir.value import ProgramValue
from coconet_lab.schedule.diff import ProgramDiff, program_diff
from coconet_lab.schedule.kinds import make_step
from coconet_lab.schedule.proof import Proof, prove
from coconet_lab.schedule.record import StepRecord, take
from coconet_lab.schedule.script import schedule_from_json, schedule_script, schedule_to_json
from coconet_lab.site import caller_site
from coconet_lab.transforms.base import Transform

if TYPE_CHECKING:
    from coconet_lab.kernels.plan import Ledger, Plan


class Schedule:
    """A program and the steps taken on it. No method changes a schedule: each returns a new one.

    Parameters
    ----------
    program : Program or Schedule
        What to start from; of a schedule, its rewritten program.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> g = cl.tensor("g", cl.FP32, (8,), cl.Local)
    >>> total = cl.all_reduce(g, name="total")
    >>> program = cl.program("twice", inputs=[g], outputs=[cl.add(total, total, name="out")], ranks=4)
    >>> s = cl.Schedule(program).split("total").reorder("total", past="out")
    >>> s.check()
    equal: 1 output × 4 ranks, exact, at full size
    >>> s.undo() == cl.Schedule(program).split("total")
    True
    """

    __slots__ = ("_proof", "base", "record")

    base: Program
    record: tuple[StepRecord, ...]
    _proof: str | None

    def __init__(self, program: Program | Schedule) -> None:
        self._set(program_of(program), ())

    def _set(self, base: Program, record: tuple[StepRecord, ...]) -> None:
        # The one place that writes; `_proof` remembers the last check() for the repr.
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "record", record)
        object.__setattr__(self, "_proof", None)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Schedule does not change: .{name} cannot be set; its methods return new schedules")

    @classmethod
    def _of(cls, base: Program, record: tuple[StepRecord, ...]) -> Schedule:
        made = cls.__new__(cls)
        made._set(base, record)
        return made

    # -- steps ---------------------------------------------------------------------------------------------------

    def split(self, target: NameLike, dim: int | None = None, into: str = "rs_ag") -> Schedule:
        """An AllReduce becomes ReduceScatter and AllGather, or Reduce and Broadcast (paper §3.1)."""
        return self._take("split", [target], dim=dim, into=into)

    def reorder(self, gather: NameLike, past: NameLike | Sequence[NameLike]) -> Schedule:
        """Move an AllGather below all operations on the ways to `past`, which then work on slices (paper §3.2)."""
        return self._take("reorder", [gather], past=past)

    def as_slice(self, *names: NameLike, dim: int | None = None) -> Schedule:
        """Replicated inputs become Sliced: every rank keeps its block of them only (paper §3.2)."""
        return self._take("as_slice", names, dim=dim)

    def dead(self, name: NameLike | None = None) -> Schedule:
        """Drop what nobody reads and is neither output nor effect."""
        return self._take("dead", [], name=name)

    def fuse(self, *names: NameLike, name: str | None = None) -> Schedule:
        """Compute values, and what lies between them, in one kernel (paper §3.3)."""
        return self._take("fuse", names, name=name)

    def overlap(self, *names: NameLike, name: str | None = None) -> Schedule:
        """Run a chain of values or fused groups at once, chunk by chunk (paper §3.4)."""
        return self._take("overlap", names, name=name)

    def then(self, step: Transform) -> Schedule:
        """Take a step that is a value already, say one of `legal_moves`."""
        if not isinstance(step, Transform):
            raise refusal("a step", step, "a step is one of legal_moves()", "schedule.then(schedule.legal_moves()[0])")
        return self._of(self.base, (*self.record, take(self.program, step, len(self.record) + 1)))

    def _take(self, kind: str, names: Sequence[NameLike], **arguments: Any) -> Schedule:
        return self.then(make_step(self.program, kind, names, arguments))

    # -- history -------------------------------------------------------------------------------------------------

    @property
    def program(self) -> Program:
        """The program after all steps."""
        return self.record[-1].after if self.record else self.base

    @property
    def steps(self) -> tuple[Transform, ...]:
        """The steps, in the order they were taken."""
        return tuple(record.step for record in self.record)

    @property
    def moved(self) -> Mapping[str, Moved]:
        """Names the steps dropped, and what carries their values now."""
        return self.program.moved

    def undo(self, n: int = 1) -> Schedule:
        """The schedule without its last `n` steps."""
        if not 0 <= whole(n, "the number of steps to undo", least=None, hint="undo(1)") <= len(self.record):
            raise self._no_step(f"cannot undo {n} steps")
        return self._of(self.base, self.record[: len(self.record) - n])

    def before(self, k: int) -> Schedule:
        """The schedule before step `k`, counted from 1."""
        if not 1 <= whole(k, "a step's number", least=None, hint="before(1)") <= len(self.record) + 1:
            raise self._no_step(f"there is no step {k}")
        return self._of(self.base, self.record[: k - 1])

    def _no_step(self, found: str) -> ProgramError:
        return ProgramError(
            f"{found}: this schedule has {len(self.record)}",
            rule="steps are counted from 1",
            where=f"schedule of program {self.base.name!r}",
            hint="schedule.steps",
        )

    def on(self, program: Program | Schedule) -> Schedule:
        """The same steps on another program, say of other sizes.

        Raises
        ------
        IllegalTransform
            The first step that does not apply there, by number.
        """
        made = Schedule(program)
        for step in self.steps:
            made = made.then(step)
        return made

    replay = on

    def with_ranks(self, ranks: int, groups: int | None = None) -> Schedule:
        """The same steps on the same program with another number of ranks."""
        return self.on(self.base.with_ranks(ranks, groups))

    # -- questions -----------------------------------------------------------------------------------------------

    def legal_moves(self) -> list[Transform]:
        """Steps that may be taken now; none undoes another."""
        from coconet_lab.transforms.moves import legal_moves

        return list(legal_moves(self.program))

    def why_not(self, kind: str, *names: NameLike, **arguments: Any) -> Refusal | None:
        """Why a step is refused here, or None where it may be taken: ``s.why_not("fuse", "layer", "out")``."""
        return make_step(self.program, kind, names, arguments).why_not(self.program)

    def check(self, seed: int = 0, full: bool = False, *, before: Callable[[str], None] | None = None) -> Proof:
        """Prove on simulated ranks that outputs and state are those of the program before all steps.

        Parameters
        ----------
        seed : int
            Of the inputs drawn: small whole numbers where they lead to sums across ranks, else between the inputs'
            `low` and `high`.
        full : bool
            Keep the program's extents; else small ones, equal and divisible where the real ones are.
        before : callable or None
            Called with each operation's name before it is computed; an exception of a class of its own ends the check.

        Raises
        ------
        ProofError
            Output, rank, first index, both values, and the first step that broke it.
        """
        try:
            proof = prove(self.base, self.steps, seed=checked_seed(seed), full=full, before=before)
        except ProofError as error:
            object.__setattr__(self, "_proof", f"not equal: {error.found}")
            raise
        object.__setattr__(self, "_proof", repr(proof))
        return proof

    def diff(self, other: Program | Schedule) -> ProgramDiff:
        """What differs from this schedule's program to another's."""
        return program_diff(self.program, program_of(other))

    def key(self) -> str:
        """Equal for schedules whose programs are equal but for made-up names."""
        return self.program.key()

    # -- what runs -----------------------------------------------------------------------------------------------

    def plan(self, hosts: int = 1) -> Plan:
        """What will run: kernels, collectives and copies in issue order.

        Parameters
        ----------
        hosts : int
            Hosts that the ranks lie on, equally many on each. Peers reach each other inside a host alone: a fused
            collective becomes one inside each host and an exchange between them.
        """
        from coconet_lab.kernels.lower import lower

        return lower(self.program, hosts=hosts)

    def ledger(self) -> Ledger:
        """What one step of the plan moves, holds and computes on a rank."""
        return self.plan().ledger()

    def code(self, target: str) -> str:
        """The generated source for ``"cuda"`` or ``"cpu"``; above each kernel, the user's lines it came from."""
        sites = {name: str(op.site) for name, op in self.program.ops.items() if op.site is not None}
        return self.plan().code(target, sites)

    # -- writing down --------------------------------------------------------------------------------------------

    def script(self) -> str:
        """Python that rebuilds this schedule from its base program."""
        return schedule_script(self.base, self.steps)

    def to_json(self) -> str:
        """Base program and steps as JSON text."""
        return schedule_to_json(self.base, self.steps)

    @classmethod
    def from_json(cls, text: str | bytes, operators: Iterable[Any] = ()) -> Schedule:
        """The schedule of such a text; nothing in it is executed.

        Parameters
        ----------
        text : str
        operators : iterable
            What ``cl.operator`` returned, for programs with custom operators.

        Raises
        ------
        ProgramError
            Anything malformed.
        IllegalTransform
            A step that does not apply.
        """
        base, steps = schedule_from_json(text, operators)
        made = cls(base)
        for step in steps:
            made = made.then(step)
        return made

    def save(self, file: str | PathLike[str]) -> None:
        """Write `to_json` to a file."""
        where = path(file, "a schedule's file", hint='save("s.json")')
        with file_access("write", where):
            where.write_text(self.to_json() + "\n", encoding="utf-8", errors="surrogatepass")

    @classmethod
    def load(cls, file: str | PathLike[str], operators: Iterable[Any] = ()) -> Schedule:
        """The schedule of a file that `save` wrote."""
        where = path(file, "a schedule's file", hint='load("s.json")')
        with file_access("read", where):
            text = where.read_bytes()
        return cls.from_json(text, operators)

    def export(self, directory: str | PathLike[str], *, seed: int = 0) -> Path:
        """Write a folder that runs without a notebook: ``mpiexec -n 4 python main.py`` checks it against the oracle.

        Beside ``main.py`` (with ``--benchmark``) it has the program and steps as JSON, and every kernel as a file:
        Python for Numba, and CUDA C++ with the line that builds it.

        Parameters
        ----------
        directory : path
            Made if it is not there.
        seed : int
            Of the inputs.

        Returns
        -------
        Path
            ``main.py``.
        """
        from importlib import import_module

        # Running lies in a layer above; it is asked for by name, so that scheduling never imports it.
        where = path(directory, "the folder to export to", hint='export("folder")')
        with file_access("export to", where):
            return Path(import_module("coconet_lab.run.export").export(self, where, seed=checked_seed(seed)))

    # -- as a value ----------------------------------------------------------------------------------------------

    def __contains__(self, item: NameLike) -> bool:
        return item in self.program

    def __getitem__(self, item: NameLike) -> ProgramValue:
        return self.program[item]

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.program)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.steps == other.steps and self.base == other.base

    def __hash__(self) -> int:
        return hash((self.base, self.steps))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.base, self.record)

    def __repr__(self) -> str:
        count = len(self.record)
        steps = f"{count} step{'' if count == 1 else 's'}" if count else "no steps"
        lines = [f"{self.base.name}, {self.base.ranks} ranks: {steps}, {self._proof or 'not checked yet: .check()'}"]
        lines += [f"  {k} {record.step.script()}" for k, record in enumerate(self.record, 1)]
        if count:
            lines.append("  a new schedule; the one it was made from is unchanged")
        return "\n".join(lines)


def _rebuilt(base: Program, record: tuple[StepRecord, ...]) -> Schedule:
    return Schedule._of(base, record)


def program_of(item: Program | Schedule) -> Program:
    """The program itself, or a schedule's rewritten one.

    Raises
    ------
    ProgramError
        Something else.
    """
    if isinstance(item, Program):
        return item
    if isinstance(item, Schedule):
        return item.program
    raise ProgramError(
        f"{type(item).__name__} is neither a Program nor a Schedule",
        rule="programs are made by cl.program, schedules by cl.Schedule",
        where=str(caller_site() or ""),
        hint="cl.Schedule(program)",
    )
