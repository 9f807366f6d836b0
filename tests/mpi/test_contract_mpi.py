"""Sentences of the contract (design §5a) that take a cluster and that no other file holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CELL = """
import coconet_lab as cl
cluster = cl.Cluster(ranks=2, backend="cpu", deadline_s=60)
print(cluster.call(max, 1, 2))
print("its own", cluster.start() is cluster)
cell = "from mpi4py import MPI; print('rank', MPI.COMM_WORLD.Get_rank(), 'of', MPI.COMM_WORLD.Get_size())"
get_ipython().run_cell_magic("px", "", cell)
cluster.stop()
"""


def test_used_unstarted_a_cluster_starts_itself_says_its_backend_once_and_px_means_its_ranks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "-c", CELL]
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert said.returncode == 0, said.stderr
    assert "[2, 2]" in said.stdout
    assert "its own True" in said.stdout
    assert said.stdout.count("2 ranks, CPU") == 1
    assert "rank 0 of 2" in said.stdout
    assert "rank 1 of 2" in said.stdout
