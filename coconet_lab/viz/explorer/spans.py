"""A small timeline for the explorer's drawer: rows are rank × stream, spans carry the colour of their layout."""

from __future__ import annotations

from collections.abc import Sequence

from coconet_lab.run.results import duration
from coconet_lab.run.trace import Span
from coconet_lab.viz.explorer.html import tag, text
from coconet_lab.viz.scene import short

MOST_ROWS, MOST_SPANS = 16, 1500
# Names stand where they surely fit: lanes are seldom narrower than this, in characters.
LANE_CHARACTERS = 44


def timeline_html(spans: Sequence[Span]) -> str:
    """When what ran, as wide as its place; the first rows and spans where there are very many.

    Examples
    --------
    >>> "layer" in timeline_html([Span(0, 0, "layer", "library", 0.0, 900.0, "Local")])
    True
    """
    total = max((span.end_us for span in spans), default=0.0) or 1.0
    rows = sorted({(span.rank, span.stream) for span in spans})[:MOST_ROWS]
    lanes: dict[tuple[int, int], list[str]] = {row: [] for row in rows}
    for span in spans[:MOST_SPANS]:
        if (span.rank, span.stream) in lanes:
            lanes[span.rank, span.stream].append(_span(span, total))
    parts = [_lane(row, at, rows, "".join(lanes[row])) for at, row in enumerate(rows)]
    ends = "".join(tag("span", text(duration(part * total) if part else "0")) for part in (0.0, 0.5, 1.0))
    parts.append(tag("div", tag("span", "", cls="cl-lane-name") + tag("div", ends, cls="cl-axis"), cls="cl-lane"))
    return tag("div", "".join(parts), cls="cl-timeline", role="img", aria_label="timeline of the last run")


def _lane(row: tuple[int, int], at: int, rows: Sequence[tuple[int, int]], inner: str) -> str:
    rank, stream = row
    is_first = at == 0 or rows[at - 1][0] != rank
    words = " ".join([f"rank {rank}"] * is_first + ["link"] * bool(stream))
    name = tag("span", words, cls="cl-lane-name" + ("" if is_first else " cl-dim"))
    return tag("div", name + tag("div", inner, cls="cl-track"), cls="cl-lane")


def _span(span: Span, total: float) -> str:
    left, width = 100 * span.start_us / total, max(100 * (span.end_us - span.start_us) / total, 0.2)
    chunk = f" chunk {span.chunk}" if span.chunk is not None else ""
    tip = f"{span.name}{chunk} ({span.kind}): {duration(max(span.end_us - span.start_us, 0.0))}"
    name = short(span.name, 14)
    is_wait = span.kind == "wait"
    words = text(name) if not is_wait and len(name) + 1 < width / 100 * LANE_CHARACTERS else ""
    kind = "wait" if is_wait else (span.layout or "scalar").partition("(")[0].lower()
    return tag("i", words, cls=f"cl-span {kind}", style=f"left:{left:.2f}%;width:{width:.2f}%", title=tip)
