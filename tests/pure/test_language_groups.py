"""Ranks, groups and blocks (design §4a, 5-9)."""

from __future__ import annotations

import numpy as np
import pytest

import coconet_lab as cl
from coconet_lab.ir.oracle import run
from coconet_lab.ir.types import block_range


def vector(name="x", layout=cl.Replicated, n=8, **more):
    return cl.tensor(name, cl.FP32, (n,), layout, **more)


def test_layouts_and_blocks_mean_the_ranks_of_a_group():
    p = cl.program("p", outputs=[cl.add(vector(layout=cl.Sliced(0)), 1, name="y")], ranks=8, groups=2)
    assert p.group_ranks == 4
    assert p["y"].local_shape == (2,)
    assert sorted(k for k in range(8) if "y" in run(p).on_rank(k)) == [0, 1, 2, 3]


@pytest.mark.parametrize(("ranks", "groups"), [(5, 2), (0, 1), (4, 0), (2, 4)])
def test_groups_have_the_same_whole_number_of_ranks(ranks, groups):
    with pytest.raises(cl.ProgramError, match=r"groups|number of ranks"):
        cl.program("p", outputs=[vector() + 1], ranks=ranks, groups=groups)


def test_operands_of_two_groups_are_refused_with_the_send_to_write():
    with pytest.raises(cl.LayoutError, match="of group 0 and 'y' of group 1") as caught:
        vector() + vector("y", group=1)
    assert caught.value.hint == "send(x, to=cl.GROUP + 1)"


def test_scalars_are_in_every_group():
    lr = cl.scalar("lr", cl.FP32)
    p = cl.program("p", outputs=[vector() * lr, vector("y", group=1) * lr], ranks=4, groups=2)
    assert run(p, {"x": np.ones(8, np.float32), "y": np.ones(8, np.float32), "lr": 3})["mul_2"].tolist() == [3] * 8


def test_a_send_keeps_dtype_shape_and_layout():
    sent = cl.send(vector(layout=cl.Sliced(0)), to=cl.GROUP + 1)
    assert (sent.dtype, sent.shape, sent.layout, sent.type.group) == (cl.FP32, (8,), cl.Sliced(0), 1)


@pytest.mark.parametrize("to", [cl.GROUP, cl.GROUP - 1, 1, None], ids=str)
def test_a_send_goes_to_another_group_that_exists(to):
    with pytest.raises((cl.ProgramError, cl.LayoutError), match="cannot send"):
        cl.send(vector(), to=to)


def test_a_group_that_does_not_exist_is_refused():
    with pytest.raises(cl.ProgramError, match="lives in group 1, but the program has 1"):
        cl.program("p", outputs=[cl.send(vector(), to=cl.GROUP + 1)], ranks=4)
    with pytest.raises(cl.ProgramError, match="lives in group 2, but the program has 2"):
        cl.program("p", outputs=[vector(group=2) + 1], ranks=4, groups=2)


def test_with_ranks_checks_again_and_keeps_the_program():
    x = cl.tensor("x", cl.FP32, (8, 6), cl.Sliced(0))
    p = cl.program("p", outputs=[cl.mul(x, 1 / cl.GROUP.size, name="y")], ranks=4)
    assert p.with_ranks(2)["y"].local_shape == (4, 6)
    assert run(p.with_ranks(8, 4), {"x": np.ones((8, 6), np.float32)})["y"][0, 0] == 0.5
    with pytest.raises(cl.LayoutError, match="8 elements for 3 ranks"):
        p.with_ranks(3)
    assert p.ranks == 4


@pytest.mark.parametrize(("n", "ranks"), [(10, 4), (5, 4), (3, 4), (0, 4), (8, 1), (7, 3)])
def test_block_k_is_the_kth_ceil_sized_range(n, ranks):
    c = -(-n // ranks)
    blocks = [block_range(n, k, ranks) for k in range(ranks)]
    assert blocks == [(min(k * c, n), min((k + 1) * c, n)) for k in range(ranks)]
    assert [i for start, stop in blocks for i in range(start, stop)] == list(range(n))


@pytest.mark.parametrize("n", [0, 1, 3, 5, 8, 13])
def test_padding_is_never_part_of_a_value_or_a_reduction(n):
    """The original neither padded buffers nor tested bounds: uneven sizes read past the end."""
    part = cl.reduce_scatter(vector("g", cl.Local, n), name="part")
    outs = [cl.all_gather(part + 1, name="out"), cl.sum(part + 1, name="sum"), cl.norm(part, name="norm")]
    p = cl.program("p", outputs=outs, ranks=4)
    ran = run(p, {"g": np.ones((4, n), np.float32)})
    assert ran["out"].tolist() == [5.0] * n
    assert ran["sum"] == 5 * n
    assert np.isclose(ran["norm"], 4 * np.sqrt(n))


def test_a_dim_of_an_nd_value_divides_or_is_refused_with_the_padding():
    x = cl.tensor("x", cl.FP32, (6, 8), cl.Replicated)
    with pytest.raises(cl.LayoutError, match="6 elements for 4 ranks") as caught:
        cl.program("p", outputs=[cl.local_slice(x, 0)], ranks=4)
    assert "slice dim 1 instead, or pad dim 0 to 8" in caught.value.hint
    assert cl.program("p", outputs=[cl.local_slice(x, 1, name="y")], ranks=4)["y"].local_shape == (6, 2)


def test_a_local_slice_is_this_ranks_block():
    ran = run(cl.program("p", outputs=[cl.local_slice(vector(), 0, name="y")], ranks=4))
    assert all((ran.on_rank(k)["y"] == ran["x"][2 * k : 2 * k + 2]).all() for k in range(4))


def test_sliced_0_of_a_vector_joins_sliced_2_of_a_cube():
    cube = cl.tensor("cube", cl.FP32, (2, 3, 8), cl.Sliced(2))
    assert (cube + vector(layout=cl.Sliced(0))).layout == cl.Sliced(2)
    with pytest.raises(cl.LayoutError):
        cl.tensor("cube", cl.FP32, (8, 3, 8), cl.Sliced(0)) + vector(layout=cl.Sliced(0))


def lists(name="w", layout=cl.Sliced(0), shapes=((2, 3), (5,)), **more):
    return cl.tensor(name, cl.FP32, shapes, layout, **more)


def test_a_list_of_shapes_is_one_flat_value_with_borders():
    w = lists()
    assert w.shape == (11,)
    assert (w + lists("u")).type.is_list
    assert cl.norm(w).shape == (2,)
    assert (w * cl.norm(w)).shape == (11,)
    assert cl.reduce_scatter(lists(layout=cl.Local)).layout == cl.Sliced(0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: lists() + lists("u", shapes=((5,), (2, 3))),
        lambda: lists() + vector(layout=cl.Sliced(0), n=11),
        lambda: lists() + lists("u", bucket=2),
        lambda: lists(layout=cl.Sliced(1)),
        lambda: cl.reduce_scatter(lists(layout=cl.Local), dim=1),
        lambda: cl.matmul(lists(), lists("u")),
    ],
)
def test_lists_meet_equal_lists_only_and_are_sliced_along_their_one_dim(make):
    with pytest.raises(cl.CoconetError):
        make()


def test_lists_are_cut_at_bucket_borders_that_no_tensor_shares():
    w = lists(shapes=((5,), (9,)), bucket=4)
    p = cl.program("p", outputs=[cl.add(w, 1, name="y")], ranks=2)
    # Buckets 4 1 | 4 4 1: three for rank 0, two for rank 1.
    assert [p.types["y"].local_shape(k, 2) for k in range(2)] == [(9,), (5,)]
