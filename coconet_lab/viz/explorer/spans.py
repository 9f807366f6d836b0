"""A small timeline for the explorer's drawer: rows are rank × stream, spans carry the colour of their layout."""

from __future__ import annotations

from collections.abc import Sequence

from coconet_lab.run.results import duration
from coconet_lab.run.trace import Span
from coconet_lab.viz.explorer.html import text
from coconet_lab.viz.palette import LIGHT
from coconet_lab.viz.scene import short

WIDTH, LEFT, ROW, BAR = 420, 62, 15, 11
MOST_ROWS, MOST_SPANS = 16, 1500


def timeline_svg(spans: Sequence[Span]) -> str:
    """SVG of when what ran; the first rows and spans where there are very many.

    Examples
    --------
    >>> "layer" in timeline_svg([Span(0, 0, "layer", "library", 0.0, 900.0, "Local")])
    True
    """
    total = max((span.end_us for span in spans), default=0.0) or 1.0
    rows = sorted({(span.rank, span.stream) for span in spans})[:MOST_ROWS]
    place = {row: at for at, row in enumerate(rows)}
    scale = (WIDTH - LEFT - 8) / total
    parts = [_row_label(row, at, rows) for at, row in enumerate(rows)]
    parts += [
        _span(span, 6 + ROW * place[span.rank, span.stream], scale)
        for span in spans[:MOST_SPANS]
        if (span.rank, span.stream) in place
    ]
    bottom = 6 + ROW * len(rows)
    for part in (0.0, 0.5, 1.0):
        x = LEFT + part * total * scale
        anchor = "start" if part == 0 else "middle" if part < 1 else "end"
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 13}" font-size="10" fill="{LIGHT.muted}" text-anchor="{anchor}">'
            f"{text(duration(part * total) if part else '0')}</text>"
        )
    return (
        f'<svg class="cl-timeline" role="img" aria-label="timeline of the last run" '
        f'viewBox="0 0 {WIDTH} {bottom + 18}">{"".join(parts)}</svg>'
    )


def _row_label(row: tuple[int, int], at: int, rows: Sequence[tuple[int, int]]) -> str:
    rank, stream = row
    is_first = at == 0 or rows[at - 1][0] != rank
    words = f"rank {rank}" if is_first else "link" if stream else ""
    if is_first and stream:
        words = f"rank {rank} link"
    colour = LIGHT.text if is_first else LIGHT.muted
    y = 6 + ROW * at + BAR - 2
    return f'<text x="{LEFT - 6}" y="{y}" font-size="10" fill="{colour}" text-anchor="end">{words}</text>'


def _span(span: Span, y: int, scale: float) -> str:
    paint = LIGHT.paint(span.layout)
    x, width = LEFT + span.start_us * scale, max((span.end_us - span.start_us) * scale, 0.8)
    dashed = ' stroke-dasharray="2 2"' if span.kind == "wait" else ""
    fill = "none" if span.kind == "wait" else paint.fill
    chunk = f" chunk {span.chunk}" if span.chunk is not None else ""
    tip = f"{span.name}{chunk} ({span.kind}): {duration(max(span.end_us - span.start_us, 0.0))}"
    label = ""
    if width > 8 + 5.6 * min(len(span.name), 14) and span.kind != "wait":
        name = text(short(span.name, 14))
        label = f'<text x="{x + 4:.1f}" y="{y + BAR - 2.5}" font-size="9" fill="{LIGHT.text}">{name}</text>'
    return (
        f'<g><title>{text(tip)}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" '
        f'fill="{fill}" stroke="{paint.ink}" stroke-width="0.8"{dashed}/>{label}</g>'
    )
