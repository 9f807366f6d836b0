"""What a graph picture shows, before anyone lays it out: boxes, edges and nested outlines, with texts and colours.

Graphviz and the lab's own drawing (`viz.svg`) both start here, so that they show the same.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coconet_lab.ir import ops as o
from coconet_lab.ir.layout import Layout
from coconet_lab.ir.program import Fusion, Overlap, Program
from coconet_lab.ir.types import TensorType
from coconet_lab.ir.value import op_text
from coconet_lab.viz.fold import Fold, fold_program
from coconet_lab.viz.palette import LIGHT

LONGEST_NAME = 30


@dataclass(frozen=True, slots=True)
class Box:
    """One box: an operation, an input, a scalar, or many operations folded into one.

    `names` are the program's names it stands for; `classes` what a page's CSS and scripts find it by.
    """

    id: str
    names: tuple[str, ...]
    title: str
    kind: str = ""
    layout: Layout | None = None
    note: str = ""
    tooltip: str = ""
    shape: str = "op"  # op | scalar | fold
    is_collective: bool = False
    is_changed: bool = False
    is_selected: bool = False
    classes: str = ""


@dataclass(slots=True)
class Outline:
    """A line around boxes: a fused group, an overlap, a process group, an open scope, or one side of a step."""

    id: str
    form: str  # fused | overlap | group | scope | side
    title: str
    text: str = ""
    is_changed: bool = False
    boxes: list[Box] = field(default_factory=list)
    inner: dict[object, Outline] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scene:
    """A whole picture. `ids` maps every name of the program to the id of the box that shows it; `notes` go below."""

    title: str
    root: Outline
    edges: tuple[tuple[str, str], ...]
    ids: Mapping[str, str]
    legend: bool = True
    notes: tuple[str, ...] = ()

    def boxes(self) -> list[Box]:
        """All boxes, in the order they are drawn."""
        return list(_boxes_in(self.root))

    def layouts(self) -> list[str]:
        """Layouts that occur, in the legend's order."""
        present = {box.layout.kind for box in self.boxes() if box.layout is not None}
        return [kind for kind in ("Local", "Replicated", "Sliced") if kind in present]

    def forms(self) -> set[str]:
        """Forms of outlines that occur."""
        return {outline.form for outline in _outlines_in(self.root)}

    def has_changes(self) -> bool:
        """Whether a box or an outline is lit."""
        return any(box.is_changed for box in self.boxes()) or any(line.is_changed for line in _outlines_in(self.root))


def _boxes_in(outline: Outline) -> Iterable[Box]:
    yield from outline.boxes
    for inner in outline.inner.values():
        yield from _boxes_in(inner)


def _outlines_in(outline: Outline) -> Iterable[Outline]:
    for inner in outline.inner.values():
        yield inner
        yield from _outlines_in(inner)


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """A name that fits a box: its middle left out where it is too long.

    Examples
    --------
    >>> short("a" * 20 + "b" * 20, 11)
    'aaaaa…bbbbb'
    """
    if len(name) <= longest:
        return name
    half = (longest - 1) // 2
    return f"{name[: longest - 1 - half]}…{name[len(name) - half :]}"


def visible(text: str) -> str:
    """Text on one line without characters that XML or a screen cannot show: those as Python would write them.

    Examples
    --------
    >>> print(visible("two" + chr(10) + "lines" + chr(0)))
    two\\nlines\\x00
    """
    return "".join(_visible(c) for c in text)


def _visible(character: str) -> str:
    # Control, surrogate, unassigned, private and line/paragraph separators; format characters could hide or reorder.
    if unicodedata.category(character) in ("Cc", "Cs", "Cn", "Co", "Cf", "Zl", "Zp"):
        return character.encode("unicode_escape").decode("ascii")
    return character


def legend_entries(scene: Scene) -> list[tuple[str, str, str]]:
    """The legend: each word with its fill and ink, as far as the picture has what it explains; lines have neither."""
    entries = [(kind, LIGHT.paint(kind).fill, LIGHT.paint(kind).ink) for kind in scene.layouts()]
    boxes, forms = scene.boxes(), scene.forms()
    entries += [("⇄ collective", "", "")] if any(box.is_collective for box in boxes) else []
    entries += [(word, "", "") for form, word in (("fused", "▭ fused"), ("overlap", "┄ overlap")) if form in forms]
    return [*entries, *([("changed", "", LIGHT.changed)] if scene.has_changes() else [])]


def type_line(kind: TensorType) -> str:
    """``FP16 [8, 1024, 3072]``, or a list's tensors and elements."""
    if kind.pieces and not kind.per_piece:
        return f"{kind.dtype} {len(kind.pieces)} tensors, {kind.elements:,} elements"
    return f"{kind.dtype} [{', '.join(map(str, kind.shape))}]"


def bytes_text(count: int) -> str:
    """Bytes as people read them.

    Examples
    --------
    >>> bytes_text(48 << 20), bytes_text(8), bytes_text(1536)
    ('48 MiB', '8 B', '1.5 KiB')
    """
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} GiB"


