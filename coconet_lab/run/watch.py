"""Which rank died first, and how: MPI's own launchers name the wrong one as often as not."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import threading
from collections.abc import Sequence

_HYDRA_SIGNAL = re.compile(r"\(signal (\d+)\)")
_HYDRA_CODE = re.compile(r"EXIT CODE: (\d+)")
_OPEN_MPI_SIGNAL = re.compile(r"on signal (\d+)")


class DeathWatch:
    """Notes in which order processes of this host end, while they are watched.

    Parameters
    ----------
    pids : sequence of int
        The processes, in rank order.  Where the system has no process descriptors nothing is noted.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self.order: list[int] = []
        self._descriptors: dict[int, int] = {}
        self._noted = threading.Event()
        self._wake = os.pipe()
        for rank, pid in enumerate(pids):
            with contextlib.suppress(OSError, AttributeError):
                self._descriptors[os.pidfd_open(pid)] = rank
        self._thread = threading.Thread(target=self._run, name="coconet-lab-deaths", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        poll = select.poll()
        for descriptor in [self._wake[0], *self._descriptors]:
            poll.register(descriptor, select.POLLIN)
        while len(self.order) < len(self._descriptors):
            for descriptor, _ in poll.poll():
                if descriptor == self._wake[0]:
                    return
                poll.unregister(descriptor)
                self.order.append(self._descriptors[descriptor])
                self._noted.set()

    def first(self, timeout_s: float = 0.5) -> int | None:
        """The rank that ended first; None if none has within `timeout_s`."""
        return self.order[0] if self._noted.wait(timeout_s) else None

    def close(self) -> None:
        """Watch no longer."""
        os.close(self._wake[1])
        self._thread.join(timeout=5.0)
        for descriptor in [self._wake[0], *self._descriptors]:
            os.close(descriptor)


def read_death(text: str, rank: int) -> str:
    """How `rank` ended, from what its launcher wrote when its ranks were gone.

    Examples
    --------
    >>> read_death("[0]2:Return code = 0, signaled with Killed", 2)
    'was killed by signal 9 (SIGKILL)'
    >>> read_death("APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)", 0)
    'was killed by signal 11 (SIGSEGV)'
    >>> read_death("[0]1:Return code = 3", 1)
    'ended with exit code 3'
    """
    own = re.search(rf"^\[\d+\]{rank}:Return code = (\d+)(?:, signaled with (.+))?$", text, re.MULTILINE)
    if own is not None:
        name = (own[2] or "").strip()
        numbers = [number for number in signal.Signals if signal.strsignal(number) == name]
        return _killed(numbers[0]) if numbers else f"ended with exit code {own[1]}"
    found = _HYDRA_SIGNAL.search(text) or _OPEN_MPI_SIGNAL.search(text)
    if found is not None:
        return _killed(int(found[1]))
    code = _HYDRA_CODE.search(text)
    return f"ended with exit code {code[1]}" if code is not None else "died"


def _killed(number: int) -> str:
    try:
        return f"was killed by signal {int(number)} ({signal.Signals(number).name})"
    except ValueError:
        return f"was killed by signal {int(number)}"
