"""The explorer: schedules tried by clicking, in a notebook or from Python, and what is drawn after each click."""

from __future__ import annotations

import secrets
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import traitlets

from coconet_lab.errors import CoconetError, ProgramError
from coconet_lab.schedule.schedule import Schedule
from coconet_lab.transforms.base import Transform
from coconet_lab.viz.explorer import state as st
from coconet_lab.viz.explorer.drawer import Notice
from coconet_lab.viz.explorer.facts import Facts
from coconet_lab.viz.explorer.history_file import HistoryFile, to_text, write
from coconet_lab.viz.explorer.page import Looks, Page
from coconet_lab.viz.explorer.pages import Busy
from coconet_lab.viz.explorer.paper import paper_schedules
from coconet_lab.viz.explorer.runner import REPEATS, Ended, Progress, Runner
from coconet_lab.viz.explorer.said import said_of_run
from coconet_lab.viz.explorer.show import Shown
from coconet_lab.viz.explorer.state import Measured, Node, State
from coconet_lab.viz.explorer.work import Background, Cancelled, verdict_on


class Explorer(traitlets.HasTraits):
    """What `explore` returns: everything a click does can be done from Python too.

    Parameters are those of `explore`. A notebook shows it; elsewhere it works without a page. Its one trait, `state`,
    is everything that was done as an immutable value: ``ex.observe(work, "state")`` follows it, and every method that
    changes it returns it.
    """

    state = traitlets.Instance(State)

    def __init__(
        self, program: Any, cluster: Any = None, history: str | PathLike[str] | None = None, *,
        inputs: Mapping[Any, Any] | None = None, repeats: int = REPEATS,
    ) -> None:  # fmt: skip
        super().__init__()
        schedule = st.schedule_of(program)
        self.file = None if history is None else Path(history)
        self._kept = None if self.file is None else HistoryFile(self.file, schedule.base)
        self._is_kept = True
        self._lock = threading.RLock()
        self.state = self._first_state(schedule)
        self._inputs, self._repeats = inputs, repeats
        self._cluster = cluster
        self._runner: Runner | None = None
        self._looks = Looks(
            mark=f"cl-static-{secrets.token_hex(4)}", file=self.file.name if self.file is not None else ""
        )
        self._facts = Facts(paper_schedules(schedule.base))
        self._behind = Background(self._failed)
        self._proofs = Background(self._failed)
        self._page = Page(self._facts)
        self._shown = Shown(self._looks.mark)
        self._arrived()

    def _first_state(self, schedule: Schedule) -> State:
        found = self._kept.read() if self._kept is not None else None
        if found is None:
            return st.start(schedule)
        for step in () if not schedule.steps else schedule.steps:
            # A schedule given with steps is where to go on, in the tree that was read.
            found = st.jump(found, 0) if step is schedule.steps[0] else found
            found = st.apply(found, step)
        return found

    # -- what there is ---------------------------------------------------------------------------------------------

    @property
    def schedule(self) -> Schedule:
        """The schedule one is at."""
        return self.state.schedule

    @property
    def selected(self) -> tuple[str, ...]:
        """Names of the selected values."""
        return self.state.selected

    @property
    def history(self) -> tuple[Node, ...]:
        """Every schedule that was tried; a node's `parent` is the one it was made from."""
        return self.state.nodes

    @property
    def results(self) -> dict[str, Measured]:
        """Times by schedule: the title in the history → what was measured."""
        return {node.title: node.measured for node in self.state.nodes if node.measured is not None}

    @property
    def moves(self) -> list[Transform]:
        """The legal moves the panel shows: those of the selection, or all."""
        with self._lock:
            found = self._facts.cards(self.state.node)
            return [found[at].step for at in self._page.shown_cards(self.state, found)]

    @property
    def widget(self) -> Any:
        """The page, made when it is first asked for."""
        return self._shown.widget(self._view, self.handle)

    # -- what can be done ------------------------------------------------------------------------------------------

    def apply(self, step: Transform) -> State:
        """Take a step.

        Raises
        ------
        IllegalTransform
            It is refused; the explorer stays as it was.
        """
        return self._go(lambda state: st.apply(state, step))

    def undo(self) -> State:
        """Back to the schedule this one was made from."""
        return self._go(st.undo)

    def redo(self) -> State:
        """What the last undo left."""
        return self._go(st.redo)

    def jump(self, node: int) -> State:
        """To a schedule of the history, by its number."""
        return self._go(lambda state: st.jump(state, node))

    def goto(self, name: str) -> State:
        """To one of the paper's schedules, step by step, each step a node of the history."""
        found = self._facts.paper.get(name)
        if found is None:
            raise ProgramError(
                f"{name!r} is no schedule of the paper for program {self.state.program.name!r}",
                rule="programs of cl.workloads have the paper's schedules",
                hint=", ".join(map(repr, self._facts.paper)) or "cl.explore(cl.workloads.self_attention())",
            )
        return self._go(lambda state: st.follow(state, found.steps, name))

    def select(self, *names: Any, add: bool = False) -> State:
        """Select values by name (or the Values themselves); none clears the selection."""
        chosen = [self.state.program.resolve(name) for name in names]
        return self.select_boxes(chosen, tuple(chosen), add)

    def rename(self, name: str, node: int | None = None) -> State:
        """Name the current schedule, or another of the history."""
        return self._go(lambda state: st.rename(state, state.current if node is None else node, name))

    def check(self) -> State:
        """Prove the current schedule again, in the background."""
        self._set(lambda state: st.proved(state, state.current, "unchecked", ""))
        return self._prove(again=True)

    def run(self) -> State:
        """Run and time the current schedule on the cluster, in the background."""
        with self._lock:
            if self._runner is None or self._runner.cluster is not self._cluster:
                self._cluster = self._cluster if self._cluster is not None else self._new_cluster()
                self._runner = Runner(self._cluster, self._progressed, self._ended)
            node = self.state.node
            if self._runner.start(node.id, node.schedule, node.title, self._inputs, self._repeats):
                self._looks = self._looks.but(notice=None, busy=Busy(f"{node.title}: preparing", can_cancel=True))
                self._set(lambda state: replace(state, tab="run"))
        return self.state

    def cancel(self) -> State:
        """End the run that is under way; what it measured is kept."""
        if self._runner is not None and self._runner.is_running:
            self._runner.cancel()
        return self.state

    def wait(self, timeout_s: float = 60.0) -> bool:
        """Wait for the run, proofs and costs that are under way; False after `timeout_s`."""
        runner_done = self._runner is None or self._runner.wait(timeout_s)
        return runner_done and self._proofs.wait(timeout_s) and self._behind.wait(timeout_s)

    def save(self, file: str | PathLike[str] | None = None) -> Path:
        """Write the whole history; without `file`, to the one it is kept in."""
        target = Path(file) if file is not None else self.file
        if target is None:
            raise ProgramError(
                "no file to save to", rule="a history is kept in a file", hint='explorer.save("tries.json")'
            )
        with self._lock:
            if self._kept is not None and target == self.file:
                self.state = self._kept.save(self.state)
            else:
                write(target, to_text(self.state))
        return target

    # -- inside ----------------------------------------------------------------------------------------------------

    def _new_cluster(self) -> Any:
        from coconet_lab.run.cluster import Cluster

        return Cluster(ranks=self.state.program.ranks, backend="cpu")

    def _go(self, change: Callable[[State], State]) -> State:
        """A change of the history: drawn, saved, and followed by costs and a proof in the background."""
        with self._lock:
            before = self.state
            after = change(before)
            if after == before:
                return self.state
            self._looks = self._looks.but(refused="", kept=st.followed(self._looks.kept, after.program))
            self.state = after
            self._keep()
            self._draw()
            self._arrived()
        return self.state

    def _keep(self) -> None:
        """The tree goes to its file at each change. Where it cannot, that is said once, and exploring goes on."""
        if self._kept is None:
            return
        try:
            self.state = self._kept.save(self.state)
            self._is_kept = True
        except ProgramError as error:
            if self._is_kept:
                self._looks = self._looks.but(refused=str(error))
                warnings.warn(error.found, RuntimeWarning, stacklevel=4)
            self._is_kept = False

    def _set(self, change: Callable[[State], State]) -> State:
        """A change that leaves the history as it is."""
        with self._lock:
            self.state = change(self.state)
            self._draw()
        return self.state

    def _arrived(self) -> None:
        """Background work for where one is now: what is still wanted of elsewhere is dropped."""
        self._behind.put("facts", self._find_facts)
        self._prove()

    def _draw(self) -> None:
        self._shown.draw(self._view)
        if self._shown.has_page:
            self._behind.put("static", self._draw_static)

    def _view(self) -> dict[str, Any]:
        with self._lock:
            return self._page.view(self.state, self._looks, self._cluster)

    def _draw_static(self, cancelled: Cancelled) -> None:
        state = self.state
        costs = {node.id: self._facts.known_costs(node.id) for node in state.nodes}
        self._shown.draw_static(state, costs, cancelled)

    def _find_facts(self, cancelled: Cancelled) -> None:
        """Moves and costs that a click did not wait for."""
        node = self.state.node

        def shown() -> list[int]:
            return self._page.shown_cards(self.state, self._facts.cards(node)) if not cancelled() else []

        for _ in self._facts.complete(node, self.state.nodes, shown, cancelled):
            if cancelled():
                return
            with self._lock:
                self._draw()
        if self._shown.has_page and not cancelled():
            state = self.state
            self._facts.draw_ahead(node, shown(), self._page.kept(state, self._looks), state.opened, cancelled)

    def _prove(self, again: bool = False) -> State:
        """Prove the current schedule and then, newest first, the others that nobody has proved."""
        at = self.state.current

        def prove(cancelled: Cancelled) -> None:
            order = [self.state.nodes[at], *reversed(self.state.nodes)]
            for node in (n for n in order if n.parent is not None or (again and n.id == at)):
                if cancelled():
                    return
                if self.state.nodes[node.id].proof == "unchecked" and not self.state.nodes[node.id].proof_text:
                    verdict = verdict_on(node.schedule, cancelled)
                    if verdict is not None:
                        self._note_proof(node.id, *verdict)

        self._proofs.put("proof", prove)
        return self.state

    def _note_proof(self, node: int, verdict: st.Verdict, text: str) -> None:
        """A verdict on a schedule holds wherever one is by now."""
        with self._lock:
            self.state = st.proved(self.state, node, verdict, text)
            self._keep()
            self._draw()

    def _failed(self, kind: str, error: BaseException) -> None:
        """A fault in background work: said once, in the drawer."""
        with self._lock:
            self._looks = self._looks.but(notice=Notice(f"{kind}: {type(error).__name__}: {error}"))
            self._draw()

    def _progressed(self, now: Progress) -> None:
        with self._lock:
            if self._runner is None or not self._runner.is_running:
                return
            self._looks = self._looks.but(busy=Busy(now.words, now.done, now.total, can_cancel=True))
            header = self._page.header(self.state, self._looks, self._cluster)
            self._shown.draw_header(header, {"run": said_of_run(self._looks.busy)})

    def _ended(self, ended: Ended) -> None:
        with self._lock:
            self._looks = self._looks.but(busy=None)
            if ended.measured is not None:
                self.state = st.measured(self.state, ended.node, ended.measured)
            if ended.words:
                self._looks = self._looks.but(
                    notice=Notice(ended.words, ended.tracebacks, ended.how == "died", ended.how != "cancelled")
                )
            self._keep()
            self._draw()

    # -- the page --------------------------------------------------------------------------------------------------

    @property
    def page(self) -> Page:
        """What was drawn last, which clicks refer to."""
        return self._page

    @property
    def facts(self) -> Facts:
        """What is known of the schedules."""
        return self._facts

    def select_boxes(self, names: Sequence[str], kept: tuple[str, ...], add: bool) -> State:
        """Select what a box stands for; `kept` are names that must not be folded away."""
        self._looks = self._looks.but(kept=(*self._looks.kept, *kept) if add else kept)
        self._set(lambda state: st.select(state, names, add))
        self._behind.put("facts", self._find_facts)
        return self.state

    def open_scopes(self, scopes: tuple[str, ...], close: bool = False) -> State:
        """Unfold dotted scopes of a large program, or fold them."""
        return self._set(lambda state: st.open_scopes(state, scopes, close))

    def change(self, **parts: Any) -> State:
        """Change parts of the state that are not history: `tab`, `target`."""
        return self._set(lambda state: replace(state, **parts))

    def look(self, **parts: Any) -> State:
        """Change what is on screen but not in the state."""
        self._looks = self._looks.but(**parts)
        return self.redraw()

    def say(self, words: str) -> State:
        """One line in the moves panel."""
        return self.look(refused=words)

    def redraw(self) -> State:
        """Draw everything again."""
        return self._set(lambda state: state)

    def handle(self, message: Mapping[str, Any]) -> None:
        """What a click or key on the page sends; a refusal is shown, never raised."""
        from coconet_lab.viz.explorer.clicks import clicked

        try:
            clicked(self, message)
        except CoconetError as error:
            with self._lock:
                self._looks = self._looks.but(refused=str(error))
                self._draw()

    def _ipython_display_(self) -> None:
        self._shown.display(self.widget, self.state, {n.id: self._facts.known_costs(n.id) for n in self.state.nodes})

    def __repr__(self) -> str:
        return f"Explorer({self.state!r})"
