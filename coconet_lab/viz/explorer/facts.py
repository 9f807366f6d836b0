"""What is known of each schedule of a history: its moves, its costs, its kernels. Found once, then kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic

from coconet_lab.errors import CoconetError
from coconet_lab.ir.program import Program
from coconet_lab.schedule.schedule import Schedule
from coconet_lab.viz.explorer.costs import Change, Costs, changes, costs_of
from coconet_lab.viz.explorer.graph import Graphs
from coconet_lab.viz.explorer.kernel_text import KernelText, kernel_texts
from coconet_lab.viz.explorer.moves_panel import Card, cards
from coconet_lab.viz.explorer.paper import known_names
from coconet_lab.viz.explorer.state import Node, followed
from coconet_lab.viz.explorer.work import Cancelled

QUICK_OPS = 60  # larger programs find moves and costs behind the click
QUICK_S = 0.06
TELL_S = 0.25
MOST_PRICED = 24
MOST_DRAWN = 4


class Facts:
    """Caches by node id: schedules never change, so nothing here grows old."""

    def __init__(self, paper: Mapping[str, Schedule]) -> None:
        self.paper = paper
        self.graphs = Graphs()
        self._cards: dict[int, list[Card]] = {}
        self._costs: dict[int, Costs | None] = {}
        self._changes: dict[int, dict[int, tuple[Change, ...]]] = {}
        self._codes: dict[tuple[int, str], tuple[list[KernelText], str]] = {}
        self._labels: dict[int, str] = {}
        self._names: dict[str, str] | None = None

    # -- moves -----------------------------------------------------------------------------------------------------

    def cards(self, node: Node) -> list[Card]:
        """Cards of all legal moves; found now."""
        if node.id not in self._cards:
            program = node.schedule.program
            self._cards[node.id] = cards(program, node.schedule.legal_moves())
        return self._cards[node.id]

    def cards_if_quick(self, node: Node) -> list[Card] | None:
        """As `cards`; None where finding them would keep a click waiting."""
        if node.id in self._cards or len(node.schedule.program) <= QUICK_OPS:
            return self.cards(node)
        return None

    def choose(self, node: Node, at: int, choice: int) -> None:
        """Put another form of a move on its card."""
        found = self.cards(node)
        card = found[at]
        step = card.choices[choice][1]
        made = cards(node.schedule.program, [step])[0]
        found[at] = Card(step, made.title, made.operands, made.effect, made.touches, made.after, card.choices)
        self._changes.get(node.id, {}).pop(at, None)

    # -- costs -----------------------------------------------------------------------------------------------------

    def costs(self, node: Node) -> Costs | None:
        """Costs of a schedule; found now."""
        if node.id not in self._costs:
            self._costs[node.id] = costs_of(node.schedule.program)
        return self._costs[node.id]

    def known_costs(self, node: int) -> Costs | None:
        """Costs as far as they are known."""
        return self._costs.get(node)

    def costs_if_quick(self, node: Node) -> Costs | None:
        """As `costs`, or what is known where finding them would keep a click waiting."""
        return self.costs(node) if len(node.schedule.program) <= QUICK_OPS else self.known_costs(node.id)

    def changes(self, node: Node, shown: Sequence[int]) -> Mapping[int, tuple[Change, ...]]:
        """What cards change, as many as there is time for now; the rest comes from `complete`."""
        known = self._changes.setdefault(node.id, {})
        until = monotonic() + QUICK_S
        if node.id in self._costs and len(node.schedule.program) <= QUICK_OPS:
            for at in shown:
                if at not in known and monotonic() < until:
                    known[at] = self._change(node, at)
        return dict(known)

    def _change(self, node: Node, at: int) -> tuple[Change, ...]:
        return changes(self.costs(node), costs_of(self._cards[node.id][at].after))

    def complete(
        self, node: Node, nodes: Sequence[Node], shown: Callable[[], Sequence[int]], cancelled: Cancelled
    ) -> Iterator[None]:
        """Find what is not known yet, yielding whenever there is something new worth drawing.

        Parameters
        ----------
        node : Node
        nodes : sequence of Node
            The history, whose costs the comparison shows.
        shown : callable
            Places of the cards on the page, known once there are cards: only their costs are found.
        cancelled : callable
        """
        before = monotonic()
        missing = node.id not in self._cards or node.id not in self._costs
        self.cards(node)
        if missing and not cancelled():
            yield
        self.costs(nodes[0])
        self.costs(node)
        if missing:
            yield
        known = self._changes.setdefault(node.id, {})
        for at in list(shown())[:MOST_PRICED]:
            if cancelled():
                return
            if at not in known:
                known[at] = self._change(node, at)
                missing = True
                if monotonic() - before > TELL_S:
                    before = monotonic()
                    yield
        for other in nodes:
            if cancelled():
                return
            missing = missing or other.id not in self._costs
            self.costs(other)
            missing = self._find_label(other) or missing
        if missing:
            yield

    def draw_ahead(
        self, node: Node, shown: Sequence[int], kept: Sequence[str], opened: tuple[str, ...], cancelled: Cancelled
    ) -> None:
        """Draw what the first moves lead to, so that their click does not wait for Graphviz."""
        for at in list(shown)[:MOST_DRAWN]:
            if cancelled():
                return
            after = self._cards[node.id][at].after
            self.graphs.draw(after, followed(kept, after), opened)

    # -- names and code --------------------------------------------------------------------------------------------

    def labels(self) -> Mapping[int, str]:
        """The paper's names of schedules of the history, as far as they are known."""
        return dict(self._labels)

    def _find_label(self, node: Node) -> bool:
        if node.id in self._labels or not self.paper:
            return False
        if self._names is None:
            self._names = known_names(self.paper, node.schedule.base)
        self._labels[node.id] = self._names.get(node.schedule.key(), "") if self._names else ""
        return bool(self._labels[node.id])

    def code(self, node: Node, target: str) -> tuple[list[KernelText], str]:
        """A schedule's kernels as text, and the error where they have none."""
        key = (node.id, target)
        if key not in self._codes:
            try:
                self._codes[key] = kernel_texts(node.schedule.plan(), target), ""
            except CoconetError as error:
                self._codes[key] = [], str(error)
        return self._codes[key]


def touches_boxes(found: Sequence[Card], ids: Mapping[str, str]) -> dict[str, list[str]]:
    """For each card, the boxes it would touch."""
    return {str(at): sorted({ids[n] for n in card.touches if n in ids}) for at, card in enumerate(found)}


def is_large(program: Program) -> bool:
    """Whether work on a program goes behind the click."""
    return len(program) > QUICK_OPS
