"""Work behind the clicks: one thread that does the newest wish of each kind, and drops the ones that grew old."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from coconet_lab.errors import CoconetError, ProofError
from coconet_lab.schedule.schedule import Schedule
from coconet_lab.viz.explorer.state import Verdict

Cancelled = Callable[[], bool]
Task = Callable[[Cancelled], None]


class Background:
    """A daemon thread for one explorer. A task of a kind replaces the waiting one and cancels the running one.

    The thread starts with the first task and ends when there is nothing to do, so that an idle explorer costs nothing.
    """

    def __init__(self, failed: Callable[[str, BaseException], None]) -> None:
        self._failed = failed
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._waiting: OrderedDict[str, tuple[int, Task]] = OrderedDict()
        self._newest: dict[str, int] = {}
        self._thread: threading.Thread | None = None

    def put(self, kind: str, task: Task) -> None:
        """Do `task` soon, and any older one of its kind not at all."""
        with self._lock:
            number = self._newest.get(kind, 0) + 1
            self._newest[kind] = number
            self._waiting.pop(kind, None)
            self._waiting[kind] = (number, task)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="coconet_lab explorer", daemon=True)
                self._thread.start()

    def cancel(self, kind: str) -> None:
        """Forget what waits of a kind, and tell what runs to stop."""
        with self._lock:
            self._newest[kind] = self._newest.get(kind, 0) + 1
            self._waiting.pop(kind, None)

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is left to do; False after `timeout_s`."""
        with self._idle:
            return self._idle.wait_for(lambda: self._thread is None, timeout_s)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    self._idle.notify_all()
                    return
                kind, (number, task) = self._waiting.popitem(last=False)
            try:
                task(lambda kind=kind, number=number: self._newest[kind] != number)  # type: ignore[misc]
            except BaseException as error:  # told to the person; the thread goes on
                self._failed(kind, error)


class _StoppedError(Exception):
    """Raised between two operations of a check that nobody waits for any more."""


def verdict_on(schedule: Schedule, cancelled: Cancelled) -> tuple[Verdict, str] | None:
    """What a check of a schedule at small size finds, and its sentence or its four lines; None once `cancelled`."""

    def before(_: str) -> None:
        if cancelled():
            raise _StoppedError

    try:
        return "proved", repr(schedule.check(before=before))
    except _StoppedError:
        return None
    except ProofError as error:
        return "wrong", str(error)
    except CoconetError as error:
        return "unchecked", f"cannot be checked: {error.found}"
