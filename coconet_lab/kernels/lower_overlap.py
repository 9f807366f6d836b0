"""Overlapped stages, cut into chunks and issued one behind the other (paper §3.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from coconet_lab.ir import ops as o
from coconet_lab.kernels.kernel import Combine, Kernel, StoreAll, StoreTo
from coconet_lab.kernels.lower_costs import kernel_cost, library_cost, walked
from coconet_lab.kernels.lower_entries import Lowering, as_fields
from coconet_lab.kernels.lower_order import Unit
from coconet_lab.kernels.lower_region import UnfitError
from coconet_lab.kernels.plan import AnyEntry, Arrive, Chunk, Launch, Library, Sync

Lower = Callable[..., list[AnyEntry]]


@dataclass(slots=True)
class Channels:
    """Hands out the numbers of signals: each is posted once a run."""

    count: int = 0

    def take(self, several: int) -> range:
        """That many new channels."""
        self.count += several
        return range(self.count - several, self.count)


def lower_overlap(
    lowering: Lowering, stages: Sequence[Unit], chunks: int, channels: Channels, lower_unit: Lower
) -> list[AnyEntry]:
    """The entries of an overlap, stage i on stream i.

    Where the stages share no dim to cut, each is one entry and the library's collectives stay what they are.
    """
    before = dict(lowering.memory.slots), dict(lowering.memory.buffers)
    try:
        lowered = [lower_unit(lowering, stage, True) for stage in stages]
        choice = _chunk_dim(lowering, lowered, chunks)
    except UnfitError:
        choice = None
    if choice is None:
        lowering.memory.slots, lowering.memory.buffers = before
        plain = (lower_unit(lowering, stage) for stage in stages)
        return [replace(entry, stream=at) for at, entries in enumerate(plain) for entry in entries]
    dim, extent = choice
    count = min(chunks, extent)
    cuts = [Chunk(i, count, dim, i * extent // count, (i + 1) * extent // count) for i in range(count)]
    chunked = _with_meetings(lowering, lowered, cuts, channels)
    return [entry for stage, chunk in _pipelined(len(stages), count) for entry in chunked[stage][chunk]]


def _pipelined(stages: int, count: int) -> Iterator[tuple[int, int]]:
    """stage 0 chunk 0; stage 0 chunk 1, stage 1 chunk 0; stage 0 chunk 2, stage 1 chunk 1, stage 2 chunk 0; …"""
    for step in range(stages + count - 1):
        for stage in range(stages):
            if 0 <= step - stage < count:
                yield stage, step - stage


# -- where to cut ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Walk:
    """What cutting a stage must respect: its index space, and dims that may not be cut."""

    shape: tuple[int, ...]
    extents: tuple[int, ...]
    dim: int | None
    refused: frozenset[int]
    is_list: bool


def _chunk_dim(lowering: Lowering, lowered: Sequence[Sequence[AnyEntry]], chunks: int) -> tuple[int, int] | None:
    """The dim all stages are cut along, and its extent (of the block where it is the sliced dim), or None."""
    made = {name for entries in lowered for entry in entries for name in entry.ops}
    walks = [_walk(lowering, e, made) for entries in lowered for e in entries if not isinstance(e, Arrive)]
    whole = [walk for walk in walks if walk is not None]
    if chunks < 2 or not whole or len(whole) < len(walks) or not all(_like(w, whole[0]) for w in whole):
        return None
    if _overwrites(lowered):
        return None
    free: list[tuple[int, int]] = []
    sliced: list[tuple[int, int]] = []
    for dim in range(len(whole[0].shape)):
        if any(dim in w.refused or w.shape[dim] != whole[0].shape[dim] for w in whole):
            continue
        if not _spans(lowering, lowered, made, dim, whole[0]):
            continue
        if all(w.dim != dim for w in whole):
            free.append((dim, whole[0].extents[dim]))
        elif all(w.dim == dim for w in whole):
            sliced.append((dim, whole[0].extents[dim]))
    enough = [found for found in free if found[1] >= chunks]
    several = [found for found in (*enough, *sliced, *sorted(free, key=lambda found: -found[1])) if found[1] > 1]
    return several[0] if several else None


def _like(a: _Walk, b: _Walk) -> bool:
    return a.shape == b.shape or (len(a.shape) == len(b.shape) and not a.is_list and not b.is_list)


def _walk(lowering: Lowering, entry: AnyEntry, made: set[str]) -> _Walk | None:
    if isinstance(entry, Launch):
        space = entry.kernel.space
        every = range(len(space.shape))
        refused = {d for a in entry.kernel.accumulators for d in (every if a.dims is None else a.dims)}
        return _Walk(space.shape, walked(space), space.dim, frozenset(refused), bool(space.pieces))
    if isinstance(entry, Library):
        kind = entry.target.type
        rank = len(kind.shape)
        first, second = [name in made for name in (*entry.op.sources, "")][:2]
        match entry.op:
            case o.MatMul():
                # A chunk of rows needs all of B, a chunk of columns all of A.
                allowed = (set() if second else set(range(rank - 1))) | (set() if first else {rank - 1})
            case o.Conv():
                allowed = set() if second else {0}
            case _:
                return None
        extents = kind.stored_shape(lowering.program.group_ranks)
        return _Walk(kind.shape, extents, kind.layout.dim, frozenset(set(range(rank)) - allowed), False)
    return None


def _overwrites(lowered: Sequence[Sequence[AnyEntry]]) -> bool:
    """Whether a stage overwrites what another chunk of an earlier stage may still read."""
    earlier: list[AnyEntry] = []
    for entries in lowered:
        for entry in entries:
            for buffer in {b for other in earlier for b in other.reads} & set(entry.writes):
                readers = [other for other in earlier if buffer in other.reads]
                if not all(_by_element(other, buffer) for other in (*readers, entry)):
                    return True
        earlier += entries
    return False


def _by_element(entry: AnyEntry, buffer: str) -> bool:
    """Whether each element of a chunk touches the same element of this rank's own copy, and no other."""
    if not isinstance(entry, Launch) or buffer in _through(entry, Combine) | _through(entry, StoreAll):
        return False
    kernel = entry.kernel
    found = (param for slot, param in zip(entry.tensors, kernel.tensors) if slot.buffer == buffer)
    return all(param.shape == kernel.space.shape for param in found)


