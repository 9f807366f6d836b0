"""What programs mean: values on all ranks, rounding, collectives, groups (design §4a)."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import coconet_lab as cl
from coconet_lab.ir.oracle import run
from coconet_lab.ir.rng import dropout_keep
from coconet_lab.ir.rounding import cast, mismatch, poison, rounded


def f32(*values):
    return np.array(values, np.float32)


def program(*outputs, ranks=4, groups=1):
    return cl.program("p", outputs=list(outputs), ranks=ranks, groups=groups)


def test_a_self_attention_epilogue_has_numpys_values_on_every_rank():
    B, S, H = 8, 4, 12
    x = cl.tensor("x", cl.FP32, (B, S, H), cl.Sliced(2))
    w = cl.tensor("w", cl.FP32, (H, H), cl.Sliced(0))
    b = cl.tensor("b", cl.FP32, (H,), cl.Replicated)
    total = cl.all_reduce(cl.matmul(x, w, name="layer"), name="total")
    out = cl.add(total, b, name="out")
    rng = np.random.default_rng(0)
    given = {
        "x": rng.integers(-3, 4, (B, S, H)).astype(np.float32),
        "w": rng.integers(-3, 4, (H, H)).astype(np.float32),
        "b": rng.integers(-3, 4, (H,)).astype(np.float32),
    }
    ran = run(program(out), given)
    assert (ran.output("out") == given["x"] @ given["w"] + given["b"]).all()
    for rank in range(4):
        assert (ran.on_rank(rank)["out"] == ran["out"]).all()
        part = given["x"][..., 3 * rank : 3 * rank + 3] @ given["w"][3 * rank : 3 * rank + 3]
        assert (ran.on_rank(rank)["layer"] == part).all()


def test_adam_has_the_values_of_a_plain_numpy_adam():
    """The original ran with every hyper-parameter 1.0, so 1 - beta was 0 and most of Adam did nothing."""
    n = 10
    g = cl.tensor("g", cl.FP32, (n,), cl.Local)
    m, v, p = (cl.tensor(name, cl.FP32, (n,), cl.Replicated) for name in "mvp")
    lr, b1, b2 = (cl.scalar(name, cl.FP32) for name in ("lr", "b1", "b2"))
    G = cl.all_reduce(g, name="total") / cl.GROUP.size
    m1 = cl.update(m, b1 * m + (1 - b1) * G, name="m1")
    v1 = cl.update(v, b2 * v + (1 - b2) * G * G, name="v1")
    p1 = cl.update(p, p - lr * m1 / (cl.sqrt(v1) + 1e-6), name="p1")
    rng = np.random.default_rng(1)
    given = {
        "g": rng.normal(size=(4, n)).astype(np.float32),
        "m": f32(*rng.normal(size=n)),
        "p": f32(*rng.normal(size=n)),
    }
    given |= {"v": f32(*rng.random(n)), "lr": 0.1, "b1": 0.9, "b2": 0.99}
    ran = run(program(p1), given)
    mean = given["g"].astype(float).mean(0)
    m_new, v_new = 0.9 * given["m"] + 0.1 * mean, 0.99 * given["v"] + 0.01 * mean**2
    p_new = given["p"] - 0.1 * m_new / (np.sqrt(v_new) + 1e-6)
    assert np.allclose(ran.state["m"], m_new, rtol=1e-5, atol=1e-6)
    assert np.allclose(ran.state["p"], p_new, rtol=1e-4, atol=1e-5)
    assert set(ran.state) == {"m", "v", "p"}
    assert (ran["p"] == given["p"]).all(), "the name of an input means its value before the update"


def test_blocks_of_an_uneven_value_are_ceil_sized_and_may_be_empty():
    g = cl.tensor("g", cl.FP32, (5,), cl.Local)
    ran = run(program(cl.reduce_scatter(g, name="part")), {"g": np.arange(20, dtype=np.float32).reshape(4, 5)})
    assert [ran.on_rank(k)["part"].shape for k in range(4)] == [(2,), (2,), (1,), (0,)]
    assert ran["part"].tolist() == np.arange(20).reshape(4, 5).sum(0).tolist()


def test_nothing_breaks_on_values_without_elements():
    g = cl.tensor("g", cl.FP32, (0, 4), cl.Local)
    out = cl.all_gather(cl.reduce_scatter(g, dim=1, name="rs") * 2, name="out")
    ran = run(program(out, cl.sum(out, name="s"), cl.max(out, name="m")))
    assert ran["out"].shape == (0, 4)
    assert ran["s"] == 0
    assert ran["m"] == -np.inf


def test_a_replicated_operand_is_read_at_the_block_or_whole_where_it_is_broadcast():
    g = cl.tensor("g", cl.FP32, (4, 6), cl.Sliced(0))
    whole = cl.tensor("whole", cl.FP32, (4, 6), cl.Replicated)
    column = cl.tensor("column", cl.FP32, (4, 1), cl.Replicated)
    row = cl.tensor("row", cl.FP32, (6,), cl.Replicated)
    p = program(cl.add(g + whole, column + row, name="out"), ranks=2)
    given = cl_inputs(p)
    assert mismatch(run(p, given)["out"], (given["g"] + given["whole"]) + (given["column"] + given["row"])) is None


def test_sliced_0_of_a_vector_is_sliced_2_of_a_cube():
    x = cl.tensor("x", cl.FP32, (2, 3, 8), cl.Sliced(2))
    b = cl.tensor("b", cl.FP32, (8,), cl.Sliced(0))
    p = program(cl.add(x, b, name="out"))
    given = cl_inputs(p)
    assert (run(p, given)["out"] == given["x"] + given["b"]).all()


def cl_inputs(p, seed=0):
    from coconet_lab.ir.inputs import random_inputs

    return random_inputs(p, seed)


@pytest.mark.parametrize(("a_dim", "b_dim"), [("R", "R"), ("R", 1), (0, "R"), (1, "R"), (2, 0)])
def test_every_matmul_the_layouts_allow_is_the_product(a_dim, b_dim):
    """The original took Sliced(0) @ Sliced(0) and others for partial sums of the product, which they are not."""
    a = cl.tensor("a", cl.FP64, (4, 8, 12), cl.Replicated if a_dim == "R" else cl.Sliced(a_dim))
    b = cl.tensor("b", cl.FP64, (12, 8), cl.Replicated if b_dim == "R" else cl.Sliced(b_dim))
    out = cl.matmul(a, b, name="out")
    p = program(cl.all_reduce(out, name="out_total") if out.layout.is_local else out)
    given = cl_inputs(p)
    assert np.allclose(run(p, given)[p.outputs[0]], given["a"] @ given["b"])


@pytest.mark.parametrize("form", ["channels", "batch", "out"])
def test_every_conv_the_layouts_allow_is_the_correlation(form):
    layouts = {
        "channels": (cl.Sliced(1), cl.Sliced(1)),
        "batch": (cl.Sliced(0), cl.Replicated),
        "out": (cl.Replicated, cl.Sliced(0)),
    }
    x_layout, w_layout = layouts[form]
    x = cl.tensor("x", cl.FP64, (4, 4, 5, 6), x_layout)
    w = cl.tensor("w", cl.FP64, (8, 4, 3, 2), w_layout)
    out = cl.conv(x, w, stride=(2, 1), padding=(1, 0), name="out")
    p = program(cl.all_reduce(out, name="total") if out.layout.is_local else out)
    given = cl_inputs(p)
    padded = np.pad(given["x"], ((0, 0), (0, 0), (1, 1), (0, 0)))
    expected = np.array(
        [[[[(padded[n, :, 2 * i : 2 * i + 3, j : j + 2] * given["w"][o]).sum() for j in range(5)] for i in range(3)]
          for o in range(8)] for n in range(4)]
    )  # fmt: skip
    assert np.allclose(run(p, given)[p.outputs[0]], expected)


def test_an_all_to_all_moves_the_cut_and_no_value():
    x = cl.tensor("x", cl.FP32, (4, 8), cl.Sliced(0))
    ran = run(program(cl.all_to_all(x, split=1, concat=0, name="y")))
    assert (ran["y"] == ran["x"]).all()
    assert ran.on_rank(1)["y"].shape == (4, 2)
    assert (ran.on_rank(1)["y"] == ran["x"][:, 2:4]).all()


@pytest.mark.parametrize("dtype", [cl.FP32, cl.BF16, cl.INT32, cl.INT64])
def test_a_reduce_leaves_poison_off_the_root(dtype):
    g = cl.tensor("g", dtype, (3,), cl.Local)
    ran = run(program(cl.reduce(g, root=2, name="r"), cl.broadcast(cl.reduce(g, root=2, name="r2"), root=2, name="b")))
    assert mismatch(ran["r"][2], ran["g"].sum(0).astype(dtype.numpy), 2 * dtype.eps) is None
    for rank in (0, 1, 3):
        left = ran["r"][rank]
        assert np.isnan(left.astype(float)).all() if dtype.is_float else (left == poison(dtype)).all()
    assert mismatch(ran["b"], ran["r"][2]) is None


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_max_and_min_across_ranks_and_elements_propagate_nan(reduction):
    g = cl.tensor("g", cl.FP16, (3,), cl.Local)
    shift = cl.log(g)  # NaN below zero
    outs = [cl.all_reduce(shift, reduction, name="a"), cl.reduce_scatter(shift, 0, reduction, name="s")]
    local = cl.max(shift, name="m") if reduction == "max" else cl.min(shift, name="m")
    values = np.array([[1, -1, 2], [1, 1, 1], [1, 2, 4], [2, 1, 1]], np.float16)
    ran = run(program(*outs, local, cl.maximum(shift, 0, name="r")), {"g": values})
    picked = np.log(values[:, [0, 2]].astype(float)).astype(np.float16)
    assert (ran["a"][[0, 2]] == (picked.max(0) if reduction == "max" else picked.min(0))).all()
    assert np.isnan(ran["a"][1])
    assert mismatch(ran["a"], ran["s"]) is None
    assert np.isnan(ran["m"][0])
    assert np.isnan(ran["r"][0, 1])


def test_a_sum_across_ranks_of_16_bit_values_is_added_in_float32_and_rounded_once():
    g = cl.tensor("g", cl.FP16, (1,), cl.Local)
    values = np.array([[2048], [1], [1], [1]], np.float16)
    # In float16 each 1 would vanish: 2048 + 1 = 2048.
    assert run(program(cl.all_reduce(g, name="t")), {"g": values})["t"].tolist() == [2052.0]
    # 2051 lies between 2050 and 2052 and rounds to the even one, once.
    assert np.float16(2051) == 2052


def test_every_operation_rounds_once_to_its_dtype():
    x = cl.tensor("x", cl.FP16, (1,), cl.Replicated)
    ran = run(program(cl.sub(cl.add(x, 1, name="a"), x, name="d"), ranks=1), {"x": np.array([2048], np.float16)})
    assert ran["a"].tolist() == [2048.0]
    assert ran["d"].tolist() == [0.0]


def test_a_matmul_of_16_bit_values_does_not_add_in_16_bits():
    """The original added in float16, where 2048 + 1 is 2048."""
    a, b = cl.tensor("a", cl.FP16, (1, 4096), cl.Replicated), cl.tensor("b", cl.FP16, (4096, 1), cl.Replicated)
    ones = {"a": np.ones((1, 4096), np.float16), "b": np.ones((4096, 1), np.float16)}
    assert run(program(cl.matmul(a, b, name="y"), ranks=1), ones)["y"].tolist() == [[4096]]


def test_what_is_computed_on_slices_reads_reduced_values_on_every_rank():
    """In the original all ranks but 0 read what the ReduceScatter had not reduced."""
    g = cl.tensor("g", cl.FP32, (8,), cl.Local)
    ran = run(program(cl.all_gather(cl.reduce_scatter(g, name="rs") * 2, name="out")))
    for rank in range(4):
        block = slice(2 * rank, 2 * rank + 2)
        assert np.allclose(ran.on_rank(rank)["rs"], ran["g"].sum(0)[block])
        assert np.allclose(ran.on_rank(rank)["out"], 2 * ran["g"].sum(0))


def test_a_python_number_takes_the_other_operands_dtype():
    x = cl.tensor("x", cl.FP16, (1,), cl.Replicated)
    # 2049 is no FP16 value: it becomes 2048 before the sum, which then is 1 where 2049 - 2047 would be 2.
    ran = run(program(cl.sub(2049, x, name="y"), ranks=1), {"x": np.array([2047], np.float16)})
    assert ran["y"].tolist() == [1.0]


def test_comparisons_give_int32_zeros_and_ones_and_where_chooses():
    x = cl.tensor("x", cl.FP32, (3,), cl.Replicated)
    ran = run(program(cl.where(x > 0, x, -1, name="y"), x < 0, ranks=1), {"x": f32(-2, 0, 3)})
    assert ran["y"].tolist() == [-1, -1, 3]
    below = ran[ran.program.outputs[1]]
    assert below.dtype == np.int32
    assert below.tolist() == [1, 0, 0]


def test_integers_wrap_and_their_sums_are_exact():
    x = cl.tensor("x", cl.INT32, (1,), cl.Local)
    values = np.array([[2**31 - 1], [1], [0], [0]], np.int32)
    assert run(program(cl.all_reduce(x, name="t")), {"x": values})["t"].tolist() == [-(2**31)]


@pytest.mark.parametrize(
    ("function", "meaning"),
    [("exp", math.exp), ("log", math.log), ("tanh", math.tanh), ("erf", math.erf), ("sqrt", math.sqrt)],
)
def test_the_functions_are_rounded_once_from_float64(function, meaning):
    values = np.linspace(0.1, 3, 50).astype(ml_dtypes.bfloat16)
    x = cl.tensor("x", cl.BF16, (50,), cl.Replicated)
    ran = run(program(getattr(cl, function)(x, name="y"), ranks=1), {"x": values})
    expected = rounded(np.array([meaning(float(v)) for v in values]), cl.BF16)
    assert (ran["y"] == expected).all()


def test_a_norm_takes_its_square_root_and_is_the_same_in_every_layout():
    """The original's norm took no root, and was 0 inside a fused group."""
    rng = np.random.default_rng(3)
    values = rng.normal(size=(6, 40)).astype(np.float32)
    found = []
    for layout in (cl.Replicated, cl.Sliced(1)):
        x = cl.tensor("x", cl.FP32, (6, 40), layout)
        ran = run(
            program(cl.norm(x, name="n"), cl.norm(x, dim=1, name="rows"), cl.sum(x, dim=0, name="columns")),
            {"x": values},
        )
        found.append((ran["n"], ran["rows"], ran["columns"]))
        assert np.isclose(ran["n"], np.linalg.norm(values.astype(float)), rtol=1e-6)
        assert ran["rows"].shape == (6, 1)
        assert ran["columns"].shape == (1, 40)
    assert all((a == b).all() for a, b in zip(*found))


