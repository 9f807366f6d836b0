"""Every kind of operation, dtype and layout, lowered and run rank by rank in NumPy against the oracle."""

from __future__ import annotations

import itertools

import pytest
from plan_checks import check_plan

import coconet_lab as cl
from coconet_lab import BF16, FP16, FP32, FP64, INT32, INT64, Local, Replicated, Sliced
from coconet_lab.ir.ops import FLOAT_ONLY, POINTWISE
from coconet_lab.kernels.plan import Arrive, Collective, HostScalars, Launch, Library, Transfer
from coconet_lab.lang.value import pointwise

DTYPES = [FP16, BF16, FP32, FP64, INT32, INT64]
FLOATS = DTYPES[:4]


def kinds(plan):
    return [type(entry) for entry in plan.entries]


DEFINED = [(fn, dtype) for fn in POINTWISE for dtype in (FLOATS if fn in FLOAT_ONLY else DTYPES)]


@pytest.mark.parametrize(("fn", "dtype"), DEFINED, ids=repr)
def test_every_elementwise_function_runs_on_every_dtype_and_layout(fn, dtype):
    outputs = []
    for at, layout in enumerate((Local, Replicated, Sliced(0))):
        x = cl.tensor(f"x{at}", dtype, (7,), layout, low=1, high=3)
        y = cl.tensor(f"y{at}", dtype, (7,), Replicated, low=1, high=3)
        operands = (x, y, 2)[: POINTWISE[fn]]
        if fn == "Where":
            operands = (x > y, x, 2)
        outputs.append(pointwise(fn, *operands, name=f"z{at}"))
    plan = check_plan(cl.program("p", outputs=outputs, ranks=4))
    assert set(kinds(plan)) == {Launch}


@pytest.mark.parametrize("target", DTYPES, ids=repr)
@pytest.mark.parametrize("source", DTYPES, ids=repr)
def test_every_cast_runs(source, target):
    most = 60_000 if source == FP16 else 70_000  # of what FP16 holds, or more than it does
    x = cl.tensor("x", source, (2, 9), Sliced(0), low=-most, high=most)
    check_plan(cl.program("p", outputs=[cl.cast(x, target)], ranks=2))


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
@pytest.mark.parametrize(
    ("shape", "layout"), [((9,), Sliced(0)), ((4, 5), Sliced(0)), ((3, 4), Sliced(1)), ((), Local)]
)
def test_dropout_draws_the_mask_of_global_indices(shape, layout, dtype):
    x = cl.tensor("x", dtype, shape, layout)
    program = cl.program("p", outputs=[cl.dropout(x, 0.5)], ranks=4)
    check_plan(program, {"x": cl.random_inputs(program)["x"], "seed": 5})


def scaled(x, y, ranges):
    return (x * y).astype(x.dtype)


def test_a_custom_operator_with_an_expression_is_a_kernel_and_one_without_a_library_call():
    clamp = cl.operator("clamp", meaning=lambda x, ranges: x.clip(0, 1), expression="min(max({0}, 0), 1)")
    scale = cl.operator("scale", meaning=scaled)
    x, lr = cl.tensor("x", FP32, (8, 3), Sliced(0)), cl.scalar("lr", FP32, low=0, high=1)
    row = cl.tensor("row", FP32, (8, 3), Replicated)
    plan = check_plan(cl.program("p", outputs=[scale(clamp(x), lr), scale(clamp(x), row)], ranks=2))
    assert kinds(plan).count(Library) == 2


