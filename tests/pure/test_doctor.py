"""The doctor: every probe against machines that lack, or have broken, what it looks for."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from coconet_lab.cli.doctor import as_json, as_text
from coconet_lab.doctor import Answer, Host, abilities, examine
from coconet_lab.doctor.facts import PROBES, mpiexec_flags
from coconet_lab.doctor.host import run

INSTALLED = {
    "mpi4py": "4.1.2",
    "ipyparallel": "9.2.0",
    "numba": "0.68.1",
    "llvmlite": "0.50.0",
    "pygraphviz": "2.0.4",
    "jupyterlab": "4.6.6",
    "ipywidgets": "8.1.9",
    "anywidget": "0.11.0",
    "playwright": "1.65.2",
    "nvidia-cuda-nvrtc": "13.0.88",
    "cupy-cuda13x": "14.2.0",
    "nvidia-nccl-cu13": "2.32.3",
    "torch": "2.13.0",
}
SMI = "NVIDIA H200, 143771 MiB, 580.95\nNVIDIA H200, 143771 MiB, 580.95\n"
ANSWERS = {
    "mpiexec": Answer(0, "size=2 library=MPICH Version:\t5.0.2\n"),
    "coconet-dot": Answer(0, "", "dot - graphviz version 14.1.5 (pygraphviz 2.0.4)\n"),
    "dot": Answer(0, "", "dot - graphviz version 2.43.0 (0)\n"),
    "chromium": Answer(0, "Chromium 140.0\n"),
    "nvidia-smi": Answer(0, SMI),
    "python3": Answer(0, "devices=2\n"),
}


def machine(
    without: Sequence[str] = (), answers: dict[str, Answer] | None = None, shm_bytes: int | None = 2**31
) -> Host:
    """A machine with everything but `without` (programs and distributions), whose programs say `answers`."""
    said = {**ANSWERS, **(answers or {})}

    def answer(command: Sequence[str], timeout_s: float) -> Answer:
        assert timeout_s > 0
        if command[-1] == "--version" and command[0].endswith("mpiexec"):
            return said.get("mpiexec --version", Answer(0, "HYDRA build details\n"))
        return said[command[0].rpartition("/")[2]]

    return Host(
        python="python3",
        python_version="3.12.1",
        system="Debian GNU/Linux 12",
        cores=2,
        which=lambda name: f"/usr/bin/{name}" if name in said and name not in without else None,
        run=answer,
        version=lambda name: None if name in without else INSTALLED.get(name),
        read=lambda path: "MemTotal:       24643556 kB\n" if path == "/proc/meminfo" else None,
        free_bytes=lambda path: shm_bytes,
    )


def facts_of(host: Host) -> dict[str, object]:
    return {fact.name: fact for fact in examine(host)}


def works(host: Host) -> dict[str, bool]:
    return {ability.name: ability.works for ability in abilities(examine(host))}


def test_where_everything_is_there_everything_works_but_a_compiler_is_not_needed():
    host = machine()
    assert all(works(host).values())
    compiler = facts_of(host)["compiler"]
    assert not compiler.present
    assert "not needed" in compiler.text


def test_a_bare_laptop_runs_ranks_and_draws_and_says_what_it_cannot_do():
    bare = machine(without=["dot", "chromium", "nvidia-smi", "cupy-cuda13x", "nvidia-nccl-cu13", "torch"])
    yes = {name for name, works_here in works(bare).items() if works_here}
    assert {"run on MPI ranks", "draw graphs", "run CPU kernels", "compile CUDA kernels"} <= yes
    assert not {"run on a GPU", "run across GPUs", "run the browser tests", "compare with torch.distributed"} & yes
    assert "14.1.5" in facts_of(bare)["graphviz"].text


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(1, "", "hwloc: cannot read topology\n"), "ended with status 1: hwloc: cannot read topology"),
        (Answer(None, "", "no end after 40 s; it was ended"), "did not end in time: no end after 40 s"),
        (Answer(None, "", "PermissionError: [Errno 13]"), "did not end in time: PermissionError"),
        (Answer(0, ""), "ended with status 0: no output"),
        (Answer(0, "size=1 library=Open MPI v5\nsize=1 library=Open MPI v5\n"), "2 worlds of 1 rank"),
    ],
)
def test_a_broken_mpi_is_a_line_and_a_way_out_not_a_crash(answer, words):
    host = machine(answers={"mpiexec": answer})
    fact = facts_of(host)["mpi"]
    assert not fact.present
    assert words in fact.text
    assert "make clean setup" in fact.get
    assert not works(host)["run on MPI ranks"]
    assert works(host)["build, transform and prove programs"]


@pytest.mark.parametrize("missing", ["mpiexec", "mpi4py"])
def test_a_missing_half_of_mpi_is_named(missing):
    fact = facts_of(machine(without=[missing]))["mpi"]
    assert not fact.present
    assert missing in fact.text
    assert "make setup" in fact.get


def test_open_mpi_is_asked_to_start_as_root_and_to_oversubscribe_and_mpich_is_not():
    assert mpiexec_flags(machine(), "/usr/bin/mpiexec") == ()
    open_mpi = machine(answers={"mpiexec --version": Answer(0, "mpiexec (Open MPI) 4.1.4\n")})
    assert mpiexec_flags(open_mpi, "/usr/bin/mpiexec") == ("--allow-run-as-root", "--oversubscribe")


def test_of_an_mpi_librarys_long_version_only_its_name_and_number_are_shown():
    said = "size=2 library=Open MPI v4.1.6, package: Debian, Sep 30, 2023\0\n"
    fact = facts_of(machine(answers={"mpiexec": Answer(0, said)}))["mpi"]
    assert fact.present
    assert fact.text.startswith("Open MPI v4.1.6; mpi4py 4.1.2, /usr/bin/mpiexec started 2 ranks")
    assert fact.get == ""


def test_a_machines_own_dot_comes_before_the_one_in_the_wheel():
    assert "2.43.0 (0), /usr/bin/dot" in facts_of(machine())["graphviz"].text
    neither = facts_of(machine(without=["dot", "pygraphviz"]))["graphviz"]
    assert not neither.present
    broken = facts_of(machine(answers={"dot": Answer(127, "", "libgvc.so.6: cannot open")}))["graphviz"]
    assert not broken.present
    assert "libgvc.so.6" in broken.text


def test_one_gpu_runs_kernels_but_exchanges_nothing():
    one = machine(answers={"nvidia-smi": Answer(0, SMI.splitlines()[0])})
    assert works(one)["run on a GPU"]
    assert not works(one)["run across GPUs"]
    assert "2 x NVIDIA H200" in facts_of(machine())["gpus"].text


def test_a_driver_that_does_not_answer_and_a_cupy_that_does_not_work_are_lines():
    host = machine(answers={"nvidia-smi": Answer(9, "", "couldn't communicate with the NVIDIA driver\n")})
    assert "couldn't communicate" in facts_of(host)["gpus"].text
    host = machine(answers={"python3": Answer(1, "", "CUDARuntimeError: cudaErrorInsufficientDriver\n")})
    assert "cudaErrorInsufficientDriver" in facts_of(host)["cupy"].text
    assert not works(host)["run on a GPU"]


@pytest.mark.parametrize(("version", "has_windows"), [("2.32.3", True), ("2.28.9", True), ("2.27.7", False)])
def test_an_nccl_without_windows_is_told_apart_and_still_runs_across_gpus(version, has_windows):
    installed = {**INSTALLED, "nvidia-nccl-cu13": version}
    host = replace(machine(), version=installed.get)
    fact = facts_of(host)["nccl"]
    assert version in fact.text
    assert ("older than 2.28, so without windows" in fact.text) is not has_windows
    assert works(host)["run across GPUs"]


def test_a_containers_64_mib_of_shared_memory_is_pointed_out():
    small = machine(shm_bytes=2**26)
    assert not works(small)["share windows larger than 64 MiB"]
    assert "--shm-size" in facts_of(small)["shared_memory"].get
    assert not facts_of(machine(shm_bytes=None))["shared_memory"].present


def test_a_containers_memory_limit_counts():
    host = machine()
    limited = replace(host, read=lambda path: "2147483648\n" if "cgroup" in path else host.read(path))
    assert facts_of(limited)["memory"].text == "2.0 GiB, limited by the container"


def test_a_probe_that_raises_becomes_a_line():
    def fail(name: str) -> str | None:
        raise PermissionError(f"may not look for {name}")

    facts = examine(replace(machine(), which=fail))
    assert len(facts) == len(PROBES)
    assert "could not be examined: PermissionError" in {fact.name: fact for fact in facts}["mpi"].text


def test_an_old_python_is_found_out():
    assert not facts_of(replace(machine(), python_version="3.9.2"))["python"].present


def test_json_and_text_hold_every_fact_and_every_ability():
    facts = examine(machine(without=["chromium"]))
    verdicts = abilities(facts)
    report = json.loads(as_json(facts, verdicts))
    assert report["format"] == 1
    assert [fact["name"] for fact in report["facts"]] == list(PROBES)
    assert {"name", "works", "why", "get"} == set(report["abilities"][0])
    text = as_text(facts, verdicts)
    assert all(verdict.name in text for verdict in verdicts)
    assert "apt-get install chromium" in text
    assert max(map(len, text.splitlines())) <= 120


def test_a_command_that_hangs_is_ended_at_its_deadline_with_what_it_started():
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    begun = time.monotonic()
    answer = run([sys.executable, "-c", program], 0.5)
    assert answer.code is None
    assert "no end after 0.5 s" in answer.stderr
    assert time.monotonic() - begun < 10


def test_a_command_that_is_not_there_or_fails_says_so():
    assert "FileNotFoundError" in run(["no-such-program"], 1.0).last_line
    answer = run([sys.executable, "-c", "import sys; sys.exit('no')"], 20.0)
    assert (answer.code, answer.last_line) == (1, "no")


@pytest.mark.parametrize("name", list(PROBES))
def test_every_probe_has_a_fact_of_its_own_name_on_a_bare_machine(name):
    nothing = Host("python3", "3.11.2", "Linux", 1, lambda _: None, lambda *_: Answer(None), *[lambda _: None] * 3)
    fact = PROBES[name](nothing)
    assert fact.name == name
    assert fact.text
