"""The layout rule of every operation (design §3), its refusals, and what the original accepted wrongly."""

from __future__ import annotations

import numpy as np
import pytest

import coconet_lab as cl
from coconet_lab.ir.inputs import random_inputs
from coconet_lab.ir.oracle import run

R, L, S0, S1, S2 = cl.Replicated, cl.Local, cl.Sliced(0), cl.Sliced(1), cl.Sliced(2)


def tensor(name, layout, shape=(8, 4), dtype=cl.FP32, **more):
    return cl.tensor(name, dtype, shape, layout, **more)


def result(make):
    """The layout of a value, or None where it is refused with all four lines."""
    try:
        return make().layout
    except cl.LayoutError as error:
        refused = error
    assert all((refused.found, refused.rule, refused.where, refused.hint))
    return None


ELEMENTWISE = {
    (R, R): R, (R, L): L, (R, S0): S0, (R, S1): S1, (L, L): L, (S0, S0): S0, (S1, S1): S1,
    (L, S0): None, (L, S1): None, (S0, S1): None,
}  # fmt: skip


@pytest.mark.parametrize(("layouts", "expected"), ELEMENTWISE.items(), ids=str)
def test_elementwise_operands_share_a_layout_or_one_is_replicated(layouts, expected):
    a, b = layouts
    assert result(lambda: tensor("a", a) + tensor("b", b)) == expected
    assert result(lambda: tensor("b", b) + tensor("a", a)) == expected
    assert result(lambda: cl.where(tensor("a", a) > 0, tensor("b", b), 1)) == expected


@pytest.mark.parametrize("layout", [R, L, S0, S1])
def test_a_scalar_takes_the_layout_of_what_it_meets(layout):
    """The original left a sliced or constant scalar without a layout, or made everything Replicated."""
    assert result(lambda: tensor("a", layout) * cl.scalar("lr", cl.FP32)) == layout
    assert result(lambda: tensor("a", layout) * 2) == layout
    assert result(lambda: cl.scalar("lr", cl.FP32) * cl.GROUP.size) == R


def test_a_sliced_dim_is_not_broadcast_and_a_replicated_one_may_be():
    assert result(lambda: tensor("a", S1, (8, 1)) + tensor("b", R, (8, 4))) is None
    assert result(lambda: tensor("a", S0, (8, 1)) + tensor("b", R, (8, 4))) == S0
    assert result(lambda: tensor("a", S0, (8, 4)) + tensor("b", R, (1, 4))) == S0


@pytest.mark.parametrize("shapes", [[(1,)], [(1,), (1,)], [(2,), (1,)]])
def test_blocks_of_numbers_of_tensors_do_not_meet_their_elements_even_where_there_are_as_many(shapes):
    g, w = cl.tensor("g", cl.FP32, shapes, cl.Local), cl.tensor("w", cl.FP32, shapes, cl.Replicated)
    part = cl.reduce_scatter(cl.sum(g), name="part")
    with pytest.raises(cl.LayoutError, match=r"cannot add .part. .*: its sliced dim would be broadcast to"):
        cl.add(w, part)
    assert cl.add(w, cl.all_gather(part)).layout == cl.Replicated


MATMUL = {
    (R, R): R, (R, S1): S2, (R, S0): None, (S2, S0): L, (S0, R): S0, (S1, R): S1, (S2, R): None,
    (S0, S0): None, (S0, S1): None, (S1, S0): None, (S1, S1): None, (S2, S1): None,
    (L, L): L, (L, R): L, (R, L): L, (L, S0): None, (S2, L): None,
}  # fmt: skip


@pytest.mark.parametrize(("layouts", "expected"), MATMUL.items(), ids=str)
def test_matmul_sums_what_the_ranks_hold_or_is_refused(layouts, expected):
    """The original took Sliced(0) @ Sliced(0), Local @ Sliced and others for partial sums, which they are not."""
    a, b = layouts
    assert result(lambda: cl.matmul(tensor("a", a, (4, 4, 8)), tensor("b", b, (8, 4)))) == expected


