"""Inputs: the same draw on every rank and number of ranks, and every refusal in its words."""

from __future__ import annotations

import numpy as np
import pytest

import coconet_lab as cl
from coconet_lab.ir.inputs import check_inputs, input_block, proof_inputs, random_block, random_inputs
from coconet_lab.ir.oracle import run

BOUNDS = [(None, None), (0.0, None), (None, 0.5), (3.0, 3.5), (-0.1, 0.1)]


def make(dtype=cl.FP32, layout=cl.Replicated, ranks=4, **bounds):
    x = cl.tensor("x", dtype, (4, 6), layout, **bounds)
    lr = cl.scalar("lr", dtype, default=1)
    total = cl.all_reduce(x, name="t") if layout == cl.Local else x
    return cl.program("p", inputs=[x, lr], outputs=[cl.mul(total, lr, name="y")], ranks=ranks)


@pytest.mark.parametrize("dtype", [cl.FP16, cl.BF16, cl.FP32, cl.FP64])
@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_drawn_values_lie_between_the_bounds_and_are_accepted(dtype, low, high):
    p = make(dtype, low=low, high=high)
    x = random_inputs(p, 7)["x"].astype(float)
    slack = dtype.eps * 4
    assert x.min() >= (-1 if low is None else low) - slack
    assert x.max() <= (max(1, (low or 0) + 1) if high is None else high) + slack
    assert len(np.unique(x)) > 3
    check_inputs(p, random_inputs(p, 7))


@pytest.mark.parametrize("layout", [cl.Replicated, cl.Sliced(0), cl.Local])
def test_each_rank_makes_its_block_without_the_others(layout):
    p = make(layout=layout)
    whole = random_inputs(p, 3)["x"]
    op, kind = p.ops["x"], p.types["x"]
    for rank in range(4):
        ranges = kind.ranges(rank, 4)
        block = random_block(op, 3, ranges, rank)
        expected = whole[rank] if layout == cl.Local else whole[tuple(slice(*r) for r in ranges)]
        assert (block == expected).all()
    assert (input_block(p, check_inputs(p, {"x": whole}), "x", 2) == random_block(op, 3, kind.ranges(2, 4), 2)).all()


def test_local_ranks_and_seeds_and_names_draw_differently():
    p = make(layout=cl.Local)
    x = random_inputs(p, 0)["x"]
    assert (x[0] != x[1]).any()
    assert (x != random_inputs(p, 1)["x"]).any()


def test_proof_inputs_are_small_whole_numbers_within_the_bounds():
    p = make(low=0.0, high=9.0)
    x = proof_inputs(p, frozenset({"x"}))["x"]
    assert set(np.unique(x)) <= {0.0, 1.0, 2.0}
    p = make(low=0.25, high=0.75)
    assert proof_inputs(p, frozenset({"x"}))["x"].min() >= 0.25


def test_a_scalar_with_a_default_may_be_left_out_and_may_be_a_number():
    p = make()
    x = np.ones((4, 6), np.float32)
    assert run(p, {"x": x})["y"][0, 0] == 1
    assert run(p, {"x": x, "lr": 3})["y"][0, 0] == 3


def test_a_callable_makes_blocks_and_is_checked_like_an_array():
    p = make(layout=cl.Sliced(0))
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    quarter = np.zeros((1, 6), np.float32)
    seen = []

    def block(rank, ranges):
        seen.append(rank)
        return whole[tuple(slice(*r) for r in ranges)]

    assert (run(p, {"x": block})["y"] == whole).all()
    assert seen == [0, 1, 2, 3]
    run(p, {"x": lambda rank, ranges: quarter})
    quarter[0] = 1  # the user's own array is as writable as before
    with pytest.raises(cl.InputError, match=r"was given an array of shape \[2\]"):
        run(p, {"x": lambda rank, ranges: np.zeros(2, np.float32)})


def test_a_value_names_its_input_too():
    x = cl.tensor("x", cl.FP32, (2,), cl.Replicated)
    p = cl.program("p", outputs=[cl.add(x, 1, name="y")])
    assert run(p, {x: np.zeros(2, np.float32)})["y"].tolist() == [1, 1]


REFUSED = [
    ({"z": 1}, r"there is no input 'z'"),
    ({}, r"input 'x' .* has no value"),
    ({"x": np.zeros((6, 4), np.float32)}, r"was given an array of shape \[6, 4\]"),
    ({"x": np.zeros((4, 6))}, r"was given float64"),
    ({"x": np.full((4, 6), np.nan, np.float32)}, r"holds NaN"),
    ({"x": np.full((4, 6), 2, np.float32)}, r"holds 2"),
    ({"x": np.full((4, 6), -2, np.float32)}, r"holds -2"),
    ({"x": np.zeros((4, 6), np.float32), "lr": np.nan}, r"'lr' holds NaN"),
]


@pytest.mark.parametrize(("inputs", "words"), REFUSED)
def test_inputs_that_do_not_fit_are_refused_in_four_lines(inputs, words):
    p = make(low=-1.0, high=1.0)
    with pytest.raises(cl.InputError, match=words) as caught:
        run(p, inputs)
    assert all(line in str(caught.value) for line in ("rule:", "in:", "try:"))


def test_a_local_input_takes_a_leading_rank_axis():
    with pytest.raises(cl.InputError, match=r"with the ranks first: \[4, 4, 6\]"):
        run(make(layout=cl.Local), {"x": np.zeros((4, 6), np.float32)})


@pytest.mark.parametrize(("dtype", "value"), [(cl.FP16, 1e6), (cl.INT32, 2**40), (cl.INT64, 2**64), (cl.INT64, 0.5)])
def test_a_number_its_dtype_does_not_hold_is_refused(dtype, value):
    lr = cl.scalar("lr", dtype)
    p = cl.program("p", outputs=[cl.add(lr, 1, name="y")])
    with pytest.raises(cl.InputError, match="'lr'"):
        run(p, {"lr": value})
    assert run(p, {"lr": 3})["y"] == 4