@pytest.mark.parametrize("dtype", DTYPES, ids=repr)
@pytest.mark.parametrize("layout", [Local, Replicated, Sliced(0), Sliced(1)], ids=repr)
@pytest.mark.parametrize("dims", [None, 0, 1, 2])
def test_every_reduction_runs_over_every_dim(dims, layout, dtype):
    x = cl.tensor("x", dtype, (4, 4, 3), layout)
    makers = [cl.sum, cl.max, cl.min] + ([cl.mean, cl.norm] if dtype.is_float else [])
    outputs = [make(x, dim=dims, name=f"r{at}") for at, make in enumerate(makers)]
    plan = check_plan(cl.program("p", outputs=outputs, ranks=4))
    crosses = layout.is_sliced and dims in (None, layout.dim)
    assert all(a.crosses == crosses for kernel in plan.kernels() for a in kernel.accumulators)


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("layout", [Local, Replicated, Sliced(0)], ids=repr)
@pytest.mark.parametrize("elements", [1, 3, 8])
def test_reductions_of_few_elements_reach_ranks_with_empty_blocks(elements, layout, ranks):
    x = cl.tensor("x", FP32, (elements,), layout)
    outputs = [cl.sum(x, name="a"), cl.max(x, dim=0, name="b"), x - cl.mean(x, name="c")]
    check_plan(cl.program("p", outputs=outputs, ranks=ranks))


@pytest.mark.parametrize("layout", [Local, Replicated, Sliced(0)], ids=repr)
def test_a_list_has_one_result_a_tensor_even_where_a_tensor_is_empty_or_on_another_rank(layout):
    x = cl.tensor("x", FP32, [(3, 2), (0,), (1500,), (1,)], layout, bucket=64)
    n = cl.norm(x, name="n")
    outputs = [n, cl.mul(x, n, name="y"), cl.div(1.0, n + 1, name="inverse")]
    check_plan(cl.program("p", outputs=outputs, ranks=4))


@pytest.mark.parametrize("dtype", DTYPES, ids=repr)
@pytest.mark.parametrize("reduction", ["+", "max", "min"])
def test_every_reducing_collective_runs_on_every_dtype(reduction, dtype):
    x = cl.tensor("x", dtype, (4, 4), Local)
    outputs = [cl.all_reduce(x, reduction, name="a"), cl.reduce(x, root=1, reduction=reduction, name="r")]
    outputs += [cl.reduce_scatter(x, dim=d, reduction=reduction, name=f"s{d}") for d in (0, 1)]
    program = cl.program("p", outputs=outputs, ranks=4)
    plan = check_plan(program)
    assert kinds(plan).count(Collective) == 3
    assert kinds(plan).count(Launch) == 1, "blocks of dim 1 are not contiguous"


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_gathers_broadcasts_and_all_to_alls_run(ranks):
    xs = [cl.tensor(f"x{d}", FP32, (4, 4, 4), Sliced(d)) for d in range(3)]
    local = cl.tensor("local", FP16, (3,), Local)
    outputs = [cl.all_gather(x, name=f"g{d}") for d, x in enumerate(xs)]
    for split, concat in itertools.permutations(range(3), 2):
        outputs.append(cl.all_to_all(xs[concat], split=split, concat=concat, name=f"t{split}{concat}"))
    outputs.append(cl.broadcast(local, root=ranks - 1, name="b"))
    check_plan(cl.program("p", outputs=outputs, ranks=ranks))


def test_an_all_to_all_of_contiguous_blocks_is_the_librarys():
    x = cl.tensor("x", FP32, (4, 8), Sliced(0))
    plan = check_plan(cl.program("p", outputs=[cl.all_to_all(x, split=1, concat=0)], ranks=4))
    assert kinds(plan) == [Collective]


@pytest.mark.parametrize("elements", [1, 3, 10, 16])
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_uneven_and_empty_blocks_of_one_dimension_run(elements, ranks):
    x = cl.tensor("x", FP16, (elements,), Local)
    part = cl.reduce_scatter(x, name="part")
    outputs = [part, cl.all_gather(part * 2, name="whole")]
    check_plan(cl.program("p", outputs=outputs, ranks=ranks))


def test_lists_are_reduced_by_the_library_and_scattered_and_gathered_by_our_kernels():
    x = cl.tensor("x", FP16, [(3, 4), (2000,), (5,)], Local, bucket=100)
    part = cl.reduce_scatter(x, name="part")
    program = cl.program("p", outputs=[cl.all_reduce(x, name="a"), cl.all_gather(part, name="g")], ranks=4)
    assert sorted(kind.__name__ for kind in kinds(check_plan(program))) == ["Collective", "Launch", "Launch"]