def test_matmul_shapes_agree_by_value_and_not_by_the_name_of_a_dim():
    """The original compared dims by identity: two variables both called N differed."""
    assert cl.matmul(tensor("a", R, (2, 8)), tensor("b", R, (8, 3))).shape == (2, 3)
    for a, b in (((2, 8), (4, 3)), ((8,), (8, 3)), ((2, 8), (8,)), ((2, 8), (1, 8, 3))):
        with pytest.raises(cl.LayoutError, match="cannot matmul"):
            cl.matmul(tensor("a", R, a), tensor("b", R, b))


CONV = {
    (R, R): R, (S1, S1): L, (S0, R): S0, (R, S0): S1, (L, R): L, (S1, R): None, (R, S1): None, (S0, S0): None,
    (S1, S0): None, (S2, R): None,
}  # fmt: skip


@pytest.mark.parametrize(("layouts", "expected"), CONV.items(), ids=str)
def test_conv_is_sliced_by_channels_or_batch(layouts, expected):
    x, w = layouts
    assert result(lambda: cl.conv(tensor("x", x, (4, 4, 8)), tensor("w", w, (4, 4, 3)))) == expected


def test_conv_shapes_strides_and_paddings_are_checked():
    x, w = tensor("x", R, (2, 4, 8)), tensor("w", R, (3, 4, 3))
    assert cl.conv(x, w, stride=2, padding=1).shape == (2, 3, 4)
    for wrong in (
        lambda: cl.conv(x, tensor("w", R, (3, 5, 3))),
        lambda: cl.conv(x, w, stride=0),
        lambda: cl.conv(x, w, padding=(1, 1)),
        lambda: cl.conv(x, tensor("w", R, (3, 4, 9))),
    ):
        with pytest.raises(cl.LayoutError):
            wrong()


COLLECTIVES = [
    ("all_reduce", cl.all_reduce, {L: R}),
    ("reduce_scatter", lambda x: cl.reduce_scatter(x, dim=1), {L: S1}),
    ("all_gather", cl.all_gather, {S0: R, S1: R}),
    ("reduce", cl.reduce, {L: L}),
    ("broadcast", cl.broadcast, {L: R}),
    ("local_slice", lambda x: cl.local_slice(x, dim=1), {R: S1}),
    ("all_to_all", lambda x: cl.all_to_all(x, split=1, concat=0), {S0: S1}),
]


@pytest.mark.parametrize(("name", "make", "allowed"), COLLECTIVES, ids=[c[0] for c in COLLECTIVES])
@pytest.mark.parametrize("layout", [R, L, S0, S1], ids=str)
def test_collectives_take_the_layout_they_are_for_and_refuse_the_others(name, make, allowed, layout):
    """The original all-reduced Replicated values, scattered anything, and could not gather a column slice."""
    assert result(lambda: make(tensor("x", layout))) == allowed.get(layout)


def test_an_all_reduce_of_a_replicated_value_says_what_it_would_do():
    with pytest.raises(cl.LayoutError, match="would multiply a Replicated one by the group size"):
        cl.all_reduce(tensor("x", R))


def test_collectives_name_wrong_dims_roots_and_reductions():
    x = tensor("x", L)
    for wrong in (
        lambda: cl.reduce_scatter(x, dim=2),
        lambda: cl.reduce_scatter(x, dim=-1),
        lambda: cl.all_reduce(x, "product"),
        lambda: cl.reduce(x, root=-1),
        lambda: cl.all_to_all(tensor("s", S0), split=0, concat=0),
        lambda: cl.local_slice(tensor("r", R), dim=2),
    ):
        with pytest.raises(cl.LayoutError):
            wrong()
    with pytest.raises(cl.LayoutError, match="0 to 3, not 4"):
        cl.program("p", outputs=[cl.reduce(x, root=4)], ranks=4)


REDUCED = {
    (R, None): R, (S0, None): R, (L, None): L, (S0, 0): R, (S0, 1): S0, (S1, 1): R, (S1, 0): S1, (L, 0): L, (R, 0): R,
}  # fmt: skip


