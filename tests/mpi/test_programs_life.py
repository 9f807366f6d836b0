"""What stays on the ranks: residents, large outputs, and what deaths and interrupts leave of a run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle_checks import assert_equal, assert_equals_oracle, exact_inputs, has_four_lines, is_usable, made
from waiting import no_process_left, wait_for

import coconet_lab as cl
from coconet_lab.errors import ClusterError, IllegalTransform, InputError, RankError
from coconet_lab.ir import oracle
from coconet_lab.ir.rounding import allowance
from coconet_lab.ir.updates import updated_inputs
from coconet_lab.run import programs, ranks
from coconet_lab.run.programs import RunInterrupted


@pytest.fixture(scope="module")
def cluster() -> Iterator[cl.Cluster]:
    with cl.Cluster(ranks=4, backend="cpu", deadline_s=120) as started:
        yield started


# Resident


def stepped(program: cl.Program, inputs: dict[str, Any], times: list[int]) -> dict[str, np.ndarray]:
    """State after the oracle has run once for each number in `times`, fed with what the run before left."""
    now = dict(inputs)
    for t in times:
        now |= oracle.run(program, {**now, "t": np.float32(t)}).state
    return now


def halved_state(inputs: dict[str, Any]) -> dict[str, Any]:
    """Weights and moments far enough from their bounds that a few steps stay within."""
    return {n: v * v.dtype.type(0.5) if n in ("w", "p", "m") else v for n, v in inputs.items()}


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_a_resident_steps_with_new_scalars_and_no_recompilation(cluster: cl.Cluster, dtype: str) -> None:
    workload = made("adam", dtype)
    inputs = halved_state(exact_inputs(workload.program)) | {"lr": np.float32(0.001)}
    opt = cluster.load(workload.schedules["fuse(RS-Opt-AG)"], inputs)
    timings = [opt.step(t=t) for t in (1, 2, 3)]
    assert [timing.compile_s for timing in timings] == [0.0] * 3
    expected = stepped(workload.program, inputs, [1, 2, 3])
    for name in updated_inputs(workload.program):
        assert_equal(opt.read(name), expected[name], name, 0.0)
    assert repr(opt) == "Resident(adam: 3 steps on 4 ranks)"
    opt.close()


def test_a_resident_keeps_its_scalars_steps_many_times_and_outlives_other_runs(cluster: cl.Cluster) -> None:
    workload = made("sgd", "fp32")
    inputs = halved_state(workload.inputs())
    opt = cluster.load(workload.schedules["AR-Opt"], inputs)
    opt.step(lr=0.0625)
    cluster.run(workload.schedules["RS-Opt-AG"], inputs)
    assert len(opt.step(times=2).samples_us) == 2
    now = dict(inputs)
    for _ in range(3):
        now |= oracle.run(workload.program, {**now, "lr": np.float32(0.0625)}).state
    assert_equal(opt.read("w"), now["w"], "w", allowance(now["w"], cl.FP32))
    opt.close()


def test_a_step_refuses_what_is_no_scalar_or_out_of_bounds_and_changes_nothing(cluster: cl.Cluster) -> None:
    workload = made("adam", "fp32")
    inputs = workload.inputs()
    opt = cluster.load(workload.schedules["AR-Opt"], inputs)
    for scalars, words in (
        ({"w": inputs["w"]}, "'w' .* is no scalar"),
        ({"lr": 2.0}, "input 'lr' holds 2"),
        ({"lr": float("nan")}, "NaN"),
        ({"beta": 1.0}, "there is no input 'beta'"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            opt.step(**scalars)
        assert has_four_lines(caught.value)
    with pytest.raises(InputError, match="0 steps"):
        opt.step(times=0)
    with pytest.raises(IllegalTransform, match="no rank holds 'G'"):
        opt.read("G")
    opt.step(t=1)
    expected = stepped(workload.program, inputs, [1])
    assert_equal(opt.read("w"), expected["w"], "w", allowance(expected["w"], cl.FP32))
    opt.close()
    with pytest.raises(ClusterError, match="was left on the ranks"):
        opt.read("w")


# What is left on the ranks


def test_large_outputs_stay_on_the_ranks_until_they_are_asked_for(
    cluster: cl.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = made("adam", "fp32")
    inputs = workload.inputs()
    monkeypatch.setattr(programs, "_FETCH_BYTES", 1000)
    run = cluster.run(workload.schedules["fuse(RS-Opt-AG)"], inputs)
    assert "w1: on the ranks" in repr(run)
    assert_equals_oracle(run, workload.program, inputs)
    assert "w1: float32[1003]" in repr(run)


def test_what_was_left_on_the_ranks_is_gone_after_the_next_run_also_where_that_failed(
    cluster: cl.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = made("sgd", "fp32")
    monkeypatch.setattr(programs, "_FETCH_BYTES", 1000)
    run = cluster.run(workload.schedules["AR-Opt"])
    with pytest.raises(RankError):
        cluster.run(workload.schedules["AR-Opt"], workload.inputs() | {"w": lambda rank, ranges: None})
    with pytest.raises(ClusterError, match="'w1' was left on the ranks") as caught:
        run["w1"]
    assert has_four_lines(caught.value)
    assert is_usable(cluster)


def test_asking_after_the_cluster_ended_says_so_and_times_and_traces_live_on(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = cl.workloads.sgd(elements=1003, ranks=2)
    monkeypatch.setattr(programs, "_FETCH_BYTES", 1000)
    with cl.Cluster(ranks=2, backend="cpu", deadline_s=60) as short:
        run = short.run(workload.schedules["AR-Opt"])
        kept = short.load(workload.schedules["AR-Opt"])
        pids = short.processes()
    assert no_process_left(pids)
    with pytest.raises(ClusterError, match="'w1' was left on the ranks") as caught:
        run["w1"]
    assert has_four_lines(caught.value)
    with pytest.raises(ClusterError, match="the ranks that kept 'sgd' have ended") as ended:
        kept.step()
    assert has_four_lines(ended.value)
    assert run.median_us > 0
    assert {span.rank for span in run.trace} == {0, 1}
    assert short.state == "not started"


# Deaths and interrupts


def test_a_rank_killed_during_a_run_is_named_and_results_of_before_survive(cluster: cl.Cluster) -> None:
    workload = made("adam", "fp32")
    before = cluster.run(workload.schedules["AR-Opt"])

    def deadly(rank: int, ranges: Any) -> np.ndarray:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(1003, np.float32)

    with pytest.raises(RankError, match=r"rank 1 of 4 was killed by signal 9 \(SIGKILL\)") as caught:
        cluster.run(workload.schedules["AR-Opt"], workload.inputs() | {"g": deadly})
    assert has_four_lines(caught.value)
    assert before["w1"].shape == (1003,)
    assert is_usable(cluster)


def interrupt_at(cluster: cl.Cluster, name: str, done: int) -> threading.Thread:
    """A thread that interrupts this process's main thread once rank 0 has finished `done` repeats of `name`."""
    session = cluster._session
    assert session is not None
    path = Path(ranks.status_path(session.directory, 0))

    def reached() -> bool:
        number = cluster._calls
        report = ranks.read_report(session.directory, 0, number)
        return path.exists() and report.op == name and report.done >= done

    def run() -> None:
        if wait_for(reached, 60):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


