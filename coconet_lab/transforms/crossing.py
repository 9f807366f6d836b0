"""What lies between a gather and where it shall move, typed again on slices: the work behind reorder (paper §3.2)."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from coconet_lab.errors import CoconetError, Refusal
from coconet_lab.ir import ops as o
from coconet_lab.ir.ancestry import Cone, spans
from coconet_lab.ir.program import Program
from coconet_lab.ir.rules import infer
from coconet_lab.ir.types import TensorType
from coconet_lab.ir.updates import is_in_place_gather, storage_of

RULE = "an AllGather moves below operations that can work on slices along its dim [paper §3.2]"


@dataclass(frozen=True, slots=True)
class Crossing:
    """The operations a gather moves below.

    Parameters
    ----------
    region : tuple of names
        Those of them that read what becomes Sliced, in program order.
    source : str
        What the gather gathers.
    sliced : mapping
        Region values that become Sliced -> their new types.
    gone : mapping
        Local slices that vanish -> the sliced value their readers read instead.
    """

    region: tuple[str, ...]
    source: str
    sliced: Mapping[str, TensorType]
    gone: Mapping[str, str]


class Walk:
    """Operations typed again, one after the other, as if `gather` were its source."""

    def __init__(self, program: Program, gather: str) -> None:
        self.program, self.gather = program, gather
        self.source = next(program.ops[gather].sources)
        self.changed: dict[str, TensorType] = {gather: program.types[self.source]}
        self.gone: dict[str, str] = {}

    def cross(self, name: str) -> Refusal | None:
        """Take `name`; None also where nothing it reads has changed."""
        op = self.program.ops[name]
        operand = next(op.sources, "")
        if isinstance(op, o.LocalSlice) and operand in self.changed and self.changed[operand].layout.dim == op.dim:
            self.gone[name] = self.source if operand == self.gather else operand
            return None
        if self.changed.keys().isdisjoint(op.operands):
            return None
        new = _typed(self.program, self.gather, op, self.changed)
        if isinstance(new, Refusal):
            return new
        old = self.program.types[name]
        if new == old:
            return None
        if not (new.layout.is_sliced and old.layout.is_replicated and _same_value(new, old)):
            layout = self.changed[self.gather].layout
            found = f"of a value that is {layout} it would make {new} instead of {old}"
            return _takes_no_slices(self.gather, op, found, RULE, "")
        self.changed[name] = new
        return None


def cross(program: Program, gather: str, past: Cone) -> Crossing | Refusal:
    """What lies between `gather` and `past`, typed again on slices, or the operation that takes none.

    Walks only what reads a sliced value: the rest of what lies between stays as it is.
    """
    walk = Walk(program, gather)
    readers_within = program.ancestry.readers_within
    region: list[str] = []
    queue = Queue(program, readers_within(program, gather, past))
    for name in queue:
        region.append(name)
        refusal = walk.cross(name)
        if refusal is not None:
            return refusal
        if name in walk.changed:
            queue.add(readers_within(program, name, past))
    sliced = {name: kind for name, kind in walk.changed.items() if name != gather}
    gone = walk.gone
    for name in sliced:
        for reader in program.readers[name]:
            op = program.ops[reader]
            if isinstance(op, o.LocalSlice) and op.dim == walk.changed[name].layout.dim:
                gone[reader] = name
    return Crossing(tuple(region), walk.source, sliced, gone)


class Queue:
    """Names in program order, each once, while more that come later are added."""

    def __init__(self, program: Program, names: Iterable[str]) -> None:
        self._position = program.position
        self._waiting: list[tuple[int, str]] = []
        self._known: set[str] = set()
        self.add(names)

    def add(self, names: Iterable[str]) -> None:
        """More names."""
        for name in names:
            if name not in self._known:
                self._known.add(name)
                heapq.heappush(self._waiting, (self._position[name], name))

    def __iter__(self) -> Iterator[str]:
        while self._waiting:
            yield heapq.heappop(self._waiting)[1]


def annotated_between(program: Program, gather: str, past: Cone) -> list[str]:
    """What lies between `gather` and `past`, ends included, and in a fused group or overlap; in program order.

    Of values that follow each other and are in the same one, only the first is named.
    """
    units, found = program.unit_of, program.ancestry
    if not units:
        return []
    named: set[str] = set()
    seen, stack = {gather}, [gather]
    while stack:
        for reader in found.readers_within(program, stack.pop(), past):
            if reader in units:
                named.add(reader)
            end = found.run_ends[reader]  # where it lies outside, so does all below it
            if end not in seen:
                seen.add(end)
                stack.append(end)
    return sorted(named, key=program.position.__getitem__)


def last_values(program: Program, gather: str) -> tuple[str, ...]:
    """The values below `gather` that take slices and that no other such value depends on.

    Walks only what reads a sliced value.
    """
    walk = Walk(program, gather)
    number, cones = program.ancestry.number, program.ancestry.cones
    taking: dict[int, str] = {}
    last: list[int] = []  # of those that take slices, by number: what no other depends on, as far as is known
    refused: list[int] = []
    queue = Queue(program, program.readers[gather])
    for name in queue:
        if spans(refused, cones[name]) or walk.cross(name) is not None:
            insort(refused, number[name])
            continue
        for first, end in spans(last, cones[name]):
            del last[first:end]
        taking[number[name]] = name
        insort(last, number[name])
        if name in walk.changed or name in walk.gone:
            queue.add(program.readers[name])
    remaining = set(last)
    return tuple(name for at, name in taking.items() if at in remaining)


def _same_value(one: TensorType, other: TensorType) -> bool:
    """Whether two types differ in nothing but the layout."""
    return (one.dtype, one.shape, one.group, one.pieces, one.per_piece, one.bucket) == (
        other.dtype, other.shape, other.group, other.pieces, other.per_piece, other.bucket
    )  # fmt: skip


def _typed(program: Program, gather: str, op: o.Op, changed: Mapping[str, TensorType]) -> TensorType | Refusal:
    kinds = [changed.get(x) or program.types[x] if isinstance(x, str) else None for x in op.operands]
    try:
        return infer(op, kinds, program.group_ranks)
    except CoconetError as error:
        return _takes_no_slices(gather, op, error.found, error.rule, error.hint)


def _takes_no_slices(gather: str, op: o.Op, found: str, rule: str, hint: str) -> Refusal:
    earlier = [s for s in op.sources if s != gather]
    way_out = f"reorder past what comes before {op.name!r}"
    if not earlier:
        way_out = "leave the gather where it is"
    return Refusal(
        f"cannot move {gather!r} below {op.name!r}: this {op.kind} takes no slices there: {found}",
        rule if rule == RULE else f"{RULE}; {rule}",
        f"{way_out}, or {hint}" if hint else way_out,
    )


def needed_whole(program: Program, gather: str, crossing: Crossing) -> tuple[str, ...]:
    """The values of a crossing that became Sliced and must be gathered again."""
    inside = {*crossing.region, *crossing.gone}
    return tuple(
        name
        for name in crossing.sliced
        if name in program.output_set
        or any(reader not in inside for reader in program.readers[name])
        or _updates_a_replicated_tensor(program, name)
    )


def _updates_a_replicated_tensor(program: Program, name: str) -> bool:
    if not isinstance(program.ops[name], o.Update):
        return False
    tensor = storage_of(program.ops, name)
    return tensor is not None and program.types[tensor].layout.is_replicated


def gather_stays(program: Program, gather: str, region: Iterable[str]) -> bool:
    """Whether `gather` is still needed where it is: an output, read outside `region`, or written in place."""
    inside = set(region)
    return (
        gather in program.output_set
        or any(reader not in inside for reader in program.readers[gather])
        or is_in_place_gather(program, gather)
    )


def retyped_below(program: Program, changed: dict[str, TensorType]) -> dict[str, TensorType] | tuple[str, CoconetError]:
    """Types of everything that changes when inputs take the types in `changed`, or the operation that refuses.

    Walks the readers of changed values only, in program order.
    """
    known = dict(changed)
    queue = Queue(program, (reader for name in changed for reader in program.readers[name]))
    for name in queue:
        op = program.ops[name]
        kinds = [known.get(x) or program.types[x] if isinstance(x, str) else None for x in op.operands]
        try:
            new = infer(op, kinds, program.group_ranks)
        except CoconetError as error:
            return name, error
        if new != program.types[name]:
            known[name] = new
            queue.add(program.readers[name])
    return known
