"""Which rank holds which block: a bar, a rectangle or a cuboid a rank, and what a collective makes of it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coconet_lab.errors import ProgramError
from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Program
from coconet_lab.ir.types import TensorType
from coconet_lab.site import caller_site
from coconet_lab.viz.paint import prefixed, svg_text, with_head
from coconet_lab.viz.palette import LIGHT
from coconet_lab.viz.scene import bytes_text, short, type_line, visible
from coconet_lab.viz.svg import Text, text_width

MOST_RANKS = 8
LABEL_WIDTH, CELL_WIDTH, NARROW_WIDTH = 176.0, 152.0, 118.0
DEPTH_X, DEPTH_Y = 27.0, 14.0
THINNEST = 2.0
MOST_BORDERS = 64

Point = tuple[float, float]
Fraction = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Row:
    """One value as every rank of its group holds it. `root`: the one rank whose part counts, where only one does."""

    name: str
    type: TensorType
    ranks: int
    root: int | None = None


def layout_svg(item: Any, ranks: int | None = None, *, name: str = "") -> str:
    """SVG of which rank holds which block of a value.

    Parameters
    ----------
    item : TensorType, Value or a program's value
    ranks : int or None
        Ranks of the value's group; a program's value knows it.
    name : str
        Printed beside; a value brings its own.

    Raises
    ------
    ProgramError
        `ranks` is missing, or a sliced dim does not divide among so many.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> svg = layout_svg(cl.tensor("x", cl.FP16, (8, 1024, 3072), cl.Sliced(2)), ranks=4)
    >>> "[:, :, 768:1536]" in svg
    True
    """
    kind = item if isinstance(item, TensorType) else getattr(item, "type", None)
    count = ranks if ranks is not None else getattr(item, "ranks", None)
    if not isinstance(kind, TensorType) or count is None or count < 1:
        raise ProgramError(
            f"cannot picture the layout of a {type(item).__name__} over {count} ranks",
            rule="a layout is pictured for a type or a value, over the ranks of its group",
            where=str(caller_site() or ""),
            hint="layout_svg(x, ranks=4), or layout_svg(program['x'])",
        )
    row = Row(name or getattr(item, "name", "") or "", kind, count)
    return _page([row], [], f"layout of {row.name or kind}")


def collective_svg(program: Program, name: str) -> str:
    """SVG of a collective: what every rank holds before, what it sends, what every rank holds after.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> g = cl.tensor("g", cl.FP32, (1 << 20,), cl.Local)
    >>> p = cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=4)
    >>> "each rank sends 6 MiB" in collective_svg(p, "total")
    True
    """
    name = program.resolve(name)
    op = program.ops[name]
    if not op.is_collective and not isinstance(op, o.LocalSlice):
        raise ProgramError(
            f"{name!r} is {op.kind}, which moves nothing between layouts",
            rule="collectives, sends and local slices have a before and an after",
            where=f"program {program.name!r}",
            hint=f"layout_svg(program[{name!r}])",
        )
    source = next(op.sources)
    before, after = program.types[source], program.types[name]
    ranks = program.group_ranks
    rows = [
        Row(source, before, ranks, op.root if isinstance(op, o.Broadcast) else None),
        Row(name, after, ranks, op.root if isinstance(op, o.Reduce) else None),
    ]
    return _page(rows, [f"▼ {op.kind}: {sent_text(op, before, after, ranks)}"], f"{name}: {op.kind}")


def sent_text(op: o.Op, before: TensorType, after: TensorType, ranks: int) -> str:
    """What a rank puts on the wire for a collective, the least any algorithm needs.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> before = TensorType(cl.FP16, (8, 1024, 3072), cl.Local)
    >>> sent_text(o.ReduceScatter(name="rs", dim=2), before, before.with_layout(cl.Sliced(2)), 4)
    'each rank sends 36 MiB'
    """
    whole = after.elements * after.dtype.itemsize
    part = whole * (ranks - 1) // ranks
    match op:
        case _ if ranks == 1 and not isinstance(op, o.Send):
            return "one rank, nothing is sent"
        case o.LocalSlice():
            return "each rank keeps its block, nothing is sent"
        case o.AllReduce():
            return f"each rank sends {bytes_text(2 * part)}"
        case o.Reduce():
            return f"every rank but {op.root} sends {bytes_text(whole)}"
        case o.Broadcast():
            return f"rank {op.root}'s {bytes_text(whole)} go to every rank"
        case o.AllToAll():
            return f"each rank sends {bytes_text(before.stored_bytes(ranks) * (ranks - 1) // ranks)}"
        case o.Send():
            return f"rank k sends {bytes_text(before.stored_bytes(ranks))} to rank k of group {after.group}"
        case _:
            return f"each rank sends {bytes_text(part)}"


def index_text(kind: TensorType, rank: int, ranks: int) -> str:
    """The block of a rank as an index: ``[:, :, 768:1536]``, or ``empty``."""
    ranges = kind.ranges(rank, ranks)
    if any(start >= stop for start, stop in ranges) and 0 not in kind.shape:
        return "empty"
    return (
        "["
        + ", ".join(
            ":" if (start, stop) == (0, n) else f"{start}:{stop}" for (start, stop), n in zip(ranges, kind.shape)
        )
        + "]"
    )


def shown_ranks(ranks: int) -> list[int | None]:
    """The ranks that are drawn; None stands for those left out."""
    return list(range(ranks)) if ranks <= MOST_RANKS else [0, 1, 2, None, ranks - 1]


# -- the page --------------------------------------------------------------------------------------------------------


def _page(rows: Sequence[Row], between: Sequence[str], title: str) -> str:
    columns = max(len(shown_ranks(row.ranks)) for row in rows)
    cell_width = CELL_WIDTH if columns <= 5 else NARROW_WIDTH
    width = LABEL_WIDTH + columns * cell_width
    lines: list[str] = []
    top = 2.0
    for at, row in enumerate(rows):
        is_first = at == 0 or _first_rank(row) != _first_rank(rows[at - 1])
        made, height = _row(row, top, cell_width, with_ranks=is_first)
        lines += made
        top += height
        if at < len(between):
            lines += _divider(between[at], top, width)
            top += 22
    head = (
        f'<svg width="{width:.0f}" height="{top:.0f}" viewBox="0 0 {width:.0f} {top:.0f}" '
        'xmlns="http://www.w3.org/2000/svg">'
    )
    ground = f'<rect width="100%" height="100%" fill="{LIGHT.background}"/>'
    return prefixed(with_head("\n".join([head, ground, *lines, "</svg>"]), title))


def _divider(text: str, top: float, width: float) -> list[str]:
    y, left = top + 10, LABEL_WIDTH - 10
    right = left + text_width(text, 11) + 20
    dash = f'stroke="{LIGHT.edge}" stroke-width="0.8" stroke-dasharray="3 3"'
    return [
        f'<path d="M10,{y:.1f} H{left:.1f} M{right:.1f},{y:.1f} H{width - 10:.1f}" fill="none" {dash}/>',
        svg_text(Text(left + 8, y + 4, text, 11, LIGHT.muted)),
    ]


def _first_rank(row: Row) -> int:
    return (row.type.group or 0) * row.ranks


def _row(row: Row, top: float, cell_width: float, *, with_ranks: bool) -> tuple[list[str], float]:
    """A value's row: what it is, then a picture a rank; and how high it is."""
    size = _size(row.type)
    above = 20.0 if with_ranks else 4.0
    tall = size[1] + (DEPTH_Y if len(row.type.shape) > 2 else 0.0)
    height = max(above + tall + 24, 62.0)
    middle = top + above + tall / 2
    lines = _label(row, middle)
    for column, rank in enumerate(shown_ranks(row.ranks)):
        centre = LABEL_WIDTH + (column + 0.5) * cell_width
        if rank is None:
            lines.append(svg_text(Text(centre, middle, f"… {row.ranks - 4} more", 11, LIGHT.muted, anchor="middle")))
            continue
        if with_ranks:
            text = f"rank {_first_rank(row) + rank}"
            lines.append(svg_text(Text(centre, top + 10, text, 11, LIGHT.muted, anchor="middle")))
        lines += _cell(row, rank, (centre - size[0] / 2, top + above), size)
        lines.append(
            svg_text(Text(centre, top + above + tall + 15, _under(row, rank), 11, LIGHT.muted, False, "middle", True))
        )
    return [line for line in lines if line], height


