"""In which phase of a kernel each of its operations is computed, and what later phases must find stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Program
from coconet_lab.ir.types import TensorType
from coconet_lab.ir.updates import is_in_place_gather
from coconet_lab.kernels.lower_memory import Memory, source_of
from coconet_lab.kernels.lower_region import Region, UnfitError


@dataclass(frozen=True, slots=True)
class Phases:
    """The phases of one kernel.

    Parameters
    ----------
    level : mapping of member to int
        The phase that computes it; a reduction's result is there from the phase after the one that accumulates.
    reductions : tuple of names
        In program order: their places are the numbers of the accumulators.
    stores : mapping of member to int
        What is written out, and in which phase.
    keeps : frozenset of names
        Values that later phases need again: they are kept in buffers of the kernel's own.
    count : int
    """

    level: dict[str, int]
    reductions: tuple[str, ...]
    stores: dict[str, int]
    keeps: frozenset[str]
    count: int


class PhasePlanner:
    """Finds the phases of `members`, which are in program order."""

    def __init__(self, memory: Memory, region: Region, members: tuple[str, ...], written: tuple[str, ...]) -> None:
        self.memory, self.region = memory, region
        self.program: Program = memory.program
        self.members = members
        self.inside = frozenset(members)
        self.written = written
        self._small: dict[str, bool] = {}

    def plan(self) -> Phases:
        """The phases."""
        level: dict[str, int] = {}
        for name in self.members:
            op = self.program.ops[name]
            below = max((level[s] for s in op.sources if s in self.inside), default=0)
            level[name] = below + 1 if self.accumulates(name) else below
        reductions = tuple(m for m in self.members if self.accumulates(m))
        stores = self._stores(level)
        last = max([*stores.values(), *(level[r] - 1 for r in reductions), 0])
        keeps = self._keeps(level, stores, last) if last else frozenset()
        return Phases(level, reductions, stores, keeps, last + 1)

    def _stores(self, level: dict[str, int]) -> dict[str, int]:
        """Phase of every store. An update waits for the last reader of what it overwrites; a newer version hides it."""
        hidden = {
            source_of(self.program.ops[m])
            for m in self.members
            if isinstance(self.program.ops[m], o.Update) or is_in_place_gather(self.program, m)
        }
        stores: dict[str, int] = {}
        for name in self.written:
            if name not in hidden:
                stores[name] = max([level.get(name, 0), *self._old_readers(name, level)])
        return stores

    def _old_readers(self, name: str, level: dict[str, int]) -> Iterator[int]:
        op = self.program.ops[name]
        while isinstance(op, o.Update | o.AllGather) and op.name in self.inside:
            tensor = source_of(op)
            if isinstance(op, o.Update):
                for reader in self.program.readers[tensor]:
                    if reader in self.inside and reader != op.name:
                        yield level[reader] - self.accumulates(reader)
            op = self.program.ops[tensor]

    def accumulates(self, name: str) -> bool:
        """Whether a member is a reduction over elements; over a single one it is arithmetic."""
        op = self.program.ops[name]
        return isinstance(op, o.Reduction) and not self.region.is_uniform(self.program.types[source_of(op)])

    # -- what later phases need --------------------------------------------------------------------------------------

    def canonical(self, name: str) -> str:
        """The member or outer value whose register `name` is: updates and slices rename a value."""
        while name in self.inside:
            op = self.program.ops[name]
            if isinstance(op, o.Update):
                name = source_of(op, 1)
            elif isinstance(op, o.LocalSlice):
                name = source_of(op)
            else:
                break
        return name

    def stored_value(self, name: str) -> str | None:
        """The value that storing `name` puts into memory; None where it is found on other ranks alone."""
        op = self.program.ops[name]
        if isinstance(op, o.Send):
            return None
        return self.canonical(source_of(op) if isinstance(op, o.AllGather) else name)

    def is_small(self, name: str) -> bool:
        """Whether a value is cheap to compute again: made of reductions' results and other values of few elements."""
        if name not in self._small:
            self._small[name] = self._find_small(name)
        return self._small[name]

    def _find_small(self, name: str) -> bool:
        op = self.program.ops[name]
        if self.region.is_full(self.program.types[name]) and name not in self.memory.host:
            return False
        if name not in self.inside or self.accumulates(name):
            return True
        if isinstance(op, o.Dropout) or not (o.is_pointwise(op) or isinstance(op, o.Reduction)):
            return False
        return all(self.is_small(self.canonical(s)) for s in op.sources)

    def _keeps(self, level: dict[str, int], stores: dict[str, int], last: int) -> frozenset[str]:
        found: set[str] = set()
        for phase in reversed(range(last + 1)):
            stored = {self.stored_value(name) for name, at in stores.items() if at < phase}
            stack = [*self._roots(phase, level, stores), *(k for k in found if level[k] == phase)]
            seen: set[str] = set()
            while stack:
                name = self.canonical(stack.pop())
                if name in seen or name not in self.inside:
                    continue
                seen.add(name)
                op = self.program.ops[name]
                if self.accumulates(name):
                    continue
                if level[name] < phase and not self.is_small(name):
                    if name not in stored:
                        found.add(name)
                elif o.is_pointwise(op) or isinstance(op, o.Reduction):
                    stack.extend(op.sources)
        return frozenset(found)

    def _roots(self, phase: int, level: dict[str, int], stores: dict[str, int]) -> Iterator[str]:
        for name in self.members:
            if self.accumulates(name) and level[name] - 1 == phase:
                yield source_of(self.program.ops[name])
        for name, at in stores.items():
            if at == phase:
                op = self.program.ops[name]
                yield source_of(op) if isinstance(op, o.AllGather | o.Send) else name


