"""Fused groups as one kernel: phases, kept values, what is written, and what no kernel can do."""

from __future__ import annotations

import pytest
from plan_checks import check_plan

import coconet_lab as cl
from coconet_lab import FP16, FP32, Local, Replicated, Sliced
from coconet_lab.ir.program import Fusion
from coconet_lab.kernels import kernel as k
from coconet_lab.kernels.lower import lower
from coconet_lab.kernels.plan import Arrive, Collective, Launch


def annotated(program, *members, name="fused"):
    """The program with a group as a user's step would make it, legal or not to the step."""
    return program.edit(fusions=(Fusion(name, members, True),))


def statements(entry, form):
    return [s for s in entry.kernel.statements() if isinstance(s, form)]


def softmax(layout, ranks=4, dtype=FP32, shape=(4, 8)):
    x = cl.tensor("x", dtype, shape, layout)
    e = cl.exp(x - cl.max(x, dim=1, name="top"), name="e")
    out = cl.div(e, cl.sum(e, dim=1, name="total"), name="out")
    return cl.Schedule(cl.program("softmax", outputs=[out], ranks=ranks)).fuse("top", "out").program


@pytest.mark.parametrize("dtype", [FP16, FP32], ids=repr)
@pytest.mark.parametrize("layout", [Local, Replicated, Sliced(0), Sliced(1)], ids=repr)
def test_a_softmax_is_one_kernel_of_three_phases_that_keeps_what_it_needs_again(layout, dtype):
    plan = check_plan(softmax(layout, dtype=dtype))
    (entry,) = plan.entries
    assert len(entry.kernel.phases) == 3
    kept = [b for b in plan.buffers.values() if b.role == "temporary"]
    assert [b.value for b in kept] == ["e"]
    assert kept[0].placement == ("block" if layout.is_sliced else "whole")


def test_reductions_across_the_sliced_dim_cross_ranks_and_the_others_do_not():
    across, along = (lower(softmax(Sliced(d))).entries[0].kernel for d in (1, 0))
    assert all(a.crosses for a in across.accumulators)
    assert not any(a.crosses for a in along.accumulators)


def test_a_value_that_was_stored_is_read_again_and_not_kept_twice():
    x = cl.tensor("x", FP32, (8,), Sliced(0))
    y = cl.mul(x, 2, name="y")
    z = cl.div(y, cl.norm(y, name="n"), name="z")
    program = cl.Schedule(cl.program("p", outputs=[y, z], ranks=4)).fuse("y", "z").program
    plan = check_plan(program)
    assert [b.role for b in plan.buffers.values()].count("temporary") == 0


def test_peers_are_never_read_twice_for_one_value():
    g, w = cl.tensor("g", FP32, (8,), Local), cl.tensor("w", FP32, (8,), Replicated)
    total = cl.all_reduce(g, name="total")
    out = cl.add(total / (cl.norm(total, name="n") + 1), w, name="out")
    s = cl.Schedule(cl.program("p", outputs=[out], ranks=4))
    for program in (s.fuse("total", "out").program, s.split("total").reorder("total", past="out").program):
        if not program.fusions:
            program = cl.Schedule(program).fuse("total_rs", "out").program
        (entry,) = check_plan(program).entries
        assert len(statements(entry, k.Combine)) == 1


def test_one_shot_and_two_shot_all_reduce_meet_before_and_after():
    g = cl.tensor("g", FP16, (8, 4), Local)
    s = cl.Schedule(cl.program("p", outputs=[cl.mul(cl.all_reduce(g, name="total"), 2, name="out")], ranks=4))
    one = s.fuse("total", "out").program
    two = s.split("total").reorder("total", past="out").fuse("total_rs", "out").program
    for program, gathers in ((one, 0), (two, 1)):
        (entry,) = check_plan(program).entries
        assert [sync.kind for sync in (*entry.opens, *entry.closes)] == ["barrier", "barrier"]
        assert entry.kernel.opens
        assert entry.kernel.closes
        assert len(statements(entry, k.StoreAll)) == gathers


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_a_fused_reduction_other_than_a_sum_runs(reduction):
    g = cl.tensor("g", FP32, (6,), Local)
    total = cl.all_reduce(g, reduction, name="total")
    check_plan(cl.Schedule(cl.program("p", outputs=[cl.abs(total, name="out")], ranks=3)).fuse("total", "out").program)


def test_an_updated_tensor_is_stored_after_its_last_reader_of_the_old_value():
    w = cl.tensor("w", FP32, (8,), Sliced(0))
    scaled = cl.mul(w, cl.norm(w, name="n"), name="scaled")
    w1 = cl.update(w, cl.mul(w, 2, name="twice"), name="w1")
    program = cl.Schedule(cl.program("p", outputs=[scaled, w1], ranks=4)).fuse("n", "scaled", "twice", "w1").program
    plan = check_plan(program)
    assert [type(e) for e in plan.entries] == [Launch]


