"""Waiting for the GPU with a limit, and what is done where other ranks do not come.

The lab's kernels give up by themselves (`Steps.limit_ns`), NCCL's wait for ever. So the host does not block in the
driver: it polls, sees a rank that has died and what NCCL reports, and a little past the kernels' limit ends what hangs.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from coconet_lab.errors import CoconetError, RankError
from coconet_lab.kernels.cuda_abi import STATE_BYTES
from coconet_lab.kernels.cuda_meet import FIRST_OF_ALL
from coconet_lab.kernels.plan import AnyEntry, Plan, Transfer
from coconet_lab.run.calls import name_ranks
from coconet_lab.run.cuda_device import explained, import_cupy, with_deadline
from coconet_lab.run.cuda_memory import DeviceMemory
from coconet_lab.run.cuda_nccl import ABORT_S, Communicators, is_nccl
from coconet_lab.run.engine_memory import Place

T = TypeVar("T")

SLACK_S = 0.5
"""Seconds past the kernels' own limit: what a kernel says names the rank, the host's limit mostly cannot."""
LOOK_S = 0.25
"""Seconds between two looks at what else there is to know: runs that take less cost no question."""
GRACE_S = 1.0
"""Seconds that a run may still take after a rank has died: what it had sent may be all that is needed."""
STOP_S = 5.0
"""Seconds in which kernels must end and memory be given back, or they are left as they are."""

_NOT_READY = 600
_GIVEN_UP = 0xFFFFFFFF
_BUSY_S, _AWAKE_S, _SLEEP_S = 1e-4, 0.02, 1e-3
_yield: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


def pause(spent_s: float) -> None:
    """Between two polls, after waiting for so long: nothing, the core to others, then sleep for 1 % of it."""
    if spent_s >= _AWAKE_S:
        time.sleep(min(spent_s / 100, _SLEEP_S))
    elif spent_s >= _BUSY_S:
        _yield()


class Watch:
    """Waits for a Plan's streams on one rank; where they do not end it says why, and that ends the engine.

    Parameters
    ----------
    plan : Plan
    place : Place
    communicators : Communicators
    streams : list of cupy.cuda.Stream
        What is started begins and ends on the first.
    states : int
        Address of the streams' counters, which begin with their error words.
    deadline_s : float
        Seconds to wait for a peer inside the Plan.
    uses_nccl : bool
        Whether the engine is lost with the communicators.

    Attributes
    ----------
    failed : CoconetError or None
        Why nothing can be run any more.
    pending : int
        Runs started since the last wait: each has the deadline.
    graph : cupy.cuda.graph.Graph or None
        Kept here because NCCL ends no communicator while a graph uses it.
    """

    def __init__(
        self,
        plan: Plan,
        place: Place,
        communicators: Communicators,
        streams: list[Any],
        states: int,
        deadline_s: float,
        uses_nccl: bool,
    ) -> None:
        self.plan, self.place, self.communicators, self.deadline_s = plan, place, communicators, deadline_s
        self.failed: CoconetError | None = None
        self.pending = 0
        self.graph: Any = None
        self._streams, self._states = streams, states
        self._cupy = import_cupy()
        self._runtime = self._cupy.cuda.runtime
        self._side = self._cupy.cuda.Stream(non_blocking=True)
        self._words = np.zeros(len(streams) * STATE_BYTES // 4, np.uint32)
        self._marks: list[tuple[int, int, Any]] = []
        self._at: int | None = None
        self._bereft_s = 0.0
        self._uses_nccl = uses_nccl
        if uses_nccl:
            communicators.users.add(self)

    def check(self) -> None:
        """Refuse to go on after a failure.

        Raises
        ------
        RankError
            With the failure's own words.
        """
        if self.failed is not None:
            raise RankError(
                f"this engine runs no more, since {self.failed.found}",
                rule="a rank that was given up leaves unfinished values, and no communicators to go on with",
                where=self._where,
                hint="start the ranks again, then a new engine; a cluster does both at its next call",
            )

    # -- waiting -----------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Wait for all that was started, and say which meeting failed, if one did.

        Raises
        ------
        RankError
            A rank did not come, or has died.
        """
        self.settle()
        self._read_words(self._runtime.memcpy)
        for word in self._words[:: STATE_BYTES // 4]:
            if word:
                self._fail(self._lost(int(word)))

    def settle(self, stream: Any = None) -> None:
        """Wait until a stream, by default the first, has done what was given to it; errors as of `wait`."""
        self.check()
        waited = self._streams[0] if stream is None else stream
        query, place = self._runtime.streamQuery, waited.ptr
        started_s = time.monotonic()
        limit_s = self._limit_s(max(1, self.pending))
        look_s = started_s + LOOK_S
        while (status := query(place)) == _NOT_READY:
            now_s = time.monotonic()
            if now_s >= look_s:
                self._look(now_s - started_s, limit_s)
                look_s = now_s + LOOK_S
            pause(now_s - started_s)
        if status:
            dead = self.communicators.dead()  # their memory may be gone, too
            self._fail(self._died(dead, self._stuck(kernels=True)[0]) if dead else self._broken(waited))
        if stream is None:
            self.pending, self._marks, self._bereft_s = 0, [], 0.0

    def first(self, action: Callable[[], T]) -> T:
        """`issue` or capture for the first time: NCCL joins ranks inside of such calls, which waits for all of them.

        In a thread of its own: a call that never returns can only be left behind.
        """
        if not self._uses_nccl:
            return action()
        results: list[T] = []
        errors: list[BaseException] = []
        number = self.communicators.gpu.number

        def work() -> None:
            try:
                self._runtime.setDevice(number)
                results.append(action())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work, name="first issue", daemon=True)
        thread.start()
        thread.join(LOOK_S)
        started_s = time.monotonic() - LOOK_S
        while thread.is_alive():
            # A user's operator may compute on the host for as long as it likes.
            if self._at is not None and not is_nccl(self.plan.entries[self._at]):
                started_s = time.monotonic()
            self._look(time.monotonic() - started_s, self._limit_s(1))
            thread.join(LOOK_S)
        if errors:
            self._explain(errors[0])
            raise errors[0]
        self._at = None
        return results[0]

    def issue(self, action: Callable[[], T]) -> T:
        """Do what starts work on the GPU; an error of NCCL's there is one of `wait`."""
        try:
            return action()
        except Exception as error:
            self._explain(error)
            raise

    def _explain(self, error: BaseException) -> None:
        """Raise a failure where NCCL is the cause."""
        dead = self.communicators.dead()
        if type(error).__name__ == "NcclError":
            self._fail(self._died(dead, self._stuck(kernels=True)[0]) if dead else self._reported(str(error)))
        self._at = None

    def _limit_s(self, runs: int) -> float:
        """Seconds that `runs` may take; without other ranks there is nothing that might not come."""
        return runs * self.deadline_s + SLACK_S if self.plan.ranks > 1 else math.inf

    def begins(self, index: int) -> None:
        """An entry is being issued."""
        self._at = index

    def ends(self, index: int, stream: int, event: Any) -> None:
        """An entry was issued; `event` comes after it on its stream."""
        self._at = None
        self._marks.append((index, stream, event))

    def _look(self, spent_s: float, limit_s: float) -> None:
        """Raise if a rank has died, if NCCL has met an error, or past the limit."""
        dead = self.communicators.dead()
        if dead and not self._bereft_s:
            self._bereft_s = time.monotonic()
        elif dead and time.monotonic() - self._bereft_s >= GRACE_S:
            self._fail(self._died(dead, self._stuck(kernels=True)[0]))
        reported = self.communicators.error() if self._uses_nccl and not dead else ""
        if reported:
            self._fail(self._reported(reported))
        if spent_s > limit_s:
            self._fail(self._late(spent_s))

    # -- ending ------------------------------------------------------------------------------------------------------

    def _fail(self, error: CoconetError) -> NoReturn:
        """Mark the engine, end what hangs, and raise: what a kernel has said, where one has given up."""
        self.failed = error
        gpu = self.communicators.gpu
        with contextlib.suppress(Exception):  # a GPU that answers no more is left as it is
            with_deadline(self._give_up, "ending kernels that wait", gpu, STOP_S)
        said = [int(word) for word in self._words[:: STATE_BYTES // 4] if word]
        if said and isinstance(error, RankError):
            error = self.failed = self._lost(said[0])
        is_over = self._uses_nccl or self.communicators.dead()
        if is_over and not self.communicators.abort():
            error.where += f"; NCCL's abort did not return in {ABORT_S:g} s: end this process"
        raise error

    def _give_up(self) -> None:
        """Read who was given up; kernels that still wait see an error word and end."""
        side = self._side.ptr
        self._read_words(lambda *copy: self._runtime.memcpyAsync(*copy, side))
        self._side.synchronize()
        word = np.array([_GIVEN_UP], np.uint32)
        for number, found in enumerate(self._words[:: STATE_BYTES // 4]):
            if not found:
                place = self._states + number * STATE_BYTES
                kind = self._runtime.memcpyHostToDevice
                self._runtime.memcpyAsync(place, word.ctypes.data, word.nbytes, kind, side)
        self._side.synchronize()

    def _read_words(self, copy: Callable[..., Any]) -> None:
        words = self._words
        copy(words.ctypes.data, self._states, words.nbytes, self._runtime.memcpyDeviceToHost)

    def lose(self) -> list[Any]:
        """NCCL's communicators are being aborted: which graphs use them, to be let go."""
        if self.failed is None:
            self.failed = RankError("another engine of these ranks gave a rank up, and with it NCCL's communicators")
        graph, self.graph = self.graph, None
        return [graph]

    def abandon(self, memory: DeviceMemory) -> None:
        """In place of the collective `memory.free` after a failure: what this rank can give back alone, if it can."""
        is_at_rest = all(self._runtime.streamQuery(stream.ptr) == 0 for stream in self._streams)
        if is_at_rest:  # else the driver would wait for what hangs
            with contextlib.suppress(Exception):
                with_deadline(memory.leave, "giving memory back", self.communicators.gpu, STOP_S)

    # -- errors ------------------------------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"plan of program {self.plan.name!r} on rank {self.place.rank}"

    def _lost(self, word: int) -> RankError:
        """A kernel's own error word."""
        index, peer = word >> 8, (word & 255) - 1
        entry = self.plan.entries[min(index, len(self.plan.entries) - 1)]
        # Inside a launch ranks are counted in their group, in a meeting between entries among all.
        members = self.place.members(-1) if peer < FIRST_OF_ALL else range(self.plan.ranks)
        number = peer if peer < FIRST_OF_ALL else peer - FIRST_OF_ALL
        place, dead = f"{entry.name!r}, step {index}", self.communicators.dead()
        if number < len(members) and members[number] in dead:
            return self._died(dead, place)
        return self._missing(self.deadline_s, f"rank {members[number]}" if number < len(members) else "a peer", place)

    def _late(self, spent_s: float) -> RankError:
        places, peers = self._stuck()
        return self._missing(spent_s, f"{'one of ' if len(peers) > 1 else ''}{name_ranks(peers)}", places)

    def _missing(self, spent_s: float, who: str, places: str) -> RankError:
        return RankError(
            f"rank {self.place.rank} waited {spent_s:.3g} s for {who} in {places}",
            rule="every rank enters the same collectives in the same order",
            where=self._where,
            hint="a longer deadline_s, or plan_dot(plan) to see what the ranks wait for; then a new engine",
        )

    def _died(self, dead: Sequence[int], places: str) -> RankError:
        return RankError(
            f"{name_ranks(sorted(dead))} died while rank {self.place.rank} was in {places}",
            rule="a collective ends when all of its ranks have come; the others were ended with the one that cannot",
            where=self._where,
            hint=f"what rank {dead[0]} printed last (cluster.log({dead[0]})); start the ranks again, then a new engine",
        )

    def _reported(self, text: str) -> RankError:
        places, _ = self._stuck()
        return RankError(
            f"NCCL reports {text!r} on rank {self.place.rank} in {places}",
            rule="communicators with an error finish nothing more",
            where=self._where,
            hint="NCCL_DEBUG=WARN tells more; start the ranks again, then a new engine",
        )

    def _broken(self, stream: Any) -> CoconetError:
        """The driver's own error, such as an address that is none."""
        try:
            stream.synchronize()
        except Exception as error:
            return explained(error, self._where)
        return explained(RuntimeError("the stream came to no good end"), self._where)

    def _stuck(self, kernels: bool = False) -> tuple[str, list[int]]:
        """Where this rank waits, as far as is known, in words; and the ranks it may be waiting for there.

        In NCCL, past the limit at which `kernels` have given up; else it may be one of these.
        """
        entries, at = self.plan.entries, self._at
        waits = {i for i, e in enumerate(entries) if is_nccl(e) or (kernels and (e.opens or e.closes))}
        waits = {i for i in waits if self.place.group in entries[i].groups} or set(range(len(entries)))
        known = [at] if at in waits else [i for i in self._unfinished() if i in waits]
        found = known or sorted(waits)
        peers = sorted({rank for i in found for rank in self._peers(entries[i])})
        names = [f"{entries[i].name!r}, step {i}" for i in found]
        if len(names) > 3:
            names[2:] = [f"{len(names) - 2} others"]
        return ("one of " if len(names) > 1 else "") + " or ".join(names), peers

    def _unfinished(self) -> list[int]:
        """The first entry of each stream that is not done; a graph does not tell."""
        found: dict[int, int] = {}
        for index, stream, event in self._marks:
            if stream not in found and not event.done:
                found[stream] = index
        return list(found.values())

    def _peers(self, entry: AnyEntry) -> list[int]:
        if isinstance(entry, Transfer):
            sends, receives = entry.groups[0], entry.groups[-1]
            return [self.place.members(receives if self.place.group == sends else sends)[self.place.index]]
        return [rank for rank in self.place.members(-1) if rank != self.place.rank]
