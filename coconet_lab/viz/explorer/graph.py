"""The explorer's graph: a drawing that does not depend on what is selected, and where the keyboard goes in it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from coconet_lab.ir.program import Program
from coconet_lab.viz.dot import scene_dot
from coconet_lab.viz.draw import layout, page_svg
from coconet_lab.viz.explorer.words import listed
from coconet_lab.viz.paint import scene_svg
from coconet_lab.viz.scene import Box, Outline, Scene, program_scene

MOST_BOXES = 40
_KEPT = 64


@dataclass(frozen=True, slots=True)
class Graph:
    """A drawing for the page.

    Parameters
    ----------
    svg : str
    boxes : tuple of Box
        In program order; their ids end the ids of the drawing's ``g`` elements.
    edges : tuple of pairs of ids
        From what is read to its reader, for the arrow keys.
    ids : mapping of name to box id
    lit : tuple of ids
        Outlines of the groups that were asked to be lit.
    has_folds : bool
    """

    svg: str
    boxes: tuple[Box, ...]
    edges: tuple[tuple[str, str], ...]
    ids: dict[str, str]
    lit: tuple[str, ...]
    has_folds: bool

    def labels(self) -> dict[str, str]:
        """What a screen reader says of each box, by its id."""
        titles = {box.id: box.title for box in self.boxes}
        reads: dict[str, list[str]] = {box.id: [] for box in self.boxes}
        for source, reader in self.edges:
            if source in titles and reader in reads:
                reads[reader].append(titles[source])
        return {box.id: box_label(box, list(dict.fromkeys(reads[box.id]))) for box in self.boxes}

    def names(self, box: str) -> tuple[str, ...]:
        """The program's names a box stands for."""
        return next((found.names for found in self.boxes if found.id == box), ())


class Graphs:
    """Draws programs, keeping the last drawings: a click that changes no box calls no Graphviz."""

    def __init__(self) -> None:
        self._drawn: OrderedDict[str, str] = OrderedDict()

    def draw(
        self, program: Program, keep: tuple[str, ...] = (), opened: tuple[str, ...] = (),
        lit: frozenset[str] = frozenset(),
    ) -> Graph:  # fmt: skip
        """The drawing of `program`, with `keep` and `opened` never folded; `lit` are groups to light."""
        near = {n for name in keep for n in (*program.ops[name].sources, *program.readers[name])} if keep else set()
        scene = program_scene(
            program, selected=frozenset((*keep, *near)), opened=frozenset(opened), limit=MOST_BOXES, legend=False,
            changed_groups=lit,
        )  # fmt: skip
        bright = tuple(outline.id for outline in _outlines(scene.root) if outline.is_changed)
        scene = replace(scene, root=_plain(scene.root))
        source = scene_dot(scene)
        svg = self._drawn.get(source)
        if svg is None:
            svg = self._lay_out(scene, source)
            self._drawn[source] = svg
            if len(self._drawn) > _KEPT:
                self._drawn.popitem(last=False)
        boxes = tuple(scene.boxes())
        return Graph(svg, boxes, scene.edges, dict(scene.ids), bright, any(box.shape == "fold" for box in boxes))

    @staticmethod
    def _lay_out(scene: Scene, source: str) -> str:
        laid_out = layout(source, "svg")
        return scene_svg(scene) if laid_out is None else page_svg(laid_out.decode("utf-8"), scene.title)


def _plain(outline: Outline) -> Outline:
    """An outline whose boxes are drawn unselected: the page marks the selection itself, without a new drawing."""
    boxes = [replace(box, is_selected=False, classes=box.classes.removesuffix(" selected")) for box in outline.boxes]
    inner = {key: _plain(value) for key, value in outline.inner.items()}
    return replace(outline, boxes=boxes, inner=inner, is_changed=False)


def _outlines(outline: Outline) -> Iterator[Outline]:
    for inner in outline.inner.values():
        yield inner
        yield from _outlines(inner)


def box_label(box: Box, reads: Sequence[str] = ()) -> str:
    """What a screen reader says of a box; `reads` are the titles of the boxes it reads."""
    if box.shape == "fold":
        return f"{box.title}, folded: {box.note}. Enter opens it."
    kind = box.kind or "input"
    layout_name = f", {box.layout}" if box.layout is not None else ""
    note = f", {box.note}" if box.note else ""
    return f"{box.title}, {kind}{layout_name}{note}" + (f", reads {listed(reads, 4)}" if reads else "")


def scope_of(box: Box, program: Program) -> tuple[str, ...]:
    """The dotted scopes that opening a folded box opens: the first of those it stands for."""
    for name in box.names:
        parts = name.split(".")[:-1]
        if parts:
            return (".".join(parts[: 1 if len(parts) == 1 else _depth(box)]),)
    return ()


def _depth(box: Box) -> int:
    """How many parts all names of a fold share, at least one."""
    split = [name.split(".")[:-1] for name in box.names]
    shared = 0
    for parts in zip(*split):
        if any(part != parts[0] for part in parts):
            break
        shared += 1
    return max(shared, 1)