def fused_form(program: Program, fusion: Fusion) -> str:
    """What the members of a fused group make together: ``FusedAllReduce``, ``FusedSend``, or nothing but compute.

    ReduceScatter with AllGather is the two-shot form of an AllReduce, an AllReduce inside the one-shot form (§4).
    """
    kinds = [type(program.ops[m]).__name__ for m in fusion.members if isinstance(program.ops[m], o.Op)]
    found = dict.fromkeys(kind for kind in kinds if kind in ("AllReduce", "ReduceScatter", "AllGather", "Send"))
    if "AllReduce" in found:
        return "one-shot FusedAllReduce, one kernel"
    if "ReduceScatter" in found and "AllGather" in found:
        rest = [k for k in found if k == "Send"]
        return "Fused" + "+".join(["AllReduce", *rest]) + ", one kernel"
    return ("Fused" + "+".join(found) + ", one kernel") if found else "one kernel"


def program_scene(
    program: Program,
    *,
    highlight: frozenset[str] = frozenset(),
    selected: frozenset[str] = frozenset(),
    types: str = "changes",
    opened: frozenset[str] = frozenset(),
    limit: int = 40,
    legend: bool = True,
    prefix: str = "",
    changed_groups: frozenset[str] = frozenset(),
) -> Scene:
    """The picture of a program: see `viz.dot.program_dot` for the parameters.

    `prefix` goes before every id (two programs in one picture); `changed_groups` names outlines to light.
    """
    known = frozenset(program.resolve(name) for name in highlight)
    chosen = frozenset(program.resolve(name) for name in selected)
    shown = [name for name, op in program.ops.items() if not (isinstance(op, o.Input) and op.implicit)]
    folds = fold_program(program, shown, keep=_kept(program, known, chosen, limit), opened=opened, limit=limit)
    builder = _Builder(program, types, known, chosen, prefix, changed_groups, has_folds=bool(folds))
    builder.add(shown, folds)
    title = (
        f"{short(visible(program.name), 2 * LONGEST_NAME)} · {program.ranks} rank{'' if program.ranks == 1 else 's'}"
    )
    return Scene(title, builder.root, builder.edges(shown), builder.ids, legend)


def _scope_in(path: list[tuple[str, object]]) -> str:
    return next((str(key) for form, key in path if form == "scope"), "")


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _kept(program: Program, changed: frozenset[str], selected: frozenset[str], limit: int) -> frozenset[str]:
    """What never folds: the selection and its neighbours, outputs, what changed; each while it leaves room to fold."""
    near = {name for chosen in selected for name in (*program.ops[chosen].sources, *program.readers[chosen])}
    kept = frozenset(selected)
    for more in (frozenset(program.outputs), frozenset(near), changed):
        kept = kept | more if len(kept | more) <= limit // 2 else kept
    return kept


