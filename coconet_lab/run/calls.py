"""One function on all ranks: send it, watch it, and make every way it can end an answer.

The client owns the deadline: a rank stuck in a collective never returns by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coconet_lab.errors import ClusterError, RankError
from coconet_lab.run import ranks
from coconet_lab.run.progress import Progress
from coconet_lab.run.sources import add_sources

_LOOK_S = 0.1
_GRACE_S = 1.0
_CANCEL_S = 2.0


class Ranks(Protocol):
    """What a call needs of a session."""

    directory: str
    worlds: list[ranks.World]
    views: list[Any]

    def death(self, wait_s: float = 2.0) -> tuple[int, str] | None:
        """The rank that died first and how."""

    def kill_ranks(self) -> None:
        """End all ranks now."""


class Interrupted(KeyboardInterrupt):
    """The user's interrupt, after it has ended the call on all ranks.

    Attributes
    ----------
    results : list or None
        What the ranks returned, in rank order, if all of them stopped when asked; None if they were restarted.
    """

    def __init__(self, message: str, results: list[Any] | None) -> None:
        super().__init__(message)
        self.results = results

    def _render_traceback_(self) -> list[str]:
        """One line in a notebook: an interrupt is no mistake to be looked for."""
        return [str(self)]


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be run.

    Parameters
    ----------
    number : int
        Number of the call within its session, from 1.
    what : str
        The call in the user's words, for errors and the bar.
    deadline_s : float
        Seconds it may take on all ranks.
    """

    number: int
    what: str
    deadline_s: float


