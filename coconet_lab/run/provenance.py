"""Where, when and from what a result came: written into every file and caption."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata

_NAMED = ("coconet-lab", "numpy", "numba", "mpi4py", "mpich", "cupy-cuda13x", "nvidia-nccl-cu13", "torch")


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a reader needs to make the same run.

    Parameters
    ----------
    date : str
        ISO date and time, UTC.
    machine : str
        Short label, as in file names: ``cpu2``, ``h200x2``.
    processor : str
    ranks : int
    backend : str
        ``cpu`` or ``cuda``.
    versions : str
    command : str
    seed : int
    program, schedule : str
    """

    date: str
    machine: str
    processor: str
    ranks: int
    backend: str
    versions: str
    command: str
    seed: int
    program: str
    schedule: str

    def caption(self) -> str:
        """One line under a plot or table."""
        return (
            f"{self.machine} ({self.processor}), {self.ranks} ranks, {self.backend}, {self.date[:10]}; {self.versions}"
        )


def provenance(
    *, ranks: int, backend: str, seed: int, program: str, schedule: str, machine: str | None = None
) -> Provenance:
    """The provenance of a run that starts now."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Provenance(
        now,
        machine or f"cpu{os.cpu_count()}",
        processor(),
        ranks,
        backend,
        versions(),
        command(),
        seed,
        program,
        schedule,
    )


def processor() -> str:
    """The processor's name."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return f"{os.cpu_count()} × {names[0]}" if names else platform.processor() or platform.machine()


def versions() -> str:
    """Versions of what the numbers depend on."""
    found = [f"python {platform.python_version()}"]
    for name in _NAMED:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def command() -> str:
    """The command line of this process, without its folders."""
    if "ipykernel" in sys.modules:
        return "notebook"
    return " ".join([os.path.basename(sys.argv[0]) or "python", *sys.argv[1:]])