def test_a_reduction_of_local_values_stays_local():
    x = cl.tensor("x", cl.FP32, (5,), cl.Local)
    ran = run(program(cl.mean(x, name="mean")))
    assert ran["mean"].shape == (4,)
    assert np.allclose(ran["mean"], ran["x"].mean(1))


def test_a_dropout_mask_is_the_same_in_every_layout_and_scales_what_it_keeps():
    """The original gave all elements one draw and never scaled."""
    values = np.ones((8, 16), np.float16)
    masks = []
    for layout in (cl.Replicated, cl.Sliced(0), cl.Sliced(1)):
        x = cl.tensor("x", cl.FP16, (8, 16), layout)
        ran = run(program(cl.dropout(x, 0.25, name="drop")), {"x": values, "seed": 5})
        masks.append(ran["drop"])
        op = ran.program.ops["drop"]
        keep = dropout_keep(5, op.stream, np.arange(128), 0.25).reshape(8, 16)
        assert (ran["drop"] == np.where(keep, np.float16(np.float32(1 / 0.75)), 0)).all()
    assert all((masks[0] == other).all() for other in masks[1:])
    assert 0 < (masks[0] == 0).sum() < 128
    x = cl.tensor("x", cl.FP16, (8, 16), cl.Replicated)
    other = run(program(cl.dropout(x, 0.25, name="drop")), {"x": values, "seed": 6})
    assert (other["drop"] != masks[0]).any()


