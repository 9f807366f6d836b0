"""Zero-dimensional values inside their readers' kernels (design §4a, 13): who computes them, when, and who may not."""

from __future__ import annotations

import pytest
from plan_checks import check_plan

import coconet_lab as cl
from coconet_lab import FP16, FP32, Local, Replicated, Sliced
from coconet_lab.ir.program import Fusion
from coconet_lab.kernels import kernel as k
from coconet_lab.kernels.plan import Launch
from coconet_lab.kernels.plan_text import kernel_text, plan_text


def vector(name="x", layout=Sliced(0), shape=(6,)):
    return cl.tensor(name, FP32, shape, layout)


def state(name="t", dtype=FP32):
    return cl.tensor(name, dtype, (), Replicated)


def planned(*outputs, ranks=2, **sizes):
    return check_plan(cl.program("p", outputs=list(outputs), ranks=ranks, **sizes))


def names(plan):
    return [entry.name for entry in plan.entries]


def entry_of(plan, name):
    (found,) = [entry for entry in plan.entries if entry.name == name]
    return found


def computed_once(entry):
    """The values of statements that run once a kernel, not at every element."""
    return [entry.kernel.origin[s.out] for s in entry.kernel.phases[0].uniform if isinstance(s, k.Apply | k.Convert)]


# -- who computes them -----------------------------------------------------------------------------------------------


def test_a_zero_dimensional_value_of_a_tensor_is_computed_inside_the_kernel_that_reads_it():
    x = vector()
    m = cl.maximum(cl.norm(x, name="n"), 1.0, name="m")
    plan = planned(cl.div(x, m, name="y"))
    assert names(plan) == ["n", "y"]
    assert computed_once(entry_of(plan, "y")) == ["m"]
    assert "m" not in plan.slots
    assert [buffer.value for buffer in plan.buffers.values()] == ["x", "n", "y"]


def test_a_chain_of_zero_dimensional_values_reads_only_what_is_stored_and_scalars():
    x, lr = vector(), cl.scalar("lr", FP32, low=1, high=2)
    t = cl.update(state(), cl.max(x, name="top"), name="t1")
    mean = cl.div(cl.sum(x, name="total"), 6.0, name="mean")
    root = cl.sqrt(cl.abs(mean, name="size"), name="root")
    plan = planned(cl.mul(x, cl.add(root * lr, cl.cast(cl.cast(t, FP16, name="half"), FP32), name="m"), name="y"))
    y = entry_of(plan, "y")
    assert names(plan) == ["total", "top", "t1", "y"]
    assert [plan.buffers[buffer].value for buffer in y.reads] == ["total", "t", "x"]
    assert y.scalars == ("lr",)
    assert computed_once(y) == ["mean", "size", "root", "mul_1", "half", "cast_1", "m"]


def test_every_kernel_that_reads_one_computes_it_and_the_reduction_runs_once():
    x, z = vector(), vector("z")
    m = cl.maximum(cl.norm(x, name="n"), 1.0, name="m")
    plan = planned(cl.div(x, m, name="a"), cl.div(z, m, name="b"), cl.sum(m * z, name="c"))
    assert sorted(names(plan)) == ["a", "b", "c", "mul_1", "n"]
    assert [entry.name for entry in plan.entries if "m" in entry.ops] == ["a", "b", "mul_1"]
    assert plan.buffers[plan.slots["n"].buffer].last == max(names(plan).index(name) for name in ("a", "b", "mul_1"))


def test_a_fused_group_takes_one_in_that_the_user_did_not_name():
    x = vector()
    m = cl.maximum(cl.norm(x, name="n"), 1.0, name="m")
    y = cl.div(x, m, name="y")
    program = cl.program("p", outputs=[cl.mul(y, m, name="z"), cl.neg(m * x, name="other")], ranks=2)
    plan = check_plan(cl.Schedule(program).fuse("y", "z").program)
    fused = entry_of(plan, "fused")
    assert fused.ops == ("m", "y", "z")
    assert fused.inside == ("m",)
    assert computed_once(fused) == ["m"]
    assert "m" not in names(plan)