ENDLESS = 10**6


def test_an_interrupt_keeps_the_finished_schedules_and_repeats_of_a_comparison(
    cluster: cl.Cluster, capsys: pytest.CaptureFixture
) -> None:
    workload = made("sgd", "fp32")
    naive, fused = workload.schedules["naive"], workload.schedules["fuse(RS-Opt-AG)"]
    cluster.run(fused)
    pids = cluster.call(os.getpid)
    run = cluster.run

    def endless(schedule: Any, *args: Any, repeats: int, **more: Any) -> Any:
        return run(schedule, *args, repeats=repeats if more["name"] == "naive" else ENDLESS, **more)

    cluster.run = endless  # type: ignore[method-assign]
    thread = interrupt_at(cluster, "fused", 4)
    try:
        compared = cluster.compare({"naive": naive, "fused": fused, "never": naive}, repeats=2)
    finally:
        del cluster.run
        thread.join()
    assert [row.schedule for row in compared.rows] == ["naive", "fused"]
    assert compared.is_partial
    assert len(compared["naive"].timing.samples_us) == 2
    assert 1 <= len(compared["fused"].timing.samples_us) < ENDLESS
    assert "Interrupted: 1 of 3 schedules are kept, and " in capsys.readouterr().err
    assert cluster.call(os.getpid) == pids


def test_an_interrupted_run_ends_on_all_ranks_and_carries_what_it_had(cluster: cl.Cluster) -> None:
    workload = made("sgd", "fp32")
    inputs = workload.inputs()
    cluster.call(os.getpid)
    thread = interrupt_at(cluster, "long", 3)
    with pytest.raises(RunInterrupted) as caught:
        cluster.run(workload.schedules["AR-Opt"], inputs, repeats=ENDLESS, name="long")
    thread.join()
    assert len(caught.value.run.samples_us) >= 2
    assert_equals_oracle(caught.value.run, workload.program, inputs)
    assert caught.value._render_traceback_() == ["Interrupted: 'long' ended on all ranks"]
    assert is_usable(cluster)
