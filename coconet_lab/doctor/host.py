"""The little that a probe may ask of a machine, as one value: a test can then describe a machine it does not have."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command said.  `code` is its exit status, or None if it was ended at its deadline or never started."""

    code: int | None
    stdout: str = ""
    stderr: str = ""

    @property
    def last_line(self) -> str:
        """The last line it wrote that says anything, stderr before stdout."""
        lines = [line.strip() for line in f"{self.stdout}\n{self.stderr}".splitlines() if line.strip()]
        return lines[-1] if lines else ""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine as the probes see it.

    Parameters
    ----------
    python, python_version, system : str
        The interpreter's path and version; the operating system in words.
    cores : int
        Cores this process may use.
    which : callable
        Program name to its path or None; programs beside the interpreter come first.
    run : callable
        Command and deadline in seconds to an `Answer`; it never raises and never outlives its deadline.
    version : callable
        Distribution name to its version or None.
    read : callable
        Path of a small text file to its contents or None.
    free_bytes : callable
        Folder to the free bytes of its file system or None.

    Examples
    --------
    >>> bare = Host("python3", "3.12.1", "Linux", 2, lambda name: None, lambda command, timeout_s: Answer(None),
    ...             lambda name: None, lambda path: None, lambda path: None)
    >>> bare.which("mpiexec") is None
    True
    """

    python: str
    python_version: str
    system: str
    cores: int
    which: Callable[[str], str | None]
    run: Callable[[Sequence[str], float], Answer]
    version: Callable[[str], str | None]
    read: Callable[[str], str | None]
    free_bytes: Callable[[str], int | None]


def this_host() -> Host:
    """The machine this process runs on.

    Returns
    -------
    Host
        Nothing is asked yet; every question is asked when a probe asks it.

    Examples
    --------
    >>> this_host().cores >= 1
    True
    """
    return Host(
        python=sys.executable,
        python_version=platform.python_version(),
        system=_system(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        which=which,
        run=run,
        version=_version,
        read=_read,
        free_bytes=_free_bytes,
    )


def which(name: str) -> str | None:
    """The path of a program: beside this interpreter first, since no command needs an activated environment.

    Examples
    --------
    >>> which("no-such-program") is None
    True
    """
    for folder in (sysconfig.get_path("scripts"), str(Path(sys.executable).parent)):
        if found := shutil.which(name, path=folder):
            return found
    return shutil.which(name)


def run(command: Sequence[str], timeout_s: float) -> Answer:
    """Run `command` without stdin; at the deadline it is ended with everything it started.

    Parameters
    ----------
    command : sequence of str
        Program and arguments.
    timeout_s : float
        Deadline in seconds.

    Returns
    -------
    Answer
        With `code` None if it did not start or did not end in time.

    Examples
    --------
    >>> run(["no-such-program"], 1.0).code is None
    True
    """
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    try:
        # A session of its own: mpiexec's ranks are then ended with it.
        process = subprocess.Popen(
            command, stdin=nothing, stdout=pipe, stderr=pipe, text=True, errors="replace", start_new_session=True
        )
    except OSError as error:
        return Answer(None, "", f"{type(error).__name__}: {error}")
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return Answer(None, "", _after_the_end(process, timeout_s))
    return Answer(process.returncode, stdout, stderr)


def _after_the_end(process: subprocess.Popen[str], timeout_s: float) -> str:
    try:
        process.communicate(timeout=5)
    except subprocess.TimeoutExpired:  # a grandchild in yet another session holds the pipe: leave it, don't wait
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    return f"no end after {timeout_s:g} s; it was ended"


def _system() -> str:
    if hasattr(platform, "freedesktop_os_release"):
        try:
            name = platform.freedesktop_os_release().get("PRETTY_NAME", "")
            return f"{name}, {platform.system()} {platform.release()}, {platform.machine()}"
        except OSError:
            pass
    return platform.platform()


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _free_bytes(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