def _label(row: Row, middle: float) -> list[str]:
    """What a row is, beside it: name and layout, type, memory; the name as long as there is room."""
    notes = [*type_line(row.type).split(", ")] if row.type.is_list else [type_line(row.type)]
    notes.append(f"{bytes_text(row.type.stored_bytes(row.ranks))} a rank")
    layout = str(row.type.layout)
    name = _fitting(visible(row.name), 12, LABEL_WIDTH - 24 - text_width(layout, 11))
    top = middle + 6 - 7 * len(notes)
    lines = [svg_text(Text(10, top, name, 12, LIGHT.text, True))] if name else []
    lines.append(svg_text(Text(10 + (text_width(name, 12, True) + 6 if name else 0.0), top, layout, 11, LIGHT.text)))
    for number, note in enumerate(notes, 1):
        lines.append(svg_text(Text(10, top + 14 * number, _fitting(note, 11, LABEL_WIDTH - 16), 11, LIGHT.muted)))
    return lines


def _fitting(text: str, size: float, room: float) -> str:
    """A text, its middle left out as far as its place asks for it."""
    cuts = (short(text, longest) for longest in range(min(len(text), 40), 1, -1))
    return next((cut for cut in cuts if text_width(cut, size, size > 11) <= room), text[:1])


def _size(kind: TensorType) -> tuple[float, float]:
    """Width and height of a rank's picture, its front face for a cuboid."""
    if kind.is_scalar:
        return 26.0, 26.0
    if len(kind.shape) == 1:
        return 126.0, 24.0
    if len(kind.shape) > 2:
        return 92.0, 46.0
    rows, columns = kind.shape
    return (104.0, 52.0) if columns > 1.25 * rows else (42.0, 60.0) if rows > 1.25 * columns else (58.0, 58.0)