def test_a_send_puts_rank_k_on_rank_k_of_the_other_group():
    x = cl.tensor("x", cl.FP32, (2,), cl.Local)
    sent = cl.send(x, to=cl.GROUP + 1, name="sent")
    ran = run(program(cl.mul(sent, 10, name="out"), ranks=4, groups=2), {"x": np.array([[1, 2], [3, 4]], np.float32)})
    assert [sorted(ran.on_rank(k)) for k in range(4)] == [["x"], ["x"], ["out", "sent"], ["out", "sent"]]
    assert ran.on_rank(3)["out"].tolist() == [30, 40]
    assert ran["sent"].tolist() == [[1, 2], [3, 4]]


def test_the_groups_size_is_a_constant_of_the_groups_ranks():
    x = cl.tensor("x", cl.FP32, (2,), cl.Replicated)
    p = program(cl.mul(x, cl.GROUP.size, name="a"), cl.mul(x, 1 / cl.GROUP.size, name="b"), ranks=8, groups=2)
    ran = run(p, {"x": f32(1, 2)})
    assert ran["a"].tolist() == [4, 8]
    assert ran["b"].tolist() == [0.25, 0.5]


def test_list_values_reduce_and_combine_tensor_by_tensor():
    shapes = [(2, 3), (5,), (1100,)]
    w = cl.tensor("w", cl.FP32, shapes, cl.Sliced(0))
    ran = run(program(cl.div(w, cl.norm(w, name="n"), name="unit")))
    pieces = np.split(ran["unit"], [6, 11])
    assert ran["n"].shape == (3,)
    assert np.allclose([np.linalg.norm(piece) for piece in pieces], 1)
    # Buckets of 1024 elements, none across tensors: 6 | 5 | 1024 | 76.
    assert [len(ran.on_rank(k)["w"]) for k in range(4)] == [6, 5, 1024, 76]


