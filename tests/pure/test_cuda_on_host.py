"""CUDA kernels run on the CPU: every sum, mask, tail and rounding of the text that a GPU gets, against NumPy."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import pairwise

import cuda_samples as samples
import numpy as np
import pytest
from cuda_on_host import Launcher

import coconet_lab as cl
from coconet_lab.ir.dtypes import BF16, FP16, FP32, FP64, INT32, INT64
from coconet_lab.ir.elementwise import FUNCTIONS
from coconet_lab.ir.rng import dropout_keep
from coconet_lab.ir.rounding import cast, mismatch, rounded
from coconet_lab.ir.types import block_extent, block_range
from coconet_lab.kernels.cuda_launch import bucket_tables
from coconet_lab.kernels.cuda_printer import print_kernel
from coconet_lab.kernels.kernel import Apply, Call, Convert
from coconet_lab.kernels.lower import lower

F32 = np.float32

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, which is not installed")


@pytest.fixture(scope="module")
def folder(pytestconfig):
    """Compiled kernels by content: a second run compiles only what has changed."""
    return pytestconfig.cache.mkdir("cuda_on_host")


def taken(launcher, dtype, shape, shift=0):
    """One zeroed array a rank."""
    count = int(np.prod(shape))
    item = np.dtype(dtype)
    return [
        launcher.memory.take(max(1, count * item.itemsize), shift)[: count * item.itemsize].view(item).reshape(shape)
        for _ in range(launcher.ranks)
    ]


def assert_sgd_steps(launcher, elements, shift=0):
    """Two steps with two learning rates, each from what the one before left."""
    ranks, random = launcher.ranks, np.random.default_rng(elements)
    block = block_extent(elements, ranks)
    g, p = taken(launcher, np.float16, (elements,), shift), taken(launcher, np.float16, (elements,), shift)
    w, lr = taken(launcher, F32, (block,)), launcher.memory.take(8).view(np.float64)
    for step in (0.5, 0.125):
        for rank in range(ranks):
            g[rank][:], p[rank][:] = random.standard_normal(elements), np.nan
            w[rank][:] = random.standard_normal(block)
        lr[0] = step
        before = [array.copy() for array in w]
        launcher.launch([g, w, p], [lr])
        total = sum((array.astype(F32) for array in g[1:]), g[0].astype(F32)).astype(np.float16)
        mean = total.astype(F32) / F32(ranks)
        for rank in range(ranks):
            a, b = block_range(elements, rank, ranks)
            expected = before[rank][: b - a] - F32(step) * mean[a:b]
            np.testing.assert_array_equal(w[rank][: b - a], expected)
            for other in range(ranks):
                np.testing.assert_array_equal(p[other][a:b], expected.astype(np.float16))
    assert not any(launcher.error(rank) for rank in range(ranks))


@pytest.mark.parametrize(
    ("elements", "ranks", "shift"), [(1024, 2, 0), (1003, 2, 0), (1024, 2, 2), (5, 4, 0), (3, 4, 0), (4099, 4, 0)]
)
@pytest.mark.parametrize("form", ["read", "turns", "push"])
def test_a_fused_collective_updates_every_element_once(elements, ranks, shift, form, folder):
    assert_sgd_steps(Launcher(print_kernel(samples.sgd(elements, ranks)), folder, form=form), elements, shift)


@pytest.mark.parametrize(("elements", "ranks", "ctas"), [(39_999, 2, 1), (29_998, 3, 2), (16_382, 4, 1)])
def test_what_peers_push_stays_until_it_is_taken_however_many_rounds_there_are(elements, ranks, ctas, folder):
    launcher = Launcher(print_kernel(samples.sgd(elements, ranks)), folder, ctas=ctas, unroll=1, form="push")
    for _ in range(3):
        assert_sgd_steps(launcher, elements)
    assert all(state[:4096].view(np.uint32)[4] > 3 * 2 * 4 for state in launcher.states), "several rounds a launch"


@pytest.mark.parametrize("kind", [FP16, BF16, FP32, FP64], ids=repr)
@pytest.mark.parametrize(("shape", "dim"), [((4, 6, 16), 0), ((3, 4, 10), 1), ((2, 3, 32), 2)])
def test_dropout_draws_the_oracle_s_mask_in_every_layout(kind, shape, dim, folder):
    if kind not in (FP16, FP32) and dim:
        return
    kernel = samples.epilogue(shape, dim, kind=kind)
    launcher = Launcher(print_kernel(kernel), folder)
    random = np.random.default_rng(1)
    layer, r, out = (taken(launcher, kind.numpy, shape) for _ in range(3))
    b, seed = taken(launcher, kind.numpy, shape[2:]), launcher.memory.take(8).view(np.int64)
    seed[0] = -7
    for rank in range(2):
        layer[rank][...] = random.standard_normal(shape).astype(kind.numpy)
        b[rank][...], r[rank][...] = np.arange(shape[2]) / 8, np.ones(shape)
        out[rank][...] = np.nan
    launcher.launch([layer, b, r, out], [seed])
    wide = kind.compute
    total = rounded(layer[0].astype(wide) + layer[1].astype(wide), kind)
    biased = rounded(total.astype(wide) + b[0].astype(wide), kind)
    kept = dropout_keep(-7, 0x1234567890ABCDEF, np.arange(total.size).reshape(shape), 0.25)
    dropped = np.where(kept, rounded(biased.astype(wide) * wide.type(1 / 0.75), kind), kind.numpy.type(0))
    expected = rounded(dropped.astype(wide) + r[0].astype(wide), kind)
    for rank in range(2):
        assert mismatch(out[rank], expected) is None


@pytest.mark.parametrize("elements", [1000, 24, 3])
def test_norms_and_maxima_cross_the_ranks_and_have_the_same_bits_on_all(elements, folder):
    launcher = Launcher(print_kernel(samples.norms(elements)), folder)
    random = np.random.default_rng(2)
    block = block_extent(elements, 2)
    g, w, q = taken(launcher, F32, (elements,)), taken(launcher, F32, (block,)), taken(launcher, F32, ())
    whole = random.integers(-8, 8, elements).astype(F32)
    for repeat in range(3):
        for rank in range(2):
            a, b = block_range(elements, rank, 2)
            g[rank][:] = random.integers(-8, 8, elements)
            w[rank][: b - a] = whole[a:b] + repeat
        start = [array.copy() for array in w]
        launcher.launch([g, w, q])
        total = g[0] + g[1]
        norm = np.sqrt(np.sum(total.astype(np.float64) ** 2)).astype(F32)
        divisor = norm + F32((whole + repeat).max())
        for rank in range(2):
            a, b = block_range(elements, rank, 2)
            assert q[rank][()] == norm
            np.testing.assert_array_equal(w[rank][: b - a], start[rank][: b - a] - total[a:b] / divisor)


@pytest.mark.parametrize("fn", ["mean", "max"])
@pytest.mark.parametrize("dims", [(2,), (0,), (1,), (0, 1), (1, 2)])
def test_results_that_keep_dims_are_those_of_their_row(fn, dims, folder):
    shape, dim, ranks = (4, 6, 16), 0, 2
    kernel = samples.rows(shape, dim, dims, fn)
    launcher = Launcher(print_kernel(kernel), folder)
    whole = np.random.default_rng(3).integers(-9, 9, shape).astype(F32)
    local = (shape[0] // ranks, *shape[1:])
    x, y = taken(launcher, F32, local), taken(launcher, F32, local)
    expected = getattr(np, fn)(whole.astype(np.float64), axis=dims, keepdims=True).astype(F32)
    kept = expected.shape if dim in dims else (expected.shape[0] // ranks, *expected.shape[1:])
    s = taken(launcher, F32, kept)
    for rank in range(ranks):
        x[rank][...] = whole[rank * local[0] : (rank + 1) * local[0]]
        s[rank][...] = np.nan
    launcher.launch([x, y, s])
    for rank in range(ranks):
        mine = slice(rank * local[0], (rank + 1) * local[0])
        results = expected if dim in dims else expected[mine]
        np.testing.assert_array_equal(s[rank], results)
        np.testing.assert_array_equal(y[rank], whole[mine] - results)


def test_sums_over_two_different_dims_in_one_phase(folder):
    launcher = Launcher(print_kernel(samples.two_ways((8, 24))), folder)
    whole = np.random.default_rng(4).integers(-9, 9, (8, 24)).astype(F32)
    x, a, b = taken(launcher, F32, (4, 24)), taken(launcher, F32, (4, 1)), taken(launcher, F32, (1, 24))
    x[0][...], x[1][...] = whole[:4], whole[4:]
    launcher.launch([x, a, b])
    for rank in range(2):
        np.testing.assert_array_equal(a[rank], whole[4 * rank : 4 * rank + 4].sum(1, keepdims=True))
        np.testing.assert_array_equal(b[rank], whole.sum(0, keepdims=True))


def test_a_reduction_of_one_rank_stays_out_of_the_half_that_peers_may_write_next(folder):
    across = Launcher(print_kernel(samples.norms(64)), folder)
    alone = Launcher(print_kernel(samples.rows((4, 6, 16), 0, (2,))), folder)
    assert across.kernel.crosses
    assert not alone.kernel.crosses
    half = max(across.half, alone.half)
    shared = [across.memory.take(16 * half) for _ in range(2)]
    for launcher in (across, alone):
        launcher.half, launcher.exchange = half, shared
        launcher.pads, launcher.states = across.pads, across.states
    large = [taken(across, F32, (64,)), taken(across, F32, (64,)), taken(across, F32, ())]
    cube = [taken(alone, F32, (2, 6, 16)), taken(alone, F32, (2, 6, 16)), taken(alone, F32, (2, 6, 1))]
    written = []
    for launcher, tensors in ((across, large), (alone, cube), (alone, cube), (across, large), (alone, cube)):
        for memory in shared:
            memory[:] = 0xAB
        launcher.launch(tensors)
        halves = [{n for n in range(2) if (m[8 * half * n :][: 8 * half] != 0xAB).any()} for m in shared]
        assert halves[0] == halves[1]
        written.append(halves[0])
    # A rank that is ahead writes half 1 from the end of the first launch on, whatever runs in between.
    assert written == [{0}, {0}, {0}, {1}, {1}]


def test_each_tensor_of_a_list_has_its_own_norm_also_where_ranks_share_it(folder):
    kernel = samples.list_norms()
    launcher = Launcher(print_kernel(kernel), folder)
    n = samples.LIST_ELEMENTS
    whole = np.random.default_rng(5).integers(1, 4, n).astype(np.float16)
    sizes = [int(np.prod(shape)) for shape in samples.LIST]
    low = [int(bucket_tables(kernel, rank)["bucket_start"][-1]) for rank in range(2)]
    x, y, s = taken(launcher, np.float16, (max(low),)), taken(launcher, np.float16, (n,)), taken(launcher, F32, (4,))
    x[0][: low[0]], x[1][: low[1]] = whole[: low[0]], whole[low[0] :]
    launcher.launch([x, y, s])
    borders = np.cumsum([0, *sizes])
    norms = [np.sqrt(np.sum(whole[a:b].astype(np.float64) ** 2)).astype(F32) for a, b in pairwise(borders)]
    expected = (whole.astype(F32) / np.repeat(norms, sizes)).astype(np.float16)
    for rank in range(2):
        np.testing.assert_array_equal(s[rank], norms)
        np.testing.assert_array_equal(y[rank], expected)


@pytest.mark.parametrize("kind", [FP16, BF16, FP32, FP64, INT32, INT64], ids=repr)
def test_arithmetic_and_casts_round_as_the_oracle_does(kind, folder):
    count = 1003
    kernel = samples.arithmetic(kind, count)
    launcher = Launcher(print_kernel(kernel), folder, ctas=1)
    random = np.random.default_rng(6)
    tensors = [taken(launcher, t.dtype.numpy, (count,)) for t in kernel.tensors]
    for array in (tensors[0][0], tensors[1][0]):
        array.view(np.uint8)[:] = random.integers(0, 256, array.nbytes)
        if kind.is_float:
            array[:8] = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, 65504, 1e-7], np.float64).astype(kind.numpy)
        array[8:200] = random.integers(-50, 50, 192).astype(kind.numpy)
    launcher.launch(tensors)
    a, b = tensors[0][0], tensors[1][0]
    at = 2
    with np.errstate(all="ignore"):
        for statement in kernel.phases[0].body:
            if isinstance(statement, Apply):
                expected = FUNCTIONS[statement.fn](kind, *((a,) if len(statement.args) == 1 else (a, b)))
            elif isinstance(statement, Convert):
                expected = cast(a, kind, kernel.dtypes[statement.out])
            elif isinstance(statement, Call):
                wide = kind.compute.type
                x, y = a.astype(wide), b.astype(wide)
                expected = rounded(np.maximum(x * wide(0.5), -y) + wide(2) / np.abs(y), kind)
            else:
                continue
            assert mismatch(tensors[at][0], expected) is None, statement
            at += 1
    assert at == len(tensors)


def test_a_rank_that_does_not_come_is_an_error_word_that_names_it(folder):
    launcher = Launcher(print_kernel(samples.sgd(64)), folder, ctas=1)
    arrays = [taken(launcher, t.dtype.numpy, (64,)) for t in launcher.kernel.tensors]
    launcher.launch(arrays, [launcher.memory.take(8)], limit_s=0.05, absent=(1,))
    assert launcher.error(0) == 2


def hard_quotients(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of every size with their last bits set at random, zeros, infinities and NaN; divisors likewise."""
    size = np.float32(2.0) ** rng.integers(-126, 127, count).astype(np.float32)
    x = (rng.integers(1 << 23, 1 << 24, count) / (1 << 23)).astype(np.float32) * size * rng.choice([-1, 1], count)
    x[:6] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45]
    divisors = np.array([3, 10, 0.999, 0.001, 1e-30, 1e30, 7e-13, -49.0, 2, 1.9999999, 0], np.float32)
    return x.astype(np.float32), divisors


