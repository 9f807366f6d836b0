"""One probe per thing a machine may have: a pure function of a `Host`; none raises, none waits without a deadline."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from coconet_lab.doctor.host import Answer, Host

_SETUP = "make setup"
_GPU = "a machine with NVIDIA GPUs and their driver (580 or newer)"
_GPU_EXTRA = ".venv/bin/python -m pip install -e '.[gpu]'"
_BENCH_EXTRA = ".venv/bin/python -m pip install -e '.[bench]'"
_MPI_DEADLINE_S = 40.0
_SHORT_DEADLINE_S = 15.0
_WINDOWS_SINCE = (2, 28)  # of NCCL
_RANK_PROGRAM = (
    "from mpi4py import MPI; w = MPI.COMM_WORLD; n = w.allreduce(1); "
    "w.rank or print('size=%d library=%s' % (n, MPI.Get_library_version().splitlines()[0].strip()), flush=True)"
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of what the machine has.

    Parameters
    ----------
    name : str
        Stable: abilities and JSON readers look facts up by it.
    present : bool
        Whether it is there and works.
    text : str
        What was found, with versions, in one line.
    get : str
        A command that gets it, where it is missing or broken.
    amount : int
        What can be counted: cores, bytes, GPUs, ranks.
    """

    name: str
    present: bool
    text: str
    get: str = ""
    amount: int = 0


def examine(host: Host) -> tuple[Fact, ...]:
    """Ask every probe; one that fails becomes a line that says so.

    Parameters
    ----------
    host : Host
        The machine, or a test's description of one.

    Returns
    -------
    tuple of Fact
        In the order they are shown.

    Examples
    --------
    >>> from coconet_lab.doctor import this_host
    >>> facts = examine(this_host())                    # doctest: +SKIP
    """
    return tuple(_guarded(name, probe, host) for name, probe in PROBES.items())


def _guarded(name: str, probe: Callable[[Host], Fact], host: Host) -> Fact:
    try:
        fact = probe(host)
    except Exception as error:  # the doctor's task is to report trouble, whatever it is
        return Fact(name, False, f"could not be examined: {type(error).__name__}: {error}")
    return replace(fact, get="") if fact.present else fact


def _python(host: Host) -> Fact:
    major, minor = (int(part) for part in host.python_version.split(".")[:2])
    found = f"{host.python_version}, {host.python}"
    return Fact("python", (major, minor) >= (3, 11), found, "a Python from 3.11 on, then make setup PYTHON=/path/to/it")


def _system(host: Host) -> Fact:
    return Fact("system", True, host.system)


def _cores(host: Host) -> Fact:
    return Fact("cores", True, str(host.cores), amount=host.cores)


def _memory(host: Host) -> Fact:
    found = re.search(r"MemTotal:\s+(\d+) kB", host.read("/proc/meminfo") or "")
    limit = (host.read("/sys/fs/cgroup/memory.max") or "").strip()
    sizes = [int(found[1]) * 1024] if found else []
    sizes += [int(limit)] if limit.isdigit() else []
    if not sizes:
        return Fact("memory", True, "not known")
    note = ", limited by the container" if len(sizes) == 2 and sizes[1] < sizes[0] else ""
    return Fact("memory", True, f"{min(sizes) / 2**30:.1f} GiB{note}", amount=min(sizes))


def _shared_memory(host: Host) -> Fact:
    free = host.free_bytes("/dev/shm")
    if free is None:
        return Fact("shared_memory", False, "no /dev/shm; shared windows lie in files")
    text = f"{_bytes(free)} free in /dev/shm"
    # A container's default is 64 MiB: four ranks' windows of a few million elements do not fit there.
    return Fact("shared_memory", free >= 2**28, text, "start the container with --shm-size=2g", free)


def _mpi(host: Host) -> Fact:
    version = host.version("mpi4py")
    mpiexec = host.which("mpiexec")
    if version is None:
        return Fact("mpi", False, "mpi4py is not installed", _SETUP)
    if mpiexec is None:
        return Fact(
            "mpi", False, f"mpi4py {version}, but no mpiexec was found", "make setup, or your cluster's MPI module"
        )
    command = [mpiexec, *mpiexec_flags(host, mpiexec), "-n", "2", host.python, "-c", _RANK_PROGRAM]
    return _mpi_verdict(host.run(command, _MPI_DEADLINE_S), f"mpi4py {version}, {mpiexec}")


def mpiexec_flags(host: Host, mpiexec: str) -> tuple[str, ...]:
    """What this `mpiexec` needs to start more ranks than cores, as root too; MPICH needs nothing.

    Examples
    --------
    >>> from coconet_lab.doctor import this_host
    >>> mpiexec_flags(this_host(), "no-such-mpiexec")
    ()
    """
    said = host.run([mpiexec, "--version"], _SHORT_DEADLINE_S)
    return ("--allow-run-as-root", "--oversubscribe") if re.search("Open MPI|OpenRTE|prte", said.stdout) else ()


def _mpi_verdict(answer: Answer, what: str) -> Fact:
    sizes = [int(size) for size in re.findall(r"size=(\d+) library=", answer.stdout)]
    # Open MPI's version goes on with its package and date, and ends in a NUL.
    said = (re.search(r"library=([^,\0\n]*)", answer.stdout) or ["", "?"])[1]
    library = " ".join(said.split())
    if answer.code == 0 and sizes == [2]:
        return Fact("mpi", True, f"{library}; {what} started 2 ranks", amount=2)
    if sizes and set(sizes) == {1}:
        text = f"{what} started {len(sizes)} worlds of 1 rank: it is of another MPI than the library loaded ({library})"
        return Fact(
            "mpi", False, text, "an mpiexec and an MPI library of one kind: make clean setup, outside any MPI module"
        )
    state = "did not end in time" if answer.code is None else f"ended with status {answer.code}"
    return Fact("mpi", False, f"{what} -n 2 {state}: {answer.last_line or 'no output'}", "make clean setup")


