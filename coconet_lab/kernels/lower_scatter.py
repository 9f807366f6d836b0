"""Which buffers keep the tensors of a list apart, and the kernels that find them there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from coconet_lab.kernels.plan import AnyEntry, Buffer, Exchange, Launch, Library


def scattered_buffers(buffers: Mapping[str, Buffer], entries: Sequence[AnyEntry]) -> frozenset[str]:
    """Those of lists, but for what libraries take in one row: exchanges between hosts, operators of the user."""
    in_a_row = {name for e in entries if isinstance(e, Exchange | Library) for name in (*e.reads, *e.writes)}
    return frozenset(name for name, buffer in buffers.items() if buffer.type.is_list and name not in in_a_row)


def with_scattered(entries: Sequence[AnyEntry], scattered: frozenset[str]) -> tuple[AnyEntry, ...]:
    """The entries, their kernels knowing which of their tensors are lists whose tensors lie apart."""
    return tuple(_told(entry, scattered) if isinstance(entry, Launch) else entry for entry in entries)


def _told(entry: Launch, scattered: frozenset[str]) -> Launch:
    tensors = tuple(
        replace(param, scattered=slot.buffer in scattered and not param.per_piece)
        for param, slot in zip(entry.kernel.tensors, entry.tensors)
    )
    if tensors == entry.kernel.tensors:
        return entry
    return replace(entry, kernel=replace(entry.kernel, tensors=tensors))
