"""A program as DOT: one box a value, filled by layout; pure and stable, so that it can be a golden file."""

from __future__ import annotations

import html
from collections.abc import Iterator

from coconet_lab.ir.program import Program
from coconet_lab.viz.palette import FONT, LIGHT
from coconet_lab.viz.scene import Box, Outline, Scene, legend_entries, program_scene, short, visible

LONGEST_NOTE = 90
BACKSLASH_SIGN = "\u29f5"
_HEAD = f"""\
  graph [fontname="{FONT}", fontsize=9.5, fontcolor="{LIGHT.muted}", bgcolor="{LIGHT.background}", ranksep=0.24, \
nodesep=0.2, rankdir=TB, pad=0.12, compound=true];
  node [fontname="{FONT}", fontsize=10.5, fontcolor="{LIGHT.text}", shape=box, height=0.2, width=0.2, \
margin="0.07,0.03"];
  edge [color="{LIGHT.edge}", arrowsize=0.55, penwidth=0.9];"""


def program_dot(
    program: Program,
    *,
    highlight: frozenset[str] = frozenset(),
    types: str = "changes",
    selected: frozenset[str] = frozenset(),
    opened: frozenset[str] = frozenset(),
    limit: int = 40,
    legend: bool = True,
) -> str:
    """DOT text of `program`: boxes ``name op layout``, fused groups solid, overlaps dashed, process groups outside.

    Ids are numbers (``op7``: place in program order); `viz.scene.program_scene` has the map from names.

    Parameters
    ----------
    highlight : names
        Operations a step changed: lit.
    types : "changes" or "all"
        Where dtype and shape are printed: where they are new, or everywhere.
    selected : names
        Operations a person selected.
    opened : dotted scopes
        Not folded where a program has more than `limit` boxes.
    limit : int
        Most boxes before scopes fold.
    legend : bool
        A line that says what the colours and lines mean.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> g = cl.tensor("g", cl.FP32, (8,), cl.Local)
    >>> text = program_dot(cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=4))
    >>> text.startswith("digraph"), "op0 -> op1" in text
    (True, True)
    """
    scene = program_scene(
        program, highlight=highlight, types=types, selected=selected, opened=opened, limit=limit, legend=legend
    )
    return scene_dot(scene)


def scene_dot(scene: Scene) -> str:
    """DOT text of a picture."""
    lines = ["digraph {", _HEAD]
    if scene.legend:
        lines.append(f"  graph [labelloc=b, labeljust=l, label=<{_legend(scene)}>];")
    lines += _outline_lines(scene.root, "  ")
    lines += [f"  {tail} -> {head};" for tail, head in scene.edges]
    return "\n".join([*lines, "}", ""])


def label_text(text: str) -> str:
    """Text inside an HTML-like label: Graphviz still reads ``\\N`` there, so backslashes are doubled."""
    return html.escape(visible(text).replace("\\", "\\\\"))


def quoted(text: str) -> str:
    """A DOT string for a tooltip, lines kept.

    Graphviz reads escapes in tooltips once for outlines and twice for boxes, so no backslash of a name may reach it:
    a sign that looks the same stands for it.
    """
    lines = [html.escape(visible(line), quote=True).replace("\\", BACKSLASH_SIGN) for line in text.split("\n")]
    return '"' + "\\n".join(lines) + '"'


def _outline_lines(outline: Outline, indent: str) -> Iterator[str]:
    for box in outline.boxes:
        yield f"{indent}{_box(box)}"
    for inner in outline.inner.values():
        yield f"{indent}subgraph cluster_{inner.id} {{"
        yield f"{indent}  graph [{_outline_style(inner)}];"
        yield from _outline_lines(inner, indent + "  ")
        yield f"{indent}}}"


def _outline_style(outline: Outline) -> str:
    pen = LIGHT.changed if outline.is_changed else LIGHT.group.ink
    title = f"<b>{label_text(outline.title)}</b>"
    if outline.text:
        joint = " · " if outline.form in ("group", "side") else ": "
        title += f'<font point-size="8.5">{joint}{label_text(outline.text)}</font>'
    word = " changed" if outline.is_changed else ""
    common = f'id="{outline.id}", class="{outline.form}{word}", label=<{title}>, fontsize=9.5, margin=9'
    common += f", tooltip={quoted(outline.title)}"
    if outline.form == "fused":
        look = f'style="rounded,filled", fillcolor="{LIGHT.group.fill}", color="{pen}", penwidth=1.6'
        return f"{common}, {look}, labelloc=b, labeljust=r"
    if outline.form == "overlap":
        return f'{common}, style="rounded,dashed", color="{pen}", penwidth=1.6, labelloc=b, labeljust=r'
    if outline.form == "side":
        return f'{common}, style=solid, color="{LIGHT.background}", penwidth=0, labelloc=t, labeljust=l'
    width = 1.2 if outline.form == "group" else 0.8
    return f'{common}, style=rounded, color="{LIGHT.edge}", penwidth={width}, labelloc=t, labeljust=l'