def _compiler(host: Host) -> Fact:
    found = next(filter(None, map(host.which, ("cc", "gcc", "clang"))), None)
    return Fact(
        "compiler", found is not None, f"{found or 'none'} (not needed: kernels are compiled by Numba and NVRTC)"
    )


def _distribution(name: str, distributions: tuple[str, ...], get: str, note: str = "") -> Callable[[Host], Fact]:
    def probe(host: Host) -> Fact:
        found = [(part, version) for part in distributions if (version := host.version(part)) is not None]
        if not found:
            return Fact(name, False, f"{distributions[0]} is not installed{note}", get)
        return Fact(name, True, ", ".join(f"{part} {version}" for part, version in found))

    return probe


def _graphviz(host: Host) -> Fact:
    real = host.which("dot")
    shim = host.which("coconet-dot") if host.version("pygraphviz") else None
    engine = real or shim
    if engine is None:
        return Fact("graphviz", False, "neither dot nor pygraphviz", f"{_SETUP}, or apt-get install graphviz")
    answer = host.run([engine, "-V"], _SHORT_DEADLINE_S)
    if answer.code != 0:
        return Fact("graphviz", False, f"{engine} -V failed: {answer.last_line or 'no end in time'}", _SETUP)
    return Fact("graphviz", True, f"{answer.last_line.removeprefix('dot - graphviz version ')}, {engine}")


def _browser(host: Host) -> Fact:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(host.which, names)), None)
    if found is None:
        return Fact("browser", False, "no Chromium (only the browser tests need it)", "apt-get install chromium")
    answer = host.run([found, "--version"], _SHORT_DEADLINE_S)
    if answer.code != 0:
        return Fact(
            "browser", False, f"{found} does not start: {answer.last_line}", "apt-get install --reinstall chromium"
        )
    return Fact("browser", True, f"{answer.stdout.strip()}, {found}")


def _gpus(host: Host) -> Fact:
    smi = host.which("nvidia-smi")
    if smi is None:
        return Fact("gpus", False, "none (no nvidia-smi); everything but CUDA runs works without", _GPU)
    answer = host.run([smi, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"], 30.0)
    lines = [line.strip() for line in answer.stdout.splitlines() if line.count(",") >= 2]
    if answer.code != 0 or not lines:
        said = answer.last_line or "no output"
        return Fact("gpus", False, f"nvidia-smi failed: {said}", _GPU)
    name, memory, driver = (part.strip() for part in lines[0].rsplit(",", 2))
    return Fact("gpus", True, f"{len(lines)} x {name}, {memory} each, driver {driver}", amount=len(lines))


def _cupy(host: Host) -> Fact:
    names = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
    found = next((f"{name} {version}" for name in names if (version := host.version(name))), None)
    if found is None:
        return Fact("cupy", False, "not installed (only GPUs need it)", _GPU_EXTRA)
    if host.which("nvidia-smi") is None:
        return Fact("cupy", True, f"{found}, no GPU to try it on")
    program = "import cupy; print('devices=%d' % cupy.cuda.runtime.getDeviceCount()); cupy.arange(3).sum().item()"
    answer = host.run([host.python, "-c", program], 90.0)
    if answer.code != 0:
        return Fact("cupy", False, f"{found} does not work: {answer.last_line or 'no end in time'}", _GPU_EXTRA)
    count = re.search(r"devices=(\d+)", answer.stdout)
    return Fact("cupy", True, f"{found}, works", amount=int(count[1]) if count else 0)


def _nccl(host: Host) -> Fact:
    names = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
    fact = _distribution("nccl", names, _GPU_EXTRA, " (only GPUs need it)")(host)
    found = next(filter(None, map(host.version, names)), "")
    parts = re.match(r"(\d+)\.(\d+)", found)
    if parts is None or (int(parts[1]), int(parts[2])) >= _WINDOWS_SINCE:
        return fact
    since = ".".join(map(str, _WINDOWS_SINCE))
    # No reason to refuse: fused collectives reach their peers by CUDA IPC unless windows are asked for.
    said = f"older than {since}, so without windows: symmetric memory is CUDA IPC alone"
    return replace(fact, text=f"{fact.text}, {said}")


def _bytes(amount: int) -> str:
    return f"{amount / 2**30:.1f} GiB" if amount >= 2**30 else f"{amount / 2**20:.0f} MiB"


# Name to probe, in the order of the report.
PROBES: dict[str, Callable[[Host], Fact]] = {
    "python": _python,
    "system": _system,
    "cores": _cores,
    "memory": _memory,
    "shared_memory": _shared_memory,
    "mpi": _mpi,
    "cluster": _distribution("cluster", ("ipyparallel",), _SETUP),
    "numba": _distribution("numba", ("numba", "llvmlite"), _SETUP),
    "compiler": _compiler,
    "graphviz": _graphviz,
    "jupyter": _distribution("jupyter", ("jupyterlab", "ipywidgets", "anywidget"), _SETUP),
    "browser": _browser,
    "playwright": _distribution("playwright", ("playwright",), _SETUP, " (only the browser tests need it)"),
    "gpus": _gpus,
    "cupy": _cupy,
    "nccl": _nccl,
    "nvrtc": _distribution("nvrtc", ("nvidia-cuda-nvrtc",), _SETUP),
    "torch": _distribution("torch", ("torch",), _BENCH_EXTRA, " (only a baseline of the benchmarks needs it)"),
}
