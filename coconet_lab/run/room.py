"""Whether a cluster that was asked for can be one, looked at before anything is started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from coconet_lab.arguments import is_number, one_of, path, refusal, shown, whole
from coconet_lab.errors import ClusterError
from coconet_lab.run import devices
from coconet_lab.run.launcher import LOCAL_OPTIONS, Request, find_mpiexec, mpi_library

_RANK_BYTES = 160 << 20  # a Python process with NumPy, Numba, ipykernel and MPI, measured at 140 MiB
_YEARS_S = 1e9  # beyond it the waits of the operating system overflow
_WINDOW_BYTES = 1 << 20  # MPICH's own shared window, for each rank and once more


def check_arguments(
    ranks: int | None,
    backend: str,
    nodes: int | None,
    deadline_s: float,
    profile: Any = None,
    options: Any = None,
) -> None:
    """Refuse arguments that make no cluster."""
    where = f"Cluster(ranks={shown(ranks)}, backend={shown(backend)})"
    if ranks is not None:
        whole(ranks, "the number of ranks", least=1, hint="Cluster(ranks=4)", error=ClusterError, where=where)
    one_of(backend, devices.BACKENDS, "the backend", hint="backend='auto'", error=ClusterError, where=where)
    if nodes is not None:
        whole(nodes, "the number of nodes", least=1, hint="nodes=2", error=ClusterError, where=where)
    check_deadline(deadline_s, where)
    if profile is None and nodes is not None and nodes > 1:
        raise ClusterError(
            f"no {shown(nodes)} nodes without a profile",
            rule="a profile says how ranks are started on other hosts; without one they all run here",
            where=where,
            hint='Cluster(profile="slurm", ranks=…, nodes=…), or profile="hosts"',
        )
    if profile is not None:
        path(profile, "the profile", hint='profile="slurm"', error=ClusterError)
    if options is not None and not isinstance(options, Mapping):
        rule = "options are a mapping of the profile's words to what they are"
        raise refusal("options", options, rule, 'options={"partition": "gpu"}', ClusterError, where)
    unknown = set(options or ()) - set(LOCAL_OPTIONS) if profile is None else set()
    if unknown:
        raise ClusterError(
            f"no option {shown(min(unknown, key=str))}",
            rule=f"options without a profile are {', '.join(LOCAL_OPTIONS)}; others fill a profile's batch text",
            where=where,
            hint='Cluster(profile="slurm", options={…})',
        )
    if options and "start_s" in options:
        check_deadline(_seconds(options["start_s"]), where, "start_s")


def _seconds(given: Any) -> Any:
    """An option may be text, as in a batch script: its number, or what was given where it is none."""
    if isinstance(given, str):
        with suppress(ValueError):
            return float(given)
    return given


def check_deadline(deadline_s: Any, where: str, what: str = "deadline_s") -> None:
    """Refuse what is no number of seconds ahead."""
    if not is_number(deadline_s) or not 0 < deadline_s < _YEARS_S:
        raise refusal(
            what,
            deadline_s,
            "it is a number of seconds above 0, and no more than some years of them",
            f"{what}=120.0",
            ClusterError,
            where,
        )


def check_room(request: Request) -> None:
    """Refuse more ranks than this host has memory for, before anything is started.

    MPI writes to its window in ``/dev/shm`` without asking for room there: a full one kills the ranks by a bus error.
    """
    if not request.is_local:
        return
    most = max(1, _free_bytes() // _RANK_BYTES)
    if request.ranks > most:
        raise ClusterError(
            f"cannot start {request.ranks} ranks: this host has memory for about {most} "
            f"(mpiexec: {find_mpiexec(request)}; MPI library: {mpi_library()})",
            rule=f"each rank is a Python process of about {_RANK_BYTES >> 20} MiB",
            where=str(request),
            hint=f"Cluster(ranks={min(most, devices.core_count())}), or a profile with more hosts",
        )
    window, free = (request.ranks + 1) * _WINDOW_BYTES, _free_window_bytes()
    if free is not None and free < window:
        raise ClusterError(
            f"cannot start {request.ranks} ranks: MPI needs {window >> 20} MiB in /dev/shm, where {free >> 20} are "
            f"free (mpiexec: {find_mpiexec(request)}; MPI library: {mpi_library()})",
            rule="ranks of one host talk through shared memory",
            where=str(request),
            hint="remove what fills /dev/shm, or a larger one (docker run --shm-size=1g)",
        )


def _free_bytes() -> int:
    """Memory that is free for new processes, the container's limit included."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/proc/meminfo") as file:
            fields = {line.split(":")[0]: line.split()[1] for line in file}
        free = int(fields["MemAvailable"]) << 10
        with open("/sys/fs/cgroup/memory.max") as file:
            limit = file.read().strip()
        with open("/sys/fs/cgroup/memory.current") as file:
            used = int(file.read())
        free = min(free, int(limit) - used) if limit.isdigit() else free
    except (OSError, KeyError, ValueError, IndexError):
        pass
    return free


def _free_window_bytes() -> int | None:
    """Room in ``/dev/shm``; None where there is no such folder."""
    try:
        space = os.statvfs("/dev/shm")
    except OSError:
        return None
    return space.f_bavail * space.f_frsize
