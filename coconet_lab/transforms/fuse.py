"""fuse: computation and the collectives around it in one kernel (paper §3.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from coconet_lab.errors import Refusal
from coconet_lab.ir import ops as o
from coconet_lab.ir.group_rules import NO_WAIT, ONE_KERNEL, group_refusal
from coconet_lab.ir.groups import absorbed_into
from coconet_lab.ir.order import hull, successors, way_back
from coconet_lab.ir.program import Fusion, Moved, Program
from coconet_lab.transforms.base import Transform, call, in_overlap, quoted, unknown
from coconet_lab.transforms.regions import ends, pointwise_regions, touching
from coconet_lab.transforms.reorder import Reorder
from coconet_lab.transforms.rewriting import fresh_name

Merged = tuple[Fusion, tuple[Fusion, ...]]


@dataclass(frozen=True, slots=True)
class Fuse(Transform):
    """total_rs, add_1, drop, out_part, out  -->  fused = {total_rs, add_1, drop, out_part, out}: one kernel.

    Parameters
    ----------
    names : tuple of str
        Values or fused groups. The group is everything between them, and what only it reads and fits its index space.
    name : str or None
        The group's name; None takes a merged group's name, else ``fused``, ``fused_2``, …

    Examples
    --------
    >>> import coconet_lab as cl
    >>> x = cl.tensor("x", cl.FP32, (8,), cl.Local)
    >>> total = cl.all_reduce(x, name="total")
    >>> program = cl.program("p", outputs=[cl.add(total * 2.0, 1.0, name="out")], ranks=2)
    >>> Fuse(("total", "out"))(program).fusions
    (Fusion(name='fused', members=('total', 'mul_1', 'out'), named=False),)
    """

    names: tuple[str, ...]
    name: str | None = None
    kind: ClassVar[str] = "fuse"

    def plan(self, program: Program) -> Merged | Refusal:
        """The group and the groups it takes in, or the Refusal."""
        start = self._named(program)
        if isinstance(start, Refusal):
            return start
        members = _grown(program, start)
        ordered = tuple(sorted(members, key=program.position.__getitem__))
        refusal = in_overlap(program, iter(ordered)) or self._refused(program, members)
        if refusal is not None:
            return refusal
        merged = tuple(f for f in program.fusions if not members.isdisjoint(f.members))
        return self._called(program, ordered, merged)

    def _named(self, program: Program) -> set[str] | Refusal:
        if not self.names:
            return Refusal("fuse names nothing", ONE_KERNEL, 'fuse("a", "b")', applies=False)
        start: set[str] = set()
        for name in self.names:
            fusion = program.fusion_named.get(name)
            if fusion is None and name not in program.ops:
                return unknown(program, name)
            start.update(fusion.members if fusion else (name,))
        return start

    def members(self, program: Program) -> set[str]:
        """What the group would hold; empty where a name is unknown."""
        start = self._named(program)
        return set() if isinstance(start, Refusal) else _grown(program, start)

    def _refused(self, program: Program, members: set[str]) -> Refusal | None:
        ordered = sorted(members, key=program.position.__getitem__)
        asked = ", ".join(map(repr, self.names))
        refusal = group_refusal(program, ordered)
        if refusal is not None:
            way_out = self._reorder_first(program, ordered) if refusal.rule == NO_WAIT else None
            hint = f"{way_out.script()} first" if way_out else refusal.hint
            return Refusal(f"cannot fuse {asked}: {refusal.found}", refusal.rule, hint, way_out)
        if not program.fusions and not program.overlaps:
            return None
        between = way_back(program, members)
        if between is None:
            return None
        found = f"cannot fuse {asked}: {between!r} would wait for the new group, and it for {between!r}"
        rule = "with all fused groups taken as one, nothing may wait for itself [paper §3.3]"
        return Refusal(found, rule, f"fuse({quoted(between)}, …) together with it, or fewer values")

    def _reorder_first(self, program: Program, members: Sequence[str]) -> Reorder | None:
        """The reorder that moves a gather out of the group's way, where there is one."""
        inside = set(members)
        for name in members:
            if isinstance(program.ops[name], o.AllGather) and not inside.isdisjoint(program.readers[name]):
                reader = next(r for r in program.readers[name] if r in inside)
                steps = (Reorder(name, (past,)) for past in (self.names[-1], reader))
                return next((step for step in steps if step.why_not(program) is None), None)
        return None

    def _called(self, program: Program, members: tuple[str, ...], merged: tuple[Fusion, ...]) -> Merged | Refusal:
        lends = next((f for f in merged if f.named), merged[0] if merged else None)
        own = {f.name for f in merged}
        if self.name is not None:
            if not self.name or (program.has_name(self.name) and self.name not in own):
                found = f"cannot call the group {self.name!r}: the name is taken" if self.name else "a group has a name"
                return Refusal(found, "values, fused groups and overlaps share one set of names", "another name")
            group = Fusion(self.name, members, True)
        elif lends is not None:
            group = Fusion(lends.name, members, lends.named)
        else:
            group = Fusion(fresh_name(program, "fused"), members)
        if group in merged and len(merged) == 1:
            found = f"{group.name!r} is that group already: {{{', '.join(members)}}}"
            return Refusal(found, "fuse makes a new group or a larger one", "overlap(...) next", applies=False)
        return group, merged

    def carry_out(self, program: Program, plan: Merged) -> Program:
        """The program with the group in place of those it takes in."""
        group, merged = plan
        fusions = (*(f for f in program.fusions if f not in merged), group)
        moved = {f.name: Moved(self.script(), (group.name,)) for f in merged if f.name != group.name}
        return program.edit(fusions=fusions, moved=moved)

    @classmethod
    def candidates(cls, program: Program) -> Iterator[Self]:
        """Every pointwise region with the collectives that touch it before and after, after, before, and alone."""
        for region in pointwise_regions(program):
            before, after = touching(program, region)
            seen: set[tuple[str, ...]] = set()
            for names in ((*before, *region, *after), (*region, *after), (*before, *region), region):
                if len(names) > 1 and names not in seen:
                    seen.add(names)
                    yield cls(_shortest(program, names))

    def script(self) -> str:
        """``fuse("total_rs", "out", name="fused")``."""
        return call("fuse", *self.names, name=self.name)


