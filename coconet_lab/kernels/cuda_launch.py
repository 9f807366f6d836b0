"""The numbers of one launch: what a rank walks, where everything lies, as the argument struct of its kernel."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coconet_lab.ir.types import Range
from coconet_lab.kernels.cuda_abi import (
    MAX_CTAS,
    SLOTS,
    exchange_words,
    has_buckets,
    pack,
    peer_tensors,
    push_fields,
    pushed,
    reduced_count,
    rows_of,
)
from coconet_lab.kernels.cuda_printer import CudaSource
from coconet_lab.kernels.cuda_push import vector_bytes
from coconet_lab.kernels.cuda_space import Walk, block_of, piece_borders, vector_counts, walk
from coconet_lab.kernels.kernel import Kernel, Space

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Team:
    """How the ranks of a group meet inside a launch.

    Parameters
    ----------
    pads : tuple of int
        Addresses of the ranks' signal pads, in rank order.
    state : int
        Address of this rank's own counters.
    limit_ns : int
        How long a wait may take.
    opens, closes : bool
        Whether this launch begins and ends with a meeting.
    entry : int
        The launch's place in its Plan, for the error word.
    """

    pads: tuple[int, ...]
    state: int
    limit_ns: int
    opens: bool = False
    closes: bool = False
    entry: int = 0


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that reductions need.

    Parameters
    ----------
    partial : int
        Address of this rank's partial results, `partial_words` 8-byte words.
    exchange : tuple of int
        Addresses of the ranks' exchange memory.
    half_words : int
        Words of one of its two halves: at least `exchange_words` of every kernel that uses it.
    tables : mapping of name to int
        Addresses of `bucket_tables` on the device.
    """

    partial: int
    exchange: tuple[int, ...]
    half_words: int
    tables: dict[str, int]


@dataclass(frozen=True, slots=True)
class Staging:
    """Where ranks write what their peers take in the next round of a launch (see `cuda_push`).

    Parameters
    ----------
    addresses : tuple of int
        Of the ranks' staging.
    tables : sequence of mappings
        For every rank of the group, addresses of its `bucket_tables` on this device; of a list alone.
    """

    addresses: tuple[int, ...]
    tables: Sequence[Mapping[str, int]] = ()


def staging_bytes(source: CudaSource, ctas: int, threads: int, unroll: int) -> int:
    """Staging that a launch of so many CTAs uses on each rank."""
    space = source.kernel.space
    return SLOTS * space.ranks * ctas * threads * unroll * vector_bytes(source.kernel, source.folding)


def partial_words(source: CudaSource, rank: int) -> tuple[list[int], int]:
    """Where each reduction's partial results start, and the words they take."""
    places, at = [], 0
    buckets = bucket_count(source.kernel.space, rank) if has_buckets(source.kernel) else 0
    for accumulator in source.kernel.accumulators:
        places.append(at)
        at += buckets if accumulator.per_piece else MAX_CTAS
    return places, at


def half_words(source: CudaSource) -> int:
    """Words of exchange memory that one launch of a kernel uses."""
    walks = [walk(source.kernel, rank) for rank in range(source.kernel.space.parts)]
    return exchange_words(source.kernel, source.folding, walks)[1]


def bucket_tables(
    kernel: Kernel, rank: int, chunk: Range | None = None, shifts: Mapping[int, Array] | None = None
) -> dict[str, Array]:
    """The buckets of a list that a launch of `rank` walks, as int64 tables: by argument name.

    ``bucket_start`` counts from the first element walked and has the end at the end; ``piece_bucket`` gives each
    tensor's first bucket here, and the number of buckets at the end; ``piece_elements`` counts all ranks' elements.
    ``shift`` says for each tensor of the list how far it lies in each scattered buffer from where it would be in a
    row: `shifts` (see `scatter.shifts`), but counted from the first element walked too, those of one tensor together.
    """
    space = kernel.space
    low, high = _walked(space, rank, chunk)
    sizes = np.array([math.prod(piece) for piece in space.pieces], np.int64)
    borders = np.array(piece_borders(space), np.int64)
    here = np.maximum(borders[:-1][(borders[:-1] < high) & (borders[1:] > low)], low) if low < high else borders[:0]
    pieces = np.searchsorted(np.cumsum(sizes), here, side="right").astype(np.int64)
    found = {
        "bucket_start": np.append(here, high) - low,
        "bucket_piece": pieces,
        "piece_bucket": np.searchsorted(pieces, np.arange(len(sizes) + 1), side="left").astype(np.int64),
        "piece_elements": sizes,
    }
    if shifts:
        found["shift"] = np.stack([shifts[t] + low for t in sorted(shifts)], axis=1).ravel()
    return found


def bucket_count(space: Space, rank: int, chunk: Range | None = None) -> int:
    """How many buckets `bucket_tables` has."""
    low, high = _walked(space, rank, chunk)
    borders = piece_borders(space)
    return bisect_left(borders, high) - bisect_right(borders, low) + 1 if low < high else 0


