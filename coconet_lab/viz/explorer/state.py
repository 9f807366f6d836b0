"""What the explorer shows, as values: a tree of schedules, where one is in it, and what is selected.

Every function takes a state and returns a new one, so that a stale result can be told by comparing, and dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from coconet_lab.errors import ProgramError
from coconet_lab.ir.program import Program
from coconet_lab.run.results import duration
from coconet_lab.run.trace import Span
from coconet_lab.schedule.schedule import Schedule
from coconet_lab.transforms.base import Transform
from coconet_lab.viz.explorer.words import step_words

Verdict = Literal["unchecked", "proved", "wrong"]
TABS = ("layout", "code", "run", "compare", "script")
TARGETS = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of one schedule on a cluster: of `asked` repeats `samples_us` were made; `spans` are the last one's."""

    samples_us: tuple[float, ...]
    asked: int
    ranks: int
    backend: str
    caption: str = ""
    spans: tuple[Span, ...] = ()

    def quantile_us(self, part: float) -> float:
        """The time below which `part` of the repeats lie: 0.5 is the median."""
        ordered = sorted(self.samples_us)
        place = part * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    @property
    def median_us(self) -> float:
        """Median over the repeats."""
        return self.quantile_us(0.5)

    def __repr__(self) -> str:
        spread = f"p10 {duration(self.quantile_us(0.1))}, p90 {duration(self.quantile_us(0.9))}"
        where = f"{len(self.samples_us)} repeats, {self.ranks} ranks, {self.backend}"
        return f"{duration(self.median_us)} ({spread}, {where})"


@dataclass(frozen=True, slots=True)
class Node:
    """One schedule that was tried.

    Parameters
    ----------
    id : int
        Its place in `State.nodes`.
    parent : int or None
        The schedule it was made from by one more step; None for the start.
    schedule : Schedule
    name : str
        What the user or the paper calls it; empty for most.
    proof : "unchecked", "proved" or "wrong"
    proof_text : str
        The proof's sentence, or the four lines of what differs.
    measured : Measured or None
    """

    id: int
    parent: int | None
    schedule: Schedule
    name: str = ""
    proof: Verdict = "unchecked"
    proof_text: str = ""
    measured: Measured | None = None

    @property
    def step(self) -> Transform | None:
        """The step that made it; None for the start."""
        return self.schedule.steps[-1] if self.parent is not None else None

    @property
    def title(self) -> str:
        """Its name, else the words of its last step, else ``start``."""
        return self.name or (step_words(self.step) if self.step is not None else "start")

    def __repr__(self) -> str:
        parts = [f"{self.id} {self.title!r}", *([f"from {self.parent}"] if self.parent is not None else [])]
        parts += [self.proof] if self.proof != "unchecked" else []
        return f"Node({', '.join([*parts, *([repr(self.measured)] if self.measured is not None else [])])})"


@dataclass(frozen=True, slots=True)
class State:
    """Everything a person has done in an explorer.

    Parameters
    ----------
    nodes : tuple of Node
        The tree of schedules; a node's parent comes before it.
    current : int
        Where one is.
    undone : tuple of int
        What redo goes back to, last first out.
    selected : tuple of names
        Values of the current program, in the order they were selected.
    lit : bool
        Whether what the last step changed is lit: after a move, not after a jump.
    opened : set of scopes
        Dotted scopes that are not folded.
    tab, target : str
        The open tab of the drawer, and whether code is shown for ``cpu`` or ``cuda``.
    """

    nodes: tuple[Node, ...]
    current: int = 0
    undone: tuple[int, ...] = ()
    selected: tuple[str, ...] = ()
    lit: bool = False
    opened: tuple[str, ...] = ()
    tab: str = "layout"
    target: str = "cpu"

    @property
    def node(self) -> Node:
        """The node one is at."""
        return self.nodes[self.current]

    @property
    def schedule(self) -> Schedule:
        """The schedule one is at."""
        return self.node.schedule

    @property
    def program(self) -> Program:
        """The program after all steps of the schedule one is at."""
        return self.schedule.program

    @property
    def changed(self) -> tuple[str, ...]:
        """Values that the last step made or changed, while they are lit; of a group its outline is lit instead."""
        if not self.lit or self.node.parent is None:
            return ()
        diff = self.schedule.record[-1].diff
        lit = {*diff.added, *diff.changed}
        return tuple(name for name in diff.after.ops if name in lit)

    def __repr__(self) -> str:
        tried = f"{len(self.nodes)} schedule{'' if len(self.nodes) == 1 else 's'} tried"
        return f"{self.program.name}, {self.program.ranks} ranks: at {self.node.title!r}, {tried}"


