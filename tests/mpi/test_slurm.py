"""A Slurm job from queue to ranks, with a Slurm of three small scripts."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
from pathlib import Path

import pytest
from waiting import no_process_left, wait_for

from coconet_lab.errors import ClusterError
from coconet_lab.run.cluster import Cluster

# The job starts at the second look of squeue: no clock decides what the test sees.
SBATCH = """
import json, os, shutil, sys
shutil.copy(sys.argv[1], FOLDER + "/job.sh")
json.dump(dict(os.environ), open(FOLDER + "/job.env", "w"))
print("Submitted batch job 4711")
"""
SQUEUE = """
import json, os, subprocess
looks = len(os.listdir(FOLDER + "/looks"))
open(f"{FOLDER}/looks/{looks}", "w").close()
if os.path.exists(FOLDER + "/gone"):
    pass
elif looks < 1 or os.path.exists(FOLDER + "/full"):
    print("PENDING|Resources")
else:
    if not os.path.exists(FOLDER + "/pid"):
        log = open(FOLDER + "/job.log", "w")
        own = json.load(open(FOLDER + "/job.env"))
        job = subprocess.Popen(["sh", FOLDER + "/job.sh"], stdout=log, stderr=log, env=own, start_new_session=True)
        open(FOLDER + "/pid", "w").write(str(job.pid))
    print("RUNNING|None")
"""
SCANCEL = """
import os, signal, sys
open(FOLDER + "/cancelled", "w").write(sys.argv[-1])
if os.path.exists(FOLDER + "/pid"):
    try: os.killpg(int(open(FOLDER + "/pid").read()), signal.SIGKILL)
    except OSError: pass
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH with sbatch, squeue and scancel."""
    (tmp_path / "looks").mkdir()
    for name, text in {"sbatch": SBATCH, "squeue": SQUEUE, "scancel": SCANCEL}.items():
        program = tmp_path / name
        program.write_text(f"#!{sys.executable}\nFOLDER = {str(tmp_path)!r}{text}")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def cluster_of(slurm: Path, **more: object) -> Cluster:
    options = {"partition": "short", "directory": str(slurm / "shared"), **more}
    return Cluster(ranks=2, backend="cpu", profile="slurm", nodes=1, options=options, deadline_s=60)


def test_a_job_waits_runs_computes_and_is_cancelled_at_the_end(slurm: Path, capsys: pytest.CaptureFixture) -> None:
    def place() -> tuple[int, int]:
        from mpi4py import MPI

        return MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()

    with cluster_of(slurm, time="00:10:00") as cluster:
        assert cluster.call(place) == [(0, 2), (1, 2)]
        pids = cluster.call(os.getpid)
    said = capsys.readouterr().out
    assert said.index("Slurm job 4711: pending (Resources)") < said.index("Slurm job 4711: running")
    script = (slurm / "job.sh").read_text()
    assert "#SBATCH --ntasks=2\n#SBATCH --nodes=1\n#SBATCH --partition=short\n#SBATCH --time=00:10:00\n" in script
    assert "--account" not in script
    assert (slurm / "cancelled").read_text() == "4711"
    assert no_process_left(pids)
    assert list((slurm / "shared").iterdir()) == []


def test_an_interrupt_while_the_job_waits_cancels_it(slurm: Path) -> None:
    (slurm / "full").touch()

    def interrupt() -> None:
        wait_for(lambda: list((slurm / "looks").iterdir()))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        cluster_of(slurm).start()
    thread.join()
    assert (slurm / "cancelled").read_text() == "4711"
    assert not (slurm / "pid").exists()


def test_another_thread_sees_the_queue_and_can_end_the_wait(slurm: Path) -> None:
    (slurm / "full").touch()
    cluster = cluster_of(slurm)
    ended: list[str] = []

    def start() -> None:
        try:
            cluster.start()
        except KeyboardInterrupt as interrupt:
            ended.append(str(interrupt))

    thread = threading.Thread(target=start)
    thread.start()
    wait_for(lambda: cluster.queue)
    assert cluster.queue.startswith("job pending (Resources), ")
    assert cluster.queue.endswith(" s")
    cluster.cancel()
    thread.join(60)
    assert ended == ["Interrupted: the start of 2 ranks was stopped"]
    assert (cluster.queue, cluster.state) == ("", "not started")
    assert (slurm / "cancelled").read_text() == "4711"
    (slurm / "full").unlink()
    with cluster:  # a cancel that came once ends nothing later
        assert cluster.queue == ""
        assert cluster.state == "running"


def test_a_job_that_leaves_the_queue_unrun_is_one_error(slurm: Path) -> None:
    (slurm / "gone").touch()
    with pytest.raises(ClusterError, match="Slurm job 4711 left the queue as GONE before its ranks started"):
        cluster_of(slurm).start()


def test_an_option_that_the_batch_text_has_no_place_for_is_refused(slurm: Path) -> None:
    with pytest.raises(ClusterError, match="no place for option 'colour'"):
        cluster_of(slurm, colour="red").start()
    assert not (slurm / "job.sh").exists()


def test_a_machine_without_slurm_is_one_error(slurm: Path) -> None:
    (slurm / "sbatch").unlink()
    with pytest.raises(ClusterError, match="sbatch") as caught:
        cluster_of(slurm).start()
    assert len(str(caught.value).splitlines()) == 4
