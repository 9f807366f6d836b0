"""What a cluster decides and says before and beside its processes: backend, batch text, queue, deaths, progress."""

from __future__ import annotations

import io
import json
import linecache
import shutil
import socket
import traceback
from pathlib import Path

import pytest

from coconet_lab.errors import ClusterError, ToolError
from coconet_lab.run import cluster as cluster_module
from coconet_lab.run import launcher, progress, ranks
from coconet_lab.run.calls import name_places
from coconet_lab.run.cluster import Cluster
from coconet_lab.run.devices import choose
from coconet_lab.run.launcher import Request, batch_text, check_profile, profile_config, profile_folder
from coconet_lab.run.slurm import parse_state
from coconet_lab.run.sources import add_sources
from coconet_lab.run.watch import read_death


@pytest.mark.parametrize(
    ("asked", "machine", "text"),
    [
        ((4, "auto"), (0, 2, False), "4 ranks, CPU"),
        ((4, "auto"), (2, 16, True), "4 ranks, CPU (2 GPUs found, 4 needed: ranks=2)"),
        ((2, "auto"), (2, 16, True), "2 ranks, CUDA, 2 GPUs"),
        ((2, "auto"), (2, 16, False), "2 ranks, CPU (2 GPUs found, CuPy missing: pip install 'coconet-lab[gpu]')"),
        ((2, "cpu"), (2, 16, True), "2 ranks, CPU"),
        ((None, "auto"), (0, 16, False), "4 ranks, CPU"),
        ((None, "auto"), (0, 1, False), "1 rank, CPU"),
        ((None, "auto"), (1, 16, True), "1 rank, CUDA, 1 GPU"),
        ((None, "auto"), (8, 16, True), "4 ranks, CUDA, 4 GPUs"),
    ],
)
def test_the_backend_follows_the_machine_and_says_why(asked, machine, text):
    gpus, cores, cupy = machine
    assert str(choose(*asked, gpus=gpus, cores=cores, cupy=cupy)) == text


@pytest.mark.parametrize(
    ("gpus", "cupy", "words"), [(2, True, "2 GPUs found, 4 needed"), (4, False, "CuPy is not installed")]
)
def test_cuda_where_there_is_none_for_every_rank_is_refused(gpus, cupy, words):
    with pytest.raises(ToolError, match=words):
        choose(4, "cuda", gpus=gpus, cores=8, cupy=cupy)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ranks": 0}, "number of ranks is 0"),
        ({"ranks": 2.5}, "number of ranks is 2.5"),
        ({"ranks": True}, "number of ranks is True"),
        ({"backend": "tpu"}, "the backend is 'tpu'"),
        ({"nodes": 0}, "number of nodes is 0"),
        ({"deadline_s": 0}, "deadline_s is 0"),
        ({"deadline_s": float("nan")}, "deadline_s is nan"),
    ],
)
def test_arguments_that_make_no_cluster_are_refused(arguments, words):
    with pytest.raises(ClusterError, match=words):
        Cluster(**arguments)


def test_an_unstarted_cluster_shows_itself_escaped_and_starts_nothing():
    cluster = Cluster(ranks=2, backend="cpu")
    cluster.backend = cluster_module.devices.Backend("cpu", 2, "<script>")
    assert "<script>" not in cluster._repr_html_()
    assert "&lt;script&gt;" in cluster._repr_html_()
    assert cluster.state == "not started"
    assert cluster.generation == 0
    with pytest.raises(ClusterError, match="the cluster is not running"):
        cluster.log(0)


TEMPLATE = "#!/bin/sh\n#SBATCH --ntasks=@ranks@\n#SBATCH --nodes=@nodes@\n#SBATCH --time=@time@\n{program}\n"


def test_the_batch_text_takes_what_was_given_and_leaves_out_the_rest():
    text = batch_text(TEMPLATE, Request(16, profile="slurm", options=(("time", "1:00"),)))
    assert text == "#!/bin/sh\n#SBATCH --ntasks=16\n#SBATCH --time=1:00\n{program}\n"


@pytest.mark.parametrize(("ranks", "nodes", "expected"), [(16, 2, "per 8\n"), (5, 2, ""), (5, None, "")])
def test_as_many_ranks_go_to_each_node_where_they_divide(ranks, nodes, expected):
    assert batch_text("per @per_node@\n", Request(ranks, nodes=nodes)) == expected


def test_an_option_cannot_add_a_line_or_an_expression_to_the_batch_text():
    text = batch_text(TEMPLATE, Request(1, profile="slurm", options=(("time", "1\nrm -rf x"),)))
    assert "rm" not in text
    text = batch_text(TEMPLATE, Request(1, profile="slurm", options=(("time", "{n.__class__}"),)))
    assert "{{n.__class__}}" in text