class RunningCall:
    """A call under way on every rank."""

    def __init__(self, session: Ranks, order: Order, progress: Progress) -> None:
        self._session = session
        self._order = order
        self._progress = progress
        self._answered = threading.Event()
        self._pending: list[Any] = []
        self._outcomes: dict[int, ranks.Outcome] = {}
        self._dead: dict[int, str] = {}
        self._function: Callable[..., Any] = lambda: None

    @property
    def _size(self) -> int:
        return len(self._session.worlds)

    def run(
        self, function: Callable[..., Any], args: Sequence[Any], per_rank: Sequence[Any] | None = None
    ) -> list[Any]:
        """Results of ``function(*args)`` in rank order, `per_rank` adding one argument for each rank.

        Raises
        ------
        RankError
            If a rank raised, died or did not come back.
        Interrupted
            If the user interrupted.
        """
        self._function = function
        try:
            self._send(args, per_rank)
            self._wait_until(time.monotonic() + self._order.deadline_s)
        except KeyboardInterrupt:
            raise self._interrupted() from None
        finally:
            self._progress.close()
        if len(self._outcomes) == self._size and all(outcome.ok for outcome in self._outcomes.values()):
            return self._results()
        raise self._failed()

    def _send(self, args: Sequence[Any], per_rank: Sequence[Any] | None) -> None:
        try:
            shared = ranks.pack((self._function, tuple(args)))
            own = [ranks.pack((per_rank[rank],) if per_rank is not None else ()) for rank in range(self._size)]
        except Exception as error:
            raise ClusterError(
                f"cannot send {self._order.what} to the ranks: {type(error).__name__}: {error}",
                rule="a function and its arguments travel pickled",
                where=self._order.what,
                hint="pass plain values and arrays; make files, locks and devices on the ranks",
            ) from error
        for rank, (view, extra) in enumerate(zip(self._session.views, own, strict=True)):
            try:
                result = view.apply_async(ranks.invoke, self._order.number, shared, extra)
            except Exception as error:  # ipyparallel's own: this engine went since the last look
                self._dead[rank] = f"{type(error).__name__}: {error}"
                self._pending.append(None)
                continue
            result.add_done_callback(lambda _: self._answered.set())
            self._pending.append(result)

    def _results(self) -> list[Any]:
        return [self._outcomes[rank].value for rank in range(self._size)]

    def _wait_until(self, deadline: float, *, shows: bool = True) -> None:
        """Collect answers until all are there or `deadline`; after a bad one the others get a moment only."""
        while True:
            self._answered.clear()
            self._collect()
            if len(self._outcomes) + len(self._dead) == self._size:
                return
            if shows and (self._dead or not all(outcome.ok for outcome in self._outcomes.values())):
                # The world of a dead rank is gone; beside an exception others may be about to answer.
                deadline = min(deadline, time.monotonic() + (_LOOK_S if self._dead else _GRACE_S))
                shows = False  # once: the moment must not start anew with every answer
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return
            self._answered.wait(min(_LOOK_S, remaining))
            if shows:
                self._progress.update(self._reports())

    def _collect(self) -> None:
        for rank, result in enumerate(self._pending):
            if rank in self._outcomes or rank in self._dead or not result.done():
                continue
            try:
                self._outcomes[rank] = ranks.unpack(result.get(timeout=5.0))
            except Exception as error:  # ipyparallel's own: the engine is gone, or broke down outside the call
                self._dead[rank] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"

    def _reports(self) -> list[ranks.Report]:
        number, folder = self._order.number, self._session.directory
        return [ranks.read_report(folder, rank, number) for rank in range(self._size)]

    # How it can go wrong

    def _failed(self) -> RankError:
        """The error of this call; ranks that cannot be trusted any more are ended."""
        reports = self._reports()
        raised = {rank: outcome for rank, outcome in sorted(self._outcomes.items()) if not outcome.ok}
        if self._dead and not raised:
            error = self._died(reports)
        elif raised:
            error = self._raised(raised)
        else:
            error = self._stuck(reports)
        # Ranks stay only if all of them raised; else some may hold messages or collectives of the failed call.
        if len(raised) < self._size:
            self._session.kill_ranks()
        return error

    def _raised(self, raised: dict[int, ranks.Outcome]) -> RankError:
        rank, first = next(iter(raised.items()))
        others = f" (and {name_ranks(sorted(set(raised) - {rank}))} raised too)" if len(raised) > 1 else ""
        text = first.text.splitlines()[0] if first.text else ""
        place = f", in {first.report}" if first.report.op or first.report.step >= 0 else ""
        where = add_sources(first.where, self._function)
        return RankError(
            f"rank {rank} of {self._size} raised {first.kind}{f': {text}' if text else ''}{place}{others}",
            rule="an exception on one rank ends the call on all of them",
            where=f"{self._order.what}{f', at {where}' if where else ''}",
            hint=f"error.tracebacks[{rank}] for the whole traceback, cluster.log({rank}) for what it printed",
            tracebacks={number: add_sources(outcome.traceback, self._function) for number, outcome in raised.items()},
        )

    def _died(self, reports: list[ranks.Report]) -> RankError:
        death = self._session.death()
        first = death[0] if death is not None and death[0] >= 0 else min(self._dead)
        how = death[1] if death is not None else f"died ({self._dead[min(self._dead)]})"
        return RankError(
            f"rank {first} of {self._size} {how} in {reports[first]}; the other ranks were ended with it",
            rule="the ranks are one MPI world, which ends with its first dead rank; the notebook's objects stay",
            where=self._order.what,
            hint=f"cluster.log({first}); new ranks start at the next call (out of memory? use smaller sizes)",
        )

    def _stuck(self, reports: list[ranks.Report]) -> RankError:
        missing = sorted(set(range(self._size)) - set(self._outcomes) - set(self._dead))
        back = sorted(self._outcomes)
        places = name_places({rank: str(reports[rank]) for rank in missing})
        returned = f"{name_ranks(back)} returned, " if back else ""
        return RankError(
            f"{name_ranks(missing)} of {self._size} did not return from {self._order.what} in "
            f"{self._order.deadline_s:g} s; the ranks were stopped",
            rule=f"every rank enters the same collectives in the same order; {returned}{places}",
            where=self._order.what,
            hint="deadline_s=… if it only needs longer; new ranks start at the next call",
        )

    def _interrupted(self) -> Interrupted:
        """Ask the ranks to end; restart those that do not within two seconds, or at a second interrupt."""
        try:
            ranks.write_cancel(self._session.directory, self._order.number)
            self._wait_until(time.monotonic() + _CANCEL_S, shows=False)
        except KeyboardInterrupt:
            pass
        if len(self._outcomes) == self._size and all(outcome.ok for outcome in self._outcomes.values()):
            return Interrupted(f"Interrupted: {self._order.what} ended on all ranks", self._results())
        if len(self._outcomes) < self._size or any(outcome.ok for outcome in self._outcomes.values()):
            self._session.kill_ranks()
        return Interrupted(f"Interrupted: {self._order.what} was stopped; new ranks start at the next call", None)


def name_ranks(numbers: Sequence[int]) -> str:
    """Ranks in words.

    Examples
    --------
    >>> name_ranks([0, 1, 2, 5])
    'ranks 0-2, 5'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(parts)}"


def name_places(places: dict[int, str]) -> str:
    """Where ranks are, those at one place together: ``ranks 0-1 in 'total_rs', rank 2 in 'w1'``."""
    together: dict[str, list[int]] = {}
    for rank, place in places.items():
        together.setdefault(place, []).append(rank)
    return ", ".join(f"{name_ranks(members)} in {place}" for place, members in together.items())
