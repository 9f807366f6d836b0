"""How engines are started: which mpiexec, with which arguments, environment and profile."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coconet_lab.errors import ClusterError
from coconet_lab.run.devices import core_count
from coconet_lab.run.guard import MARK

MPIEXEC_VARIABLE = "COCONET_LAB_MPIEXEC"
_THREAD_VARIABLES = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_FORKER = ".gforker"
_HOST_FILE_OPTIONS = ("f", "hostfile", "machinefile")  # of MPICH's and Open MPI's mpiexec
# Ranks of one host talk through memory alone; without these MPI's network layer listens on every interface.
_LOCAL_TRANSPORT = {"UCX_TLS": "self,sysv,posix", "FI_TCP_IFACE": "lo", "FI_SOCKETS_IFACE": "lo"}
LOCAL_OPTIONS = ("mpiexec", "directory", "start_s")  # of the lab itself; others are the profile's
_LIBRARY_CODE = (
    "import mpi4py; mpi4py.rc.initialize = False\n"
    "from mpi4py import MPI\n"
    "print(' '.join(MPI.Get_library_version().replace(chr(0), '').splitlines()[0].split()))"
)


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked a cluster to be; two equal requests of one process replace each other.

    Parameters
    ----------
    ranks : int
        Number of MPI ranks.
    backend : str
        ``"cpu"`` or ``"cuda"``.
    profile : str or None
        Folder with an ``ipcluster_config.py``, or its short name in ``cluster/``; None is this host.
    nodes : int or None
        Hosts to spread the ranks over.
    options : tuple of (str, str)
        ``mpiexec`` (path), ``directory`` (shared by the hosts), and what the profile's batch text names.
    start_s : float
        Seconds the engines may take to appear, once the job runs.
    """

    ranks: int
    backend: str = "cpu"
    profile: str | None = None
    nodes: int | None = None
    options: tuple[tuple[str, str], ...] = ()
    start_s: float = field(default=60.0, compare=False)

    def option(self, name: str, default: str = "") -> str:
        """The option `name` as text."""
        return dict(self.options).get(name, default)

    @property
    def is_local(self) -> bool:
        """Whether all ranks are processes of this host."""
        return self.profile is None

    def __str__(self) -> str:
        parts = [f"ranks={self.ranks}", *([f"profile={self.profile!r}"] if self.profile else [])]
        return f"Cluster({', '.join(parts)})"


def find_mpiexec(request: Request) -> str:
    """Path of the ``mpiexec`` to use: asked for, or installed beside this Python, or on PATH.

    The one beside this Python comes before PATH: it belongs to the MPI library that mpi4py loads from the same
    environment, and a kernel started by path has no environment activated.
    """
    asked = request.option("mpiexec") or os.environ.get(MPIEXEC_VARIABLE, "")
    beside = os.path.join(sysconfig.get_path("scripts"), "mpiexec")
    # On one host MPICH's forking mpiexec does all that is needed and opens no port; hydra listens on every interface.
    for candidate in [asked] if asked else [beside + _FORKER, beside, "mpiexec"]:
        path = shutil.which(candidate)
        if path is not None:
            return path
    raise ClusterError(
        f"no mpiexec to start {request.ranks} ranks with: "
        + (f"'{asked}' is not a program" if asked else "none beside this Python and none on PATH")
        + f" (MPI library: {mpi_library()})",
        rule="ranks are processes of one MPI world, started by the mpiexec of the library that mpi4py loads",
        where=str(request),
        hint=f"{os.path.basename(sys.executable)} -m pip install mpich mpi4py",
    )


def mpi_library(timeout_s: float = 10.0) -> str:
    """First line of the MPI library's version, asked in another process: a broken library must not hurt this one."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LIBRARY_CODE], capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "mpi4py does not answer"
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return lines[-1] if lines else "unknown"


def is_open_mpi(mpiexec: str) -> bool:
    """Whether `mpiexec` is Open MPI's, which needs other arguments than MPICH's."""
    folder = Path(mpiexec).resolve().parent
    return (folder / "prterun").exists() or (folder / "orterun").exists()


def is_forker(mpiexec: str) -> bool:
    """Whether `mpiexec` is MPICH's for one host, which forks its ranks and talks to them through pipes."""
    return mpiexec.endswith(_FORKER)


def mpi_arguments(mpiexec: str) -> list[str]:
    """Arguments of `mpiexec` for ranks on this host; ranks bind themselves (`ranks.prepare`)."""
    if is_open_mpi(mpiexec):
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [*root, "--oversubscribe", "--bind-to", "none"]
    if is_forker(mpiexec):
        return ["-exitinfo"]
    return ["-launcher", "fork"]


