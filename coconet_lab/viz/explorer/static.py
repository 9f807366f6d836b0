"""The explorer without a kernel: graph, script and costs on white, in plain attributes, for exports."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence

from coconet_lab.run.results import duration
from coconet_lab.viz.draw import Drawing
from coconet_lab.viz.explorer.costs import FIELDS, Costs
from coconet_lab.viz.explorer.html import lines_text, tag, text
from coconet_lab.viz.explorer.state import Node, State
from coconet_lab.viz.palette import LIGHT, MONO_STACK
from coconet_lab.viz.scene import bytes_text, program_scene

_CELL = f"padding:3px 10px;border-bottom:1px solid {LIGHT.line};text-align:"


def drawing(state: State) -> Drawing:
    """The current program, what the last step changed lit, with its legend."""
    changed = frozenset(state.changed)
    return Drawing(
        program_scene(state.program, highlight=changed, opened=frozenset(state.opened)), repr(state.schedule)
    )


def static_html(state: State, costs: Mapping[int, Costs | None], mark: str) -> str:
    """A `div` of class `mark` that says all the explorer shows: the live widget hides it."""
    picture = drawing(state).svg
    script = tag(
        "pre", lines_text(state.schedule.script()), style=f"font:12px {MONO_STACK};color:{LIGHT.text};margin:8px 0"
    )
    head = tag("p", f"{tag('b', text(state.program.name))} · {text(state.node.title)}"
               + (f" · {text(state.node.proof_text)}" if state.node.proof != "unchecked" else ""),
               style="margin:0 0 6px")  # fmt: skip
    shown = [node for node in state.nodes if costs.get(node.id) is not None or node.measured is not None]
    table = _table(shown, costs, state.current) if shown else ""
    style = f"background:{LIGHT.background};color:{LIGHT.text};padding:10px;font:13px sans-serif"
    return tag("div", head + tag("div", picture) + script + table, cls=mark, style=style)


def _table(nodes: Sequence[Node], costs: Mapping[int, Costs | None], current: int) -> str:
    heads = ["schedule, per rank", *(label for label, *_ in FIELDS), "measured"]
    top = "".join(
        tag("th", text(words), style=f"{_CELL}{'left' if at == 0 else 'right'}") for at, words in enumerate(heads)
    )
    rows = []
    for node in nodes:
        found = costs.get(node.id)
        cells = [
            tag("td", text(node.title), style=f"{_CELL}left" + (";font-weight:bold" if node.id == current else ""))
        ]
        for _, name, *_ in FIELDS:
            value = getattr(found, name) if found is not None else None
            shown = "–" if value is None else str(value) if name == "launches" else bytes_text(value)
            cells.append(tag("td", shown, style=f"{_CELL}right"))
        timed = node.measured is not None and node.measured.samples_us
        cells.append(
            tag("td", duration(node.measured.median_us) if timed and node.measured else "–", style=f"{_CELL}right")
        )
        rows.append(tag("tr", "".join(cells)))
    return tag(
        "table",
        tag("thead", tag("tr", top)) + tag("tbody", "".join(rows)),
        style="border-collapse:collapse;font-size:12px",
    )


def static_text(state: State) -> str:
    """The explorer as plain text."""
    return f"Explorer of {state.program.name}, at {state.node.title}\n{state.schedule.script()}"


def png_text(content: bytes) -> str:
    """A PNG as a notebook keeps it."""
    return b64encode(content).decode("ascii")