def _spans(lowering: Lowering, lowered: Sequence[Sequence[AnyEntry]], made: set[str], dim: int, walk: _Walk) -> bool:
    """Whether every value that goes from one stage to a later one has the dim in full, counted from the left."""
    types = lowering.program.types
    buffers = {b for entries in lowered for e in entries for b in e.writes}
    later = {b for entries in lowered[1:] for e in entries for b in e.reads}
    for name in made:
        slot = lowering.memory.slots.get(name)
        if slot is None or slot.buffer not in buffers & later:
            continue
        shape = types[name].shape
        if len(shape) != len(walk.shape) or shape[dim] != walk.shape[dim]:
            return False
    return True


# -- who meets when --------------------------------------------------------------------------------------------------


def _with_meetings(
    lowering: Lowering, lowered: Sequence[Sequence[AnyEntry]], cuts: Sequence[Chunk], channels: Channels
) -> list[list[list[AnyEntry]]]:
    """Every stage's chunks with their signals: a chunk that reads peers waits for their producers of the same chunk."""
    signals = _signals(lowered, len(cuts), channels)
    chunked: list[list[list[AnyEntry]]] = []
    for stage, entries in enumerate(lowered):
        parts = []
        for chunk in cuts:
            parts.append([_cut(lowering, e, stage, chunk, signals, lowered) for e in entries])
        chunked.append(parts)
    return chunked


@dataclass(frozen=True, slots=True)
class _Signal:
    """Posted after a chunk of entry `producer`, waited for before the same chunk of entry `consumer`."""

    producer: int
    consumer: int
    channels: range
    pair: bool


