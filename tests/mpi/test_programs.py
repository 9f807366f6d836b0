"""Programs on a cluster: every schedule of every workload equals the oracle, and what is refused is one error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from oracle_checks import assert_equals_oracle, exact_inputs, has_four_lines, is_usable, made

import coconet_lab as cl
from coconet_lab.errors import ClusterError, IllegalTransform, InputError, ProgramError, RankError
from coconet_lab.ir import oracle
from coconet_lab.ir.rounding import allowance, mismatch


@pytest.fixture(scope="module")
def cluster() -> Iterator[cl.Cluster]:
    with cl.Cluster(ranks=4, backend="cpu", deadline_s=120) as started:
        yield started


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


def test_drawn_inputs_are_those_of_their_seed_whatever_ran_before(cluster: cl.Cluster) -> None:
    workload = made("sgd", "fp32")
    for seed in (1, 2, 1):
        inputs = cl.random_inputs(workload.program, seed=seed)
        for name in ("AR-Opt", "fuse(RS-Opt-AG)"):
            assert_equals_oracle(cluster.run(workload.schedules[name], seed=seed, repeats=2), workload.program, inputs)


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
    nan = good["r"].copy()
    nan[1, 2, 3] = np.nan
    return {
        "another shape": (good | {"b": np.zeros(21, np.float32)}, r"'b' .* an array of shape \[21\]"),
        "another dtype": (good | {"b": np.zeros(20, np.float64)}, "'b' .* was given float64"),
        "NaN": (good | {"r": nan}, "'r' holds NaN"),
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


@pytest.mark.parametrize(("name", "value"), [("v", -1.5), ("lr", 2.0), ("t", 0.0)])
def test_a_value_outside_its_low_and_high_is_refused_before_anything_runs(
    cluster: cl.Cluster, name: str, value: float
) -> None:
    workload = made("adam", "fp32")
    good = workload.inputs()
    wrong = np.full_like(good[name], value)
    for use in (cluster.run, cluster.load):
        with pytest.raises(InputError, match=f"input '{name}' holds {value:g}") as caught:
            use(workload.schedules["AR-Opt"], good | {name: wrong})
        assert has_four_lines(caught.value)
    assert is_usable(cluster)


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
    with pytest.raises(ClusterError, match="repeats is 0") as refused:
        cluster.run(schedule, repeats=0)
    assert has_four_lines(refused.value)
    with pytest.raises(InputError, match="the inputs are a list") as listed:
        cluster.run(schedule, [1, 2])  # type: ignore[arg-type]
    assert has_four_lines(listed.value)
    for nothing in ({}, schedule):
        with pytest.raises(ClusterError, match="nothing to compare") as empty:
            cluster.compare(nothing)  # type: ignore[arg-type]
        assert has_four_lines(empty.value)
    with pytest.raises(ClusterError, match="nothing to compare with 'best'"):
        cluster.compare({"a": schedule}, baseline="best")
    assert is_usable(cluster)
