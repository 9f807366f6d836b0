"""The detail drawer as HTML: the tabs Layout, Code, Run, Compare and Script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coconet_lab.errors import CoconetError
from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Program
from coconet_lab.run.results import duration
from coconet_lab.viz.explorer.costs import FIELDS, Costs
from coconet_lab.viz.explorer.html import button, lines_text, select, tag, text
from coconet_lab.viz.explorer.kernel_text import KernelText, highlighted
from coconet_lab.viz.explorer.spans import timeline_html
from coconet_lab.viz.explorer.state import TABS, Node, State
from coconet_lab.viz.layouts import collective_svg, layout_svg
from coconet_lab.viz.scene import bytes_text, short

NOTES = {
    "layout": "which rank holds which block, before and after",
    "code": "what the ranks run, generated from the program",
    "run": "median, p10 to p90, the slowest rank",
    "compare": "every schedule tried, per rank",
    "script": "Python that rebuilds this schedule",
}


@dataclass(frozen=True, slots=True)
class Notice:
    """What a person should read: an error's four lines, tracebacks by rank, whether the ranks have ended; or a word."""

    words: str
    tracebacks: tuple[tuple[int, str], ...] = ()
    is_death: bool = False
    is_error: bool = True


def tabs(open_tab: str) -> str:
    """The row of tabs."""
    row = "".join(
        button(name.capitalize(), "tab", name, key=f"tab {name}", role="tab",
               aria_selected="true" if name == open_tab else "false", tabindex=0 if name == open_tab else -1)
        for name in TABS
    )  # fmt: skip
    return tag("div", row, role="tablist", cls="cl-tablist", aria_label="details") + tag(
        "span", NOTES[open_tab], cls="cl-dim"
    )


def layout_tab(program: Program, selected: Sequence[str]) -> str:
    """Pictures of who holds what: of the selected value, with its source where a collective made it."""
    name = selected[0] if selected else _first_collective(program)
    if name is None:
        return tag("p", "Select an operation to see which rank holds which block.", cls="cl-dim")
    op = program.ops[name]
    try:
        moves_data = op.is_collective or isinstance(op, o.LocalSlice)
        svg = collective_svg(program, name) if moves_data else _before_and_after(program, name)
    except CoconetError as error:
        return tag("pre", lines_text(error), cls="cl-error")
    return tag("div", svg, cls="cl-layouts")


def _before_and_after(program: Program, name: str) -> str:
    """A value, and below it what the collective that reads it makes of it."""
    reader = next((r for r in program.readers[name] if program.ops[r].is_collective), None)
    if reader is not None and next(program.ops[reader].sources, None) == name:
        return collective_svg(program, reader)
    return layout_svg(program[name])


def _first_collective(program: Program) -> str | None:
    return next((name for name, op in program.ops.items() if op.is_collective), next(iter(program.ops), None))


def code_tab(found: Sequence[KernelText], at: int, state: State, error: str = "") -> str:
    """The text of one kernel, the selected operations' lines marked; a choice where there are several."""
    switch = "".join(
        button(
            words, "target", target, key=f"target {target}", aria_pressed="true" if state.target == target else "false"
        )
        for target, words in (("cpu", "CPU"), ("cuda", "CUDA"))
    )
    head = tag("span", switch, cls="cl-switch", role="group", aria_label="target")
    if error or not found:
        words = tag("pre", lines_text(error), cls="cl-error") if error else tag(
            "p", "No generated kernel: this schedule runs library calls alone. Fuse to see code.", cls="cl-dim"
        )  # fmt: skip
        return tag("div", head, cls="cl-code-head") + words
    kernel = found[at]
    if len(found) > 1:
        options = [(str(i), f"{short(k.name, 40)} ({_count(len(k.ops), 'op')})") for i, k in enumerate(found)]
        head += select("kernel", options, str(at), label="kernel", data_key="kernel")
    else:
        head += tag("code", text(kernel.name))
    marked = [name for name in state.selected if name in kernel.ops]
    count = f"{_count(len(kernel.ops), 'op')}, {_count(kernel.launches, 'launch', 'es')}"
    head += tag("span", count + (f" · marked: {text(', '.join(marked))}" if marked else ""), cls="cl-dim")
    head += tag("span", "", cls="cl-gap")
    head += button("Copy", "copy", key="copy code", data_copies="code")
    head += button("Save", "save", key="save code", data_copies="code",
                   data_file="kernel.cu" if state.target == "cuda" else "kernel.py")  # fmt: skip
    body = tag("pre", highlighted(kernel, state.target, marked), cls="cl-code", tabindex=0, data_key="code text",
               aria_label=f"{state.target} code of {kernel.name}")  # fmt: skip
    return tag("div", head, cls="cl-code-head") + body


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


def run_tab(state: State, notice: Notice | None, instead: str) -> str:
    """Bars of the measured times, and when what ran in the last run; errors on top; `instead` where there are none."""
    parts = [error_box(notice)] if notice is not None else []
    timed = [node for node in state.nodes if node.measured is not None and node.measured.samples_us]
    if not timed:
        if notice is None:
            parts.append(tag("p", text(instead), cls="cl-dim"))
        return "".join(parts)
    left = tag("h4", "Time by schedule") + tag("div", _bars(state, timed), cls="cl-bars")
    last = state.node.measured if state.node.measured is not None else timed[-1].measured
    spans = last.spans if last is not None else ()
    shown = state.node if state.node.measured is not None else timed[-1]
    right = tag("h4", f"Last run {tag('span', 'of ' + text(shown.title), cls='cl-dim')}")
    right += timeline_html(spans) if spans else tag("p", "no trace of it is kept", cls="cl-dim")
    parts.append(tag("div", tag("div", left) + tag("div", right), cls="cl-runs"))
    return "".join(parts)