MATMULS = [
    (Sliced(2), Sliced(0)), (Replicated, Sliced(1)), (Sliced(0), Replicated), (Sliced(1), Replicated),
    (Replicated, Replicated), (Local, Replicated), (Local, Local), (Replicated, Local),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [FP16, FP64, INT32], ids=repr)
@pytest.mark.parametrize(("a", "b"), MATMULS, ids=repr)
def test_every_layout_of_a_matmul_runs(a, b, dtype):
    x, w = cl.tensor("x", dtype, (2, 4, 6), a), cl.tensor("w", dtype, (6, 8), b)
    assert kinds(check_plan(cl.program("p", outputs=[cl.matmul(x, w)], ranks=2))) == [Library]


CONVOLUTIONS = [(Sliced(1), Sliced(1)), (Replicated, Sliced(0)), (Sliced(0), Replicated), (Local, Replicated)]


@pytest.mark.parametrize(("a", "b"), CONVOLUTIONS, ids=repr)
def test_every_layout_of_a_convolution_runs(a, b):
    x, w = cl.tensor("x", FP32, (2, 4, 5, 6), a), cl.tensor("w", FP32, (4, 4, 3, 2), b)
    check_plan(cl.program("p", outputs=[cl.conv(x, w, stride=(1, 2), padding=1)], ranks=2))


def test_a_matmul_reads_a_local_slice_where_it_lies():
    x, w = cl.tensor("x", FP32, (4, 6), Sliced(1)), cl.tensor("w", FP32, (6, 8), Replicated)
    plan = check_plan(cl.program("p", outputs=[cl.matmul(x, cl.local_slice(w, 0))], ranks=2))
    assert kinds(plan) == [Library]
    assert plan.entries[0].operands[1].type.layout == Sliced(0)
    assert plan.buffers[plan.entries[0].operands[1].buffer].placement == "whole"


# -- sends -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [Local, Replicated, Sliced(0)], ids=repr)
@pytest.mark.parametrize("shape", [(5,), [(3,), (40,)]])
def test_a_send_is_a_transfer_rank_by_rank(shape, layout):
    x = cl.tensor("x", FP16, shape, layout, bucket=8)
    there = cl.send(x * 2, to=cl.GROUP + 1, name="there")
    back = cl.send(there + 1, to=cl.GROUP - 1, name="back")
    program = cl.program("p", outputs=[back, there], ranks=6, groups=2)
    assert kinds(check_plan(program)).count(Transfer) == 2


def test_blocks_that_are_not_contiguous_are_sent_by_a_kernel():
    x = cl.tensor("x", FP16, (4, 6), Replicated)
    sent = cl.send(cl.local_slice(x, 1), to=cl.GROUP + 1)
    assert kinds(check_plan(cl.program("p", outputs=[sent], ranks=4, groups=2))) == [Launch, Arrive]


def test_three_groups_and_a_scalar_that_all_of_them_have():
    lr = cl.scalar("lr", FP32, low=0, high=1)
    x = cl.tensor("x", FP32, (4,), Local)
    one = cl.send(cl.all_reduce(x) * lr, to=cl.GROUP + 1)
    two = cl.send(one * lr, to=cl.GROUP + 1)
    mean = cl.send(cl.mean(x), to=cl.GROUP + 2)
    program = cl.program("p", outputs=[two + 1 / (1 - lr), mean, lr * 2], ranks=6, groups=3)
    assert kinds(check_plan(program))[0] is HostScalars


# -- updates ---------------------------------------------------------------------------------------------------------


def test_the_kernel_that_computes_an_update_writes_straight_into_the_tensor():
    w, x = cl.tensor("w", FP32, (9,), Replicated), cl.tensor("x", FP32, (9,), Replicated)
    plan = check_plan(cl.program("p", outputs=[cl.update(w, w * 2 + x)], ranks=2))
    assert [entry.name for entry in plan.entries] == ["mul_1", "add_1"]
    assert plan.entries[-1].writes == (plan.inputs["w"].buffer,)


