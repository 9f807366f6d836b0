"""A layout of our own for machines without Graphviz (`viz.paint` turns it into SVG, PNG and PDF).

Layers by longest path, then a few sweeps that put every box near what it reads. An outline is laid out by itself first
and is then one box of the picture around it, so that nothing foreign ever lies inside it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from coconet_lab.viz.palette import LIGHT
from coconet_lab.viz.scene import Box, Outline, Scene, legend_entries, short, visible

ROW_GAP, COLUMN_GAP, PADDING, NOTE_HEIGHT = 22.0, 16.0, 12.0, 13.0
LONGEST_NOTE = 90
SWEEPS = 4
# Advance widths of DejaVu Sans, hundredths of an em, from the space to the tilde; its bold is wider by an eighth.
_ASCII = (
    32, 40, 46, 84, 64, 95, 78, 27, 39, 39, 50, 84, 32, 36, 32, 34, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 34, 34, 84,
    84, 84, 53, 100, 68, 69, 70, 77, 63, 58, 77, 75, 29, 29, 66, 56, 86, 75, 79, 60, 79, 69, 63, 61, 73, 68, 99, 69, 61,
    69, 39, 34, 39, 84, 50, 50, 61, 63, 55, 63, 62, 35, 63, 63, 28, 28, 58, 28, 97, 63, 61, 63, 63, 41, 52, 39, 63, 59,
    82, 59, 59, 52, 64, 34, 64, 84,
)  # fmt: skip
_BOLD = 1.13


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text: where its baseline starts (or has its middle or end), how large, in which colour."""

    x: float
    y: float
    text: str
    size: float
    colour: str
    bold: bool = False
    anchor: str = "start"  # start | middle | end, as SVG says it
    mono: bool = False


@dataclass(slots=True)
class Placed:
    """A box or outline with its place: left, top, width, height."""

    item: Box | Outline
    width: float
    height: float
    x: float = 0.0
    y: float = 0.0
    inner: list[Placed] = field(default_factory=list)

    def shift(self, dx: float, dy: float) -> None:
        """Move it and all inside."""
        self.x, self.y = self.x + dx, self.y + dy
        for part in self.inner:
            part.shift(dx, dy)


@dataclass(frozen=True, slots=True)
class Picture:
    """A scene with places: outlines and boxes from outside in, edges as corners, the legend's texts."""

    title: str
    width: float
    height: float
    placed: tuple[Placed, ...]
    edges: tuple[tuple[tuple[float, float], ...], ...]
    legend: tuple[tuple[Text, str, str], ...]  # text, fill, border


def text_width(text: str, size: float, bold: bool = False) -> float:
    """How wide DejaVu Sans sets `text`, near enough to leave room for it."""
    hundredths = sum(_ASCII[ord(c) - 32] if " " <= c <= "~" else 100 if _is_wide(c) else 80 for c in text)
    return hundredths / 100 * size * (_BOLD if bold else 1.0)


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF" or character == "…"


def picture(scene: Scene) -> Picture:
    """Places for everything in a scene."""
    root = _lay_out(scene.root, scene.edges)
    legend, legend_width = _legend(scene, root.height + 2 * PADDING) if scene.legend else ((), 0.0)
    root.shift(PADDING, PADDING)
    everything = tuple(_flat(root.inner))
    places = {part.item.id: part for part in everything if isinstance(part.item, Box)}
    edges = tuple(_route(places[tail], places[head], list(places.values())) for tail, head in scene.edges)
    height = root.height + 2 * PADDING + (22 + NOTE_HEIGHT * len(scene.notes) if legend else 0)
    return Picture(scene.title, max(root.width + 2 * PADDING, legend_width), height, everything, edges, legend)


def _flat(parts: Iterable[Placed]) -> Iterable[Placed]:
    for part in parts:
        yield part
        yield from _flat(part.inner)


# -- placing ---------------------------------------------------------------------------------------------------------