@pytest.mark.parametrize(("case", "expected"), REDUCED.items(), ids=str)
@pytest.mark.parametrize("fn", ["sum", "mean", "max", "min", "norm"])
def test_a_reduction_of_a_sliced_dim_is_replicated_and_others_keep_the_layout(fn, case, expected):
    """The original kept a sliced norm sliced, so that each rank had the norm of its block."""
    layout, dim = case
    value = getattr(cl, fn)(tensor("x", layout), dim)
    assert value.layout == expected
    assert value.shape == (() if dim is None else (1, 4) if dim == 0 else (8, 1))


def test_a_reduction_names_a_dim_that_is_none():
    with pytest.raises(cl.LayoutError, match="cannot reduce dim 2"):
        cl.sum(tensor("x", R), dim=2)
    assert cl.sum(tensor("x", R), dim=-1).shape == (8, 1)


@pytest.mark.parametrize("layout", [S0, S1])
def test_a_replicated_operand_is_read_at_the_block_on_every_rank(layout):
    """In the original every rank read the block of rank 0."""
    p = cl.program("p", outputs=[cl.add(tensor("s", layout), tensor("r", R), name="out")], ranks=4)
    given = random_inputs(p)
    assert (run(p, given)["out"] == given["s"] + given["r"]).all()


def test_a_bias_with_fewer_dims_aligns_at_the_last():
    """The original read past the bias's dims: right only by luck."""
    p = cl.program("p", outputs=[cl.add(tensor("x", S0, (4, 3, 8)), tensor("b", R, (8,)), name="out")], ranks=2)
    given = random_inputs(p)
    assert (run(p, given)["out"] == given["x"] + given["b"]).all()


def test_an_extent_of_1_broadcasts_and_others_must_be_equal():
    """The original took no extent of 1 of a real tensor."""
    assert (tensor("a", R, (8, 1)) + tensor("b", R, (1, 4))).shape == (8, 4)
    with pytest.raises(cl.LayoutError, match="dim -1 is 4 and 3"):
        tensor("a", R, (8, 4)) + tensor("b", R, (3,))


@pytest.mark.parametrize("make", [cl.sqrt, cl.copy, lambda w: cl.cast(w, cl.FP32), lambda w: cl.where(w > 0, w, w)])
def test_every_unary_operation_keeps_its_shape_and_may_be_an_updates_value(make):
    """The original left their dims empty, so that an update with one failed."""
    w = tensor("w", R)
    p = cl.program("p", outputs=[cl.update(w, make(w), name="w1")], ranks=2)
    assert p["w1"].shape == (8, 4)
    assert run(p).state["w"].shape == (8, 4)


def test_where_checks_shapes_and_layouts():
    """In the original these checks were compiled out."""
    with pytest.raises(cl.LayoutError):
        cl.where(tensor("c", R) > 0, tensor("a", S0), tensor("b", L))
    with pytest.raises(cl.LayoutError):
        cl.where(tensor("c", R, (3, 3)) > 0, tensor("a", R), tensor("b", R))
    with pytest.raises(cl.LayoutError, match="a condition is INT32"):
        cl.where(tensor("c", R), 1, 2)


def test_a_column_slice_can_be_gathered():
    """The original could gather only the first dim, so a column-parallel product stayed in pieces."""
    y = cl.matmul(tensor("x", R, (4, 8)), tensor("w", S1, (8, 12)))
    p = cl.program("p", outputs=[cl.all_gather(y, name="y")], ranks=4)
    given = random_inputs(p)
    assert np.allclose(run(p, given)["y"], given["x"] @ given["w"], atol=1e-5)


def test_checks_are_errors_of_the_users_line_and_not_assertions():
    """The original printed the condition and ended the process; without its debug build it checked nothing."""
    with pytest.raises(cl.LayoutError) as caught:
        tensor("a", L) + tensor("b", S0)
    assert "test_language_layouts.py" in caught.value.where
    assert str(caught.value).splitlines()[0] == "cannot add 'a' (FP32[8, 4] Local) and 'b' (FP32[8, 4] Sliced(0))"
    assert caught.value.hint == "reduce_scatter(a, dim=0)"