def test_a_groups_own_members_are_said_to_be_its_members():
    x = vector()
    y = cl.div(x, cl.maximum(cl.norm(x, name="n"), 1.0, name="m"), name="y")
    fused = entry_of(check_plan(cl.Schedule(cl.program("p", outputs=[y], ranks=2)).fuse("m", "y").program), "fused")
    assert ("m" in fused.ops, fused.inside) == (True, ())


def test_a_group_that_is_no_single_kernel_computes_them_inside_its_operations_too():
    x, g = vector(layout=Replicated), cl.tensor("g", FP32, (4, 4), Local)
    m = cl.maximum(cl.norm(x, name="n"), 1.0, name="m")
    total = cl.all_reduce(g, name="total")
    out = cl.mul(total, cl.dropout(m, 0.5, name="drop"), name="out")
    program = cl.program("p", outputs=[cl.div(out, m, name="last")], ranks=2)
    program = program.edit(fusions=(Fusion("fused", ("total", "m", "drop", "out", "last"), True),))
    assert set(names(check_plan(program))) == {"n", "total", "drop", "out", "last"}


def test_the_operator_of_a_user_that_is_a_kernel_expression_runs_inside_also_on_scalars():
    clamp = cl.operator("clamp", meaning=lambda x, ranges: x.clip(0, 1), expression="min(max({0}, 0), 1)")
    x = vector()
    plan = planned(
        cl.mul(x, clamp(cl.scalar("lr", FP32, low=-2, high=2)), name="y"), cl.mul(x, clamp(state()), name="z")
    )
    assert names(plan) == ["y", "z"]


def test_a_value_per_tensor_of_a_list_runs_inside_as_well():
    x = cl.tensor("x", FP32, [(3, 2), (0,), (1500,), (1,)], Sliced(0), bucket=64)
    m = cl.maximum(cl.norm(x, name="n"), 1.0, name="m")
    half = cl.mul(m, cl.sqrt(cl.norm(vector("z"), name="whole"), name="root"), name="half")
    plan = planned(cl.div(x, half, name="y"), cl.mul(m, half, name="both"), ranks=4)
    assert names(plan) == ["n", "whole", "y", "both"]
    assert entry_of(plan, "y").ops == ("m", "root", "half", "y")
    (n,) = [tensor for tensor in entry_of(plan, "y").kernel.tensors if tensor.value == "n"]
    assert n.per_piece


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), [(1,)]], ids=repr)
def test_a_reader_of_a_single_element_computes_it_too(shape):
    x = cl.tensor("x", FP32, shape, Replicated)
    m = cl.maximum(cl.norm(x, name="n"), 1.0, name="m")
    plan = planned(cl.div(x, m, name="y"), cl.norm(cl.mul(x, m, name="more"), name="z"))
    assert names(plan) == ["n", "y", *(["more"] if x.shape else []), "z"]


def test_every_operation_inside_still_rounds_once():
    x, t = cl.tensor("x", FP16, (9,), Sliced(0)), state(dtype=FP16)
    t = cl.update(t, cl.add(t, 0.3, name="more"))
    m = cl.sqrt(cl.abs(t)) / 3.0 + t * t
    wide = cl.cast(m * m, FP32) / 7.0
    plan = planned(cl.mul(x, m, name="y"), cl.mul(cl.cast(x, FP32, name="long"), wide, name="z"))
    assert names(plan) == ["more", "y", "long", "z"]


def test_local_values_stay_each_ranks_own():
    g = vector("g", Local)
    assert names(planned(cl.div(g, cl.norm(g, name="n") + 1.0, name="y"), ranks=3)) == ["n", "y"]


# -- who may not -----------------------------------------------------------------------------------------------------


def scaled(x, y, ranges):
    return (x * y).astype(x.dtype)


def by_an_operator(x, m):
    return cl.operator("scale", meaning=scaled)(x, m)


