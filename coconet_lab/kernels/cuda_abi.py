"""The argument block of a CUDA kernel: one struct of 8-byte words, printed here and filled here.

Everything a launch needs to know is in it, so a captured launch can be replayed for ever: pointers to this rank's and
its peers' memory, extents, and for scalars the addresses of their 8-byte slots, which a replay reads anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coconet_lab.ir.dtypes import BF16, FP16, FP32, FP64, INT32, INT64, DType
from coconet_lab.kernels.cuda_space import Folding, Walk
from coconet_lab.kernels.kernel import Accumulator, Combine, Kernel, Store, StoreAll, StoreTo

C_TYPES: dict[DType, str] = {FP16: "fp16", BF16: "bf16", FP32: "float", FP64: "double", INT32: "int", INT64: "i64"}

MAX_CTAS = 1020
"""Lines of a signal pad for meetings of CTAs; one more line is for exchanges."""

LINE_BYTES = 64
PAD_BYTES = (MAX_CTAS + 4) * LINE_BYTES
"""Bytes of one rank's signal pad for one stream."""

STATE_BYTES = (MAX_CTAS + 4) * 4
"""Bytes of a rank's own counters for one stream; the first word is the error word."""

SLOTS = 4
"""Rounds of a launch that writes into its peers' staging that lie there at once; the prelude's SLOTS."""

MAX_RANKS = LINE_BYTES // 4
"""Ranks of a group that a line has flags for."""


@dataclass(frozen=True, slots=True)
class Field:
    """A member of the argument struct: an array of `count` words, or a plain member where it is 0.

    `team_words` is the size of the one member that is a struct itself: pads, state, limit and meetings.
    """

    name: str
    type: str
    count: int = 0
    team_words: int = 0

    @property
    def words(self) -> int:
        """8-byte words it takes."""
        return self.team_words or self.count or 1

    def __str__(self) -> str:
        return f"  {self.type} {self.name}{f'[{self.count}]' if self.count else ''};"


def peer_tensors(kernel: Kernel) -> frozenset[int]:
    """Tensors whose argument is a table of all ranks' copies; a send's target has the partner's alone."""
    found = {s.tensor for s in kernel.statements() if isinstance(s, Combine | StoreAll)}
    sent = {s.tensor for s in kernel.statements() if isinstance(s, StoreTo)}
    return frozenset(found - sent)


def pushed(kernel: Kernel, folding: Folding) -> tuple[int, ...]:
    """The tensors that ranks may write into their peers' staging instead of reading them there (see `cuda_push`).

    Only where the ranks meet when a launch begins, since staging is used again and again, and where nothing is reduced:
    norms part the reading of peers from the writing, and either alone leaves a link time.
    """
    space = kernel.space
    if space.ranks == 1 or space.parts != space.ranks or not kernel.opens or folding.width == 1 or kernel.accumulators:
        return ()
    found = {s.tensor for phase in kernel.phases for s in phase.body if isinstance(s, Combine)}
    return tuple(sorted(t for t in found if folding.present[t][-1]))


def written(kernel: Kernel) -> frozenset[int]:
    """Tensors a kernel stores into."""
    return frozenset(s.tensor for s in kernel.statements() if isinstance(s, Store | StoreAll | StoreTo))


def fields(kernel: Kernel, folding: Folding) -> tuple[Field, ...]:
    """Members of the kernel's argument struct, in order."""
    ranks, peers = kernel.space.ranks, peer_tensors(kernel)
    found: list[Field] = []
    for t, tensor in enumerate(kernel.tensors):
        constant = "" if t in written(kernel) else "const "
        found.append(Field(f"t{t}", f"{constant}{C_TYPES[tensor.dtype]}*", ranks if t in peers else 0))
        if folding.steps(t):
            found.append(Field(f"t{t}_step", "i64", len(folding.dims)))
    found += [
        Field(f"s{s}", "const double*" if p.dtype.is_float else "const i64*") for s, p in enumerate(kernel.scalars)
    ]
    found += [Field("extent", "i64", len(folding.dims)), Field("index", "i64")]
    found += [Field("index_step", "i64", len(folding.dims))]
    found += [Field("vectors", "i64"), Field("first", "i64"), Field("total", "i64")]
    if kernel.accumulators:
        found += [Field("partial", "u64*"), Field("exchange", "u64*", ranks), Field("half", "i64")]
        found += [Field(f"a{a}_at", "i64") for a in range(len(kernel.accumulators))]
        found += [Field(f"a{a}_rows", "i64") for a in range(len(kernel.accumulators))]
        found += [Field(f"a{a}_count", "i64") for a in range(len(kernel.accumulators))]
        found += [Field(f"a{a}_partial", "i64") for a in range(len(kernel.accumulators))]
    if has_buckets(kernel):
        found += [
            Field("pieces", "i64"),
            Field("buckets", "i64"),
            Field("bucket_start", "const i64*"),
            Field("bucket_piece", "const i64*"),
        ]
        found += [Field("piece_bucket", "const i64*"), Field("piece_elements", "const i64*")]
        if scattered_tensors(kernel):
            found.append(Field("shift", "const i64*"))
    return (*found, *push_fields(kernel, folding), Field("team", "Team", team_words=ranks + 3))


