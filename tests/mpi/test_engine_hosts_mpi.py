"""Four MPI ranks as if on two hosts: memory is shared within each alone, the rest goes through MPI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_checks import differences

from coconet_lab.errors import RankError
from coconet_lab.ir.exact import integer_inputs
from coconet_lab.ir.inputs import proof_inputs
from coconet_lab.run.cluster import Cluster
from coconet_lab.workloads import adam, lamb, mlp, pipeline, self_attention, sgd

TESTS = str(Path(__file__).parents[1])
LIST = [(3, 5), (1030, 2), (7,), (1,)]
WORKLOADS = {
    "sgd of an odd size": (lambda: sgd(37, 4, "fp32"), 0.0),
    "sgd of few elements": (lambda: sgd(2, 4, "fp16"), 0.0),
    "adam in mixed precision": (lambda: adam(10007, 4, "fp16"), 0.0),
    "adam": (lambda: adam(1001, 4, "fp32"), 0.0),
    "lamb of a list": (lambda: lamb(LIST, 4, "fp16"), 1e-3),
    "lamb": (lambda: lamb(1001, 4, "fp32"), 1e-5),
    "self_attention": (lambda: self_attention(4, 6, 8, 4, "fp16"), 5e-3),
    "mlp": (lambda: mlp(4, 6, 8, 4, "fp32"), 1e-4),
    "pipeline": (lambda: pipeline(4, 8, 8, 4, 2), 5e-3),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(ranks=4, backend="cpu", deadline_s=120) as started:
        yield started


def on_hosts(folder: str, programs: Any, inputs: Any, hosts: int) -> list[dict[str, Any]]:
    import sys

    sys.path.insert(0, folder)
    from engine_checks import run_on

    from coconet_lab.run.world import MpiWorld

    world = MpiWorld(hosts=hosts)
    return [run_on(world, program, given, runs=2, hosts=hosts) for program, given in zip(programs, inputs)]


@pytest.mark.parametrize("hosts", [2, 4])
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_schedule_of_a_workload_is_the_oracle(cluster: Cluster, name: str, hosts: int) -> None:
    make, tolerance = WORKLOADS[name]
    programs = [schedule.program for schedule in make().schedules.values()]
    inputs = [proof_inputs(program, integer_inputs(program)) for program in programs]
    ranks = cluster.call(on_hosts, TESTS, programs, inputs, hosts)
    for at, (program, given) in enumerate(zip(programs, inputs)):
        assert not differences(program, given, [found[at] for found in ranks], tolerance)


def test_a_rank_that_is_late_at_its_hosts_barrier_is_named(cluster: Cluster) -> None:
    program = sgd(64, 4).schedules["fuse(RS-Opt-AG)"].program

    def work(folder: str, program: Any, inputs: Any) -> None:
        import sys

        sys.path.insert(0, folder)
        from engine_checks import own_inputs

        from coconet_lab.kernels.lower import lower
        from coconet_lab.run.engine import Engine
        from coconet_lab.run.world import MpiWorld

        world, plan = MpiWorld(hosts=2), lower(program, hosts=2)
        engine = Engine(plan, world, deadline_s=0.2)
        engine.load(own_inputs(program, plan, inputs, world.rank))
        if world.rank == 2:
            engine.run()

    with pytest.raises(RankError, match=r"rank 2 waited 0\.2 s for rank 3 in 'total_rs'"):
        cluster.call(work, TESTS, program, proof_inputs(program, integer_inputs(program)))


def test_a_cluster_on_two_hosts_runs_plans_for_them(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "hosts", 2)
    workload = adam(1001, 4, "fp16")
    inputs = proof_inputs(workload.program, integer_inputs(workload.program))
    expected = cluster.run(workload.program, inputs)
    run = cluster.run(workload.schedules["fuse(RS-Opt-AG)"], inputs)
    for name in run.outputs:
        assert (run.outputs[name] == expected.outputs[name]).all()
    kinds = [span.kind for span in run.trace.spans if span.rank == 0]
    assert kinds.count("Launch") == 4
    assert {"ReduceScatter", "AllGather"} <= set(kinds)
