"""reorder: an AllGather moves below computation, which then works on slices (paper §3.2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from coconet_lab.errors import Refusal
from coconet_lab.ir import ops as o
from coconet_lab.ir.ancestry import Cone, is_within, spans
from coconet_lab.ir.program import Moved, Program
from coconet_lab.transforms.base import Transform, call, in_overlap, unknown
from coconet_lab.transforms.crossing import RULE, annotated_between, cross, last_values
from coconet_lab.transforms.preview import groups_refusal, preview
from coconet_lab.transforms.replacing import Replacements, replacements
from coconet_lab.transforms.rewriting import carried_groups, emptied_groups, with_replaced
from coconet_lab.transforms.split import Split


@dataclass(frozen=True, slots=True)
class Reorder(Transform):
    """total = AllGather(total_rs); out = f(total)  -->  out_part = f(total_rs); out = AllGather(out_part).

    Parameters
    ----------
    gather : str
        The AllGather to move.
    past : tuple of str
        Values, or fused groups (their members below the gather); everything between is crossed.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> g = cl.tensor("g", cl.FP32, (8,), cl.Local)
    >>> total = cl.all_gather(cl.reduce_scatter(g, name="total_rs"), name="total")
    >>> before = cl.program("twice", outputs=[cl.add(total, total, name="out")], ranks=4)
    >>> Reorder("total", ("out",))(before)
    twice: 4 ops, 4 ranks
      g = Tensor                          FP32[8] Local
      total_rs = ReduceScatter(g, dim=0)  FP32[8] Sliced(0)
      out_part = Add(total_rs, total_rs)  FP32[8] Sliced(0)
      out = AllGather(out_part)           FP32[8] Replicated
      outputs out
    """

    gather: str
    past: tuple[str, ...]
    kind: ClassVar[str] = "reorder"

    def plan(self, program: Program) -> Replacements | Refusal:
        """What stands for the operations the gather crosses, or the Refusal."""
        op = program.ops.get(self.gather)
        if op is None:
            return unknown(program, self.gather)
        if not isinstance(op, o.AllGather):
            return self._no_gather(op)
        past = self._past(program)
        if isinstance(past, Refusal):
            return past
        cone = program.ancestry.cone(past)
        annotated = annotated_between(program, self.gather, cone)
        refusal = self._not_below(program) or in_overlap(program, iter([self.gather, *annotated]))
        refusal = refusal or self._cut_group(program, annotated, cone)
        crossing = refusal or cross(program, self.gather, cone)
        if isinstance(crossing, Refusal):
            return crossing
        plan = replacements(program, self.gather, crossing)
        refusal = in_overlap(program, iter(plan.at))
        # A reduction may be the same call of a value that now is Sliced: no replacement, yet it goes across ranks.
        touched = (*plan.at, *plan.inferred, *crossing.region)
        return refusal or self._breaks_group(program, plan, touched) or plan

    def _no_gather(self, op: o.Op) -> Refusal:
        way_out = Split(op.name) if isinstance(op, o.AllReduce) else None
        hint = f"{way_out.script()} first" if way_out else "name an AllGather"
        found = f"cannot move {op.name!r}: it is {op.kind}, not an AllGather"
        return Refusal(found, RULE, hint, way_out, applies=way_out is not None)

    def _past(self, program: Program) -> list[str] | Refusal:
        if not self.past:
            found = f"cannot move {self.gather!r} past nothing"
            return Refusal(found, RULE, call("reorder", self.gather, past="…"), applies=False)
        values: list[str] = []
        for name in self.past:
            fusion = program.fusion_named.get(name)
            if fusion is None and name not in program.ops:
                return unknown(program, name)
            values += fusion.members if fusion else (name,)
        return values

    def _not_below(self, program: Program) -> Refusal | None:
        is_below = program.ancestry.is_below
        for name in self.past:
            fusion = program.fusion_named.get(name)
            if not any(is_below(value, self.gather) for value in (fusion.members if fusion else (name,))):
                readers = program.readers[self.gather]
                hint = call("reorder", self.gather, past=readers[0]) if readers else "dead()"
                found = f"cannot move {self.gather!r} past {name!r}: it does not depend on {self.gather!r}"
                return Refusal(found, RULE, hint, applies=False)
        return None

    def _cut_group(self, program: Program, annotated: list[str], past: Cone) -> Refusal | None:
        known = program.ancestry
        for fusion in dict.fromkeys(program.fusion_of[n] for n in annotated if n in program.fusion_of):
            numbers = known.groups[fusion.name]
            if sum(end - first for first, end in spans(numbers, past)) == len(numbers):
                continue
            outside = [m for m in fusion.members if not is_within(known.number[m], past)]
            left = sorted((m for m in outside if known.is_below(m, self.gather)), key=program.position.__getitem__)
            if left:
                way_out = Reorder(self.gather, (*self.past, fusion.name))
                found = f"moving {self.gather!r} would cut fused group {fusion.name!r}: {left[0]!r} would stay whole"
                rule = "a fused group is one kernel over one index space [paper §3.3]"
                return Refusal(found, rule, way_out.script(), way_out)
        return None

    def _breaks_group(self, program: Program, plan: Replacements, touched: tuple[str, ...]) -> Refusal | None:
        if not program.fusions or self.gather in program.fusion_of:
            return None  # nothing to break, or known from the new program only (needs_trial)
        groups: dict[str, tuple[str, ...]] = {}
        for fusion in dict.fromkeys(program.fusion_of[n] for n in touched if n in program.fusion_of):
            groups[fusion.name] = tuple(x for m in fusion.members for x in plan.renamed.get(m, (m,)))
        new = {op.name: op for ops in plan.at.values() for op in ops}
        readers = plan.readers(program, (m for members in groups.values() for m in members))
        return groups_refusal(preview(program, new, plan.inferred, readers), groups, self.script())

    def needs_trial(self, program: Program, plan: Replacements) -> bool:
        """Only where the gather is in a fused group, which new gathers join: groups may then wait for each other."""
        return self.gather in program.fusion_of

    def carry_out(self, program: Program, plan: Replacements) -> Program:
        """The program with the crossed operations on slices and one gather for each value needed whole."""
        ops = with_replaced(program.ops, plan.at)
        own = program.fusion_of.get(self.gather)
        joining = {name: own.name for name, new in plan.at.items() if len(new) == 2} if own else None
        fusions = carried_groups(program, ops, plan.renamed, joining)
        moved = {name: Moved(self.script(), (now,)) for name, now in plan.gone.items()}
        moved.update(emptied_groups(program, fusions, self.script()))
        touched = [op.name for new in plan.at.values() for op in new]
        return program.edit(ops, touched=touched, inferred=plan.inferred, fusions=fusions, moved=moved)

    @classmethod
    def candidates(cls, program: Program) -> Iterator[Self]:
        """Every gather past all last values that take slices, and past each of them."""
        for name, op in program.ops.items():
            if isinstance(op, o.AllGather):
                last = tuple(dict.fromkeys(_or_group(program, value) for value in last_values(program, name)))
                if len(last) > 1:
                    yield cls(name, last)
                yield from (cls(name, (value,)) for value in last)

    def script(self) -> str:
        """``reorder("total", past="out")``."""
        return call("reorder", self.gather, past=self.past)


def _or_group(program: Program, name: str) -> str:
    """The fused group of a value, which a gather crosses whole, or the value."""
    fusion = program.fusion_of.get(name)
    return fusion.name if fusion else name