OTHER_READERS = {
    "an output": lambda x, m: m,
    "a collective": lambda x, m: cl.all_reduce(m, name="other"),
    "a broadcast": lambda x, m: cl.broadcast(m, name="other"),
    "a send": lambda x, m: cl.send(m, to=cl.GROUP + 1, name="other"),
    "an operator that is no kernel": by_an_operator,
    "an update": lambda x, m: cl.update(cl.tensor("t", FP32, (), Local), m, name="other"),
}


@pytest.mark.parametrize("reader", OTHER_READERS)
def test_what_something_other_than_a_kernel_reads_is_stored_by_one_launch_and_loaded_by_the_kernels(reader):
    x = vector(layout=Local)
    m = cl.maximum(cl.norm(x, name="n"), 1.0, name="m")
    read = cl.mul(cl.add(m, 1.0, name="more"), x, name="y")
    plan = planned(cl.div(x, m, name="z"), read, OTHER_READERS[reader](x, m), ranks=4, groups=2)
    assert entry_of(plan, "m").writes == (plan.slots["m"].buffer,)
    assert "more" not in names(plan)
    for name in ("y", "z"):
        assert "m" not in entry_of(plan, name).ops
        assert plan.slots["m"].buffer in entry_of(plan, name).reads


def test_reductions_and_dropouts_walk_elements_and_keep_their_launch():
    x = vector(layout=Replicated)
    twice = cl.norm(cl.norm(x, name="n"), name="twice")
    plan = planned(cl.div(x, cl.dropout(twice, 0.5, name="drop"), name="y"))
    assert names(plan) == ["n", "twice", "drop", "y"]


def test_what_a_group_makes_for_others_is_stored_by_the_group():
    x = vector()
    m = cl.maximum(cl.norm(x, name="n"), 1.0, name="m")
    program = cl.program("p", outputs=[cl.div(x, m, name="y"), cl.mul(x, m, name="z")], ranks=2)
    plan = check_plan(cl.Schedule(program).fuse("m", "y").program)
    assert plan.slots["m"].buffer in entry_of(plan, "z").reads
    assert "m" not in names(plan)


# -- when: order, updates, overlaps ----------------------------------------------------------------------------------


def test_a_reader_waits_for_what_makes_its_zero_dimensional_values_of():
    x, z = vector(), vector("z")
    m = cl.maximum(cl.norm(x, name="n"), 1.0, name="m")
    plan = planned(cl.div(z, m, name="y"))
    assert entry_of(plan, "y").after == (names(plan).index("n"),)


def test_a_reader_of_a_state_inside_comes_before_the_update_of_the_state():
    x, t = vector(), state()
    t1 = cl.update(t, cl.sum(x, name="total"), name="t1")
    plan = planned(t1, cl.mul(x, cl.add(t, 1.0, name="m"), name="y"))
    assert names(plan) == ["total", "y", "t1"]
    assert entry_of(plan, "t1").after == (0, 1)


def test_where_a_reader_comes_after_the_update_the_value_of_before_is_stored():
    x, t = vector(), state()
    m = cl.add(t, 1.0, name="m")
    more = cl.mul(m, 2.0, name="more")
    t1 = cl.update(t, cl.sum(x, name="total"), name="t1")
    plan = planned(cl.mul(x, more * t1, name="y"))
    assert names(plan) == ["m", "total", "t1", "y"]
    assert entry_of(plan, "y").ops == ("more", "mul_1", "y")


def test_of_two_readers_that_would_wait_for_each_others_update_one_finds_the_old_value_stored():
    x, s, t = vector(), state("s"), state("t")
    of_s, of_t = cl.add(s, 1.0, name="of_s"), cl.add(t, 1.0, name="of_t")
    s1, t1 = cl.update(s, cl.sum(x, name="total"), name="s1"), cl.update(t, cl.max(x, name="top"), name="t1")
    plan = planned(cl.mul(x, of_s * t1, name="a"), cl.mul(x, of_t * s1, name="b"))
    assert len({"of_s", "of_t"} & set(names(plan))) == 1
    assert {"mul_1", "mul_2"}.isdisjoint(names(plan))