def _shortest(program: Program, names: tuple[str, ...]) -> tuple[str, ...]:
    """The fewest names that stand for the group of `names`: its first and last value, or all its ends."""
    read = {source for name in names for source in program.ops[name].sources}
    first_and_last = tuple(dict.fromkeys([names[0], *(n for n in names if n not in read)]))
    short = Fuse(first_and_last).members(program)
    return first_and_last if short.issuperset(names) else ends(program, names)


def _grown(program: Program, start: set[str]) -> set[str]:
    """`start` with its hull, the groups that touches, and what it absorbs."""
    found = hull(program, start)
    while True:
        groups = {program.fusion_of[n] for n in found if n in program.fusion_of}
        whole = found.union(*(f.members for f in groups))
        if len(whole) == len(found):
            break
        found = hull(program, whole)
    if any(isinstance(program.ops[m], o.Input) for m in found):
        return found
    return absorbed_into(program, set(found), lambda n: _leads_to(program, n, found), program.fusion_of.__contains__)


def _leads_to(program: Program, name: str, members: set[str]) -> bool:
    """Whether `name` comes before one of `members` in the order graph."""
    position = program.order.position
    last = max(position[m] for m in members)
    stack, seen = [name], {name}
    while stack:
        for after in successors(program, stack.pop()):
            if after in members:
                return True
            if after not in seen and position[after] < last:
                seen.add(after)
                stack.append(after)
    return False
