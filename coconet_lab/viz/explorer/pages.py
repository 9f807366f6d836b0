"""The explorer's panes as HTML: header, moves, history, cost strip, legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coconet_lab.run.results import duration
from coconet_lab.viz.explorer.costs import Cell, Change, unchanged_text
from coconet_lab.viz.explorer.html import button, select, tag, text
from coconet_lab.viz.explorer.moves_panel import Card, Declined
from coconet_lab.viz.explorer.state import Node, State
from coconet_lab.viz.explorer.words import listed
from coconet_lab.viz.scene import short

SIGNS = {
    "unchecked": ("", "not checked"),
    "proved": ("✓", "equal to the start"),
    "wrong": ("✗", "differs from the start"),
}
MOST_CARDS = 24
ROW_PX = 24
LONGEST_REASON = 150


@dataclass(frozen=True, slots=True)
class Busy:
    """What is under way. `done` and `total` draw the bar; a negative total means that none is known."""

    words: str
    done: int = 0
    total: int = -1
    can_cancel: bool = False


@dataclass(frozen=True, slots=True)
class Moves:
    """What the moves pane shows. `found` are all cards in their order; `shown` the indices into them."""

    selected: tuple[str, ...]
    found: Sequence[Card]
    shown: Sequence[int]
    near: Sequence[Declined] = ()
    never: Sequence[Declined] = ()
    changes: Mapping[int, tuple[Change, ...]] = field(default_factory=dict)
    refused: str = ""
    is_thinking: bool = False


def header(state: State, busy: Busy | None, run_label: str, run_hint: str, label: str = "") -> str:
    """Name, schedule (`label` is the paper's name) and proof at the left, buttons at the right."""
    node = state.node
    title = node.name or label or node.title
    sign, words = SIGNS[node.proof]
    badge = tag("span", text(f"{sign} {words}".strip()), cls=f"cl-badge {node.proof}", title=node.proof_text or None)
    left = tag("b", text(state.program.name), title=state.program.name) + tag(
        "input", type="text", cls="cl-name", value=node.name, placeholder=title, data_change="rename",
        data_arg=node.id, data_key="name", aria_label="name of this schedule", maxlength=60, spellcheck="false",
        size=max(12, min(34, len(title))),
    )  # fmt: skip
    if node.parent is None and node.proof == "unchecked":
        badge = ""  # the start is what others are compared with
    if busy is not None:
        status = tag("span", text(busy.words), cls="cl-busy", title=busy.words)
        if busy.can_cancel:
            status += button("Cancel", "cancel", title="Keep what was measured (.)")
        badge = ""
    else:
        status = ""
    right = button("Undo", "undo", aria_disabled="true" if node.parent is None else None, title="Undo (U)")
    right += button("Redo", "redo", aria_disabled=None if state.undone else "true", title="Redo (Y)")
    right += button("Check", "check", title="Prove it on simulated ranks (C)")
    right += button(run_label, "run", cls="cl-primary", title=run_hint, aria_disabled="true" if busy else None)
    right += button("?", "keys", title="Keys", aria_label="keys")
    bar = ""
    if busy is not None:
        share = min(100, round(100 * busy.done / busy.total)) if busy.total > 0 else None
        style = f"width:{share}%" if share is not None else None
        bar = tag(
            "div", tag("i", style=style), cls="cl-bar" + ("" if share is not None else " unknown"), role="progressbar",
            aria_valuenow=share, aria_valuemin=0, aria_valuemax=100, aria_label="progress",
        )  # fmt: skip
    return tag("div", left + badge + status, cls="cl-title") + tag("div", right, cls="cl-buttons") + bar


# -- moves -----------------------------------------------------------------------------------------------------------


def moves(panel: Moves, node: int) -> str:
    """Cards of the legal moves, then refusals with a way out, then what does not apply."""
    if panel.selected:
        names = listed([short(name, 30) for name in panel.selected], 3)
        head = tag("h3", "Moves for " + tag("code", text(names), title=", ".join(panel.selected[:20]))) + button(
            "show all", "clear", cls="cl-link", key="all"
        )
    else:
        head = tag("h3", "All legal moves") + tag("span", "click an operation to narrow", cls="cl-dim")
    parts = [tag("div", head, cls="cl-head")]
    if panel.refused:
        parts.append(tag("pre", text_lines(panel.refused), cls="cl-error", role="alert"))
    shown = list(panel.shown)[:MOST_CARDS]
    parts += [_card(panel.found[at], at, number, node, panel.changes.get(at)) for number, at in enumerate(shown, 1)]
    if len(panel.shown) > MOST_CARDS:
        parts.append(tag("p", f"{len(panel.shown) - MOST_CARDS} more: click an operation to narrow", cls="cl-dim"))
    if not panel.shown:
        words = "Looking for moves …" if panel.is_thinking else (
            "No legal move left here: run it, or step back in History."
            if not panel.found or not panel.selected
            else f"No legal move for this selection; {len(panel.found)} for others: show all."
        )  # fmt: skip
        parts.append(tag("p", text(words), cls="cl-dim cl-none"))
    parts.append(_refusals(panel, node))
    return "".join(parts)


def text_lines(words: str) -> str:
    """Escaped lines."""
    return "\n".join(text(line) for line in words.split("\n"))


def _card(card: Card, at: int, number: int, node: int, found: tuple[Change, ...] | None) -> str:
    digit = tag("kbd", str(number)) if number <= 9 else ""
    title = f"{digit} {tag('b', text(card.title))} {tag('code', text(card.operands))}"
    if found is None:
        costs = tag("span", "…", cls="cl-dim")
    elif not found:
        costs = tag("span", unchanged_text(found), cls="cl-dim")
    else:
        costs = " ".join(
            tag("span", f"{text(change.label)} {tag('b', text(change.text), cls=change.tone)}", cls="cl-change")
            for change in found
        )
    inner = tag("span", title, cls="cl-card-title" + (" beside" if card.choices else ""))
    inner += tag("span", text(card.effect), cls="cl-effect") + tag("span", costs, cls="cl-costs")
    main = tag(
        "button", inner, type="button", data_act="move", data_arg=f"{node}:{at}", data_key=f"move {number}",
        data_card=at, cls="cl-card-main",
    )  # fmt: skip
    picker = ""
    if card.choices:
        options = [(f"{node}:{at}:{index}", words) for index, (words, _) in enumerate(card.choices)]
        chosen = next((f"{node}:{at}:{i}" for i, (_, step) in enumerate(card.choices) if step == card.step), "")
        picker = tag("span", select("choose", options, chosen, label=f"form of {card.title} {card.operands}",
                                    data_key=f"choice {number}"), cls="cl-picker")  # fmt: skip
    return tag("div", main + picker, cls="cl-card")


def _refusals(panel: Moves, node: int) -> str:
    count = len(panel.near) + len(panel.never)
    if not count:
        return ""
    rows = "".join(_near(entry, at, node) for at, entry in enumerate(panel.near))
    if panel.never:
        lines = "".join(_refused(entry, f"never {at}") for at, entry in enumerate(panel.never))
        rows += tag("div", lines, cls="cl-never", aria_label="does not apply")
    head = tag("div", f"Not possible here ({count})", cls="cl-section")
    return head + rows


def _near(entry: Declined, at: int, node: int) -> str:
    way = button(entry.way_text, "wayout", f"{node}:{at}", key=f"way {at}", cls="cl-link") if entry.way_text else ""
    return tag("div", _refused(entry, f"near {at}", way), cls="cl-near")


def _refused(entry: Declined, key: str, way: str = "") -> str:
    found = _sentence(entry.refusal.found)
    is_long = len(found) > LONGEST_REASON
    words = f"{tag('b', text(entry.title))}: {text(found[:LONGEST_REASON] + '… ' if is_long else found + ' ')}"
    hint = (text(found) + "<br>" if is_long else "") + text(entry.refusal.rule)
    hint += f"<br>try: {text(entry.refusal.hint)}" if entry.refusal.hint else ""
    place = f"cl-rule-{key.replace(' ', '-')}"
    rule = tag("span", hint, cls="cl-rule", role="tooltip", id_=place)
    reason = tag(
        "span", words, cls="cl-reason", role="button", tabindex=0, aria_disabled="true", data_key=key,
        aria_describedby=place,
    )  # fmt: skip
    return tag("div", reason + way + rule, cls="cl-refused")


def _sentence(found: str) -> str:
    return found if found.endswith((".", "!", "?")) else f"{found}."


# -- history ---------------------------------------------------------------------------------------------------------


def history(state: State, goto: Sequence[str], labels: Mapping[int, str]) -> str:
    """The tree of schedules: a row each, the branch one is on straight, others to the side."""
    rows = list(tree_rows(state.nodes))
    head = tag("h3", "History")
    if goto:
        options = [("", "Go to …"), *((name, name) for name in goto)]
        head += select("goto", options, "", label="go to a schedule of the paper", data_key="goto")
    else:
        head += tag("span", "median of the last run", cls="cl-dim")
    depth = max(level for _, level in rows)
    width = 16 + 13 * depth
    items = "".join(_history_row(state, node, level, width, labels.get(node.id, "")) for node, level in rows)
    body = _tree_lines(rows, state, width) + items
    return tag("div", head, cls="cl-head") + tag("div", body, cls="cl-tree", role="tree", aria_label="schedules tried")


def tree_rows(nodes: Sequence[Node]) -> list[tuple[Node, int]]:
    """Nodes in drawing order, each with its depth: a node's last child goes on straight, earlier ones branch off."""
    children: dict[int | None, list[Node]] = {}
    for node in nodes:
        children.setdefault(node.parent, []).append(node)
    rows: list[tuple[Node, int]] = []
    pending = [(nodes[0], 0)]
    while pending:
        node, depth = pending.pop()
        rows.append((node, depth))
        below = children.get(node.id, [])
        if below:
            pending.append((below[-1], depth))
            pending += [(child, depth + 1) for child in reversed(below[:-1])]
    return rows


def _history_row(state: State, node: Node, level: int, width: int, label: str) -> str:
    sign, words = SIGNS[node.proof]
    found = node.measured
    time = duration(found.median_us) if found is not None and found.samples_us else ""
    here = node.id == state.current
    extra = tag("span", text(label), cls="cl-dim") if label and label != node.title else ""
    inner = tag("span", f"{text(node.title)} {extra}", cls="cl-row-name")
    title = f"{node.title}{f' = {label}' if label and label != node.title else ''}: {words}"
    inner += tag("span", sign, cls=f"cl-sign {node.proof}", title=words) + tag("span", text(time), cls="cl-time")
    return tag(
        "button", inner, type="button", role="treeitem", data_act="jump", data_arg=node.id, data_key=f"node {node.id}",
        cls="cl-row" + (" here" if here else ""), style=f"padding-left:{width + 6}px", tabindex=0 if here else -1,
        aria_current="true" if here else None, aria_level=level + 1, title=title,
        aria_label=title + (f", {time}" if time else ""),
    )  # fmt: skip


def _tree_lines(rows: Sequence[tuple[Node, int]], state: State, width: int) -> str:
    place = {node.id: (8 + 13 * depth, ROW_PX * at + ROW_PX // 2) for at, (node, depth) in enumerate(rows)}
    lines = []
    for node, _ in rows:
        if node.parent is None:
            continue
        (x0, y0), (x1, y1) = place[node.parent], place[node.id]
        bend = f"V{y1 - 8} Q{x0},{y1} {x0 + 8},{y1} H{x1}" if x0 != x1 else f"V{y1}"
        lines.append(f'<path d="M{x0},{y0} {bend}"/>')
    here = ' class="here"'
    for node, _ in rows:
        x, y = place[node.id]
        lines.append(f'<circle cx="{x}" cy="{y}" r="4"{here if node.id == state.current else ""}/>')
    height = ROW_PX * len(rows)
    return f'<svg aria-hidden="true" width="{width}" height="{height}">{"".join(lines)}</svg>'


# -- strip and legend ------------------------------------------------------------------------------------------------


def strip(cells: Sequence[Cell]) -> str:
    """The cost strip."""
    return "".join(
        tag("div", tag("span", text(cell.label), cls="cl-dim")
            + tag("span", f"{tag('b', text(cell.value))} {tag('span', text(cell.note), cls=cell.tone)}"),
            cls="cl-cell", title=cell.tooltip or None)
        for cell in cells
    )  # fmt: skip


def legend() -> str:
    """What colours and lines mean."""
    entries = (
        ("local", "Local"), ("replicated", "Replicated"), ("sliced", "Sliced"), ("comm", "⇄ collective"),
        ("fused", "fused"), ("overlap", "overlap"), ("changed", "changed"),
    )  # fmt: skip
    return "".join(tag("span", tag("i", cls=kind) + text(words)) for kind, words in entries)
