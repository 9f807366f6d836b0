"""The cluster as a notebook sees it: so many ranks, started when needed, replaced when the cell runs again."""

from __future__ import annotations

import html
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from coconet_lab.arguments import refusal, shown, whole
from coconet_lab.errors import ClusterError
from coconet_lab.run import devices
from coconet_lab.run.attached import AttachedSession
from coconet_lab.run.calls import Interrupted, Order, RunningCall
from coconet_lab.run.host_world import host_count
from coconet_lab.run.launcher import Request
from coconet_lab.run.programs import RunsPrograms
from coconet_lab.run.progress import Progress
from coconet_lab.run.ranks import Report, read_report, write_cancel
from coconet_lab.run.room import check_arguments, check_deadline, check_room
from coconet_lab.run.session import Session

_START_S = 60.0

# Clusters of this process that have ranks.  One for the process by nature: it is how running a cell again finds the
# cluster that the cell had started before.
_started: weakref.WeakSet[Cluster] = weakref.WeakSet()


class Cluster(RunsPrograms):
    """MPI ranks that run programs for this notebook.

    Used unstarted it starts itself; a cluster of the same configuration that this process had started before is
    replaced.  Nothing is left behind, however the notebook ends.

    Parameters
    ----------
    ranks : int, optional
        Number of ranks; by default as many as there are GPUs, or cores, but at most 4.
    backend : {"auto", "cpu", "cuda"}
        ``"auto"`` takes a GPU a rank where there are enough, else the CPU, and says which.
    profile : str, optional
        A folder with an ``ipcluster_config.py`` or its name in ``cluster/`` (``"slurm"``, ``"hosts"``).
    nodes : int, optional
        Hosts to spread the ranks over.
    options : mapping, optional
        For the profile's batch text (``{"partition": "gpu"}``); ``mpiexec`` names another mpiexec, ``directory`` a
        folder that all hosts share, ``start_s`` the seconds that the start may take (at least 60 by default).
    deadline_s : float
        Seconds that each call may take.

    Raises
    ------
    ClusterError
        If the arguments make no cluster, or it cannot start.
    ToolError
        If ``backend="cuda"`` and there are fewer GPUs than ranks.

    Examples
    --------
    >>> Cluster(ranks=4, backend="cpu")
    Cluster(4 ranks, CPU: not started)
    """

    backend: devices.Backend

    def __init__(
        self,
        ranks: int | None = None,
        backend: str = "auto",
        profile: str | None = None,
        nodes: int | None = None,
        options: Mapping[str, object] | None = None,
        deadline_s: float = 120.0,
    ) -> None:
        check_arguments(ranks, backend, nodes, deadline_s, profile, options)
        ranks = None if ranks is None else int(ranks)
        profile = None if profile is None else os.fspath(profile)
        if profile is None:
            found = devices.gpu_count() if backend != "cpu" else 0
            self.backend = devices.choose(
                ranks, backend, gpus=found, cores=devices.core_count(), cupy=devices.has_cupy()
            )
        else:  # this host's devices say nothing about the others'
            self.backend = devices.Backend("cuda" if backend == "cuda" else "cpu", ranks or 4)
        chosen = tuple(sorted((name, str(value)) for name, value in (options or {}).items()))
        self.deadline_s = deadline_s
        start_s = float(dict(chosen).get("start_s", max(deadline_s, _START_S)))
        self._request = Request(self.backend.ranks, self.backend.name, profile, nodes, chosen, start_s)
        self._session: Session | AttachedSession | None = None
        self._starting: Session | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._calls = self._under_way = 0
        self._is_attached = False
        self._lock = threading.RLock()
        self._owner = os.getpid()

    @classmethod
    def attach(cls, profile_or_client: Any, *, backend: str = "cpu", deadline_s: float = 120.0) -> Cluster:
        """A cluster over engines that somebody else has started; `stop` leaves them running.

        Parameters
        ----------
        profile_or_client : str or ipyparallel.Client
            A profile's name or folder, or a connected client.
        backend : {"cpu", "cuda"}
            What the ranks compute on.
        deadline_s : float
            Seconds that connecting, and each call, may take.
        """
        check_arguments(None, backend, None, deadline_s)
        is_name = isinstance(profile_or_client, str)
        if not (profile_or_client if is_name else hasattr(profile_or_client, "ids")):
            rule = "a cluster attaches to a profile's name or folder, or to a connected client"
            raise refusal("what to attach to", profile_or_client, rule, 'cl.Cluster.attach("default")', ClusterError)
        session = AttachedSession(profile_or_client, deadline_s)
        cluster = cls(len(session.worlds), "cpu", deadline_s=deadline_s)
        cluster.backend = devices.Backend(backend, len(session.worlds), "attached")
        cluster._session = session
        cluster._is_attached = True
        cluster._finalizer = weakref.finalize(cluster, _stop_session, session, os.getpid())
        return cluster

    # Life

    def start(self) -> Cluster:
        """Start the ranks, if they are not there, and say once what they run on."""
        with self._lock:
            if self._session is not None:
                return self
            if self._is_attached:
                raise ClusterError(
                    "the engines that this cluster was attached to are gone, or were let go",
                    rule="an attached cluster starts no ranks of its own",
                    where=repr(self),
                    hint="Cluster.attach(…) again, or Cluster(ranks=…)",
                )
            for other in list(_started):
                if other is not self and other._request == self._request:
                    other.stop()
            check_room(self._request)
            self._owner = os.getpid()
            session = self._starting = Session(self._request, _say)
            try:
                session.start()
            except KeyboardInterrupt:
                raise Interrupted(f"Interrupted: the start of {self.ranks} ranks was stopped", None) from None
            finally:
                self._starting = None
            self._session = session
            self._finalizer = weakref.finalize(self, _stop_session, session, os.getpid())
            _started.add(self)
            _activate(session.client)
            _say(str(self.backend))
            return self

    def stop(self) -> None:
        """End the ranks and everything that belongs to them; the next use starts new ones."""
        with self._lock:
            self._session = None
            _started.discard(self)
            if self._finalizer is not None:
                self._finalizer()
                self._finalizer = None

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _check_owner(self) -> None:
        """Refuse ranks that belong to the process this one was forked from: its sockets are no use here."""
        if self._session is not None and self._owner != os.getpid():
            raise ClusterError(
                f"this cluster's ranks belong to process {self._owner}; this is process {os.getpid()}, forked from it",
                rule="connections to ranks do not survive a fork; the ranks go on for the process that started them",
                where=f"Cluster({self.backend})",
                hint="use it in the process that started it",
            )

    def _ready_session(self) -> Session | AttachedSession:
        """The session with all its ranks alive: started, or started anew after its ranks had ended."""
        if self._session is None:
            self.start()
        session = self._session
        if session is None:
            raise ClusterError("the cluster did not start", where=repr(self), hint="cluster.start()")
        if not session.is_complete:
            death = session.death() if session.views else None
            if death is not None:
                _say(f"rank {death[0]} {death[1]} since the last call; starting new ranks")
            try:
                session.restart_ranks()
            except BaseException:
                self.stop()
                raise
        return session

    # Use

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        deadline_s: float | None = None,
        what: str = "",
        progress: bool | None = None,
        per_rank: Sequence[Any] | None = None,
    ) -> list[Any]:
        """Run ``function(*args)`` on every rank at once; results in rank order.

        Parameters
        ----------
        function : callable
            Sent pickled by value if it is the notebook's own; every rank runs it.
        *args
            The same for all ranks; large arrays travel without being copied into the pickle.
        deadline_s : float, optional
            Seconds until ranks that did not return count as stuck; the cluster's `deadline_s` by default.
        what : str, optional
            The call in the user's words; the function's name by default.
        progress : bool, optional
            True: show progress from the start; False: never; None: once ranks report a total and it lasts.
        per_rank : sequence, optional
            One more last argument for each rank.

        Raises
        ------
        RankError
            If a rank raised, died, or did not return before the deadline; the next call finds new ranks where the
            old ones cannot be trusted.
        Interrupted
            A KeyboardInterrupt whose `results` are what the ranks returned after they were asked to stop.
        """
        self._check_owner()
        with self._lock:
            if not callable(function):
                raise refusal("what to call", function, "it is a function", "cluster.call(function)", ClusterError)
            if per_rank is not None and (not isinstance(per_rank, Sequence) or len(per_rank) != self.ranks):
                many = f"{len(per_rank)} items" if isinstance(per_rank, Sequence) else shown(per_rank)
                raise ClusterError(
                    f"per_rank has {many} for {self.ranks} ranks",
                    rule="one item for each rank, in rank order",
                    where=repr(self),
                    hint=f"per_rank=[… for rank in range({self.ranks})]",
                )
            session = self._ready_session()
            self._calls += 1
            name = str(what) or f"'{getattr(function, '__name__', type(function).__name__)}'"
            limit = self.deadline_s if deadline_s is None else deadline_s
            check_deadline(limit, repr(self))
            running = RunningCall(session, Order(self._calls, name, limit), Progress(name.strip("'"), progress))
            self._under_way = self._calls
            try:
                return running.run(function, args, per_rank)
            finally:
                self._under_way = 0

    def cancel(self) -> None:
        """End what is under way, from another thread: of a call what the ranks have finished is kept; or the start."""
        session, number = self._session, self._under_way
        if session is not None and number:
            write_cancel(session.directory, number)
        elif isinstance(starting := self._starting or session, Session):
            starting.stop_starting()

    @property
    def queue(self) -> str:
        """What Slurm says of the job while the ranks wait for it: ``job pending (Resources), 2 min``; else empty."""
        starting = self._starting or self._session
        return starting.queue if isinstance(starting, Session) else ""

    def reports(self) -> list[Report]:
        """What every rank last said of the call under way, in rank order; empty where there is none."""
        session, number = self._session, self._under_way
        if session is None or not number:
            return []
        return [read_report(session.directory, rank, number) for rank in range(self.ranks)]

    def restart(self) -> Cluster:
        """New ranks in place of those there are, with nothing of theirs left."""
        self._check_owner()
        with self._lock:
            if self._session is None:
                return self.start()
            try:
                self._session.restart_ranks()
            except BaseException:
                self.stop()
                raise
            return self

    def log(self, rank: int) -> str:
        """What `rank` has printed, and its tracebacks, since the cluster was started."""
        if self._session is None:
            raise ClusterError(
                f"no log of rank {rank}: the cluster is not running",
                rule="logs live as long as the cluster",
                where=repr(self),
                hint="cluster.start()",
            )
        if whole(rank, "a rank", hint="log(0)", error=ClusterError, where=repr(self)) >= self.ranks:
            raise refusal("a rank", rank, f"the ranks are 0 to {self.ranks - 1}", "log(0)", ClusterError, repr(self))
        return self._session.rank_log(rank)

    @property
    def client(self) -> Any:
        """The ipyparallel client: ``%%px`` cells and views work on the same ranks."""
        self._check_owner()
        with self._lock:
            return self._ready_session().client

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.backend.ranks

    @property
    def hosts(self) -> int:
        """Hosts that the ranks are on; a cluster on other hosts is started to know."""
        if self._request.is_local and not self._is_attached:
            return 1
        return host_count([world.host for world in self._ready_session().worlds])

    @property
    def generation(self) -> int:
        """Counts starts of the ranks: what lived on them is gone when it has changed; 0 while there are none."""
        return self._session.generation if self._session is not None else 0

    @property
    def state(self) -> str:
        """``"not started"``, ``"running"``, or ``"ranks ended"`` (the next call starts new ones)."""
        if self._session is None:
            return "not started"
        return "running" if self._session.is_complete else "ranks ended"

    def processes(self) -> list[int]:
        """Ids of all processes on this host that belong to the cluster."""
        return self._session.processes() if isinstance(self._session, Session) else []

    def __repr__(self) -> str:
        return f"Cluster({self.backend}: {self.state})"

    def _repr_html_(self) -> str:
        rows = {"state": self.state, "ranks": str(self.ranks), "backend": str(self.backend)}
        if self._session is not None and self._session.worlds:
            rows["hosts"] = ", ".join(sorted({world.host for world in self._session.worlds}))
            rows["MPI"] = self._session.worlds[0].library
        cells = "".join(
            f'<tr><th style="text-align:left">{name}</th><td style="text-align:left">{html.escape(text)}</td></tr>'
            for name, text in rows.items()
        )
        return f"<table><caption>Cluster</caption>{cells}</table>"


def _say(line: str) -> None:
    """One line for the user, in the cell that is running."""
    print(line, flush=True)


def _activate(client: Any) -> None:
    """Make ``%px`` and ``%%px`` of this notebook mean these ranks, and wait for them."""
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        view = client[:]
        view.block = True
        view.activate()


def _stop_session(session: Session | AttachedSession, owner: int) -> None:
    """Stop `session`, unless this is a fork of the process that started it."""
    if os.getpid() == owner:
        session.stop()
