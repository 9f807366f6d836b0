"""How CPU kernels walk: sizes, blocks, broadcasts, chunks, lists, peers and partners, against NumPy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from kernels_by_hand import Hand, launch, same

from coconet_lab.errors import CodegenError
from coconet_lab.ir.dtypes import FP16, FP32, FP64, INT32, INT64
from coconet_lab.ir.types import block_extent, block_range
from coconet_lab.kernels import kernel as k
from coconet_lab.kernels.numba_printer import kernel_name, print_numba
from coconet_lab.kernels.numba_walk import walk
from coconet_lab.kernels.source import kernel_source, line_origins

SIZES = (0, 1, 7, 1023, 4097)


def adam_kernel(wire, ranks, size):
    """ReduceScatter, Adam on the block, AllGather, in one kernel."""
    hand = Hand((size,), 0, ranks)
    g, p = hand.tensor("g", wire, peers=True), hand.tensor("p", wire, peers=True, written=True)
    m, v, w = (hand.tensor(name, FP32, placement="block", written=True) for name in "mvw")
    total = hand.combine(g)
    mean = hand.apply("Div", hand.convert(total, FP32, "G"), hand.number(ranks), name="G")
    b1, lr, one = hand.scalar("b1", FP32), hand.scalar("lr", FP32), hand.number(1)
    beta = hand.add(k.Argument, FP32, b1, name="b1")
    left = hand.apply("Mul", beta, hand.load(m))
    m1 = hand.apply("Add", left, hand.apply("Mul", hand.apply("Sub", one, beta), mean), name="m1")
    square = hand.apply("Mul", hand.number(0.001), hand.apply("Mul", mean, mean))
    v1 = hand.apply("Add", hand.apply("Mul", hand.number(0.999), hand.load(v)), square, name="v1")
    step = hand.apply("Div", m1, hand.apply("Add", hand.apply("Sqrt", v1), hand.number(1e-8)))
    rate = hand.add(k.Argument, FP32, lr, name="lr")
    w1 = hand.apply("Sub", hand.load(w), hand.apply("Mul", rate, step), name="w1")
    p1 = hand.convert(w1, wire, "p1")
    for tensor, register in ((m, m1), (v, v1), (w, w1)):
        hand.store(tensor, register)
    hand.store(p, p1, k.StoreAll)
    return hand.kernel("fused", meets=True)


def adam_in_numpy(wire, g, m, v, w):
    f32 = np.float32
    total = g[0].astype(f32)
    for other in g[1:]:
        total = total + other.astype(f32)
    mean = total.astype(wire.numpy).astype(f32) / f32(len(g))
    m1 = f32(0.9) * m + (f32(1) - f32(0.9)) * mean
    v1 = f32(0.999) * v + f32(0.001) * (mean * mean)
    w1 = w - f32(0.01) * (m1 / (np.sqrt(v1) + f32(1e-8)))
    return w1.astype(wire.numpy), m1, v1, w1


def blocks(array, ranks):
    """Every rank's block, in the storage that all ranks reserve alike."""
    size = block_extent(array.shape[0], ranks)
    found = []
    for rank in range(ranks):
        start, stop = block_range(array.shape[0], rank, ranks)
        stored = np.full((size, *array.shape[1:]), np.nan, array.dtype)
        stored[: stop - start] = array[start:stop]
        found.append(stored)
    return found


@pytest.mark.parametrize(("wire", "ranks"), [(FP16, 1), (FP16, 3), (FP16, 4), (FP32, 2)], ids=str)
def test_reduce_scatter_adam_all_gather_has_numpys_bits_on_every_rank(wire, ranks):
    rng = np.random.default_rng(0)
    for size in SIZES:
        g = [rng.standard_normal(size).astype(wire.numpy) for _ in range(ranks)]
        m, v, w = (rng.random(size, dtype=np.float32) for _ in range(3))
        parts = [blocks(array, ranks) for array in (m, v, w)]
        p = [np.zeros(size, wire.numpy) for _ in range(ranks)]
        buffers = [[g[r], p[r], *(part[r] for part in parts)] for r in range(ranks)]
        launch(adam_kernel(wire, ranks, size), buffers, scalars=[np.float32(0.9), np.float32(0.01)])
        p1, *state = adam_in_numpy(wire, g, m, v, w)
        for rank in range(ranks):
            assert same(p[rank], p1), (size, rank)
            start, stop = block_range(size, rank, ranks)
            for part, expected in zip(parts, state):
                assert same(part[rank][: stop - start], expected[start:stop]), (size, rank)