def schedule_of(item: object) -> Schedule:
    """A schedule of what can be explored: a program, a schedule, or a workload.

    Raises
    ------
    ProgramError
        Something else.
    """
    if isinstance(item, Schedule):
        return item
    program = item if isinstance(item, Program) else getattr(item, "program", None)
    if isinstance(program, Program):
        return Schedule(program)
    raise ProgramError(
        f"cannot explore a {type(item).__name__}",
        rule="a program, a schedule or a workload can be explored",
        hint="cl.explore(cl.program('p', outputs=[out], ranks=4))",
    )


def start(schedule: Schedule) -> State:
    """The state at a schedule: one node for its program, one for each step it already has."""
    nodes = [Node(0, None, schedule.before(1))]
    for count in range(1, len(schedule.steps) + 1):
        nodes.append(Node(count, count - 1, schedule.before(count + 1)))
    return State(tuple(nodes), len(nodes) - 1)


def apply(state: State, step: Transform) -> State:
    """Take a step. A step that was taken from here before is gone back to, not taken twice.

    Raises
    ------
    IllegalTransform
        The step is refused; the state stays as it was.
    """
    for node in state.nodes:
        if node.parent == state.current and node.step == step:
            return replace(_at(state, node.id), undone=(), lit=True)
    made = Node(len(state.nodes), state.current, state.schedule.then(step))
    grown = replace(state, nodes=(*state.nodes, made))
    return replace(_at(grown, made.id), undone=(), lit=True)


def follow(state: State, steps: Iterable[Transform], name: str = "") -> State:
    """Take steps from the start, as "Go to" does, and name where they lead."""
    state = jump(state, 0)
    for step in steps:
        state = apply(state, step)
    return rename(state, state.current, name) if name and not state.node.name else state


def undo(state: State) -> State:
    """Back to the schedule this one was made from; the one left stays in the history."""
    if state.node.parent is None:
        return state
    return replace(_at(state, state.node.parent), undone=(*state.undone, state.current), lit=False)


def redo(state: State) -> State:
    """What the last undo left."""
    if not state.undone:
        return state
    return replace(_at(state, state.undone[-1]), undone=state.undone[:-1], lit=True)


def jump(state: State, node: int) -> State:
    """To any schedule of the history."""
    if not 0 <= node < len(state.nodes):
        raise ProgramError(
            f"there is no schedule {node} in this history",
            rule=f"schedules are numbered 0 to {len(state.nodes) - 1}",
            where=f"history of {state.nodes[0].schedule.base.name!r}",
            hint="explorer.history",
        )
    return replace(_at(state, node), undone=(), lit=False)


def rename(state: State, node: int, name: str) -> State:
    """Give a schedule a name of the user's own; an empty one takes it away."""
    return _with_node(state, replace(state.nodes[node], name=" ".join(name.split())[:60]))


def select(state: State, names: Sequence[str], add: bool = False) -> State:
    """Select values; with `add` those that were selected are taken out and the others put in."""
    known = tuple(dict.fromkeys(name for name in names if name in state.program.ops))
    if add:
        kept = tuple(name for name in state.selected if name not in known)
        known = (*kept, *(name for name in known if name not in state.selected))
    return replace(state, selected=known)


def open_scopes(state: State, scopes: Iterable[str], close: bool = False) -> State:
    """Leave scopes unfolded, or fold them again; only the last three stay open, so that a picture stays readable."""
    wanted = set(scopes)
    others = tuple(scope for scope in state.opened if scope not in wanted)
    return replace(state, opened=others if close else (*others, *sorted(wanted))[-3:])


def proved(state: State, node: int, verdict: Verdict, text: str) -> State:
    """Note what a check found."""
    return _with_node(state, replace(state.nodes[node], proof=verdict, proof_text=text))


def measured(state: State, node: int, result: Measured) -> State:
    """Note what a run measured; a run that was cut short has no trace, so the last one's is kept."""
    before = state.nodes[node].measured
    if not result.spans and before is not None:
        result = replace(result, spans=before.spans)
    return _with_node(state, replace(state.nodes[node], measured=result))


def _with_node(state: State, node: Node) -> State:
    return replace(state, nodes=(*state.nodes[: node.id], node, *state.nodes[node.id + 1 :]))


def _at(state: State, node: int) -> State:
    """At another node, the selection following its values to their new names."""
    program = state.nodes[node].schedule.program
    return replace(state, current=node, selected=followed(state.selected, program))


def followed(names: Sequence[str], program: Program) -> tuple[str, ...]:
    """The names in `program`; of those it no longer has, what carries their values now."""
    found: dict[str, None] = {}
    for name in names:
        pending, seen = [name], {name}
        while pending:
            now = pending.pop(0)
            if now in program.ops:
                found[now] = None
                break
            gone = program.moved.get(now)
            pending += [other for other in (gone.now if gone else ()) if other not in seen]
            seen.update(pending)
    return tuple(found)