def _lay_out(outline: Outline, edges: Sequence[tuple[str, str]]) -> Placed:
    """An outline with everything inside placed, its own corner at 0, 0."""
    parts = [_sized(box) for box in outline.boxes]
    parts += [_lay_out(inner, edges) for inner in outline.inner.values()]
    owner = {box.id: at for at, part in enumerate(parts) for box in _boxes_of(part)}
    links = {
        (owner[tail], owner[head])
        for tail, head in edges
        if tail in owner and head in owner and owner[tail] != owner[head]
    }
    sides = bool(parts) and all(isinstance(part.item, Outline) and part.item.form == "side" for part in parts)
    rows = [list(range(len(parts)))] if sides else _ordered(_layers(len(parts), links), links)
    width, height = _place_rows(parts, rows, links)
    border = 0.0 if outline.form == "root" else 10.0
    title = 0.0 if outline.form == "root" else 16.0
    on_top = outline.form in ("group", "scope", "side")
    for part in parts:
        part.shift(border, border + (title if on_top else 0.0))
    needed = text_width(outline.title, 9.5, bold=True) + text_width(outline.text, 8.5) + 24
    width = max(width + 2 * border, needed if title else 0.0)
    return Placed(outline, width, height + 2 * border + title, inner=parts)


def _boxes_of(part: Placed) -> Iterable[Box]:
    if isinstance(part.item, Box):
        yield part.item
    for inner in part.inner:
        yield from _boxes_of(inner)


def _sized(box: Box) -> Placed:
    small = box.shape == "scalar"
    first = _first_line(box)
    size = 8.5 if small else 10.5
    width = sum(text_width(text, s * size / 10.5, bold) for text, s, bold, _ in first) + 6 * len(first) + 12
    width = max(width, text_width(box.note, 8.5) + 16 if box.note else 0.0)
    return Placed(box, width, 18.0 if small else 34.0 if box.note else 21.0)