def engine_environment(request: Request, session: str) -> dict[str, str]:
    """Variables every engine gets: the session's mark, the import path, a share of the cores."""
    threads = str(max(1, core_count() // request.ranks)) if request.is_local else "1"
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    bare = {"PYTHONPATH": path, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    local = {name: value for name, value in _LOCAL_TRANSPORT.items() if request.is_local and name not in os.environ}
    return {MARK: f"{session}/engines", **dict.fromkeys(_THREAD_VARIABLES, threads), **bare, **local}


def profile_folder(name: str) -> Path:
    """The folder of profile `name`: a path, ``cluster/profile_<name>`` here or in the repository."""
    roots = [Path.cwd(), Path(__file__).resolve().parents[2]]
    candidates = [Path(name), *(root / "cluster" / f"profile_{name}" for root in roots)]
    for candidate in candidates:
        if (candidate / "ipcluster_config.py").is_file():
            return candidate.resolve()
    known = sorted({p.name.removeprefix("profile_") for root in roots for p in root.glob("cluster/profile_*")})
    raise ClusterError(
        f"no cluster profile '{name}'",
        rule="a profile is a folder with an ipcluster_config.py, by path or by name in cluster/",
        where=f"Cluster(profile={name!r})",
        hint=f"one of {', '.join(known)}" if known else "copy cluster/ from the repository beside your notebook",
    )


def profile_config(request: Request) -> Any:
    """ipyparallel's configuration for `request`: the profile's file, completed with what was asked."""
    from traitlets.config import Config
    from traitlets.config.loader import PyFileConfigLoader

    if request.profile is None:
        return Config()
    folder = profile_folder(request.profile)
    config = PyFileConfigLoader("ipcluster_config.py", path=str(folder)).load_config()
    template = folder / "engines.sbatch"
    if template.is_file():
        config.SlurmEngineSetLauncher.batch_template = batch_text(template.read_text(), request)
    return config


def check_profile(config: Any, request: Request) -> None:
    """Refuse a profile whose host file or batch system is not here: of either, a launcher says something else.

    Raises
    ------
    ClusterError
        The file or the command that is missing, and how to get it.
    """
    given = config.MPILauncher.get("mpi_args")
    arguments = [str(argument) for argument in given] if isinstance(given, list | tuple) else []  # or not known yet
    for option, file in itertools.pairwise(arguments):
        if option.lstrip("-") in _HOST_FILE_OPTIONS and not os.path.isfile(file):
            raise ClusterError(
                f"profile '{request.profile}' names its hosts in '{file}', which is not there",
                rule="a host file has a line a host, with the ranks it takes: node01:4",
                where=str(request),
                hint=f"cp {os.path.dirname(file)}/hostfile.example {file}, then name your hosts in it",
            )
    if "slurm" in str(config.Cluster.get("engine_launcher_class", "")).lower() and shutil.which("sbatch") is None:
        raise ClusterError(
            f"profile '{request.profile}' submits its ranks by sbatch, which is not on PATH",
            rule="a job is submitted where Slurm's commands are, as on a login node",
            where=str(request),
            hint=f"start Jupyter on such a host, or Cluster(ranks={request.ranks}) for ranks on this one",
        )


_PLACE = re.compile(r"@(\w+)@")


def batch_text(template: str, request: Request) -> str:
    """The batch script for `request`: ``@name@`` filled in, lines whose option was not given left out.

    ipyparallel fills what is in braces (the program and its arguments) later.

    Examples
    --------
    >>> batch_text("#SBATCH --nodes=@nodes@\\n#SBATCH --qos=@qos@\\nsrun {program}\\n", Request(8, nodes=2))
    '#SBATCH --nodes=2\\nsrun {program}\\n'
    """
    beside = os.path.join(sysconfig.get_path("scripts"), "mpiexec")
    given = {"mpiexec": beside, "per_node": _per_node(request), **dict(request.options)}
    values: Mapping[str, object] = {**given, "ranks": request.ranks, "nodes": request.nodes or ""}
    unknown = set(dict(request.options)) - set(_PLACE.findall(template)) - set(LOCAL_OPTIONS)
    if unknown:
        places = sorted(set(_PLACE.findall(template)) - {"ranks", "nodes", "mpiexec"})
        raise ClusterError(
            f"the batch text of profile '{request.profile}' has no place for option '{min(unknown)}'",
            rule="options fill the @name@ places of the profile's batch text",
            where=str(request),
            hint=f"one of {', '.join(places)}, or edit the profile",
        )
    lines = []
    for line in template.splitlines(keepends=True):
        names = _PLACE.findall(line)
        if all(str(values.get(name, "")) for name in names):
            lines.append(_PLACE.sub(lambda match: _one_line(str(values[match[1]])), line))
    return "".join(lines)


def _per_node(request: Request) -> str:
    """Ranks of each node, where they are equally many: kernels reach the ranks of their own host."""
    nodes = request.nodes or 0
    return str(request.ranks // nodes) if nodes and not request.ranks % nodes else ""


def _one_line(text: str) -> str:
    """An option as it may stand in a batch line: no line break, no brace for ipyparallel's formatter to run."""
    return (text.splitlines() or [""])[0].replace("{", "{{").replace("}", "}}")
