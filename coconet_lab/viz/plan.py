"""A Plan as a graph: what a rank does, in issue order, by stream, with the bytes it moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coconet_lab.ir.layout import Layout
from coconet_lab.viz.dot import scene_dot
from coconet_lab.viz.scene import Box, Outline, Scene, bytes_text, short, visible

if TYPE_CHECKING:
    from coconet_lab.kernels.plan import AnyEntry, Plan


def plan_dot(plan: Plan) -> str:
    """DOT text of a Plan: a box an entry, numbered in issue order, inside its stream; edges are what it waits for.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> g = cl.tensor("g", cl.FP32, (8,), cl.Local)
    >>> program = cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=4)
    >>> "stream 0" in plan_dot(cl.Schedule(program).plan())
    True
    """
    return scene_dot(plan_scene(plan))


def plan_scene(plan: Plan) -> Scene:
    """The picture of a Plan."""
    root = Outline("graph", "root", "")
    edges: dict[tuple[str, str], None] = {}
    last_on: dict[tuple[tuple[int, ...], int], int] = {}
    for at, entry in enumerate(plan.entries):
        outline = root
        if plan.groups > 1:
            which = " and ".join(map(str, entry.groups))
            outline = root.inner.setdefault(
                entry.groups, Outline(f"groups{len(root.inner)}", "group", f"group {which}")
            )
        stream = f"{outline.id}_stream{entry.stream}"
        outline = outline.inner.setdefault(entry.stream, Outline(stream, "scope", f"stream {entry.stream}"))
        outline.boxes.append(_box(plan, at, entry))
        before = last_on.get((entry.groups, entry.stream))
        # A stream runs its entries one after another; that needs no edge of its own where one is there.
        waits = {*entry.after, *([before] if before is not None else [])}
        edges.update({(f"entry{other}", f"entry{at}"): None for other in sorted(waits)})
        last_on[entry.groups, entry.stream] = at
    ids = {str(at): f"entry{at}" for at in range(len(plan.entries))}
    title = f"plan of {plan.name} · {plan.ranks} ranks"
    return Scene(title, root, tuple(edges), ids)


def _box(plan: Plan, at: int, entry: AnyEntry) -> Box:
    kind = type(entry).__name__
    library_op = getattr(entry, "op", None)
    chunk = f" chunk {entry.chunk.index + 1} of {entry.chunk.count}" if entry.chunk is not None else ""
    sent = sum(entry.link_bytes.values())
    between = entry.link_bytes.get("between hosts", 0)
    moved = [("reads", entry.bytes_read), ("writes", entry.bytes_written), ("sends", sent - between)]
    moved += [("sends between hosts", between)]
    names = getattr(entry, "inside", ())
    inside = f" with {', '.join(map(visible, names))}" if names else ""
    lines = [f"{kind} {at}: {visible(entry.name)}{chunk}", f"computes {', '.join(map(visible, entry.ops))}"]
    lines += [f"reads {', '.join(entry.reads)}; writes {', '.join(entry.writes)}"]
    return Box(
        f"entry{at}",
        (str(at),),
        f"{at} {short(visible(entry.name))}",
        f"{library_op.kind if library_op is not None else kind}{chunk}{short(inside)}",
        _layout(plan, entry),
        ", ".join(f"{verb} {bytes_text(count)}" for verb, count in moved if count),
        "\n".join(lines),
        is_collective=sent > 0 or kind in ("Collective", "Transfer", "Exchange"),
        classes="entry",
    )


def _layout(plan: Plan, entry: AnyEntry) -> Layout | None:
    """Layout of the last value that is stored, else of the buffer that is written."""
    stored = [plan.slots[name].type.layout for name in entry.ops if name in plan.slots]
    written = [plan.buffers[name].type.layout for name in entry.writes if name in plan.buffers]
    return next(iter([*reversed(stored), *written]), None)
