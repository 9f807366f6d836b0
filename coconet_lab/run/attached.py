"""Ranks that somebody else started: an ipyparallel cluster that is only borrowed."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shlex
import shutil
import signal
import socket
import tempfile
from typing import Any

from coconet_lab.errors import ClusterError
from coconet_lab.run import ranks
from coconet_lab.run.guard import is_alive, signal_all


class AttachedSession:
    """The engines of an ipyparallel profile or client, used but not owned.

    Parameters
    ----------
    profile_or_client : str or ipyparallel.Client
        A profile's name or folder, or a connected client.
    timeout_s : float
        Seconds to connect in.
    """

    def __init__(self, profile_or_client: Any, timeout_s: float = 30.0) -> None:
        self._name = profile_or_client if isinstance(profile_or_client, str) else "a client"
        self._owns_client = isinstance(profile_or_client, str)
        self.client: Any = _connect(profile_or_client, timeout_s) if self._owns_client else profile_or_client
        self.generation = 1
        # Hosts share homes, seldom /tmp: the channel must be where remote engines can see it.
        parent = os.path.join(os.path.expanduser("~"), ".coconet_lab")
        os.makedirs(parent, mode=0o700, exist_ok=True)
        self.directory = tempfile.mkdtemp(prefix="attached-", dir=parent)
        try:
            self.worlds, self.views = self._prepare(timeout_s)
        except BaseException:
            self.stop()
            raise

    def _prepare(self, timeout_s: float) -> tuple[list[ranks.World], list[Any]]:
        ids = sorted(self.client.ids)
        if not ids:
            raise self._error("it has no engines", "ipcluster start --engines=mpi -n 4")
        try:
            self.client[ids].use_cloudpickle().get(timeout=timeout_s)
            worlds = [self.client[i].apply_async(ranks.prepare, self.directory).get(timeout=timeout_s) for i in ids]
        except Exception as error:
            raise self._error(f"an engine could not join: {error}", "the same packages on all hosts") from error
        if sorted(world.rank for world in worlds) != list(range(len(ids))):
            raise self._error(
                f"its {len(ids)} engines are no MPI world of that size (they see {worlds[0].size})",
                "ipcluster start --engines=mpi",
            )
        order = sorted(range(len(ids)), key=lambda index: worlds[index].rank)
        return [worlds[index] for index in order], [self.client[ids[index]] for index in order]

    def _error(self, found: str, hint: str) -> ClusterError:
        return ClusterError(
            f"cannot attach to {self._name}: {found}",
            rule="the engines are all ranks of one MPI world and import coconet_lab",
            where="Cluster.attach",
            hint=hint,
        )

    @property
    def is_complete(self) -> bool:
        """Whether every rank is still registered."""
        return bool(self.views) and len(self.client.ids) >= len(self.worlds)

    def rank_log(self, rank: int) -> str:
        """What `rank` has printed since it was attached."""
        with contextlib.suppress(OSError), open(ranks.log_path(self.directory, rank), errors="replace") as file:
            return file.read()
        return ""

    def death(self, wait_s: float = 2.0) -> tuple[int, str] | None:
        """The first rank of this host that is gone; how, only its launcher knows."""
        here = os.uname().nodename
        for world in self.worlds:
            if world.host == here and not is_alive(world.pid):
                return world.rank, "died"
        return None

    def kill_ranks(self) -> None:
        """End the engines: those of this host by signal, others through the controller."""
        here = os.uname().nodename
        signal_all([world.pid for world in self.worlds if world.host == here], signal.SIGKILL)
        if any(world.host != here for world in self.worlds):
            with contextlib.suppress(Exception):
                self.client.shutdown(block=False)
        self.views = []

    def restart_ranks(self) -> None:
        """Refused: who started these engines has to start new ones."""
        raise self._error("its ranks have ended", "start its engines again, then Cluster.attach(…)")

    def stop(self) -> None:
        """Let the engines go; they stay as they were."""
        if self._owns_client:
            with contextlib.suppress(Exception):
                self.client.close(linger=0)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.views = []


def _connect(profile: str, timeout_s: float) -> Any:
    import ipyparallel

    where = {"profile_dir": profile} if os.path.isdir(profile) else {"profile": profile}
    try:
        # By its file: by its profile alone, ipyparallel waits the whole time for a file that nobody is writing.
        return ipyparallel.Client(_connection_file(profile), timeout=timeout_s, **where)
    except ClusterError:
        raise
    except Exception as error:
        raise _nothing_at(profile, " ".join(str(error).split())) from error


def _connection_file(profile: str) -> str:
    """Where the controller of `profile` says how it is reached, or an error at once where none can answer."""
    from IPython.core import profiledir
    from IPython.paths import get_ipython_dir

    profiles: Any = profiledir.ProfileDir  # its methods are not annotated
    try:
        if os.path.isdir(profile):
            folder = profiles.find_profile_dir(profile)
        else:
            folder = profiles.find_profile_dir_by_name(get_ipython_dir(), profile)
    except profiledir.ProfileDirError as error:
        raise _nothing_at(profile, "there is no such profile") from error
    path = os.path.join(folder.security_dir, "ipcontroller-client.json")
    if not os.path.exists(path):
        others = sorted(glob.glob(os.path.join(folder.security_dir, "ipcontroller-*-client.json")))
        if not others:
            raise _nothing_at(profile, "no controller of it is running")
        ids = [os.path.basename(other)[len("ipcontroller-") : -len("-client.json")] for other in others]
        where = "profile_dir" if os.path.isdir(profile) else "profile"
        client = f"ipyparallel.Client({where}={profile!r}, cluster_id={ids[-1]!r})"
        raise _nothing_at(profile, f"its controllers have ids: {', '.join(ids)}", f"cl.Cluster.attach({client})")
    if _is_refused(path):
        raise _nothing_at(profile, f"the controller of its {os.path.basename(path)} answers no more")
    return path


def _is_refused(path: str) -> bool:
    """Whether the host that `path` names says that nobody listens there; where it says nothing, the client decides."""
    from ipyparallel import util

    with contextlib.suppress(KeyError, ValueError):
        with open(path, encoding="utf-8") as file:
            given = json.load(file)
        protocol, host = given["interface"].split("://")
        if protocol == "tcp" and not given.get("ssh"):
            host = util.disambiguate_ip_address(host, given.get("location"))
            try:
                socket.create_connection((host, int(given["registration"])), timeout=2.0).close()
            except OSError as error:
                return isinstance(error, ConnectionRefusedError)
    return False


def _nothing_at(profile: str, found: str, hint: str = "") -> ClusterError:
    option = "--profile-dir" if os.path.isdir(profile) else "--profile"
    return ClusterError(
        f"cannot attach to profile '{profile}': {found}",
        rule="a running ipyparallel controller is found by its profile",
        where="Cluster.attach",
        hint=hint or f"ipcluster start {option}={shlex.quote(profile)} --engines=mpi -n 4",
    )
