"""dead: what nobody reads is not computed (paper §3.2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from coconet_lab.errors import Refusal
from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Moved, Program
from coconet_lab.ir.updates import is_effect
from coconet_lab.transforms.base import Transform, call, in_overlap, unknown
from coconet_lab.transforms.rewriting import carried_groups, emptied_groups

RULE = "a value is dropped where nobody reads it, and it is no output, no effect and no input [paper §3.2]"


@dataclass(frozen=True, slots=True)
class Dead(Transform):
    """m1 = AllGather(m1_part), read by nobody  -->  (gone).

    Parameters
    ----------
    name : str or None
        The one value to drop; None drops all that nobody reads, and then what only they read.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> x = cl.tensor("x", cl.FP32, (8,), cl.Local)
    >>> program = cl.program("p", outputs=[cl.mul(x, 2.0, name="y")], ranks=2)
    >>> Dead("y").why_not(program).found
    "cannot drop 'y': it is an output"
    """

    name: str | None = None
    kind: ClassVar[str] = "dead"

    def plan(self, program: Program) -> tuple[str, ...] | Refusal:
        """The names to drop, or the Refusal."""
        if self.name is None:
            names = unread(program)
            found = "every value is read, an output, an effect or an input"
            return names or Refusal(found, RULE, "nothing: the program is as small as it gets", applies=False)
        if self.name not in program.ops:
            return unknown(program, self.name)
        return self._kept(program, self.name) or (self.name,)

    def _kept(self, program: Program, name: str) -> Refusal | None:
        readers = program.readers[name]
        if isinstance(program.ops[name], o.Input):
            why = "it is an input"
        elif readers:
            why = f"{readers[0]!r} reads it"
        elif name in program.output_set:
            why = "it is an output"
        elif is_effect(program, name):
            why = f"it is an effect: this {program.ops[name].kind} changes more than its own value"
        else:
            return in_overlap(program, iter([name]))
        hint = f"drop {readers[0]!r} first" if readers else "leave it"
        return Refusal(f"cannot drop {name!r}: {why}", RULE, hint, applies=not isinstance(program.ops[name], o.Input))

    def carry_out(self, program: Program, plan: tuple[str, ...]) -> Program:
        """The program without the dropped values."""
        dropped = set(plan)
        ops = {name: op for name, op in program.ops.items() if name not in dropped}
        fusions = carried_groups(program, ops, dict.fromkeys(plan, ()))
        moved = {name: Moved(self.script(), _carriers(program, name, dropped)) for name in plan}
        moved.update(emptied_groups(program, fusions, self.script()))
        return program.edit(ops, fusions=fusions, moved=moved)

    @classmethod
    def candidates(cls, program: Program) -> Iterator[Self]:
        """Drop everything that nobody reads."""
        yield cls()

    def script(self) -> str:
        """``dead()``."""
        return call("dead", *([self.name] if self.name is not None else []))


def unread(program: Program) -> tuple[str, ...]:
    """Everything that neither an output nor an effect nor an overlap depends on, in program order."""
    dropped: set[str] = set()
    outputs = set(program.outputs)
    for name in reversed(list(program.ops)):
        if (
            dropped.issuperset(program.readers[name])
            and name not in outputs
            and name not in program.overlap_of
            and not isinstance(program.ops[name], o.Input)
            and not is_effect(program, name)
        ):
            dropped.add(name)
    return tuple(name for name in program.ops if name in dropped)


def _carriers(program: Program, name: str, dropped: set[str]) -> tuple[str, ...]:
    """Who still has the value: the blocks that a dropped gather would have joined."""
    source = next(program.ops[name].sources, "")
    return (source,) if isinstance(program.ops[name], o.AllGather) and source not in dropped else ()
