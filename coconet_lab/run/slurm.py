"""What Slurm's queue says about a job that has not started yet."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from coconet_lab.errors import ClusterError

_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "RESV_DEL_HOLD"})
_RUNNING = frozenset({"RUNNING", "COMPLETING"})


def parse_state(line: str) -> tuple[str, str]:
    """State and reason from a line of ``squeue --format=%T|%r``; ("GONE", "") from none.

    Examples
    --------
    >>> parse_state("PENDING|Resources")
    ('PENDING', 'Resources')
    """
    state, _, reason = line.strip().partition("|")
    reason = reason.strip()
    return (state.strip() or "GONE", "" if reason in ("None", "(null)") else reason)


class Queue:
    """One batch job as ``squeue`` shows it.

    Parameters
    ----------
    job : str
        Slurm's job id.
    squeue : str
        The program to ask.
    poll_s : float
        Seconds between two looks.
    """

    def __init__(self, job: str, squeue: str = "squeue", *, poll_s: float = 1.0) -> None:
        self.job = job
        self._command = [squeue, "--noheader", "--format=%T|%r", f"--jobs={job}"]
        self._poll_s = poll_s
        self._seen: tuple[float, tuple[str, str]] = (0.0, ("", ""))
        self._since_s = time.monotonic()

    def state(self) -> tuple[str, str]:
        """The job's state and the reason it waits, at most `poll_s` old."""
        taken_s, known = self._seen
        if known[0] and time.monotonic() - taken_s < self._poll_s:
            return known
        try:
            done = subprocess.run(self._command, capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return ("UNKNOWN", str(error))
        lines = done.stdout.strip().splitlines()
        known = parse_state(lines[0] if lines else "")
        self._seen = (time.monotonic(), known)
        return known

    @property
    def words(self) -> str:
        """What the last look found, without looking: ``job pending (Resources), 2 min``; empty before the first."""
        taken_s, (state, reason) = self._seen
        if not taken_s:
            return ""
        waited_s = time.monotonic() - self._since_s
        waited = f"{waited_s:.0f} s" if waited_s < 60 else f"{waited_s / 60:.0f} min"
        return f"job {_phrase(state, reason)}, {waited}"

    def is_alive(self) -> bool:
        """Whether the job is waiting or running, as far as anybody knows."""
        return self.state()[0] in _WAITING | _RUNNING | {"UNKNOWN"}

    def wait(self, say: Callable[[str], None], until: Callable[[], bool]) -> None:
        """Wait, without a deadline, until the job runs (or `until` holds), telling each change of state.

        Raises
        ------
        ClusterError
            If the job leaves the queue without having run.
        """
        told = ("", "")
        started_s = time.monotonic()
        while not until():
            state, reason = now = self.state()
            if now != told:
                waited = f", {time.monotonic() - started_s:.0f} s" if told[0] else ""
                say(f"Slurm job {self.job}: {_phrase(state, reason)}{waited}")
                told = now
            if state in _RUNNING:
                return
            if state not in _WAITING and state != "UNKNOWN":
                raise ClusterError(
                    f"Slurm job {self.job} left the queue as {state} before its ranks started",
                    rule="the job runs until the cluster is stopped",
                    where=f"Slurm job {self.job}",
                    hint=f"sacct -j {self.job}, and the account, partition and time limit in options={{…}}",
                )
            time.sleep(min(0.2, self._poll_s))


def _phrase(state: str, reason: str) -> str:
    """``pending (Resources)``; the state alone where there is no reason."""
    return f"{state.lower()} ({reason})" if reason else state.lower()
