"""Clusters that start, are replaced and end: nothing is left behind, and what cannot start says why in one error."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest
from waiting import no_process_left, wait_for

from coconet_lab.errors import ClusterError, RankError
from coconet_lab.run.cluster import Cluster


def test_a_stopped_cluster_leaves_no_process_and_no_file() -> None:
    cluster = Cluster(ranks=2, backend="cpu", deadline_s=60)
    assert cluster.call(os.getpid)  # used unstarted, it starts itself
    pids, session = cluster.processes(), cluster._session
    assert len(pids) >= 5
    cluster.stop()
    assert no_process_left(pids)
    assert session is not None
    assert not os.path.exists(session.directory)
    assert repr(cluster) == "Cluster(2 ranks, CPU: not started)"


def test_the_same_cell_again_replaces_its_cluster_and_an_exception_in_it_ends_it() -> None:
    first = Cluster(ranks=2, backend="cpu", deadline_s=60).start()
    old = first.processes()

    def cell() -> None:
        with Cluster(ranks=2, backend="cpu", deadline_s=60) as second:
            assert no_process_left(old)
            new.extend(second.processes())
            raise KeyError("in the cell")

    new: list[int] = []
    with pytest.raises(KeyError):
        cell()
    assert no_process_left(new)
    assert first.state == "not started"


def test_hydra_where_it_is_asked_for_tells_deaths_as_well() -> None:
    hydra = shutil.which("mpiexec", path=sysconfig.get_path("scripts")) or shutil.which("mpiexec")
    assert hydra

    def die() -> None:
        from mpi4py import MPI

        if MPI.COMM_WORLD.Get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        MPI.COMM_WORLD.Barrier()

    with Cluster(ranks=2, backend="cpu", options={"mpiexec": hydra}) as cluster:
        with pytest.raises(RankError, match=r"rank 1 of 2 was killed by signal 11 \(SIGSEGV\)"):
            cluster.call(die)
        assert len(cluster.call(os.getpid)) == 2
        pids = cluster.processes()
    assert no_process_left(pids)


PARENT = """
import os, signal, sys
from coconet_lab.run.cluster import Cluster
cluster = Cluster(ranks=2, backend="cpu", deadline_s=60).start()
print(cluster._session.directory, *cluster.processes(), flush=True)
{ending}
"""
ENDINGS = {
    "SIGKILL of the parent": "os.kill(os.getpid(), signal.SIGKILL)",
    "a normal exit": "",
    "an exception": "raise SystemError",
}


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_nothing_is_left_after(ending: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARENT.format(ending=ENDINGS[ending])], capture_output=True, text=True, timeout=90
    )
    directory, *pids = done.stdout.splitlines()[-1].split()
    assert no_process_left([int(pid) for pid in pids])
    assert wait_for(lambda: not os.path.exists(directory))


def fake_mpiexec(folder: Path, body: str) -> dict[str, str]:
    path = folder / "mpiexec"
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(body)}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"mpiexec": str(path)}


BROKEN = {
    "ends at once": ("import sys; sys.exit('no PMI for you')", "mpiexec ended while 0 of 2 ranks had started"),
    "hangs": ("import time; time.sleep(600)", "0 of 2 ranks appeared within 3 s"),
    "starts too many worlds": (
        "import subprocess, sys\n"
        "command = sys.argv[sys.argv.index('2') + 1:]\n"
        "command = command[next(i for i, word in enumerate(command) if 'python' in word):]\n"
        "for child in [subprocess.Popen(command) for _ in range(2)]: child.wait()\n",
        "the ranks see a world of 1, not of 2",
    ),
}


@pytest.mark.parametrize("fault", list(BROKEN))
def test_a_broken_mpiexec_is_one_error_that_names_it_and_the_library(fault: str, tmp_path: Path) -> None:
    body, words = BROKEN[fault]
    options = fake_mpiexec(tmp_path, body)
    options["start_s"] = "3" if fault == "hangs" else "60"
    with pytest.raises(ClusterError) as caught:
        Cluster(ranks=2, backend="cpu", options=options).start()
    text = str(caught.value)
    assert words in text
    assert options["mpiexec"] in text
    assert "MPICH" in text or "Open MPI" in text
    assert len(text.splitlines()) == 4
    left = subprocess.run(["pgrep", "-f", options["mpiexec"]], capture_output=True, text=True, timeout=10).stdout
    assert not left.strip()


def test_a_missing_mpiexec_is_one_error() -> None:
    with pytest.raises(ClusterError, match="'no_such_mpiexec' is not a program") as caught:
        Cluster(ranks=2, backend="cpu", options={"mpiexec": "no_such_mpiexec"}).start()
    assert len(str(caught.value).splitlines()) == 4


def test_a_shared_memory_folder_without_room_is_told_before_ranks_die_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coconet_lab.run.room._free_window_bytes", lambda: 1 << 20)
    with pytest.raises(ClusterError, match="MPI needs 3 MiB in /dev/shm, where 1 are free"):
        Cluster(ranks=2, backend="cpu").start()


def test_more_ranks_than_the_machine_has_memory_for_are_refused_before_anything_starts() -> None:
    with pytest.raises(ClusterError, match="cannot start 1000000 ranks"):
        Cluster(ranks=1_000_000, backend="cpu").start()
