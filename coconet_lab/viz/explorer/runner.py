"""The run button: a schedule on the cluster in a thread of its own, watched, cancelled and explained from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

from coconet_lab.errors import ClusterError, CoconetError, RankError
from coconet_lab.run.ranks import Report
from coconet_lab.schedule.schedule import Schedule
from coconet_lab.viz.explorer.state import Measured

REPEATS = 30
LOOK_S = 0.15


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    words: str
    done: int = 0
    total: int = -1


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended: with times, cancelled (with those it had), or with an error.

    Parameters
    ----------
    node : int
        The schedule that ran.
    measured : Measured or None
    how : "done", "cancelled", "error" or "died"
    words : str
        One line, or the four lines of the error.
    tracebacks : tuple of (rank, text)
    """

    node: int
    measured: Measured | None
    how: Literal["done", "cancelled", "error", "died"]
    words: str = ""
    tracebacks: tuple[tuple[int, str], ...] = ()


class Runner:
    """One run at a time.

    Parameters
    ----------
    cluster : Cluster
        Started at the first run.
    progress, ended : callables
        Called from the runner's threads.
    """

    def __init__(self, cluster: Any, progress: Callable[[Progress], None], ended: Callable[[Ended], None]) -> None:
        self.cluster = cluster
        self._progress, self._ended = progress, ended
        self._thread: threading.Thread | None = None
        self._stop_watching = threading.Event()
        self._is_cancelled = False
        self._first: tuple[int, float] | None = None  # repeats done, and when, at the first look

    @property
    def is_running(self) -> bool:
        """Whether a run is under way."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, node: int, schedule: Schedule, name: str, inputs: Any = None, repeats: int = REPEATS) -> bool:
        """Run a schedule; False where one is running already."""
        if self.is_running:
            return False
        self._is_cancelled, self._first = False, None
        self._stop_watching = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(node, schedule, name, inputs, repeats), name="coconet_lab run", daemon=True
        )
        self._thread.start()
        return True

    def cancel(self) -> None:
        """Ask the ranks to end after the repeat they are in; what was measured is kept."""
        self._is_cancelled = True
        self.cluster.cancel()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the run has ended; False after `timeout_s`."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        return not self.is_running

    def _run(self, node: int, schedule: Schedule, name: str, inputs: Any, repeats: int) -> None:
        watcher = threading.Thread(
            target=self._watch, args=(name, repeats, self._stop_watching), name="coconet_lab watch", daemon=True
        )
        watcher.start()
        try:
            ended = self._measure(node, schedule, name, inputs, repeats)
        except KeyboardInterrupt:
            ended = Ended(node, None, "cancelled", "Cancelled before the ranks had started.")
        except RankError as error:
            ended = self._explain(node, error)
        except CoconetError as error:
            how: Literal["error", "died"] = "died" if isinstance(error, ClusterError) and self._has_died() else "error"
            ended = Ended(node, None, how, f"{type(error).__name__}: {error}")
        except BaseException as error:  # a fault of the lab or of a library: told, and the explorer stays usable
            ended = Ended(node, None, "error", f"{type(error).__name__}: {error}")
        self._stop_watching.set()
        watcher.join(1.0)
        self._ended(ended)

    def _measure(self, node: int, schedule: Schedule, name: str, inputs: Any, repeats: int) -> Ended:
        if self.cluster.generation == 0 and self.cluster.ranks == schedule.program.ranks:
            self._progress(Progress(f"Starting {self.cluster.ranks} ranks"))
            self.cluster.start()
        result = self.cluster.run(schedule, inputs, repeats=repeats, name=name, progress=False)
        samples = tuple(result.timing.samples_us)
        caption = result.provenance.caption() if hasattr(result.provenance, "caption") else ""
        measured = Measured(
            samples, repeats, self.cluster.ranks, self.cluster.backend.name, caption, tuple(result.trace)
        )
        if self._is_cancelled and len(samples) < repeats:
            kept = f"; the {len(samples)} are kept" if samples else ""
            words = f"Cancelled after {len(samples)} of {repeats}{kept}."
            return Ended(node, measured if samples else None, "cancelled", words)
        return Ended(node, measured, "done")

    def _explain(self, node: int, error: RankError) -> Ended:
        traces = tuple(sorted(error.tracebacks.items()))
        # After an exception ranks may have been ended too, but what is to be read is the exception.
        if self._has_died() and not traces:
            first = error.found.split(" in ")[0]
            words = f"The cluster stopped: {first}. History and times are kept.\n{type(error).__name__}: {error}"
            return Ended(node, None, "died", words, traces)
        return Ended(node, None, "error", f"{type(error).__name__}: {error}", traces)

    def _has_died(self) -> bool:
        return bool(getattr(self.cluster, "state", "") == "ranks ended")

    # -- watching ------------------------------------------------------------------------------------------------

    def _watch(self, name: str, repeats: int, stop: threading.Event) -> None:
        """Tell how far the slowest rank is, until the run ends."""
        last: Progress | None = None
        since_s = monotonic()
        while not stop.wait(LOOK_S):
            reports = self.cluster.reports()
            now = self._look(name, repeats, reports) if reports else self._look_at_start(monotonic() - since_s)
            if self._is_cancelled:
                self.cluster.cancel()  # the call may have begun after the button was pressed
                now = Progress("Cancelling", now.done, now.total)
            if now != last and not stop.is_set():
                self._progress(now)
                last = now

    def _look_at_start(self, seconds: float) -> Progress:
        """What there is to tell before the ranks are in the call."""
        queue = self.cluster.queue
        if queue:
            return Progress(f"Waiting for {self.cluster.ranks} ranks: {queue}")
        is_there = self.cluster.state == "running"
        doing = "Preparing the run" if is_there else f"Starting {self.cluster.ranks} ranks"
        return Progress(f"{doing}, {seconds:.0f} s")

    def _look(self, name: str, repeats: int, reports: list[Report]) -> Progress:
        slowest = min(range(len(reports)), key=lambda rank: (reports[rank].done, reports[rank].step))
        report = reports[slowest]
        warmups = max(report.total - repeats, 0)
        done = report.done - warmups
        if report.total <= 0 or done <= 0:
            return Progress(f"{name}: compiling kernels and loading inputs")
        if self._first is None:
            self._first = done, monotonic()
        words = f"{name}: run {done} of {repeats}, slowest rank {slowest}"
        return Progress(words + self._left(done, repeats), done, repeats)

    def _left(self, done: int, repeats: int) -> str:
        """How long the rest will take, by the repeats seen so far."""
        first, since = self._first or (done, monotonic())
        if done <= first:
            return ""
        seconds = (monotonic() - since) / (done - first) * (repeats - done)
        return f", {seconds:.1f} s left"
