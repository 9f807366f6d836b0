"""The paper's programs and schedules, lowered and run rank by rank in NumPy against the oracle."""

from __future__ import annotations

import time

import pytest
from plan_checks import check_plan

import coconet_lab as cl
from coconet_lab.kernels.lower import lower
from coconet_lab.kernels.plan import Launch
from coconet_lab.workloads import adam, lamb, mlp, pipeline, self_attention, sgd

LISTS = {"37": 37, "2 of 4 ranks": 2, "64": 64, "a list": [(3, 4), (2000,), (5,), (1,)]}


def schedules(workload):
    return {name: schedule.program for name, schedule in workload.schedules.items()}


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("elements", LISTS)
@pytest.mark.parametrize("make", [sgd, adam, lamb])
def test_every_schedule_of_an_optimizer_runs_right(make, elements, ranks, dtype):
    for program in schedules(make(LISTS[elements], ranks, dtype)).values():
        check_plan(program)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("make", [self_attention, mlp])
def test_every_schedule_of_an_epilogue_runs_right(make, ranks, dtype):
    for program in schedules(make(4, 6, 8, ranks, dtype)).values():
        check_plan(program)


@pytest.mark.parametrize(("ranks", "groups"), [(4, 2), (2, 2), (6, 3)])
def test_every_schedule_of_a_pipeline_runs_right(ranks, groups):
    for program in schedules(pipeline(ranks // groups * 2, 8, 8, ranks, groups)).values():
        check_plan(program)


@pytest.mark.parametrize("chunks", [1, 2, 3, 7])
def test_any_number_of_chunks_runs_right(chunks):
    for make in (self_attention, pipeline):
        for program in schedules(make(4, 5, 8, 4)).values():
            check_plan(program, chunks=chunks)


def test_lowering_self_attention_takes_less_than_20_ms_building_and_transforming_included():
    def once():
        start = time.thread_time()
        workload = self_attention()
        lower(workload.recipes["ol(MM,fuse(RS-C-AG))"](cl.Schedule(workload.program)).program)
        return time.thread_time() - start

    once()
    assert min(once() for _ in range(5)) < 0.02


@pytest.mark.parametrize("make", [sgd, adam, lamb])
def test_a_fused_group_is_one_launch(make):
    for name, program in schedules(make(64, 4, "fp16")).items():
        entries = lower(program).entries
        assert len([e for e in entries if isinstance(e, Launch) and e.name == "fused"]) == (name != "naive")


def without_extents(kernel):
    """What a printer may look at: extents only as 1 or more, and which are equal."""

    def pattern(shape):
        return tuple(1 if n == 1 else "n" for n in shape)

    tensors = tuple((t.dtype, pattern(t.shape), t.placement, t.peers, t.written) for t in kernel.tensors)
    return (kernel.space.dim, kernel.space.ranks, kernel.space.chunk_dim, tensors, kernel.scalars, kernel.dtypes,
            kernel.phases, kernel.accumulators, kernel.opens, kernel.closes)  # fmt: skip


@pytest.mark.parametrize("make", [lambda n: adam(n, 4, "fp16"), lambda n: self_attention(4, n, 8, 4)])
def test_kernels_of_two_sizes_differ_in_extents_alone(make):
    for small, large in zip(schedules(make(24)).values(), schedules(make(60)).values()):
        a, b = ([without_extents(k) for k in lower(p).kernels()] for p in (small, large))
        assert a == b
