"""In which order operations, fused groups and overlaps run, and what each entry waits for."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coconet_lab.errors import ProgramError
from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Program
from coconet_lab.ir.updates import is_in_place_gather
from coconet_lab.kernels.lower_memory import Memory, source_of
from coconet_lab.kernels.plan import AnyEntry, HostScalars, Launch


@dataclass(frozen=True, slots=True)
class Unit:
    """What is lowered as one: an operation, a fused group, or an overlap of several stages."""

    name: str
    members: tuple[str, ...]


def kernels_reading(program: Program, inside: Collection[str], name: str) -> list[str]:
    """Who reads a value when the plan runs: in place of readers that are computed inside others, those."""
    found: dict[str, None] = {}
    stack = [name]
    while stack:
        for reader in program.readers[stack.pop()]:
            if reader not in found:
                found[reader] = None
                if reader in inside:
                    stack.append(reader)
    return [reader for reader in found if reader not in inside]


def unit_graph(
    program: Program, host: frozenset[str], inside: Collection[str]
) -> tuple[Mapping[str, str], dict[str, set[str]]]:
    """The unit of every value in a fused group or overlap, and the units that come after each."""
    unit_of = program.unit_of
    after: dict[str, set[str]] = {
        unit_of.get(name, name): set()
        for name, op in program.ops.items()
        if not isinstance(op, o.Input) and name not in host
    }
    for before, later in _edges(program, inside):
        a, b = unit_of.get(before, before), unit_of.get(later, later)
        if a in after and b in after and a != b:
            after[a].add(b)
    return unit_of, after


def units_in_order(program: Program, host: frozenset[str], inside: Collection[str]) -> list[Unit]:
    """All units but inputs and host scalars, in a total order of the order graph; ties in program order.

    A value that is computed `inside` others is a unit too, of which nothing runs: its readers come after what it reads.
    """
    unit_of, after = unit_graph(program, host, inside)
    members: dict[str, list[str]] = {}
    for name in program.ops:
        if unit_of.get(name, name) in after and name not in host:
            members.setdefault(unit_of.get(name, name), []).append(name)
    waits = dict.fromkeys(members, 0)
    for followers in after.values():
        for unit in followers:
            waits[unit] += 1
    last = {unit: program.position[names[-1]] for unit, names in members.items()}
    ready = [(last[unit], unit) for unit, count in waits.items() if not count]
    heapq.heapify(ready)
    order: list[Unit] = []
    while ready:
        _, unit = heapq.heappop(ready)
        order.append(Unit(unit, tuple(members[unit])))
        for follower in after[unit]:
            waits[follower] -= 1
            if not waits[follower]:
                heapq.heappush(ready, (last[follower], follower))
    if len(order) < len(members):
        stuck = next(unit for unit, count in waits.items() if count)
        raise ProgramError(
            f"no order runs {stuck!r} after all it needs",
            rule="a reader of a tensor runs before the update of it, and groups run as one [paper §3.3]",
            where=f"program {program.name!r}",
            hint="cl.copy(the tensor) before the update",
        )
    return order


def _edges(program: Program, inside: Collection[str]) -> Iterator[tuple[str, str]]:
    for name, op in program.ops.items():
        yield from ((source, name) for source in op.sources)
        if isinstance(op, o.Update):
            yield from ((reader, name) for reader in _old_readers(program, inside, op))


def _old_readers(program: Program, inside: Collection[str], update: o.Update) -> Iterator[str]:
    """Who reads the version that an update overwrites: of a gather in place also the blocks, which are one storage."""
    tensor = source_of(update)
    versions = [tensor, source_of(program.ops[tensor])] if is_in_place_gather(program, tensor) else [tensor]
    for version in versions:
        yield from (r for r in kernels_reading(program, inside, version) if r != update.name)


def forwarded(program: Program, memory: Memory, order: Sequence[Unit]) -> dict[str, str]:
    """Values whose kernels write straight into the tensor they update: nobody else reads them, or it later on."""
    place = {member: at for at, unit in enumerate(order) for member in unit.members}
    alone = {unit.members[0] for unit in order if len(unit.members) == 1 and unit.name == unit.members[0]}
    found: dict[str, str] = {}
    for update in alone:
        op = program.ops[update]
        if not isinstance(op, o.Update):
            continue
        tensor, value = source_of(op), source_of(op, 1)
        if value not in alone or value in program.outputs or program.readers[value] != (update,) or tensor == value:
            continue
        others = [reader for reader in _old_readers(program, memory.inside, op) if reader != value]
        if all(place[reader] < place[value] for reader in others) and _writes_anywhere(program, op, program.ops[value]):
            found[value] = update
    return found


def _writes_anywhere(program: Program, update: o.Update, op: o.Op) -> bool:
    """Whether `op` may store into the updated tensor: element by element, or without reading that tensor at all."""
    tensor = source_of(update)
    kind = program.types[op.name]
    if o.is_pointwise(op):
        return all(source != tensor or program.types[source].shape == kind.shape for source in op.sources)
    if isinstance(op, o.MatMul | o.Conv):
        return tensor not in op.sources and program.types[tensor].layout == kind.layout
    return isinstance(op, o.AllReduce | o.ReduceScatter | o.AllGather) and tensor not in op.sources


@dataclass(slots=True)
class _Touched:
    """Entries that wrote a buffer last, and those that read it since."""

    writers: list[int] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)


def with_dependencies(entries: Sequence[tuple[AnyEntry, str]]) -> tuple[AnyEntry, ...]:
    """Entries with `after` filled in: what wrote what they read, and what still reads or wrote what they overwrite.

    Parameters
    ----------
    entries : sequence of (entry, overlap)
        The overlap's name, or "" for none: in one overlap a chunk waits only for the same chunk of the other stages.
    """
    buffers: dict[str, _Touched] = {}
    done: list[AnyEntry] = []
    for at, (entry, overlap) in enumerate(entries):
        needs: set[int] = _scalars(entries[0][0], entry)
        for buffer in (*entry.reads, *entry.writes):
            known = buffers.setdefault(buffer, _Touched())
            needs.update(known.writers)
            if buffer in entry.writes:
                needs.update(known.readers)
        needs = {i for i in needs if not _is_other_chunk(entries[i], entry, overlap)}
        groups = set(entry.groups)
        done.append(replace(entry, after=tuple(sorted(i for i in needs if groups & set(entries[i][0].groups)))))
        _touch(buffers, entries, at)
    return tuple(done)


def _scalars(first: AnyEntry, entry: AnyEntry) -> set[int]:
    """The host's arithmetic comes first of all; a kernel waits for it where it takes one of its results."""
    if not (isinstance(first, HostScalars) and isinstance(entry, Launch)):
        return set()
    return set() if set(first.ops).isdisjoint(entry.scalars) else {0}


def _is_other_chunk(other: tuple[AnyEntry, str], entry: AnyEntry, overlap: str) -> bool:
    a, b = other[0].chunk, entry.chunk
    return bool(overlap) and other[1] == overlap and a is not None and b is not None and a.index != b.index


def _touch(buffers: dict[str, _Touched], entries: Sequence[tuple[AnyEntry, str]], at: int) -> None:
    entry, overlap = entries[at]
    for buffer in entry.writes:
        known = buffers[buffer]
        # Chunks write a buffer together, and a launch writes its partner's buffer before its arrival is noted there.
        same = [i for i in (*known.writers, *known.readers) if _shares(entries[i], entry, overlap)]
        if same:
            known.writers.append(at)
        else:
            known.writers, known.readers = [at], []
    for buffer in entry.reads:
        if buffer not in entry.writes:
            buffers[buffer].readers.append(at)


def _shares(other: tuple[AnyEntry, str], entry: AnyEntry, overlap: str) -> bool:
    chunks = bool(overlap) and other[1] == overlap
    return chunks or not set(other[0].groups) & set(entry.groups)
