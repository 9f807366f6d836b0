"""The engine on real ranks: kernels over shared memory, MPI's collectives, against the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
from engine_checks import differences

import coconet_lab as cl
from coconet_lab import workloads
from coconet_lab.errors import RankError
from coconet_lab.ir.exact import integer_inputs
from coconet_lab.ir.inputs import proof_inputs, random_inputs
from coconet_lab.run.cluster import Cluster

TESTS = str(Path(__file__).parents[1])


@pytest.fixture(scope="module", params=[2, 4])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(ranks=request.param, backend="cpu", deadline_s=120) as started:
        yield started


def on_ranks(cluster: Cluster, program: Any, inputs: Any, runs: int = 2) -> list[dict[str, Any]]:
    """`run_on` of tests/engine_checks.py on every rank."""

    def work(folder: str, program: Any, inputs: Any, runs: int) -> dict[str, Any]:
        import sys

        sys.path.insert(0, folder)
        from engine_checks import run_on

        from coconet_lab.run.world import MpiWorld

        return run_on(MpiWorld(), program, inputs, runs=runs)

    return cluster.call(work, TESTS, program, inputs, runs)


def check(cluster: Cluster, program: Any, tolerance: float = 0.0) -> None:
    inputs = random_inputs(program)
    assert not differences(program, inputs, on_ranks(cluster, program, inputs), tolerance)


def test_fused_adam_is_the_oracle_to_the_bit(cluster: Cluster) -> None:
    s = cl.Schedule(programs.adam(10007, cluster.ranks)).split("total").reorder("total", "p1").as_slice("m", "v", "w")
    check(cluster, s.dead().fuse("total_rs", "p1").program)


def test_lamb_exchanges_norms_inside_one_kernel(cluster: Cluster) -> None:
    program = programs.lamb(ranks=cluster.ranks, shape=[(3, 5), (1030, 2), (7,)])
    s = cl.Schedule(program).fuse("G", "w1").split("total").reorder("total", "fused").as_slice("m", "v").dead()
    check(cluster, s.fuse("total_rs", "fused", "w1").program, tolerance=1e-5)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("make", [workloads.sgd, workloads.adam, workloads.lamb])
def test_every_schedule_of_an_optimizer_of_a_scattered_list_runs(cluster: Cluster, make: Any, dtype: str) -> None:
    made = make([(5,), (1,), (0,), (1023,), (1024,), (1025,), (4099,)], cluster.ranks, dtype)
    inputs = proof_inputs(made.program, integer_inputs(made.program))  # MPI adds in an order of its own
    for schedule in made.schedules.values():
        found = on_ranks(cluster, schedule.program, inputs)
        assert not differences(schedule.program, inputs, found, 1e-5 if make is workloads.lamb else 0.0)


def test_attention_overlaps_a_product_with_a_fused_collective(cluster: Cluster) -> None:
    s = cl.Schedule(programs.self_attention(4, 8, 16, ranks=cluster.ranks)).split("total").reorder("total", "out")
    s = s.fuse("total_rs", "out", name="fused").overlap("layer", "fused")
    check(cluster, s.program, tolerance=5e-3)


def test_groups_send_by_mpi_and_from_inside_a_kernel(cluster: Cluster) -> None:
    program = programs.pipeline(4, 8, 16, ranks=cluster.ranks, groups=2)
    check(cluster, program, tolerance=5e-3)
    s = cl.Schedule(program).split("total").reorder("total", "sent").fuse("add_1", "sent_part", name="cp")
    check(cluster, s.overlap("total_rs", "cp", "sent").program, tolerance=5e-3)


@pytest.mark.parametrize("dtype", [cl.FP32, cl.FP16, cl.BF16, cl.FP64, cl.INT32, cl.INT64], ids=str)
def test_mpis_collectives_move_every_dtype(cluster: Cluster, dtype: Any) -> None:
    x = cl.tensor("x", dtype, (4 * 13,), cl.Local)
    odd = cl.tensor("odd", dtype, (7,), cl.Local)
    z = cl.tensor("z", dtype, (4, 8), cl.Sliced(1))
    outputs = [
        cl.all_reduce(x, name="total"),
        cl.all_gather(cl.reduce_scatter(odd, dim=0, name="part"), name="gathered"),
        cl.broadcast(cl.reduce(x, root=1, name="rooted"), root=1, name="spread"),
        cl.all_reduce(odd, reduction="max", name="largest"),
        cl.all_to_all(z, 0, 1, name="turned"),
    ]
    program = cl.program("collectives", outputs=outputs, ranks=cluster.ranks)
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.integers(-8, 9, kind.shape if name == "z" else (cluster.ranks, *kind.shape)).astype(dtype.numpy)
        for name, kind in ((name, program.types[name]) for name in program.inputs)
    }
    assert not differences(program, inputs, on_ranks(cluster, program, inputs, runs=1), 0.0)


def test_a_rank_that_is_late_is_named_with_the_op_the_others_are_in(cluster: Cluster) -> None:
    program = (
        cl.Schedule(programs.sgd(64, cluster.ranks))
        .split("total")
        .reorder("total", "w1")
        .fuse("total_rs", "w1")
        .program
    )

    def work(folder: str, program: Any, inputs: Any) -> None:
        import sys

        sys.path.insert(0, folder)
        from engine_checks import own_inputs

        from coconet_lab.kernels.lower import lower
        from coconet_lab.run.engine import Engine
        from coconet_lab.run.world import MpiWorld

        world, plan = MpiWorld(), lower(program)
        engine = Engine(plan, world, deadline_s=0.2)
        engine.load(own_inputs(program, plan, inputs, world.rank))
        if world.rank != 1:
            engine.run()

    with pytest.raises(RankError, match=r"waited 0\.2 s for rank 1 in 'fused'"):
        cluster.call(work, TESTS, program, random_inputs(program))