def push_fields(kernel: Kernel, folding: Folding) -> list[Field]:
    """The members that only a launch that pushes fills."""
    ranks, tensors = kernel.space.ranks, pushed(kernel, folding)
    if not tensors:
        return []
    found = [Field("push", "i64"), Field("stage", "unsigned char*", ranks)]
    found += [Field(f"t{t}_far", f"const {C_TYPES[kernel.tensors[t].dtype]}*", ranks) for t in tensors]
    if not has_buckets(kernel):
        return [*found, Field("far_vectors", "i64", ranks)]
    tables = [Field("far_start", "const i64*", ranks), Field("far_piece", "const i64*", ranks)]
    return [*found, Field("far_buckets", "i64", ranks), *tables]


def has_buckets(kernel: Kernel) -> bool:
    """Whether the kernel walks a list bucket by bucket: its tensors lie apart, or each has a value of its own."""
    return any(a.per_piece for a in kernel.accumulators) or any(
        is_per_piece(kernel, t) or tensor.scattered for t, tensor in enumerate(kernel.tensors)
    )


def scattered_tensors(kernel: Kernel) -> tuple[int, ...]:
    """The lists whose tensors lie apart: each has a table of its tensors' places."""
    return tuple(t for t, tensor in enumerate(kernel.tensors) if tensor.scattered)


def is_per_piece(kernel: Kernel, tensor: int) -> bool:
    """Whether a tensor holds one element for each tensor of the list that the kernel walks."""
    param, pieces = kernel.tensors[tensor], kernel.space.pieces
    return param.per_piece or (bool(pieces) and param.shape == (len(pieces),) != kernel.space.shape)


def rows_of(accumulator: Accumulator, kernel: Kernel, folding: Folding, found: Walk) -> int:
    """Results of a reduction on this rank: the walked elements of the runs it keeps."""
    if accumulator.per_piece:
        return len(kernel.space.pieces)
    rows = 1
    for run, extent in zip(folding.dims, found.extents):
        if accumulator.dims is not None and run and run[0] not in accumulator.dims:
            rows *= extent
    return rows


def reduced_count(accumulator: Accumulator, kernel: Kernel) -> int:
    """Elements that go into each result, over all ranks: what a mean divides by."""
    shape = kernel.space.shape
    dims = range(len(shape)) if accumulator.dims is None else accumulator.dims
    count = 1
    for d in dims:
        count *= shape[d]
    return count


def exchange_words(kernel: Kernel, folding: Folding, walks: Sequence[Walk]) -> tuple[list[int], int]:
    """Where each reduction's parts start in the exchange memory, in words, and the words of one half of it.

    `walks` are those of all ranks of the group: places must be the same on all of them.
    """
    places, at = [], 0
    for accumulator in kernel.accumulators:
        places.append(at)
        at += kernel.space.ranks * max(rows_of(accumulator, kernel, folding, w) for w in walks)
    return places, at


def pack(layout: Sequence[Field], values: Mapping[str, int | Sequence[int]]) -> np.ndarray[Any, Any]:
    """The argument struct as a one-element structured array, which is how CuPy takes a struct by value."""
    words: list[int] = []
    for field in layout:
        value = values[field.name]
        several = [value] if isinstance(value, int) else [int(v) for v in value]
        if len(several) != field.words:
            raise ValueError(f"{field.name} takes {field.words} words, not {len(several)}")
        words += [v & 0xFFFF_FFFF_FFFF_FFFF for v in several]
    packed = np.zeros(1, dtype=[("words", np.uint64, (len(words),))])
    packed["words"][0] = np.array(words, dtype=np.uint64)
    return packed