def test_a_custom_operator_gets_its_operands_at_the_block_and_the_blocks_ranges():
    seen = []

    def ramp(x, y, *, ranges):
        seen.append((x.shape, y.shape, ranges))
        start, stop = ranges[0]
        return x + y + np.arange(start, stop, dtype=x.dtype)

    operator = cl.operator("ramp", meaning=ramp)
    x = cl.tensor("x", cl.FP32, (6,), cl.Sliced(0))
    y = cl.tensor("y", cl.FP32, (6,), cl.Replicated)
    ran = run(program(operator(x, y, name="z"), ranks=2), {"x": np.zeros(6, np.float32), "y": np.ones(6, np.float32)})
    assert ran["z"].tolist() == [1, 2, 3, 4, 5, 6]
    assert seen == [((3,), (3,), ((0, 3),)), ((3,), (3,), ((3, 6),))]


def test_a_custom_operator_that_makes_another_block_than_its_type_says_is_named():
    operator = cl.operator("double", meaning=lambda x, ranges: x.astype(np.float64) * 2)
    x = cl.tensor("x", cl.FP32, (6,), cl.Sliced(0))
    with pytest.raises(cl.ProgramError, match=r"operator 'double' made float64\[3\] for 'z' on rank 0"):
        run(program(operator(x, name="z"), ranks=2))