def check_fits(memory: Memory, region: Region, members: tuple[str, ...], written: tuple[str, ...]) -> None:
    """Raise UnfitError where `members` are no single kernel, by the fuse step's rules or the kernel IR's means."""
    program, inside = memory.program, frozenset(members)
    for name in members:
        op, kind = program.ops[name], program.types[name]
        if isinstance(op, o.AllReduce | o.ReduceScatter) and source_of(op) in inside:
            raise UnfitError(f"{name!r} combines what the same kernel computes")
        if isinstance(op, o.Dropout) and not region.is_full(kind):
            raise UnfitError(f"{name!r} drops out of a smaller index space")
        if isinstance(op, o.Reduction):
            _check_reduction(program.types[source_of(op)], region, name)
        if op.is_collective and region.is_uniform(moved(program, name)):
            raise UnfitError(f"{name!r} moves one element beside an index space")
        if any(s in inside and isinstance(program.ops[s], o.AllGather | o.Send) for s in op.sources):
            raise UnfitError(f"{name!r} reads what the other ranks send")
        if not _has_form(op):
            raise UnfitError(f"{op.kind} is no part of a kernel")
        if region.dim is not None and kind.layout.is_local:
            raise UnfitError(f"{name!r} is Local in a sliced index space")
        if name in written and region.is_cut(kind) and kind.layout.is_replicated and not isinstance(op, o.AllGather):
            raise UnfitError(f"{name!r} is wanted whole where a rank walks its block")


def moved(program: Program, name: str) -> TensorType:
    """The type of what a kernel stores for an operation: a gather's blocks, a send's value, else the result."""
    op = program.ops[name]
    return program.types[source_of(op) if isinstance(op, o.AllGather | o.Send) else name]


def _check_reduction(source: TensorType, region: Region, name: str) -> None:
    if not region.is_full(source) and not region.is_uniform(source):
        raise UnfitError(f"{name!r} reduces a smaller index space")


def _has_form(op: o.Op) -> bool:
    parts = o.Reduction | o.AllReduce | o.ReduceScatter | o.AllGather | o.Send | o.Update | o.LocalSlice
    return o.is_pointwise(op) or isinstance(op, parts)