def test_an_option_without_a_place_names_the_places():
    with pytest.raises(ClusterError, match="no place for option 'colour'") as caught:
        batch_text(TEMPLATE, Request(1, profile="slurm", options=(("colour", "red"),)))
    assert caught.value.hint.startswith("one of time")


def test_an_unknown_profile_names_those_there_are():
    with pytest.raises(ClusterError, match="no cluster profile 'nowhere'") as caught:
        profile_config(Request(2, profile="nowhere"))
    assert "slurm" in caught.value.hint


@pytest.mark.parametrize("name", ["slurm", "hosts"])
def test_the_profiles_in_the_repository_load(name):
    config = profile_config(Request(2, profile=name))
    assert config.Cluster.engine_launcher_class in ("slurm", "mpi")


def test_a_profile_without_its_host_file_says_which_and_how_to_make_it(tmp_path: Path):
    shutil.copy(profile_folder("hosts") / "ipcluster_config.py", tmp_path)
    request = Request(8, profile=str(tmp_path), nodes=2)
    with pytest.raises(ClusterError, match=f"names its hosts in '{tmp_path}/hostfile', which is not there") as caught:
        check_profile(profile_config(request), request)
    assert caught.value.hint.startswith(f"cp {tmp_path}/hostfile.example {tmp_path}/hostfile")
    (tmp_path / "hostfile").write_text("node01:4\nnode02:4\n")
    check_profile(profile_config(request), request)