def test_a_group_that_updates_the_state_does_not_compute_the_value_of_before_inside():
    x, t = vector(), state()
    m = cl.add(t, 1.0, name="m")
    y = cl.mul(x, m, name="y")
    t1 = cl.update(t, cl.mul(t, 2.0, name="twice"), name="t1")
    program = cl.program("p", outputs=[cl.div(y, cl.norm(y, name="n"), name="z"), t1, x / m], ranks=2)
    program = program.edit(fusions=(Fusion("fused", ("y", "n", "z", "twice", "t1"), True),))
    plan = check_plan(program)
    assert "m" in names(plan)
    assert "fused" in names(plan)


def test_a_kernel_does_not_write_its_result_into_a_state_that_others_still_read_inside():
    x, t = vector(), state()
    m = cl.add(t, 1.0, name="m")
    v = cl.mul(cl.sum(x, name="total"), 3.0, name="v")
    first, last = cl.mul(x, m, name="first"), cl.sub(x, m, name="last")
    plan = planned(first, cl.update(t, v, name="t1"), last)
    assert names(plan).index("last") < names(plan).index("t1")


def test_an_overlapped_kernel_computes_it_in_every_chunk_after_its_reduction():
    x, w = cl.tensor("x", FP32, (8, 4), Replicated), cl.tensor("w", FP32, (4, 8), Sliced(1))
    m = cl.maximum(cl.norm(x, name="n"), 1.0, name="m")
    out = cl.div(cl.matmul(x, w, name="layer"), m, name="out")
    program = cl.Schedule(cl.program("p", outputs=[out], ranks=2)).overlap("layer", "out").program
    plan = check_plan(program)
    chunks = [entry for entry in plan.entries if entry.name == "out"]
    assert len(chunks) == 4
    assert all(entry.stream == 1 and entry.inside == ("m",) for entry in chunks)
    assert all(names(plan).index("n") in entry.after for entry in chunks)


@pytest.mark.parametrize("hosts", [1, 2])
def test_ranks_on_several_hosts_compute_them_inside_what_runs_on_each(hosts):
    x = vector(shape=(10,))
    m = cl.maximum(cl.norm(x, name="n"), 1.0, name="m")
    g = cl.reduce_scatter(vector("g", Local, (10,)), name="part")
    whole = cl.all_gather(cl.div(g, m, name="y"), name="whole")
    program = cl.program("p", outputs=[whole, cl.mul(x, m, name="z")], ranks=4)
    for scheduled in (program, cl.Schedule(program).fuse("part", "whole").program):
        plan = check_plan(scheduled, hosts=hosts)
        takers = {e.name for e in plan.entries if isinstance(e, Launch) and "m" in e.inside}
        assert takers == ({"fused", "z"} if scheduled.fusions else {"y", "z"})
        assert "m" not in plan.slots


# -- what is said of them --------------------------------------------------------------------------------------------


def test_the_plan_and_the_kernel_say_what_is_computed_inside():
    x = vector()
    m = cl.maximum(cl.norm(x, name="n"), 1.0, name="m")
    plan = planned(cl.div(x, cl.sqrt(m, name="root"), name="y"))
    y = entry_of(plan, "y")
    assert (y.ops, y.inside) == (("m", "root", "y"), ("m", "root"))
    assert "Launch  y with m, root  " in plan_text(plan)
    assert "= Sqrt(r" in kernel_text(y.kernel)
    assert "# root" in kernel_text(y.kernel)


def test_it_costs_its_operation_once_a_kernel_and_the_bytes_of_what_it_is_made_from():
    x = vector(layout=Replicated, shape=(1000,))
    n = cl.norm(x, name="n")
    plain, inside = (entry_of(planned(cl.div(x, value, name="y")), "y") for value in (n, cl.sqrt(n + 1.0)))
    assert inside.flops == plain.flops + 2
    assert (inside.bytes_read, inside.bytes_written) == (plain.bytes_read, plain.bytes_written)
