"""Programs on a cluster: every schedule of every workload equals the oracle, and whatever goes wrong is one error."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import no_process_left, wait_for

import coconet_lab as cl
from coconet_lab.errors import ClusterError, CoconetError, IllegalTransform, InputError, ProgramError, RankError
from coconet_lab.ir import oracle
from coconet_lab.ir.exact import integer_inputs, within_tolerance
from coconet_lab.ir.inputs import proof_inputs
from coconet_lab.ir.rounding import allowance, mismatch
from coconet_lab.ir.updates import updated_inputs
from coconet_lab.run import programs, ranks
from coconet_lab.run.programs import RunInterrupted
from coconet_lab.workloads import Workload


@pytest.fixture(scope="module")
def cluster() -> Iterator[cl.Cluster]:
    with cl.Cluster(ranks=4, backend="cpu", deadline_s=120) as started:
        yield started


def made(name: str, dtype: str) -> Workload:
    """A workload at an odd, small size: blocks of unequal length, extents that are no power of two."""
    make = getattr(cl.workloads, name)
    if name in ("sgd", "adam", "lamb"):
        return make(elements=1003, ranks=4, dtype=dtype)
    return make(batch=4, sequence=3, hidden=20, ranks=4, dtype=dtype)


def exact_inputs(program: cl.Program, seed: int = 3) -> dict[str, Any]:
    """Small whole numbers where they lead to sums across ranks: these are then equal to the last bit in any order."""
    return proof_inputs(program, integer_inputs(program), seed)


def assert_equal(found: np.ndarray, expected: np.ndarray, name: str, tolerance: float) -> None:
    assert found.dtype == expected.dtype, name
    assert found.shape == expected.shape, name
    at = mismatch(found, expected, tolerance)
    assert at is None, f"{name} at {at}: {found[at]}, not {expected[at]}"


def assert_equals_oracle(run: Any, program: cl.Program, inputs: dict[str, Any]) -> None:
    """Outputs and state of a run as the unscheduled program means them, within the tolerance that §4a allows."""
    expected = oracle.run(program, inputs)
    loose = within_tolerance(expected)
    last = updated_inputs(program)
    assert set(run.outputs) == set(program.outputs)
    assert set(run.state) == set(last)
    for values, wanted in ((run.outputs, {n: n for n in program.outputs}), (run.state, last)):
        for name, value in wanted.items():
            whole = expected.output(value)
            tolerance = allowance(whole, program.types[value].dtype) if value in loose else 0.0
            assert_equal(values[name], whole, name, tolerance)


def is_usable(cluster: cl.Cluster) -> bool:
    g = cl.tensor("g", cl.FP32, (5,), cl.Local)
    program = cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=4)
    return cluster.run(program, {"g": np.ones((4, 5), np.float32)})["total"].tolist() == [4.0] * 5


def has_four_lines(error: CoconetError) -> bool:
    labels = [line.split()[0] for line in str(error).splitlines()[1:]]
    return labels == ["rule:", "in:", "try:"]


# Values


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["sgd", "adam", "lamb", "self_attention", "mlp", "pipeline"])
def test_every_schedule_of_a_workload_equals_the_oracle(cluster: cl.Cluster, name: str, dtype: str) -> None:
    workload = made(name, dtype)
    inputs = exact_inputs(workload.program)
    for schedule in workload.schedules.values():
        assert_equals_oracle(cluster.run(schedule, inputs), workload.program, inputs)


def test_lists_of_tensors_run_as_one_value(cluster: cl.Cluster) -> None:
    workload = cl.workloads.lamb(elements=[(3, 4), (2000,), (5,), (1,)], ranks=4, dtype="fp16")
    inputs = exact_inputs(workload.program)
    for schedule in workload.schedules.values():
        assert_equals_oracle(cluster.run(schedule, inputs), workload.program, inputs)


def test_state_starts_from_the_inputs_at_every_repeat(cluster: cl.Cluster) -> None:
    workload = made("adam", "fp32")
    inputs = workload.inputs()
    run = cluster.run(workload.schedules["fuse(RS-Opt-AG)"], inputs, repeats=3)
    assert_equals_oracle(run, workload.program, inputs)
    assert len(run.samples_us) == 3
    assert all(sample > 0 for sample in run.samples_us)
    assert run.timing.p10_us <= run.median_us <= run.timing.p90_us


def test_inputs_left_out_are_drawn_on_the_ranks_as_random_inputs_would(cluster: cl.Cluster) -> None:
    workload = made("adam", "fp32")
    run = cluster.run(workload.schedules["RS-Opt-AG"], seed=11)
    assert_equals_oracle(run, workload.program, cl.random_inputs(workload.program, seed=11))
    assert run.provenance.seed == 11


def test_callables_make_each_ranks_part(cluster: cl.Cluster) -> None:
    workload = made("self_attention", "fp32")
    inputs = workload.inputs()
    x, r = inputs["x"], inputs["r"]
    inputs |= {
        "x": lambda rank, ranges: x[tuple(slice(*part) for part in ranges)],
        "r": lambda rank, ranges: r,
    }
    run = cluster.run(workload.schedules["fuse(RS-C-AG)"], inputs)
    assert_equals_oracle(run, workload.program, inputs)


def test_callables_know_their_rank(cluster: cl.Cluster) -> None:
    g = cl.tensor("g", cl.FP32, (3,), cl.Local)
    program = cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=4)
    run = cluster.run(program, {"g": lambda rank, ranges: np.full(3, 10.0**rank, np.float32)})
    assert run["total"].tolist() == [1111.0] * 3


def test_values_are_named_by_string_or_by_the_value_itself(cluster: cl.Cluster) -> None:
    g = cl.tensor("g", cl.FP32, (3,), cl.Local)
    total = cl.all_reduce(g)
    run = cluster.run(cl.program("sum", outputs=[total], ranks=4), {g: np.ones((4, 3), np.float32)})
    assert run[total].tolist() == run.outputs["allreduce_1"].tolist() == [4.0] * 3
    assert run.on_rank(2)[total].tolist() == [4.0] * 3


def test_on_rank_reads_what_one_rank_holds(cluster: cl.Cluster) -> None:
    workload = made("self_attention", "fp32")
    inputs = workload.inputs()
    run = cluster.run(workload.schedules["MM-RS-C-AG"], inputs)
    simulated = oracle.run(workload.schedules["MM-RS-C-AG"].program, inputs)
    for rank in range(4):
        part = simulated.on_rank(rank)["total_rs"]
        held = run.on_rank(rank)["total_rs"]
        assert held.shape == (1, 3, 20)
        assert mismatch(held, part, allowance(part, cl.FP32)) is None


def test_on_rank_refuses_what_no_rank_stores_and_ranks_there_are_not(cluster: cl.Cluster) -> None:
    workload = made("self_attention", "fp32")
    run = cluster.run(workload.schedules["fuse(RS-C-AG)"])
    with pytest.raises(IllegalTransform, match="rank 1 does not hold 'drop'") as caught:
        run.on_rank(1)["drop"]
    assert has_four_lines(caught.value)
    with pytest.raises(ClusterError, match="there is no rank 4"):
        run.on_rank(4)["out"]
    with pytest.raises(ProgramError, match="no value 'dorp'"):
        run.on_rank(0)["dorp"]
    with pytest.raises(ProgramError, match="the run has no 'drop'"):
        run["drop"]


def test_values_of_a_group_are_on_its_ranks_alone(cluster: cl.Cluster) -> None:
    workload = made("pipeline", "fp32")
    run = cluster.run(workload.schedules["naive"])
    assert run.on_rank(3)["sent"].shape == (4, 3, 20)
    with pytest.raises(IllegalTransform, match="rank 0 does not hold 'sent'"):
        run.on_rank(0)["sent"]


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


# What is refused


def test_a_program_for_another_number_of_ranks_is_refused_with_the_call_to_make(cluster: cl.Cluster) -> None:
    workload = cl.workloads.adam(elements=64, ranks=2)
    for use in (cluster.run, cluster.load, lambda s: cluster.compare({"a": s})):
        with pytest.raises(ClusterError, match="is for 2 ranks, the cluster has 4") as caught:
            use(workload.schedules["AR-Opt"])
        assert has_four_lines(caught.value)
        assert "with_ranks(4)" in caught.value.hint
        assert "cl.Cluster(ranks=2)" in caught.value.hint
    rebound = workload.schedules["AR-Opt"].with_ranks(4)
    assert cluster.run(rebound)["w1"].shape == (64,)


def wrong_inputs() -> dict[str, tuple[Any, str]]:
    good = made("self_attention", "fp32").inputs()
    nan, outside = good["r"].copy(), good["r"].copy()
    nan[1, 2, 3], outside[0, 0, 0] = np.nan, 1.5
    return {
        "another shape": (good | {"b": np.zeros(21, np.float32)}, r"'b' .* an array of shape \[21\]"),
        "another dtype": (good | {"b": np.zeros(20, np.float64)}, "'b' .* was given float64"),
        "NaN": (good | {"r": nan}, "'r' holds NaN"),
        "a value outside low and high": (good | {"r": outside}, "'r' holds 1.5"),
        "an unknown name": (good | {"bias": good["b"]}, "there is no input 'bias'"),
        "a missing name": ({n: v for n, v in good.items() if n != "b"}, "input 'b' .* has no value"),
    }


@pytest.mark.parametrize("fault", list(wrong_inputs()))
def test_bad_inputs_are_one_error_before_anything_runs(cluster: cl.Cluster, fault: str) -> None:
    inputs, words = wrong_inputs()[fault]
    schedule = made("self_attention", "fp32").schedules["fuse(RS-C-AG)"]
    pids = cluster.call(os.getpid)
    for use in (cluster.run, cluster.load):
        with pytest.raises(InputError, match=words) as caught:
            use(schedule, inputs)
        assert has_four_lines(caught.value)
    assert is_usable(cluster)
    assert cluster.call(os.getpid) == pids


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda rank, ranges: np.zeros(7, np.float32), r"InputError: input 'b' .* shape \[7\]"),
        (lambda rank, ranges: np.zeros(20), "InputError: input 'b' .* float64"),
        (lambda rank, ranges: np.full(20, np.nan, np.float32), "InputError: input 'b' holds NaN"),
        (lambda rank, ranges: 1 // 0, "ZeroDivisionError"),
    ],
)
def test_callables_that_make_something_else_are_told_with_their_rank(
    cluster: cl.Cluster, make: Any, words: str
) -> None:
    workload = made("self_attention", "fp32")
    with pytest.raises(RankError, match=f"rank 0 of 4 raised {words}") as caught:
        cluster.run(workload.schedules["MM-AR-C"], workload.inputs() | {"b": make})
    assert has_four_lines(caught.value)
    assert is_usable(cluster)


def test_a_callable_that_fails_on_one_rank_alone_hangs_nobody(cluster: cl.Cluster) -> None:
    workload = made("self_attention", "fp32")

    def part(rank: int, ranges: Any) -> np.ndarray:
        return np.zeros(20 if rank != 2 else 3, np.float32)

    with pytest.raises(RankError, match="rank 2 of 4 raised InputError"):
        cluster.run(workload.schedules["MM-AR-C"], workload.inputs() | {"b": part})
    assert is_usable(cluster)


def test_what_is_no_program_and_no_repeats_are_refused(cluster: cl.Cluster) -> None:
    with pytest.raises(ProgramError, match="neither a Program nor a Schedule") as caught:
        cluster.run("adam")  # type: ignore[arg-type]
    assert caught.value.rule
    schedule = made("sgd", "fp32").schedules["AR-Opt"]
    with pytest.raises(ClusterError, match="0 repeats") as refused:
        cluster.run(schedule, repeats=0)
    assert has_four_lines(refused.value)
    with pytest.raises(ClusterError, match="nothing to compare"):
        cluster.compare({})
    with pytest.raises(ClusterError, match="nothing to compare with 'best'"):
        cluster.compare({"a": schedule}, baseline="best")
    assert is_usable(cluster)


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