def _layers(count: int, links: set[tuple[int, int]]) -> list[list[int]]:
    """Items by length of the longest path to them; then each as low as its readers allow, so that edges are short."""
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(sorted(links))
    # A folded scope can be read by what it reads; the later of the two edges is left out of the order.
    while not nx.is_directed_acyclic_graph(graph):
        graph.remove_edge(*max((edge[:2] for edge in nx.find_cycle(graph)), key=lambda edge: edge[0] - edge[1]))
    level: dict[int, int] = {}
    for item in nx.topological_sort(graph):
        level[item] = 1 + max((level[p] for p in graph.predecessors(item)), default=-1)
    for item in reversed(list(nx.topological_sort(graph))):
        if graph.out_degree(item):
            level[item] = min(level[s] for s in graph.successors(item)) - 1
    rows: list[list[int]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for item in range(count):
        rows[level[item]].append(item)
    return [row for row in rows if row]


def _ordered(rows: list[list[int]], links: set[tuple[int, int]]) -> list[list[int]]:
    """Rows whose items lie near the middle of what they are linked to."""
    near: dict[int, list[int]] = {}
    for tail, head in sorted(links):
        near.setdefault(tail, []).append(head)
        near.setdefault(head, []).append(tail)
    for sweep in range(SWEEPS):
        place = {item: (at + 0.5) / len(row) for row in rows for at, item in enumerate(row)}
        for row in rows if sweep % 2 else reversed(rows):
            middle = {i: sum(place[n] for n in near.get(i, [i])) / len(near.get(i, [i])) for i in row}
            row.sort(key=lambda i: (middle[i], i))
            place.update({item: (at + 0.5) / len(row) for at, item in enumerate(row)})
    return rows


def _place_rows(parts: list[Placed], rows: list[list[int]], links: set[tuple[int, int]]) -> tuple[float, float]:
    """Give every item its corner: rows under each other, items under the middle of what they read."""
    sources: dict[int, list[int]] = {}
    for tail, head in sorted(links):
        sources.setdefault(head, []).append(tail)
    top = 0.0
    for row in rows:
        tallest = max(parts[i].height for i in row)
        wanted = {
            i: sum(parts[s].x + parts[s].width / 2 for s in sources[i]) / len(sources[i]) - parts[i].width / 2
            for i in row
            if i in sources
        }
        right = float("-inf")
        for i in row:
            at = max(wanted.get(i, right + COLUMN_GAP if right > float("-inf") else 0.0), right + COLUMN_GAP)
            parts[i].shift(at - parts[i].x, top + (tallest - parts[i].height) / 2 - parts[i].y)
            right = at + parts[i].width
        top += tallest + ROW_GAP
    left = min((part.x for part in parts), default=0.0)
    for part in parts:
        part.shift(-left, 0.0)
    return max((part.x + part.width for part in parts), default=0.0), max(top - ROW_GAP, 0.0)


def _route(tail: Placed, head: Placed, boxes: Sequence[Placed]) -> tuple[tuple[float, float], ...]:
    """Corners of an edge: down, across just above the reader, down; beside the boxes in between, not behind them."""
    start = (tail.x + tail.width / 2, tail.y + tail.height)
    low, high = head.x + head.width * 0.2, head.x + head.width * 0.8
    if head.y <= start[1]:
        return start, (head.x + head.width / 2, head.y)
    turn = head.y - ROW_GAP * 0.55
    between = [box for box in boxes if start[1] < box.y + box.height and box.y < turn and box not in (tail, head)]
    lane = _free_lane(start[0], between)
    end = (min(max(lane, low), high), head.y)
    corners = [start, (start[0], start[1] + 5), (lane, start[1] + 5), (lane, turn), (end[0], turn), end]
    if lane == start[0]:
        corners = [start, end] if end[0] == lane else [start, *corners[3:]]
    return tuple(corners)


def _free_lane(wanted: float, boxes: Sequence[Placed]) -> float:
    """The x nearest to `wanted` where a vertical line meets none of `boxes`."""
    clear = COLUMN_GAP * 0.4
    lanes = [wanted, *(box.x - clear for box in boxes), *(box.x + box.width + clear for box in boxes)]
    free = (x for x in lanes if not any(box.x - 3 < x < box.x + box.width + 3 for box in boxes))
    return min(free, key=lambda x: abs(x - wanted), default=wanted)


# -- texts -----------------------------------------------------------------------------------------------------------


def _first_line(box: Box) -> list[tuple[str, float, bool, str]]:
    ink = LIGHT.paint(box.layout).ink
    title = LIGHT.text if box.shape != "scalar" else ink
    parts = [(visible(box.title), 10.5, True, title)]
    if box.kind:
        parts.append((("⇄ " if box.is_collective else "") + visible(box.kind), 10.5, False, title))
    if box.layout is not None:
        parts.append((str(box.layout), 9.5, True, ink))
    return parts


def box_texts(part: Placed) -> list[Text]:
    """Texts of a box, where they stand."""
    box = part.item
    if not isinstance(box, Box):
        return _outline_texts(part, box)
    small = box.shape == "scalar"
    x, y = part.x + (9 if small else 8), part.y + (12.5 if small else 14.5)
    texts = []
    for at, (text, size, bold, colour) in enumerate(line := _first_line(box)):
        size = size * 8.5 / 10.5 if small else size
        last = at == len(line) - 1 and box.layout is not None and not small
        place = part.x + part.width - 8 if last else x
        texts.append(Text(place, y, text, size, colour, bold, "end" if last else "start"))
        x += text_width(text, size, bold) + 6
    if box.note:
        texts.append(Text(part.x + 8, part.y + 28, visible(box.note), 8.5, LIGHT.muted))
    return texts


def _outline_texts(part: Placed, outline: Outline) -> list[Text]:
    joint = " · " if outline.form in ("group", "side") else ": "
    rest = f"{joint}{visible(outline.text)}" if outline.text else ""
    title = visible(outline.title)
    if outline.form in ("group", "scope", "side"):
        x, y = part.x + 9, part.y + 14
    else:
        x = part.x + part.width - 10 - text_width(title, 9.5, True) - text_width(rest, 8.5)
        y = part.y + part.height - 8
    bold = Text(x, y, title, 9.5, LIGHT.muted, True)
    return [bold, *([Text(x + text_width(title, 9.5, True), y, rest, 8.5, LIGHT.muted)] if rest else [])]


def _legend(scene: Scene, top: float) -> tuple[tuple[tuple[Text, str, str], ...], float]:
    x, y = PADDING, top + 10
    entries = [(Text(x, y, visible(scene.title), 8.5, LIGHT.muted, True), "", "")]
    x += text_width(scene.title, 8.5, True) + 14
    for word, fill, ink in legend_entries(scene):
        entries.append((Text(x, y, word, 8.5, ink or LIGHT.muted), fill, ink))
        x += text_width(word, 8.5) + 16
    for at, note in enumerate(scene.notes, 1):
        text = visible(short(note, LONGEST_NOTE))
        entries.append((Text(PADDING, y + NOTE_HEIGHT * at + 2, text, 8.5, LIGHT.muted), "", ""))
        x = max(x, PADDING * 2 + text_width(text, 8.5))
    return tuple(entries), x