def test_a_slurm_profile_where_there_is_no_slurm_does_not_ask_for_another_mpi(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    request = Request(16, profile="slurm", nodes=2)
    with pytest.raises(ClusterError, match="by sbatch, which is not on PATH") as caught:
        check_profile(profile_config(request), request)
    assert "Cluster(ranks=16)" in caught.value.hint
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    check_profile(profile_config(request), request)


def test_a_profile_may_be_a_folder_anywhere(tmp_path: Path):
    (tmp_path / "ipcluster_config.py").write_text("c.Cluster.controller_ip = '10.0.0.1'\n")
    assert profile_config(Request(2, profile=str(tmp_path))).Cluster.controller_ip == "10.0.0.1"


def test_the_mpiexec_beside_python_comes_before_the_one_on_path(tmp_path: Path, monkeypatch):
    for name in ("beside", "path"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mpiexec").touch(mode=0o755)
    monkeypatch.setattr(launcher.sysconfig, "get_path", lambda _: str(tmp_path / "beside"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert launcher.find_mpiexec(Request(2)) == str(tmp_path / "beside" / "mpiexec")
    (tmp_path / "beside" / "mpiexec").unlink()
    assert launcher.find_mpiexec(Request(2)) == str(tmp_path / "path" / "mpiexec")


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("PENDING|Priority", ("PENDING", "Priority")),
        ("RUNNING|None", ("RUNNING", "")),
        ("", ("GONE", "")),
        ("PENDING|(null)\n", ("PENDING", "")),
    ],
)
def test_a_queue_line_is_a_state_and_a_reason(line, state):
    assert parse_state(line) == state


@pytest.mark.parametrize(
    ("text", "rank", "how"),
    [
        ("[0]0:Return code = 0, signaled with Quit\n[0]1:Return code = 0, signaled with Killed", 1, "9 (SIGKILL)"),
        ("=   EXIT CODE: 9\nTERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)", 0, "11 (SIGSEGV)"),
        ("prterun noticed that process rank 1 exited on signal 6 (Aborted).", 1, "6 (SIGABRT)"),
        ("=   EXIT CODE: 3\n", 0, "ended with exit code 3"),
        ("[0]1:Return code = 7\n", 1, "ended with exit code 7"),
        ("nothing", 0, "died"),
    ],
)
def test_a_death_is_read_from_what_each_launcher_writes(text, rank, how):
    assert how in read_death(text, rank)


def test_ranks_at_one_place_are_named_together():
    assert name_places({0: "'a'", 1: "'a'", 2: "'b'", 4: "'b'"}) == "ranks 0-1 in 'a', ranks 2, 4 in 'b'"


def test_reports_survive_the_way_through_their_file(tmp_path: Path, monkeypatch):
    with open(ranks.status_path(str(tmp_path), 0), "wb") as file:
        monkeypatch.setattr(ranks, "_here", ranks._Channel(call=3, report=ranks.Report(3), write_fd=file.fileno()))
        ranks.report(op="größe" * 60, step=2)
        ranks.report(done=1, total=4)
        seen = ranks.read_report(str(tmp_path), 0, 3)
    assert (seen.step, seen.done, seen.total) == (2, 1, 4)
    assert seen.op.startswith("größe")
    assert ranks.read_report(str(tmp_path), 0, 4) == ranks.Report(4)  # an older call's report says nothing
    assert ranks.read_report(str(tmp_path), 1, 3) == ranks.Report(3)


def test_a_cancelled_call_stays_cancelled_and_the_next_is_not(tmp_path: Path, monkeypatch):
    ranks.write_cancel(str(tmp_path), 5)
    with open(ranks.cancel_path(str(tmp_path)), "rb") as file:
        monkeypatch.setattr(ranks, "_here", ranks._Channel(call=5, read_fd=file.fileno()))
        assert ranks.cancelled()
        monkeypatch.setattr(ranks, "_here", ranks._Channel(call=6, read_fd=file.fileno()))
        assert not ranks.cancelled()


@pytest.mark.parametrize(("is_cell", "seconds"), [(True, 0.1), (False, 0.5)])
def test_progress_without_a_front_end_is_a_line_a_second_in_a_notebook_and_every_five_in_a_log(
    is_cell, seconds, monkeypatch
):
    clock = iter([0.0, *(seconds * tick for tick in range(1, 31))])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(progress, "in_kernel", lambda: is_cell)
    for name in progress._WIDGET_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    stream, other = io.StringIO(), io.StringIO()
    monkeypatch.setattr(progress.sys, "stdout", stream if is_cell else other)
    monkeypatch.setattr(progress.sys, "stderr", other if is_cell else stream)
    shown = progress.Progress("run", True)
    for tick in range(30):
        shown.update([ranks.Report(1, "w1", 0, tick, 30), ranks.Report(1, "w1", 0, 29, 30)])
    shown.close()
    assert stream.getvalue().splitlines() == [
        "run: 0 of 30, in 'w1'",
        "run: 10 of 30, in 'w1'",
        "run: 20 of 30, in 'w1'",
    ]
    assert other.getvalue() == ""


@pytest.mark.parametrize("wanted", [False, None])
def test_no_progress_where_none_is_wanted_or_nothing_is_counted(wanted):
    stream = io.StringIO()
    shown = progress.Progress("run", wanted, stream)
    shown._started_s -= 10
    shown.update([ranks.Report(1, "w1")])
    assert stream.getvalue() == ""


def test_a_traceback_from_a_rank_gets_its_source_lines_back():
    source = "def outer():\n    def inner():\n        raise ValueError('x')\n    inner()\n"
    linecache.cache["<cell>"] = (len(source), None, source.splitlines(keepends=True), "<cell>")
    space: dict = {}
    exec(compile(source, "<cell>", "exec"), space)
    try:
        space["outer"]()
    except ValueError as error:
        text = "".join(traceback.format_exception(error)).replace('"<cell>"', '"<dynamic-code>"')
    text = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    restored = add_sources(text, space["outer"])
    assert "  File \"<cell>\", line 3, in inner\n    raise ValueError('x')" in restored
    assert add_sources("<dynamic-code>:3", space["outer"]) == "line 3 of 'inner': raise ValueError('x')"
    assert add_sources('  File "<dynamic-code>", line 3, in other', space["outer"]).endswith("in other")


def controller_file(port: int) -> str:
    """What a controller writes for its clients, of one that answers at `port` of this machine."""
    ports = dict.fromkeys(("registration", "control", "task", "mux", "iopub", "notification", "broadcast"), port)
    words = {
        "task_scheme": "leastload",
        "pack": "json",
        "unpack": "json",
        "key": "k",
        "signature_scheme": "hmac-sha256",
    }
    return json.dumps({"interface": "tcp://127.0.0.1", "location": "", "ssh": ""} | ports | words)


@pytest.mark.parametrize(
    ("name", "found", "hint"),
    [
        ("absent", "there is no such profile", "ipcluster start --profile=absent"),
        ("idle", "no controller of it is running", "ipcluster start --profile=idle"),
        ("named", "its controllers have ids: 1-ab", "Client(profile='named', cluster_id='1-ab')"),
        ("ended", "answers no more", "ipcluster start --profile=ended"),
    ],
)
def test_a_profile_where_nothing_answers_is_an_error_before_any_time_is_waited(
    name: str, found: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it waits"))
    for profile in ("idle", "named", "ended"):
        (tmp_path / f"profile_{profile}" / "security").mkdir(parents=True)
    (tmp_path / "profile_named" / "security" / "ipcontroller-1-ab-client.json").write_text("{}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound and never listening: whoever connects is refused
        ended = tmp_path / "profile_ended" / "security" / "ipcontroller-client.json"
        ended.write_text(controller_file(free.getsockname()[1]))
        with pytest.raises(ClusterError, match=found) as caught:
            Cluster.attach(name, deadline_s=20)
    assert hint in caught.value.hint
