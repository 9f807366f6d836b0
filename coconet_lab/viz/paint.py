"""A placed picture as SVG text, or through matplotlib as PNG and PDF: the drawing of machines without Graphviz."""

from __future__ import annotations

import hashlib
import html
import io
import re
import warnings

from coconet_lab.viz.palette import FONT, FONT_STACK, LIGHT, MONO_STACK
from coconet_lab.viz.scene import Box, Outline, Scene, visible
from coconet_lab.viz.svg import Picture, Placed, Text, box_texts, picture, text_width

POINTS_PER_INCH = 72
_SIDES = {"start": "left", "middle": "center", "end": "right"}


def with_head(text: str, title: str) -> str:
    """SVG that shrinks to its column and says what it is to a screen reader."""
    label = _escaped(title)
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" style="max-width:100%;height:auto" ', 1).strip()


def prefixed(text: str) -> str:
    """SVG whose ids start with a digest of its text, so that two drawings in one page do not mix."""
    prefix = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return re.sub(r'(<[^<>]*?\s)id="', rf'\1id="p{prefix}-', text)


def scene_svg(scene: Scene) -> str:
    """SVG of a scene, laid out by `viz.svg`."""
    made = picture(scene)
    lines = [
        f'<svg width="{made.width:.0f}pt" height="{made.height:.0f}pt" '
        f'viewBox="0 0 {made.width:.1f} {made.height:.1f}" xmlns="http://www.w3.org/2000/svg">',
        f'<rect width="100%" height="100%" fill="{LIGHT.background}"/>',
    ]
    for part in made.placed:
        if isinstance(part.item, Outline):
            lines += _svg_part(part)
    for corners in made.edges:
        lines += _svg_edge(corners)
    for part in made.placed:
        if isinstance(part.item, Box):
            lines += _svg_part(part)
    for text, fill, ink in made.legend:
        lines += [*_svg_chip(text, fill, ink), svg_text(text)]
    return prefixed(with_head("\n".join([*lines, "</svg>"]), scene.title))


def scene_bytes(scene: Scene, kind: str) -> bytes:
    """PNG or PDF of a scene, painted by matplotlib."""
    from matplotlib.figure import Figure

    made = picture(scene)
    figure = Figure(figsize=(made.width / POINTS_PER_INCH, made.height / POINTS_PER_INCH), dpi=2 * POINTS_PER_INCH)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, made.width), ylim=(made.height, 0))
    axes.axis("off")
    _paint(axes, made)
    held = io.BytesIO()
    with warnings.catch_warnings():
        # A name in a script the font lacks shows as a box; that is no reason to write into the user's cell.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(held, format=kind, facecolor=LIGHT.background)
    return held.getvalue()


def look(part: Placed) -> tuple[str, str, float, str, float]:
    """Fill, border, its width, its dashes and the corner radius of a box or outline."""
    item = part.item
    if isinstance(item, Outline):
        pen = LIGHT.changed if item.is_changed else LIGHT.group.ink
        forms = {
            "fused": (LIGHT.group.fill, pen, 1.6, "", 8.0),
            "overlap": ("none", pen, 1.6, "5 3", 8.0),
            "side": ("none", "none", 0.0, "", 0.0),
        }
        return forms.get(item.form, ("none", LIGHT.edge, 1.2 if item.form == "group" else 0.8, "", 8.0))
    paint = LIGHT.paint(item.layout)
    pen, width = LIGHT.muted if item.shape == "fold" else paint.ink, 2.0 if item.is_collective else 0.9
    if item.is_changed:
        pen, width = LIGHT.changed, 2.6
    elif item.is_selected:
        pen, width = LIGHT.selected, 3.0
    if item.shape == "fold":
        return LIGHT.background, pen, width, "", 0.0
    return paint.fill, pen, width, "", part.height / 2 if item.shape == "scalar" else 7.0


