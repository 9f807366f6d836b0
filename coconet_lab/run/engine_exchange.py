"""The part of a Plan that goes between hosts: through the library, between ranks that share no memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coconet_lab.ir.contract import finished
from coconet_lab.ir.dtypes import DType
from coconet_lab.kernels.plan import Exchange, Slot
from coconet_lab.run.communicator import Communicator, combine
from coconet_lab.run.engine_memory import Memory

Array = np.ndarray[Any, Any]
Step = Callable[[], None]


def exchange_step(entry: Exchange, memory: Memory, rail: Communicator, group: Communicator) -> Step:
    """One exchange along the rail (the ranks of one number on every host), or among all ranks of the group."""
    match entry.kind:
        case "ReduceScatter":
            return _reduce_scatter(entry, memory, rail)
        case "AllGather":
            return _all_gather(entry, memory, rail)
        case "Reduction":
            return _reduction(entry, memory, group)


def _block_of(memory: Memory, slot: Slot, hosts_on: int) -> Array:
    """The part of a block-sized buffer that holds the block of the rank so many hosts further on."""
    place = memory.place
    shape = slot.type.local_shape((place.index + hosts_on * place.local) % place.ranks, place.ranks)
    return memory.arrays[slot.buffer][tuple(slice(0, extent) for extent in shape)]


def _reduce_scatter(entry: Exchange, memory: Memory, rail: Communicator) -> Step:
    """Blocks go to the ranks that own them; each adds what it receives in the order of the hosts, and rounds once."""
    target = memory.view(entry.targets[0])
    dtype = entry.targets[0].type.dtype
    # In the order of the hosts, not of the distance.
    blocks = [
        _block_of(memory, entry.sources[(host - rail.rank) % rail.size], host - rail.rank) for host in range(rail.size)
    ]
    counts = [target.size] * rail.size

    def move() -> None:
        came = rail.all_to_all([np.ascontiguousarray(block).reshape(-1) for block in blocks], counts)
        target[...] = combine(came, entry.reduction, dtype).reshape(target.shape)

    return move


def _all_gather(entry: Exchange, memory: Memory, rail: Communicator) -> Step:
    """Every rank's block, on the ranks of its number."""
    source, dtype = memory.view(entry.sources[0]), entry.sources[0].type.dtype
    steps = [(host - rail.rank) % rail.size for host in range(rail.size)]
    targets = [_block_of(memory, entry.targets[step - 1], step) if step else source for step in steps]
    counts = [target.size for target in targets]
    borders = np.concatenate(([0], np.cumsum(counts)))
    whole = np.empty(sum(counts), dtype.numpy)

    def move() -> None:
        rail.all_gather(np.ascontiguousarray(source).reshape(-1), whole, counts)
        for step, target, start, stop in zip(steps, targets, borders[:-1], borders[1:]):
            if step:
                target[...] = whole[start:stop].reshape(target.shape)

    return move


def _reduction(entry: Exchange, memory: Memory, group: Communicator) -> Step:
    """Partial results of all ranks, added in rank order."""
    source, target = memory.view(entry.sources[0]), memory.view(entry.targets[0])
    dtype, counts = entry.targets[0].type.dtype, np.array(entry.counts)
    whole = np.empty(source.size * group.size, source.dtype)

    def move() -> None:
        group.all_gather(np.ascontiguousarray(source).reshape(-1), whole, [source.size] * group.size)
        partials = whole.reshape(group.size, source.size)
        target[...] = _result(partials, entry.reduction, counts, dtype).reshape(target.shape)

    return move


def _result(partials: Sequence[Array] | Array, reduction: str, counts: Array, dtype: DType) -> Array:
    join = {"max": np.maximum, "min": np.minimum}.get(reduction, np.add)
    total = partials[0]
    with np.errstate(all="ignore"):
        for partial in partials[1:]:
            total = join(total, partial)
        if reduction == "mean":
            total = total / counts
        elif reduction == "norm":
            total = np.sqrt(total)
    return finished(np.asarray(total), dtype)
