"""A small process that outlives its parent by seconds, to end whatever the parent had started.

A notebook kernel that is killed cannot clean up.  The guard holds the read end of a pipe: when the parent is gone, for
whatever reason, the pipe ends and the guard ends the session's processes, files and batch jobs.  It is run as a script
(``python guard.py``), so it imports the standard library alone and starts in some 20 ms.

Processes are found by a mark in their environment, which every child inherits: no window between starting a process
and telling the guard, and no process id that could have been given to somebody else meanwhile.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time

MARK = "COCONET_LAB_SESSION"
_POLL_S = 1.0
_TERM_S = 1.0


def marked_processes(session: str) -> list[int]:
    """Process ids whose environment carries `session`; empty where there is no ``/proc``."""
    wanted = f"{MARK}={session}".encode()
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:  # gone meanwhile, or another user's
            continue
        if any(variable.startswith(wanted) for variable in variables):
            found.append(int(path.split("/")[2]))
    return sorted(set(found) - {os.getpid()})


def signal_all(pids: list[int], number: int) -> None:
    """Send signal `number` to each of `pids` that still lives."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def end_processes(session: str, *, pids: tuple[int, ...] = (), term_s: float = _TERM_S) -> None:
    """End all processes of `session` (and `pids`): asked first, killed after `term_s` seconds."""
    remaining = sorted({*marked_processes(session), *pids})
    if term_s > 0:
        signal_all(remaining, signal.SIGTERM)
    deadline = time.monotonic() + max(term_s, 0.0)
    while remaining and time.monotonic() < deadline:
        time.sleep(0.02)
        remaining = sorted({*marked_processes(session), *(pid for pid in pids if is_alive(pid))})
    deadline = time.monotonic() + 5.0
    while remaining and time.monotonic() < deadline:
        signal_all(remaining, signal.SIGKILL)
        time.sleep(0.01)
        remaining = marked_processes(session)


def is_alive(pid: int) -> bool:
    """Whether process `pid` exists and is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        if os.path.isdir("/proc/self"):
            return False
    except OSError:
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def mapped_mpich_files(pids: list[int] | None = None) -> set[str]:
    """MPICH's shared-memory files that `pids` (or any living process) map."""
    mapped: set[str] = set()
    for path in [f"/proc/{pid}/maps" for pid in pids] if pids is not None else glob.glob("/proc/[0-9]*/maps"):
        try:
            with open(path) as file:
                mapped.update(re.findall(r"/dev/shm/mpich_shm_\w+", file.read()))
        except OSError:
            continue
    return mapped


def sweep_mpich_files(*, of_session: set[str] | None = None) -> None:
    """Remove MPICH's shared-memory files that nobody maps any more: a killed rank leaves a few MiB.

    Those `of_session` go at once; others must be old, since a job that is just starting has made its file but not yet
    mapped it.
    """
    mapped = mapped_mpich_files()
    for path in glob.glob("/dev/shm/mpich_shm_*"):
        with contextlib.suppress(OSError):
            if path not in mapped and (path in (of_session or set()) or time.time() - os.stat(path).st_mtime > 60.0):
                os.unlink(path)


class Guard:
    """The parent's handle on its guard: tell it what there is, or let it go.

    Parameters
    ----------
    session : str
        The mark that the session's processes carry in their environment.
    directory : str
        Removed with the session.
    """

    def __init__(self, session: str, directory: str) -> None:
        environment = {name: value for name, value in os.environ.items() if name != MARK}
        self._process = subprocess.Popen(
            [sys.executable, "-I", os.path.abspath(__file__), session, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The guard's own process id."""
        return self._process.pid

    def watch(self, pid: int) -> None:
        """Also end process `pid`, where the environment of a process cannot be read."""
        self._tell(f"pid {pid}")

    def cancel_with(self, command: list[str]) -> None:
        """Also run `command` (the one that cancels a batch job)."""
        self._tell("run " + "\t".join(command))

    def _tell(self, line: str) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()

    def release(self) -> None:
        """End the guard without ending the session (which has been stopped in order)."""
        self._process.kill()
        self._process.wait(timeout=5)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


def _wait_for_parent(parent: int) -> list[str]:
    """Lines the parent wrote, when it is gone: the pipe ended, or somebody else adopted this process."""
    text = b""
    while os.getppid() == parent:
        if not select.select([0], [], [], _POLL_S)[0]:
            continue  # a forked sibling may hold the pipe open, so the parent's id is looked at as well
        block = os.read(0, 65536)
        if not block:
            break
        text += block
    return text.decode().splitlines()


def main(session: str, directory: str) -> None:
    """Wait for the parent to go, then end everything of `session`."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    pids: list[int] = []
    commands: list[list[str]] = []
    for line in _wait_for_parent(os.getppid()):
        kind, _, rest = line.partition(" ")
        if kind == "pid":
            pids.append(int(rest))
        elif kind == "run":
            commands.append(rest.split("\t"))
    for command in commands:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, timeout=30, check=False)
    # Ids told long ago may belong to others by now wherever marks can be read, so they count only where not.
    end_processes(session, pids=() if os.path.isdir("/proc/self") else tuple(pids))
    shutil.rmtree(directory, ignore_errors=True)
    sweep_mpich_files()


if __name__ == "__main__":
    main(*sys.argv[1:3])
