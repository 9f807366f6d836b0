"""A state as the panes of the page: everything on screen is drawn from it, nothing is remembered there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from coconet_lab.errors import CoconetError
from coconet_lab.viz.draw import changed_groups
from coconet_lab.viz.explorer import drawer, pages
from coconet_lab.viz.explorer.costs import strip
from coconet_lab.viz.explorer.facts import Facts, touches_boxes
from coconet_lab.viz.explorer.graph import Graph
from coconet_lab.viz.explorer.html import button, tag
from coconet_lab.viz.explorer.kernel_text import kernel_of
from coconet_lab.viz.explorer.moves_panel import Card, Declined, declined, for_selection
from coconet_lab.viz.explorer.said import said
from coconet_lab.viz.explorer.state import State

MOST_SELECTED = 6  # with more, why each kind of move is refused says little


@dataclass(frozen=True, slots=True)
class Looks:
    """What is on screen but not in the history.

    Parameters
    ----------
    mark : str
        Class of the static picture, which the page hides.
    busy : Busy or None
    notice : Notice or None
        An error to show in the Run tab.
    refused : str
        Why the last click was refused.
    kept : names
        Selected by name: never folded.
    kernel : int or None
        The kernel chosen in the Code tab.
    against : int
        The schedule the current one is compared with.
    file : str
        Where the history is kept.
    """

    mark: str
    busy: pages.Busy | None = None
    notice: drawer.Notice | None = None
    refused: str = ""
    kept: tuple[str, ...] = ()
    kernel: int | None = None
    against: int = 0
    file: str = ""

    def but(self, **changes: Any) -> Looks:
        """A copy with some parts changed."""
        return replace(self, **changes)


class Page:
    """Draws states; keeps the last graph and refusals, which clicks refer to."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._numbers = count(1)
        self.graph: Graph | None = None
        self.near: Sequence[Declined] = ()

    def view(self, state: State, looks: Looks, cluster: Any) -> dict[str, Any]:
        """All panes."""
        graph = self._facts.graphs.draw(state.program, _present(state, looks.kept), state.opened, _lit_groups(state))
        self.graph = graph
        found = self._facts.cards_if_quick(state.node)
        tab, copies = self._drawer(state, looks, cluster)
        labels, shown = graph.labels(), None if found is None else self.shown_cards(state, found)
        return {
            "n": next(self._numbers),
            "mark": looks.mark,
            "program": state.program.name,
            "file": looks.file,
            "said": said(state, shown, looks.busy, self._facts.labels().get(state.current, "")),
            "header": self.header(state, looks, cluster),
            "graph": graph.svg,
            "boxes": [[box.id, labels[box.id], box.shape == "fold", box.names[0]] for box in graph.boxes],
            "edges": [list(edge) for edge in graph.edges],
            "selected": _ids(graph, state.selected),
            "changed": _ids(graph, state.changed),
            "changedGroups": list(graph.lit),
            "tools": self._tools(state, graph),
            "legend": pages.legend(),
            "moves": self._moves(state, looks, found),
            "touches": touches_boxes(found or (), graph.ids),
            "history": pages.history(state, list(self._facts.paper), self._facts.labels()),
            "strip": self._strip(state),
            "tabs": drawer.tabs(state.tab),
            "drawer": tab,
            "copies": copies,
        }

    def header(self, state: State, looks: Looks, cluster: Any) -> str:
        """The header alone."""
        label, hint = _run_words(state, cluster)
        return pages.header(state, looks.busy, label, hint, self._facts.labels().get(state.current, ""))

    @staticmethod
    def kept(state: State, looks: Looks) -> tuple[str, ...]:
        """Selected names that must not be folded away."""
        return _present(state, looks.kept)

    def shown_cards(self, state: State, found: Sequence[Card]) -> list[int]:
        """Places in `found` of the cards that a selection leaves."""
        chosen = {id(card) for card in for_selection(found, state.selected)}
        return [at for at, card in enumerate(found) if id(card) in chosen]

    def _moves(self, state: State, looks: Looks, found: Sequence[Card] | None) -> str:
        shown = self.shown_cards(state, found or ())
        near: Sequence[Declined] = ()
        never: Sequence[Declined] = ()
        if found is not None and 0 < len(state.selected) <= MOST_SELECTED:
            near, never = declined(state.program, state.selected, {found[at].step.kind for at in shown})
        self.near = near
        self._facts.costs_if_quick(state.node)
        panel = pages.Moves(
            state.selected, found or (), shown, near, never, self._facts.changes(state.node, shown), looks.refused,
            is_thinking=found is None,
        )  # fmt: skip
        return pages.moves(panel, state.current)

    def _strip(self, state: State) -> str:
        costs, start = self._facts.costs_if_quick(state.node), self._facts.costs_if_quick(state.nodes[0])
        timed = state.nodes[0].measured
        if state.node.parent is None:
            timed = state.node.measured
        return pages.strip(strip(costs, start, state.node.measured, timed, state.program.ranks))

    def _tools(self, state: State, graph: Graph) -> str:
        found = "".join(
            button(f"{scope} ×", "fold", scope, key=f"fold {scope}", title=f"fold {scope}") for scope in state.opened
        )
        if graph.has_folds or len(state.program) > 40:
            found += tag("input", type="search", placeholder="find a name  /", data_change="find", data_key="find",
                         aria_label="find a name", spellcheck="false")  # fmt: skip
        found += tag("span", "", cls="cl-gap")
        found += button("−", "zoom out", aria_label="zoom out") + button("fit", "zoom fit")
        return found + button("+", "zoom in", aria_label="zoom in")

    def _drawer(self, state: State, looks: Looks, cluster: Any) -> tuple[str, dict[str, str]]:
        copies = {"script": state.schedule.script(), "code": ""}
        if state.tab == "code":
            found, error = self._facts.code(state.node, state.target)
            at = (
                looks.kernel
                if looks.kernel is not None and looks.kernel < len(found)
                else kernel_of(found, state.selected)
            )
            copies["code"] = "\n".join(found[at].lines) + "\n" if found else ""
            return drawer.code_tab(found, at, state, error), copies
        if state.tab == "run":
            way = f"not run yet. {_run_words(state, cluster)[0]}: the button above, or R."
            return drawer.run_tab(state, looks.notice, "running …" if looks.busy else way), copies
        if state.tab == "compare":
            return self._compare(state, looks), copies
        if state.tab == "script":
            return drawer.script_tab(copies["script"]), copies
        return drawer.layout_tab(state.program, state.selected), copies

    def _compare(self, state: State, looks: Looks) -> str:
        costs = {n.id: self._facts.known_costs(n.id) for n in state.nodes}
        against = looks.against if looks.against < len(state.nodes) and looks.against != state.current else 0
        against = against if against != state.current else min(1, len(state.nodes) - 1)
        try:
            diff = state.nodes[against].schedule.diff(state.schedule).text
        except CoconetError as error:
            diff = str(error)
        return drawer.compare_tab(state, costs, diff, against)


def _lit_groups(state: State) -> frozenset[str]:
    if not state.lit or state.node.parent is None:
        return frozenset()
    record = state.schedule.record[-1]
    return changed_groups(record.after, record.before)


def _present(state: State, names: Sequence[str]) -> tuple[str, ...]:
    chosen = set(state.selected)
    return tuple(dict.fromkeys(name for name in names if name in state.program.ops and name in chosen))


def _ids(graph: Graph, names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(graph.ids[name] for name in names if name in graph.ids))


def _run_words(state: State, cluster: Any) -> tuple[str, str]:
    """The run button's label and tooltip."""
    ranks = state.program.ranks
    if cluster is None:
        what = f"{ranks} CPU rank{'' if ranks == 1 else 's'}"
        return f"Start {what}", f"Start {what} on this machine, then run and time this schedule (R)"
    if getattr(cluster, "state", "") == "ranks ended":
        return f"Start {cluster.ranks} ranks again", "The ranks have ended; new ones start, then this schedule runs (R)"
    return f"Run on {cluster.ranks} ranks", f"Run and time this schedule on {cluster.backend} (R)"
