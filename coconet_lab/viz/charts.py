"""How long it took: bars that compare schedules, lines that show how they scale. Every plot takes and returns Axes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from coconet_lab.arguments import one_of, shown
from coconet_lab.errors import InputError
from coconet_lab.site import caller_site
from coconet_lab.viz.palette import FONT, LIGHT
from coconet_lab.viz.scene import short, visible

GREY = "#9A9EA6"
MILLISECONDS_FROM_US = 1000.0
MARKERS = "osD^vPX*"

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Timing:
    """One measured row: a schedule's median and its spread, at one number of elements."""

    name: str
    x: float
    median_us: float
    p10_us: float
    p90_us: float


def speedup_bars(
    records: Iterable[Record],
    baseline: str | None = None,
    ax: Any = None,
    *,
    current: str | None = None,
    by_hand: Collection[str] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Any:
    """Bars of median times with p10 to p90 whiskers and the speed-up against `baseline`.

    Parameters
    ----------
    records : iterable of mapping
        One row per schedule, with the columns of the measurement files: schedule, median_us, p10_us, p90_us, …
    baseline : str or None
        The schedule whose speed-up is 1; None is the first.
    ax : matplotlib Axes or None
    current : str or None
        The schedule drawn black; None is the last that is not by hand.
    by_hand : names or None
        Hand-written baselines, drawn dashed; None takes those that name library calls (``mpi4py+numpy``).
    provenance : mapping or None
        machine, date, command for the caption; None takes them from the records where they agree.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    InputError
        No records, two rows of one schedule, a missing column, or an unknown baseline.

    Examples
    --------
    >>> times = {"start": 40.0, "fused": 20.0}
    >>> rows = [{"schedule": name, "median_us": t, "p10_us": t, "p90_us": t} for name, t in times.items()]
    >>> ax = speedup_bars(rows)
    >>> [text.get_text() for text in ax.texts][:4]
    ['40 µs', '1.00×', '20 µs', '2.00×']
    """
    rows = _records(records)
    timings = [timing(row, row.get("schedule"), 0.0) for row in rows]
    names = [t.name for t in timings]
    _check_bars(names)
    base = timings[0 if baseline is None else names.index(_known(baseline, names))]
    hand = {name for name in names if is_by_hand(name)} if by_hand is None else set(by_hand)
    black = current if current is not None else next((n for n in reversed(names) if n not in hand), names[-1])
    ax = new_axes(ax, (6.4, 0.7 + 0.32 * len(rows)))
    scale, unit = _scale_of(timings)
    for at, t in enumerate(timings):
        _bar(ax, at, t, scale, is_current=t.name == black, is_dashed=t.name in hand)
        _bar_text(ax, at, t, base, scale, unit, t.name == black)
    plain_frame(ax)
    _name_bars(ax, names, black)
    ax.set_xlim(0, max(t.p90_us for t in timings) * scale * 1.45)
    add_caption(ax, provenance_of(rows) if provenance is None else provenance, "median, whiskers p10 to p90")
    return ax


def scaling_lines(
    records: Iterable[Record],
    x: str = "elements",
    y: str = "median_us",
    ax: Any = None,
    *,
    baseline: str | None = None,
    current: str | None = None,
    by_hand: Collection[str] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Any:
    """Lines over a doubling axis, one a schedule, with the p10 to p90 spread as a band.

    Parameters
    ----------
    records : iterable of mapping
        Rows of the measurement files; several dtypes or numbers of ranks make lines of their own.
    x : str
        The column along the axis: elements, ranks, …
    y : "median_us" or "speedup"
        Time, or the baseline's time divided by it.
    baseline : str or None
        For "speedup": the schedule whose speed-up is 1; None is the first.
    ax, current, by_hand, provenance
        As for `speedup_bars`.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    InputError
        No records, a missing column, an unknown baseline or an unknown `y`.

    Examples
    --------
    >>> row = {"schedule": "AR-Opt", "elements": 1024, "median_us": 12.0, "p10_us": 11.0, "p90_us": 13.0}
    >>> scaling_lines([row, {**row, "elements": 2048, "median_us": 12.5}]).get_xlabel()
    'elements'
    """
    one_of(y, ("median_us", "speedup"), "y", hint='scaling_lines(records, y="speedup")', error=InputError)
    rows = _records(records)
    series = _series(rows, x)
    if not series:
        raise _no_records()
    if y == "speedup":
        series, scale, label = _speedups(series, baseline), 1.0, "speed-up"
    else:
        scale, unit = _scale_of(t for line in series.values() for t in line)
        label = f"median, {unit}"
    ax = new_axes(ax, (7.2, 3.8))
    hand = {name for name in series if is_by_hand(name)} if by_hand is None else set(by_hand)
    black = current if current is not None else next((n for n in reversed(series) if n not in hand), "")
    for at, (name, line) in enumerate(series.items()):
        _line(ax, line, scale, MARKERS[at % len(MARKERS)], is_current=name == black, is_dashed=name in hand)
    _line_axes(ax, x, label, is_ratio=y == "speedup")
    _end_labels(ax, {name: line[-1].median_us * scale for name, line in series.items()}, black)
    add_caption(ax, provenance_of(rows) if provenance is None else provenance, "median, band p10 to p90")
    return ax


def is_by_hand(name: str) -> bool:
    """Whether a schedule's name is that of a hand-written baseline: library calls joined by ``+``, or one of them."""
    return "+" in name.partition("(")[0] or name.partition(" ")[0] in ("all_reduce", "reduce_scatter", "by hand")


def _records(given: Iterable[Record]) -> list[Record]:
    """Records as a list of mappings; a comparison gives its own."""
    found = given.records() if hasattr(given, "records") else given
    if not isinstance(found, Iterable) or isinstance(found, str | bytes | Mapping):
        raise _no_records(found)
    rows = list(found)
    wrong = [row for row in rows if not isinstance(row, Mapping)]
    if wrong or not rows:
        raise _no_records(*wrong)
    return rows


def _no_records(*found: Any) -> InputError:
    return InputError(
        f"{shown(found[0])} is no record to draw" if found else "there are no records to draw",
        rule="a plot shows at least one row, each a mapping of the columns of a measurement file",
        where=str(caller_site() or ""),
        hint="comparison.records()",
    )


def timing(row: Record, name: Any, x: Any) -> Timing:
    """The numbers of a row, which a CSV reader leaves as text.

    Raises
    ------
    InputError
        A column is missing or no number.
    """
    try:
        numbers = [float(row[key]) for key in ("median_us", "p10_us", "p90_us")]
        if not all(map(math.isfinite, numbers)) or not isinstance(name, str):
            raise ValueError
        return Timing(name, float(x), *numbers)
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"the record {dict(row)!r} cannot be drawn",
            rule="a record has schedule, median_us, p10_us and p90_us, and the column of the axis, as numbers",
            where=str(caller_site() or ""),
            hint="comparison.records(), or the rows of a measurement file",
        ) from None


def _check_bars(names: Sequence[str]) -> None:
    if not names:
        raise InputError("there are no records to draw", rule="a plot shows at least one", hint="comparison.records()")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"{names.count(twice)} records are of schedule {twice!r}",
            rule="bars compare schedules at one size, dtype and number of ranks",
            hint="scaling_lines(records), or leave only one size",
        )


