"""Making the operations and groups of a new program from those of an old one: names, places, groups carried along."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Fusion, Moved, Program


def fresh_name(program: Program, stem: str, given: Container[str] = ()) -> str:
    """`stem`, or `stem` with ``_2``, ``_3``, … where `program` has that name or the step has `given` it already."""
    name, count = stem, 1
    while program.has_name(name) or name in given:
        count += 1
        name = f"{stem}_{count}"
    return name


def with_replaced(ops: Mapping[str, o.Op], at: Mapping[str, Sequence[o.Op]]) -> dict[str, o.Op]:
    """`ops` with some of them replaced by none, one or more, which stand in their place."""
    result: dict[str, o.Op] = {}
    for name, op in ops.items():
        new = at.get(name)
        if new is None:
            result[name] = op
        else:
            result.update((other.name, other) for other in new)
    return result


def carried_groups(
    program: Program,
    ops: Mapping[str, o.Op],
    renamed: Mapping[str, Sequence[str]],
    joining: Mapping[str, str] | None = None,
) -> tuple[Fusion, ...]:
    """The fused groups after a step: members renamed or gone, new members joined, groups without members gone.

    Parameters
    ----------
    program : Program
        Before the step.
    ops : mapping
        After the step: it gives the order of members.
    renamed : mapping
        What stands in a group for a member that the step replaced or dropped.
    joining : mapping
        New member -> the group it joins.
    """
    new = joining or {}
    result = []
    for fusion in program.fusions:
        joined = [name for name, group in new.items() if group == fusion.name]
        if not joined and renamed.keys().isdisjoint(fusion.members):
            result.append(fusion)
            continue
        members = {x for m in fusion.members for x in renamed.get(m, (m,))}.union(joined)
        if members:
            result.append(Fusion(fusion.name, tuple(name for name in ops if name in members), fusion.named))
    return tuple(result)


def emptied_groups(program: Program, fusions: Iterable[Fusion], step: str) -> dict[str, Moved]:
    """Where groups went that the step left without members."""
    kept = {fusion.name for fusion in fusions}
    return {f.name: Moved(step, ()) for f in program.fusions if f.name not in kept}