class _Builder:
    def __init__(
        self, program: Program, types: str, changed: frozenset[str], selected: frozenset[str], prefix: str,
        changed_groups: frozenset[str], has_folds: bool,
    ) -> None:  # fmt: skip
        self.program, self.types, self.changed, self.selected = program, types, changed, selected
        self.prefix, self.changed_groups, self.has_folds = prefix, changed_groups, has_folds
        self.root = Outline(f"{prefix}graph", "root", "")
        self.ids: dict[str, str] = {}
        self.outlines = 0

    def add(self, shown: list[str], folds: tuple[Fold, ...]) -> None:
        fold_of = {name: (at, fold) for at, fold in enumerate(folds) for name in fold.names}
        done: set[int] = set()
        for name in shown:
            if name not in fold_of:
                path = self._path(name)
                self._outline(path).boxes.append(self._op_box(name, _scope_in(path)))
            elif fold_of[name][0] not in done:
                at, fold = fold_of[name]
                done.add(at)
                path = self._common_path(fold)
                self._outline(path).boxes.append(self._fold_box(at, fold, _scope_in(path)))

    def edges(self, shown: list[str]) -> tuple[tuple[str, str], ...]:
        found: dict[tuple[str, str], None] = {}
        for name in shown:
            for source in self.program.ops[name].sources:
                if source in self.ids and self.ids[source] != self.ids[name]:
                    found[self.ids[source], self.ids[name]] = None
        return tuple(found)

    # -- where a box lies ----------------------------------------------------------------------------------------

    def _group_of(self, name: str) -> int | None:
        """The process group a box is drawn in: a member of a fused group lies where the group's kernel runs."""
        fusion = self.program.fusion_of.get(name)
        return self.program.types[fusion.members[0] if fusion else name].group

    def _path(self, name: str) -> list[tuple[str, object]]:
        """Outlines around a value, outermost first. An overlap across process groups is drawn once in each."""
        path: list[tuple[str, object]] = []
        group = self._group_of(name)
        if self.program.groups > 1 and group is not None:
            path.append(("group", group))
        overlap, fusion = self.program.overlap_of.get(name), self.program.fusion_of.get(name)
        scope = name.rpartition(".")[0].partition(".")[0]
        if self.has_folds and scope and overlap is None and fusion is None:
            path.append(("scope", scope))
        if overlap is not None:
            path.append(("overlap", overlap))
        if fusion is not None:
            path.append(("fused", fusion))
        return path

    def _common_path(self, fold: Fold) -> list[tuple[str, object]]:
        """Outlines around all of a fold; a scope only where the fold is a part of it."""
        common: list[tuple[str, object]] = []
        for keys in zip(*(self._path(name) for name in fold.names)):
            is_whole = keys[0][0] == "scope" and not all(s.startswith(f"{keys[0][1]}.") for s in fold.scopes or (".",))
            if any(key != keys[0] for key in keys) or is_whole:
                break
            common.append(keys[0])
        return common

    def _outline(self, path: list[tuple[str, object]]) -> Outline:
        at = self.root
        for key in path:
            if key not in at.inner:
                self.outlines += 1
                at.inner[key] = self._new_outline(f"{self.prefix}outline{self.outlines}", *key)
            at = at.inner[key]
        return at

    def _new_outline(self, outline_id: str, form: str, key: object) -> Outline:
        if isinstance(key, Fusion):
            text = fused_form(self.program, key)
            return Outline(outline_id, form, short(visible(key.name)), text, key.name in self.changed_groups)
        if isinstance(key, Overlap):
            stages = _listed([short(visible(stage), 18) for stage in key.stages])
            return Outline(outline_id, form, "overlap", f"{stages}, chunk by chunk", key.name in self.changed_groups)
        if form == "group":
            size = self.program.group_ranks
            first = int(str(key)) * size
            ranks = f"rank {first}" if size == 1 else f"ranks {first} to {first + size - 1}"
            return Outline(outline_id, form, f"group {key}", ranks)
        return Outline(outline_id, form, short(visible(str(key))))

    # -- boxes ---------------------------------------------------------------------------------------------------

    def _op_box(self, name: str, scope: str) -> Box:
        op, kind = self.program.ops[name], self.program.types[name]
        box_id = f"{self.prefix}op{self.program.position[name]}"
        self.ids[name] = box_id
        is_scalar = kind.is_scalar
        layout = None if is_scalar and kind.layout.is_replicated else kind.layout
        state = {"changed": name in self.changed, "selected": name in self.selected}
        words = ["op", "scalar" if layout is None else layout.kind.lower(), "comm" if op.is_collective else ""]
        words += ["input" if isinstance(op, o.Input) else "", "output" if name in self.program.outputs else ""]
        words += [word for word, holds in state.items() if holds]
        return Box(
            box_id,
            (name,),
            short(visible(name.removeprefix(f"{scope}.") if scope else name)),
            self._kind_text(op),
            layout,
            "" if is_scalar else self._note(op, kind),
            self._tooltip(name),
            "scalar" if is_scalar else "op",
            op.is_collective,
            state["changed"],
            state["selected"],
            " ".join(filter(None, words)),
        )

    def _kind_text(self, op: o.Op) -> str:
        if isinstance(op, o.Input):
            return ""
        if isinstance(op, o.Update):
            return f"Update {short(visible(str(op.operands[0])), 18)}"
        return short(visible(op.kind))

    def _note(self, op: o.Op, kind: TensorType) -> str:
        seen = {(self.program.types[s].dtype, self.program.types[s].shape) for s in op.sources}
        is_new = isinstance(op, o.Input) or (kind.dtype, kind.shape) not in seen
        return type_line(kind) if is_new or self.types == "all" else ""

    def _tooltip(self, name: str) -> str:
        op, kind = self.program.ops[name], self.program.types[name]
        lines = [visible(op_text(op)), f"{kind}, {self.program.group_ranks} ranks"]
        lines.append(f"{bytes_text(kind.stored_bytes(self.program.group_ranks))} a rank")
        if name in self.program.outputs:
            lines.append("an output")
        return "\n".join([*lines, *([str(op.site)] if op.site else [])])

    def _fold_box(self, at: int, fold: Fold, scope: str) -> Box:
        box_id = f"{self.prefix}fold{at}"
        self.ids.update(dict.fromkeys(fold.names, box_id))
        listed = [visible(text) for text in (fold.title, fold.note, *fold.names[:12])]
        tooltip = "\n".join([*listed, *(["…"] if len(fold.names) > 12 else [])])
        title = short(visible(fold.title.removeprefix(f"{scope}.")), 2 * LONGEST_NAME)
        is_changed = not self.changed.isdisjoint(fold.names)
        words = "fold changed" if is_changed else "fold"
        return Box(
            box_id,
            fold.names,
            title,
            note=fold.note,
            tooltip=tooltip,
            shape="fold",
            is_changed=is_changed,
            classes=words,
        )