def _signals(lowered: Sequence[Sequence[AnyEntry]], count: int, channels: Channels) -> list[_Signal]:
    found: list[_Signal] = []
    flat = [entry for entries in lowered for entry in entries]
    for at, producer in enumerate(flat):
        for later, consumer in enumerate(flat[at + 1 :], at + 1):
            if isinstance(consumer, Arrive):
                if isinstance(producer, Launch) and consumer.target.buffer in _through(producer, StoreTo):
                    found.append(_Signal(at, later, channels.take(count), True))
                continue
            stored = set(producer.writes) & set(consumer.reads) if not isinstance(producer, Arrive) else set()
            if stored & (_through(producer, StoreAll) | _through(consumer, Combine)):
                found.append(_Signal(at, later, channels.take(count), False))
    return found


def _through(entry: AnyEntry, form: type) -> set[str]:
    """Buffers that a launch reaches on other ranks by statements of this form."""
    if not isinstance(entry, Launch):
        return set()
    moving = (s for s in entry.kernel.statements() if isinstance(s, Combine | StoreAll | StoreTo))
    return {entry.tensors[s.tensor].buffer for s in moving if isinstance(s, form)}


def _cut(
    lowering: Lowering,
    entry: AnyEntry,
    stage: int,
    chunk: Chunk,
    signals: Sequence[_Signal],
    lowered: Sequence[Sequence[AnyEntry]],
) -> AnyEntry:
    flat = [e for entries in lowered for e in entries]
    at = next(i for i, e in enumerate(flat) if e is entry)
    waits = tuple(_meet("wait", flat[s.producer], s, chunk) for s in signals if s.consumer == at)
    posts = tuple(_meet("signal", flat[s.consumer], s, chunk) for s in signals if s.producer == at)
    opens, closes = _barriers(entry, flat, chunk)
    found = replace(entry, stream=stage, chunk=chunk, opens=(*opens, *waits), closes=(*posts, *closes))
    ranks = lowering.program.group_ranks
    if isinstance(found, Launch):
        kernel = _cut_kernel(found.kernel, chunk.dim)
        return replace(found, kernel=kernel, **as_fields(kernel_cost(kernel, chunk)))
    if isinstance(found, Library):
        kinds = [slot.type for slot in found.operands]
        return replace(found, **as_fields(library_cost(found.op, kinds, found.target.type, ranks, chunk)))
    share = _share(entry.bytes_written, chunk)
    return replace(found, bytes_written=share)


def _meet(kind: str, other: AnyEntry, signal: _Signal, chunk: Chunk) -> Sync:
    channel = signal.channels[chunk.index]
    if signal.pair:
        return Sync(kind, "pair", channel, other.groups[0])  # type: ignore[arg-type]
    return Sync(kind, "group", channel)  # type: ignore[arg-type]


def _barriers(entry: AnyEntry, flat: Sequence[AnyEntry], chunk: Chunk) -> tuple[tuple[Sync, ...], tuple[Sync, ...]]:
    """The first chunk begins when peers' buffers are free or filled; the last ends when no peer needs ours any more."""
    opens = entry.opens if chunk.index == 0 else ()
    closes = entry.closes if chunk.index == chunk.count - 1 else ()
    made_here = {buffer for other in flat for buffer in other.writes}
    if isinstance(entry, Launch) and not _through(entry, StoreAll) and _through(entry, Combine) <= made_here:
        # Its signals say that peers' chunks are there; nothing of theirs is overwritten.
        opens = tuple(sync for sync in opens if sync.scope == "pair")
    # Between pairs the signals of all chunks have said it already.
    return opens, tuple(sync for sync in closes if sync.scope == "group")


def _cut_kernel(kernel: Kernel, dim: int) -> Kernel:
    return replace(kernel, space=replace(kernel.space, chunk_dim=dim))


def _share(total: int, chunk: Chunk) -> int:
    return total * (chunk.index + 1) // chunk.count - total * chunk.index // chunk.count
