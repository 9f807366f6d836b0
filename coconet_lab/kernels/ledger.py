"""What one run of a Plan costs a rank: bytes, launches and FLOPs, counted from its entries and buffers."""

from __future__ import annotations

from collections.abc import Iterable

from coconet_lab.kernels.kernel import Combine, Statement, StoreAll, StoreTo
from coconet_lab.kernels.plan import (
    AnyEntry,
    Arrive,
    Collective,
    Exchange,
    HostScalars,
    Launch,
    Ledger,
    Library,
    Plan,
    Transfer,
)


def ledger(plan: Plan) -> Ledger:
    """The costs of the rank that has most of each.

    `wire_bytes` are all bytes it sends, `between_groups_bytes` the part that goes to another group, and
    `between_hosts_bytes` the part that leaves its host; `memory_bytes` pass through its memory; `held_bytes` are
    what an engine reserves: all buffers, since any stored value may be read after a run. A chunk of an overlapped stage
    is a launch of its own, but its collectives count once; a collective that spans hosts counts for every part of it.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> from coconet_lab.kernels.lower import lower
    >>> g = cl.tensor("g", cl.FP32, (1024,), cl.Local)
    >>> ledger(lower(cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=4))).wire_bytes
    6144
    """
    groups = range(plan.groups)
    by_group = [[entry for entry in plan.entries if group in entry.groups] for group in groups]
    return Ledger(
        wire_bytes=max(sum(_sent(entry, group) for entry in by_group[group]) for group in groups),
        between_groups_bytes=max(sum(_sent_to_groups(e, group) for e in by_group[group]) for group in groups),
        between_hosts_bytes=max(sum(_sent(e, group, "between hosts") for e in by_group[group]) for group in groups),
        memory_bytes=max(sum(_moved(entry, group) for entry in by_group[group]) for group in groups),
        held_bytes=max(_held(plan, group) for group in groups),
        launches=max(sum(_is_launch(entry) for entry in entries) for entries in by_group),
        collectives=max(sum(_collectives(entry, group) for entry in by_group[group]) for group in groups),
        flops=max(sum(entry.flops for entry in entries) for entries in by_group),
    )


def _sent(entry: AnyEntry, group: int, link: str = "") -> int:
    if isinstance(entry, Transfer) and group != entry.groups[0]:
        return 0
    return sum(sent for kind, sent in entry.link_bytes.items() if link in ("", kind))


def _sent_to_groups(entry: AnyEntry, group: int) -> int:
    # A transfer leaves its group whichever link it takes.
    return _sent(entry, group, "" if isinstance(entry, Transfer) else "between groups")


def _moved(entry: AnyEntry, group: int) -> int:
    if isinstance(entry, Transfer):
        return entry.bytes_read if group == entry.groups[0] else entry.bytes_written
    return entry.bytes_read + entry.bytes_written


def _is_launch(entry: AnyEntry) -> bool:
    return not isinstance(entry, HostScalars | Arrive)


def _collectives(entry: AnyEntry, group: int) -> int:
    if entry.chunk is not None and entry.chunk.index:
        return 0
    if isinstance(entry, Launch):
        return _moving(entry.kernel.statements())
    is_all_to_all = isinstance(entry, Library) and entry.op.is_collective
    return int(is_all_to_all or isinstance(entry, Collective | Transfer | Exchange))


def _moving(statements: Iterable[Statement]) -> int:
    return sum(isinstance(s, Combine | StoreAll | StoreTo) for s in statements)


def _held(plan: Plan, group: int) -> int:
    return sum(b.bytes for b in plan.buffers.values() if b.group in (group, -1))