def test_two_updates_of_one_tensor_store_it_once():
    w = cl.tensor("w", FP32, (8,), Replicated)
    w1 = cl.update(w, cl.mul(w, 2, name="twice"), name="w1")
    w2 = cl.update(w1, cl.add(w1, 1, name="more"), name="w2")
    plan = check_plan(cl.Schedule(cl.program("p", outputs=[w2], ranks=2)).fuse("twice", "w2").program)
    assert len(statements(plan.entries[0], k.Store)) == 1


def test_a_fused_send_stores_on_the_partner_which_waits_for_it():
    x = cl.tensor("x", FP16, (4, 3), Replicated)
    sent = cl.send(cl.mul(x, 2, name="y"), to=cl.GROUP + 1, name="sent")
    program = cl.Schedule(cl.program("p", outputs=[cl.neg(sent)], ranks=4, groups=2)).fuse("y", "sent").program
    plan = check_plan(program)
    launch, arrive = plan.entries[:2]
    assert (type(launch), type(arrive)) == (Launch, Arrive)
    assert (launch.groups, arrive.groups) == ((0,), (1,))
    assert [sync.partner for sync in launch.opens + arrive.opens] == [1, 0]
    assert plan.buffers[arrive.target.buffer].symmetric


def test_norms_of_a_list_that_are_read_outside_are_stored_on_every_rank():
    x = cl.tensor("x", FP32, [(3, 2), (1500,), (0,), (1,)], Sliced(0), bucket=64)
    n = cl.norm(x, name="n")
    inverse = cl.div(1.0, n + 1.0, name="inverse")
    y = cl.mul(x, inverse, name="y")
    program = cl.Schedule(cl.program("p", outputs=[y, inverse, n], ranks=4)).fuse("n", "y").program
    plan = check_plan(program)
    assert "fused" in [e.name for e in plan.entries]


def test_a_scalar_that_a_group_makes_and_others_read_is_stored_once():
    x = cl.tensor("x", FP32, (9,), Sliced(0))
    n = cl.norm(x, name="n")
    y = cl.div(x, cl.add(n, 1, name="m"), name="y")
    plan = check_plan(cl.Schedule(cl.program("p", outputs=[y, cl.mul(x, n, name="z")], ranks=4)).fuse("n", "y").program)
    fused = next(e for e in plan.entries if e.name == "fused")
    (stored,) = [s for phase in fused.kernel.phases for s in phase.uniform if isinstance(s, k.Store)]
    assert fused.kernel.tensors[stored.tensor].value == "n"


def test_a_slice_that_a_group_makes_is_stored_as_a_block():
    x = cl.tensor("x", FP32, (8,), Replicated)
    part = cl.local_slice(cl.mul(x, 2, name="y"), 0, name="part")
    program = annotated(cl.program("p", outputs=[cl.all_gather(part)], ranks=4), "y", "part")
    plan = check_plan(program)
    assert plan.buffers[plan.slots["part"].buffer].placement == "block"
    assert "y" not in plan.slots


def test_what_is_no_single_kernel_runs_operation_by_operation_with_the_same_values():
    x, g = cl.tensor("x", FP32, (4,), Replicated), cl.tensor("g", FP32, (4, 4), Local)
    drop = cl.dropout(cl.norm(x, name="e"), 0.5, name="drop")
    out = cl.add(cl.all_reduce(g, name="total"), drop, name="out")
    program = annotated(cl.program("p", outputs=[out], ranks=2), "total", "drop", "out")
    plan = check_plan(program)
    assert [e.name for e in plan.entries if not isinstance(e, Collective)] == ["e", "drop", "out"]


def test_no_register_is_used_outside_its_phase_and_uniform_ones_need_no_element():
    for layout in (Local, Sliced(0), Sliced(1)):
        for kernel in lower(softmax(layout)).kernels():
            for phase in kernel.phases:
                known: set[int] = set()
                for statement in (*phase.uniform, *phase.body):
                    args = getattr(statement, "args", None) or [getattr(statement, "arg", None)]
                    assert {a for a in args if a is not None} <= known
                    known.add(getattr(statement, "out", -1))


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_group_that_is_no_kernel_reads_a_tensor_before_it_updates_it(hosts):
    g, w = cl.tensor("g", FP32, (8,), Local), cl.tensor("w", FP32, (8,), Replicated)
    both = cl.add(cl.all_reduce(g, name="total"), w, name="both")
    drop = cl.dropout(cl.scalar("lr", FP32), 0.25, name="drop")
    new = cl.update(w, cl.add(drop, both, name="sum"), name="new")
    old = cl.add(cl.abs(both, name="abs"), w, name="old")
    program = cl.program("p", outputs=[new, old], ranks=2)
    assert program.position["new"] < program.position["old"]
    plan = check_plan(cl.Schedule(program).fuse("total", "new", "old").program, hosts=hosts)
    assert [entry.name for entry in plan.entries] == ["drop", "total", "both", "sum", "abs", "old", "new"]