def _under(row: Row, rank: int) -> str:
    if row.type.layout.is_sliced:
        return index_text(row.type, rank, row.ranks)
    if row.root is not None and rank != row.root:
        return "not read"
    return "its own values" if row.type.layout.is_local else "same values"


def _inside(row: Row, rank: int) -> str:
    if row.type.layout.is_sliced or (row.root is not None and rank != row.root):
        return ""
    if row.root is not None or row.type.layout.is_replicated:
        return "" if row.type.is_scalar else "whole"
    return f"Σ {rank}" if row.type.is_scalar else f"Σ part {rank}"


def _cell(row: Row, rank: int, corner: Point, size: tuple[float, float]) -> list[str]:
    """One rank's picture: the frame of the whole value, the block it holds filled inside."""
    kind = row.type
    held = kind.ranges(rank, row.ranks)
    parts = [(start / n, stop / n) if n else (0.0, 0.0) for (start, stop), n in zip(held, kind.shape)]
    is_empty = any(start >= stop for start, stop in parts) or (row.root is not None and rank != row.root)
    across = parts[-1] if parts else (0.0, 1.0)
    down = parts[-2] if len(parts) > 1 else (0.0, 1.0)
    leading = parts[:-2]
    deep = next((part for part in leading if part != (0.0, 1.0)), (0.0, 1.0)) if leading else None
    paint = LIGHT.paint(kind.layout)
    full = (0.0, 1.0)
    tip = html.escape(f"rank {_first_rank(row) + rank}: {index_text(kind, rank, row.ranks)}")
    lines = [f"<g><title>{tip}</title>"]
    if kind.layout.is_sliced or is_empty:
        lines += _solid(corner, size, full, full, full if leading else None, "none", LIGHT.edge, dashed=True)
    if not is_empty:
        lines += _solid(corner, size, across, down, deep, paint.fill, paint.ink)
    if kind.is_list and len(kind.pieces) <= MOST_BORDERS and kind.elements:
        at = [corner[0] + size[0] * start / kind.elements for start in kind.piece_starts()[1:-1]]
        path = " ".join(f"M{x:.1f},{corner[1]:.1f} v{size[1]:.1f}" for x in at)
        lines += [f'<path d="{path}" stroke="{LIGHT.muted}" stroke-width="0.7" fill="none"/>'] if path else []
    text = _inside(row, rank)
    # On the front face, which lies to the left of the middle and below the top.
    x = corner[0] + size[0] / 2 - (DEPTH_X / 2 if leading else 0.0)
    y = corner[1] + (DEPTH_Y if leading else 0.0) + size[1] / 2 + 4
    lines += [svg_text(Text(x, y, text, 11, LIGHT.text, True, "middle"))] if text else []
    return [*lines, "</g>"]


def _solid(
    corner: Point, size: tuple[float, float], across: Fraction, down: Fraction, deep: Fraction | None, fill: str,
    ink: str, *, dashed: bool = False,
) -> list[str]:  # fmt: skip
    """A block between fractions of the whole: a rectangle, or with a depth a cuboid seen from the upper right."""
    left, right = _stretched(across, size[0])
    upper, lower = _stretched(down, size[1])
    line = f'stroke="{ink}" stroke-width="0.9"' + (' stroke-dasharray="2 2"' if dashed else "")
    if deep is None:
        place = f'x="{corner[0] + left:.1f}" y="{corner[1] + upper:.1f}" width="{right - left:.1f}"'
        return [f'<rect {place} height="{lower - upper:.1f}" fill="{fill}" {line}/>']

    def at(x: float, y: float, depth: float) -> Point:
        # The cuboid as a whole is centred: half of the depth is to the left of the middle.
        return corner[0] + x + (depth - 0.5) * DEPTH_X, corner[1] + DEPTH_Y + y - depth * DEPTH_Y

    near, far = deep
    front = [at(left, upper, near), at(right, upper, near), at(right, lower, near), at(left, lower, near)]
    roof = [at(left, upper, near), at(left, upper, far), at(right, upper, far), at(right, upper, near)]
    side = [at(right, upper, near), at(right, upper, far), at(right, lower, far), at(right, lower, near)]
    made = []
    for face, shade in ((front, 0.0), (roof, 0.07), (side, 0.14)):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in face)
        made.append(f'<polygon points="{points}" fill="{fill}" {line}/>')
        if shade and fill != "none":
            made.append(f'<polygon points="{points}" fill="black" fill-opacity="{shade}"/>')
    return made


def _stretched(part: Fraction, extent: float) -> Fraction:
    """A part of an extent, never thinner than can be seen."""
    start, stop = part[0] * extent, part[1] * extent
    if stop - start < THINNEST:
        start = min(start, extent - THINNEST)
        stop = start + THINNEST
    return start, stop