def test_the_text_depends_on_no_extent_and_on_no_name():
    assert print_numba(adam_kernel(FP16, 2, 7)) == print_numba(adam_kernel(FP16, 2, 10**9))
    kernel = adam_kernel(FP16, 2, 7)
    renamed = k.Kernel("other", kernel.space, kernel.tensors, kernel.scalars, kernel.dtypes, kernel.phases, opens=True,
                       closes=True, origin=tuple(f"{name}\n)" for name in kernel.origin))  # fmt: skip
    assert kernel_name(renamed) == kernel_name(kernel)
    assert kernel_name(adam_kernel(FP32, 2, 7)) != kernel_name(kernel)


def test_fused_adam_prints_as_it_always_did(golden):
    golden(print_numba(adam_kernel(FP16, 2, 1024)))


def test_a_name_with_a_line_break_stays_in_its_comment():
    hand = Hand((4,))
    register = hand.load(hand.tensor("a\nimport os  # \\", FP32))
    hand.output(register, "b'''\r")
    text = print_numba(hand.kernel("k\nimport sys"))
    compile(text, "kernel", "exec")
    code = "\n".join(line.split("  # ")[0] for line in text.splitlines())
    assert not {"os", "sys"} & set(code.split())
    assert text.count("\n") == code.count("\n") + 1


def test_every_line_says_which_value_it_belongs_to():
    kernel = adam_kernel(FP16, 2, 1024)
    lines, origins = kernel_source(kernel, "cpu").splitlines(), line_origins(kernel, "cpu")
    assert len(lines) == len(origins)
    assert {"G", "m1", "v1", "w1", "p1", "p"} <= set(origins)
    told = {origin for line, origin in zip(lines, origins) if "sqrt" in line and "import" not in line}
    assert told == {""}, "the root is no value of the program"
    cuda = kernel_source(kernel, "cuda").splitlines()
    assert len(cuda) == len(line_origins(kernel, "cuda"))
    assert "w1" in line_origins(kernel, "cuda")


