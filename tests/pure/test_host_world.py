"""The engine on threads as ranks of several hosts, which share memory within a host alone, against the oracle."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from engine_checks import differences, run_on

import coconet_lab as cl
from coconet_lab.errors import ClusterError, InputError
from coconet_lab.ir.exact import integer_inputs
from coconet_lab.ir.inputs import proof_inputs, random_inputs
from coconet_lab.kernels.lower import lower
from coconet_lab.run.cluster import Cluster
from coconet_lab.run.engine import Engine
from coconet_lab.run.host_world import host_count
from coconet_lab.run.ranks import World
from coconet_lab.run.world import ThreadWorld
from coconet_lab.workloads import adam, lamb, pipeline, self_attention, sgd

LIST = [(3, 5), (1030, 2), (7,), (1,)]


def check(program, hosts, tolerance=0.0, runs=2):
    inputs = proof_inputs(program, integer_inputs(program))
    found = ThreadWorld.run(program.ranks, lambda world: run_on(world, program, inputs, 4, runs, hosts), hosts=hosts)
    assert not differences(program, inputs, found, tolerance)


CASES = {  # every schedule of every workload runs under tests/mpi; kernels take long to compile
    "adam of an odd size": (lambda: adam(1001, 4, "fp16"), 2, 0.0),
    "adam of an odd size, a rank a host": (lambda: adam(1001, 2, "fp16"), 2, 0.0),
    "lamb of a list": (lambda: lamb(LIST, 4, "fp16"), 2, 1e-3),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fused_optimizer_is_the_oracle(name):
    make, hosts, tolerance = CASES[name]
    check(make().schedules["fuse(RS-Opt-AG)"].program, hosts, tolerance)


def test_stages_of_an_overlap_that_span_hosts_are_the_oracle():
    check(self_attention(4, 6, 8, 4).schedules["ol(MM,fuse(RS-C-AG))"].program, 2, 5e-3)


def test_groups_that_span_two_hosts_each_send_to_the_others():
    check(pipeline(8, 8, 8, 8, 2).schedules["ol(RS,fuse(C-P2P),AG)"].program, 4, 5e-3)


def test_a_replicated_value_has_the_same_bits_on_every_rank_of_every_host():
    program = sgd(1001, 4, "fp32").schedules["fuse(RS-Opt-AG)"].program
    inputs = random_inputs(program)
    found = ThreadWorld.run(4, lambda world: run_on(world, program, inputs, hosts=2), hosts=2)
    assert all((other["w1"] == found[0]["w1"]).all() for other in found[1:])
    assert not differences(program, inputs, found, 1e-5)


def test_reductions_of_every_kind_cross_the_hosts():
    x = cl.tensor("x", cl.FP32, (8, 6), cl.Sliced(0))
    y = cl.tensor("y", cl.INT32, (7,), cl.Sliced(0))
    z = cl.tensor("z", cl.FP16, [(3,), (2, 5), (1,)], cl.Sliced(0), bucket=2)
    outputs = [fn(value, name=f"{fn.__name__}_{value.name}") for value in (x, z) for fn in (cl.sum, cl.mean, cl.norm)]
    outputs += [cl.max(y, name="max_y"), cl.min(y, name="min_y"), cl.sum(y, name="sum_y")]
    outputs += [cl.sum(x, dim=0, name="columns"), cl.max(x, dim=1, name="rows"), cl.mean(x, dim=0, name="means")]
    gaps = cl.tensor("gaps", cl.INT32, [(3,), (0,), (1,)], cl.Sliced(0))
    outputs += [cl.max(gaps, name="max_gaps"), cl.min(gaps, name="min_gaps")]
    check(cl.program("reductions", outputs=outputs, ranks=4), 2, 1e-6)


def test_a_plan_for_fewer_hosts_than_there_are_is_refused_before_it_reaches_for_their_memory():
    plan = lower(sgd(64, 4).program)
    with pytest.raises(InputError, match="is for ranks on 1 host, they are on 2") as error:
        ThreadWorld.run(4, lambda world: Engine(plan, world), hosts=2)
    assert "lower(program, hosts=2)" in str(error.value)


def test_a_plan_for_more_hosts_than_there_are_runs():
    program = sgd(64, 4).schedules["fuse(RS-Opt-AG)"].program
    inputs = proof_inputs(program, integer_inputs(program))
    found = ThreadWorld.run(4, lambda world: run_on(world, program, inputs, hosts=2))
    assert not differences(program, inputs, found, 0.0)


def test_a_cluster_counts_the_hosts_of_its_ranks(monkeypatch):
    assert Cluster(ranks=4, backend="cpu").hosts == 1
    cluster = Cluster(ranks=4, profile="hosts", backend="cpu")
    worlds = [World(rank, 4, 100 + rank, f"node{rank // 2}", "MPICH") for rank in range(4)]
    monkeypatch.setattr(cluster, "_ready_session", lambda: SimpleNamespace(worlds=worlds))
    assert cluster.hosts == 2


@pytest.mark.parametrize("names", ["aab", "abab", "aabbb"])
def test_hosts_with_unequal_or_scattered_ranks_are_refused(names):
    with pytest.raises(ClusterError, match="lie unevenly") as error:
        host_count(list(names))
    assert "ntasks-per-node" in str(error.value)
    assert host_count(list("aabbcc")) == 3
    assert host_count([]) == 1