def _known(name: str, names: Collection[str]) -> str:
    if name not in names:
        raise InputError(
            f"no record is of the baseline {name!r}", rule="the baseline is one of the schedules",
            hint=", ".join(map(repr, names)),
        )  # fmt: skip
    return name


def _scale_of(timings: Iterable[Timing]) -> tuple[float, str]:
    """What microseconds are multiplied with, and the unit they then have."""
    return (1e-3, "ms") if max(t.median_us for t in timings) >= MILLISECONDS_FROM_US else (1.0, "µs")


def _bar(ax: Any, at: int, t: Timing, scale: float, *, is_current: bool, is_dashed: bool) -> None:
    ax.barh(
        at, t.median_us * scale, height=0.56, color="none" if is_dashed else LIGHT.text if is_current else GREY,
        edgecolor=LIGHT.muted if is_dashed else "none", linestyle=(0, (3, 2)) if is_dashed else "-", linewidth=1.0,
    )  # fmt: skip
    spread = [[(t.median_us - t.p10_us) * scale], [(t.p90_us - t.median_us) * scale]]
    ax.errorbar(t.median_us * scale, at, xerr=spread, color=LIGHT.muted, capsize=2.5, linewidth=1.0, capthick=1.0)


def _name_bars(ax: Any, names: Sequence[str], black: str) -> None:
    ax.set_xticks([])
    ax.set_yticks(range(len(names)), [short(visible(name), 34) for name in names], parse_math=False)
    for tick, name in zip(ax.get_yticklabels(), names):
        tick.set(color=LIGHT.text, fontweight="bold" if name == black else "normal")
    ax.set_ylim(len(names) - 0.45, -0.55)