@pytest.mark.parametrize("dim", [None, 0, 1, 2])
def test_operands_broadcast_whole_or_by_block_along_every_dim(dim):
    shape, ranks = (4, 6, 8), 1 if dim is None else 2
    shapes = [shape, (8,), (1, 8), (6, 1), (4, 1, 1), (1, 6, 8), (1, 1, 1), ()]
    shapes = [s for s in shapes if dim is None or len(s) < 3 - dim or s[dim - 3] in (1, shape[dim])]
    rng = np.random.default_rng(0)
    values = [rng.integers(-50, 50, s).astype(np.int32) for s in shapes]
    hand = Hand(shape, dim, ranks)
    total = hand.load(hand.tensor("x0", INT32, shapes[0]))
    for at, s in enumerate(shapes[1:], 1):
        total = hand.apply(
            "Sub", hand.apply("Mul", total, hand.number(3, INT32)), hand.load(hand.tensor(f"x{at}", INT32, s))
        )
    hand.output(total)
    hand.output(total, placement="block" if dim is not None else "whole")
    expected = values[0]
    for value in values[1:]:
        expected = expected * 3 - value
    stored = tuple(n // ranks if d == dim else n for d, n in enumerate(shape))
    buffers = [[*values, np.zeros(shape, np.int32), np.zeros(stored, np.int32)] for _ in range(ranks)]
    launch(hand.kernel(), buffers)
    for rank, (*_, whole, block) in enumerate(buffers):
        cut = tuple(slice(rank * n, (rank + 1) * n) if d == dim else slice(None) for d, n in enumerate(stored))
        assert same(block, expected[cut])
        assert same(whole[cut], expected[cut])
        outside = np.ones(shape, bool)
        outside[cut] = False
        assert not whole[outside].any(), "a rank wrote outside of its block"


@pytest.mark.parametrize(("dim", "chunk_dim"), [(None, 0), (None, 1), (0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_chunk_does_its_part_and_nothing_else(dim, chunk_dim):
    shape, ranks = (6, 8), 1 if dim is None else 2
    hand = Hand(shape, dim, ranks, chunk_dim=chunk_dim)
    hand.output(hand.load(hand.tensor("x", INT64)))
    kernel, x = hand.kernel(), np.arange(1, 49).reshape(shape)
    extent = shape[chunk_dim] // (ranks if dim == chunk_dim else 1)
    for lo, hi in ((0, 1), (1, extent), (extent - 1, extent + 5)):
        buffers = [[x, np.zeros(shape, np.int64)] for _ in range(ranks)]
        launch(kernel, buffers, chunk=(lo, hi))
        for rank, (_, found) in enumerate(buffers):
            walked = []
            for d, n in enumerate(shape):
                start, stop = block_range(n, rank, ranks) if d == dim else (0, n)
                walked.append(slice(start + lo, min(start + hi, stop)) if d == chunk_dim else slice(start, stop))
            expected = np.zeros(shape, np.int64)
            expected[tuple(walked)] = x[tuple(walked)]
            assert same(found, expected)


@pytest.mark.parametrize("reduction", ["+", "max"])
def test_peers_are_combined_in_rank_order_and_nan_stays(reduction):
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(1031).astype(np.float16) for _ in range(3)]
    arrays[1][7] = np.nan
    hand = Hand((1031,), None, 3)
    hand.output(hand.combine(hand.tensor("x", FP16, peers=True), reduction))
    buffers = [[array, np.zeros(1031, np.float16)] for array in arrays]
    launch(hand.kernel(meets=True), buffers)
    wide = [array.astype(np.float32) for array in arrays]
    join = {"+": np.add, "max": np.maximum}[reduction]
    expected = join(join(wide[0], wide[1]), wide[2]).astype(np.float16)
    assert all(same(found, expected) for _, found in buffers)


def test_a_store_to_the_partner_goes_where_its_row_of_the_table_says():
    hand = Hand((5,), 0, 2)
    register = hand.load(hand.tensor("x", FP32))
    hand.body.append(k.StoreTo(hand.tensor("sent", FP32, placement="block", peers=True, written=True), register))
    theirs = [np.zeros(3, np.float32), np.zeros(3, np.float32)]
    x = np.arange(5, dtype=np.float32)
    launch(hand.kernel(), [[x, theirs[0]], [x, theirs[1]]])
    assert [part.tolist() for part in theirs] == [[0, 1, 2], [3, 4, 0]]


def test_a_kernel_of_no_dims_computes_one_element():
    hand = Hand(())
    x = hand.load(hand.tensor("x", FP64))
    hand.output(hand.apply("Mul", x, x))
    found = np.zeros((), np.float64)
    launch(hand.kernel(), [[np.array(3.0), found]])
    assert found == 9.0


def test_neighbouring_dims_are_one_loop_where_all_tensors_agree():
    hand = Hand((2, 3, 4, 5), 1, 2)
    hand.tensor("x", FP32)
    assert walk(hand.kernel()).levels == ((0,), (1, 2, 3))
    hand.tensor("b", FP32, (5,))
    assert walk(hand.kernel()).levels == ((0,), (1, 2), (3,))


def test_a_register_of_an_earlier_loop_is_refused():
    hand = Hand((4,))
    register = hand.load(hand.tensor("x", FP32))
    hand.output(register)
    hand.end_phase()
    hand.output(register)
    with pytest.raises(CodegenError, match="reads register 0 where it is not computed"):
        print_numba(hand.kernel())
    with pytest.raises(CodegenError, match="no code for target 'fpga'"):
        kernel_source(adam_kernel(FP32, 1, 1), "fpga")


# -- reductions -----------------------------------------------------------------------------------------------------


def reduced(fn, values, dims):
    if fn == "norm":
        return np.sqrt(np.sum(values * values, axis=dims))
    return getattr(np, fn)(values, axis=dims)


@pytest.mark.parametrize(
    ("dim", "dims", "chosen"),
    [
        (None, None, ("mean", "max")),
        (0, None, ("sum", "max", "norm")),
        (0, (0,), ("mean",)),
        (0, (1,), ("min",)),
        (1, (1, 2), ("max",)),
        (2, (0,), ("norm",)),
    ],
    ids=str,
)
def test_reductions_over_any_dims_cross_the_ranks_where_these_are_cut(dim, dims, chosen):
    shape, ranks = (4, 6, 1030), 1 if dim is None else 2
    crosses = dim is not None and (dims is None or dim in dims)
    x = np.random.default_rng(2).integers(-9, 9, shape).astype(np.float32)
    hand = Hand(shape, dim, ranks)
    register = hand.load(hand.tensor("x", FP32))
    found = [hand.accumulate(register, fn, dims, crosses) for fn in chosen]
    found.append(hand.accumulate(hand.convert(register, INT32), "sum", dims, crosses))
    hand.end_phase()
    kept = () if dims is None else tuple(1 if d in dims else n for d, n in enumerate(shape))
    for at in found:
        out = hand.result(at)
        hand.store(hand.tensor("out", hand.dtypes[out], kept, written=True), out)
    buffers = [[x, *(np.zeros(kept, np.float32) for _ in chosen), np.zeros(kept, np.int32)] for _ in range(ranks)]
    launch(hand.kernel(meets=True), buffers, times=3)
    axes = tuple(range(3)) if dims is None else dims
    expected = [reduced(fn, x.astype(np.float64), axes).astype(np.float32).reshape(kept) for fn in chosen]
    expected.append(x.sum(axes).astype(np.int32).reshape(kept))
    for rank in range(ranks):
        mine = [slice(None)] * len(kept)
        if kept and not crosses and dim is not None:
            mine[dim] = slice(*block_range(shape[dim], rank, ranks))
        for array, want in zip(buffers[rank][1:], expected):
            assert same(array[tuple(mine)], want[tuple(mine)]), rank


PIECES = ((3, 5), (0,), (1030, 2), (7,), (1,))


def norms_kernel(ranks):
    """Each tensor of a list plus its norm, on every rank."""
    total = sum(math.prod(piece) for piece in PIECES)
    hand = Hand((total,), 0, ranks, pieces=PIECES, bucket=64)
    register = hand.load(hand.tensor("x", FP32))
    norm = hand.accumulate(register, "norm", None, True, per_piece=True)
    hand.end_phase()
    scalar = hand.result(norm)
    hand.store(hand.tensor("norms", FP32, (len(PIECES),), written=True), scalar)
    hand.store(
        hand.tensor("y", FP32, peers=True, written=True),
        hand.apply("Add", hand.load(0), scalar),
        k.StoreAll,
    )
    return hand.kernel(meets=True)


def test_two_phases_of_a_list_print_as_they_always_did(golden):
    golden(print_numba(norms_kernel(2)))


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_list_reduces_tensor_by_tensor_and_is_cut_at_bucket_borders(ranks):
    total = sum(math.prod(piece) for piece in PIECES)
    x = np.random.default_rng(4).integers(-4, 5, total).astype(np.float32)
    buffers = [[x, np.zeros(len(PIECES), np.float32), np.zeros(total, np.float32)] for _ in range(ranks)]
    launch(norms_kernel(ranks), buffers, times=2)
    borders = np.cumsum([0, *(math.prod(piece) for piece in PIECES)])
    parts = [x[a:b].astype(np.float64) for a, b in itertools.pairwise(borders)]
    norms = np.array([np.sqrt((part * part).sum()) for part in parts], np.float32)
    expected = x + np.repeat(norms, np.diff(borders))
    for _, found, y in buffers:
        assert same(found, norms)
        assert same(y, expected)
