"""From a program to its Plan: buffers, launches, collectives and their order, known to the byte before a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from coconet_lab.errors import CodegenError
from coconet_lab.ir import ops as o
from coconet_lab.ir.groups import group_view
from coconet_lab.ir.program import Program
from coconet_lab.ir.types import TensorType
from coconet_lab.ir.updates import updated_inputs
from coconet_lab.kernels.hosts import Hosts
from coconet_lab.kernels.kernel import Combine, StoreAll, StoreTo
from coconet_lab.kernels.lower_entries import Lowering, scalars_entry
from coconet_lab.kernels.lower_hosts import HostLowering
from coconet_lab.kernels.lower_inside import values_inside
from coconet_lab.kernels.lower_memory import Memory, source_of
from coconet_lab.kernels.lower_order import Unit, forwarded, units_in_order, with_dependencies
from coconet_lab.kernels.lower_overlap import Channels, lower_overlap
from coconet_lab.kernels.lower_region import UnfitError
from coconet_lab.kernels.lower_scatter import scattered_buffers, with_scattered
from coconet_lab.kernels.plan import AnyEntry, Buffer, Launch, Plan, Slot

Tagged = tuple[AnyEntry, str]


def lower(program: Program, *, chunks: int = 4, hosts: int = 1) -> Plan:
    """The Plan of a program: what every rank does, in issue order.

    Parameters
    ----------
    program : Program
        With its fused groups and overlaps; a Schedule's is ``schedule.program``.
    chunks : int
        Parts that the stages of an overlap are cut into (fewer where a dim has not that many elements).
    hosts : int
        Hosts that the ranks lie on, equally many consecutive ones on each: kernels reach peers on one host alone.

    Raises
    ------
    ProgramError
        No order runs all of it; or the ranks do not lie evenly on the hosts.
    CodegenError
        An operation that is no kernel: one that draws its dropout seed from a tensor.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> g = cl.tensor("g", cl.FP32, (1024,), cl.Local)
    >>> plan = lower(cl.program("sum", outputs=[cl.all_reduce(g, name="total") * 2], ranks=4))
    >>> [type(entry).__name__ for entry in plan.entries]
    ['Collective', 'Launch']
    """
    memory = Memory.of(program)
    placement = Hosts(program.ranks, program.groups, hosts)
    lowering = Lowering(program, memory) if hosts == 1 else HostLowering(program, memory, placement)
    memory.inside.update(values_inside(program, memory.host))
    order = units_in_order(program, memory.host, memory.inside)
    memory.forwarded.update(forwarded(program, memory, order))
    channels = Channels()
    entries: list[Tagged] = [(entry, "") for entry in scalars_entry(program, memory)]
    entries += [(lowering.stored_scalar(name), "") for name in _stored_scalars(program, memory)]
    overlaps = {overlap.name: overlap for overlap in program.overlaps}
    for unit in order:
        overlap = overlaps.get(unit.name)
        try:
            if overlap is None:
                entries += [(entry, "") for entry in lower_unit(lowering, unit)]
            else:
                stages = [Unit(name, _members(program, memory, name)) for name in overlap.stages]
                entries += [(e, overlap.name) for e in lower_overlap(lowering, stages, chunks, channels, lower_unit)]
        except UnfitError as reason:
            raise _no_kernel(program, unit, reason) from None
    for name in program.outputs:
        memory.home(name)
    return _plan(program, memory, with_dependencies(entries), channels.count, hosts)


def lower_unit(lowering: Lowering, unit: Unit, own_kernel: bool = False) -> list[AnyEntry]:
    """The entries of an operation or a fused group; a group that is no single kernel runs operation by operation."""
    program, memory = lowering.program, lowering.memory
    if unit.name in program.fusion_named:
        view = group_view(program, unit.name)
        written = tuple(name for name in view.written if name not in memory.host)
        before = dict(memory.slots), dict(memory.buffers)
        try:
            return lowering.launch(unit.name, unit.members, written)
        except UnfitError:
            memory.slots, memory.buffers = before
            # Readers of a tensor before its update, which program order need not keep.
            one_by_one = sorted(unit.members, key=program.order.position.__getitem__)
            return [entry for name in one_by_one for entry in lowering.entries_of(name)]
    return [e for name in unit.members for e in lowering.entries_of(name, own_kernel=own_kernel)]


def _no_kernel(program: Program, unit: Unit, reason: UnfitError) -> CodegenError:
    return CodegenError(
        f"{unit.name!r} has no kernel: {reason}",
        rule="every elementwise operation, reduction and collective is one kernel over one index space",
        where=f"program {program.name!r}",
        hint="cl.operator(…, call=…) runs it as a library call",
    )


def _members(program: Program, memory: Memory, stage: str) -> tuple[str, ...]:
    fusion = program.fusion_named.get(stage)
    names = fusion.members if fusion else (stage,)
    return tuple(sorted((n for n in names if n not in memory.host), key=program.position.__getitem__))


def _stored_scalars(program: Program, memory: Memory) -> list[str]:
    """Host scalars that must be in memory: outputs, and operands of library calls."""
    library = (op for op in program.ops.values() if isinstance(op, o.Custom) and not op.is_elementwise)
    wanted = {*program.outputs, *(source for op in library for source in op.sources)}
    return [name for name in program.ops if name in wanted and name in memory.host]


# -- the Plan --------------------------------------------------------------------------------------------------------


def _plan(program: Program, memory: Memory, entries: tuple[AnyEntry, ...], channels: int, hosts: int) -> Plan:
    inputs = {name: memory.slots[name] for name in program.inputs if name not in memory.host}
    outputs = {name: memory.home(name) for name in program.outputs}
    state = {tensor: memory.home(last) for tensor, last in updated_inputs(program).items()}
    scalars = {name: program.types[name] for name in program.ops if name in memory.host}
    scattered = scattered_buffers(memory.buffers, entries)
    entries = with_scattered(entries, scattered)
    buffers = {name: replace(buffer, scattered=name in scattered) for name, buffer in memory.buffers.items()}
    return Plan(
        name=program.name,
        ranks=program.ranks,
        groups=program.groups,
        entries=entries,
        buffers=_lives(buffers, entries, [*outputs.values(), *state.values()]),
        slots=_found_after(program, memory),
        inputs=inputs,
        outputs=outputs,
        state=state,
        scalar_inputs=_scalar_inputs(program, scalars),
        scalar_types=scalars,
        channels=channels,
        hosts=hosts,
    )


def _found_after(program: Program, memory: Memory) -> dict[str, Slot]:
    """The slots of stored values, but for older versions of a tensor, which are overwritten by then."""
    newest: set[str] = set()
    for last in updated_inputs(program).values():
        newest |= {last, source_of(program.ops[last])} if isinstance(program.ops[last], o.AllGather) else {last}
    states = {memory.slots[tensor].buffer for tensor in updated_inputs(program)}
    found: dict[str, Slot] = {}
    for name, op in program.ops.items():
        version = memory.forwarded.get(name, source_of(op) if isinstance(op, o.LocalSlice) else name)
        slot = memory.slots.get(name)
        if slot is not None and (slot.buffer not in states or version in newest):
            found[name] = slot
    return found


def _scalar_inputs(program: Program, scalars: Mapping[str, TensorType]) -> dict[str, float | int | None]:
    found: dict[str, float | int | None] = {}
    for name in scalars:
        op = program.ops[name]
        if isinstance(op, o.Input):
            found[name] = 0 if op.default is None and op.implicit else op.default
    return found


def _lives(buffers: Mapping[str, Buffer], entries: tuple[AnyEntry, ...], results: Iterable[Slot]) -> dict[str, Buffer]:
    """Buffers with their first and last entry and whether other ranks reach them; those nothing touches are dropped."""
    last = max(len(entries) - 1, 0)
    kept = {slot.buffer for slot in results}
    touched: dict[str, list[int]] = {}
    for at, entry in enumerate(entries):
        for name in (*entry.reads, *entry.writes):
            touched.setdefault(name, []).append(at)
    symmetric = {name for entry in entries if isinstance(entry, Launch) for name in _reached(entry)}
    found: dict[str, Buffer] = {}
    for name, buffer in buffers.items():
        given = buffer.role in ("input", "state")
        if name in touched or given or name in kept:
            uses = touched.get(name, [0])
            first = 0 if given else uses[0]
            end = last if name in kept or buffer.role == "state" else uses[-1]
            found[name] = replace(buffer, first=first, last=end, symmetric=name in symmetric)
    return found


def _reached(entry: Launch) -> set[str]:
    reaching = (s for s in entry.kernel.statements() if isinstance(s, Combine | StoreAll | StoreTo))
    return {entry.tensors[s.tensor].buffer for s in reaching}
