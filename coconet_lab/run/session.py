"""One life of a cluster: controller, engines, guard and files, from start to stop, with restarts of the ranks between.

Only this module and `launcher` know how ipyparallel starts things.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from coconet_lab.errors import ClusterError
from coconet_lab.run import launcher, ranks
from coconet_lab.run.calls import Interrupted
from coconet_lab.run.devices import cores
from coconet_lab.run.guard import (
    MARK,
    Guard,
    end_processes,
    is_alive,
    mapped_mpich_files,
    marked_processes,
    signal_all,
    sweep_mpich_files,
)
from coconet_lab.run.slurm import Queue
from coconet_lab.run.watch import DeathWatch, read_death

_POLL_S = 0.02


class Session:
    """The processes behind one `Cluster`.

    Parameters
    ----------
    request : Request
        What to start.
    say : callable
        Takes one line for the user (queue states).
    """

    def __init__(self, request: launcher.Request, say: Callable[[str], None]) -> None:
        self.request = request
        self.generation = 0
        self.worlds: list[ranks.World] = []
        self.views: list[Any] = []
        self.client: Any = None
        self._say = say
        self._mark = secrets.token_hex(8)
        self._mpiexec = launcher.find_mpiexec(request) if request.is_local else ""
        self.directory = self._make_directory()
        self._guard: Guard | None = None
        self._cluster: Any = None
        self._queue: Queue | None = None
        self._is_stopping = threading.Event()  # another thread wants no ranks any more
        self._watch: DeathWatch | None = None
        self._shared_files: set[str] = set()

    def _make_directory(self) -> str:
        parent = self.request.option("directory")
        if not parent and not self.request.is_local:
            parent = os.path.join(os.path.expanduser("~"), ".coconet_lab")  # hosts share homes, seldom /tmp
        if parent:
            os.makedirs(parent, mode=0o700, exist_ok=True)
        return tempfile.mkdtemp(prefix="coconet_lab-", dir=parent or None)

    # Starting

    def start(self) -> None:
        """Start controller and engines and wait until every rank answers; on failure nothing is left."""
        try:
            self._guard = Guard(self._mark, self.directory)
            self._cluster = self._make_cluster()
            self._cluster.start_controller_sync()
            self._start_engines()
            self.client = self._cluster.connect_client_sync()
            self._await_ranks()
        except BaseException as error:
            log = self.launch_log()
            self.stop()
            if isinstance(error, ClusterError) or not isinstance(error, Exception):
                raise
            raise self._failure(f"{type(error).__name__}: {error}", log) from error

    def _make_cluster(self) -> Any:
        import ipyparallel

        config = launcher.profile_config(self.request)
        launcher.check_profile(config, self.request)
        config.BatchSystemLauncher.batch_file_name = os.path.join(self.directory, "engines.sbatch")
        config.LocalProcessLauncher.stop_seconds_until_kill = 3
        config.ControllerLauncher.environment = {MARK: f"{self._mark}/controller"}
        config.EngineLauncher.environment = launcher.engine_environment(self.request, self._mark)
        config.EngineLauncher.engine_args = ["--log-level=WARN"]
        quiet = logging.getLogger("coconet_lab.ipyparallel")
        quiet.setLevel(logging.CRITICAL)  # what goes wrong is told by this module, once, in four lines
        arguments: dict[str, Any] = {}
        if self.request.is_local:
            arguments = {"engines": "mpi", "controller_ip": "127.0.0.1"}
            config.MPILauncher.mpi_cmd = [self._mpiexec]
            config.MPILauncher.mpi_args = launcher.mpi_arguments(self._mpiexec)
        return ipyparallel.Cluster(
            config=config,
            load_profile=False,
            log=quiet,
            profile_dir=self.directory,
            n=self.request.ranks,
            shutdown_atexit=False,
            controller_args=["--HeartMonitor.period=500", "--IPController.use_threads=True"],
            **arguments,
        )

    def _start_engines(self) -> None:
        self._is_stopping.clear()
        self._cluster.start_engines_sync(self.request.ranks)
        engines = self._cluster.engine_set
        job = getattr(engines, "job_id", "")
        if job and self._guard is not None:
            self._queue = Queue(job)
            self._guard.cancel_with([*engines.delete_command, job])
        elif self._guard is not None:
            self._guard.watch(engines.pid)

    def _await_ranks(self) -> None:
        """Wait for all engines, then open every rank's channel and check that they are one world."""
        if self._queue is not None:
            self._queue.wait(self._say, until=lambda: self._are_there() or self._is_stopping.is_set())
        deadline = time.monotonic() + self.request.start_s
        while not self._are_there():
            if self._is_stopping.is_set():
                raise Interrupted(f"Interrupted: the start of {self.request.ranks} ranks was stopped", None)
            if not self._is_launcher_alive():
                raise self._failure(
                    f"mpiexec ended while {len(self.client.ids)} of {self.request.ranks} ranks had started",
                    self.launch_log(),
                )
            if time.monotonic() > deadline:
                raise self._failure(
                    f"{len(self.client.ids)} of {self.request.ranks} ranks appeared within {self.request.start_s:g} s",
                    self.launch_log(),
                )
            time.sleep(_POLL_S)
        ids = sorted(self.client.ids)
        self.client[ids].use_cloudpickle().get(timeout=self.request.start_s)
        own = cores() if self.request.is_local else []
        pending = [self.client[number].apply_async(ranks.prepare, self.directory, own) for number in ids]
        worlds = [result.get(timeout=self.request.start_s) for result in pending]
        self._check_world(worlds)
        order = sorted(range(len(ids)), key=lambda index: worlds[index].rank)
        self.worlds = [worlds[index] for index in order]
        self.views = [self.client[ids[index]] for index in order]
        if self.request.is_local:
            pids = [world.pid for world in self.worlds]
            self._watch, self._shared_files = DeathWatch(pids), mapped_mpich_files(pids)
        self.generation += 1

    def _are_there(self) -> bool:
        return len(self.client.ids) >= self.request.ranks

    def _check_world(self, worlds: list[ranks.World]) -> None:
        sizes = sorted({world.size for world in worlds})
        if sizes != [self.request.ranks] or sorted(w.rank for w in worlds) != list(range(self.request.ranks)):
            seen = " and ".join(str(size) for size in sizes)
            raise ClusterError(
                f"the ranks see a world of {seen}, not of {self.request.ranks}: {self._mpiexec or 'the launcher'} "
                f"started processes that use {worlds[0].library}",
                rule="mpiexec and the MPI library that mpi4py loads come from the same MPI",
                where=str(self.request),
                hint="Cluster(options={'mpiexec': '<the mpiexec of that library>'}), or pip install mpich mpi4py",
            )

    def _failure(self, found: str, log: str) -> ClusterError:
        """One four-line error that names both halves of MPI, with the last thing the launcher said."""
        last = [line.strip() for line in log.splitlines() if line.strip()]
        said = f"; it said: {last[-1][:160]}" if last else ""
        tool = f"mpiexec: {self._mpiexec}" if self._mpiexec else f"profile: {self.request.profile}"
        return ClusterError(
            f"no cluster of {self.request.ranks} ranks: {found} ({tool}; MPI library: {launcher.mpi_library()}){said}",
            rule="all ranks start, as one MPI world, before the deadline",
            where=str(self.request),
            hint="coconet-lab doctor, then fewer ranks or pip install --force-reinstall mpich mpi4py",
        )

    # Watching

    @property
    def queue(self) -> str:
        """What a batch queue says of the job while it waits: ``job pending (Resources), 2 min``; else empty."""
        queue = self._queue
        return queue.words if queue is not None and not self.views else ""

    def stop_starting(self) -> None:
        """End a start that is under way in another thread, and with it the batch job it waits for."""
        self._is_stopping.set()

    def _is_launcher_alive(self) -> bool:
        engines = self._cluster.engine_set if self._cluster is not None else None
        if engines is None:
            return False
        if self._queue is not None:
            return self._queue.is_alive()
        return is_alive(engines.pid)

    @property
    def is_complete(self) -> bool:
        """Whether every rank is registered and none is known to be dead."""
        if self.client is None or len(self.client.ids) < self.request.ranks:
            return False
        return not self.request.is_local or all(is_alive(world.pid) for world in self.worlds)

    def launch_log(self) -> str:
        """What mpiexec (or the batch job) and engines that never registered have written."""
        engines = self._cluster.engine_set if self._cluster is not None else None
        path = getattr(engines, "output_file", "") if engines is not None else ""
        with contextlib.suppress(OSError), open(path, errors="replace") as file:
            return file.read()
        return getattr(engines, "_output", None) or ""

    def rank_log(self, rank: int) -> str:
        """What `rank` has printed."""
        with contextlib.suppress(OSError), open(ranks.log_path(self.directory, rank), errors="replace") as file:
            return file.read()
        return ""

    def death(self, wait_s: float = 2.0) -> tuple[int, str] | None:
        """The rank that died first and how, where that can be known.

        The others are ended by this, as MPI would a little later: its launcher tells how each ended when all have.
        """
        first = self._watch.first() if self._watch is not None else None
        if first is None:
            return None
        self._kill_processes()
        launcher_pid = self._cluster.engine_set.pid
        deadline = time.monotonic() + wait_s
        while self._is_launcher_alive() and time.monotonic() < deadline:
            if launcher.is_forker(self._mpiexec):
                # It waits for whoever holds its ranks' output, then sleeps some seconds before it reports; each signal
                # wakes it from one of them.
                signal_all([pid for pid in self._engine_processes() if pid != launcher_pid], signal.SIGKILL)
                signal_all([launcher_pid], signal.SIGTERM)
            time.sleep(_POLL_S)
        return first, read_death(self.launch_log(), first)

    def _kill_processes(self) -> None:
        """Kill the ranks of this host; their nannies get a moment, to tell the controller that they are gone."""
        signal_all([world.pid for world in self.worlds], signal.SIGKILL)
        self._await_silence(3.0)

    def _engine_processes(self) -> list[int]:
        return marked_processes(f"{self._mark}/engines")

    # Ending

    def kill_ranks(self) -> None:
        """End all ranks now; the controller and the client stay."""
        if self._cluster is None:
            return
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self.request.is_local:
            self._kill_processes()
            end_processes(f"{self._mark}/engines", term_s=0.0)
            sweep_mpich_files(of_session=self._shared_files)
        for name in list(self._cluster.engines):
            try:
                self._cluster.stop_engines_sync(name)
            except Exception:  # whatever its launcher finds wrong with being dead
                self._cluster.engines.pop(name, None)
        self._queue = None
        if not self.request.is_local:
            self._await_silence(10.0)
        self.views, self.worlds, self._shared_files = [], [], set()

    def _await_silence(self, limit_s: float) -> None:
        """Wait until the controller knows that all engines are gone."""
        deadline = time.monotonic() + limit_s
        while self.client is not None and self.client.ids and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def restart_ranks(self) -> None:
        """Start new ranks on the same controller; on failure the whole session is stopped."""
        try:
            self.kill_ranks()
            with contextlib.suppress(OSError):
                os.unlink(ranks.cancel_path(self.directory))
            self._start_engines()
            self._await_ranks()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything; harmless when there is nothing left to end."""
        # The client first: it would take its engines' end for a failure.  Then the ranks, whose nannies would
        # otherwise wait three seconds for a controller that is gone.
        client, self.client = self.client, None
        if client is not None:
            with contextlib.suppress(Exception):
                client.close(linger=0)
        with contextlib.suppress(Exception):
            self.kill_ranks()
        cluster, self._cluster = self._cluster, None
        end_processes(self._mark, term_s=0.0)
        if cluster is not None:
            with contextlib.suppress(Exception):
                cluster.stop_cluster_sync()
        if self._guard is not None:
            self._guard.release()
            self._guard = None
        shutil.rmtree(self.directory, ignore_errors=True)

    def processes(self) -> list[int]:
        """Ids of all processes of this session on this host, the guard's included."""
        guard = [self._guard.pid] if self._guard is not None else []
        return [*marked_processes(self._mark), *guard]