def _walked(space: Space, rank: int, chunk: Range | None) -> Range:
    """The elements of a list that a launch of `rank` walks."""
    ((low, high),) = block_of(space, rank)
    if chunk is None or space.chunk_dim is None:
        return low, high
    base = low if space.chunk_dim == space.dim else 0
    return min(base + chunk[0], high), min(base + chunk[1], high)


def arguments(
    source: CudaSource,
    rank: int,
    *,
    tensors: Sequence[Sequence[int]],
    scalars: Sequence[int],
    team: Team,
    scratch: Scratch | None = None,
    staging: Staging | None = None,
    chunk: Range | None = None,
) -> Array:
    """The packed argument struct of one launch.

    Parameters
    ----------
    source : CudaSource
    rank : int
        Of the group.
    tensors : sequence of sequences of int
        For every tensor, its buffer's address: on every rank of the group where the kernel reaches peers, else the one
        address it uses (a send's target: the partner's).
    scalars : sequence of int
        Addresses of the scalars' 8-byte slots.
    team : Team
    scratch : Scratch or None
        For kernels with reductions.
    staging : Staging or None
        For launches whose ranks write to their peers instead of reading there.
    chunk : pair of int or None
        The part of the chunk dim to walk.
    """
    kernel, folding = source.kernel, source.folding
    found = walk(kernel, rank, chunk)
    peers = peer_tensors(kernel)
    first = _firsts(kernel, found, tensors)
    vectors, left = vector_counts(kernel, found, first)
    values: dict[str, int | Sequence[int]] = {
        "extent": found.extents, "index": found.index, "index_step": found.index_steps,
        "vectors": vectors, "first": left, "total": found.total,
        "team": (*team.pads, team.state, team.limit_ns, int(team.opens) | int(team.closes) << 1 | team.entry << 8),
    }  # fmt: skip
    for t, addresses in enumerate(first):
        values[f"t{t}"] = addresses if t in peers else addresses[0]
        values[f"t{t}_step"] = found.steps[t]
    values |= {f"s{s}": address for s, address in enumerate(scalars)}
    if kernel.accumulators and scratch is not None:
        values |= _reduction_arguments(source, rank, found, scratch)
    if has_buckets(kernel) and scratch is not None:
        buckets = bucket_count(kernel.space, rank, chunk)
        values |= {"pieces": len(kernel.space.pieces), "buckets": buckets, **scratch.tables}
    if staging is not None and pushed(kernel, folding):
        values |= _push_arguments(source, rank, tensors, staging, chunk)
    else:
        values |= {field.name: [0] * field.words for field in push_fields(kernel, folding)}
    return pack(source.layout, values)


def _reduction_arguments(
    source: CudaSource, rank: int, found: Walk, scratch: Scratch
) -> dict[str, int | Sequence[int]]:
    """Where the parts of each reduction lie, and how many results and elements it has."""
    kernel, folding = source.kernel, source.folding
    places, _ = exchange_words(kernel, folding, [walk(kernel, r) for r in range(kernel.space.parts)])
    partials, _ = partial_words(source, rank)
    values: dict[str, int | Sequence[int]] = {
        "partial": scratch.partial, "exchange": scratch.exchange, "half": scratch.half_words
    }  # fmt: skip
    for a, accumulator in enumerate(kernel.accumulators):
        values |= {f"a{a}_at": places[a], f"a{a}_partial": partials[a]}
        values |= {f"a{a}_rows": rows_of(accumulator, kernel, folding, found)}
        values |= {f"a{a}_count": reduced_count(accumulator, kernel)}
    return values


def _push_arguments(
    source: CudaSource, rank: int, tensors: Sequence[Sequence[int]], staging: Staging, chunk: Range | None
) -> dict[str, int | Sequence[int]]:
    """What every rank takes from this one, and where it goes; nothing where not all ranks go by vectors."""
    kernel, folding = source.kernel, source.folding
    walks = [walk(kernel, r, chunk) for r in range(kernel.space.ranks)]
    values: dict[str, int | Sequence[int]] = {"push": 1, "stage": staging.addresses}
    for t in pushed(kernel, folding):
        start = walks[rank].origins[t] if kernel.tensors[t].scattered else 0
        item = kernel.tensors[t].dtype.itemsize
        values[f"t{t}_far"] = [tensors[t][rank] + (found.origins[t] - start) * item for found in walks]
    if has_buckets(kernel):
        values["far_buckets"] = [bucket_count(kernel.space, r, chunk) for r in range(len(walks))]
        for name, table in (("far_start", "bucket_start"), ("far_piece", "bucket_piece")):
            values[name] = [tables[table] for tables in staging.tables]
        return values
    vectors = [vector_counts(kernel, found, _firsts(kernel, found, tensors))[0] for found in walks]
    by_vectors = all(count or found.total < folding.width for count, found in zip(vectors, walks))
    return values | {"push": int(by_vectors), "far_vectors": vectors}


def _firsts(kernel: Kernel, found: Walk, tensors: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """For every tensor, the addresses of the first element of a walk."""
    return tuple(
        tuple(base if t.scattered else base + origin * t.dtype.itemsize for base in bases)
        for t, bases, origin in zip(kernel.tensors, tensors, found.origins)
    )
