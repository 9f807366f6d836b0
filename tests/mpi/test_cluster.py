"""Every way a call on the ranks can end, and that the cluster is usable after each."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from waiting import wait_for

from coconet_lab.errors import ClusterError, RankError
from coconet_lab.run import ranks
from coconet_lab.run.calls import Interrupted
from coconet_lab.run.cluster import Cluster
from coconet_lab.run.guard import is_alive


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(ranks=3, backend="cpu", deadline_s=60) as started:
        yield started


def is_usable(cluster: Cluster) -> bool:
    """Whether every rank answers and all of them meet in a collective."""

    def total() -> int:
        from mpi4py import MPI

        return MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.Get_rank())

    return cluster.call(total) == [3, 3, 3]


# Results


def test_results_come_in_rank_order_with_one_argument_of_their_own(cluster: Cluster) -> None:
    def place(common: int, own: str) -> tuple[int, int, str]:
        from mpi4py import MPI

        return MPI.COMM_WORLD.Get_rank(), common, own

    assert cluster.call(place, 7, per_rank=["a", "b", "c"]) == [(0, 7, "a"), (1, 7, "b"), (2, 7, "c")]


def test_arrays_travel_both_ways_whole_and_writable(cluster: Cluster) -> None:
    def change(array: np.ndarray) -> np.ndarray:
        array += 1
        return array

    sent = np.arange(300_000, dtype=np.float32)
    for received in cluster.call(change, sent):
        received += 1
        np.testing.assert_array_equal(received, sent + 2)


def test_many_arrays_in_one_result_arrive(cluster: Cluster) -> None:
    results = cluster.call(lambda: [np.full(100, number) for number in range(100)])
    assert [array[0] for array in results[2]] == list(range(100))


def test_what_a_rank_prints_is_in_its_log(cluster: Cluster) -> None:
    cluster.call(lambda own: print("printed on", own), per_rank=[0, 1, 2])
    assert "printed on 1" in cluster.log(1)
    assert "printed on 1" not in cluster.log(0)


def test_the_client_is_ipyparallels_own_and_reaches_the_same_ranks(cluster: Cluster) -> None:
    assert sorted(cluster.client[:].apply_sync(os.getpid)) == sorted(cluster.call(os.getpid))


def test_engines_share_the_cores(cluster: Cluster) -> None:
    threads = max(1, len(os.sched_getaffinity(0)) // 3)
    assert cluster.call(os.getenv, "NUMBA_NUM_THREADS") == [str(threads)] * 3


def test_engines_listen_on_the_loopback_interface_alone(cluster: Cluster) -> None:
    def listening(path: str) -> list[str]:
        sockets = set()
        for fd in os.listdir("/proc/self/fd"):
            try:
                sockets.add(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                continue
        with open(path) as file:
            rows = [line.split() for line in file.readlines()[1:]]
        return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]

    addresses = {address.split(":")[0] for rank in cluster.call(listening, "/proc/net/tcp") for address in rank}
    assert addresses == {"0100007F"}  # 127.0.0.1: each engine's own channel to its nanny


def test_a_cluster_says_its_state_ranks_and_backend(cluster: Cluster) -> None:
    assert repr(cluster) == "Cluster(3 ranks, CPU: running)"
    assert "running" in cluster._repr_html_()


def test_a_function_that_cannot_travel_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="cannot send"):
        cluster.call(print, threading.Lock())
    assert is_usable(cluster)


def test_per_rank_arguments_of_a_wrong_number_are_refused(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="per_rank has 2 items for 3 ranks"):
        cluster.call(print, per_rank=[1, 2])


# What goes wrong on a rank


def test_an_exception_on_one_rank_while_others_wait_in_a_barrier_is_told_and_hangs_nobody(cluster: Cluster) -> None:
    def fail() -> None:
        from mpi4py import MPI

        from coconet_lab.run.ranks import report

        report(op="total_rs", step=4)
        if MPI.COMM_WORLD.Get_rank() == 1:
            raise ValueError("a bad value")
        MPI.COMM_WORLD.Barrier()

    cluster.call(os.getpid)
    before = cluster.generation
    with pytest.raises(RankError, match="rank 1 of 3 raised ValueError: a bad value, in 'total_rs', step 4") as caught:
        cluster.call(fail, what="the test")
    assert list(caught.value.tracebacks) == [1]
    assert 'raise ValueError("a bad value")' in caught.value.tracebacks[1]
    assert "Traceback" not in str(caught.value)
    assert "a bad value" in cluster.log(1)
    assert is_usable(cluster)
    assert cluster.generation == before + 1


def test_an_exception_on_all_ranks_keeps_them(cluster: Cluster) -> None:
    pids = cluster.call(os.getpid)
    with pytest.raises(RankError, match=r"rank 0 of 3 raised ZeroDivisionError.*ranks 1-2 raised too"):
        cluster.call(lambda: 1 // 0)
    assert cluster.call(os.getpid) == pids


def test_a_result_that_cannot_travel_is_an_error_of_its_rank(cluster: Cluster) -> None:
    with pytest.raises(RankError, match="rank 0 of 3 raised"):
        cluster.call(threading.Lock)
    assert is_usable(cluster)


def test_an_exit_on_a_rank_is_an_error_like_any_other(cluster: Cluster) -> None:
    with pytest.raises(RankError, match="raised SystemExit: 3"):
        cluster.call(sys.exit, 3)
    assert is_usable(cluster)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_rank_is_named_with_its_signal(cluster: Cluster, number: signal.Signals) -> None:
    def die(number: int) -> None:
        from mpi4py import MPI

        from coconet_lab.run.ranks import report

        report(op="layer", step=2)
        if MPI.COMM_WORLD.Get_rank() == 2:
            os.kill(os.getpid(), number)
        MPI.COMM_WORLD.Barrier()

    kept = np.arange(3)
    started = time.monotonic()
    with pytest.raises(RankError, match=rf"rank 2 of 3 was killed by signal {int(number)} .*'layer', step 2"):
        cluster.call(die, int(number))
    assert time.monotonic() - started < 10
    assert kept.tolist() == [0, 1, 2]
    assert is_usable(cluster)


def test_ranks_killed_between_calls_are_replaced_at_the_next(cluster: Cluster, capsys: pytest.CaptureFixture) -> None:
    pids = cluster.call(os.getpid)
    os.kill(pids[0], signal.SIGKILL)
    assert wait_for(lambda: not is_alive(pids[0]))
    assert is_usable(cluster)
    assert "rank 0 was killed by signal 9 (SIGKILL) since the last call" in capsys.readouterr().out


def test_stuck_ranks_hit_the_deadline_and_are_named_with_where_they_are(cluster: Cluster) -> None:
    def stick() -> None:
        from mpi4py import MPI

        from coconet_lab.run.ranks import report

        rank = MPI.COMM_WORLD.Get_rank()
        report(op="total_rs" if rank else "w1", step=rank)
        if rank != 1:
            MPI.COMM_WORLD.Barrier()

    with pytest.raises(RankError) as caught:
        cluster.call(stick, deadline_s=0.5, what="'execute'")
    text = str(caught.value)
    assert "ranks 0, 2 of 3 did not return from 'execute' in 0.5 s" in text
    assert "rank 1 returned, rank 0 in 'w1', step 0, rank 2 in 'total_rs', step 2" in text
    assert is_usable(cluster)


# Interrupts


def interrupt_when(*conditions: Callable[[], bool]) -> threading.Thread:
    """A thread that sends this process's main thread one SIGINT as each of `conditions` holds, in turn."""

    def run() -> None:
        for condition in conditions:
            if wait_for(condition):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def is_cancelled(cluster: Cluster) -> Callable[[], bool]:
    """Whether the first interrupt of the next call has been taken: its number stands in the cancel file."""
    session = cluster._session
    assert session is not None
    path, number = Path(ranks.cancel_path(session.directory)), cluster._calls + 1
    return lambda: path.exists() and int.from_bytes(path.read_bytes(), "little") == number