def test_a_value_with_another_reader_or_a_tensor_read_later_is_copied_into_the_tensor():
    w, x = cl.tensor("w", FP32, (9,), Replicated), cl.tensor("x", FP32, (9,), Replicated)
    v = cl.add(w, x, name="v")
    program = cl.program("p", outputs=[cl.update(w, v, name="w1"), v * 3, cl.abs(w)], ranks=2)
    plan = check_plan(program)
    assert "w1" in [entry.name for entry in plan.entries]


@pytest.mark.parametrize("dim", [0, 1])
def test_a_sliced_update_is_gathered_in_place(dim):
    w, g = cl.tensor("w", FP32, (4, 4), Replicated), cl.tensor("g", FP32, (4, 4), Local)
    part = cl.update(w, cl.reduce_scatter(g, dim=dim) + w, name="part")
    whole = cl.all_gather(part, name="whole")
    again = cl.update(whole, whole * 2, name="again")
    plan = check_plan(cl.program("p", outputs=[again, part * 3], ranks=2))
    assert plan.state["w"].buffer == plan.inputs["w"].buffer
    # The old versions are overwritten by then: they are found nowhere.
    assert [name for name, slot in plan.slots.items() if slot.buffer == plan.inputs["w"].buffer] == ["again"]


def test_updates_by_inputs_matmuls_collectives_scalars_and_slices_run():
    w = [cl.tensor(f"w{i}", FP32, (4, 4), Replicated) for i in range(5)]
    x, g = cl.tensor("x", FP32, (4, 4), Replicated), cl.tensor("g", FP32, (4, 4), Local)
    step = cl.tensor("step", FP32, (), Replicated)
    outputs = [
        cl.update(w[0], x), cl.update(w[1], cl.matmul(x, x)), cl.update(w[2], cl.matmul(w[2], x)),
        cl.update(w[3], cl.all_reduce(g)), cl.all_gather(cl.update(w[4], cl.local_slice(x, 1))),
        cl.update(step, cl.sum(x), name="step1"),
    ]  # fmt: skip
    check_plan(cl.program("p", outputs=outputs, ranks=2))


def test_a_zero_dimensional_state_counts_in_memory():
    t, x = cl.tensor("t", FP32, (), Replicated), cl.tensor("x", FP32, (5,), Sliced(0))
    t1 = cl.update(t, t + 1, name="t1")
    check_plan(cl.program("p", outputs=[x / t1, t1], ranks=3))


def test_a_local_slice_of_a_tensor_that_is_updated_later_keeps_the_old_value():
    w, x = cl.tensor("w", FP32, (4,), Replicated), cl.tensor("x", FP32, (4,), Replicated)
    old = cl.local_slice(w, 0, name="old")
    new = cl.local_slice(cl.update(w, x + 1, name="w1"), 0, name="new")
    plan = check_plan(cl.program("p", outputs=[cl.sub(new, old), new], ranks=2))
    assert plan.slots["old"].buffer != plan.inputs["w"].buffer


# -- scalars ---------------------------------------------------------------------------------------------------------


def test_arithmetic_on_scalars_is_the_hosts_and_reaches_outputs_and_kernels():
    a, b = cl.scalar("a", FP32, low=1, high=2), cl.scalar("b", INT64, default=3)
    x = cl.tensor("x", FP32, (6,), Sliced(0))
    c = cl.sqrt(a) * cl.cast(b, FP32) / cl.GROUP.size
    program = cl.program("p", outputs=[cl.mul(x, c, name="y"), cl.add(c, 1, name="d"), b], ranks=4)
    plan = check_plan(program)
    assert kinds(plan)[0] is HostScalars
    assert plan.scalar_inputs == {"a": None, "b": 3}
    y = next(e for e in plan.entries if e.name == "y")
    assert len(y.reads) == 1
    assert y.scalars
