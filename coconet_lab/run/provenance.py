"""Where, when and from what a result came: written into every file and caption."""

from __future__ import annotations

import ctypes
import datetime
import os
import platform
import re
import sys
from dataclasses import dataclass
from importlib import metadata

from coconet_lab.run.progress import in_kernel

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
    device = gpu_name() if backend == "cuda" else ""
    label = f"{gpu_label(device)}x{ranks}" if device else f"cpu{os.cpu_count()}"
    return Provenance(
        date=now,
        machine=machine or label,
        processor=f"{ranks} × {device}" if device else processor(),
        ranks=ranks,
        backend=backend,
        versions=versions(),
        command=command(),
        seed=seed,
        program=program,
        schedule=schedule,
    )


def gpu_name() -> str:
    """What the CUDA driver calls the first GPU; empty without one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    name = ctypes.create_string_buffer(128)
    found = driver.cuInit(0) == 0 and driver.cuDeviceGetName(name, len(name), 0) == 0
    return name.value.decode(errors="replace") if found else ""


def gpu_label(name: str) -> str:
    """The short form of a GPU's name, for files and tables.

    Examples
    --------
    >>> gpu_label("NVIDIA H200"), gpu_label("Tesla V100-SXM2-32GB")
    ('h200', 'v100')
    """
    found = re.search(r"\b[A-Z]{0,3}\d{2,4}\b", name)
    return (found[0] if found else re.sub(r"\W+", "", name)).lower()


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
    if in_kernel():
        return "notebook"
    words = [os.path.basename(word) if os.path.isabs(word) else word for word in sys.argv]
    return " ".join([words[0] or "python", *words[1:]])