def _bar_text(ax: Any, at: int, t: Timing, base: Timing, scale: float, unit: str, is_current: bool) -> None:
    gap = {"xycoords": "data", "textcoords": "offset points", "va": "center", "fontsize": 9, "annotation_clip": False}
    weight = "bold" if is_current else "normal"
    time = f"{t.median_us * scale:.3g} {unit}"
    ax.annotate(time, (t.p90_us * scale, at), (6, 0), color=LIGHT.text, fontweight=weight, **gap)
    ratio = f"{base.median_us / t.median_us:.2f}×"
    ax.annotate(ratio, (t.p90_us * scale, at), (58, 0), color=LIGHT.muted, fontweight=weight, **gap)


def _series(rows: Sequence[Record], x: str) -> dict[str, list[Timing]]:
    """Rows by schedule, and by dtype and ranks where there are several, each line along the axis."""
    several = [key for key in ("workload", "dtype", "ranks") if key != x and len({r.get(key) for r in rows}) > 1]
    lines: dict[str, list[Timing]] = {}
    for row in rows:
        units = {"ranks": " ranks"}
        name = " ".join([str(row.get("schedule")), *(f"{row.get(key)}{units.get(key, '')}" for key in several)])
        lines.setdefault(name, []).append(timing(row, name, row.get(x)))
    return {name: sorted(line, key=lambda t: t.x) for name, line in lines.items()}


def _speedups(series: Mapping[str, list[Timing]], baseline: str | None) -> dict[str, list[Timing]]:
    """Every line divided by the baseline's at the same place; what the baseline did not measure is left out.

    With several dtypes or ranks, each line has the baseline of its own.
    """
    first = next(iter(series)).partition(" ")[0] if baseline is None else baseline
    made: dict[str, list[Timing]] = {}
    for name, line in series.items():
        suffix = name.partition(" ")[1:]
        own = first + "".join(suffix) if first + "".join(suffix) in series else first
        base = {t.x: t.median_us for t in series[_known(own, series)]}
        found = [
            Timing(name, t.x, base[t.x] / t.median_us, base[t.x] / t.p90_us, base[t.x] / t.p10_us)
            for t in line
            if t.x in base
        ]
        made.update({name: found} if found else {})
    return made


def _line_axes(ax: Any, x: str, label: str, *, is_ratio: bool) -> None:
    ax.set_xscale("log", base=2)
    if is_ratio:
        ax.axhline(1.0, color=LIGHT.edge, linewidth=0.8, linestyle=(0, (3, 2)), zorder=0)
    else:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    plain_frame(ax, x_label=x, y_label=label)
    ax.yaxis.grid(True, color=LIGHT.line, linewidth=0.8)
    ax.set_axisbelow(True)


def _line(ax: Any, line: Sequence[Timing], scale: float, marker: str, *, is_current: bool, is_dashed: bool) -> None:
    colour = LIGHT.text if is_current else GREY
    xs = [t.x for t in line]
    low, high = [t.p10_us * scale for t in line], [t.p90_us * scale for t in line]
    ax.fill_between(xs, low, high, color=colour, alpha=0.18, linewidth=0)
    ax.plot(
        xs, [t.median_us * scale for t in line], color=colour, marker=marker, markersize=4.5,
        linewidth=2.0 if is_current else 1.3, linestyle=(0, (4, 2)) if is_dashed else "-",
    )  # fmt: skip


