"""What a function that runs on a rank can say and ask, and how it is run there.

A rank has two files in the session's directory: one it writes (what it is doing) and one it reads (whether the call
was cancelled).  Plain ``pread``/``pwrite`` on 256 bytes costs about a microsecond, needs no lock, works while the rank
sits in a kernel or in MPI, and still works across hosts on a shared file system.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_RECORD = struct.Struct("<qqqq200s")  # call, step, done, total, op
_MAX_BUFFERS = 48  # ipyparallel keeps large arrays out of the pickle in lists of fewer than 64 items


@dataclass(frozen=True, slots=True)
class Report:
    """What a rank last said it was doing.

    Parameters
    ----------
    call : int
        Number of the call it belongs to.
    op : str
        Name of the op or plan entry, empty before the first report.
    step, done, total : int
        Step of the plan, and finished and planned units of work; -1 where not said.
    """

    call: int = 0
    op: str = ""
    step: int = -1
    done: int = -1
    total: int = -1

    def __str__(self) -> str:
        place = f"'{self.op}'" if self.op else "its first op"
        return f"{place}, step {self.step}" if self.step >= 0 else place


@dataclass(frozen=True, slots=True)
class World:
    """The MPI world as one rank sees it."""

    rank: int
    size: int
    pid: int
    host: str
    library: str


@dataclass(slots=True)
class _Channel:
    """This process's place in a session; outside a session everything is silent and nothing is cancelled."""

    rank: int = 0
    call: int = 0
    report: Report = Report()
    write_fd: int = -1
    read_fd: int = -1


_here = _Channel()  # one per process by nature: it is the process's own identity


def status_path(directory: str, rank: int) -> str:
    """The file in which `rank` says what it is doing."""
    return os.path.join(directory, f"rank-{rank}.status")


def cancel_path(directory: str) -> str:
    """The file that holds the number of the newest cancelled call."""
    return os.path.join(directory, "cancel")


def log_path(directory: str, rank: int) -> str:
    """The file with what `rank` printed."""
    return os.path.join(directory, f"rank-{rank}.log")


def world() -> World:
    """This process's place in MPI's world (starts MPI if it was not)."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    library = MPI.Get_library_version().replace("\0", "").splitlines()[0].strip()
    return World(comm.Get_rank(), comm.Get_size(), os.getpid(), MPI.Get_processor_name(), " ".join(library.split()))


def prepare(directory: str, cores: Sequence[int] = ()) -> World:
    """Open this rank's channel in `directory` and send its output to its log; called once after a start.

    With a core for every rank each binds itself to its own: unbound, two spinning ranks now and then share one (stalls
    of 3-8 ms were measured).  The threads that answer the client stay free to run anywhere.
    """
    here = world()
    if len(cores) >= here.size:
        os.sched_setaffinity(0, {cores[here.rank]})
    _here.rank = here.rank
    _here.write_fd = os.open(status_path(directory, here.rank), os.O_WRONLY | os.O_CREAT, 0o600)
    _here.read_fd = os.open(cancel_path(directory), os.O_RDONLY | os.O_CREAT, 0o600)
    log = os.open(log_path(directory, here.rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    return here


def report(op: str | None = None, step: int | None = None, done: int | None = None, total: int | None = None) -> None:
    """Say what this rank is doing; shown in the progress bar and in errors.  What is left out stays as it was.

    Parameters
    ----------
    op : str, optional
        The op or plan entry about to run, by the user's name.
    step : int, optional
        Its number in the plan.
    done, total : int, optional
        Units of work finished and planned (repeats, usually).

    Examples
    --------
    >>> report(op="total_rs", step=3)
    >>> report(done=1, total=10)
    """
    last = _here.report
    _here.report = Report(
        _here.call,
        last.op if op is None else op,
        last.step if step is None else step,
        last.done if done is None else done,
        last.total if total is None else total,
    )
    _write_report()


def _write_report() -> None:
    if _here.write_fd >= 0:
        now = _here.report
        name = now.op.encode(errors="replace")[:200]
        os.pwrite(_here.write_fd, _RECORD.pack(now.call, now.step, now.done, now.total, name), 0)


def cancelled() -> bool:
    """Whether the user interrupted this call: return what is finished, soon.

    Examples
    --------
    >>> cancelled()
    False
    """
    if _here.read_fd < 0:
        return False
    text = os.pread(_here.read_fd, 8, 0)
    return len(text) == 8 and int.from_bytes(text, "little") >= _here.call > 0


def read_report(directory: str, rank: int, call: int) -> Report:
    """What `rank` last reported in call number `call` (read by the client)."""
    try:
        with open(status_path(directory, rank), "rb") as file:
            data = file.read(_RECORD.size)
    except OSError:
        return Report(call)
    if len(data) < _RECORD.size:
        return Report(call)
    number, step, done, total, name = _RECORD.unpack(data)
    if number != call:
        return Report(call)
    return Report(number, name.rstrip(b"\0").decode(errors="replace"), step, done, total)


def write_cancel(directory: str, call: int) -> None:
    """Ask every rank to end call number `call` (written by the client)."""
    descriptor = os.open(cancel_path(directory), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, call.to_bytes(8, "little"), 0)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended on one rank: its value, or the exception it raised."""

    ok: bool
    value: Any = None
    kind: str = ""
    text: str = ""
    traceback: str = ""
    where: str = ""
    report: Report = Report()


def pack(value: Any) -> list[Any]:
    """`value` as a pickle and its large buffers apart, so that arrays travel without a copy."""
    import cloudpickle

    buffers: list[pickle.PickleBuffer] = []
    head = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    if len(buffers) > _MAX_BUFFERS:
        return [cloudpickle.dumps(value, protocol=5)]
    return [head, *(np.frombuffer(buffer.raw(), dtype=np.uint8) for buffer in buffers)]


def unpack(parts: Sequence[Any]) -> Any:
    """The value that `pack` took apart."""
    # Received arrays are read-only views of a message; what is unpacked may be written to, as it may at its origin.
    return pickle.loads(parts[0], buffers=[part if part.flags.writeable else bytearray(part) for part in parts[1:]])


def invoke(call: int, shared: list[Any], own: list[Any]) -> list[Any]:
    """Run one packed call on this rank and pack its outcome; an exception comes back as a value, never raised."""
    _here.call = call
    _here.report = Report(call)
    _write_report()
    with contextlib.redirect_stdout(_LogStream(1)), contextlib.redirect_stderr(_LogStream(2)):
        try:
            function, args = unpack(shared)
            extra = unpack(own)
            return pack(Outcome(True, function(*args, *extra), report=_here.report))
        except BaseException as error:  # a rank that raised must still answer, or the client waits for its deadline
            return pack(_failure(error))


def _failure(error: BaseException) -> Outcome:
    """The outcome of an exception: texts alone, since an exception of the user's own class may not travel."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    frame = frames[-1] if frames else None
    where = f"{os.path.basename(frame.filename)}:{frame.lineno}" if frame is not None else ""
    where += f": {frame.line}" if frame is not None and frame.line else ""
    text = "".join(traceback.format_exception(error))
    print(text, file=sys.stderr, flush=True)
    return Outcome(False, None, type(error).__name__, str(error), text, where, _here.report)


class _LogStream:
    """A text stream onto a file descriptor, unbuffered so that the last line before a death is in the log."""

    encoding = "utf-8"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, text: str) -> int:
        os.write(self._descriptor, text.encode(errors="replace"))
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._descriptor