@pytest.mark.parametrize(
    ("value", "expected"), [(2.7, 2), (-2.7, -2), (np.nan, 0), (1e30, 2**31 - 1), (-np.inf, -(2**31))]
)
def test_floats_become_integers_toward_zero_and_what_does_not_fit_the_nearest_one(value, expected):
    assert cast(np.array([value], np.float32), cl.FP32, cl.INT32)[0] == expected


def test_a_wide_value_is_rounded_to_bfloat16_once():
    # Rounded to float32 first it would become a tie, and then the even neighbour below.
    assert float(rounded(np.array([1 + 2**-8 + 2**-40]), cl.BF16)[0]) == 1 + 2**-7


def test_updates_in_place_gather_into_the_tensor():
    w = cl.tensor("w", cl.FP32, (6,), cl.Replicated)
    g = cl.tensor("g", cl.FP32, (6,), cl.Local)
    w1 = cl.update(w, w - cl.reduce_scatter(g, name="part"), name="w1_part")
    ran = run(
        program(cl.all_gather(w1, name="w1"), ranks=2), {"w": np.zeros(6, np.float32), "g": np.ones((2, 6), np.float32)}
    )
    assert ran.state["w"].tolist() == [-2] * 6
    assert ran.on_rank(1)["w1_part"].tolist() == [-2] * 3


def test_one_rank_computes_what_many_do():
    g = cl.tensor("g", cl.FP32, (5,), cl.Local)
    ran = run(program(cl.all_gather(cl.reduce_scatter(g, name="part"), name="out"), ranks=1))
    assert (ran["out"] == ran["g"][0]).all()


def test_values_of_a_run_cannot_be_written():
    g = cl.tensor("g", cl.FP32, (5,), cl.Local)
    ran = run(program(cl.all_reduce(g, name="t")))
    with pytest.raises(ValueError, match="read-only"):
        ran["t"][0] = 1