def _end_labels(ax: Any, ends: Mapping[str, float], black: str) -> None:
    """Marker and name at the right end of every line, moved apart where they would cover each other."""
    to_axes = ax.transData + ax.transAxes.inverted()
    wanted = {name: to_axes.transform((ax.get_xlim()[1], y))[1] for name, y in ends.items()}
    step = 11.5 * ax.figure.dpi / 72 / (ax.get_window_extent().height or 1.0)
    for name, at in spread(wanted, step).items():
        marker = MARKERS[list(ends).index(name) % len(MARKERS)]
        colour = LIGHT.text if name == black else GREY
        ax.plot([1.02], [at], marker, transform=ax.transAxes, color=colour, markersize=4.5, clip_on=False)
        ax.text(
            1.035, at, short(visible(name), 36), transform=ax.transAxes, va="center", fontsize=8.5, parse_math=False,
            color=LIGHT.text if name == black else LIGHT.muted, fontweight="bold" if name == black else "normal",
        )  # fmt: skip


def spread(wanted: Mapping[str, float], step: float) -> dict[str, float]:
    """Places at least `step` apart, in the order of `wanted` and near it: halfway between pushing up and pushing down.

    Examples
    --------
    >>> spread({"a": 1.0, "b": 1.0, "c": 5.0}, 1.0)
    {'a': 0.5, 'b': 1.5, 'c': 5.0}
    """
    order = sorted(wanted, key=lambda name: wanted[name])
    up, down = dict(wanted), dict(wanted)
    for lower, upper in pairwise(order):
        up[upper] = max(up[upper], up[lower] + step)
    for lower, upper in reversed(list(pairwise(order))):
        down[lower] = min(down[lower], down[upper] - step)
    return {name: (up[name] + down[name]) / 2 for name in order}


# -- what every plot shares ------------------------------------------------------------------------------------------


def new_axes(ax: Any, size: tuple[float, float]) -> Any:
    """The Axes given, or those of a new figure of `size` inches."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    _, ax = plt.subplots(figsize=size, layout="constrained", facecolor=LIGHT.background)
    return ax


def plain_frame(ax: Any, *, x_label: str = "", y_label: str = "") -> None:
    """Axes in the house's look: two thin lines, DejaVu, muted ticks."""
    ax.set_facecolor(LIGHT.background)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(LIGHT.line)
    ax.tick_params(which="both", length=0)
    ax.tick_params(colors=LIGHT.muted, labelsize=9, labelfontfamily=FONT)
    ax.set_xlabel(x_label, color=LIGHT.muted, fontsize=9, fontfamily=FONT)
    ax.set_ylabel(y_label, color=LIGHT.muted, fontsize=9, fontfamily=FONT)


def provenance_of(rows: Sequence[Record]) -> dict[str, str]:
    """machine, date, command and the like as far as all rows agree on them."""
    found = {}
    for key in ("machine", "ranks", "backend", "date", "command"):
        values = {str(row[key]) for row in rows if row.get(key)}
        if len(values) == 1:
            found[key] = values.pop()
    return found


def add_caption(ax: Any, provenance: Mapping[str, Any] | None, note: str = "") -> None:
    """A line under the plot: what it shows, and where, when and how it was measured."""
    known = dict(provenance or {})
    if known.get("ranks"):
        known["ranks"] = f"{known['ranks']} ranks"
    parts = [str(known[key]) for key in ("machine", "ranks", "backend", "date") if known.get(key)]
    lines = ["; ".join(filter(None, [note, ", ".join(parts)]))]
    lines += [str(known["command"])] if known.get("command") else []
    text = "\n".join(short(visible(line), 110) for line in lines if line)
    if text:
        ax.annotate(
            text, (0, 0), (0, -32 if ax.get_xlabel() or len(ax.get_xticks()) else -10), xycoords="axes fraction",
            textcoords="offset points", va="top", ha="left", fontsize=7.5, color=LIGHT.muted, fontfamily=FONT,
            annotation_clip=False, parse_math=False,
        )  # fmt: skip