def test_a_barrier_to_which_one_thread_does_not_come_is_found(folder):
    whole = print_kernel(samples.norms(64))
    start = whole.body.index("{", whole.body.index(f" {whole.name}(")) + 1
    body = f"{whole.body[:start]} if (threadIdx.x == 5) return;{whole.body[start:]}"
    launcher = Launcher(replace(whole, body=body), folder, ctas=1)
    tensors = [[np.zeros(256) for _ in range(launcher.ranks)] for _ in launcher.kernel.tensors]
    with pytest.raises(AssertionError, match="wait at a barrier"):
        launcher.launch(tensors, limit_s=0.2)


def test_a_division_by_one_number_is_bit_for_bit_a_division(folder):
    x, divisors = hard_quotients(np.random.default_rng(3), 20_000)
    value, by = cl.tensor("x", cl.FP32, x.shape, cl.Replicated), cl.scalar("by", cl.FP32)
    program = cl.program("quotient", inputs=[value, by], outputs=[cl.div(value, by, name="y")], ranks=1)
    (kernel,) = lower(program).kernels()
    source = print_kernel(kernel)
    assert "over(" in source.text
    launcher = Launcher(source, folder, ctas=1)
    tensors, scalar = [taken(launcher, F32, x.shape) for _ in kernel.tensors], launcher.memory.take(8).view(np.float64)
    (into,) = (t for t, tensor in enumerate(kernel.tensors) if tensor.written)
    tensors[1 - into][0][:] = x
    for divisor in divisors:
        scalar[0] = divisor
        launcher.launch(tensors, [scalar])
        with np.errstate(all="ignore"):
            assert mismatch(tensors[into][0], x / divisor) is None, divisor
