"""Plans and kernels as text: one aligned line an entry, a buffer, a statement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coconet_lab.kernels import kernel as k
from coconet_lab.kernels.plan import (
    AnyEntry,
    Arrive,
    Collective,
    Exchange,
    HostScalars,
    Launch,
    Library,
    Plan,
    Slot,
    Sync,
    Transfer,
)


def plan_text(plan: Plan) -> str:
    """A Plan, an entry a line: what, on which groups and stream, after what, from where to where, with which meetings.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> from coconet_lab.kernels.lower import lower
    >>> g = cl.tensor("g", cl.FP32, (1024,), cl.Local)
    >>> print(plan_text(lower(cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=4))))
    sum: 1 entry, 2 buffers, 4 ranks
      0  AllReduce  total  group 0  b0 -> b1  8192 B  6144 B sent
      b0  g      FP32[1024] Local       input   4096 B  whole  0..0
      b1  total  FP32[1024] Replicated  output  4096 B  whole  0..0
    """
    groups = f" in {plan.groups} groups" if plan.groups > 1 else ""
    hosts = f" on {plan.hosts} hosts" if plan.hosts > 1 else ""
    entries, buffers = _counted(len(plan.entries), "entry", "entries"), _counted(len(plan.buffers), "buffer", "buffers")
    lines = [f"{plan.name}: {entries}, {buffers}, {plan.ranks} ranks{groups}{hosts}"]
    lines += _aligned([_entry(at, entry) for at, entry in enumerate(plan.entries)])
    rows = []
    for buffer in plan.buffers.values():
        facts = (("scattered", buffer.scattered), ("symmetric", buffer.symmetric))
        place = ", ".join([buffer.placement, *(word for word, there in facts if there)])
        life = f"{buffer.first}..{buffer.last}"
        rows.append([buffer.name, buffer.value, str(buffer.type), buffer.role, f"{buffer.bytes} B", place, life])
    return "\n".join([*lines, *_aligned(rows)])


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _entry(at: int, entry: AnyEntry) -> list[str]:
    chunk = f" {entry.chunk.dim}[{entry.chunk.start}:{entry.chunk.stop}]" if entry.chunk else ""
    groups = f"group {', '.join(map(str, entry.groups))}" + (f" stream {entry.stream}" if entry.stream else "")
    moved = f"{entry.bytes_read + entry.bytes_written} B" if entry.bytes_read + entry.bytes_written else ""
    after = f"after {', '.join(map(str, entry.after))}" if entry.after else ""
    meets = [_sync("opens", s) for s in entry.opens] + [_sync("closes", s) for s in entry.closes]
    name = entry.name + chunk + _shift(entry) + _inside(entry)
    return [
        str(at), _kind(entry), name, groups, _route(entry), moved, _sent(entry),
        "; ".join([after, *meets] if after else meets),
    ]  # fmt: skip


def _shift(entry: AnyEntry) -> str:
    return f" +{entry.shift} host{'s' if entry.shift > 1 else ''}" if isinstance(entry, Launch) and entry.shift else ""


def _inside(entry: AnyEntry) -> str:
    return f" with {', '.join(entry.inside)}" if isinstance(entry, Launch) and entry.inside else ""


def _sent(entry: AnyEntry) -> str:
    sent, between = sum(entry.link_bytes.values()), entry.link_bytes.get("between hosts", 0)
    if not between:
        return f"{sent} B sent" if sent else ""
    return f"{sent} B sent between hosts" if between == sent else f"{sent} B sent, {between} B between hosts"


def _kind(entry: AnyEntry) -> str:
    if isinstance(entry, Exchange):
        return f"{entry.kind} between hosts"
    if isinstance(entry, Collective):
        return entry.kind
    return entry.op.kind if isinstance(entry, Library) else type(entry).__name__


def _route(entry: AnyEntry) -> str:
    match entry:
        case Launch():
            scalars = f" ({', '.join(entry.scalars)})" if entry.scalars else ""
            return f"{', '.join(entry.reads)}{scalars} -> {', '.join(entry.writes)}"
        case Collective() | Transfer():
            return f"{_slot(entry.source)} -> {_slot(entry.target)}"
        case Library():
            return f"{', '.join(_slot(slot) for slot in entry.operands)} -> {_slot(entry.target)}"
        case Exchange():
            return f"{', '.join(map(_slot, entry.sources))} -> {', '.join(map(_slot, entry.targets))}"
        case Arrive():
            return f"-> {_slot(entry.target)}"
        case HostScalars():
            return ", ".join(entry.ops)


def _slot(slot: Slot) -> str:
    return slot.buffer


def _sync(when: str, sync: Sync) -> str:
    channel = "" if sync.channel < 0 else f" {sync.channel}"
    whom = {"group": "", "host": " of the host", "pair": f" with group {sync.partner}"}[sync.scope]
    return f"{when} {sync.kind}{channel}{whom}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns; columns that are empty everywhere vanish."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    shown = [column for column, width in enumerate(widths) if width]
    first = [row[0].rjust(widths[0]) if row[0].isdigit() else row[0] for row in rows]
    cells = [[start, *row[1:]] for start, row in zip(first, rows)]
    return ["  " + "  ".join(row[column].ljust(widths[column]) for column in shown).rstrip() for row in cells]


# -- kernels ---------------------------------------------------------------------------------------------------------


def kernel_text(kernel: k.Kernel) -> str:
    """A kernel: its index space, its arguments, then its statements phase by phase."""
    space = kernel.space
    shape = f"{len(space.pieces)} tensors" if space.pieces else str(list(space.shape))
    spread = f"{space.parts} ranks" + (f", {space.ranks} a host" if space.blocks else "")
    cut = "" if space.dim is None else f", blocks of dim {space.dim} on {spread}"
    chunks = "" if space.chunk_dim is None else f", chunks of dim {space.chunk_dim}"
    barriers = [word for word, there in (("opens", kernel.opens), ("closes", kernel.closes)) if there]
    ends = f", barriers: {', '.join(barriers)}" if barriers else ""
    lines = [f"kernel {kernel.name} over {shape}{cut}{chunks}{ends}"]
    for at, tensor in enumerate(kernel.tensors):
        facts = (("one a tensor", tensor.per_piece), ("scattered", tensor.scattered), ("peers", tensor.peers))
        flags = [word for word, there in (*facts, ("written", tensor.written)) if there]
        words = [str(tensor.dtype), str(list(tensor.shape)), tensor.placement, *flags]
        lines.append(f"  t{at} = {tensor.value}: {' '.join(words)}")
    lines += [f"  s{at} = {scalar.value}: {scalar.dtype}" for at, scalar in enumerate(kernel.scalars)]
    for at, found in enumerate(kernel.accumulators):
        over = "each tensor" if found.per_piece else "all" if found.dims is None else f"dims {list(found.dims)}"
        lines.append(f"  a{at} = {found.fn} over {over}: {found.dtype}{', across ranks' if found.crosses else ''}")
    for number, phase in enumerate(kernel.phases):
        lines += _statements(kernel, f"phase {number}, once:", phase.uniform)
        lines += _statements(kernel, f"phase {number}:", phase.body)
    return "\n".join(lines)


def _statements(kernel: k.Kernel, title: str, statements: Iterable[k.Statement]) -> list[str]:
    lines = [f"    {_statement(kernel, statement)}" for statement in statements]
    return [f"  {title}", *lines] if lines else []


def _statement(kernel: k.Kernel, statement: k.Statement) -> str:
    match statement:
        case k.Load(out, tensor):
            right = f"t{tensor}"
        case k.Combine(out, tensor, reduction):
            right = f"{reduction} over ranks of t{tensor}"
        case k.Number(out, value):
            right = repr(value)
        case k.Argument(out, scalar):
            right = f"s{scalar}"
        case k.Apply(out, fn, args):
            right = f"{fn}({', '.join(f'r{a}' for a in args)})"
        case k.Convert(out, arg):
            right = f"{kernel.dtypes[out]}(r{arg})"
        case k.Drop(out, arg, seed, stream, p):
            right = f"Drop(r{arg}, p={p}, seed=s{seed}, stream={stream:#x})"
        case k.Call(out, expression, args):
            right = f"{expression!r} of {', '.join(f'r{a}' for a in args)}"
        case k.Result(out, accumulator):
            right = f"a{accumulator}"
        case k.Store(tensor, arg):
            return f"t{tensor} = r{arg}"
        case k.StoreAll(tensor, arg):
            return f"t{tensor} of every rank = r{arg}"
        case k.StoreTo(tensor, arg):
            return f"t{tensor} of the partner = r{arg}"
        case k.Accumulate(accumulator, arg):
            return f"a{accumulator} += r{arg}"
    name = kernel.origin[out] if kernel.origin else ""
    return f"r{out} = {right}" + (f"  # {name}" if name else "")
