"""The order graph of a program: data edges, and from every reader of a tensor to the update of it (design §4a, 21)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coconet_lab.ir.updates import order_edges

if TYPE_CHECKING:
    from coconet_lab.ir.program import Program


@dataclass(frozen=True, slots=True)
class OrderGraph:
    """Edges beyond the data edges, and one order that keeps all edges.

    Parameters
    ----------
    later : mapping
        Reader of a tensor -> the updates that overwrite what it reads.
    earlier : mapping
        Update -> the readers of what it overwrites.
    position : mapping
        Place of every operation in the topological order (ties: program order); empty where there is a cycle.
    """

    later: Mapping[str, Sequence[str]]
    earlier: Mapping[str, Sequence[str]]
    position: Mapping[str, int]


def order_graph(program: Program) -> OrderGraph:
    """The order graph of `program`; `Program.order` keeps it."""
    later: dict[str, list[str]] = {}
    earlier: dict[str, list[str]] = {}
    forward = True
    for reader, update in order_edges(program):
        later.setdefault(reader, []).append(update)
        earlier.setdefault(update, []).append(reader)
        forward = forward and program.position[reader] < program.position[update]
    if forward:
        return OrderGraph(later, earlier, program.position)
    return OrderGraph(later, earlier, _sorted_units(program, later, {}))


def successors(program: Program, name: str) -> Iterator[str]:
    """What must come after `name`, one edge away."""
    yield from program.readers[name]
    yield from program.order.later.get(name, ())


def predecessors(program: Program, name: str) -> Iterator[str]:
    """What must come before `name`, one edge away."""
    yield from program.ops[name].sources
    yield from program.order.earlier.get(name, ())


def _sorted_units(program: Program, later: Mapping[str, Sequence[str]], unit_of: Mapping[str, str]) -> dict[str, int]:
    """Place of every unit (a value, or what `unit_of` puts it in) in a topological order; empty where there is none."""
    after: dict[str, list[str]] = {}
    waits: dict[str, int] = {}
    first: dict[str, int] = {}
    for at, name in enumerate(program.ops):
        unit = unit_of.get(name, name)
        first.setdefault(unit, at)
        waits.setdefault(unit, 0)
        for reader in (*program.readers[name], *later.get(name, ())):
            other = unit_of.get(reader, reader)
            if other != unit:
                after.setdefault(unit, []).append(other)
                waits[other] = waits.get(other, 0) + 1
    ready = [(first[unit], unit) for unit, count in waits.items() if count == 0]
    heapq.heapify(ready)
    position: dict[str, int] = {}
    while ready:
        _, unit = heapq.heappop(ready)
        position[unit] = len(position)
        for other in after.get(unit, ()):
            waits[other] -= 1
            if waits[other] == 0:
                heapq.heappush(ready, (first[other], other))
    return position if len(position) == len(waits) else {}


def unit_positions(program: Program) -> dict[str, int]:
    """As the order graph's positions, with fused groups and overlaps taken as one; empty where there is a cycle."""
    return _sorted_units(program, program.order.later, program.unit_of)


def order_graph_is_acyclic(program: Program) -> bool:
    """Whether an order exists in which every fused group and overlap runs as one."""
    if not program.order.position and program.ops:
        return False
    return not program.unit_of or _in_one_piece(program, program.unit_of) or bool(program.unit_position)


def _in_one_piece(program: Program, units: Mapping[str, str]) -> bool:
    """Whether program order keeps all edges and every unit stands together in it, so that nothing needs sorting."""
    if program.order.position is not program.position:
        return False
    closed: set[str] = set()
    current: str | None = None
    for name in program.ops:
        unit = units.get(name)
        if unit != current:
            if current is not None:
                closed.add(current)
            if unit in closed:
                return False
            current = unit
    return True


def hull(program: Program, names: Iterable[str]) -> set[str]:
    """`names` and every operation on a path of the order graph from one of them to another.

    Parameters
    ----------
    program : Program
    names : names of values

    Returns
    -------
    set of names
    """
    start = set(names)
    position = program.order.position
    lowest, highest = min(position[n] for n in start), max(position[n] for n in start)
    below = _reach(start, lambda n: successors(program, n), lambda n: position[n] <= highest)
    return _reach(start, lambda n: predecessors(program, n), lambda n: position[n] >= lowest and n in below)


def _reach(start: set[str], neighbours: Callable[[str], Iterator[str]], keep: Callable[[str], bool]) -> set[str]:
    """Everything that can be reached from `start` over nodes to `keep`."""
    found, stack = set(start), list(start)
    while stack:
        for other in neighbours(stack.pop()):
            if other not in found and keep(other):
                found.add(other)
                stack.append(other)
    return found


def way_back(program: Program, members: set[str]) -> str | None:
    """A unit outside `members` that must come both after and before them, or None.

    Parameters
    ----------
    members : set of names
        They hold every fused group they touch wholly.
    """
    units, positions = program.unit_of, program.unit_position
    last = max(positions[units.get(m, m)] for m in members)
    first_on_path: dict[str, str] = {}
    stack: list[str] = []
    for member in members:
        for after in successors(program, member):
            unit = units.get(after, after)
            if after not in members and unit not in first_on_path and positions[unit] <= last:
                first_on_path[unit] = unit
                stack.append(unit)
    while stack:
        unit = stack.pop()
        for name in _inside(program, unit):
            for after in successors(program, name):
                if after in members:
                    return first_on_path[unit]
                other = units.get(after, after)
                if other not in first_on_path and positions[other] <= last:
                    first_on_path[other] = first_on_path[unit]
                    stack.append(other)
    return None


def _inside(program: Program, unit: str) -> Sequence[str]:
    """The values of a unit."""
    fusion = program.fusion_named.get(unit)
    if fusion is not None:
        return fusion.members
    overlap = next((v for v in program.overlaps if v.name == unit), None)
    return (unit,) if overlap is None else [m for stage in overlap.stages for m in _inside(program, stage)]
