"""Where ranks can run: cores, GPUs, and which of the two a cluster gets."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from dataclasses import dataclass

from coconet_lab.errors import ToolError

BACKENDS = ("auto", "cpu", "cuda")


def cores() -> list[int]:
    """Numbers of the cores this process may use; empty where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def core_count() -> int:
    """Cores this process may use (a container's or Slurm's share, not the machine's)."""
    return len(cores()) or os.cpu_count() or 1


def gpu_count() -> int:
    """GPUs the CUDA driver shows to this process; 0 without a driver."""
    for name in ("libcuda.so.1", "libcuda.so"):
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        count = ctypes.c_int(0)
        if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
            return count.value
    return 0


def has_cupy() -> bool:
    """Whether CuPy is installed (it is not imported)."""
    return importlib.util.find_spec("cupy") is not None


@dataclass(frozen=True, slots=True)
class Backend:
    """What the ranks compute on, and in words why.

    Parameters
    ----------
    name : str
        ``"cpu"`` or ``"cuda"``.
    ranks : int
        Number of ranks.
    note : str
        Why it is not what the machine might offer; empty when there is nothing to say.
    """

    name: str
    ranks: int
    note: str = ""

    def __str__(self) -> str:
        device = "CPU" if self.name == "cpu" else f"CUDA, {self.ranks} GPU{'s' if self.ranks > 1 else ''}"
        note = f" ({self.note})" if self.note else ""
        return f"{self.ranks} rank{'s' if self.ranks > 1 else ''}, {device}{note}"


def choose(ranks: int | None, backend: str, *, gpus: int, cores: int, cupy: bool) -> Backend:
    """The backend for `ranks` ranks on a machine with `gpus` GPUs and `cores` cores.

    A GPU a rank where there are GPUs and CuPy, else the CPU, with the reason.

    Raises
    ------
    ToolError
        If CUDA was asked for and there are fewer GPUs than ranks, or no CuPy.

    Examples
    --------
    >>> str(choose(4, "auto", gpus=2, cores=8, cupy=True))
    '4 ranks, CPU (2 GPUs found, 4 needed: ranks=2)'
    >>> str(choose(None, "auto", gpus=0, cores=2, cupy=False))
    '2 ranks, CPU'
    """
    usable = gpus if cupy else 0
    count = ranks if ranks is not None else min(4, usable if usable and backend != "cpu" else cores)
    plural = "" if gpus == 1 else "s"
    if backend == "cuda":
        if not cupy or gpus < count:
            found = f"{gpus} GPU{plural} found, {count} needed" if gpus < count else "CuPy is not installed"
            raise ToolError(
                f"no CUDA cluster of {count} ranks: {found}",
                rule="with backend='cuda' every rank has a GPU of its own, used through CuPy",
                where=f"Cluster(ranks={count}, backend='cuda')",
                hint=f"Cluster(ranks={gpus})" if cupy and gpus else f"Cluster(ranks={count}, backend='cpu')",
            )
        return Backend("cuda", count)
    if backend == "cpu" or not gpus:
        return Backend("cpu", count)
    if not cupy:
        return Backend("cpu", count, f"{gpus} GPU{plural} found, CuPy missing: pip install 'coconet-lab[gpu]'")
    if gpus < count:
        return Backend("cpu", count, f"{gpus} GPU{plural} found, {count} needed: ranks={gpus}")
    return Backend("cuda", count)
