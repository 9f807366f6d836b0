"""Exported folders run with plain mpiexec: equal to the oracle, measured, and with the kernels that lie there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import coconet_lab as cl
from coconet_lab.run.launcher import mpi_arguments


def mpiexec() -> str:
    found = shutil.which("mpiexec", path=sysconfig.get_path("scripts")) or shutil.which("mpiexec")
    assert found
    return found


def launch(main: Path, ranks: int, *options: str) -> subprocess.CompletedProcess[str]:
    """``mpiexec -n RANKS python main.py``, started from another folder, with no word of Jupyter or of a session."""
    command = [mpiexec(), *mpi_arguments(mpiexec()), "-n", str(ranks), sys.executable, str(main), *options]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("JPY_", "COCONET_LAB_"))}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd="/", env=clean)


@pytest.mark.parametrize(
    ("workload", "schedule"),
    [
        (cl.workloads.self_attention(batch=4, sequence=3, hidden=20, ranks=2), "ol(MM,fuse(RS-C-AG))"),
        (cl.workloads.lamb(elements=1003, ranks=2, dtype="fp16"), "fuse(RS-Opt-AG)"),
        (cl.workloads.pipeline(batch=4, sequence=3, hidden=20, ranks=4, groups=2), "ol(RS,fuse(C-P2P),AG)"),
    ],
    ids=["self_attention", "lamb", "pipeline"],
)
def test_an_exported_schedule_runs_equals_the_oracle_and_is_measured(workload, schedule, tmp_path) -> None:
    chosen = workload.schedules[schedule]
    done = launch(chosen.export(tmp_path), chosen.program.ranks, "--benchmark", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    equal, timing = done.stdout.splitlines()
    assert equal == f"equal to the oracle on {chosen.program.ranks} ranks"
    assert re.fullmatch(r"\S+ (µs|ms|s) \(p10 .*, p90 .*, 3 repeats\)", timing)


def test_the_kernels_that_run_are_the_files_and_a_wrong_one_is_found(tmp_path) -> None:
    workload = cl.workloads.self_attention(batch=4, sequence=3, hidden=20, ranks=2, dtype="fp32")
    main = workload.schedules["fuse(RS-C-AG)"].export(tmp_path)
    (kernel,) = (tmp_path / "kernels").glob("*.py")
    text = kernel.read_text(encoding="utf-8")
    changed = re.sub(r"= r(\d+) \+ r(\d+)(  # 'add_1')", r"= r\1 - r\2\3", text)
    assert changed != text
    kernel.write_text(changed, encoding="utf-8")
    done = launch(main, 2)
    assert done.returncode != 0
    assert re.search(r"'out' differs on rank 0 at \[\d+, \d+, \d+\]: ", done.stdout)


def test_another_number_of_ranks_is_told_in_one_line(tmp_path) -> None:
    main = cl.workloads.sgd(elements=64, ranks=3).schedules["AR-Opt"].export(tmp_path)
    done = launch(main, 2)
    assert done.returncode != 0
    assert "for 3 ranks, not 2: mpiexec -n 3 python main.py" in done.stderr
    assert "Traceback" not in done.stderr