def _box(box: Box) -> str:
    paint = LIGHT.paint(box.layout)
    pen, width = LIGHT.muted if box.shape == "fold" else paint.ink, 2.0 if box.is_collective else 0.9
    if box.is_changed:
        pen, width = LIGHT.changed, 2.6
    elif box.is_selected:
        pen, width = LIGHT.selected, 3.0
    common = f'id="{box.id}", class="{box.classes}", tooltip={quoted(box.tooltip)}, color="{pen}", penwidth={width}'
    if box.shape == "fold":
        look = f'shape=box3d, style=filled, fillcolor="{LIGHT.background}"'
        return f"{box.id} [{common}, {look}, label=<{_fold_label(box)}>];"
    if box.shape == "scalar":
        look = f'shape=ellipse, style=filled, fillcolor="{paint.fill}", margin="0.02,0.01"'
        return f"{box.id} [{common}, {look}, label=<{_scalar_label(box, paint.ink)}>];"
    look = f'style="rounded,filled", fillcolor="{paint.fill}"'
    return f"{box.id} [{common}, {look}, label=<{_op_label(box, paint.ink)}>];"


def _op_label(box: Box, ink: str) -> str:
    sign = "⇄ " if box.is_collective else ""
    kind = f"&#160;&#160;{sign}{label_text(box.kind)}" if box.kind else ""
    name = f"<b>{label_text(box.title)}</b>{kind}"
    layout = f'<b><font point-size="9.5" color="{ink}">&#160;&#160;{label_text(str(box.layout))}</font></b>'
    if not box.note:  # one cell: one baseline
        return _table(f"<tr><td>{name}&#160;{layout}</td></tr>")
    note = f'<font point-size="8.5" color="{LIGHT.muted}">{label_text(box.note)}</font>'
    row = f'<tr><td align="left">{name}</td><td align="right">{layout}</td></tr>'
    return _table(f'{row}<tr><td align="left" colspan="2">{note}</td></tr>')


def _scalar_label(box: Box, ink: str) -> str:
    kind = f" {label_text(box.kind)}" if box.kind else ""
    sign = " ⇄" if box.is_collective else ""
    layout = f" <b>{label_text(str(box.layout))}</b>" if box.layout is not None else ""
    return f'<font point-size="8.5" color="{ink}"><b>{label_text(box.title)}</b>{sign}{kind}{layout}</font>'


def _fold_label(box: Box) -> str:
    note = f'<font point-size="8.5" color="{LIGHT.muted}">{label_text(box.note)}</font>'
    title = f'<tr><td align="left"><b>{label_text(box.title)}</b></td></tr>'
    lid = '<tr><td height="4"></td></tr>'  # the top of the solid is drawn inside the box
    return _table(f'{lid}{title}<tr><td align="left">{note}</td></tr>')


def _table(rows: str) -> str:
    return f'<table border="0" cellborder="0" cellspacing="0" cellpadding="1">{rows}</table>'


def _legend(scene: Scene) -> str:
    """What the colours and lines mean, as far as they occur."""
    cells = [f"<td><b>{label_text(scene.title)}</b>&#160;&#160;</td>"]
    for word, fill, ink in legend_entries(scene):
        if not ink:
            cells.append(f"<td>{word}</td>")
            continue
        filled = f' bgcolor="{fill}"' if fill else ""
        chip = f'<font color="{ink}">&#160;{word}&#160;</font>'
        cells.append(f'<td border="{1 if fill else 2}" color="{ink}"{filled} style="rounded">{chip}</td>')
    rows = f"<tr>{''.join(cells)}</tr>"
    if scene.notes:
        lines = "".join(f'{label_text(short(note, LONGEST_NOTE))}<br align="left"/>' for note in scene.notes)
        rows += f'<tr><td align="left" balign="left" colspan="{len(cells)}">{lines}</td></tr>'
    table = f'<table border="0" cellborder="0" cellspacing="6" cellpadding="1">{rows}</table>'
    return f'<font point-size="8.5">{table}</font>'
