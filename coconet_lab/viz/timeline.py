"""When what ran: a row for every stream of every rank, spans coloured by the layout of what they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from coconet_lab.arguments import shown
from coconet_lab.errors import InputError
from coconet_lab.site import caller_site
from coconet_lab.viz.charts import add_caption, new_axes, plain_frame
from coconet_lab.viz.palette import LIGHT
from coconet_lab.viz.scene import short, visible

MOST_NAMES = 6
MILLISECONDS_FROM_US = 2000.0
LINKS = ("collective", "transfer")


class TimedSpan(Protocol):
    """What a timeline needs of a span: `coconet_lab.run.trace.Span` has it."""

    @property
    def rank(self) -> int:
        """Rank it ran on."""

    @property
    def stream(self) -> int | str:
        """Stream of that rank."""

    @property
    def name(self) -> str:
        """The operation or fused group."""

    @property
    def kind(self) -> str:
        """``kernel``, ``collective``, ``library``, ``transfer``, ``wait``, …"""

    @property
    def start_us(self) -> float:
        """Microseconds from the start of the run."""

    @property
    def end_us(self) -> float:
        """Microseconds from the start of the run."""

    @property
    def layout(self) -> str | None:
        """Layout of what it computes."""

    @property
    def chunk(self) -> int | None:
        """Which chunk of an overlapped stage."""


def timeline(trace: Iterable[TimedSpan], ax: Any = None, *, provenance: Mapping[str, Any] | None = None) -> Any:
    """Draw when every operation ran on every rank: rows are rank × stream, waiting is dashed.

    Parameters
    ----------
    trace : iterable of spans
        A `Trace`, or anything whose items have rank, stream, name, kind, start_us, end_us, layout and chunk.
    ax : matplotlib Axes or None
        Where to draw; None makes a figure.
    provenance : mapping or None
        machine, date, command: printed under the picture.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    InputError
        There is no span.

    Examples
    --------
    >>> from coconet_lab.run.trace import Span, Trace
    >>> ax = timeline(Trace((Span(0, 0, "layer", "library", 0.0, 900.0, "Local"),)))
    >>> ax.get_xlabel()
    'µs'
    """
    spans = list(trace) if isinstance(trace, Iterable) else [trace]
    wrong = [span for span in spans if not hasattr(span, "end_us")]
    if not spans or wrong:
        raise InputError(
            f"{shown(wrong[0])} is no span of a trace" if wrong else "the trace has no span",
            rule="a timeline shows at least one",
            where=str(caller_site() or ""),
            hint="cluster.run(schedule, inputs).trace",
        )
    rows = _rows(spans)
    ax = new_axes(ax, (7.6, 0.7 + 0.26 * len(rows)))
    scale, unit = (1e-3, "ms") if max(s.end_us for s in spans) >= MILLISECONDS_FROM_US else (1.0, "µs")
    _draw_spans(ax, spans, rows, scale)
    plain_frame(ax, x_label=unit)
    ax.set_yticks(range(len(rows)), [label for label, _ in rows.values()])
    for tick, (_, is_first) in zip(ax.get_yticklabels(), rows.values()):
        tick.set_color(LIGHT.text if is_first else LIGHT.muted)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlim(0, max(s.end_us for s in spans) * scale * 1.01)
    ax.xaxis.grid(True, color=LIGHT.line, linewidth=0.8)
    ax.set_axisbelow(True)
    _legend(ax, spans)
    add_caption(ax, provenance)
    return ax


def _rows(spans: Sequence[TimedSpan]) -> dict[tuple[int, int | str], tuple[str, bool]]:
    """Every stream of every rank, with its label and whether it is the rank's first."""
    keys = sorted({(s.rank, s.stream) for s in spans}, key=lambda key: (key[0], str(type(key[1])), key[1]))
    rows: dict[tuple[int, int | str], tuple[str, bool]] = {}
    for rank, stream in keys:
        mine = [s for s in spans if (s.rank, s.stream) == (rank, stream) and s.kind != "wait"]
        if not any(key[0] == rank for key in rows):
            rows[rank, stream] = (f"rank {rank}", True)
        elif isinstance(stream, int):
            is_link = bool(mine) and all(s.kind in LINKS for s in mine)
            rows[rank, stream] = ("link" if is_link and stream == 1 else f"stream {stream}", False)
        else:
            rows[rank, stream] = (visible(stream), False)
    return rows


def _draw_spans(
    ax: Any, spans: Sequence[TimedSpan], rows: Mapping[tuple[int, int | str], tuple[str, bool]], scale: float
) -> None:
    place = {key: at for at, key in enumerate(rows)}
    together: dict[tuple[int, str | None, bool], list[tuple[float, float]]] = {}
    for span in spans:
        kind = str(span.layout).partition("(")[0] if span.layout else None
        at = (place[span.rank, span.stream], kind, span.kind == "wait")
        together.setdefault(at, []).append((span.start_us * scale, (span.end_us - span.start_us) * scale))
    for (row, layout, is_wait), parts in together.items():
        paint = LIGHT.paint(layout)
        if is_wait:
            look = {"facecolors": "none", "edgecolors": LIGHT.muted, "linewidth": 0.8, "linestyle": (0, (2, 2))}
        else:
            look = {"facecolors": paint.fill, "edgecolors": paint.ink, "linewidth": 0.8}
        ax.broken_barh(parts, (row - 0.36, 0.72), **look)


def _legend(ax: Any, spans: Sequence[TimedSpan]) -> None:
    """What the spans are called while that is few names, else which layouts they make; and what waiting looks like."""
    from matplotlib.patches import Patch

    named = {s.name: s.layout for s in spans if s.kind != "wait"}
    if len(named) > MOST_NAMES:
        named = {str(kind): str(kind) for kind in dict.fromkeys(str(k).partition("(")[0] for k in named.values() if k)}
    handles = [
        Patch(
            facecolor=LIGHT.paint(layout).fill,
            edgecolor=LIGHT.paint(layout).ink,
            linewidth=0.8,
            label=short(visible(name)),
        )
        for name, layout in named.items()
    ]
    if any(s.kind == "wait" for s in spans):
        handles.append(Patch(facecolor="none", edgecolor=LIGHT.muted, linestyle=(0, (2, 2)), label="waiting"))
    legend = ax.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=max(len(handles), 1), frameon=False,
        fontsize=8.5, handlelength=1.3, columnspacing=1.2, borderaxespad=0.2,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)
