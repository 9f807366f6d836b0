"""What lies between a gather and where it shall move, typed again on slices: the work behind reorder (paper §3.2)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coconet_lab.errors import CoconetError, Refusal
from coconet_lab.ir import ops as o
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
        In program order.
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


def between(program: Program, gather: str, past: Iterable[str]) -> tuple[str, ...]:
    """All operations on paths from `gather` to `past`, ends included where they depend on it; in program order."""
    position = program.position
    floor = position[gather]
    stack = [name for name in past if position[name] > floor]
    cone = set(stack)
    while stack:
        for source in program.ops[stack.pop()].sources:
            if source not in cone and position[source] > floor:
                cone.add(source)
                stack.append(source)
    under = {gather}
    region = []
    for name in sorted(cone, key=position.__getitem__):
        if not under.isdisjoint(program.ops[name].operands):
            under.add(name)
            region.append(name)
    return tuple(region)


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


def cross(program: Program, gather: str, region: tuple[str, ...]) -> Crossing | Refusal:
    """`region` typed again with `gather` replaced by its source, or the operation that takes no slices."""
    walk = Walk(program, gather)
    for name in region:
        refusal = walk.cross(name)
        if refusal is not None:
            return refusal
    sliced = {name: kind for name, kind in walk.changed.items() if name != gather}
    gone = walk.gone
    for name in sliced:
        for reader in program.readers[name]:
            op = program.ops[reader]
            if isinstance(op, o.LocalSlice) and op.dim == walk.changed[name].layout.dim:
                gone[reader] = name
    return Crossing(region, walk.source, sliced, gone)


def last_values(program: Program, gather: str) -> tuple[str, ...]:
    """The values below `gather` that take slices and that no other such value depends on.

    Walks only what reads a sliced value, and looks back from there no further than the gather.
    """
    walk = Walk(program, gather)
    queue = [(program.position[r], r) for r in program.readers[gather]]
    heapq.heapify(queue)
    taking: dict[str, bool] = {}  # whether it is a last one, as far as is known
    refused: set[str] = set()
    seen: set[str] = set()
    while queue:
        name = heapq.heappop(queue)[1]
        if name in taking or name in refused:
            continue
        behind = _look_back(program, gather, name, taking, refused, seen)
        if behind is None or walk.cross(name) is not None:
            refused.add(name)
            continue
        seen |= behind
        taking.update((other, False) for other in behind if other in taking)
        taking[name] = True
        if name in walk.changed or name in walk.gone:
            for reader in program.readers[name]:
                heapq.heappush(queue, (program.position[reader], reader))
    return tuple(name for name, is_last in taking.items() if is_last)


def _look_back(
    program: Program, gather: str, name: str, taking: dict[str, bool], refused: set[str], seen: set[str]
) -> set[str] | None:
    """What `name` depends on, back to the gather or to what takes slices; None if a refused value is there."""
    floor = program.position[gather]
    stack = list(program.ops[name].sources)
    behind: set[str] = set()
    while stack:
        source = stack.pop()
        if source in refused:
            return None
        if source in behind or source in seen or program.position[source] <= floor:
            continue
        behind.add(source)
        if source not in taking:
            stack += program.ops[source].sources
    return behind


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
    queue = [(program.position[r], r) for name in changed for r in program.readers[name]]
    heapq.heapify(queue)
    done: set[str] = set()
    while queue:
        name = heapq.heappop(queue)[1]
        if name in done:
            continue
        done.add(name)
        op = program.ops[name]
        kinds = [known.get(x) or program.types[x] if isinstance(x, str) else None for x in op.operands]
        try:
            new = infer(op, kinds, program.group_ranks)
        except CoconetError as error:
            return name, error
        if new != program.types[name]:
            known[name] = new
            for reader in program.readers[name]:
                heapq.heappush(queue, (program.position[reader], reader))
    return known