def error_box(notice: Notice) -> str:
    """The four lines of an error, the ranks' tracebacks under them, a way to start again after a death."""
    inner = tag("pre", lines_text(notice.words))
    if notice.is_death:
        inner += button("Start again", "restart", cls="cl-primary")
    for rank, words in notice.tracebacks:
        inner += tag("details", tag("summary", f"traceback of rank {rank}", data_key=f"trace {rank}")
                     + tag("pre", lines_text(words)))  # fmt: skip
    inner += button("Dismiss", "dismiss", cls="cl-link")
    return tag("div", inner, cls="cl-error" if notice.is_error else "cl-note", role="alert")


def _bars(state: State, timed: Sequence[Node]) -> str:
    # A single slow repeat must not squeeze the bars: the whisker is cut instead.
    found_times = [node.measured for node in timed if node.measured is not None]
    longest = max(found.median_us for found in found_times)
    top = min(max(found.quantile_us(0.9) for found in found_times), 1.6 * longest)
    first = next((n.measured for n in timed if n.id == 0), None)
    rows = []
    for node in timed:
        found = node.measured
        if found is None:
            continue
        low, mid, high = (min(100 * found.quantile_us(part) / top, 100.0) for part in (0.1, 0.5, 0.9))
        whisker = tag("i", style=f"left:{low:.1f}%;width:{max(high - low, 0.4):.1f}%", cls="cl-whisker")
        bar = tag("span", tag("i", style=f"width:{mid:.1f}%", cls="cl-filled") + whisker, cls="cl-track")
        ratio = f"{first.median_us / found.median_us:.2f}×" if first is not None else ""
        kept = "" if len(found.samples_us) == found.asked else f" ({len(found.samples_us)} of {found.asked})"
        rows.append(tag(
            "div", tag("span", text(node.title), cls="cl-bar-name") + bar
            + tag("span", f"{duration(found.median_us)} {tag('span', ratio + kept, cls='cl-dim')}"),
            cls="cl-timed" + (" here" if node.id == state.current else ""), title=found.caption or None,
        ))  # fmt: skip
    count = max(len(node.measured.samples_us) for node in timed if node.measured is not None)
    return "".join(rows) + tag("p", f"median of {count}, p10 to p90, slowest rank", cls="cl-dim")


def compare_tab(state: State, costs: Mapping[int, Costs | None], diff: str, against: int) -> str:
    """A table of every schedule tried, and what differs between two of them."""
    known = [found for found in costs.values() if found is not None]
    most = {name: max((getattr(found, name) for found in known), default=0) for _, name, *_ in FIELDS}
    units = {name: "" if name == "launches" else unit_of(most[name]) for name in most}
    named = [f"{label} {units[name]}".strip() for label, name, *_ in FIELDS]
    heads = ["schedule, per rank", *named, "collectives", "predicted", "measured", "× start"]
    numeric = "".join(tag("th", text(words), scope="col") for words in heads)
    start = state.nodes[0].measured
    rows = "".join(
        _compare_row(node, state, costs.get(node.id), most, start.median_us if start else 0) for node in state.nodes
    )
    table = tag("table", tag("thead", tag("tr", numeric)) + tag("tbody", rows))
    options = [(str(node.id), node.title) for node in state.nodes if node.id != state.current]
    if not options:
        return table
    head = tag("label", "What differs from " + select("against", options, str(against), label="compare with",
                                                      data_key="against"), cls="cl-against")  # fmt: skip
    return table + head + tag("pre", _diff_lines(diff), cls="cl-diff")


UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}


def unit_of(most: int) -> str:
    """The unit a column of bytes is written in, by its largest.

    Examples
    --------
    >>> unit_of(48 << 20), unit_of(3)
    ('MiB', 'B')
    """
    return next((unit for unit, size in UNITS.items() if most >= size), "B")


def _compare_row(node: Node, state: State, found: Costs | None, most: Mapping[str, int], start_us: float) -> str:
    cells = [tag("th", button(node.title, "jump", node.id, key=f"compare {node.id}", cls="cl-link"), scope="row")]
    for _, name, *_ in FIELDS:
        if found is None:
            cells.append(tag("td", "…"))
            continue
        value = getattr(found, name)
        if name == "launches":
            cells.append(tag("td", str(value)))
            continue
        bar = tag("i", style=f"width:{round(24 * value / max(most[name], 1))}px", cls="cl-mini")
        cells.append(tag("td", f"{bar}{value / UNITS[unit_of(most[name])]:.4g}", title=bytes_text(value)))
    cells.append(tag("td", str(found.collectives) if found is not None else "…"))
    cells.append(tag("td", "–", title="there is no cost model yet"))
    median = node.measured.median_us if node.measured is not None and node.measured.samples_us else 0.0
    cells.append(tag("td", duration(median) if median else "–"))
    cells.append(tag("td", f"{start_us / median:.2f}×" if median and start_us else "–"))
    return tag("tr", "".join(cells), cls="here" if node.id == state.current else None)


def _diff_lines(diff: str) -> str:
    signs = {"+": "added", "-": "removed"}
    return "\n".join(tag("span", text(line), cls=signs.get(line[:1])) for line in diff.split("\n"))


def script_tab(script: str) -> str:
    """The Python that rebuilds the schedule, with a copy button."""
    head = tag("span", "", cls="cl-gap") + button("Copy", "copy", key="copy script", data_copies="script")
    head += button("Save", "save", key="save script", data_copies="script", data_file="schedule.py")
    body = tag(
        "pre", lines_text(script), cls="cl-code cl-script", tabindex=0, data_key="script text", aria_label="script"
    )
    return tag("div", head, cls="cl-code-head") + body