def _svg_part(part: Placed) -> list[str]:
    fill, pen, width, dashes, radius = look(part)
    item = part.item
    if isinstance(item, Box):
        words, tip = f"node {item.classes}", item.tooltip
    else:
        words, tip = f"cluster {item.form}", item.title
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    place = f'x="{part.x:.1f}" y="{part.y:.1f}" width="{part.width:.1f}" height="{part.height:.1f}"'
    # Tooltips keep their lines; everything else a person cannot see is written out by the escape.
    title = "\n".join(_escaped(line) for line in tip.split("\n"))
    lines = [f'<g id="{item.id}" class="{words}"><title>{title}</title>']
    if isinstance(item, Box) and item.shape == "fold":
        behind = f'x="{part.x + 3:.1f}" y="{part.y - 3:.1f}" width="{part.width:.1f}" height="{part.height:.1f}"'
        lines.append(f'<rect {behind} fill="{fill}" stroke="{pen}" stroke-width="{width}"/>')
    lines.append(f'<rect {place} rx="{radius:g}" fill="{fill}" stroke="{pen}" stroke-width="{width}"{dashed}/>')
    return [*lines, *map(svg_text, box_texts(part)), "</g>"]


def _svg_edge(corners: tuple[tuple[float, float], ...]) -> list[str]:
    path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in [*corners[:-1], (corners[-1][0], corners[-1][1] - 4)])
    x, y = corners[-1]
    head = f"{x:.1f},{y:.1f} {x - 2.6:.1f},{y - 6:.1f} {x + 2.6:.1f},{y - 6:.1f}"
    return [
        f'<g class="edge"><path d="{path}" fill="none" stroke="{LIGHT.edge}" stroke-width="0.9"/>',
        f'<polygon points="{head}" fill="{LIGHT.edge}"/></g>',
    ]


def svg_text(text: Text) -> str:
    """One SVG text element; the text is escaped and what cannot be shown is written out."""
    anchor = f' text-anchor="{text.anchor}"' if text.anchor != "start" else ""
    weight = ' font-weight="bold"' if text.bold else ""
    return (
        f'<text x="{text.x:.1f}" y="{text.y:.1f}" font-family="{MONO_STACK if text.mono else FONT_STACK}" '
        f'font-size="{text.size:.1f}" fill="{text.colour}"{weight}{anchor} xml:space="preserve">'
        f"{_escaped(text.text)}</text>"
    )


def _svg_chip(text: Text, fill: str, ink: str) -> list[str]:
    if not ink:
        return []
    width = text_width(text.text, text.size) + 8
    place = f'x="{text.x - 4:.1f}" y="{text.y - 9:.1f}" width="{width:.1f}" height="12.5"'
    return [f'<rect {place} rx="4" fill="{fill or "none"}" stroke="{ink}" stroke-width="{1 if fill else 2}"/>']


def _escaped(text: str) -> str:
    return html.escape(visible(text), quote=True)


def _paint(axes: object, made: Picture) -> None:
    from matplotlib.patches import FancyBboxPatch

    def box(x: float, y: float, width: float, height: float, style: tuple[str, str, float, str, float], z: int) -> None:
        fill, pen, line, dashes, radius = style
        shape = f"round,pad=0,rounding_size={radius}" if radius else "square,pad=0"
        axes.add_patch(  # type: ignore[attr-defined]
            FancyBboxPatch(
                (x, y), width, height, boxstyle=shape, facecolor=fill, edgecolor=pen, linewidth=line,
                linestyle=(0, (4, 2.5)) if dashes else "-", zorder=z,
            )
        )  # fmt: skip

    texts = [entry[0] for entry in made.legend]
    for part in made.placed:
        box(part.x, part.y, part.width, part.height, look(part), 3 if isinstance(part.item, Box) else 1)
        texts += box_texts(part)
    for corners in made.edges:
        axes.plot(*zip(*corners), color=LIGHT.edge, linewidth=0.9, zorder=2)  # type: ignore[attr-defined]
        (x, y) = corners[-1]
        axes.fill([x, x - 2.6, x + 2.6], [y, y - 6, y - 6], color=LIGHT.edge, zorder=2)  # type: ignore[attr-defined]
    for text, fill, ink in made.legend:
        if ink:
            width = text_width(text.text, text.size) + 8
            box(text.x - 4, text.y - 9, width, 12.5, (fill or "none", ink, 1.0 if fill else 2.0, "", 4.0), 1)
    for text in texts:
        axes.text(  # type: ignore[attr-defined]
            text.x, text.y, text.text, fontsize=text.size, color=text.colour, family=FONT, parse_math=False,
            weight="bold" if text.bold else "normal", ha=_SIDES[text.anchor], zorder=4,
        )  # fmt: skip