def all_report(cluster: Cluster, name: str) -> Callable[[], bool]:
    session = cluster._session
    assert session is not None
    number = cluster._calls + 1
    return lambda: all(ranks.read_report(session.directory, rank, number).op == name for rank in range(cluster.ranks))


def test_an_interrupt_ends_a_willing_call_and_keeps_what_it_had(cluster: Cluster) -> None:
    def work() -> str:
        from coconet_lab.run.ranks import cancelled, report

        report(op="working")
        while not cancelled():
            pass
        return "finished part"

    pids = cluster.call(os.getpid)
    thread = interrupt_when(all_report(cluster, "working"))
    with pytest.raises(Interrupted) as caught:
        cluster.call(work)
    thread.join()
    assert caught.value.results == ["finished part"] * 3
    assert caught.value._render_traceback_() == ["Interrupted: 'work' ended on all ranks"]
    assert cluster.call(os.getpid) == pids


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_restarts_ranks_that_do_not_stop(cluster: Cluster, times: int) -> None:
    def ignore() -> None:
        from coconet_lab.run.ranks import report

        report(op="deaf")
        while True:
            pass

    cluster.call(os.getpid)
    thread = interrupt_when(*[all_report(cluster, "deaf"), is_cancelled(cluster)][:times])
    started = time.monotonic()
    with pytest.raises(Interrupted) as caught:
        cluster.call(ignore)
    waited = time.monotonic() - started
    thread.join()
    assert caught.value.results is None
    assert waited < 2.0 if times == 2 else waited < 8.0
    assert is_usable(cluster)


def test_a_cluster_can_be_attached_to_and_is_left_running(cluster: Cluster, tmp_path: Path) -> None:
    pids = cluster.call(os.getpid)
    borrowed = Cluster.attach(cluster.client)
    assert borrowed.call(os.getpid) == pids
    borrowed.stop()
    # By the folder of a profile too, in which a controller without an id of its own has left its file.
    (found,) = Path(cluster._session.directory, "security").glob("ipcontroller-*-client.json")
    (tmp_path / "security").mkdir()
    shutil.copy(found, tmp_path / "security" / "ipcontroller-client.json")
    borrowed = Cluster.attach(str(tmp_path))
    assert borrowed.call(os.getpid) == pids
    borrowed.stop()
    with pytest.raises(ClusterError, match="were let go"):
        borrowed.call(os.getpid)
    assert all(is_alive(pid) for pid in pids)
    cluster.restart()  # its ranks had opened the borrower's channel
    assert is_usable(cluster)


def test_reports_are_those_of_the_call_under_way_and_never_of_the_last_one(cluster: Cluster) -> None:
    cluster.call(ranks.report, "total", 1, 1, 10)
    assert cluster.reports() == []
    cluster.cancel()  # nothing is under way: the next call is not touched
    assert not any(cluster.call(ranks.cancelled))
