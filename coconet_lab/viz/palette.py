"""The one palette: colour means layout and nothing else, told apart by every kind of sight, in light and in dark."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coconet_lab.ir.layout import Layout

FONT = "DejaVu Sans"
MONO_STACK = "DejaVu Sans Mono,Menlo,Consolas,monospace"
FONT_STACK = "DejaVu Sans,Verdana,sans-serif"  # Verdana is as wide, so text measured with one fits with the other


@dataclass(frozen=True, slots=True)
class Paint:
    """Colours of one kind of box: what fills it, and what its border and layout name are drawn in."""

    fill: str
    ink: str


@dataclass(frozen=True, slots=True)
class Palette:
    """Every colour the lab draws with, for one theme."""

    local: Paint
    replicated: Paint
    sliced: Paint
    scalar: Paint
    group: Paint  # a fused group; overlaps have its border and no fill
    changed: str
    selected: str
    background: str
    text: str
    muted: str
    edge: str
    line: str
    bad: str
    good: str

    def paint(self, layout: Layout | str | None) -> Paint:
        """Colours of a layout, given as itself or as text (``"Sliced(2)"``); anything else is a scalar's grey."""
        kind = str(layout).partition("(")[0].lower()
        return {"local": self.local, "replicated": self.replicated, "sliced": self.sliced}.get(kind, self.scalar)


LIGHT = Palette(
    local=Paint("#FFD58F", "#8A4B00"),
    replicated=Paint("#DFECFB", "#1D5FB8"),
    sliced=Paint("#8CD3B6", "#004D3B"),  # with …B8 it is 19.5 from Replicated for deutan sight, in one of the models
    scalar=Paint("#F4F4F4", "#5A5A5A"),
    group=Paint("#F5F5F6", "#5F6368"),
    changed="#B5179E",
    selected="#1A1A1A",
    background="#FFFFFF",
    text="#1A1A1A",
    muted="#5F6368",
    edge="#7A7F87",
    line="#DADCE0",
    bad="#9A3412",
    good="#1B7F3B",
)
DARK = Palette(
    local=Paint("#6B4508", "#FFC56B"),
    replicated=Paint("#1E3656", "#9CCBFF"),
    sliced=Paint("#10705A", "#8FF0D2"),
    scalar=Paint("#333333", "#CFCFCF"),
    group=Paint("#1D1F22", "#9AA0A6"),
    changed="#FF8AE2",
    selected="#FFFFFF",
    background="#111111",
    text="#F1F1F1",
    muted="#A8ADB3",
    edge="#8B9098",
    line="#3A3D41",
    bad="#FFB38A",
    good="#6FD58B",
)

# Linear RGB as people without one kind of cone see it: Machado, Oliveira, Fernandes 2009 at full severity, and the
# older Viénot, Brettel, Mollon 1999 for the two common kinds. They disagree a little, so colours must hold in both.
Matrix = tuple[tuple[float, float, float], ...]
SIGHT: dict[str, Matrix] = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
    "protan 1999": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
    "deutan 1999": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
}
_TO_XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
_WHITE = (0.95047, 1.0, 1.08883)


def linear_rgb(colour: str) -> tuple[float, float, float]:
    """The three channels of ``#RRGGBB`` as light, 0 to 1."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return red, green, blue


def contrast(first: str, second: str) -> float:
    """The WCAG contrast ratio of two colours, 1 to 21.

    Examples
    --------
    >>> contrast("#000000", "#FFFFFF")
    21.0
    """
    lighter, darker = sorted((_apply(_TO_XYZ, linear_rgb(c))[1] for c in (first, second)), reverse=True)
    return round((lighter + 0.05) / (darker + 0.05), 4)


def lab(colour: str, sight: str = "normal") -> tuple[float, float, float]:
    """CIE L*a*b* of a colour as a person with `sight` (a key of `SIGHT`) sees it."""
    seen = [min(max(c, 0.0), 1.0) for c in _apply(SIGHT[sight], linear_rgb(colour))]
    ratios = [value / white for value, white in zip(_apply(_TO_XYZ, (seen[0], seen[1], seen[2])), _WHITE)]
    x, y, z = (r ** (1 / 3) if r > 216 / 24389 else (24389 / 27 * r + 16) / 116 for r in ratios)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def difference(first: str, second: str, sight: str = "normal") -> float:
    """How far two colours are apart for a person with `sight`: CIE76 ΔE; about 2 is just visible."""
    return math.dist(lab(first, sight), lab(second, sight))


def _apply(matrix: Matrix, vector: tuple[float, float, float]) -> tuple[float, ...]:
    return tuple(sum(a * b for a, b in zip(row, vector)) for row in matrix)


def page_css(root: str) -> str:
    """CSS that recolours a drawing under the selector `root` for dark pages: its plain attributes stay light.

    The notebook's own theme decides where there is one (``data-jp-theme-light``), else the system's preference.
    """
    dark = _recolour(f'body[data-jp-theme-light="false"] {root}')
    system = _recolour(f"body:not([data-jp-theme-light]) {root}")
    return f"{dark}\n@media (prefers-color-scheme: dark) {{\n{system}\n}}\n"


def _recolour(root: str) -> str:
    pairs = [(LIGHT.text, DARK.text), (LIGHT.muted, DARK.muted), (LIGHT.edge, DARK.edge), (LIGHT.line, DARK.line)]
    pairs += [(LIGHT.background, DARK.background), (LIGHT.changed, DARK.changed), (LIGHT.bad, DARK.bad)]
    pairs += [(LIGHT.good, DARK.good)]
    for name in ("local", "replicated", "sliced", "scalar", "group"):
        light, dark = getattr(LIGHT, name), getattr(DARK, name)
        pairs += [(light.fill, dark.fill), (light.ink, dark.ink)]
    rules = []
    for light, dark in dict(pairs).items():
        # Graphviz writes colours in lower case, our own pictures as they are.
        for attribute in ("fill", "stroke"):
            rules.append(f'{root} svg [{attribute}="{light}" i] {{ {attribute}: {dark}; }}')
    return "\n".join(rules)
